package sequencer

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Set moves the sequence: setval(name, value, called). The next value is value + INCREMENT when called, else value, or the
// next one that leases do not skip: of a mirrored sequence, the upstream's goes on in its block. That the block is of before
// the move shows by Holes, which hold it too.
//
// Errors: 22003 when value is out of the sequence's bounds; ErrUndefined; ErrStore.
func (s *Sequence) Set(ctx context.Context, value int64, called bool) error {
	return s.change(ctx, func(item *Item, _ cursor) error {
		if d := item.Definition; value < d.Min || value > d.Max {
			return &Error{
				Code: codeOutOfRange,
				Message: fmt.Sprintf("setval: value %d is out of bounds for sequence %q (%d..%d)",
					value, bare(s.Name().Name), d.Min, d.Max),
			}
		}
		item.place(cursor{last: value, called: called})
		item.Holes = nil
		for _, r := range []*Range{item.Fence, item.NextFence} {
			if r != nil {
				item.Holes = append(item.Holes, *r)
			}
		}
		return nil
	})
}

// alter applies ALTER SEQUENCE.
func (s *Sequence) alter(ctx context.Context, o Options) error {
	return s.change(ctx, func(item *Item, at cursor) error {
		old := item.Definition
		d, at, err := merge(old, at, o, false)
		if err != nil {
			return err
		}
		item.Definition, item.Mode = d, s.r.policy(s.Name(), d).Mode
		item.place(at)
		if (d.Increment < 0) != (old.Increment < 0) && item.High != nil {
			// Which value was the furthest in the new direction is not known.
			least, greatest := Bigint.limits()
			item.High = &greatest
			if d.Increment < 0 {
				item.High = &least
			}
		}
		return nil
	})
}

// Times that a change waits for the members' word: one that might give out values again, and any other.
const (
	mustConfirm = 5 * time.Second
	mayConfirm  = time.Second
)

// change rewrites the item by edit, which gets the item and where the sequence stands, counted from the last value that
// was handed out rather than the last one leased when this process holds all that lies between. An error of edit changes
// nothing.
//
// It raises the version, so that no block leased before is added to. A change that cannot give out a value that somebody
// holds is written at once, and waits for the members' word only for a while. Any other is made in three steps: the item is
// set to revoking, so that nobody leases; all members confirm that they dropped their blocks; the change is written. When
// the second step fails the first one is undone.
func (s *Sequence) change(ctx context.Context, edit func(*Item, cursor) error) error {
	reading, cancel := context.WithTimeout(ctx, s.r.cfg.StoreTimeout)
	defer cancel()
	if err := s.freeze(reading); err != nil {
		return err
	}
	defer s.thaw()
	known := s.revision()
	item, err := s.r.get(reading, s.incarnation)
	for tries := 0; ; tries++ {
		if err != nil {
			return s.failed("change the sequence", err)
		}
		if err := s.mayChange(item, known); err != nil {
			return err
		}
		if item.State == Revoking {
			if item, err = s.awaitOther(reading, item); err != nil || item.State == Revoking {
				continue
			}
		}
		if item.Source != FromStore {
			return moving(s.Name())
		}
		next, safe, editErr := s.edited(item, item, edit)
		if editErr != nil {
			return editErr
		}
		const politeTries = 3 // after which others are kept from leasing, so that it comes to an end
		if !safe || tries >= politeTries {
			return s.changeInSteps(ctx, reading, item.Version, edit)
		}
		err = s.r.put(reading, next, item.Rev)
		var conflict *Conflict
		switch {
		case err == nil:
			next.Rev = item.Rev + 1
			s.learn(next)
			s.r.tell(ctx, item, s.incarnation)
			return nil
		case errors.As(err, &conflict):
			item, err = conflict.Item, nil // somebody leased or changed it since it was read
		case errors.Is(err, ErrUnknownOutcome):
			s.abandon() // the blocks in hand may be of an old version now
		}
	}
}

// mayChange refuses the first change that finds the store set back, so that somebody takes note; the next one repairs it.
func (s *Sequence) mayChange(item Item, known int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped == nil && !s.forward(item.Rev, known) {
		return s.stopped
	}
	return nil
}

// edited is what an item becomes by edit, and whether no value that another process may hold can be given out again then.
// before is the item as it was before this change began.
func (s *Sequence) edited(item, before Item, edit func(*Item, cursor) error) (next Item, safe bool, err error) {
	pos, high := s.effective(before)
	at := item.cursor(pos)
	next = item.Clone()
	next.State = Active
	if err := edit(&next, at); err != nil {
		return Item{}, false, err
	}
	next.Version++
	next.Changed = s.r.stamp()

	switch {
	case item.quiet():
		safe = true
	case next.Mode == Strict, (item.Definition.Increment < 0) != (next.Definition.Increment < 0):
		safe = false // what is held would be handed out among later values
	case next.cursor(next.Pos) == at:
		safe = true // it stays where it is, and nobody holds a value further on
	default:
		safe = next.Definition.beyond(next.Pos, high)
	}
	return next, safe, nil
}

// quiet reports whether nobody can hold a block: nothing was leased yet, or the sequence is strict.
func (it Item) quiet() bool { return it.High == nil || it.Mode == Strict }

// effective is the position at which an item stands when this process gives back what it holds, which it may when the item's
// position is the end of that, and the furthest value that is then handed out or held by somebody.
func (s *Sequence) effective(item Item) (pos, high Position) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pos = item.Pos
	if item.High != nil {
		high = At(*item.High)
	}
	rest, ok := s.rest()
	if !ok || !rest.reaches(item) {
		return pos, high
	}
	if last := item.Pos.Minus(At(item.Definition.Increment)); last == high {
		// The furthest values are those in hand.
		high = rest.pos.Minus(At(item.Definition.Increment))
	}
	return rest.pos, high
}

// changeInSteps makes a change that others must confirm.
func (s *Sequence) changeInSteps(ctx, reading context.Context, version int64, edit func(*Item, cursor) error) error {
	return s.revoke(ctx, reading, version, func(begun Item) (end func(context.Context) error, safe bool, err error) {
		next, safe, err := s.edited(begun, unbegun(begun), edit)
		return func(ctx context.Context) error {
			err := s.r.put(ctx, next, begun.Rev)
			if err == nil {
				next.Rev = begun.Rev + 1
				s.learn(next)
			}
			return err
		}, safe, err
	})
}

// revoke makes a change in three steps. plan gets the item as the first step left it, and returns the third one and whether
// it is safe without the second.
func (s *Sequence) revoke(
	ctx, reading context.Context, version int64, plan func(Item) (end func(context.Context) error, safe bool, err error),
) error {
	begun, err := s.r.revoke(reading, s.incarnation, version)
	if err != nil {
		if errors.Is(err, ErrUnknownOutcome) {
			s.abandon()
		}
		return s.failed("change the sequence", err)
	}
	// From here on the change must be ended, also when the caller has gone.
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), mustConfirm+2*s.r.cfg.StoreTimeout)
	defer cancel()
	undone := begun.Clone()
	undone.State = Active
	undone.Pos, _ = s.effective(unbegun(begun))
	end, safe, err := plan(begun)
	s.learn(begun) // and drop what is held
	if err == nil && !begun.quiet() {
		err = s.r.confirm(ctx, s.incarnation, safe)
	}
	if err != nil {
		// Whoever finds it undone by somebody else has nothing to do; whoever cannot undo it leaves it to who comes next.
		undone.Changed = s.r.stamp()
		if undoErr := s.r.put(ending, undone, begun.Rev); undoErr != nil {
			s.r.cfg.Logger.Warn("a change that was given up is left to be undone", "sequence", s.Name().String(), "error", undoErr)
		}
		return err
	}
	err = end(ending)
	var conflict *Conflict
	if errors.As(err, &conflict) {
		err = errors.New("another process undid the change, since it took too long")
	}
	if err != nil {
		return s.failed("change the sequence", err)
	}
	return nil
}

// unbegun is an item as it was before a change of three steps made the first one.
func unbegun(item Item) Item {
	item.Rev--
	item.Version--
	item.State = Active
	return item
}

// confirm announces a change and waits for the members' word, in vain if need be when the change is safe without.
func (r *Registry) confirm(caller context.Context, incarnation string, safe bool) error {
	limit := mustConfirm
	if safe {
		limit = mayConfirm
	}
	ctx, cancel := context.WithTimeout(caller, limit)
	defer cancel()
	rev, err := again(ctx, r, func() (int64, error) { return r.store.Announce(ctx, Announcement{Incarnation: incarnation}) })
	var missing []string
	if err == nil {
		missing, err = r.confirmed(ctx, rev, limit)
	}
	switch {
	case err == nil || safe:
		return nil
	case caller.Err() != nil:
		return canceled(caller.Err())
	}
	return unconfirmed(missing, err)
}

// tell announces a change that was made, and gives the members a while to follow it.
func (r *Registry) tell(ctx context.Context, before Item, incarnation string) {
	ctx, cancel := context.WithTimeout(ctx, mayConfirm)
	defer cancel()
	if rev := r.announce(ctx, Announcement{Incarnation: incarnation}); rev != 0 && !before.quiet() {
		_, _ = r.confirmed(ctx, rev, mayConfirm) // the change stands without
	}
}

// undoAfter is how long a change may be seen under way until its author is taken for dead.
const undoAfter = 10 * time.Second

// awaitOther waits a moment for a change under way by another process, and reads the item again. One whose author died is
// undone.
func (s *Sequence) awaitOther(ctx context.Context, item Item) (Item, error) {
	s.mu.Lock()
	stuck := s.stuck(item)
	s.mu.Unlock()
	if stuck {
		s.undo(ctx, item)
	} else if !s.r.rest(s.r.cfg.pause(3)) {
		return Item{}, errShuttingDown
	}
	if err := ctx.Err(); err != nil {
		return Item{}, fmt.Errorf("another change of the sequence is under way: %w", err)
	}
	return s.r.get(ctx, s.incarnation)
}

// stuck notes an item that is revoking, and reports whether it has been so for too long. s.mu is held.
func (s *Sequence) stuck(item Item) bool {
	now := s.r.cfg.Clock.Now()
	if s.stuckRev != item.Rev {
		s.stuckRev, s.stuckSince = item.Rev, now
	}
	return now.Sub(s.stuckSince) > undoAfter
}

// undo ends a change whose author died. Members that confirmed it have dropped their blocks, and the rest of the old
// version is a gap.
func (s *Sequence) undo(ctx context.Context, item Item) {
	item.State, item.Changed = Active, s.r.stamp()
	err := s.r.store.Put(ctx, item, item.Rev)
	s.r.cfg.Logger.Warn("undid a change of a sequence whose author did not end it", "sequence", s.Name().String(), "error", err)
}

// drop deletes the item, after all members have dropped their blocks.
func (s *Sequence) drop(ctx context.Context) error {
	reading, cancel := context.WithTimeout(ctx, s.r.cfg.StoreTimeout)
	defer cancel()
	if err := s.freeze(reading); err != nil {
		return err
	}
	defer s.thaw()
	item, err := s.r.get(reading, s.incarnation)
	for err == nil && item.State == Revoking {
		item, err = s.awaitOther(reading, item)
	}
	if err != nil {
		return s.failed("drop the sequence", err)
	}
	if item.Source != FromStore {
		return moving(s.Name())
	}
	if err := s.revoke(ctx, reading, item.Version, func(begun Item) (func(context.Context) error, bool, error) {
		return func(ctx context.Context) error { return s.r.deleteItem(ctx, begun) }, false, nil
	}); err != nil {
		return err
	}
	_ = s.dropped()
	return nil
}

// learn takes over an item that was written. It is the truth, also where the store was set back before.
func (s *Sequence) learn(item Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped != nil {
		s.item.Rev, s.stopped = 0, nil
	}
	s.know(item)
}

// abandon discards what is held.
func (s *Sequence) abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.discard()
}

// freeze stops the sequence for a change: it waits for an earlier change and for the lease under way, then takes the
// current stock from the callers. Callers wait until thaw.
func (s *Sequence) freeze(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	mine := false
	for {
		if s.over != nil {
			if mine {
				s.frozen = false
			}
			return s.over
		}
		if !s.frozen {
			s.frozen, mine = true, true
		}
		if mine && s.flying == 0 {
			break
		}
		wake := s.wake
		s.mu.Unlock()
		select {
		case <-wake:
		case <-ctx.Done():
		}
		s.mu.Lock()
		if err := ctx.Err(); err != nil {
			if mine {
				s.release()
			}
			return storeFailure("change the sequence", err)
		}
	}
	s.park()
	return nil
}

// thaw ends what freeze began.
func (s *Sequence) thaw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release()
}

// release lets callers and leases go on. s.mu is held.
func (s *Sequence) release() {
	s.frozen = false
	s.broadcast()
	if len(s.callers) > 0 {
		s.startCombine()
	}
}

// giveBack returns what this process holds to the store, once. The sequence is frozen. s.mu is not held.
func (s *Sequence) giveBack(ctx context.Context) error {
	s.mu.Lock()
	rest, ok := s.rest()
	version := s.item.Version
	if ok && s.left() == 0 {
		ok = false
	}
	s.discard()
	s.mu.Unlock()
	if !ok {
		return nil
	}
	err := s.r.store.GiveBack(ctx, GiveBack{
		Incarnation: s.incarnation, Version: version, Rev: rest.rev, Pos: rest.pos, End: rest.end, Count: rest.count,
	})
	var conflict *Conflict
	if errors.As(err, &conflict) || errors.Is(err, ErrNotFound) {
		return nil // somebody wrote since: the rest is a gap, as it may be
	}
	return err
}
