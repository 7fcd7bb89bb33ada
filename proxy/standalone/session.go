package standalone

import (
	"errors"
	"runtime/debug"

	"github.com/nextvald/nextvald/proxy/wire"
)

const (
	// maxBody bounds the body of a message. Texts and parameters of statements that can be answered here are short; a
	// larger message is discarded unread and refused.
	maxBody = 1 << 20
	// maxNamed bounds the prepared statements, and the portals, of a session.
	maxNamed = 10_000
)

// session is one connection that has logged in. It belongs to one goroutine.
type session struct {
	backend  *Backend
	conn     *conn
	in       *wire.Reader
	out      *wire.Writer
	pid      int32
	user     string
	database string

	settings   *settings
	tx         transaction
	statements map[string]*statement
	portals    map[string]*portal
	// skipping: an extended message failed; everything up to the next Sync is discarded.
	skipping bool
}

func newSession(b *Backend, c *conn, pid int32) *session {
	s := &session{
		backend: b, conn: c, out: wire.NewWriter(c), pid: pid,
		statements: make(map[string]*statement), portals: make(map[string]*portal),
	}
	s.in = wire.NewReader(c, s.out.Flush)
	s.tx.status = statusIdle
	return s
}

// run serves the session until the client leaves or breaks the protocol.
func (s *session) run() {
	defer func() {
		if r := recover(); r != nil {
			s.backend.logger.Error("standalone session failed", "panic", r, "stack", string(debug.Stack()))
		}
	}()
	if s.startup() != nil {
		return
	}
	for s.next() == nil {
	}
}

// errTerminated says that the client ended the session.
var errTerminated = errors.New("session terminated")

// next handles one message. An error ends the session.
func (s *session) next() error {
	typ, body, err := s.in.Next()
	if !isFrontend(typ) && (err == nil || errors.Is(err, wire.ErrLength)) {
		return s.fatal(fatalf("08P01", "invalid frontend message type %d", typ))
	}
	switch {
	case err != nil:
		return err // PostgreSQL, too, closes on a bad length without a word
	case typ == wire.TypeTerminate:
		return errTerminated
	case s.skipping && typ != wire.TypeSync:
		return s.in.Discard(body)
	case body > maxBody:
		if err := s.in.Discard(body); err != nil {
			return err
		}
		return s.refuse(typ, &wire.Error{Code: "54000", Message: "message is too long for a server without an upstream", Hint: hintUpstream})
	}
	frame, err := s.in.Frame(body)
	if err != nil {
		return err
	}
	if err := s.handle(typ, frame[wire.HeaderLen:]); err != nil {
		return s.refuse(typ, err)
	}
	return nil
}

func isFrontend(typ byte) bool {
	switch typ {
	case wire.TypeQuery, wire.TypeParse, wire.TypeBind, wire.TypeDescribe, wire.TypeExecute, wire.TypeClose,
		wire.TypeSync, wire.TypeFlush, wire.TypeFunctionCall, wire.TypeTerminate,
		wire.TypeCopyData, wire.TypeCopyDone, wire.TypeCopyFail:
		return true
	}
	return false
}

// handle carries out one message. Its error goes to the client.
func (s *session) handle(typ byte, body []byte) error {
	switch typ {
	case wire.TypeQuery:
		return s.query(body)
	case wire.TypeParse:
		return s.parse(body)
	case wire.TypeBind:
		return s.bind(body)
	case wire.TypeDescribe:
		return s.describe(body)
	case wire.TypeExecute:
		return s.execute(body)
	case wire.TypeClose:
		return s.close(body)
	case wire.TypeSync:
		return s.sync()
	case wire.TypeFlush:
		return s.out.Flush()
	case wire.TypeFunctionCall:
		return unsupported("the function call protocol")
	}
	return nil // COPY data outside COPY is ignored
}

// refuse sends the error of a message and aborts the transaction. What belongs to the same batch is not carried out.
func (s *session) refuse(typ byte, err error) error {
	var e *wire.Error
	switch {
	case errors.As(err, &e):
	case errors.Is(err, wire.ErrFormat):
		e = errorf("08P01", "invalid message format")
	default:
		e = errorf("XX000", "%v", err)
	}
	s.send(wire.AppendError(nil, e))
	s.abort()
	if typ == wire.TypeQuery || typ == wire.TypeFunctionCall || typ == wire.TypeSync {
		return s.ready()
	}
	s.skipping = true
	return s.out.Flush()
}

// fatal sends the error that ends the session, and returns it.
func (s *session) fatal(e *wire.Error) error {
	s.send(wire.AppendError(nil, e))
	return errors.Join(e, s.out.Flush())
}

// send gathers frames; a failure to write shows at the next Flush.
func (s *session) send(frames []byte) {
	_, _ = s.out.Write(frames)
}

func (s *session) notice(e *wire.Error) {
	s.send(wire.AppendError(nil, e))
}

// ready ends a batch: settings that changed are reported first, as PostgreSQL does from version 14 on.
func (s *session) ready() error {
	s.send(wire.AppendReadyForQuery(s.settings.appendReport(nil), s.tx.status))
	return s.out.Flush()
}

func (s *session) sync() error {
	s.skipping = false
	s.endImplicit()
	return s.ready()
}
