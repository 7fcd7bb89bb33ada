package event

import (
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

const supported = true

// Loop waits for the readiness of its connections, until it is closed.
type Loop struct {
	epoll int
	end   [2]int // a pipe whose closing ends the loop
	ended chan struct{}

	mu    sync.Mutex
	conns map[uint64]*Conn // by the id that the kernel tells
	last  uint64

	// What follows belongs to the goroutine that leads.
	events [128]syscall.EpollEvent
	i, n   int     // events[i:n] are to be handled
	again  []*Conn // whose handlers are to be run once more, from head on
	head   int
	since  time.Time // when the scheduler last had a say
}

// slice is how long a loop runs on without the scheduler. That would interrupt what runs for 10 ms, and then look for more of
// that kind thousands of times a second.
const slice = 5 * time.Millisecond

// NewLoop starts a loop.
func NewLoop() (*Loop, error) {
	l := &Loop{conns: make(map[uint64]*Conn), ended: make(chan struct{})}
	var err error
	if l.epoll, err = syscall.EpollCreate1(syscall.EPOLL_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := syscall.Pipe2(l.end[:], syscall.O_CLOEXEC); err != nil {
		_ = syscall.Close(l.epoll)
		return nil, os.NewSyscallError("pipe2", err)
	}
	e := syscall.EpollEvent{Events: syscall.EPOLLIN}
	*idOf(&e) = endID
	if err := syscall.EpollCtl(l.epoll, syscall.EPOLL_CTL_ADD, l.end[0], &e); err != nil {
		return nil, os.NewSyscallError("epoll_ctl", err)
	}
	go l.lead()
	return l, nil
}

// endID is what the kernel tells of the pipe that ends a loop.
const endID = 0

// Close ends the loop, and waits for it. Its connections must have been closed.
func (l *Loop) Close() {
	_ = syscall.Close(l.end[1])
	<-l.ended
}

// lead runs the loop until a handler detaches.
func (l *Loop) lead() {
	for {
		for l.i < l.n {
			e := &l.events[l.i]
			l.i++
			if *idOf(e) == endID {
				_, _ = syscall.Close(l.end[0]), syscall.Close(l.epoll)
				close(l.ended)
				return
			}
			l.mu.Lock()
			c := l.conns[*idOf(e)]
			l.mu.Unlock()
			if c != nil && c.ready(e.Events) && !c.lead() {
				return
			}
		}
		for n := len(l.again) - l.head; n > 0; n-- {
			c := l.again[l.head]
			l.again[l.head] = nil
			if l.head++; l.head == len(l.again) {
				l.again, l.head = l.again[:0], 0
			}
			if !c.lead() {
				return
			}
		}
		if now := time.Now(); now.Sub(l.since) > slice {
			l.since = now
			runtime.Gosched()
		}
		n, err := l.wait()
		if err != nil && err != syscall.EINTR {
			panic(os.NewSyscallError("epoll_wait", err)) // only a defect of ours
		}
		l.i, l.n = 0, max(n, 0)
	}
}

// idOf is the part of an event that is ours.
func idOf(e *syscall.EpollEvent) *uint64 { return (*uint64)(unsafe.Pointer(&e.Fd)) }

// wait waits for events, unless handlers are to be run again.
func (l *Loop) wait() (n int, err error) {
	// A look first where there is much to do: then there is always something, and the scheduler need not know of it.
	if l.n > 1 || len(l.again) > 0 {
		if n, err = l.look(); n != 0 || len(l.again) > 0 {
			return n, err
		}
	}
	return syscall.EpollWait(l.epoll, l.events[:], -1)
}

// look asks the kernel for events without a wait.
func (l *Loop) look() (int, error) {
	n, _, errno := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, uintptr(l.epoll), uintptr(unsafe.Pointer(&l.events[0])),
		uintptr(len(l.events)), 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// States of a Conn's handler.
const (
	resting = iota
	running
	wanted // running, and to be run again
)

// Conn is a connection of a Loop. Its methods are safe for concurrent use, but for TryRead, Read, Detach and Again, which
// belong to the handler.
type Conn struct {
	loop          *Loop
	id            uint64
	local, remote net.Addr
	handler       func()
	peer          *Conn // whose handler is run too when this connection has got rid of what was to be written

	state atomic.Int32
	led   atomic.Bool // the handler runs on the loop's goroutine; the handler owns this

	mu     sync.Mutex
	wake   sync.Cond
	fd     int
	closed bool
	// edges counts the times that something came to be read, read is the count when all of it had been.
	edges, read      uint64
	hungUp           bool // the peer has ended its side, or the connection is broken: reading says more
	queue            []byte
	failure          error // of writing
	queued           atomic.Int64
	reading, writing limit
}

// limit is a deadline.
type limit struct {
	at    time.Time
	alarm *time.Timer
}

func (l *limit) passed() bool { return !l.at.IsZero() && !time.Now().Before(l.at) }

// set changes the deadline. rouse is called when it passes; the caller calls it when it has passed already.
func (l *limit) set(at time.Time, rouse func()) (passed bool) {
	if l.alarm != nil {
		l.alarm.Stop()
		l.alarm = nil
	}
	l.at = at
	if passed = l.passed(); !passed && !at.IsZero() {
		l.alarm = time.AfterFunc(time.Until(at), rouse)
	}
	return passed
}

// Adopt takes over a connection of Go's own poller, which Adopts allows. The connection itself is closed; its socket lives
// on.
func (l *Loop) Adopt(conn net.Conn) (*Conn, error) {
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	var errno syscall.Errno
	err = raw.Control(func(s uintptr) {
		var n uintptr
		if n, _, errno = syscall.Syscall(syscall.SYS_FCNTL, s, syscall.F_DUPFD_CLOEXEC, 0); errno == 0 {
			fd = int(n)
		}
	})
	switch {
	case err != nil:
		return nil, err
	case errno != 0:
		return nil, os.NewSyscallError("fcntl", errno)
	}
	c := &Conn{loop: l, fd: fd, local: conn.LocalAddr(), remote: conn.RemoteAddr(), edges: 1}
	c.wake.L = &c.mu
	_ = conn.Close()
	return c, nil
}

// Start begins to run the handler. peer may be nil.
func (c *Conn) Start(handler func(), peer *Conn) error {
	c.handler, c.peer = handler, peer
	l := c.loop
	l.mu.Lock()
	l.last++
	c.id = l.last
	l.conns[c.id] = c
	l.mu.Unlock()
	const edgeTriggered = 1 << 31 // syscall.EPOLLET, which is negative
	e := syscall.EpollEvent{Events: syscall.EPOLLIN | syscall.EPOLLOUT | syscall.EPOLLRDHUP | edgeTriggered}
	*idOf(&e) = c.id
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	return os.NewSyscallError("epoll_ctl", syscall.EpollCtl(l.epoll, syscall.EPOLL_CTL_ADD, c.fd, &e))
}

// ready notes what the kernel said, and reports whether the handler should run.
func (c *Conn) ready(events uint32) bool {
	const broken = syscall.EPOLLRDHUP | syscall.EPOLLHUP | syscall.EPOLLERR
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	run := events&(syscall.EPOLLIN|broken) != 0
	if run {
		c.edges++
		c.hungUp = c.hungUp || events&broken != 0
	}
	if len(c.queue) > 0 {
		c.flush()
		if len(c.queue) == 0 {
			run = true
			if c.peer != nil {
				c.loop.again = append(c.loop.again, c.peer)
			}
		}
	}
	c.wake.Broadcast()
	return run
}

// enter reports whether the handler may be run; whoever runs it now will otherwise do so once more.
func (c *Conn) enter() bool {
	for {
		if c.state.CompareAndSwap(resting, running) {
			return true
		}
		if c.state.CompareAndSwap(running, wanted) || c.state.Load() == wanted {
			return false
		}
	}
}

// leave reports whether the handler is done, or else has to be run once more.
func (c *Conn) leave() bool {
	if c.state.CompareAndSwap(running, resting) {
		return true
	}
	c.state.Store(running)
	return false
}

// lead runs the handler on the loop's goroutine, and reports whether that still leads.
func (c *Conn) lead() bool {
	if !c.enter() {
		return true
	}
	c.led.Store(true)
	for {
		c.handler()
		if !c.led.Load() {
			c.finish()
			return false
		}
		if c.leave() {
			return true
		}
	}
}

// finish ends a run of the handler on a goroutine of its own.
func (c *Conn) finish() {
	for !c.leave() {
		c.handler()
	}
}

// Kick runs the handler on a goroutine of its own.
func (c *Conn) Kick() {
	if c.handler != nil && c.enter() {
		go func() {
			c.led.Store(false)
			c.handler()
			c.finish()
		}()
	}
}

// Again runs the handler once more, after those of others had their turn.
func (c *Conn) Again() {
	if c.led.Load() {
		c.loop.again = append(c.loop.again, c)
	} else {
		c.state.CompareAndSwap(running, wanted)
	}
}

// Led reports whether the handler must not wait.
func (c *Conn) Led() bool { return c.led.Load() }

// Detach lets the loop go on without the handler's goroutine, so that the handler may wait.
func (c *Conn) Detach() {
	if c.led.Load() {
		c.led.Store(false)
		go c.loop.lead()
	}
}

// TryRead reads what is there. ErrAgain: nothing is; the handler runs when that changes.
func (c *Conn) TryRead(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tryRead(p)
}

func (c *Conn) tryRead(p []byte) (int, error) {
	switch {
	case c.closed:
		return 0, net.ErrClosed
	case c.reading.passed():
		return 0, os.ErrDeadlineExceeded
	case c.read == c.edges && !c.hungUp:
		return 0, ErrAgain
	}
	for {
		n, err := read(c.fd, p)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			c.read = c.edges
			return 0, ErrAgain
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		case n == 0:
			return 0, io.EOF
		}
		if n < len(p) {
			c.read = c.edges // a stream that gives less than it may has no more; a new edge tells of more
		}
		return n, nil
	}
}

// Read implements net.Conn. It waits, so a handler must have detached: see Stream.
func (c *Conn) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		edges := c.edges
		n, err := c.tryRead(p)
		if err != ErrAgain {
			return n, err
		}
		for c.edges == edges && !c.closed && !c.reading.passed() {
			c.wake.Wait()
		}
	}
}

// Stream reads for the handler of a Conn. Read detaches before it waits.
type Stream struct{ Conn *Conn }

// TryRead is that of the Conn.
func (s Stream) TryRead(p []byte) (int, error) { return s.Conn.TryRead(p) }

// Read implements io.Reader.
func (s Stream) Read(p []byte) (int, error) {
	if n, err := s.Conn.TryRead(p); err != ErrAgain {
		return n, err
	}
	s.Conn.Detach()
	return s.Conn.Read(p)
}

// Write implements net.Conn. It does not wait: what the peer does not take yet is kept, and written later.
func (c *Conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.failure != nil:
		return 0, c.failure
	case c.closed:
		return 0, net.ErrClosed
	case len(c.queue) > 0:
		c.enqueue(p)
		return len(p), nil
	}
	rest := c.put(p)
	if c.failure != nil {
		return 0, c.failure
	}
	c.enqueue(rest)
	return len(p), nil
}

func (c *Conn) enqueue(p []byte) {
	if len(p) > 0 {
		c.queue = append(c.queue, p...)
		c.queued.Store(int64(len(c.queue)))
	}
}

// put writes as much as the peer takes, and returns the rest. c.mu is held.
func (c *Conn) put(p []byte) []byte {
	for len(p) > 0 {
		n, err := write(c.fd, p)
		switch {
		case err == syscall.EINTR:
		case err == syscall.EAGAIN:
			return p
		case err != nil:
			c.failure = os.NewSyscallError("write", err)
			return nil
		default:
			p = p[n:]
		}
	}
	return nil
}

// flush writes what was kept. c.mu is held.
func (c *Conn) flush() {
	rest := c.put(c.queue)
	if len(rest) == 0 {
		c.queue = nil
	} else {
		c.queue = c.queue[:copy(c.queue, rest)]
	}
	c.queued.Store(int64(len(c.queue)))
}

// Queued is the number of bytes that were written and that the peer has not taken yet.
func (c *Conn) Queued() int64 { return c.queued.Load() }

// Drain waits until no more than limit bytes are queued, or the connection fails, or the write deadline has passed. The
// handler must have detached.
func (c *Conn) Drain(limit int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.queue) > limit {
		switch {
		case c.failure != nil:
			return c.failure
		case c.closed:
			return net.ErrClosed
		case c.writing.passed():
			return os.ErrDeadlineExceeded
		}
		c.wake.Wait()
	}
	return c.failure
}

// CloseWrite ends the stream to the peer, once it has taken what was written.
func (c *Conn) CloseWrite() error {
	if err := c.Drain(0); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	return os.NewSyscallError("shutdown", syscall.Shutdown(c.fd, syscall.SHUT_WR))
}

// Close implements net.Conn. Whatever is queued is lost.
func (c *Conn) Close() error {
	c.loop.mu.Lock()
	delete(c.loop.conns, c.id)
	c.loop.mu.Unlock()
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return net.ErrClosed
	}
	c.closed = true
	err := syscall.Close(c.fd)
	c.reading.set(time.Time{}, nil)
	c.writing.set(time.Time{}, nil)
	c.queue = nil
	c.queued.Store(0)
	c.wake.Broadcast()
	c.mu.Unlock()
	c.Kick()
	return os.NewSyscallError("close", err)
}

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn. The handler runs when it passes.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setLimit(&c.reading, t) }

// SetWriteDeadline implements net.Conn. It bounds Drain and CloseWrite; Write does not wait.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setLimit(&c.writing, t) }

func (c *Conn) setLimit(l *limit, t time.Time) error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return net.ErrClosed
	}
	passed := l.set(t, c.rouse)
	c.mu.Unlock()
	if passed {
		c.rouse()
	}
	return nil
}

// rouse makes everybody look at the deadlines.
func (c *Conn) rouse() {
	c.mu.Lock()
	c.wake.Broadcast()
	c.mu.Unlock()
	c.Kick()
}

// The sockets do not block, so that the scheduler need not know of these calls. On sockets they take less than read and write.

func read(fd int, p []byte) (int, error) {
	if len(p) == 0 {
		return 0, syscall.EAGAIN
	}
	n, _, errno := syscall.RawSyscall6(syscall.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

func write(fd int, p []byte) (int, error) {
	n, _, errno := syscall.RawSyscall6(syscall.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)),
		syscall.MSG_NOSIGNAL, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
