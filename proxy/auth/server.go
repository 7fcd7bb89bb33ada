package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"

	"github.com/nextvald/nextvald/proxy/wire"
)

// Mechanisms of SASL that are known here.
const (
	Mechanism     = "SCRAM-SHA-256"
	MechanismPlus = "SCRAM-SHA-256-PLUS" // with channel binding
)

// bindingType is the channel binding that PostgreSQL knows: the hash of the server's certificate.
const bindingType = "tls-server-end-point"

// serverNonceLength is how many random bytes the server adds (SCRAM_RAW_NONCE_LEN).
const serverNonceLength = 18

// Refused is the error of a client whose proof does not fit, and of one that nobody knows. Reason is not for the client.
type Refused struct{ Reason string }

func (e *Refused) Error() string { return e.Reason }

// Server is the server's side of one SCRAM exchange. Its errors are a *wire.Error when a message breaks the protocol, in
// PostgreSQL's words, and Refused when the client may not come in.
type Server struct {
	user     string
	secret   *Secret
	verifier *verifier
	refused  string // why nobody is let in
	binding  []byte // of the client's connection; nil when there is no TLS, or none that can be bound to

	plus        bool
	flag        string // the header of the client's first message
	clientFirst string // without its header
	serverFirst string
	nonce       string
}

// NewServer begins an exchange. secret is nil for a user that nobody knows; binding is the channel binding of the connection,
// nil when there is none.
func NewServer(user string, secret *Secret, binding []byte) *Server {
	s := &Server{user: user, secret: secret, binding: binding}
	switch {
	case secret == nil:
		s.refused = "no such user, or one without a password"
	case secret.verifier == nil:
		s.refused = "no SCRAM verifier is stored"
	default:
		s.verifier = secret.verifier
		return s
	}
	s.verifier = mockVerifier(user)
	return s
}

// Mechanisms are those to offer, best first.
func (s *Server) Mechanisms() []string {
	if s.binding != nil {
		return []string{MechanismPlus, Mechanism}
	}
	return []string{Mechanism}
}

// First answers the client's first message.
func (s *Server) First(chosen string, message []byte) ([]byte, error) {
	switch {
	case chosen == MechanismPlus && s.binding != nil:
		s.plus = true
	case chosen != Mechanism:
		return nil, violation("client selected an invalid SASL authentication mechanism", "")
	}
	text := string(message)
	switch {
	case text == "":
		return nil, malformed("The message is empty.")
	case strings.IndexByte(text, 0) >= 0:
		return nil, malformed("Message length does not match input length.")
	}
	flag, rest, err := s.readFlag(text)
	if err != nil {
		return nil, err
	}
	switch {
	case strings.HasPrefix(rest, "a"):
		return nil, &wire.Error{Code: "0A000", Message: "client uses authorization identity, but it is not supported"}
	case !strings.HasPrefix(rest, ","):
		return nil, malformed("Unexpected attribute \"%s\" in client-first-message.", shown(rest))
	}
	rest = rest[1:]
	s.flag, s.clientFirst = flag+",,", rest
	if strings.HasPrefix(rest, "m") {
		return nil, &wire.Error{Code: "0A000", Message: "client requires an unsupported SCRAM extension"}
	}
	// The name is that of the startup packet; here clients leave it empty.
	if _, rest, err = attribute(rest, 'n'); err != nil {
		return nil, err
	}
	clientNonce, _, err := attribute(rest, 'r')
	if err != nil {
		return nil, err
	}
	if strings.ContainsFunc(clientNonce, func(c rune) bool { return c < 0x21 || c > 0x7E }) {
		return nil, violation("non-printable characters in SCRAM nonce", "")
	}
	random := make([]byte, serverNonceLength)
	_, _ = rand.Read(random) // never fails
	s.nonce = clientNonce + base64.StdEncoding.EncodeToString(random)
	s.serverFirst = "r=" + s.nonce + ",s=" + base64.StdEncoding.EncodeToString(s.verifier.salt) + ",i=" + strconv.Itoa(s.verifier.iterations)
	return []byte(s.serverFirst), nil
}

// readFlag takes what the client says of channel binding off the front of its message, with the comma behind.
func (s *Server) readFlag(text string) (flag, rest string, err error) {
	switch {
	case (text[0] == 'n' || text[0] == 'y') && s.plus:
		return "", "", malformed("The client selected %s, but the SCRAM message does not include channel binding data.", MechanismPlus)
	case text[0] == 'y' && s.binding != nil:
		// Somebody between took the mechanism off our list.
		return "", "", &wire.Error{Code: "28000", Message: "SCRAM channel binding negotiation error",
			Detail: "The client supports SCRAM channel binding but thinks the server does not.  However, this server does support channel binding."}
	case text[0] == 'n' || text[0] == 'y':
		if !strings.HasPrefix(text[1:], ",") {
			return "", "", malformed("Comma expected, but found character \"%s\".", shown(text[1:]))
		}
		return text[:1], text[2:], nil
	case text[0] == 'p' && !s.plus:
		return "", "", malformed("The client selected %s without channel binding, but the SCRAM message includes channel binding data.", Mechanism)
	case text[0] == 'p':
		kind, rest, err := attribute(text, 'p')
		if err == nil && kind != bindingType {
			err = violation(fmt.Sprintf("unsupported SCRAM channel-binding type \"%s\"", printable(kind)), "")
		}
		return "p=" + kind, rest, err
	}
	return "", "", malformed("Unexpected channel-binding flag \"%s\".", shown(text))
}

// Final answers the client's last message, and returns what the client has proved to know.
func (s *Server) Final(message []byte) ([]byte, *Credentials, error) {
	text := string(message)
	switch {
	case text == "":
		return nil, nil, malformed("The message is empty.")
	case strings.IndexByte(text, 0) >= 0:
		return nil, nil, malformed("Message length does not match input length.")
	}
	channel, rest, err := attribute(text, 'c')
	if err != nil {
		return nil, nil, err
	}
	switch want := base64.StdEncoding.EncodeToString(append([]byte(s.flag), s.bound()...)); {
	case channel == want:
	case s.plus:
		return nil, nil, &wire.Error{Code: "28000", Message: "SCRAM channel binding check failed"}
	default:
		return nil, nil, violation("unexpected SCRAM channel-binding attribute in client-final-message", "")
	}
	nonce, rest, err := attribute(rest, 'r')
	if err != nil {
		return nil, nil, err
	}
	// Extensions may stand between the nonce and the proof.
	for rest == "" || rest[0] != 'p' {
		if rest == "" {
			return nil, nil, malformed("Attribute expected, but found end of string.")
		}
		if !isLetter(rest[0]) {
			return nil, nil, malformed("Attribute expected, but found invalid character \"%s\".", shown(rest))
		}
		if _, rest, err = attribute(rest, rest[0]); err != nil {
			return nil, nil, err
		}
	}
	withoutProof := strings.TrimSuffix(text[:len(text)-len(rest)], ",")
	encoded, rest, err := attribute(rest, 'p')
	if err != nil {
		return nil, nil, err
	}
	proof, err := base64.StdEncoding.DecodeString(encoded)
	switch {
	case err != nil || len(proof) != keyLength:
		return nil, nil, malformed("Malformed proof in client-final-message.")
	case rest != "":
		return nil, nil, malformed("Garbage found at the end of client-final-message.")
	case nonce != s.nonce:
		return nil, nil, violation("invalid SCRAM response", "Nonce does not match.")
	}

	exchange := s.clientFirst + "," + s.serverFirst + "," + withoutProof
	clientKey := xor(proof, sum(s.verifier.storedKey, exchange))
	stored := sha256.Sum256(clientKey)
	fits := subtle.ConstantTimeCompare(stored[:], s.verifier.storedKey) == 1
	switch {
	case s.refused != "":
		return nil, nil, &Refused{s.refused}
	case !fits:
		return nil, nil, &Refused{"the password does not match"}
	}
	signature := sum(s.verifier.serverKey, exchange)
	return []byte("v=" + base64.StdEncoding.EncodeToString(signature)), &Credentials{
		user: s.user, password: s.secret.password,
		keys: &keys{s.verifier.iterations, s.verifier.salt, clientKey, s.verifier.serverKey},
	}, nil
}

// bound is what the client's last message is bound to.
func (s *Server) bound() []byte {
	if s.plus {
		return s.binding
	}
	return nil
}

// attribute takes name=value off the front of a message, with the comma behind.
func attribute(text string, name byte) (value, rest string, err error) {
	switch {
	case text == "" || text[0] != name:
		return "", "", malformed("Expected attribute \"%c\" but found \"%s\".", name, shown(text))
	case len(text) < 2 || text[1] != '=':
		return "", "", malformed("Expected character \"=\" for attribute \"%c\".", name)
	}
	value, rest, _ = strings.Cut(text[2:], ",")
	return value, rest, nil
}

// shown is the first character of what a client sent, as PostgreSQL shows it.
func shown(text string) string {
	switch {
	case text == "":
		return "0x00" // the end of its strings
	case text[0] >= 0x21 && text[0] <= 0x7E:
		return "'" + text[:1] + "'"
	}
	return fmt.Sprintf("0x%02x", text[0])
}

// printable is the beginning of what a client sent, fit to be shown.
func printable(text string) string {
	return strings.Map(func(c rune) rune {
		if c < 0x21 || c > 0x7E {
			return '?'
		}
		return c
	}, text[:min(30, len(text))])
}

func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

func malformed(detail string, args ...any) *wire.Error {
	return violation("malformed SCRAM message", fmt.Sprintf(detail, args...))
}

func violation(message, detail string) *wire.Error {
	return &wire.Error{Code: "08P01", Message: message, Detail: detail}
}

// MD5 checks the answer to an MD5 challenge, for a secret that is such a hash.
func (s *Secret) MD5(user, answer string, salt [4]byte) (*Credentials, error) {
	if subtle.ConstantTimeCompare([]byte(answer), []byte(answerMD5(s.md5, salt))) != 1 {
		return nil, &Refused{"the password does not match"}
	}
	return &Credentials{user: user, md5: s.md5}, nil
}

// IsMD5 reports whether the secret is an md5 hash, which is all that MD5 needs and less than SCRAM does.
func (s *Secret) IsMD5() bool { return s != nil && s.md5 != "" }
