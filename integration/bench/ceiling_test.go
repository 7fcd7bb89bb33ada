package bench

import (
	"encoding/binary"
	"errors"
	"net"

	"github.com/nextvald/nextvald/proxy/event"
	"github.com/nextvald/nextvald/proxy/wire"
)

// ceiling answers whatever a client sends with what nextval answers, and does nothing else: no program that answers at all
// can be faster by much.
type ceiling struct{ net.Listener }

func newCeiling() (*ceiling, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	return &ceiling{l}, err
}

// The parts of an answer.
var (
	column      = wire.AppendRowDescription(nil, []wire.Field{{Name: "nextval", Type: 20, Size: 8, Typmod: -1}})
	row         = wire.AppendCommandComplete(append([]byte{'D', 0, 0, 0, 11, 0, 1, 0, 0, 0, 1}, '1'), "SELECT 1")
	ready       = wire.AppendReadyForQuery(nil, 'I')
	queryAnswer = append(append(append([]byte(nil), column...), row...), ready...)
	welcome     = append([]byte{'R', 0, 0, 0, 8, 0, 0, 0, 0, 'K', 0, 0, 0, 12, 0, 0, 0, 1, 0, 0, 0, 1}, ready...)
	statement   = append([]byte{'t', 0, 0, 0, 6, 0, 0}, column...)
)

// serve runs until the listener is closed.
func (c *ceiling) serve() error {
	loop, err := event.NewLoop()
	if err != nil {
		return err
	}
	for {
		conn, err := c.Accept()
		if err != nil {
			return nil // it was closed
		}
		go func() {
			if err := logIn(conn); err != nil {
				_ = conn.Close()
				return
			}
			adopted, err := loop.Adopt(conn)
			if err != nil {
				return
			}
			s := &fixed{conn: adopted, in: make([]byte, 0, 16<<10)}
			if adopted.Start(s.turn, nil) == nil {
				adopted.Kick()
			}
		}()
	}
}

// logIn lets everybody in, and refuses encryption.
func logIn(conn net.Conn) error {
	in := wire.NewReader(conn, nil)
	for {
		packet, err := in.Startup(10000)
		if err != nil {
			return err
		}
		if binary.BigEndian.Uint32(packet[4:])>>16 == 3 {
			_, err := conn.Write(welcome)
			return err
		}
		if _, err := conn.Write([]byte{'N'}); err != nil {
			return err
		}
	}
}

// fixed is a session of the ceiling.
type fixed struct {
	conn    *event.Conn
	in, out []byte
}

func (s *fixed) turn() {
	for {
		n, err := s.conn.TryRead(s.in[len(s.in):cap(s.in)])
		if errors.Is(err, event.ErrAgain) {
			return
		}
		if err != nil {
			_ = s.conn.Close()
			return
		}
		s.in = s.in[:len(s.in)+n]
		s.out = s.out[:0]
		at := 0
		for len(s.in)-at >= wire.HeaderLen {
			size := 1 + int(binary.BigEndian.Uint32(s.in[at+1:]))
			if len(s.in)-at < size {
				break
			}
			switch s.in[at] {
			case wire.TypeQuery:
				s.out = append(s.out, queryAnswer...)
			case wire.TypeParse:
				s.out = append(s.out, wire.TypeParseComplete, 0, 0, 0, 4)
			case wire.TypeBind:
				s.out = append(s.out, wire.TypeBindComplete, 0, 0, 0, 4)
			case wire.TypeDescribe:
				if s.in[at+wire.HeaderLen] == 'S' {
					s.out = append(s.out, statement...)
				} else {
					s.out = append(s.out, column...)
				}
			case wire.TypeExecute:
				s.out = append(s.out, row...)
			case wire.TypeSync:
				s.out = append(s.out, ready...)
			}
			at += size
		}
		s.in = s.in[:copy(s.in, s.in[at:])]
		if len(s.out) > 0 {
			if _, err := s.conn.Write(s.out); err != nil {
				_ = s.conn.Close()
				return
			}
		}
	}
}
