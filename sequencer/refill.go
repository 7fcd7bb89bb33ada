package sequencer

import (
	"context"
	"errors"
	"time"
)

// startRefill makes sure that a goroutine leases the next block.
func (s *Sequence) startRefill() {
	if !s.refilling.Load() && s.refilling.CompareAndSwap(false, true) {
		if !s.r.spawn(s.refill) {
			s.refilling.Store(false)
		}
	}
}

// refill leases blocks, one at a time, until there are enough.
func (s *Sequence) refill() {
	for {
		s.mu.Lock()
		s.observe()
		if !s.wanting() {
			// Whoever empties the stock from here on comes by s.mu, and finds that nobody refills.
			s.refilling.Store(false)
			s.mu.Unlock()
			return
		}
		count := s.leaseSize()
		item, flight := s.takeOff()
		s.mu.Unlock()

		block, after, err := s.lease(item, count)

		s.mu.Lock()
		s.flying--
		if err == nil {
			s.install(block, after)
		}
		pause, verdict := s.judge(item.Rev, err)
		if verdict != nil {
			s.verdict, s.verdictOf = verdict, flight
			s.dry = errors.Is(verdict, ErrExhausted)
			s.refilling.Store(false)
		}
		s.arm()
		s.broadcast()
		s.mu.Unlock()
		if verdict != nil {
			return
		}
		if !s.r.rest(pause) {
			s.refilling.Store(false)
			return
		}
	}
}

// wanting reports whether a lease should be sent. s.mu is held.
func (s *Sequence) wanting() bool {
	if s.over != nil || s.stopped != nil || s.frozen || s.item.Mode == Strict {
		return false
	}
	left := s.left()
	return left == 0 && s.demand > 0 || left < s.threshold() && !s.dry && s.leases > 0
}

// fixed is the size of leases that CACHE fixes, or 0. s.mu is held.
func (s *Sequence) fixed() int64 {
	if c := s.item.Definition.Cache; c > 1 {
		return min(c, maxBlock)
	}
	return 0
}

// threshold is the number of values left at which the next block is leased. s.mu is held.
func (s *Sequence) threshold() int64 {
	// The next block arrives a lease later, when the buffer must still be there, and the rate may have grown since it was
	// looked at, which is done every second.
	lead := s.policy.BufferSeconds + s.r.leasing.percentile99().Seconds() + lookEvery.Seconds()
	t := max(int64(min(s.rate.perSecond()*lead, maxBlock)), s.policy.MinThreshold)
	if n := s.fixed(); n > 0 {
		return min(t, n)
	}
	return min(t, s.policy.MaxLease)
}

// leaseSize is the number of values to ask for. s.mu is held.
func (s *Sequence) leaseSize() int64 {
	if n := s.fixed(); n > 0 {
		return n
	}
	p := &s.policy
	left := s.left()
	// What is held afterwards is what a crash loses: the target's worth at the rate of the whole window, and no more than
	// doubles the last lease, or a burst would be paid for long after.
	count := min(int64(min(s.rate.mean()*p.LeaseSeconds, maxBlock))-left, 2*s.size)
	// But some time must pass until the next lease, however short the target.
	threshold := s.threshold()
	count = max(count, threshold+threshold/4-left)
	return min(max(count, p.MinLease, s.demand), p.MaxLease)
}

// runway is how many seconds the values in hand last at the present rate; ok is false for a sequence that is not used, or
// of which none are held for long: strict, or of a fixed lease. s.mu is held.
func (s *Sequence) runway() (seconds float64, ok bool) {
	perSecond := s.rate.perSecond()
	if s.over != nil || s.item.Mode == Strict || s.fixed() > 0 || perSecond == 0 {
		return 0, false
	}
	return float64(s.left()) / perSecond, true
}

// observe brings the rate up to date. s.mu is held.
func (s *Sequence) observe() {
	s.rate.observe(s.r.cfg.Clock.Now(), s.handedOut())
}

// lookEvery is how often the rates are looked at.
const lookEvery = time.Second

// tick is called every second: the rate changes while no lease does.
func (s *Sequence) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leases == 0 || s.over != nil {
		return
	}
	s.observe()
	s.arm()
	if cur := s.current.Load(); cur.claimed.Load() > cur.refillAt.Load() {
		s.startRefill()
	}
}

// takeOff marks that a lease is sent, and returns what it is for. s.mu is held.
func (s *Sequence) takeOff() (item Item, flight uint64) {
	s.flying++
	s.flights++
	return s.item, s.flights
}

// lease makes one attempt to reserve up to count values, jumping where it must.
func (s *Sequence) lease(item Item, count int64) (*stock, Item, error) {
	ctx, cancel := context.WithTimeout(s.r.ctx, s.r.cfg.StoreTimeout)
	defer cancel()
	var term uint64
	if item.Mode != Strict { // whose values are handed out, not held
		var err error
		if term, err = s.r.join(ctx); err != nil {
			return nil, Item{}, err
		}
	}
	block, after, err := s.reserve(ctx, item, count)
	if err == nil {
		block.term, block.version, block.mode = term, after.Version, after.Mode
	}
	return block, after, err
}

// reserve leases, or jumps.
func (s *Sequence) reserve(ctx context.Context, item Item, count int64) (*stock, Item, error) {
	sent := s.r.cfg.Clock.Now()
	l, err := s.r.store.Lease(ctx, item, count)
	s.r.leasing.took(s.r.cfg.Clock.Now().Sub(sent))
	if err == nil {
		block := newStock(Block{First: l.First, Count: l.Count, Increment: item.Definition.Increment}, At(l.First), l.Rev)
		if l.Held {
			item.Rev = max(item.Rev, l.Rev) // for the rest, what is known stays
			return block, item, nil
		}
		if l.Rev <= item.Rev { // which cannot follow what was known; judge stops the sequence
			return nil, Item{}, &Conflict{Item: Item{Incarnation: item.Incarnation, Rev: l.Rev - 1}}
		}
		item.Apply(l)
		return block, item, nil
	}
	var conflict *Conflict
	if !errors.As(err, &conflict) {
		return nil, Item{}, err
	}
	met := conflict.Item
	if met.State == Revoking {
		s.mu.Lock()
		stuck := s.stuck(met)
		s.mu.Unlock()
		if stuck {
			s.undo(ctx, met)
		}
	}
	if met.Version != item.Version || met.State != Active || met.Source != FromStore || met.room(met.Pos) > 0 {
		return nil, Item{}, err
	}
	return s.jump(ctx, met, count)
}

// jump goes on past a range that leases skip, or round a CYCLE: the write that moves the position there reserves the first
// block.
func (s *Sequence) jump(ctx context.Context, item Item, count int64) (*stock, Item, error) {
	d, before := item.Definition, item.Pos
	to, ok := item.landing(before)
	if !ok && d.Cycle {
		to, ok = item.landing(At(d.wrapped()))
		item.Fresh = nil
	}
	if !ok {
		return nil, Item{}, exhausted(s.Name(), d)
	}
	first, _ := to.Value() // a lease can begin there
	count = min(count, item.room(to))
	block := Block{First: first, Count: count, Increment: d.Increment}
	item.Pos = to.Plus(Product(count, d.Increment))
	if last := block.Last(); item.High == nil || d.beyond(At(last), At(*item.High)) {
		item.High = &last
	}
	item.Changed = s.r.stamp()
	if err := s.r.store.Put(ctx, item, item.Rev); err != nil {
		return nil, Item{}, err
	}
	item.Rev++
	return newStock(block, before, item.Rev), item, nil
}

// install adds a leased block to the stock, and notes what the store holds after it. s.mu is held.
func (s *Sequence) install(block *stock, after Item) {
	s.leases++
	if !s.usable(block, after) {
		return
	}
	s.dry = false
	s.size = block.Count
	s.queue = append(s.queue, block)
}

// usable reports whether a block may be used that was leased: not when the sequence was changed, or the process expelled
// from the members, before the answer came. s.mu is held.
func (s *Sequence) usable(block *stock, after Item) bool {
	if s.over != nil || after.Version != s.item.Version || block.term != s.r.member.term.Load() && after.Mode != Strict {
		return false
	}
	s.know(after)
	return true
}

// judge says what an attempt to lease means: how long to wait before the next one, and the verdict, when it is final for
// those who waited. known is the item's rev as it was known before. s.mu is held.
func (s *Sequence) judge(known int64, err error) (pause time.Duration, verdict error) {
	var conflict *Conflict
	var final *Error
	switch {
	case err == nil:
		s.failures, s.failure = 0, nil
		return 0, nil
	case errors.Is(err, ErrNotFound):
		s.end(undefined(s.Name()))
		return 0, s.over
	case errors.As(err, &final):
		return 0, final
	case errors.Is(err, ErrSetBack):
		s.stop(err)
		return 0, s.stopped
	case errors.As(err, &conflict):
		if !s.forward(conflict.Item.Rev, known) {
			return 0, s.stopped
		}
		s.know(conflict.Item)
		if s.item.Source != FromStore {
			return 0, moving(s.Name())
		}
		if s.item.State == Active && s.failures == 0 {
			s.failures++ // so that a store that contradicts itself is not asked in a tight loop
			return 0, nil
		}
		if s.item.State == Revoking {
			s.failures = min(s.failures, 2) // it does not take long
			err = errors.New("a change of the sequence is under way")
		}
	}
	s.failures++
	s.failure = err
	return s.r.cfg.pause(s.failures), nil
}
