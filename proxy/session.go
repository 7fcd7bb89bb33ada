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
	// reservedOwn names a statement that takes the place of the client's for one execution.
	reservedOwn = "nextvald reserved own"
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
	cancel   context.CancelFunc
	database string
	user     string
	address  string    // the client's, for the log
	passed   bool      // its bytes are relayed unseen
	loginBy  time.Time // when the login has to be over

	// The client side: read and written by its goroutine alone.
	client    net.Conn
	in        *wire.Reader
	up        *wire.Writer
	known     func(word string) bool
	batch     batch
	parsed    bool                  // there was a Parse: there may be an unnamed statement
	prepared  map[string]*statement // by name; a statement of no interest has an entry only while it is named
	portals   map[string]*portal    // those that are answered here or need attention; the upstream knows the others
	names     names
	values    values
	asked     *asked
	answers   map[*sqlrewrite.Statement]*ready
	frames    []byte    // of an answer being made
	bound     wire.Bind // the last Bind that was decoded
	unnamed   portal
	access    access
	pending   *pending                         // sequence DDL that is not committed yet; nil when there is none
	passing   bool                             // what was drawn from the upstream is not used
	prepares  map[string][]sqlrewrite.Argument // what statements set that PREPARE made, by their names
	drawing   map[uint32]bool                  // sequences, by OID, that what is being resolved draws of
	keeping   bool                             // what is drawn becomes a spare
	spares    map[uint32]*spare                // what was drawn for a statement that the upstream answers after all
	moving    *moving                          // what the open transaction does to sequences whose values are handed out here; nil: nothing
	muted     bool                             // statements of one Query run one by one: their ReadyForQuery is not the client's
	after     *afterwards
	untidy    bool   // a statement of ours was left in the upstream
	text      string // what is being prepared or run, for positions in errors
	base      int    // characters of the client's text before it
	between   bool   // the client side waits for the first byte of a message
	rows      bool   // the unnamed statement, which passed, reads or writes rows
	bindsRows bool   // likewise what the last Bind binds

	// The upstream side: read and written by its goroutine alone.
	upstream net.Conn // set under srv.mu
	host     Host     // that upstream leads to
	from     *wire.Reader
	unbound  bool     // the client's connection has another channel binding than the upstream's, or none
	stripped bool     // the client was not offered what the upstream offered
	told     bool     // the client has heard of what is being answered
	columns  []byte   // a RowDescription that it has not heard of yet
	unheard  *unheard // of a statement that may be run again

	// Shared.
	flight flight
	outMu  sync.Mutex
	out    *wire.Writer
	torn   bool               // part of a large message has left, or of one that failed; under outMu
	status atomic.Uint32      // of the last ReadyForQuery
	write  func([]byte) error // writeOut
	loggedIn,
	cutOff, // by the end of the server
	changed, // relations, by the open transaction
	fatal atomic.Bool // FATAL was relayed or said: nothing of ours follows it
	local     localWait
	idleSince atomic.Int64 // when the session last came to wait for its client, in ns since 1970; 0 is unknown

	failures atomic.Uint64 // errors that the client was told

	key string // for cancel requests; under srv.mu

	turns        *turns     // nil: each side has a goroutine, which waits
	upstreamDone chan error // gets the error by which the upstream side ended
}

// batch is what the client has sent since its last Sync or Query.
type batch struct {
	open      bool // it has begun
	forwarded bool // something of it went to the upstream, which owes an answer at the Sync
	implicit  bool // that may have opened an implicit transaction there: more than a Close
	local     bool // something of it was answered here
	skipping  bool // a message of it failed here: the rest is discarded
}

func stack() string { return string(debug.Stack()) }

// run relays one session from its startup packet to its end. onLoop reports that it goes on without this goroutine, and ends
// by itself.
func (s *Server) run(ctx context.Context, p *peer, st *start) (onLoop bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	x := &session{
		srv: s, ctx: ctx, cancel: cancel, database: st.database, user: st.user, address: p.address,
		client: p.conn, in: p.in, passed: st.replication, loginBy: time.Now().Add(s.limits.Load().login()), upstreamDone: make(chan error, 1),
	}
	x.flight.init(x.detach, x.repeat)
	x.out = wire.NewWriter(p.conn)
	if e := s.admit(x); e != nil {
		cancel()
		return false, refuse(p.conn, e)
	}
	defer func() {
		if !onLoop {
			x.release()
		}
	}()
	x.in.SetOnTimeout(x.interrupted)
	var credentials *auth.Credentials
	if s.cfg.Users != nil {
		var err error
		if credentials, err = x.authenticate(p); err != nil {
			return false, err
		}
	}
	if err := x.connect(st); err != nil {
		return false, x.refuse(err)
	}
	x.unbound = p.binding == nil || !bytes.Equal(p.binding, bindingOf(x.upstream))
	if credentials != nil {
		if err := x.logIn(credentials); err != nil {
			return false, err
		}
	}
	if x.passed {
		return false, x.pass()
	}

	x.up = wire.NewWriter(x.upstream)
	x.prepared, x.portals = make(map[string]*statement), make(map[string]*portal)
	x.write = x.writeOut
	x.in.SetBeforeRead(x.beforeRead)
	x.from.SetBeforeRead(x.flushOut)
	x.names.init()
	x.values.init()
	x.asked = s.askedOf(x.database)
	x.flight.push(expectation{kind: wire.TypeSync}) // the ReadyForQuery that ends the login
	switch err := x.takeTurns(); {
	case err == errOver:
		closeGently(x.client)
		return false, err
	case err != nil:
		err = refuse(p.conn, &wire.Error{Code: "53000", Message: "could not watch the connection", Detail: err.Error()})
		closeGently(x.client)
		return false, err
	case x.turns != nil:
		x.turns.begin()
		return true, nil
	}
	defer func() { closeGently(x.client) }()
	go func() { x.upstreamEnds(guard(x, x.upstreamSide)) }()
	return false, x.end(x.clientSide())
}

// finish ends a session on a loop whose client side is over.
func (x *session) finish(clientErr error) {
	err := guard(x, func() error { return x.end(clientErr) })
	x.srv.cfg.Logger.Debug("session ended", "client", x.address, "error", err)
	closeGently(x.client)
	x.release()
	x.srv.leave(x.client)
}

// release gives back what a session held, but for the client's connection.
func (x *session) release() {
	x.disconnect()
	x.srv.dismiss(x)
	x.cancel()
}

// end is what follows the end of the client side.
func (x *session) end(clientErr error) error {
	if x.pending != nil {
		x.rollbackPending()
	}
	var end *ending
	if errors.As(clientErr, &end) {
		_ = x.client.SetWriteDeadline(time.Now().Add(lingerTimeout))
		x.sayLast(end.word)
		_, _ = x.up.Write(wire.AppendEmpty(nil, wire.TypeTerminate))
		_ = x.upstream.SetDeadline(time.Now().Add(lingerTimeout)) // it has nothing more to say
	}

	// Whatever the client sent before it left is still carried out, as PostgreSQL does.
	_ = x.up.Flush()
	if c, ok := x.upstream.(interface{ CloseWrite() error }); !ok || c.CloseWrite() != nil {
		_ = x.upstream.Close()
	}
	upstreamErr := <-x.upstreamDone
	if x.after != nil && x.flight.quiet() {
		x.dropAfter(x.after)
	}
	x.abandonMoves()
	_ = x.client.SetWriteDeadline(time.Now().Add(lingerTimeout))
	if !errors.Is(clientErr, io.EOF) && !errors.Is(clientErr, io.ErrUnexpectedEOF) {
		x.sayLast(x.lastWord())
	}
	_ = x.flushOut()
	return errors.Join(clientErr, upstreamErr)
}

// upstreamEnds is called when the upstream side is over.
func (x *session) upstreamEnds(err error) {
	x.upstreamDone <- err
	x.flight.close()
	// The client side may wait for the client, who has nothing more to say.
	x.wake()
}

// guard runs a part of a session. A defect of ours must not end other sessions.
func guard(x *session, part func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			x.srv.cfg.Logger.Error("session failed", "client", x.address, "panic", r, "stack", stack())
			err = errors.New("panic")
		}
	}()
	return part()
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
	if x.flight.again.due.Load() {
		x.repeat()
	}
	x.between = true
	typ, body, err := x.in.Next()
	x.between = false
	if err != nil {
		if errors.Is(err, wire.ErrLength) {
			if !ofClients[typ] {
				return x.invalidType(typ)
			}
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
	data := typ == wire.TypeCopyData || typ == wire.TypeCopyDone || typ == wire.TypeCopyFail
	switch {
	case typ == wire.TypeTerminate:
	case x.batch.skipping && typ != wire.TypeSync:
		return x.in.Discard(body)
	case !data && x.flight.copyIn() != 0:
		return x.in.Forward(x.up, body) // the upstream ignores it, or ends the session
	}
	if x.known == nil {
		x.detach()
		x.srv.loadKnown(x.ctx, x.database)
		x.known = x.srv.cfg.Sequences.Known(x.database)
	}
	if err := x.follow(); err != nil {
		return err
	}
	if !x.batch.open && !data && (typ != wire.TypeFlush || body > 0) { // a Query that copies is a batch of its own
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
		x.batch.open = false
		return x.functionCall(body)
	case wire.TypeCopyDone, wire.TypeCopyFail:
		if x.flight.copyIn() == wire.TypeExecute { // a Query's COPY needs no Sync
			x.batch.open = true
		}
		x.flight.push(expectation{kind: kindCopyEnd})
		return x.in.Forward(x.up, body)
	case wire.TypeCopyData:
		if run := x.in.Run(copyData); len(run) > 0 {
			_, err := x.up.Write(run)
			return err
		}
		return x.in.Forward(x.up, body)
	case wire.TypePassword:
		return x.in.Forward(x.up, body)
	case wire.TypeTerminate:
		if err := x.in.Forward(x.up, body); err != nil {
			return err
		}
		return io.EOF
	default:
		return x.invalidType(typ)
	}
}

var copyData = wire.TypesOf(wire.TypeCopyData)

// forward sends the client's next message on as it is, and expects its answer.
func (x *session) forward(e expectation, body int) error {
	if x.mirrored() && body <= keepLimit {
		frame, err := x.in.Frame(body)
		if err != nil {
			return err
		}
		return x.send(e, frame)
	}
	x.begin(e, nil)
	return x.in.Forward(x.up, body)
}

// send sends a message that was read or made already, and expects its answer.
func (x *session) send(e expectation, frame []byte) error {
	x.begin(e, x.toKeep(e, frame))
	_, err := x.up.Write(frame)
	return err
}

func (x *session) begin(e expectation, kept []byte) {
	x.flight.pushKept(e, kept)
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

// ofClients are the messages that clients send.
var ofClients = wire.TypesOf(wire.TypeQuery, wire.TypeParse, wire.TypeBind, wire.TypeDescribe, wire.TypeExecute, wire.TypeClose,
	wire.TypeSync, wire.TypeFlush, wire.TypeFunctionCall, wire.TypeCopyData, wire.TypeCopyDone, wire.TypeCopyFail,
	wire.TypePassword, wire.TypeTerminate)

func (x *session) invalidType(typ byte) error {
	return x.protocolError(fmt.Sprintf("invalid frontend message type %d", typ))
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

// admit gives a new session its place.
func (s *Server) admit(x *session) *wire.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining.Load() {
		return errDraining()
	}
	if limit := s.limits.Load().MaxConnections; limit > 0 && len(s.sessions) >= limit {
		return errTooMany()
	}
	s.sessions[x] = struct{}{}
	s.serving.Add(1)
	return nil
}

func (s *Server) dismiss(x *session) {
	s.mu.Lock()
	delete(s.sessions, x)
	if s.byKey[x.key] == x {
		delete(s.byKey, x.key)
	}
	s.mu.Unlock()
	s.serving.Done()
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

// interesting are the traits of a text that has to be parsed in any database.
const interesting = sqlrewrite.HasCall | sqlrewrite.HasSequenceDDL | sqlrewrite.HasKnownName | sqlrewrite.HasCreate |
	sqlrewrite.HasTransaction | sqlrewrite.HasDeallocate

// interests reports whether a text of these traits has to be parsed.
func (x *session) interests(traits sqlrewrite.Traits) bool {
	return traits&interesting != 0 || traits&sqlrewrite.HasMoves != 0 && x.mirrored() ||
		traits&(sqlrewrite.HasCatalog|sqlrewrite.HasExecute) != 0 && x.srv.cfg.Sequences.Any(x.database)
}
