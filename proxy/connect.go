package proxy

import (
	"context"
	"errors"
	"iter"
	"net"
	"time"

	"github.com/nextvald/nextvald/proxy/wire"
)

// Upstream is the PostgreSQL behind the proxy, or the in-process backend that stands in for it.
type Upstream interface {
	// Hosts are the servers that a session may be on, in the order in which they are tried. There is at least one. The next
	// one is asked for when the one before did not take the session.
	Hosts() iter.Seq[Host]
}

// Host is one server of an Upstream.
type Host interface {
	// Dial opens a connection for a session. Its error says why there is none, or why the server is not one for sessions.
	Dial(ctx context.Context) (net.Conn, error)
	// DialCancel opens a connection for a cancel request to the server that a session, a connection of Dial, is on. The
	// session may be closed.
	DialCancel(ctx context.Context, session net.Conn) (net.Conn, error)
}

// Dialer is an Upstream of one host, which is dialled for sessions and for cancel requests alike.
type Dialer func(ctx context.Context) (net.Conn, error)

func (d Dialer) Hosts() iter.Seq[Host] {
	return func(yield func(Host) bool) { yield(d) }
}

func (d Dialer) Dial(ctx context.Context) (net.Conn, error)                   { return d(ctx) }
func (d Dialer) DialCancel(ctx context.Context, _ net.Conn) (net.Conn, error) { return d(ctx) }

// cannotConnectNow is the SQLSTATE of a server that starts, recovers or stops.
const cannotConnectNow = "57P03"

// maxRefusal bounds the body of the error by which a server may say so.
const maxRefusal = 8 << 10

// refusal is the error by which a server that starts or stops refuses a login, as it came.
type refusal struct{ frame []byte }

func (r *refusal) Error() string { return wire.ErrorField(r.frame[wire.HeaderLen:], 'M') }

// connect opens the session's upstream connection on the first host that answers its startup packet, as libpq does: one
// that says cannot_connect_now is passed over. The answer is not read yet, but for its header.
func (x *session) connect(st *start) error {
	var errs []error
	for host := range x.srv.cfg.Upstream.Hosts() {
		conn, from, err := x.greet(host, st)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		x.srv.mu.Lock()
		defer x.srv.mu.Unlock()
		x.host, x.upstream, x.from = host, conn, from
		return x.ctx.Err() // who ended the session meanwhile saw no connection to close
	}
	return errors.Join(errs...)
}

// greet connects to a host, sends the startup packet, and waits for the header of the answer.
func (x *session) greet(host Host, st *start) (net.Conn, *wire.Reader, error) {
	ctx, stop := context.WithTimeout(x.ctx, x.srv.cfg.DialTimeout)
	defer stop()
	conn, err := host.Dial(ctx)
	if err != nil {
		return nil, nil, err
	}
	from := wire.NewReader(conn, nil)
	inTime := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(past) })
	_, err = conn.Write(st.packet)
	if err == nil {
		err = awaitWelcome(from)
	}
	if !inTime() || err != nil {
		_ = conn.Close()
		return nil, nil, greetError(ctx, err)
	}
	return conn, from, nil
}

// awaitWelcome waits for the header of the first answer, and returns a refusal when that is what it is.
func awaitWelcome(from *wire.Reader) error {
	typ, body, err := from.Next()
	if err != nil || typ != wire.TypeErrorResponse || body > maxRefusal {
		return err
	}
	frame, err := from.Peek(body, wire.HeaderLen+body)
	if err != nil {
		return err
	}
	if wire.ErrorField(frame[wire.HeaderLen:], 'C') != cannotConnectNow {
		return nil
	}
	return &refusal{append([]byte(nil), frame...)}
}

// refuse tells the client that connect failed: in the server's own words where it had some.
func (x *session) refuse(err error) error {
	var own *refusal
	switch {
	case x.ctx.Err() != nil:
		return refuse(x.client, errDraining())
	case errors.As(err, &own):
		_ = x.client.SetWriteDeadline(time.Now().Add(lingerTimeout))
		_, writeErr := x.client.Write(own.frame)
		return errors.Join(err, writeErr)
	}
	return refuse(x.client, &wire.Error{Code: "08006", Message: "could not connect to the upstream server", Detail: err.Error(),
		Hint: "Check that the upstream PostgreSQL is running, and nextvald's setting upstream."})
}

// disconnect closes what connect opened.
func (x *session) disconnect() {
	if x.upstream != nil {
		_ = x.upstream.Close()
	}
}

// greetError words why a host that takes connections does not answer.
func greetError(ctx context.Context, err error) error {
	var own *refusal
	switch {
	case errors.As(err, &own):
		return own
	case ctx.Err() != nil:
		return errors.New("the server takes the connection but does not answer")
	case errors.Is(err, wire.ErrLength):
		return errors.New("the server does not speak PostgreSQL's protocol")
	}
	return errors.New("the server closed the connection")
}
