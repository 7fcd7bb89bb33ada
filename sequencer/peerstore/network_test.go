package peerstore_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// network connects sidecars to the centre of the moment, in memory, so that the clock of a test's bubble may run.
type network struct {
	mu     sync.Mutex
	accept chan net.Conn // nil while there is no centre
	open   []*end
	// weather decides how long a write takes to arrive, and whether the connection breaks instead. It may be nil.
	weather func() (delay time.Duration, breaks bool)
}

var errNoCentre = errors.New("connection refused")

func (n *network) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	n.mu.Lock()
	accept := n.accept
	n.mu.Unlock()
	if accept == nil {
		return nil, errNoCentre
	}
	there, back := newStream(), newStream()
	ours, theirs := &end{n: n, in: back, out: there}, &end{n: n, in: there, out: back}
	select {
	case accept <- theirs:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.open = append(n.open, ours)
	return ours, nil
}

// breakAll breaks every connection.
func (n *network) breakAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.open {
		e.rend()
	}
	n.open = nil
}

// end is one end of a connection. A write never waits, and arrives when the weather lets it.
type end struct {
	n       *network
	in, out *stream
}

func (e *end) Read(p []byte) (int, error) { return e.in.read(p) }

func (e *end) Write(p []byte) (int, error) {
	var delay time.Duration
	if e.n.weather != nil {
		var breaks bool
		if delay, breaks = e.n.weather(); breaks {
			e.rend()
		}
	}
	return e.out.write(p, delay)
}

// rend breaks the connection: what is on its way is lost.
func (e *end) rend() {
	e.in.close(true)
	e.out.close(true)
}

func (e *end) Close() error {
	e.in.close(true)
	e.out.close(false) // what was written still arrives
	return nil
}

func (e *end) LocalAddr() net.Addr              { return here }
func (e *end) RemoteAddr() net.Addr             { return here }
func (e *end) SetWriteDeadline(time.Time) error { return nil }
func (e *end) SetDeadline(t time.Time) error    { return e.SetReadDeadline(t) }

func (e *end) SetReadDeadline(t time.Time) error {
	e.in.mu.Lock()
	defer e.in.mu.Unlock()
	e.in.deadline = t
	e.in.wakeUp()
	return nil
}

// stream is one direction of a connection.
type stream struct {
	mu       sync.Mutex
	queue    []packet
	closed   bool
	deadline time.Time
	wake     chan struct{} // closed and replaced at every change
}

type packet struct {
	due  time.Time
	data []byte
}

func newStream() *stream { return &stream{wake: make(chan struct{})} }

func (s *stream) wakeUp() {
	close(s.wake)
	s.wake = make(chan struct{})
}

func (s *stream) write(p []byte, delay time.Duration) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, io.ErrClosedPipe
	}
	due := time.Now().Add(delay)
	if k := len(s.queue); k > 0 && s.queue[k-1].due.After(due) {
		due = s.queue[k-1].due
	}
	s.queue = append(s.queue, packet{due, append([]byte(nil), p...)})
	s.wakeUp()
	return len(p), nil
}

func (s *stream) close(lose bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if lose {
		s.queue = nil
	}
	s.wakeUp()
}

func (s *stream) read(p []byte) (int, error) {
	for {
		s.mu.Lock()
		now, next := time.Now(), time.Time{}
		switch {
		case !s.deadline.IsZero() && !now.Before(s.deadline):
			s.mu.Unlock()
			return 0, os.ErrDeadlineExceeded
		case len(s.queue) > 0 && !now.Before(s.queue[0].due):
			k := copy(p, s.queue[0].data)
			if s.queue[0].data = s.queue[0].data[k:]; len(s.queue[0].data) == 0 {
				s.queue = s.queue[1:]
			}
			s.mu.Unlock()
			return k, nil
		case len(s.queue) > 0:
			next = s.queue[0].due
		case s.closed:
			s.mu.Unlock()
			return 0, io.EOF
		}
		if !s.deadline.IsZero() && (next.IsZero() || s.deadline.Before(next)) {
			next = s.deadline
		}
		wake := s.wake
		s.mu.Unlock()
		var timer <-chan time.Time
		if !next.IsZero() {
			timer = time.After(time.Until(next))
		}
		select {
		case <-wake:
		case <-timer:
		}
	}
}

var here = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 6432}

// listener is a centre's place in a network.
type listener struct {
	n      *network
	accept chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (n *network) listen() *listener {
	l := &listener{n: n, accept: make(chan net.Conn), closed: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.accept = l.accept
	return l
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accept:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.n.mu.Lock()
		defer l.n.mu.Unlock()
		if l.n.accept == l.accept {
			l.n.accept = nil
		}
	})
	return nil
}

func (l *listener) Addr() net.Addr { return here }
