package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
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
	DefaultSource(name sequencer.Name) sequencer.Source
	Any(database string) bool
	Listing(ctx context.Context, database string) ([]sequencer.Listed, error)
}

// Config is what a Server needs. All fields but Native, Standalone, PeerRole, Peers, TLS, TLSRequired, Users, ProxyProtocol and Limits are
// required.
type Config struct {
	Logger    *slog.Logger
	Upstream  Upstream
	Sequences Sequences
	// Native stands for the upstream's own sequences. Nil: every sequence that is answered here is unknown to the upstream.
	Native Native
	// Standalone says that Upstream keeps nothing: schema public is the only one, and there are no relations.
	Standalone bool
	// PeerRole is the user that may call the functions of the schema nextvald, which Peers answers. Empty: nobody.
	PeerRole string
	Peers    Peers
	// TLS is offered to clients. Nil: connections are not encrypted.
	TLS *TLS
	// TLSRequired: who comes by TCP is served behind TLS only.
	TLSRequired bool
	// Users are those who may log in. Nil: the upstream asks for passwords, and knows whose they are.
	Users auth.Users
	// ProxyProtocol: connections by TCP begin with a PROXY header, version 2.
	ProxyProtocol bool
	// DialTimeout bounds a session's connection to one host of the upstream, up to the host's first answer.
	DialTimeout time.Duration
	Limits      Limits
}

// Limits bound what clients may use.
type Limits struct {
	// MaxConnections is how many sessions there may be at once; 0 is any number. Cancel requests are not counted.
	MaxConnections int
	// ClientIdle is how long a session may wait for its client outside of a transaction; 0 is for ever.
	ClientIdle time.Duration
	// Login is how long a client may take to ask for a session, and again to log in; 0 is a minute.
	Login time.Duration
}

func (l *Limits) login() time.Duration {
	if l.Login == 0 {
		return loginTimeout
	}
	return l.Login
}

// Server accepts clients and runs their sessions. Its methods are safe for concurrent use.
type Server struct {
	cfg      Config
	plans    *sqlrewrite.Cache
	limits   atomic.Pointer[Limits]
	draining atomic.Bool // no new sessions; those that are idle end

	mu        sync.Mutex
	listeners map[net.Listener]struct{}
	conns     map[net.Conn]net.Conn // by the connection that was accepted, as it is now
	sessions  map[*session]struct{}
	byKey     map[string]*session // by backend process id and cancel key, as they stand in BackendKeyData
	closing   bool                // no new connections

	asked sync.Map // what clients asked for: *asked by database
	// changes counts the changes of relations that passed, after which names may mean something else to other sessions.
	changes atomic.Uint64

	running sync.WaitGroup // connections
	serving sync.WaitGroup // sessions

	startLoops  sync.Once
	loops       []*event.Loop // none: each session has goroutines
	nextSession atomic.Uint64
}

// New returns a Server that serves nothing yet.
func New(cfg Config) *Server {
	s := &Server{
		cfg:       cfg,
		plans:     sqlrewrite.NewCache(planCacheSize),
		listeners: make(map[net.Listener]struct{}),
		conns:     make(map[net.Conn]net.Conn),
		sessions:  make(map[*session]struct{}),
		byKey:     make(map[string]*session),
	}
	s.SetLimits(cfg.Limits)
	return s
}

// SetLimits changes the limits. Sessions that there are already stay, also when they are too many now.
func (s *Server) SetLimits(l Limits) {
	s.limits.Store(&l)
	s.wakeAll() // those that wait for their client wait by the new limit from here on
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
		go s.handle(ctx, conn)
	}
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

// handle runs a connection from its first packet to its end, or to where its session goes on on a loop.
func (s *Server) handle(ctx context.Context, conn net.Conn) {
	p, onLoop := newPeer(conn), false
	defer func() {
		if r := recover(); r != nil {
			// A defect of ours must not end other sessions.
			s.cfg.Logger.Error("session failed", "client", p.address, "panic", fmt.Sprint(r), "stack", stack())
		}
		if !onLoop {
			closeGently(p.conn)
			s.leave(conn)
		}
	}()
	start, err := s.startup(ctx, p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		_ = p.conn.Close() // it never said what it wants
		return
	}
	if err != nil {
		s.cfg.Logger.Debug("start-up failed", "client", p.address, "error", err)
		return
	}
	if start == nil { // a cancel request, or a client that left
		return
	}
	s.cfg.Logger.Debug("session begins", "client", p.address, "user", start.user, "database", start.database)
	onLoop, err = s.run(ctx, p, start)
	if err != nil {
		s.cfg.Logger.Debug("session ended", "client", p.address, "error", err)
	}
}

// refuse sends a FATAL error to a client that has no session.
func refuse(conn net.Conn, e *wire.Error) error {
	e.Severity = wire.SeverityFatal
	_ = conn.SetWriteDeadline(time.Now().Add(lingerTimeout))
	_, err := conn.Write(wire.AppendError(nil, e))
	return errors.Join(e, err)
}
