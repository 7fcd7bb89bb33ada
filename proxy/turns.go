package proxy

import (
	"errors"
	"net"
	"runtime"

	"github.com/nextvald/nextvald/proxy/event"
	"github.com/nextvald/nextvald/proxy/wire"
)

const (
	// maxQueued is how much a peer may leave unread until the other side of its session is read no further.
	maxQueued = 64 << 10
	// maxTurn bounds what is done for one side before others have their turn: how many messages are handled, with one more for
	// every KiB of them.
	maxTurn = 1024
)

// turns runs a session between two sockets without goroutines of its own: each side has its turn when there is something
// to read for it. Where a side has to wait for anything but its socket, it goes on in a goroutine of its own (detach).
type turns struct {
	x                        *session
	client, upstream         *event.Conn
	clientOver, upstreamOver bool // each owned by its side
}

// newLoops starts the loops of a server. One serves what a proxy of one thread does; with more processors there are more.
func newLoops() (loops []*event.Loop) {
	for range max(1, runtime.GOMAXPROCS(0)/2) {
		loop, err := event.NewLoop()
		if err != nil {
			return nil // goroutines do it too
		}
		loops = append(loops, loop)
	}
	return loops
}

// takeTurns prepares a session for turns, when both its connections are sockets.
func (x *session) takeTurns() error {
	if !event.Adopts(x.client) || !event.Adopts(x.upstream) {
		return nil
	}
	loop := x.srv.nextLoop()
	if loop == nil {
		return nil
	}
	upstream, err := loop.Adopt(x.upstream)
	if err != nil {
		return err
	}
	client, err := loop.Adopt(x.client)
	if err != nil {
		_ = upstream.Close()
		return err
	}
	x.turns = &turns{x: x, client: client, upstream: upstream}
	x.in.SetSource(event.Stream{Conn: client}, event.ErrAgain)
	x.from.SetSource(event.Stream{Conn: upstream}, event.ErrAgain)
	return x.exchange(client, upstream)
}

// begin starts the turns. The end of the client side, which that of the upstream side brings about, ends the session.
func (t *turns) begin() {
	// What cannot be watched is found to be broken by the first turn.
	if t.upstream.Start(t.upstreamTurn, t.client) != nil {
		_ = t.upstream.Close()
	}
	if t.client.Start(t.clientTurn, t.upstream) != nil {
		_ = t.client.Close()
	}
	t.client.Kick() // for what came with the startup packet
	t.upstream.Kick()
}

// detach lets other sessions go on while the client side of this one waits.
func (x *session) detach() {
	if x.turns != nil {
		x.turns.client.Detach()
	}
}

func (t *turns) clientTurn() {
	if t.clientOver {
		return
	}
	if err := guard(t.x, t.readClient); !errors.Is(err, event.ErrAgain) {
		t.clientOver = true
		go t.x.finish(err)
	}
}

func (t *turns) upstreamTurn() {
	if t.upstreamOver {
		return
	}
	if err := guard(t.x, t.readUpstream); !errors.Is(err, event.ErrAgain) {
		t.upstreamOver = true
		t.x.upstreamEnds(err)
	}
}

// readClient handles what the client has sent. event.ErrAgain: there is no more for now.
func (t *turns) readClient() error {
	x := t.x
	for left := maxTurn; left > 0; {
		if t.client.Queued() > maxQueued || t.upstream.Queued() > maxQueued {
			if err := x.flushAll(); err != nil {
				return err
			}
			return event.ErrAgain // the turn comes when they have drained
		}
		x.between = !x.in.Pending()
		ok, err := x.in.Poll()
		x.between = false
		had := x.in.Buffered()
		switch {
		case err != nil:
			return err
		case !ok:
			x.in.Release()
			if err := x.beforeRead(); err != nil {
				return err
			}
			return event.ErrAgain
		case x.in.Pending():
			err = x.in.Continue(x.up)
		default:
			err = x.clientMessage()
		}
		if err != nil {
			return err
		}
		left -= 1 + max(0, had-x.in.Buffered())>>10
	}
	if err := x.flushAll(); err != nil {
		return err
	}
	t.client.Again()
	return event.ErrAgain
}

// readUpstream handles what the upstream has sent. event.ErrAgain: there is no more for now.
func (t *turns) readUpstream() error {
	x := t.x
	for left := maxTurn; left > 0; {
		if t.client.Queued() > maxQueued {
			return event.ErrAgain // the turn comes when it has drained
		}
		ok, err := x.from.Poll()
		had := x.from.Buffered()
		switch {
		case err != nil:
			return err
		case !ok:
			x.from.Release()
			if err := x.flushOut(); err != nil {
				return err
			}
			return event.ErrAgain
		case x.from.Pending():
			err = x.continueFrame()
		default:
			err = x.upstreamMessage()
		}
		if err != nil {
			return err
		}
		left -= 1 + max(0, had-x.from.Buffered())>>10
	}
	if err := x.flushOut(); err != nil {
		return err
	}
	t.upstream.Again()
	return event.ErrAgain
}

// continueFrame forwards more of a large frame to the client.
func (x *session) continueFrame() error {
	x.outMu.Lock()
	defer x.outMu.Unlock()
	err := x.from.Continue(x.out)
	x.torn = err != nil || x.from.Pending()
	return err
}

// toUpstream writes for the client side. Where that has detached, it waits for an upstream that does not read.
type toUpstream struct{ *turns }

func (w toUpstream) Write(p []byte) (int, error) {
	n, err := w.upstream.Write(p)
	if err == nil && !w.client.Led() && w.upstream.Queued() > maxQueued {
		err = w.upstream.Drain(maxQueued)
	}
	return n, err
}

// nextLoop picks the loop of the next session; nil when there is none.
func (s *Server) nextLoop() *event.Loop {
	s.startLoops.Do(func() { s.loops = newLoops() })
	if len(s.loops) == 0 {
		return nil
	}
	return s.loops[s.nextSession.Add(1)%uint64(len(s.loops))]
}

// closeLoops ends the loops, after the last session.
func (s *Server) closeLoops() {
	s.startLoops.Do(func() {})
	for _, loop := range s.loops {
		loop.Close()
	}
	s.loops = nil
}

// exchange puts the session on other values of its connections. Others know them, to end the session.
func (x *session) exchange(client, upstream net.Conn) error {
	s := x.srv
	s.mu.Lock()
	defer s.mu.Unlock()
	accepted := x.client
	x.client, x.upstream = client, upstream
	x.up, x.out = wire.NewWriter(toUpstream{x.turns}), wire.NewWriter(client)
	s.conns[accepted] = client
	if x.cutOff.Load() {
		return errOver
	}
	deadline := x.loginBy
	if s.draining.Load() {
		deadline = past
	}
	if err := client.SetReadDeadline(deadline); err != nil {
		return err
	}
	delete(s.conns, accepted) // it is closed, and nobody needs to remember it
	s.conns[client] = client
	return nil
}
