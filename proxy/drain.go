package proxy

import (
	"context"
	"sync"
	"time"

	"github.com/nextvald/nextvald/proxy/wire"
)

// past is a deadline that wakes whoever reads.
var past = time.Unix(1, 0)

// Shutdown drains the server. From now on new clients are refused (57P03) while the listeners stay open, so that cancel
// requests still work; sessions that are idle end (57P01), the others at the end of their transaction, and at the end of
// ctx those that are left are cut off (57P01). Then the listeners are closed. It returns once every connection is gone, with
// the error of ctx when sessions were cut off.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.draining.Store(true)
	s.mu.Unlock()
	s.wakeAll()
	err := waitFor(ctx, &s.serving)
	if err != nil {
		s.abortAll()
		s.serving.Wait()
	}

	s.mu.Lock()
	s.closing = true
	for l := range s.listeners {
		_ = l.Close()
	}
	for _, conn := range s.conns {
		_ = conn.SetReadDeadline(past) // nobody has to tell us anything any more
	}
	s.mu.Unlock()
	defer s.closeLoops()
	linger, stop := context.WithTimeout(context.Background(), lingerTimeout)
	defer stop()
	if waitFor(linger, &s.running) != nil {
		s.mu.Lock()
		for _, conn := range s.conns {
			_ = conn.Close()
		}
		s.mu.Unlock()
		s.running.Wait()
	}
	return err
}

// Draining reports whether Shutdown has begun.
func (s *Server) Draining() bool { return s.draining.Load() }

// waitFor waits for the group or for the end of ctx, whose error it returns.
func waitFor(ctx context.Context, group *sync.WaitGroup) error {
	done := make(chan struct{})
	go func() { group.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// wakeAll has every session look at the draining and at the limits anew.
func (s *Server) wakeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for x := range s.sessions {
		if !x.passed || s.draining.Load() {
			x.wake()
		}
	}
}

// abortAll ends all sessions, whatever they do, within lingerTimeout.
func (s *Server) abortAll() {
	ctx, stop := context.WithTimeout(context.Background(), lingerTimeout)
	defer stop()
	var all sync.WaitGroup
	s.mu.Lock()
	for x := range s.sessions {
		all.Go(func() { x.abort(ctx) })
	}
	s.mu.Unlock()
	all.Wait()
}

// abort ends a session. What the upstream is carrying out for it is cancelled, since nobody will hear of the end.
func (x *session) abort(ctx context.Context) {
	x.srv.mu.Lock()
	x.cutOff.Store(true)
	client, upstream := x.client, x.upstream
	if upstream == nil {
		x.cancel() // the login ends by itself
	}
	x.srv.mu.Unlock()
	if upstream == nil {
		return
	}
	busy := !x.flight.quiet()
	_ = upstream.Close()
	_ = client.SetWriteDeadline(time.Now().Add(lingerTimeout))
	if !x.passed {
		x.sayLast(errShutdown())
	}
	x.cancel()
	_ = client.SetReadDeadline(past)
	if busy {
		if err := x.cancelUpstream(ctx); err != nil {
			x.srv.cfg.Logger.Warn("cannot cancel what the upstream does for a session that was cut off", "error", err)
		}
	}
}

// wake interrupts the client side where it waits for the client.
func (x *session) wake() { _ = x.client.SetReadDeadline(past) }

// idle reports whether the session waits for its client outside of a transaction, and owes it nothing. It belongs to the
// client side.
func (x *session) idle() bool {
	return !x.batch.open && x.in.Buffered() == 0 && byte(x.status.Load()) == idle && x.flight.quiet()
}

// interrupted decides about a wait for the client whose deadline has passed: nil is to wait on.
func (x *session) interrupted() error {
	switch {
	case x.flight.over():
		return errOver
	case x.loggedIn.Load():
		// The deadline goes first: one that is set from here on is not lost.
		if err := x.client.SetReadDeadline(time.Time{}); err != nil {
			return err
		}
		if x.flight.over() {
			return errOver
		}
		if x.between && x.flight.again.due.Load() {
			x.repeat()
			if err := x.flushAll(); err != nil {
				return err
			}
		}
		return x.rest()
	case x.srv.draining.Load():
		return &ending{errDraining()}
	case !time.Now().Before(x.loginBy):
		return &ending{&wire.Error{Code: "57014", Message: "canceling authentication due to timeout"}}
	}
	return x.client.SetReadDeadline(x.loginBy)
}

// beforeRead runs before the client side waits for the client.
func (x *session) beforeRead() error {
	if err := x.flushAll(); err != nil {
		return err
	}
	if x.srv.limits.Load().ClientIdle > 0 || x.srv.draining.Load() {
		x.idleSince.Store(time.Now().UnixNano())
		return x.rest()
	}
	return nil
}

// rest ends a session that is idle when the server drains or when it was idle for too long.
func (x *session) rest() error {
	if !x.loggedIn.Load() || !x.idle() {
		return nil
	}
	limit := x.srv.limits.Load().ClientIdle
	if limit > 0 {
		now := time.Now()
		x.idleSince.CompareAndSwap(0, now.UnixNano())
		end := time.Unix(0, x.idleSince.Load()).Add(limit)
		if !now.Before(end) {
			return &ending{&wire.Error{Code: "57P05", Message: "terminating connection due to idle-session timeout"}}
		}
		if err := x.client.SetReadDeadline(end); err != nil {
			return err
		}
	} else {
		x.idleSince.Store(0)
	}
	if x.srv.draining.Load() { // looked at last, since the deadline that came with it may be gone
		return &ending{errShutdown()}
	}
	return nil
}

// settled follows a ReadyForQuery of the upstream: the client side may wait for the client already, and be idle now.
func (x *session) settled() error {
	if limit := x.srv.limits.Load().ClientIdle; limit > 0 {
		now := time.Now()
		x.idleSince.Store(now.UnixNano())
		if err := x.client.SetReadDeadline(now.Add(limit)); err != nil {
			return err
		}
	}
	if x.srv.draining.Load() {
		x.wake()
	}
	return nil
}

// sayLast sends the error that ends the session, unless somebody ended it before. Nothing follows it.
func (x *session) sayLast(e *wire.Error) {
	x.outMu.Lock()
	defer x.outMu.Unlock()
	if x.fatal.Swap(true) || x.torn {
		return
	}
	e.Severity = wire.SeverityFatal
	_, _ = x.out.Write(wire.AppendError(nil, e)) // the client may be gone
	_ = x.out.Flush()
	x.out.Fail(errOver)
}

// lastWord is the error that ends a session which neither its client nor the upstream ended.
func (x *session) lastWord() *wire.Error {
	if x.cutOff.Load() {
		return errShutdown()
	}
	return errUpstreamLost()
}
