package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nextvald/nextvald/proxy/auth"
	"github.com/nextvald/nextvald/proxy/wire"
	"github.com/nextvald/nextvald/sqlrewrite"
)

const (
	// lingerTimeout bounds the last write to a peer, and the wait for its end of the connection.
	lingerTimeout = 2 * time.Second

	// passwordLimit is PostgreSQL's PG_MAX_AUTH_TOKEN_LENGTH, the longest answer to an authentication request.
	passwordLimit = 65535

	// reserved names the statements that we put into a session. Clients have no reason to use it.
	reserved = "nextvald reserved"
)

// Transaction states of a ReadyForQuery.
const (
	idle    = 'I'
	inBlock = 'T'
	failed  = 'E'
)

// session is one client connection with its upstream connection.
type session struct {
	srv      *Server
	ctx      context.Context
	database string
	user     string

	// The client side: read and written by its goroutine alone.
	client   net.Conn
	in       *wire.Reader
	up       *wire.Writer
	known    func(word string) bool
	batch    batch
	prepared map[string]*statement // by name; a statement of no interest has an entry only while it is named
	portals  map[string]*portal    // those that are answered here or need attention; the upstream knows the others
	names    names
	values   values
	answers  map[*sqlrewrite.Statement]*ready
	frames   []byte    // of an answer being made
	bound    wire.Bind // the last Bind that was decoded
	unnamed  portal
	access   access
	pending  *pending // sequence DDL that is not committed yet; nil when there is none
	muted    bool     // statements of one Query run one by one: their ReadyForQuery is not the client's
	after    *afterwards
	untidy   bool   // a statement of ours was left in the upstream
	text     string // what is being prepared or run, for positions in errors
	base     int    // characters of the client's text before it

	// The upstream side: read and written by its goroutine alone.
	upstream net.Conn
	from     *wire.Reader
	unbound  bool // the client's connection has another channel binding than the upstream's, or none
	stripped bool // the client was not offered what the upstream offered

	// Shared.
	flight flight
	outMu  sync.Mutex
	out    *wire.Writer
	status atomic.Uint32      // of the last ReadyForQuery
	write  func([]byte) error // writeOut
	loggedIn,
	fatal atomic.Bool // FATAL was relayed: nothing of ours follows it
	local localWait

	failures atomic.Uint64 // errors that the client was told

	key string

	turns *turns // nil: each side has a goroutine, which waits
}

// batch is what the client has sent since its last Sync or Query.
type batch struct {
	open      bool // it has begun
	forwarded bool // something of it went to the upstream, which owes an answer at the Sync
	implicit  bool // that may have opened an implicit transaction there: more than a Close
	local     bool // something of it was answered here
	skipping  bool // a message of it failed here: the rest is discarded
}

// localWait makes a wait for the store cancellable from another connection.
type localWait struct {
	mu      sync.Mutex
	waiting bool
	ctx     context.Context // of the next wait; made anew after it was cancelled
	cancel  context.CancelFunc
}

func stack() string { return string(debug.Stack()) }

// run relays one session from its startup packet to its end.
func (s *Server) run(ctx context.Context, p *peer, st *start) error {
	client, in := p.conn, p.in
	var credentials *auth.Credentials
	if s.cfg.Users != nil {
		var err error
		if credentials, err = s.authenticate(ctx, p, st); err != nil {
			return err
		}
	}
	dialCtx, stopDial := context.WithTimeout(ctx, s.cfg.DialTimeout)
	defer stopDial()
	upstream, err := s.cfg.Upstream.Dial(dialCtx)
	if err != nil {
		return refuse(client, &wire.Error{Code: "08006", Message: "could not connect to the upstream server",
			Detail: err.Error(), Hint: "Check that the upstream PostgreSQL is running, and nextvald's setting upstream."})
	}
	defer func() { _ = upstream.Close() }()
	if _, err := upstream.Write(st.packet); err != nil {
		return refuse(client, errUpstreamLost())
	}
	from := wire.NewReader(upstream, nil)
	if credentials != nil {
		if err := upstream.SetDeadline(time.Now().Add(s.cfg.DialTimeout)); err != nil {
			return err
		}
		if err := logIn(credentials, upstream, from, client); err != nil {
			return refuse(client, errLogin(st.user, err))
		}
		if err := upstream.SetDeadline(time.Time{}); err != nil {
			return err
		}
	}
	if st.replication {
		return s.pass(client, in, upstream, from)
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	x := &session{
		srv: s, ctx: ctx, database: st.database, user: st.user,
		client: client, upstream: upstream,
		up: wire.NewWriter(upstream), out: wire.NewWriter(client),
		prepared: make(map[string]*statement), portals: make(map[string]*portal),
	}
	x.write = x.writeOut
	x.flight.init(x.detach)
	x.in = in
	in.SetBeforeRead(x.flushAll)
	x.from = from
	from.SetBeforeRead(x.flushOut)
	x.unbound = p.binding == nil || !bytes.Equal(p.binding, bindingOf(upstream))
	x.names.init()
	x.values.init()
	x.flight.push(expectation{kind: wire.TypeSync}) // the ReadyForQuery that ends the login
	if !s.admit(x) {
		return refuse(client, errShutdown())
	}
	defer s.dismiss(x)
	if err := x.takeTurns(); err != nil {
		return refuse(client, &wire.Error{Code: "53000", Message: "could not watch the connection", Detail: err.Error()})
	}
	defer func() { closeGently(x.client); _ = x.upstream.Close() }()
	return x.relay()
}

// relay runs both sides until the session is over.
func (x *session) relay() error {
	clientDone, upstreamDone := make(chan error, 1), make(chan error, 1)
	if x.turns != nil {
		x.turns.begin(clientDone, upstreamDone)
	} else {
		go func() { x.upstreamEnds(upstreamDone, guard(x, x.upstreamSide)) }()
		clientDone <- x.clientSide()
	}
	clientErr := <-clientDone
	if x.pending != nil {
		x.rollbackPending()
	}

	// Whatever the client sent before it left is still carried out, as PostgreSQL does.
	_ = x.up.Flush()
	if c, ok := x.upstream.(interface{ CloseWrite() error }); !ok || c.CloseWrite() != nil {
		_ = x.upstream.Close()
	}
	upstreamErr := <-upstreamDone
	if x.after != nil && x.flight.quiet() {
		x.dropAfter(x.after)
	}
	_ = x.client.SetWriteDeadline(time.Now().Add(lingerTimeout))
	if !errors.Is(clientErr, io.EOF) && !x.fatal.Load() {
		x.writeOut(wire.AppendError(nil, x.lastWords()))
	}
	_ = x.flushOut()
	return errors.Join(clientErr, upstreamErr)
}

// upstreamEnds is called when the upstream side is over.
func (x *session) upstreamEnds(done chan<- error, err error) {
	done <- err
	x.flight.close()
	// The client side may wait for the client, who has nothing more to say.
	_ = x.client.SetReadDeadline(time.Unix(1, 0))
}

// guard runs a part of a session. A defect of ours must not end other sessions.
func guard(x *session, part func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			x.srv.cfg.Logger.Error("session failed", "client", x.client.RemoteAddr().String(), "panic", r, "stack", stack())
			err = errors.New("panic")
		}
	}()
	return part()
}

// lastWords is the FATAL error that ends a session which neither the client nor the upstream ended with a word.
func (x *session) lastWords() *wire.Error {
	e := errUpstreamLost()
	if x.srv.isClosing() {
		e = errShutdown()
	}
	e.Severity = wire.SeverityFatal
	return e
}

// pass relays bytes without looking at them.
func (s *Server) pass(client net.Conn, in *wire.Reader, upstream net.Conn, from *wire.Reader) error {
	if err := client.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		_, err := io.Copy(client, from.Rest())
		_ = client.SetReadDeadline(time.Unix(1, 0))
		done <- err
	}()
	_, err := io.Copy(upstream, in.Rest())
	if c, ok := upstream.(interface{ CloseWrite() error }); ok && err == nil {
		_ = c.CloseWrite()
	} else {
		_ = upstream.Close()
	}
	return errors.Join(err, <-done)
}

// clientSide reads messages of the client until it leaves (io.EOF) or something breaks.
func (x *session) clientSide() error {
	for {
		if err := x.clientMessage(); err != nil {
			return err
		}
	}
}

// clientMessage handles the next message of the client.
func (x *session) clientMessage() error {
	typ, body, err := x.in.Next()
	if err != nil {
		if errors.Is(err, wire.ErrLength) {
			x.fatal.Store(true) // PostgreSQL closes without a word
		}
		return err
	}
	if !x.loggedIn.Load() {
		if typ == wire.TypePassword {
			if body > passwordLimit {
				x.fatal.Store(true)
				return wire.ErrLength
			}
			return x.in.Forward(x.up, body)
		}
		if err := x.up.Flush(); err != nil {
			return err
		}
		if !x.flight.awaitReady() {
			return net.ErrClosed
		}
	}
	return x.message(typ, body)
}

// message handles one message of a client that is logged in.
func (x *session) message(typ byte, body int) error {
	if x.batch.skipping && typ != wire.TypeSync && typ != wire.TypeTerminate {
		return x.in.Discard(body)
	}
	if x.known == nil {
		x.detach()
		x.srv.loadKnown(x.ctx, x.database)
		x.known = x.srv.cfg.Sequences.Known(x.database)
	}
	if err := x.follow(); err != nil {
		return err
	}
	if !x.batch.open {
		x.batch.open = true
		if err := x.expirePortals(); err != nil {
			return err
		}
	}
	switch typ {
	case wire.TypeQuery:
		x.batch.open = false
		return x.query(body)
	case wire.TypeParse:
		return x.parse(body)
	case wire.TypeBind:
		return x.bind(body)
	case wire.TypeDescribe:
		return x.describe(body)
	case wire.TypeExecute:
		return x.execute(body)
	case wire.TypeClose:
		return x.closeTarget(body)
	case wire.TypeSync:
		return x.sync(body)
	case wire.TypeFlush:
		return x.flush(body)
	case wire.TypeFunctionCall:
		return x.forward(expectation{kind: typ}, body)
	case wire.TypeCopyDone, wire.TypeCopyFail:
		x.flight.push(expectation{kind: kindCopyEnd})
		return x.in.Forward(x.up, body)
	case wire.TypeCopyData, wire.TypePassword:
		return x.in.Forward(x.up, body)
	case wire.TypeTerminate:
		if err := x.in.Forward(x.up, body); err != nil {
			return err
		}
		return io.EOF
	default:
		return x.protocolError(fmt.Sprintf("invalid frontend message type %d", typ))
	}
}

// forward sends the client's next message on as it is, and expects its answer.
func (x *session) forward(e expectation, body int) error {
	x.begin(e)
	return x.in.Forward(x.up, body)
}

// send sends a message that was read or made already, and expects its answer.
func (x *session) send(e expectation, frame []byte) error {
	x.begin(e)
	_, err := x.up.Write(frame)
	return err
}

func (x *session) begin(e expectation) {
	x.flight.push(e)
	x.batch.forwarded = !e.endsReady()
	x.batch.implicit = x.batch.forwarded && (x.batch.implicit || e.kind != wire.TypeClose)
}

// respond answers the client in its turn.
func (x *session) respond(frames []byte) error {
	return x.flight.respond(frames, x.write)
}

// writeOut appends frames to what leaves for the client next.
func (x *session) writeOut(frames []byte) error {
	x.outMu.Lock()
	defer x.outMu.Unlock()
	_, err := x.out.Write(frames)
	return err
}

func (x *session) flushOut() error {
	x.outMu.Lock()
	defer x.outMu.Unlock()
	return x.out.Flush()
}

// flushAll lets everything leave before the client side waits for the client.
func (x *session) flushAll() error {
	err := x.up.Flush()
	// The upstream side may hold the lock until a large frame is whole, and the upstream may keep the end of one back
	// until the client has sent more. That side flushes by itself before it waits for another frame.
	if !x.outMu.TryLock() {
		return err
	}
	defer x.outMu.Unlock()
	return errors.Join(err, x.out.Flush())
}

// protocolError ends the session the way PostgreSQL does when it can no longer make sense of the stream.
func (x *session) protocolError(message string) error {
	x.fatal.Store(true)
	e := &wire.Error{Severity: wire.SeverityFatal, Code: "08P01", Message: message}
	return errors.Join(e, x.respond(wire.AppendError(nil, e)))
}

// transaction returns the transaction state once every batch before this one is answered. It reports false when the
// session is over.
func (x *session) transaction() (byte, bool) {
	if x.flight.busyReady() {
		if x.flushAll() != nil || !x.flight.awaitReady() {
			return 0, false
		}
	}
	return byte(x.status.Load()), true
}

// wait returns a context for one local operation, which a cancel request or the end of the session ends. The operation is
// over when waited is called.
func (x *session) wait() context.Context {
	x.detach()
	l := &x.local
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx == nil || l.ctx.Err() != nil {
		l.ctx, l.cancel = context.WithCancel(x.ctx)
	}
	l.waiting = true
	return l.ctx
}

func (x *session) waited() {
	x.local.mu.Lock()
	x.local.waiting = false
	x.local.mu.Unlock()
}

// cancelLocal ends a local wait, when there is one.
func (x *session) cancelLocal() {
	x.local.mu.Lock()
	defer x.local.mu.Unlock()
	if x.local.waiting {
		x.local.cancel()
	}
}

// shutdown makes the session end: the server is going. abort does so without waiting for anything.
func (x *session) shutdown() { x.cancelLocal() }

func (x *session) abort() {
	x.cancelLocal()
	_ = x.upstream.Close()
}

func (s *Server) admit(x *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.sessions[x] = struct{}{}
	return true
}

func (s *Server) dismiss(x *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, x)
	if s.byKey[x.key] == x {
		delete(s.byKey, x.key)
	}
}

func (s *Server) remember(x *session, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x.key = key
	s.byKey[key] = x
}

// closeGently closes a connection so that what was written arrives: bytes that the peer sent and nobody read would
// turn the close into a reset, which discards them.
func closeGently(conn net.Conn) {
	if c, ok := conn.(interface{ CloseWrite() error }); ok && c.CloseWrite() == nil {
		_ = conn.SetReadDeadline(time.Now().Add(lingerTimeout))
		_, _ = io.CopyN(io.Discard, conn, 1<<20)
	}
	_ = conn.Close()
}

// interesting are the traits of a text that has to be parsed.
const interesting = sqlrewrite.HasCall | sqlrewrite.HasSequenceDDL | sqlrewrite.HasKnownName | sqlrewrite.HasCreate |
	sqlrewrite.HasTransaction | sqlrewrite.HasDeallocate
