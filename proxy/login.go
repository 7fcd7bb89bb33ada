package proxy

import (
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/nextvald/nextvald/proxy/auth"
	"github.com/nextvald/nextvald/proxy/wire"
)

// saslLimit is PostgreSQL's PG_MAX_SASL_MESSAGE_LENGTH.
const saslLimit = 1024

// authenticate has a client prove that it is the user it says, against what is stored of that user, and returns what it has
// proved to know. A refusal has been sent when it returns an error.
func (x *session) authenticate(p *peer) (*auth.Credentials, error) {
	log := x.srv.cfg.Logger
	secret, err := x.srv.cfg.Users.Secret(x.ctx, x.user)
	if err != nil {
		log.Error("cannot look up a user", "user", x.user, "error", err)
		return nil, refuse(p.conn, &wire.Error{Code: "08006", Message: "could not look up the user", Hint: "See nextvald's log."})
	}
	var credentials *auth.Credentials
	if secret.IsMD5() {
		credentials, err = p.askMD5(x.user, secret)
	} else {
		credentials, err = p.askSCRAM(auth.NewServer(x.user, secret, p.binding))
	}
	var (
		refused *auth.Refused
		broken  *wire.Error
		end     *ending
	)
	switch {
	case err == nil:
		return credentials, nil
	case errors.As(err, &refused):
		log.Info("a client was refused", "user", x.user, "client", p.address, "reason", refused.Reason)
		return nil, refuse(p.conn, &wire.Error{Code: "28P01", Message: fmt.Sprintf("password authentication failed for user \"%s\"", x.user)})
	case errors.As(err, &end):
		return nil, refuse(p.conn, end.word)
	case errors.As(err, &broken):
		return nil, refuse(p.conn, broken)
	}
	return nil, err // the client left, as one does who first has to ask for the password
}

// askMD5 has the client answer an MD5 challenge.
func (p *peer) askMD5(user string, secret *auth.Secret) (*auth.Credentials, error) {
	var salt [4]byte
	_, _ = rand.Read(salt[:]) // never fails
	body, err := p.ask(wire.AuthenticationMD5, salt[:], "password", passwordLimit)
	if err != nil {
		return nil, err
	}
	answer, err := wire.DecodePassword(body)
	if err != nil {
		return nil, &wire.Error{Code: "08P01", Message: "invalid password packet size"}
	}
	if answer == "" {
		return nil, &wire.Error{Code: "28P01", Message: "empty password returned by client"}
	}
	return secret.MD5(user, answer, salt)
}

// askSCRAM runs an exchange up to the proof that the server knows the user too.
func (p *peer) askSCRAM(server *auth.Server) (*auth.Credentials, error) {
	body, err := p.ask(wire.AuthenticationSASL, wire.Mechanisms(server.Mechanisms()), "SASL", saslLimit)
	if err != nil {
		return nil, err
	}
	mechanism, message, err := wire.DecodeSASLInitial(body)
	if err != nil {
		return nil, &wire.Error{Code: "08P01", Message: "invalid message format"}
	}
	if message == nil { // the mechanism alone
		if message, err = p.ask(wire.AuthenticationSASLContinue, nil, "SASL", saslLimit); err != nil {
			return nil, err
		}
	}
	challenge, err := server.First(mechanism, message)
	if err != nil {
		return nil, err
	}
	if body, err = p.ask(wire.AuthenticationSASLContinue, challenge, "SASL", saslLimit); err != nil {
		return nil, err
	}
	signature, credentials, err := server.Final(body)
	if err != nil {
		return nil, err
	}
	_, err = p.conn.Write(wire.AppendAuthentication(nil, wire.AuthenticationSASLFinal, signature))
	return credentials, err
}

// ask sends a request and returns the body of the answer, valid until the next one.
func (p *peer) ask(code uint32, data []byte, what string, limit int) ([]byte, error) {
	if _, err := p.conn.Write(wire.AppendAuthentication(nil, code, data)); err != nil {
		return nil, err
	}
	typ, body, err := p.in.Next()
	switch {
	case err != nil:
		return nil, err
	case typ != wire.TypePassword:
		return nil, &wire.Error{Code: "08P01", Message: fmt.Sprintf("expected %s response, got message type %d", what, typ)}
	case body+4 > limit: // it counts the length itself
		return nil, &auth.Refused{Reason: "the answer is too long"}
	}
	frame, err := p.in.Frame(body)
	if err != nil {
		return nil, err
	}
	return frame[wire.HeaderLen:], nil
}

// logIn logs in at the upstream with what a client has proved to know. The next message is then the upstream's own answer,
// AuthenticationOk or an error, which is left to be relayed. A refusal has been sent when it returns an error.
func (x *session) logIn(credentials *auth.Credentials) error {
	err := x.upstream.SetDeadline(time.Now().Add(x.srv.cfg.DialTimeout))
	if err == nil {
		login := upstreamLogin{credentials: credentials, binding: bindingOf(x.upstream)}
		err = x.answerRequests(&login)
	}
	if err == nil {
		err = x.upstream.SetDeadline(time.Time{})
	}
	if err == nil {
		return nil
	}
	word := errUpstreamLost()
	var failed *loginError
	switch {
	case x.cutOff.Load():
		word = errShutdown()
	case errors.As(err, &failed):
		word = &wire.Error{Code: "28000", Message: fmt.Sprintf("could not log in to the upstream server as user \"%s\"", x.user),
			Detail: failed.Error() + ".", Hint: "Store the verifier that the upstream has of the user, or the password."}
	}
	x.sayLast(word)
	return err
}

// answerRequests answers what the upstream asks up to the end of a login, and lets the client have what else it says.
func (x *session) answerRequests(login *upstreamLogin) error {
	for {
		typ, body, err := x.from.Next()
		switch {
		case err != nil:
			return err
		case typ == wire.TypeErrorResponse:
			return nil
		case body > passwordLimit:
			return wire.ErrLength
		}
		frame, err := x.from.Peek(body, wire.HeaderLen+body)
		if err != nil {
			return err
		}
		switch typ {
		case wire.TypeAuthentication:
			answer, over, err := login.answer(frame[wire.HeaderLen:])
			switch {
			case err != nil:
				return &loginError{err}
			case over:
				return nil
			}
			if _, err := x.upstream.Write(answer); err != nil {
				return err
			}
		case wire.TypeNegotiateProtocol, wire.TypeNoticeResponse:
			if err := x.writeOut(frame); err != nil {
				return err
			}
		default:
			return &loginError{fmt.Errorf("it sent a message of type %q", typ)}
		}
		if err := x.from.Discard(body); err != nil {
			return err
		}
	}
}

// loginError says why a client that is known here could not be logged in at the upstream.
type loginError struct{ cause error }

func (e *loginError) Error() string { return e.cause.Error() }

// upstreamLogin is a login at the upstream.
type upstreamLogin struct {
	credentials *auth.Credentials
	binding     []byte
	exchange    *auth.Client
	verified    bool // the upstream proved that it knows the user
}

// answer returns the message that answers a request of the upstream, empty when there is nothing to say, or that the login is
// over.
func (l *upstreamLogin) answer(request []byte) (message []byte, over bool, err error) {
	code, data, err := wire.DecodeAuthentication(request)
	switch {
	case err != nil:
		return nil, false, err
	case code == wire.AuthenticationOK && l.exchange != nil && !l.verified:
		return nil, false, errors.New("the upstream did not prove that it knows the user")
	case code == wire.AuthenticationOK:
		return nil, true, nil
	}
	message, err = l.prove(code, data)
	return message, false, err
}

// prove makes the answer to a request of a proof.
func (l *upstreamLogin) prove(code uint32, data []byte) ([]byte, error) {
	switch {
	case code == wire.AuthenticationCleartext:
		password, err := l.credentials.Password()
		return wire.AppendPassword(nil, append([]byte(password), 0)), err
	case code == wire.AuthenticationMD5 && len(data) == 4:
		answer, err := l.credentials.MD5([4]byte(data))
		return wire.AppendPassword(nil, append([]byte(answer), 0)), err
	case code == wire.AuthenticationSASL:
		offered, err := wire.DecodeMechanisms(data)
		if err != nil {
			return nil, err
		}
		if l.exchange, err = l.credentials.SCRAM(offered, l.binding); err != nil {
			return nil, err
		}
		return wire.AppendSASLInitial(nil, l.exchange.Mechanism(), l.exchange.First()), nil
	case code == wire.AuthenticationSASLContinue && l.exchange != nil:
		answer, err := l.exchange.Final(data)
		return wire.AppendPassword(nil, answer), err
	case code == wire.AuthenticationSASLFinal && l.exchange != nil:
		l.verified = true
		return nil, l.exchange.Verify(data)
	}
	return nil, fmt.Errorf("the upstream asks for a login of a kind (%d) that is not supported here", code)
}

// relayAuthentication relays a request of a login that the client itself answers. Channel binding holds where both
// connections have one certificate only; elsewhere it is not offered.
func (x *session) relayAuthentication(body int) error {
	if body > passwordLimit {
		return wire.ErrLength
	}
	frame, err := x.from.Frame(body)
	if err != nil {
		return err
	}
	if x.unbound {
		offered := wire.WithoutMechanism(frame, auth.MechanismPlus)
		x.stripped = x.stripped || len(offered) < len(frame)
		frame = offered
	}
	return x.writeOut(frame)
}

// explainBinding adds to the error of a client that was offered no channel binding, and minds.
func explainBinding(frame []byte) []byte {
	fields := frame[wire.HeaderLen:]
	if wire.ErrorField(fields, 'C') != "28000" {
		return frame
	}
	return wire.AppendError(nil, &wire.Error{Severity: wire.SeverityFatal, Code: "28000", Message: wire.ErrorField(fields, 'M'),
		Detail: wire.ErrorField(fields, 'D'), Hint: "nextvald ends the client's TLS: set its auth to scram, or connect with channel_binding=disable."})
}

// bindingOf is the channel binding of a connection to the upstream, nil when there is none.
func bindingOf(upstream net.Conn) []byte {
	if c, ok := upstream.(*tls.Conn); ok {
		if certs := c.ConnectionState().PeerCertificates; len(certs) > 0 {
			return auth.Binding(certs[0])
		}
	}
	return nil
}
