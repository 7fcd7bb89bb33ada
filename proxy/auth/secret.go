package auth

import (
	"crypto/hmac"
	"crypto/md5"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/xdg-go/stringprep"
)

const (
	// iterations and saltLength are those of PostgreSQL's own verifiers (SCRAM_DEFAULT_ITERATIONS, SCRAM_DEFAULT_SALT_LEN).
	iterations = 4096
	saltLength = 16
	// maxIterations keeps a secret or an upstream from taking the processor for ever: this many take some seconds.
	maxIterations = 10_000_000

	keyLength = sha256.Size
)

// Secret is what is stored of a user's password. It does not change.
type Secret struct {
	password string // empty unless it is stored itself
	md5      string // the digits of an md5 hash; empty unless that is what is stored
	verifier *verifier
}

// verifier is a SCRAM verifier.
type verifier struct {
	iterations           int
	salt                 []byte
	storedKey, serverKey []byte
}

var md5Hash = regexp.MustCompile(`^md5[0-9a-f]{32}$`)

// ParseSecret reads what is stored of a user's password: a SCRAM verifier or an md5 hash as in pg_authid, or the password
// itself. An empty one lets nobody in: it is nil.
func ParseSecret(user, stored string) (*Secret, error) {
	switch {
	case stored == "":
		return nil, nil
	case strings.HasPrefix(stored, "SCRAM-SHA-256$"):
		v, ok := parseVerifier(stored)
		if !ok {
			return nil, fmt.Errorf("the SCRAM verifier of user %q is malformed", user)
		}
		return &Secret{verifier: v}, nil
	case md5Hash.MatchString(stored):
		return &Secret{md5: stored[len("md5"):]}, nil
	}
	salt := saltOf(user)
	k, err := deriveKeys(stored, salt, iterations)
	if err != nil {
		return nil, err
	}
	return &Secret{password: stored, verifier: k.verifier()}, nil
}

// parseVerifier reads SCRAM-SHA-256$<iterations>:<salt>$<stored key>:<server key>.
func parseVerifier(s string) (*verifier, bool) {
	parts := strings.Split(s, "$")
	if len(parts) != 3 {
		return nil, false
	}
	count, salt, ok1 := strings.Cut(parts[1], ":")
	stored, server, ok2 := strings.Cut(parts[2], ":")
	n, err := strconv.Atoi(count)
	if !ok1 || !ok2 || err != nil || n < 1 || n > maxIterations {
		return nil, false
	}
	v := &verifier{iterations: n}
	for _, field := range []struct {
		text string
		to   *[]byte
		size int // 0: any
	}{{salt, &v.salt, 0}, {stored, &v.storedKey, keyLength}, {server, &v.serverKey, keyLength}} {
		decoded, err := base64.StdEncoding.DecodeString(field.text)
		if err != nil || len(decoded) == 0 || field.size > 0 && len(decoded) != field.size {
			return nil, false
		}
		*field.to = decoded
	}
	return v, true
}

// mockNonce makes the salts of this process unlike those of another, and impossible to foretell.
var mockNonce = func() []byte {
	nonce := make([]byte, 32)
	_, _ = rand.Read(nonce) // never fails
	return nonce
}()

// saltOf is the salt of users who have none of their own: those that nobody knows and those whose password is stored. It
// stays the same as long as the process runs, as that of a verifier does.
func saltOf(user string) []byte {
	mac := hmac.New(sha256.New, mockNonce)
	mac.Write([]byte(user))
	return mac.Sum(nil)[:saltLength]
}

// mockVerifier is one that no proof fits, for a user who cannot log in and shall not learn why.
func mockVerifier(user string) *verifier {
	return &verifier{iterations: iterations, salt: saltOf(user), storedKey: make([]byte, keyLength), serverKey: make([]byte, keyLength)}
}

// keys are what a client makes of a password and the salt and iterations of a verifier.
type keys struct {
	iterations           int
	salt                 []byte
	clientKey, serverKey []byte
}

func deriveKeys(password string, salt []byte, iterations int) (*keys, error) {
	salted, err := pbkdf2.Key(sha256.New, normalize(password), salt, iterations, keyLength)
	if err != nil {
		return nil, fmt.Errorf("cannot derive the keys of a password: %w", err)
	}
	return &keys{iterations, salt, sum(salted, "Client Key"), sum(salted, "Server Key")}, nil
}

func (k *keys) verifier() *verifier {
	stored := sha256.Sum256(k.clientKey)
	return &verifier{k.iterations, k.salt, stored[:], k.serverKey}
}

// normalize prepares a password as PostgreSQL does: by SASLprep, or not at all when that refuses it.
func normalize(password string) string {
	if prepared, err := stringprep.SASLprep.Prepare(password); err == nil && prepared != "" {
		return prepared
	}
	return password
}

// sum is the HMAC of a text.
func sum(key []byte, text string) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return mac.Sum(nil)
}

func xor(a, b []byte) []byte {
	out := make([]byte, len(a))
	for i := range a {
		out[i] = a[i] ^ b[i]
	}
	return out
}

// hashMD5 is what PostgreSQL stores of a password behind "md5".
func hashMD5(password, user string) string { return hexMD5(password + user) }

// answerMD5 is the answer to a challenge.
func answerMD5(hash string, salt [4]byte) string { return "md5" + hexMD5(hash+string(salt[:])) }

func hexMD5(text string) string {
	digest := md5.Sum([]byte(text))
	return hex.EncodeToString(digest[:])
}
