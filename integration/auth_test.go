package integration

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
)

const rightPassword = "r\"ight;hunter2"

// newRole creates a role that logs in by a method of the test server (password, md5, scram) and returns its name and what
// the server stores of its password.
func newRole(t *testing.T, method, encryption string) (name, stored string) {
	t.Helper()
	name = "role_" + strings.ToLower(rand.Text()[:12])
	admin := testenv.Upstream(t)
	testenv.Exec(t, admin, fmt.Sprintf("BEGIN; SET LOCAL password_encryption = '%s'; CREATE ROLE %s LOGIN PASSWORD '%s' IN ROLE auth_%s; COMMIT",
		encryption, name, rightPassword, method))
	t.Cleanup(func() { testenv.Exec(t, admin, "DROP ROLE "+name) })
	require.NoError(t, connect(t, admin).QueryRow(context.Background(), "SELECT rolpassword FROM pg_authid WHERE rolname = $1", name).Scan(&stored))
	return name, stored
}

// usersFile writes a list of users: names and secrets in turn.
func usersFile(t *testing.T, users ...string) string {
	t.Helper()
	var text strings.Builder
	text.WriteString("; users of a test\n")
	for i := 0; i < len(users); i += 2 {
		fmt.Fprintf(&text, "\"%s\" \"%s\"\n", users[i], strings.ReplaceAll(users[i+1], `"`, `""`))
	}
	path := filepath.Join(t.TempDir(), "users.txt")
	require.NoError(t, os.WriteFile(path, []byte(text.String()), 0o600))
	return path
}

// asUser is the URL of a server with another user, password and options.
func asUser(t *testing.T, of, address, user, password string, options ...string) string {
	t.Helper()
	u, err := url.Parse(of)
	require.NoError(t, err)
	if address != "" {
		u.Host = address
	}
	u.User = url.UserPassword(user, password)
	query := url.Values{}
	for i := 0; i < len(options); i += 2 {
		query.Set(options[i], options[i+1])
	}
	u.RawQuery = query.Encode()
	return u.String()
}

// logIn logs in by psql, pgx and lib/pq, and returns the error of each, "" when the session is the user's.
func logIn(t *testing.T, target, user string) (psql, pgxError, pq string) {
	t.Helper()
	const query = "SELECT current_user"
	r := testenv.Psql(t, target, "-t", "-c", query)
	if psql = r.Stderr; r.Code == 0 {
		assert.Equal(t, user, strings.TrimSpace(r.Stdout))
	}
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	var is string
	if conn, err := pgx.Connect(ctx, target); err != nil {
		pgxError = err.Error()
	} else {
		assert.NoError(t, conn.QueryRow(ctx, query).Scan(&is))
		assert.Equal(t, user, is)
		assert.NoError(t, conn.Close(ctx))
	}
	u, err := url.Parse(target)
	require.NoError(t, err)
	options := u.Query()
	options.Del("channel_binding") // lib/pq has none
	u.RawQuery = options.Encode()
	db, err := sql.Open("postgres", u.String())
	require.NoError(t, err)
	defer func() { _ = db.Close() }()
	if err := db.QueryRowContext(ctx, query).Scan(&is); err != nil {
		pq = err.Error()
	} else {
		assert.Equal(t, user, is)
	}
	return psql, pgxError, pq
}

// A user of the list logs in here with a password, and with that at the upstream, by every method for which what is stored
// suffices.
func TestTerminatedLogins(t *testing.T) {
	t.Parallel()
	upstream := testenv.Upstream(t)
	type login struct {
		user, secret string
		fails        string // at the upstream
	}
	logins := map[string]login{}
	for _, c := range []struct{ method, encryption string }{
		{"scram", "scram-sha-256"}, {"md5", "md5"}, {"md5", "scram-sha-256"}, {"password", "md5"}, {"password", "scram-sha-256"},
	} {
		name, stored := newRole(t, c.method, c.encryption)
		l := login{user: name, secret: stored}
		if c.method == "password" {
			l.fails = "only a verifier or hash of it is known"
		}
		logins["stored "+c.encryption+" for "+c.method] = l
		name, _ = newRole(t, c.method, c.encryption)
		logins["password for "+c.encryption+" by "+c.method] = login{user: name, secret: rightPassword}
	}
	name, _ := newRole(t, "scram", "scram-sha-256")
	_, other := newRole(t, "scram", "scram-sha-256")
	logins["another verifier"] = login{user: name, secret: other, fails: "another verifier"}
	logins["trusted"] = login{user: "postgres", secret: other}

	var list []string
	for _, l := range logins {
		list = append(list, l.user, l.secret)
	}
	p, ca := withTLS(t, "--upstream", upstream, "--auth", "scram", "--users", usersFile(t, list...), "--log-level", "debug")
	tls := []string{"sslmode", "verify-full", "sslrootcert", ca.File}
	for name, l := range logins {
		for mode, options := range map[string][]string{
			"plain": {"sslmode", "disable"}, "TLS": tls, "bound": append(tls[:len(tls):len(tls)], "channel_binding", "require"),
		} {
			if mode == "bound" && strings.HasPrefix(l.secret, "md5") {
				continue // not without SCRAM
			}
			t.Run(name+", "+mode, func(t *testing.T) {
				psql, pgxError, pq := logIn(t, asUser(t, upstream, p.Address, l.user, rightPassword, options...), l.user)
				if l.fails == "" {
					assert.Empty(t, psql)
					assert.Empty(t, pgxError)
					assert.Empty(t, pq)
					return
				}
				assert.Contains(t, psql, fmt.Sprintf("FATAL:  could not log in to the upstream server as user \"%s\"\nDETAIL:  ", l.user))
				assert.Contains(t, psql, l.fails)
				assert.Contains(t, psql, "HINT:  ")
				assert.Contains(t, pgxError, "SQLSTATE 28000")
				assert.Contains(t, pq, "28000")
			})
			t.Run(name+", wrong, "+mode, func(t *testing.T) {
				psql, pgxError, pq := logIn(t, asUser(t, upstream, p.Address, l.user, "wrong", options...), l.user)
				want := fmt.Sprintf("password authentication failed for user \"%s\"", l.user)
				assert.Contains(t, psql, "FATAL:  "+want)
				assert.Contains(t, pgxError, "SQLSTATE 28P01")
				assert.Contains(t, pq, want)
			})
		}
	}
	for name, user := range map[string]string{"unknown": "nobody_at_all", "known upstream": first(newRole(t, "scram", "scram-sha-256"))} {
		t.Run(name, func(t *testing.T) {
			psql, _, _ := logIn(t, asUser(t, upstream, p.Address, user, rightPassword, tls...), user)
			assert.Contains(t, psql, fmt.Sprintf("FATAL:  password authentication failed for user \"%s\"", user))
		})
	}
	secretsStaySecret(t, p, list...)
}

func first(name, _ string) string { return name }

// secretsStaySecret looks for secrets in a log.
func secretsStaySecret(t *testing.T, p *testenv.Process, users ...string) {
	t.Helper()
	log := p.Log()
	assert.NotContains(t, log, "hunter2")
	for i := 1; i < len(users); i += 2 {
		assert.NotContains(t, log, users[i])
		for _, part := range strings.FieldsFunc(users[i], func(c rune) bool { return c == '$' || c == ':' }) {
			if len(part) > 20 {
				assert.NotContains(t, log, part)
			}
		}
	}
	assert.NotContains(t, log, "v=")
	assert.NotContains(t, log, "p=")
}

func TestAuthQuery(t *testing.T) {
	t.Parallel()
	upstream := testenv.Upstream(t)
	name, _ := newRole(t, "scram", "scram-sha-256")
	inFile, _ := newRole(t, "scram", "scram-sha-256")
	without := "role_" + strings.ToLower(rand.Text()[:12])
	testenv.Exec(t, upstream, "CREATE ROLE "+without+" LOGIN")
	t.Cleanup(func() { testenv.Exec(t, upstream, "DROP ROLE "+without) })
	const query = "SELECT rolname, rolpassword FROM pg_catalog.pg_authid WHERE rolname = $1"
	p := testenv.Start(t, "--store", "memory:", "--upstream", upstream, "--auth", "scram", "--auth-query", query,
		"--users", usersFile(t, inFile, "hunter2"), "--log-level", "debug")
	target := func(user, password string) string {
		return asUser(t, upstream, p.Address, user, password, "sslmode", "disable")
	}

	psql, pgxError, pq := logIn(t, target(name, rightPassword), name)
	assert.Empty(t, psql+pgxError+pq)
	for _, user := range []string{without, "nobody_at_all", "' OR true --"} {
		psql, _, _ = logIn(t, target(user, rightPassword), user)
		assert.Contains(t, psql, fmt.Sprintf("FATAL:  password authentication failed for user \"%s\"", user))
	}
	psql, _, _ = logIn(t, target(inFile, rightPassword), inFile)
	assert.Contains(t, psql, "password authentication failed", "the file has another password, and comes first")

	// The control connection is made again when it was ended.
	testenv.Exec(t, upstream, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_catalog.pg_authid WHERE rolname = $1%' AND pid <> pg_backend_pid()")
	psql, _, _ = logIn(t, target(name, rightPassword), name)
	assert.Empty(t, psql)
	secretsStaySecret(t, p)

	for name, c := range map[string]struct{ query, says string }{
		"no such table": {"SELECT a, b FROM nowhere WHERE a = $1", "nowhere"},
		"two rows":      {"SELECT $1, 'x' UNION ALL SELECT $1, 'y'", "one row of name and secret"},
		"one column":    {"SELECT $1", "one row of name and secret"},
		"another user":  {"SELECT 'x' || $1, 'y'", "another user"},
	} {
		t.Run(name, func(t *testing.T) {
			p := testenv.Start(t, "--store", "memory:", "--upstream", upstream, "--auth", "scram", "--auth-query", c.query)
			psql, _, _ := logIn(t, asUser(t, upstream, p.Address, "postgres", "x", "sslmode", "disable"), "postgres")
			assert.Contains(t, psql, "FATAL:  could not look up the user")
			assert.Contains(t, p.Log(), c.says)
		})
	}
}

func TestAuthWithoutUpstream(t *testing.T) {
	t.Parallel()
	p, ca := withTLS(t, "--auth", "scram", "--users", usersFile(t, "alice", rightPassword))
	target := func(password string) string {
		return asUser(t, "postgres://x/d", p.Address, "alice", password, "sslmode", "verify-full", "sslrootcert", ca.File, "channel_binding", "require")
	}
	r := testenv.Psql(t, target(rightPassword), "-t", "-c", "CREATE SEQUENCE s", "-c", "SELECT nextval('s')")
	require.Equal(t, 0, r.Code, r.Stderr)
	r = testenv.Psql(t, target("wrong"), "-c", "SELECT 1")
	require.Contains(t, r.Stderr, `FATAL:  password authentication failed for user "alice"`)
}

// A client's certificate does not stand for the password.
func TestCertificateAndPassword(t *testing.T) {
	t.Parallel()
	authority := testenv.NewAuthority(t)
	cert, key := authority.Issue("alice")
	p, _ := withTLS(t, "--auth", "scram", "--users", usersFile(t, "alice", rightPassword, "bob", rightPassword), "--tls-client-ca", authority.File)
	for _, c := range []struct{ user, password, want string }{
		{"alice", rightPassword, ""}, {"alice", "wrong", "password authentication failed"}, {"bob", rightPassword, "certificate authentication failed"},
	} {
		r := testenv.Psql(t, asUser(t, "postgres://x/d", p.Address, c.user, c.password, "sslmode", "require", "sslcert", cert, "sslkey", key), "-c", "SELECT 1")
		require.Equal(t, c.want == "", r.Code == 0, r.Stderr)
		require.Contains(t, r.Stderr, c.want)
	}
}

// A replication connection logs in like others, and so does a client of a newer protocol.
func TestTerminatedLoginsOfOtherKinds(t *testing.T) {
	t.Parallel()
	upstream := testenv.Upstream(t)
	name, stored := newRole(t, "scram", "scram-sha-256")
	testenv.Exec(t, upstream, "ALTER ROLE "+name+" REPLICATION")
	p := testenv.Start(t, "--store", "memory:", "--upstream", upstream, "--auth", "scram", "--users", usersFile(t, name, stored))
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	target := asUser(t, upstream, p.Address, name, rightPassword, "sslmode", "disable")

	conn, err := pgconn.Connect(ctx, target+"&replication=database")
	require.NoError(t, err)
	results, err := conn.Exec(ctx, "IDENTIFY_SYSTEM").ReadAll()
	require.NoError(t, err)
	require.Len(t, results[0].Rows, 1)
	require.NoError(t, conn.Close(ctx))

	cfg, err := pgx.ParseConfig(target)
	require.NoError(t, err)
	cfg.MaxProtocolVersion = "3.2"
	newer, err := pgx.ConnectConfig(ctx, cfg)
	require.NoError(t, err)
	require.NoError(t, newer.Ping(ctx))
	require.NoError(t, newer.Close(ctx))
}

// Where the upstream asks for the password, a client behind TLS is not offered the channel binding of another connection.
func TestRelayedLoginsBehindTLS(t *testing.T) {
	t.Parallel()
	upstream := testenv.Upstream(t)
	p, ca := withTLS(t, "--upstream", upstream)
	tls := []string{"sslmode", "verify-full", "sslrootcert", ca.File}
	for _, method := range []string{"scram", "md5", "password"} {
		name, _ := newRole(t, method, "scram-sha-256")
		psql, pgxError, pq := logIn(t, asUser(t, upstream, p.Address, name, rightPassword, tls...), name)
		assert.Empty(t, psql+pgxError+pq)
		psql, _, _ = logIn(t, asUser(t, upstream, p.Address, name, "wrong", tls...), name)
		assert.Contains(t, psql, fmt.Sprintf("FATAL:  password authentication failed for user \"%s\"", name))
	}
}

// A hostile login ends here as it does at a PostgreSQL, word for word.
func TestHostileLogins(t *testing.T) {
	t.Parallel()
	upstream := testenv.Upstream(t)
	name, stored := newRole(t, "scram", "scram-sha-256")
	hashed, hash := newRole(t, "md5", "md5")
	p := testenv.Start(t, "--store", "memory:", "--upstream", upstream, "--auth", "scram", "--users", usersFile(t, name, stored, hashed, hash))
	direct, err := url.Parse(upstream)
	require.NoError(t, err)

	const scram = "SCRAM-SHA-256"
	proof := base64.StdEncoding.EncodeToString(make([]byte, 32))
	initial := func(mechanism, message string) string {
		return mechanism + "\x00" + string([]byte{0, 0, 0, byte(len(message))}) + message
	}
	good := initial(scram, "n,,n=,r=abc")
	type conversation []string // bodies of password messages; NONCE is the server's nonce
	for title, c := range map[string]struct {
		user string
		sent conversation
	}{
		"wrong proof":                {name, conversation{good, "c=biws,r=NONCE,p=" + proof}},
		"extensions":                 {name, conversation{initial(scram, "n,,n=x,r=abc,x=y"), "c=biws,r=NONCE,x=y,z=,p=" + proof}},
		"mechanism alone":            {name, conversation{scram + "\x00\xff\xff\xff\xff", "n,,n=,r=abc", "c=biws,r=NONCE,p=" + proof}},
		"another mechanism":          {name, conversation{initial("PLAIN", "x")}},
		"no mechanism":               {name, conversation{""}},
		"binding without TLS":        {name, conversation{initial(scram+"-PLUS", "p=tls-server-end-point,,n=,r=abc")}},
		"binding not chosen":         {name, conversation{initial(scram, "p=tls-server-end-point,,n=,r=abc")}},
		"unbound since none offered": {name, conversation{initial(scram, "y,,n=,r=abc"), "c=eSws,r=NONCE,p=" + proof}},
		"header not that of before":  {name, conversation{initial(scram, "y,,n=,r=abc"), "c=biws,r=NONCE,p=" + proof}},
		"unknown flag":               {name, conversation{initial(scram, "z,,n=,r=abc")}},
		"long flag":                  {name, conversation{initial(scram, "nn,,n=,r=abc")}},
		"no comma":                   {name, conversation{initial(scram, "n")}},
		"authorization":              {name, conversation{initial(scram, "n,a=other,n=,r=abc")}},
		"something for it":           {name, conversation{initial(scram, "n,x=other,n=,r=abc")}},
		"mandatory extension":        {name, conversation{initial(scram, "n,,m=x,n=,r=abc")}},
		"no name":                    {name, conversation{initial(scram, "n,,r=abc")}},
		"no nonce":                   {name, conversation{initial(scram, "n,,n=")}},
		"name without value":         {name, conversation{initial(scram, "n,,n,r=abc")}},
		"blank in the nonce":         {name, conversation{initial(scram, "n,,n=,r=a c")}},
		"zero byte":                  {name, conversation{initial(scram, "n,,n=,r=a\x00c")}},
		"nothing first":              {name, conversation{initial(scram, "")}},
		"nothing last":               {name, conversation{good, ""}},
		"zero byte last":             {name, conversation{good, "c=biws,r=NONCE\x00,p=" + proof}},
		"another nonce":              {name, conversation{good, "c=biws,r=abcdef,p=" + proof}},
		"no binding":                 {name, conversation{good, "r=NONCE,p=" + proof}},
		"no proof":                   {name, conversation{good, "c=biws,r=NONCE"}},
		"empty proof":                {name, conversation{good, "c=biws,r=NONCE,p="}},
		"short proof":                {name, conversation{good, "c=biws,r=NONCE,p=AAAA"}},
		"no base64":                  {name, conversation{good, "c=biws,r=NONCE,p=!" + proof[1:]}},
		"behind the proof":           {name, conversation{good, "c=biws,r=NONCE,p=" + proof + ",x=y"}},
		"comma behind the proof":     {name, conversation{good, "c=biws,r=NONCE,p=" + proof + ","}},
		"no attribute":               {name, conversation{good, "c=biws,r=NONCE,1=2,p=" + proof}},
		"attribute without value":    {name, conversation{good, "c=biws,r=NONCE,x,p=" + proof}},
		"too long":                   {name, conversation{strings.Repeat("x", 1025)}},
		"longest":                    {name, conversation{strings.Repeat("x", 1024)}},
		"length beyond the message":  {name, conversation{scram + "\x00\x00\x00\x00\x7fn"}},
		"length short of it":         {name, conversation{scram + "\x00\x00\x00\x00\x01n,,n=,r=abc"}},
		"negative length":            {name, conversation{scram + "\x00\xff\xff\xff\xfe"}},
		"unknown user":               {"nobody_at_all", conversation{good, "c=biws,r=NONCE,p=" + proof}},
		"wrong hash":                 {hashed, conversation{"md5" + strings.Repeat("0", 32) + "\x00"}},
		"no hash":                    {hashed, conversation{"\x00"}},
		"hash without end":           {hashed, conversation{"md5"}},
		"two hashes":                 {hashed, conversation{"md5\x00md5\x00"}},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			if title == "unknown user" { // the server trusts who is in no group, so there is nothing to compare with
				require.Equal(t, []string{"SASL", "continue", `FATAL 28P01 password authentication failed for user "nobody_at_all" ""`, "the end"},
					talk(t, p.Address, c.user, c.sent))
				return
			}
			require.Equal(t, talk(t, direct.Host, c.user, c.sent), talk(t, p.Address, c.user, c.sent))
		})
	}
	t.Run("another message", func(t *testing.T) {
		t.Parallel()
		for _, user := range []string{name, hashed} {
			var said [2]string
			for i, address := range []string{direct.Host, p.Address} {
				_, f := open(t, address, user)
				receive(f)
				f.Send(&pgproto3.Query{String: "SELECT 1"})
				require.NoError(t, f.Flush())
				said[i] = receive(f)
			}
			require.Equal(t, said[0], said[1])
		}
	})
	exec(t, asUser(t, upstream, p.Address, name, rightPassword, "sslmode", "disable"), "SELECT 1")
}

// open begins a login.
func open(t *testing.T, address, user string) (net.Conn, *pgproto3.Frontend) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	_, err = io.WriteString(conn, untyped(version30, "user\x00"+user+"\x00database\x00postgres\x00\x00"))
	require.NoError(t, err)
	return conn, pgproto3.NewFrontend(conn, conn)
}

// talk sends password messages, each after an answer, and returns the answers, without what differs from one login to the
// next.
func talk(t *testing.T, address, user string, bodies []string) []string {
	t.Helper()
	conn, f := open(t, address, user)
	said := []string{receive(f)}
	nonce := ""
	for _, body := range bodies {
		body = strings.ReplaceAll(body, "NONCE", nonce)
		message := binary.BigEndian.AppendUint32([]byte{'p'}, uint32(4+len(body)))
		_, err := conn.Write(append(message, body...))
		require.NoError(t, err)
		answer := receive(f)
		if r, ok := strings.CutPrefix(answer, "continue r="); ok {
			nonce, _, _ = strings.Cut(r, ",")
			answer = "continue"
		}
		said = append(said, answer)
	}
	return append(said, receive(f))
}

// receive returns what a server says next, in a few words.
func receive(f *pgproto3.Frontend) string {
	message, err := f.Receive()
	if err != nil {
		return "the end"
	}
	switch m := message.(type) {
	case *pgproto3.AuthenticationSASL:
		return "SASL"
	case *pgproto3.AuthenticationMD5Password:
		return "MD5"
	case *pgproto3.AuthenticationSASLContinue:
		return "continue " + string(m.Data)
	case *pgproto3.ErrorResponse:
		switch m.Message {
		case "invalid string in message", "insufficient data left in message": // one of the ways to be malformed
			m.Message = "invalid message format"
		}
		return fmt.Sprintf("%s %s %s %q", m.Severity, m.Code, m.Message, m.Detail)
	}
	return fmt.Sprintf("%T", message)
}

func TestAuthSettings(t *testing.T) {
	t.Parallel()
	broken := usersFile(t, "alice", "x", "bob", "SCRAM-SHA-256$hunter2")
	for name, c := range map[string]struct{ args, says []string }{
		"unknown way":           {[]string{"--auth", "md5"}, []string{"--auth", "md5", "scram"}},
		"no users":              {[]string{"--auth", "scram"}, []string{"--auth", "users", "auth_query"}},
		"users of the upstream": {[]string{"--users", broken}, []string{"--users", "scram"}},
		"query of the upstream": {[]string{"--auth-query", "SELECT 1"}, []string{"--auth-query", "scram"}},
		"query of nobody":       {[]string{"--auth", "scram", "--auth-query", "SELECT 1"}, []string{"--auth-query", "upstream"}},
		"no such file":          {[]string{"--auth", "scram", "--users", "/nonexistent/users"}, []string{"--users", "/nonexistent/users", "no such file"}},
		"malformed file":        {[]string{"--auth", "scram", "--users", broken}, []string{"--users", broken, "line 3", "bob"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			failsToStart(t, testenv.Command{Args: append([]string{"serve", "--store", "memory:"}, c.args...)}, c.says...)
		})
	}
}

// A client that is asked for its password hears that the server goes, and does not delay it.
func TestDrainDuringLogins(t *testing.T) {
	t.Parallel()
	p := testenv.Start(t, "--store", "memory:", "--auth", "scram", "--users", usersFile(t, "alice", rightPassword))
	for _, silent := range []bool{true, false} {
		conn, f := open(t, p.Address, "alice")
		require.Equal(t, "SASL", receive(f))
		if !silent {
			_, err := conn.Write([]byte{'p', 0, 0, 0, 100, 'S'}) // the beginning of a message
			require.NoError(t, err)
		}
		defer func() { assert.Contains(t, receive(f), "FATAL 57P03 ") }()
	}
	p.Stop()
}
