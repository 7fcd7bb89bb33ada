package sequencer

import (
	"context"
	"errors"
	"fmt"
)

// Set moves the sequence: setval(name, value, called). The next value is value + INCREMENT when called, else value.
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
		item.Definition, item.Mode = d, mode(d)
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

// mode is the order of values that a definition asks for.
func mode(d Definition) Mode {
	if d.Strict() {
		return Strict
	}
	return Cached
}

// change rewrites the item by edit, which gets the item and where the sequence stands, counted from the last value that
// was handed out rather than the last one leased when this process holds all that lies between. It raises the version, so
// that no block leased before it is added to. An error of edit changes nothing.
func (s *Sequence) change(ctx context.Context, edit func(*Item, cursor) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.r.cfg.StoreTimeout)
	defer cancel()
	if err := s.freeze(ctx); err != nil {
		return err
	}
	defer s.thaw()
	item, err := s.r.get(ctx, s.incarnation)
	for {
		if err != nil {
			return s.failed("change the sequence", err)
		}
		s.mu.Lock()
		pos := item.Pos
		if rest, rev, ok := s.rest(); ok && rev == item.Rev {
			pos = rest
		}
		s.mu.Unlock()
		next := item.Clone()
		if err := edit(&next, item.cursor(pos)); err != nil {
			return err
		}
		next.Version++
		next.Changed = s.r.stamp()
		err = s.r.put(ctx, next, item.Rev)
		var conflict *Conflict
		switch {
		case err == nil:
			next.Rev = item.Rev + 1
			s.mu.Lock()
			s.know(next)
			s.mu.Unlock()
			s.r.announce(ctx, Announcement{Incarnation: s.incarnation})
			return nil
		case errors.As(err, &conflict):
			item, err = conflict.Item, nil // somebody leased or changed it since it was read
		case errors.Is(err, ErrUnknownOutcome):
			// The blocks in hand may be of an old version now.
			s.mu.Lock()
			s.discard()
			s.mu.Unlock()
		}
	}
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
	cur := s.current.Load()
	taken := cur.close()
	s.spent += uint64(taken)
	if cur.rev != 0 {
		s.queue = append([]*stock{cur.remainder(taken)}, s.queue...)
	}
	s.current.Store(newStock(Block{Increment: cur.Increment}, Position{}, 0))
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
	pos, rev, ok := s.rest()
	version := s.item.Version
	if ok && s.left() == 0 {
		ok = false
	}
	s.discard()
	s.mu.Unlock()
	if !ok {
		return nil
	}
	err := s.r.store.GiveBack(ctx, GiveBack{Incarnation: s.incarnation, Version: version, Rev: rev, Pos: pos})
	var conflict *Conflict
	if errors.As(err, &conflict) || errors.Is(err, ErrNotFound) {
		return nil // somebody wrote since: the rest is a gap, as it may be
	}
	return err
}
