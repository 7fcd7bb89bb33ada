package testenv

import (
	"io"
	"net"
	"sync"
	"testing"
)

// Relay passes connections to a new address on to target until it is cut: then the address refuses connections, and those
// that were open are closed. It is cut at the end of the test at the latest.
func Relay(t testing.TB, target string) (address string, cut func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{target: target, open: []io.Closer{l}}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go r.pass(c)
		}
	}()
	t.Cleanup(r.cut)
	return l.Addr().String(), r.cut
}

type relay struct {
	target string

	mu   sync.Mutex
	gone bool
	open []io.Closer
}

func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gone = true
	for _, c := range r.open {
		_ = c.Close()
	}
}

// keep has connections closed by cut. It closes them itself when that has been.
func (r *relay) keep(conns ...net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range conns {
		r.open = append(r.open, c)
		if r.gone {
			_ = c.Close()
		}
	}
}

func (r *relay) pass(in net.Conn) {
	defer func() { _ = in.Close() }()
	out, err := net.Dial("tcp", r.target)
	if err != nil {
		return
	}
	defer func() { _ = out.Close() }()
	r.keep(in, out)
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1])
			// The other way may go on.
			_ = way[0].(*net.TCPConn).CloseWrite()
		})
	}
	both.Wait()
}
