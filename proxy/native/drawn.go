package native

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nextvald/nextvald/proxy"
	"github.com/nextvald/nextvald/sequencer"
)

const (
	// drawWait bounds a caller's wait for values; after it the call is passed.
	drawWait = 2 * time.Second
	// unsettledWait bounds the wait until another server is known to be past what was drawn; after it the call fails.
	unsettledWait = 5 * time.Second
	// settleTime is how long after a call was passed values are drawn at the earliest: it should have been answered.
	settleTime = 20 * time.Millisecond
	// drawSeconds is for how long a draw should last.
	drawSeconds = 0.5
	// mostDrawn bounds a draw, in values: a larger one takes too long. mostGrowth bounds how much larger than the last it is,
	// firstDrawn is what it may be at any rate.
	mostDrawn, mostGrowth, firstDrawn = 100_000, 16, 64
)

// drawn is a sequence of the upstream, of which values are drawn. It implements proxy.Sequence.
type drawn struct {
	// What a claim reads, and nothing that is written in its course.
	current atomic.Pointer[block] // never nil
	wanted  atomic.Bool           // a draw was asked for and has not ended
	ahead   atomic.Bool           // a block is in hand beside the current one
	// gate counts what must not be gone past by a block that is older: calls that were passed, and revocations.
	gate gate

	m           *Manager
	d           *database
	slot        *slot // of the name
	oid         uint32
	incarnation string
	name        sequencer.Name
	calls       tally
	// passed is when calls are no longer passed, by Manager.elapsed.
	passed atomic.Int64
	// revoking counts the changes under way of this process.
	revoking atomic.Int32
	// doubted: calls must neither be answered from what was drawn nor passed before the server is known to be past it.
	doubted atomic.Bool
	// changed: somebody may have put the sequence back, with the word of all.
	changed atomic.Bool
	// misnamed: the upstream calls the sequence by another name. verified is Manager.elapsed when that was last looked at
	// for somebody who does, too; verifying: that is to be done.
	misnamed  atomic.Bool
	verifying atomic.Bool
	verified  atomic.Int64

	mu sync.Mutex
	// queue holds the blocks after current, in the order of their use.
	queue []*block
	// wake is closed and replaced when those who wait should look again; waiting is how many there are.
	wake    chan struct{}
	waiting int64
	// failed is why calls fail while the sequence is doubted; nil while that is being looked at.
	failed error
	// spent counts the values claimed from blocks that are no longer current; draws counts blocks.
	spent, draws uint64
	// size and at are the last draw's; claims is how many values had been claimed then.
	size   int64
	at     time.Time
	claims uint64
	// furthest is the furthest value of all draws, nil before the first one; less after the sequence was put back. filenode is the file of
	// the native sequence that it was drawn from.
	furthest *int64
	filenode uint32
}

var _ proxy.Sequence = (*drawn)(nil)

// gate tells blocks that were drawn before a moment from those drawn after.
type gate struct {
	count    atomic.Uint64
	passedAt atomic.Int64 // Manager.elapsed of the last call that was passed
}

// shut ends the blocks of before.
func (g *gate) shut() { g.count.Add(1) }

// pass ends the blocks of before, as a call is passed.
func (g *gate) pass(elapsed int64) {
	g.passedAt.Store(elapsed)
	g.count.Add(1)
}

var empty = newBlock(nil, 1, era{})

func newDrawn(d *database, oid uint32, name sequencer.Name) *drawn {
	s := &drawn{
		m: d.m, d: d, oid: oid, name: name, slot: d.m.slot(d.name, name.Name),
		incarnation: incarnation(d.name, oid), wake: make(chan struct{}),
	}
	s.current.Store(empty)
	return s
}

// Name implements proxy.Sequence.
func (s *drawn) Name() sequencer.Name { return s.name }

// OID implements proxy.Sequence.
func (s *drawn) OID() uint32 { return s.oid }

// Incarnation implements proxy.Sequence.
func (s *drawn) Incarnation() string { return s.incarnation }

// TryNext implements proxy.Sequence.
func (s *drawn) TryNext() (value int64, ok bool) {
	for {
		b := s.current.Load()
		if i := b.claimed.Add(1) - 1; i < b.count {
			now := s.m.cfg.Clock.Now()
			// After the claim: whoever is stopped in between and goes on much later must not use what it claimed.
			age := b.era.age(now)
			if age <= blockLife && b.era.sequence == s.gate.count.Load() && b.era.name == s.slot.gate.count.Load() {
				if i >= b.refillAt.Load() || age > blockLife/2 {
					s.refill()
				}
				return b.value(i), true
			}
		}
		if !s.advance(b) {
			return 0, false
		}
	}
}

// refill asks for the next block, unless there is one or it was asked for.
func (s *drawn) refill() {
	if !s.ahead.Load() && !s.wanted.Load() && s.wanted.CompareAndSwap(false, true) {
		s.d.want(s)
	}
}

// verify asks for the sequence's name to be looked at, at most once a second.
func (s *drawn) verify(elapsed int64) {
	last := s.verified.Load()
	if elapsed-last > int64(time.Second) && s.verified.CompareAndSwap(last, elapsed) {
		s.verifying.Store(true)
		s.d.want(s)
	}
}

// advance replaces the current block, whose values are used up or of no use, by the next one. It reports whether there is
// one, or somebody else did.
func (s *drawn) advance(b *block) bool {
	if b == empty && !s.ahead.Load() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current.Load() != b {
		return true
	}
	// Whoever still holds the old one finds it closed: all its values are older than any of the next.
	s.spent += uint64(s.shut(b))
	next := empty
	if len(s.queue) > 0 {
		next, s.queue = s.queue[0], s.queue[1:]
	}
	s.ahead.Store(len(s.queue) > 0)
	s.current.Store(next)
	return next != empty
}

// shut closes a block and returns how many values were claimed.
func (s *drawn) shut(b *block) int64 {
	if b == empty {
		return 0 // it is everybody's
	}
	return b.close()
}

// Next implements proxy.Sequence.
func (s *drawn) Next(ctx context.Context) (int64, error) {
	began := s.m.cfg.Clock.Now()
	drawing, stop := s.m.cfg.Clock.After(drawWait)
	defer stop()
	settling, stop := s.m.cfg.Clock.After(unsettledWait)
	defer stop()
	for {
		if v, ok := s.TryNext(); ok {
			return v, nil
		}
		s.mu.Lock()
		if s.current.Load().left() > 0 || len(s.queue) > 0 {
			s.mu.Unlock()
			continue
		}
		failed, wake := s.failed, s.wake
		s.waiting++
		s.mu.Unlock()
		timeout := drawing
		switch {
		case failed != nil:
		case s.doubted.Load():
			timeout = settling
		case s.passes(s.m.cfg.Clock.Now()):
			failed = proxy.ErrPass
		default:
			s.refill()
		}
		if failed == nil {
			select {
			case <-wake:
			case <-ctx.Done():
				failed = &sequencer.Error{Code: "57014", Message: "canceling statement due to user request", Err: ctx.Err()}
			case <-timeout:
				failed = s.late(began)
			}
		}
		s.mu.Lock()
		s.waiting--
		s.mu.Unlock()
		if errors.Is(failed, proxy.ErrPass) {
			s.gate.pass(s.m.elapsed(s.m.cfg.Clock.Now()))
		}
		if failed != nil {
			return 0, failed
		}
	}
}

// late is the error of a call that waited too long.
func (s *drawn) late(began time.Time) error {
	if !s.doubted.Load() {
		s.passFor(time.Second)
		return proxy.ErrPass
	}
	return s.unknown(fmt.Sprintf("The connection on which nextvald drew values was lost, and for %v the upstream did not let it in again.",
		s.m.cfg.Clock.Now().Sub(began).Round(time.Second)), nil)
}

// unknown is the error of calls that must neither be passed nor answered from what was drawn.
func (s *drawn) unknown(detail string, cause error) error {
	return &sequencer.Error{
		Code:    "08006",
		Message: fmt.Sprintf("cannot tell whether the upstream knows all values of sequence %q", s.name.Name),
		Detail:  detail,
		Hint:    "See nextvald's log for the reason, and try again.",
		Err:     cause,
	}
}

// passes reports whether calls are to be passed at present.
func (s *drawn) passes(now time.Time) bool {
	elapsed := s.m.elapsed(now)
	return elapsed < s.passed.Load() || elapsed < s.d.passed.Load() || s.revoking.Load() > 0 || s.d.revoking.Load() > 0 ||
		!s.m.feed.follows(now, elapsed) || s.misnamed.Load()
}

// passFor makes calls pass for a time, from now on.
func (s *drawn) passFor(d time.Duration) {
	raise(&s.passed, s.m.elapsed(s.m.cfg.Clock.Now())+int64(d))
	s.gate.shut()
	s.broadcast()
}

// raise makes a number no less than n.
func raise(a *atomic.Int64, n int64) {
	for {
		old := a.Load()
		if n <= old || a.CompareAndSwap(old, n) {
			return
		}
	}
}

// broadcast makes all who wait look again.
func (s *drawn) broadcast() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.wake)
	s.wake = make(chan struct{})
}

// doubt makes calls wait, or fail, until the sequence is no longer doubted.
func (s *drawn) doubt(failed error) {
	s.mu.Lock()
	s.failed = failed
	if !s.doubted.Swap(true) {
		s.slot.doubted.Add(1)
		s.d.doubted.Add(1)
	}
	s.gate.shut()
	s.mu.Unlock()
	s.broadcast()
}

// trust ends doubt.
func (s *drawn) trust() {
	s.mu.Lock()
	s.failed = nil
	if s.doubted.Swap(false) {
		s.slot.doubted.Add(-1)
		s.d.doubted.Add(-1)
	}
	s.mu.Unlock()
	s.broadcast()
}

// revoked ends the blocks of before, as somebody changes the sequence. The caller has made calls pass.
func (s *drawn) revoked() {
	s.gate.shut()
	s.changed.Store(true) // after it: reread takes the mark off only where nothing was shut since
	s.broadcast()
}

// forget forgets what was drawn, as the sequence is another one now.
func (s *drawn) forget() {
	s.gate.shut()
	s.mu.Lock()
	s.furthest = nil
	s.mu.Unlock()
	s.trust()
}

// nextSize is how many values the next draw should have.
func (s *drawn) nextSize(now time.Time) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	total := s.spent + uint64(s.current.Load().taken())
	rate := s.calls.perSecond(now)
	if took := float64(total-s.claims) + float64(s.waiting); s.size > 0 && took > 0 {
		rate = max(rate, took/max(now.Sub(s.at).Seconds(), 1e-6))
	}
	n := max(int64(min(rate*drawSeconds, mostDrawn)), s.waiting, leastDrawn)
	s.size = min(n, max(s.size*mostGrowth, firstDrawn), mostDrawn)
	s.at, s.claims = now, total
	return s.size
}

// install adds what was drawn to the values in hand.
func (s *drawn) install(b *block) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draws++
	s.queue = slices.DeleteFunc(s.queue, func(old *block) bool { return old.era.age(b.era.asked) > blockLife })
	s.queue = append(s.queue, b)
	s.ahead.Store(true)
	close(s.wake)
	s.wake = make(chan struct{})
}
