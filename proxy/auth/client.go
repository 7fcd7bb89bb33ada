package auth

import (
	"bytes"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"slices"
	"strconv"
	"strings"
)

// Credentials is what a client has proved to know, to log in at the upstream with.
type Credentials struct {
	user     string
	password string // empty unless it is known
	md5      string // the digits of its hash; empty unless they are all that is known
	keys     *keys  // nil when md5 is all that is known
}

// ErrNoPassword says that the upstream asks for more than is known.
var ErrNoPassword = errors.New("the upstream asks for the password itself, and only a verifier or hash of it is known")

// Password is the password itself.
func (c *Credentials) Password() (string, error) {
	if c.password == "" {
		return "", ErrNoPassword
	}
	return c.password, nil
}

// MD5 is the answer to an MD5 challenge.
func (c *Credentials) MD5(salt [4]byte) (string, error) {
	switch {
	case c.md5 != "":
		return answerMD5(c.md5, salt), nil
	case c.password != "":
		return answerMD5(hashMD5(c.password, c.user), salt), nil
	}
	return "", ErrNoPassword
}

// Client is the client's side of one SCRAM exchange.
type Client struct {
	credentials *Credentials
	binding     []byte
	plus        bool
	flag        string
	nonce       string
	keys        *keys
	exchange    string // all that is signed
}

// SCRAM begins an exchange with a server that offers mechanisms. binding is the channel binding of the connection, nil when
// there is none; it is used when the server knows how.
func (c *Credentials) SCRAM(offered []string, binding []byte) (*Client, error) {
	if c.keys == nil {
		return nil, ErrNoPassword
	}
	client := &Client{credentials: c, binding: binding, plus: binding != nil && slices.Contains(offered, MechanismPlus), flag: "n,,"}
	switch {
	case client.plus:
		client.flag = "p=" + bindingType + ",,"
	case !slices.Contains(offered, Mechanism):
		return nil, errors.New("the upstream offers no mechanism that is known here: " + strings.Join(offered, ", "))
	case binding != nil:
		client.flag = "y,,"
	}
	random := make([]byte, serverNonceLength)
	_, _ = rand.Read(random) // never fails
	client.nonce = base64.StdEncoding.EncodeToString(random)
	return client, nil
}

// Mechanism is the one that was chosen.
func (c *Client) Mechanism() string {
	if c.plus {
		return MechanismPlus
	}
	return Mechanism
}

// First is the first message.
func (c *Client) First() []byte { return []byte(c.flag + c.firstBare()) }

func (c *Client) firstBare() string { return "n=,r=" + c.nonce }

var errMalformedServer = errors.New("the upstream sent a malformed SCRAM message")

// Final answers the server's first message.
func (c *Client) Final(serverFirst []byte) ([]byte, error) {
	text := string(serverFirst)
	nonce, rest, err1 := attribute(text, 'r')
	encoded, rest, err2 := attribute(rest, 's')
	count, _, err3 := attribute(rest, 'i')
	salt, err4 := base64.StdEncoding.DecodeString(encoded)
	n, err5 := strconv.Atoi(count)
	if errors.Join(err1, err2, err3, err4, err5) != nil || n < 1 || n > maxIterations ||
		len(nonce) <= len(c.nonce) || !strings.HasPrefix(nonce, c.nonce) {
		return nil, errMalformedServer
	}
	c.keys = c.credentials.keys
	if n != c.keys.iterations || !bytes.Equal(salt, c.keys.salt) {
		password, err := c.credentials.Password()
		if err != nil {
			return nil, errors.New("the upstream has another verifier of the user's password")
		}
		if c.keys, err = deriveKeys(password, salt, n); err != nil {
			return nil, err
		}
	}
	channel := []byte(c.flag)
	if c.plus {
		channel = append(channel, c.binding...)
	}
	withoutProof := "c=" + base64.StdEncoding.EncodeToString(channel) + ",r=" + nonce
	c.exchange = c.firstBare() + "," + text + "," + withoutProof
	proof := xor(c.keys.clientKey, sum(c.keys.verifier().storedKey, c.exchange))
	return []byte(withoutProof + ",p=" + base64.StdEncoding.EncodeToString(proof)), nil
}

// Verify checks that the server's last message is that of one who knows the user's verifier.
func (c *Client) Verify(serverFinal []byte) error {
	encoded, _, err := attribute(string(serverFinal), 'v')
	signature, err2 := base64.StdEncoding.DecodeString(encoded)
	if errors.Join(err, err2) != nil || c.keys == nil {
		return errMalformedServer
	}
	if subtle.ConstantTimeCompare(signature, sum(c.keys.serverKey, c.exchange)) != 1 {
		return errors.New("the upstream does not know the user's password")
	}
	return nil
}
