//go:build linux

package event

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is a loop with connections to it.
type bench struct {
	t    *testing.T
	loop *Loop
	l    net.Listener
}

func newBench(t *testing.T) *bench {
	loop, err := NewLoop()
	require.NoError(t, err)
	t.Cleanup(loop.Close)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return &bench{t, loop, l}
}

// connect returns both ends of a connection, one of them the loop's.
func (b *bench) connect() (net.Conn, *Conn) {
	far, err := net.Dial("tcp", b.l.Addr().String())
	require.NoError(b.t, err)
	near, err := b.l.Accept()
	require.NoError(b.t, err)
	require.True(b.t, Adopts(near))
	c, err := b.loop.Adopt(near)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = far.Close(); _ = c.Close() })
	return far, c
}

// echo makes a connection return what it gets, until it ends, as is told to over.
func echo(t *testing.T, c *Conn, over chan<- error) {
	buf := make([]byte, 1000)
	done := false
	require.NoError(t, c.Start(func() {
		for !done && c.Queued() == 0 {
			n, err := c.TryRead(buf)
			if err == nil {
				_, err = c.Write(buf[:n])
			}
			if errors.Is(err, ErrAgain) {
				return
			}
			if err != nil {
				done = true
				over <- err
			}
		}
	}, nil))
}

func TestEchoOfMany(t *testing.T) {
	b := newBench(t)
	var all sync.WaitGroup
	for seed := range uint64(20) {
		far, near := b.connect()
		over := make(chan error, 1)
		echo(t, near, over)
		sent := make([]byte, 300_000)
		for i := range sent {
			sent[i] = byte(rand.Int())
		}
		all.Go(func() { // pieces of all sizes
			r := rand.New(rand.NewPCG(seed, 0))
			for rest := sent; len(rest) > 0; {
				n, err := far.Write(rest[:min(len(rest), 1+r.IntN(1<<r.IntN(16)))])
				if err != nil {
					t.Error(err)
					return
				}
				rest = rest[n:]
			}
			_ = far.(*net.TCPConn).CloseWrite()
		})
		all.Go(func() {
			got := make([]byte, len(sent))
			if _, err := io.ReadFull(far, got); err != nil || !bytes.Equal(sent, got) {
				t.Errorf("what came back differs (%v)", err)
			}
			if err := <-over; !errors.Is(err, io.EOF) {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// What a peer does not read is kept, and drains when it reads; the handler of the other side runs then.
func TestSlowReader(t *testing.T) {
	b := newBench(t)
	far, near := b.connect()
	_, peer := b.connect()
	drained := make(chan struct{}, 100)
	require.NoError(t, peer.Start(func() { drained <- struct{}{} }, nil))
	require.NoError(t, near.Start(func() {}, peer))
	block := bytes.Repeat([]byte("x"), 1<<20)
	total := 0
	for near.Queued() == 0 {
		n, err := near.Write(block)
		require.NoError(t, err)
		total += n
	}
	require.NoError(t, near.SetWriteDeadline(time.Now().Add(10*time.Millisecond)))
	require.ErrorIs(t, near.Drain(0), os.ErrDeadlineExceeded)
	require.NoError(t, near.SetWriteDeadline(time.Time{}))
	waited := make(chan error, 1)
	go func() { waited <- near.CloseWrite() }()
	n, err := io.Copy(io.Discard, far)
	require.NoError(t, err)
	require.EqualValues(t, total, n)
	require.NoError(t, <-waited)
	<-drained
	require.Zero(t, near.Queued())
}

// A handler that waits does not keep others waiting, and is not run beside itself.
func TestDetach(t *testing.T) {
	b := newBench(t)
	far, near := b.connect()
	release := make(chan struct{})
	var at, runs atomic.Int32
	detached := make(chan struct{}, 10)
	require.NoError(t, near.Start(func() {
		if at.Add(1) != 1 {
			t.Error("a handler runs twice at a time")
		}
		defer at.Add(-1)
		if _, err := near.TryRead(make([]byte, 10)); errors.Is(err, ErrAgain) {
			return
		}
		runs.Add(1)
		near.Detach()
		require.False(t, near.Led())
		if runs.Load() == 1 {
			detached <- struct{}{}
			<-release
		}
	}, nil))
	_, err := far.Write([]byte("a"))
	require.NoError(t, err)
	<-detached

	other, c := b.connect()
	over := make(chan error, 1)
	echo(t, c, over)
	for range 3 {
		_, err = far.Write([]byte("b")) // meanwhile
		require.NoError(t, err)
		_, err = other.Write([]byte("hello"))
		require.NoError(t, err)
		_, err = io.ReadFull(other, make([]byte, 5))
		require.NoError(t, err)
	}
	before := runs.Load()
	close(release)
	require.Eventually(t, func() bool { return runs.Load() > before }, 10*time.Second, time.Millisecond, "it is run for what came meanwhile")
}

// Stream waits for its bytes in a goroutine of its own.
func TestStreamWaits(t *testing.T) {
	b := newBench(t)
	far, near := b.connect()
	got := make(chan string, 1)
	var once sync.Once
	require.NoError(t, near.Start(func() {
		once.Do(func() {
			buf := make([]byte, 4)
			_, err := io.ReadFull(Stream{near}, buf)
			require.NoError(t, err)
			got <- string(buf)
		})
	}, nil))
	for _, part := range []string{"a", "bc", "d"} {
		_, err := far.Write([]byte(part))
		require.NoError(t, err)
	}
	require.Equal(t, "abcd", <-got)
}

func TestEndsAreSeen(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(far net.Conn, near *Conn)
		want error
	}{
		"deadline":      {func(_ net.Conn, near *Conn) { _ = near.SetReadDeadline(time.Unix(1, 0)) }, os.ErrDeadlineExceeded},
		"later":         {func(_ net.Conn, near *Conn) { _ = near.SetReadDeadline(time.Now().Add(5 * time.Millisecond)) }, os.ErrDeadlineExceeded},
		"own close":     {func(_ net.Conn, near *Conn) { _ = near.Close() }, net.ErrClosed},
		"far close":     {func(far net.Conn, _ *Conn) { _ = far.Close() }, io.EOF},
		"far shut down": {func(far net.Conn, _ *Conn) { _ = far.(*net.TCPConn).CloseWrite() }, io.EOF},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			far, near := b.connect()
			over := make(chan error, 1)
			echo(t, near, over)
			c.end(far, near)
			require.ErrorIs(t, <-over, c.want)

			far, near = b.connect() // and by who waits
			require.NoError(t, near.Start(func() {}, nil))
			go func() {
				_, err := near.Read(make([]byte, 1))
				over <- err
			}()
			c.end(far, near)
			require.ErrorIs(t, <-over, c.want)
		})
	}
}

func TestAdoptsSocketsOnly(t *testing.T) {
	a, b := net.Pipe()
	require.False(t, Adopts(a))
	_, _ = a.Close(), b.Close()
}
