package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nextvald/nextvald/proxy/auth"
	"github.com/nextvald/nextvald/proxy/event"
	"github.com/nextvald/nextvald/proxy/wire"
	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sqlrewrite"
)

// planCacheSize is how many texts' plans are kept, shared by all sessions.
const planCacheSize = 4096

// Upstream is the PostgreSQL behind the proxy, or the in-process backend that stands in for it.
type Upstream interface {
	// Dial opens a new connection for one session or cancel request.
	Dial(ctx context.Context) (net.Conn, error)
}

// Sequences is what sessions need of the sequencer. *sequencer.Registry implements it.
type Sequences interface {
	Load(ctx context.Context, database string) error
	Known(database string) func(word string) bool
	Lookup(ctx context.Context, name sequencer.Name) (*sequencer.Sequence, error)
	Bound(name sequencer.Name) *sequencer.Sequence
	LookupOID(ctx context.Context, database string, oid uint32) (*sequencer.Sequence, error)
	Create(ctx context.Context, name sequencer.Name, def sequencer.Definition) (*sequencer.Sequence, error)
	Alter(ctx context.Context, name sequencer.Name, options sequencer.Options) error
	Rename(ctx context.Context, from, to sequencer.Name) error
	Drop(ctx context.Context, name sequencer.Name) error
	List(ctx context.Context, database string) ([]sequencer.Entry, error)
}

// Config is what a Server needs. All fields but Standalone, PeerRole, Peers, TLS and Users are required.
type Config struct {
	Logger    *slog.Logger
	Upstream  Upstream
	Sequences Sequences
	// Standalone says that Upstream keeps nothing: schema public is the only one, and there are no relations.
	Standalone bool
	// PeerRole is the user that may call the functions of the schema nextvald, which Peers answers. Empty: nobody.
	PeerRole string
	Peers    Peers
	// TLS is offered to clients. Nil: connections are not encrypted.
	TLS *TLS
	// Users are those who may log in. Nil: the upstream asks for passwords, and knows whose they are.
	Users auth.Users
	// DialTimeout bounds a session's connection to the upstream.
	DialTimeout time.Duration
}

// Server accepts clients and runs their sessions. Its methods are safe for concurrent use.
type Server struct {
	cfg   Config
	plans *sqlrewrite.Cache

	mu        sync.Mutex
	listeners map[net.Listener]struct{}
	conns     map[net.Conn]net.Conn // by the connection that was accepted, as it is now
	sessions  map[*session]struct{}
	byKey     map[string]*session // by backend process id and cancel key, as they stand in BackendKeyData
	closing   bool
	running   sync.WaitGroup

	startLoops  sync.Once
	loops       []*event.Loop // none: each session has goroutines
	nextSession atomic.Uint64
}

// New returns a Server that serves nothing yet.
func New(cfg Config) *Server {
	return &Server{
		cfg:       cfg,
		plans:     sqlrewrite.NewCache(planCacheSize),
		listeners: make(map[net.Listener]struct{}),
		conns:     make(map[net.Conn]net.Conn),
		sessions:  make(map[*session]struct{}),
		byKey:     make(map[string]*session),
	}
}

// Serve accepts clients on l until Shutdown, or until l fails. It closes l.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return l.Close()
	}
	s.listeners[l] = struct{}{}
	s.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	defer func() { _ = l.Close() }()

	for {
		conn, err := l.Accept()
		switch {
		case err == nil:
		case s.isClosing() || ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		default:
			// Out of file descriptors and the like pass; a hot loop would not help.
			s.cfg.Logger.Warn("cannot accept a connection", "error", err)
			time.Sleep(10 * time.Millisecond)
			continue
		}
		if !s.enter(conn) {
			_ = conn.Close()
			return nil
		}
		go func() {
			defer s.leave(conn)
			s.handle(ctx, conn)
		}()
	}
}

// Shutdown stops accepting, tells every session that the server is going, closes them, and waits for their end or
// for ctx.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.closing = true
	for l := range s.listeners {
		_ = l.Close()
	}
	for session := range s.sessions {
		session.shutdown()
	}
	for _, conn := range s.conns {
		// Whoever reads wakes up and ends; what is being written still leaves.
		_ = conn.SetReadDeadline(time.Unix(1, 0))
	}
	s.mu.Unlock()

	defer s.closeLoops()
	done := make(chan struct{})
	go func() { s.running.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	for _, conn := range s.conns {
		_ = conn.Close()
	}
	for session := range s.sessions {
		session.abort()
	}
	s.mu.Unlock()
	<-done
	return ctx.Err()
}

// Connections is the number of clients that are connected.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

func (s *Server) isClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing
}

func (s *Server) enter(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.conns[conn] = conn
	s.running.Add(1)
	return true
}

func (s *Server) leave(conn net.Conn) {
	s.mu.Lock()
	delete(s.conns, conn)
	s.mu.Unlock()
	s.running.Done()
}

// handle runs a connection from its first packet to its end.
func (s *Server) handle(ctx context.Context, conn net.Conn) {
	p := newPeer(conn)
	defer func() {
		if r := recover(); r != nil {
			// A defect of ours must not end other sessions.
			s.cfg.Logger.Error("session failed", "client", conn.RemoteAddr().String(), "panic", fmt.Sprint(r), "stack", stack())
		}
		closeGently(p.conn)
	}()
	start, err := s.startup(ctx, p)
	if err != nil {
		s.cfg.Logger.Debug("start-up failed", "client", conn.RemoteAddr().String(), "error", err)
		return
	}
	if start == nil { // a cancel request, or a client that left
		return
	}
	err = s.run(ctx, p, start)
	if err != nil {
		s.cfg.Logger.Debug("session ended", "client", conn.RemoteAddr().String(), "error", err)
	}
}

// refuse sends a FATAL error to a client that has no session.
func refuse(conn net.Conn, e *wire.Error) error {
	e.Severity = wire.SeverityFatal
	_ = conn.SetWriteDeadline(time.Now().Add(lingerTimeout))
	_, err := conn.Write(wire.AppendError(nil, e))
	return errors.Join(e, err)
}
