package proxy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/nextvald/nextvald/proxy/wire"
)

const (
	// startupLimit is PostgreSQL's MAX_STARTUP_PACKET_LENGTH.
	startupLimit = 10000 + 4 // that does not count the length itself
	// loginTimeout is PostgreSQL's default authentication_timeout.
	loginTimeout = time.Minute

	protocolMajor = 3
	// protocolMinor is the newest minor version that PostgreSQL speaks. The upstream negotiates the one of a session.
	protocolMinor = 2
	// maxName is PostgreSQL's NAMEDATALEN without its end. Longer names of users and databases are cut by the server.
	maxName = 63

	codeCancel = 80877102
	codeSSL    = 80877103
	codeGSS    = 80877104
	// handshakeRecord is the first byte of TLS. No startup packet within the limit begins with it.
	handshakeRecord = 0x16
)

// start is a startup packet.
type start struct {
	packet      []byte // as the client sent it
	user        string
	database    string
	replication bool // the session speaks the replication protocol: nothing of it is inspected
}

// startup reads packets until the one that opens a session. It answers encryption requests, and carries out cancel
// requests, after which it returns no start. A refusal has been sent when it returns an error.
func (s *Server) startup(ctx context.Context, p *peer) (*start, error) {
	if err := p.conn.SetDeadline(time.Now().Add(s.limits.Load().login())); err != nil {
		return nil, err
	}
	if s.cfg.ProxyProtocol && p.conn.LocalAddr().Network() == "tcp" {
		if err := p.readHeader(); err != nil {
			return nil, ignoreEOF(err)
		}
	}
	st, err := s.firstPackets(ctx, p)
	if st == nil || err != nil {
		return nil, err
	}
	if st.user == "" {
		return nil, refuse(p.conn, &wire.Error{Code: "28000", Message: "no PostgreSQL user name specified in startup packet"})
	}
	if s.cfg.TLSRequired && p.encrypted() == nil && p.conn.LocalAddr().Network() != "unix" {
		return nil, refuse(p.conn, &wire.Error{Code: "28000", Message: "connection requires TLS", Hint: "Set sslmode to require, or to verify-full."})
	}
	if s.cfg.TLS.demandsCertificate() {
		if err := p.checkCertificate(st.user); err != nil {
			return nil, err
		}
	}
	return st, p.conn.SetWriteDeadline(time.Time{})
}

// firstPackets reads untyped packets up to that of a session.
func (s *Server) firstPackets(ctx context.Context, p *peer) (*start, error) {
	if first, err := p.in.Peek1(); err != nil {
		return nil, ignoreEOF(err)
	} else if first == handshakeRecord && s.encrypts(p) {
		// As PostgreSQL from version 17 on. The client of another protocol, who may have been led here, is told nothing.
		if err := p.encrypt(ctx, s.cfg.TLS); err != nil {
			return nil, err
		}
		if p.encrypted().NegotiatedProtocol != alpn {
			return nil, errors.New("TLS without SSLRequest and without ALPN")
		}
	}
	// A refused request may be followed by one of the other kind, and that again by the first.
	sslDone, gssDone := false, false
	for {
		packet, err := p.in.Startup(startupLimit)
		if err != nil {
			return nil, ignoreEOF(err)
		}
		code := binary.BigEndian.Uint32(packet[4:])
		ssl, gss := code == codeSSL && !sslDone, code == codeGSS && !gssDone
		if !ssl && !gss {
			return s.lastPacket(ctx, p, packet)
		}
		sslDone, gssDone = ssl, gss
		// Bytes behind the request were sent before the answer: somebody between may have put them there.
		if p.in.Buffered() > 0 {
			return nil, refuse(p.conn, &wire.Error{Code: "08P01", Message: "received unencrypted data after SSL request",
				Detail: "This could be either a client-software bug or evidence of an attempted man-in-the-middle attack."})
		}
		if !ssl || !s.encrypts(p) {
			if _, err := p.conn.Write([]byte{'N'}); err != nil {
				return nil, err
			}
			continue
		}
		if _, err := p.conn.Write([]byte{'S'}); err != nil {
			return nil, err
		}
		if err := p.encrypt(ctx, s.cfg.TLS); err != nil {
			return nil, err
		}
		gssDone = true
	}
}

// lastPacket handles a packet that asks for no encryption.
func (s *Server) lastPacket(ctx context.Context, p *peer, packet []byte) (*start, error) {
	code := binary.BigEndian.Uint32(packet[4:])
	if code == codeCancel {
		return nil, s.cancel(ctx, packet)
	}
	if code>>16 != protocolMajor {
		return nil, refuseProtocol(p.conn, code)
	}
	st, err := parseStart(packet)
	if err != nil {
		return nil, refuse(p.conn, &wire.Error{Code: "08P01", Message: "invalid startup packet layout: expected terminator as last byte"})
	}
	return st, nil
}

// encrypts reports whether TLS is offered on a connection. On a socket of this machine it is not, as in PostgreSQL.
func (s *Server) encrypts(p *peer) bool {
	return s.cfg.TLS != nil && p.encrypted() == nil && p.conn.LocalAddr().Network() != "unix"
}

// refuseProtocol refuses a version of the protocol. Nothing but version 3 is passed on: an old upstream would serve
// version 2, and an encryption request would reach past the proxy.
func refuseProtocol(conn net.Conn, code uint32) error {
	message := fmt.Sprintf("unsupported frontend protocol %d.%d: server supports %d.0 to %d.%d",
		code>>16, code&0xFFFF, protocolMajor, protocolMajor, protocolMinor)
	if code>>16 > protocolMajor {
		return refuse(conn, &wire.Error{Code: "0A000", Message: message})
	}
	_, err := conn.Write([]byte("EFATAL:  " + message + "\n\x00")) // as errors were before version 3
	return errors.Join(errors.New(message), err)
}

// ignoreEOF drops the error of a client that left.
func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// parseStart takes the parameters that matter to the proxy from a startup packet; all of them go to the upstream.
func parseStart(packet []byte) (*start, error) {
	st := &start{packet: append([]byte(nil), packet...)}
	rest := string(packet[8:])
	for {
		name, after, ok := strings.Cut(rest, "\x00")
		if !ok {
			return nil, wire.ErrFormat
		}
		if name == "" {
			if after != "" {
				return nil, wire.ErrFormat
			}
			break
		}
		value, next, ok := strings.Cut(after, "\x00")
		if !ok {
			return nil, wire.ErrFormat
		}
		switch name {
		case "user":
			st.user = value[:min(len(value), maxName)]
		case "database":
			st.database = value[:min(len(value), maxName)]
		case "replication":
			switch strings.ToLower(value) {
			case "", "0", "f", "fa", "fal", "fals", "false", "n", "no", "of", "off":
			default:
				st.replication = true
			}
		}
		rest = next
	}
	if st.database == "" {
		st.database = st.user
	}
	return st, nil
}
