package proxy

import (
	"context"
	"encoding/binary"
	"io"
	"sync"
)

// localWait makes a wait for the store cancellable from another connection.
type localWait struct {
	mu      sync.Mutex
	waiting bool
	ctx     context.Context // of the next wait; made anew after it was cancelled
	cancel  context.CancelFunc
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

// cancelLocal ends a local wait, and reports whether there was one.
func (x *session) cancelLocal() bool {
	x.local.mu.Lock()
	defer x.local.mu.Unlock()
	if x.local.waiting {
		x.local.cancel()
	}
	return x.local.waiting
}

// remember notes the key by which a session is cancelled: the body of its BackendKeyData.
func (s *Server) remember(x *session, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x.key = key
	s.byKey[key] = x
}

// cancel carries out a cancel request: it ends a local wait of the session that the request names, or hands the request to
// the server that the session is on, whose key it carries. As in PostgreSQL nothing is answered, whether the key is right
// or not.
func (s *Server) cancel(ctx context.Context, packet []byte) error {
	s.mu.Lock()
	x := s.byKey[string(packet[8:])]
	s.mu.Unlock()
	if x == nil {
		return nil
	}
	if quiet := x.flight.quiet() || x.flight.again.due.Load(); x.cancelLocal() && quiet {
		return nil // the upstream has nothing to do, and might come to cancel the next statement
	}
	ctx, stop := context.WithTimeout(ctx, s.cfg.DialTimeout)
	defer stop()
	return x.cancelUpstream(ctx)
}

// cancelUpstream sends a cancel request for the session to its server, and waits until it is delivered.
func (x *session) cancelUpstream(ctx context.Context) error {
	x.srv.mu.Lock()
	key := x.key
	x.srv.mu.Unlock()
	if key == "" {
		return nil
	}
	conn, err := x.host.DialCancel(ctx, x.upstream)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(past) })()
	if _, err := conn.Write(cancelRequest(key)); err != nil {
		return err
	}
	// The server closes once it has signalled; the client may rely on that order.
	_, err = io.Copy(io.Discard, conn)
	return err
}

// cancelRequest makes the packet for a key as it stands in BackendKeyData.
func cancelRequest(key string) []byte {
	packet := binary.BigEndian.AppendUint32(nil, uint32(8+len(key)))
	packet = binary.BigEndian.AppendUint32(packet, codeCancel)
	return append(packet, key...)
}
