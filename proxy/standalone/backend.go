package standalone

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"
)

// ErrClosed is what Dial returns after Close.
var ErrClosed = errors.New("the standalone backend is closed")

// Config is what a Backend can be given; its zero value works.
type Config struct {
	// Logger gets what should not happen. Default: slog.Default().
	Logger *slog.Logger
	// Now is the clock of now(). Default: time.Now.
	Now func() time.Time
}

// Backend is a PostgreSQL server in this process. It is safe for concurrent use.
type Backend struct {
	logger *slog.Logger
	now    func() time.Time

	mu     sync.Mutex
	open   map[*conn]struct{}
	pid    int32 // of the newest session
	closed bool
	served sync.WaitGroup
}

// New returns a Backend that is ready to be dialled.
func New(cfg Config) *Backend {
	b := &Backend{logger: cfg.Logger, now: cfg.Now, open: make(map[*conn]struct{})}
	if b.logger == nil {
		b.logger = slog.Default()
	}
	if b.now == nil {
		b.now = time.Now
	}
	return b
}

// Dial opens a connection, which waits for a startup packet. The connection has a CloseWrite.
func (b *Backend) Dial(ctx context.Context) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, ErrClosed
	}
	client, server := newConns()
	b.open[server] = struct{}{}
	b.pid = max(b.pid+1, 1)
	pid := b.pid
	b.served.Go(func() {
		defer b.forget(server)
		newSession(b, server, pid).run()
	})
	return client, nil
}

func (b *Backend) forget(c *conn) {
	_ = c.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.open, c)
}

// Close ends all sessions without a word and waits until they are gone. It may be called more than once.
func (b *Backend) Close() error {
	b.mu.Lock()
	b.closed = true
	for c := range b.open {
		_ = c.Close()
	}
	b.mu.Unlock()
	b.served.Wait()
	return nil
}
