package proxy

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"time"

	"github.com/nextvald/nextvald/proxy/wire"
)

const (
	// startupLimit is PostgreSQL's MAX_STARTUP_PACKET_LENGTH.
	startupLimit = 10000
	// startupTimeout is PostgreSQL's default authentication_timeout: the time a client has to log in.
	startupTimeout = time.Minute

	codeCancel = 80877102
	codeSSL    = 80877103
	codeGSS    = 80877104
)

// start is a startup packet.
type start struct {
	packet      []byte // as the client sent it
	user        string
	database    string
	replication bool // the session speaks the replication protocol: nothing of it is inspected
	foreign     bool // a protocol other than version 3: the upstream answers it
}

// startup reads packets until the one that opens a session. It answers encryption requests (not supported: N), and
// carries out cancel requests, after which it returns no start.
func (s *Server) startup(ctx context.Context, conn net.Conn) (*wire.Reader, *start, error) {
	if err := conn.SetReadDeadline(time.Now().Add(startupTimeout)); err != nil {
		return nil, nil, err
	}
	in := wire.NewReader(conn, nil)
	asked := make(map[uint32]bool)
	for {
		packet, err := in.Startup(startupLimit)
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return nil, nil, err
		}
		code := binary.BigEndian.Uint32(packet[4:])
		switch {
		case (code == codeSSL || code == codeGSS) && !asked[code] && len(packet) == 8:
			asked[code] = true
			// Bytes behind the request were sent before the answer: somebody between may have put them there.
			if in.Buffered() > 0 {
				return nil, nil, refuse(conn, &wire.Error{Code: "08P01", Message: "received unencrypted data after SSL request",
					Detail: "This could be either a client-software bug or evidence of an attempted man-in-the-middle attack."})
			}
			if _, err := conn.Write([]byte{'N'}); err != nil {
				return nil, nil, err
			}
		case code == codeCancel:
			return nil, nil, s.cancel(ctx, packet)
		case code>>16 != 3:
			return in, &start{packet: append([]byte(nil), packet...), foreign: true}, nil
		default:
			start, err := parseStart(packet)
			if err != nil {
				return nil, nil, refuse(conn, &wire.Error{Code: "08P01", Message: "invalid startup packet layout: expected terminator as last byte"})
			}
			return in, start, nil
		}
	}
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
			st.user = value
		case "database":
			st.database = value
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

// cancel ends a local wait of the session that the request names, and hands the request to the upstream, whose key it
// carries. As in PostgreSQL nothing is answered, whether the key is right or not.
func (s *Server) cancel(ctx context.Context, packet []byte) error {
	s.mu.Lock()
	session := s.byKey[string(packet[8:])]
	s.mu.Unlock()
	if session == nil {
		return nil
	}
	session.cancelLocal()
	ctx, stop := context.WithTimeout(ctx, s.cfg.DialTimeout)
	defer stop()
	upstream, err := s.cfg.Upstream.Dial(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = upstream.Close() }()
	if err := upstream.SetDeadline(time.Now().Add(s.cfg.DialTimeout)); err != nil {
		return err
	}
	if _, err := upstream.Write(packet); err != nil {
		return err
	}
	// The server closes once it has signalled; the client may rely on that order.
	_, err = io.Copy(io.Discard, upstream)
	return err
}
