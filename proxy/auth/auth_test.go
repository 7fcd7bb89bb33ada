package auth

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/proxy/wire"
)

// PostgreSQL made these of the password geheim of user sc.
const (
	verifierOfGeheim = "SCRAM-SHA-256$4096:E6i7bRBj18Le2e0pGvmyzw==$qWFPk8iRSKJYTfRt08GlYVq3DhczP9YgUn1x8wDPNng=:yfhUHiNiV8S878PnAVasxS/s47DO4b+GbVpOsEw4/WI="
	md5OfGeheim      = "md58b09fcb6a17ab8f6b0ae4b0c53c5ca96"
)

func parse(t testing.TB, user, stored string) *Secret {
	t.Helper()
	s, err := ParseSecret(user, stored)
	require.NoError(t, err)
	return s
}

// knows are the credentials of one who knows a password.
func knows(t testing.TB, user, password string) *Credentials {
	t.Helper()
	k, err := deriveKeys(password, []byte("some other salt"), iterations)
	require.NoError(t, err)
	return &Credentials{user: user, password: password, keys: k}
}

// exchange has a client log in at a server.
func exchange(server *Server, client *Credentials, offered []string, binding []byte) (*Credentials, error) {
	c, err := client.SCRAM(offered, binding)
	if err != nil {
		return nil, err
	}
	challenge, err := server.First(c.Mechanism(), c.First())
	if err != nil {
		return nil, err
	}
	answer, err := c.Final(challenge)
	if err != nil {
		return nil, err
	}
	signature, proved, err := server.Final(answer)
	if err != nil {
		return nil, err
	}
	return proved, c.Verify(signature)
}

func TestExchange(t *testing.T) {
	binding, other := []byte("hash of a certificate"), []byte("hash of another")
	for name, c := range map[string]struct {
		stored, password string
		server, client   []byte // bindings
		want             string
	}{
		"verifier":                  {verifierOfGeheim, "geheim", nil, nil, ""},
		"password":                  {"geheim", "geheim", nil, nil, ""},
		"wrong password":            {verifierOfGeheim, "gehein", nil, nil, "the password does not match"},
		"wrong password, password":  {"geheim", "gehein", nil, nil, "the password does not match"},
		"nobody":                    {"", "geheim", nil, nil, "no such user"},
		"md5":                       {md5OfGeheim, "geheim", nil, nil, "no SCRAM verifier is stored"},
		"bound":                     {verifierOfGeheim, "geheim", binding, binding, ""},
		"bound to another":          {verifierOfGeheim, "geheim", binding, other, "channel binding check failed"},
		"client without TLS of its": {verifierOfGeheim, "geheim", binding, nil, ""},
		"prepared password":         {"\u2168\u00a0x", "IX x", nil, nil, ""},
		"password beyond SASLprep":  {"\u0627x\u0001", "\u0627x\u0001", nil, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			server := NewServer("sc", parse(t, "sc", c.stored), c.server)
			proved, err := exchange(server, knows(t, "sc", c.password), server.Mechanisms(), c.client)
			if c.want != "" {
				require.ErrorContains(t, err, c.want)
				return
			}
			require.NoError(t, err)
			// What was proved logs in where the same is stored.
			upstream := NewServer("sc", parse(t, "sc", c.stored), nil)
			_, err = exchange(upstream, proved, upstream.Mechanisms(), nil)
			require.NoError(t, err)
		})
	}
}

func TestRecoveredKeyNeedsTheSameVerifier(t *testing.T) {
	server := NewServer("sc", parse(t, "sc", verifierOfGeheim), nil)
	proved, err := exchange(server, knows(t, "sc", "geheim"), server.Mechanisms(), nil)
	require.NoError(t, err)
	_, err = exchange(NewServer("sc", parse(t, "sc", "geheim"), nil), proved, []string{Mechanism}, nil)
	require.ErrorContains(t, err, "another verifier")
	_, err = proved.Password()
	require.ErrorIs(t, err, ErrNoPassword)
	_, err = proved.MD5([4]byte{})
	require.ErrorIs(t, err, ErrNoPassword)

	// A password logs in anywhere.
	server = NewServer("sc", parse(t, "sc", "geheim"), nil)
	proved, err = exchange(server, knows(t, "sc", "geheim"), server.Mechanisms(), nil)
	require.NoError(t, err)
	_, err = exchange(NewServer("sc", parse(t, "sc", verifierOfGeheim), nil), proved, []string{Mechanism}, nil)
	require.NoError(t, err)
	password, err := proved.Password()
	require.NoError(t, err)
	require.Equal(t, "geheim", password)
}

// Somebody between who takes the mechanism with channel binding off the list is noticed, and so is a server that does not
// know the user.
func TestOthersBetween(t *testing.T) {
	binding := []byte("hash of a certificate")
	server := NewServer("sc", parse(t, "sc", verifierOfGeheim), binding)
	_, err := exchange(server, knows(t, "sc", "geheim"), []string{Mechanism}, binding)
	require.ErrorContains(t, err, "SCRAM channel binding negotiation error")

	client, err := knows(t, "sc", "geheim").SCRAM([]string{Mechanism}, nil)
	require.NoError(t, err)
	server = NewServer("sc", nil, nil)
	challenge, err := server.First(client.Mechanism(), client.First())
	require.NoError(t, err)
	_, err = client.Final(challenge)
	require.NoError(t, err)
	require.ErrorContains(t, client.Verify([]byte("v=AAAA")), "does not know the user's password")

	_, err = client.Final([]byte("r=" + client.nonce + ",s=AAAA,i=4096"))
	require.ErrorContains(t, err, "malformed", "the server added nothing to the nonce")
	_, err = knows(t, "sc", "geheim").SCRAM([]string{"OAUTHBEARER"}, nil)
	require.ErrorContains(t, err, "OAUTHBEARER")
}

// An unknown user is asked with a salt of its own that stays the same, as that of a known one does.
func TestUnknownUsersLookLikeOthers(t *testing.T) {
	first := func(user string, secret *Secret) string {
		s := NewServer(user, secret, nil)
		challenge, err := s.First(Mechanism, []byte("n,,n=,r=abc"))
		require.NoError(t, err)
		_, parameters, ok := strings.Cut(string(challenge), ",")
		require.True(t, ok)
		return parameters
	}
	assert.Equal(t, first("nobody", nil), first("nobody", nil))
	assert.NotEqual(t, first("nobody", nil), first("nobody else", nil))
	assert.Len(t, first("nobody", nil), len(first("sc", parse(t, "sc", verifierOfGeheim))))
	assert.Equal(t, first("nobody", nil), first("nobody", parse(t, "nobody", "geheim")), "one whose password is stored")
}

func TestMD5(t *testing.T) {
	salt := [4]byte{1, 2, 3, 4}
	s := parse(t, "sc", "md5"+hashMD5("geheim", "sc"))
	require.True(t, s.IsMD5())
	require.False(t, (*Secret)(nil).IsMD5())
	require.False(t, parse(t, "sc", verifierOfGeheim).IsMD5())
	answer, err := knows(t, "sc", "geheim").MD5(salt)
	require.NoError(t, err)
	proved, err := s.MD5("sc", answer, salt)
	require.NoError(t, err)
	again, err := proved.MD5(salt)
	require.NoError(t, err)
	require.Equal(t, answer, again)
	_, err = proved.SCRAM([]string{Mechanism}, nil)
	require.ErrorIs(t, err, ErrNoPassword)
	_, err = s.MD5("sc", answer, [4]byte{})
	var refused *Refused
	require.ErrorAs(t, err, &refused)
}

func TestSecretsThatAreNone(t *testing.T) {
	for name, stored := range map[string]string{
		"no keys":             "SCRAM-SHA-256$4096:E6i7bRBj18Le2e0pGvmyzw==",
		"no salt":             "SCRAM-SHA-256$4096:$qWFPk8iRSKJYTfRt08GlYVq3DhczP9YgUn1x8wDPNng=:yfhUHiNiV8S878PnAVasxS/s47DO4b+GbVpOsEw4/WI=",
		"short key":           "SCRAM-SHA-256$4096:E6i7bRBj18Le2e0pGvmyzw==$AAAA:yfhUHiNiV8S878PnAVasxS/s47DO4b+GbVpOsEw4/WI=",
		"no iterations":       strings.Replace(verifierOfGeheim, "4096", "0", 1),
		"too many iterations": strings.Replace(verifierOfGeheim, "4096", "99999999999", 1),
		"not base64":          strings.Replace(verifierOfGeheim, "qWFP", "!!!!", 1),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseSecret("sc", stored)
			require.EqualError(t, err, `the SCRAM verifier of user "sc" is malformed`)
		})
	}
}

func TestUsersFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "users.txt")
	write := func(text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	write("; those who may come in\n\n  \"sc\" \"" + verifierOfGeheim + "\"\r\n\"a\"\"b\"\t\"pass\"\"word\" and more\n\"nobody\" \"\"\n\"last\" \"x\"")
	f, err := LoadFile(path)
	require.NoError(t, err)
	secret := func(user string) *Secret {
		s, err := f.Secret(context.Background(), user)
		require.NoError(t, err)
		return s
	}
	require.NotNil(t, secret("sc").verifier)
	require.Equal(t, `pass"word`, secret(`a"b`).password)
	require.Equal(t, "x", secret("last").password)
	require.Nil(t, secret("nobody"))
	require.Nil(t, secret("SC"))
	before := secret("last")

	write("\"last\" \"x\"\n\"new\" \"y\"\n")
	require.NoError(t, f.Reload())
	require.Nil(t, secret("sc"))
	require.Equal(t, "y", secret("new").password)
	require.Same(t, before, secret("last"), "its keys are not derived again")

	for name, c := range map[string]struct{ text, want string }{
		"no name":          {"last x\n", "line 1: does not begin with a user's name"},
		"empty name":       {`"" "x"`, "line 1: does not begin"},
		"open name":        {`"last`, "line 1: does not begin"},
		"no secret":        {"; first\n\"last\"\n", "line 2: has no secret"},
		"open secret":      {`"last" "x`, "line 1: has no secret"},
		"nothing between":  {`"last""x"`, "line 1: has no secret"},
		"twice":            {"\"last\" \"x\"\n\"last\" \"y\"\n", `line 2: user "last" is in line 1 already`},
		"zero byte":        {"\"last\" \"x\x00\"\n", "line 1: holds a zero byte"},
		"broken verifier":  {"\"last\" \"SCRAM-SHA-256$hunter2\"\n", `line 1: the SCRAM verifier of user "last" is malformed`},
		"comment in front": {"# last\n", "line 1: does not begin"},
	} {
		t.Run(name, func(t *testing.T) {
			write(c.text)
			err := f.Reload()
			require.ErrorContains(t, err, path+": "+c.want)
			require.NotContains(t, err.Error(), "hunter2")
			require.Equal(t, "y", secret("new").password, "the old users stay")
		})
	}
	require.NoError(t, os.Remove(path))
	require.ErrorIs(t, f.Reload(), os.ErrNotExist)
}

func TestBinding(t *testing.T) {
	for algorithm, size := range map[x509.SignatureAlgorithm]int{
		x509.SHA1WithRSA: 32, x509.SHA256WithRSA: 32, x509.ECDSAWithSHA384: 48, x509.SHA512WithRSAPSS: 64, x509.PureEd25519: 0,
	} {
		assert.Len(t, Binding(&x509.Certificate{SignatureAlgorithm: algorithm, Raw: []byte("x")}), size, algorithm)
	}
}

// FuzzServer sends any two messages. They are refused, in one of the two ways, unless they are those of a client who knows.
func FuzzServer(f *testing.F) {
	secret := parse(f, "sc", verifierOfGeheim)
	f.Add("n,,n=,r=abc", "c=biws,r=abc,p=AAAA", false)
	f.Add("y,,n=x,r=abc,ext", "c=eSws,r=abc,x=y,p=AAAA", false)
	f.Add("p=tls-server-end-point,,n=,r=abc", "c=,r=,p=", true)
	f.Add("n,a=x,n=,r=abc", ",", false)
	f.Add("n,,m=x,n=,r=abc", "c", true)
	f.Fuzz(func(t *testing.T, first, final string, plus bool) {
		chosen, binding := Mechanism, []byte(nil)
		if plus {
			chosen, binding = MechanismPlus, []byte("hash")
		}
		var refused *Refused
		var broken *wire.Error
		s := NewServer("sc", secret, binding)
		if _, err := s.First(chosen, []byte(first)); err != nil {
			require.True(t, errors.As(err, &broken), err)
			return
		}
		final = strings.Replace(final, "r=abc", "r="+s.nonce, 1)
		_, proved, err := s.Final([]byte(final))
		require.Nil(t, proved)
		require.True(t, errors.As(err, &refused) || errors.As(err, &broken), err)
	})
}

// FuzzClient answers a client's first message with anything.
func FuzzClient(f *testing.F) {
	proved := knows(f, "sc", "geheim")
	proved.password = "" // no keys are derived: that takes long
	f.Add("r=NONCEabc,s=AAAA,i=4096", "v=AAAA")
	f.Add("r=NONCEabc,s=c29tZSBvdGhlciBzYWx0,i=4096", "v=")
	f.Add("r=,s=,i=", "e=other")
	f.Fuzz(func(t *testing.T, first, final string) {
		c, err := proved.SCRAM([]string{Mechanism}, nil)
		require.NoError(t, err)
		if _, err := c.Final([]byte(strings.Replace(first, "NONCE", c.nonce, 1))); err == nil {
			require.Error(t, c.Verify([]byte(final)))
		}
	})
}

// FuzzUsers reads any list. What was read can be written and is read the same.
func FuzzUsers(f *testing.F) {
	f.Add([]byte("; x\n\"a\" \"b\" rest\n\"c\"\"d\"\t\"\"\n"))
	f.Add([]byte("\"a\" \"b\"\n\"a\" \"b\"\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		users, err := parseUsers(data)
		if err != nil {
			return
		}
		var again bytes.Buffer
		quote := func(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }
		for name, e := range users {
			again.WriteString(quote(name) + " " + quote(e.stored) + "\n")
		}
		reread, err := parseUsers(again.Bytes())
		require.NoError(t, err)
		require.Len(t, reread, len(users))
		for name, e := range users {
			require.Equal(t, e.stored, reread[name].stored)
		}
	})
}

// FuzzVerifier reads any verifier. One that is read has keys to compare with.
func FuzzVerifier(f *testing.F) {
	f.Add(verifierOfGeheim)
	f.Add("SCRAM-SHA-256$1:$:")
	f.Fuzz(func(t *testing.T, s string) {
		if v, ok := parseVerifier(s); ok {
			require.Positive(t, v.iterations)
			require.NotEmpty(t, v.salt)
			require.Len(t, v.storedKey, keyLength)
			require.Len(t, v.serverKey, keyLength)
		}
	})
}

func BenchmarkExchange(b *testing.B) {
	binding := make([]byte, 32)
	_, _ = rand.Read(binding)
	secret, client := parse(b, "sc", verifierOfGeheim), knows(b, "sc", "geheim")
	server := NewServer("sc", secret, binding)
	proved, err := exchange(server, client, server.Mechanisms(), binding)
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		server := NewServer("sc", secret, binding)
		if _, err := exchange(server, proved, server.Mechanisms(), binding); err != nil {
			b.Fatal(err)
		}
	}
}
