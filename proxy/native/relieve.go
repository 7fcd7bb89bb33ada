package native

import (
	"context"
	"errors"
	"maps"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/nextvald/nextvald/proxy"
	"github.com/nextvald/nextvald/sequencer"
)

const (
	// usedUp takes the place of feedAt for one of which nothing is left.
	usedUp = math.MaxInt64
	// growth is how many times the block that is used up the next one is, where a statement is run again; growthByHand where
	// somebody has to do that.
	growth, growthByHand = 10, 100
)

// Refuses implements proxy.Native.
func (h *Handovers) Refuses(r proxy.Refusal) bool {
	for _, name := range h.registry.Mirrored(r.Database) {
		if name.Name != r.Sequence {
			continue
		}
		// It is nil where it was handed back, or where nobody here has looked at it yet.
		if s := h.registry.Bound(name); s != nil && !isDeclared(s.Item().Definition, r) {
			return true
		}
	}
	return false
}

// isDeclared reports whether a refusal is one by the declared bounds.
func isDeclared(d sequencer.Definition, r proxy.Refusal) bool {
	if r.Set {
		return r.Low == d.Min && r.High == d.Max
	}
	return r.High == d.Min || r.High == d.Max
}

// Relieve implements proxy.Native.
func (h *Handovers) Relieve(ctx context.Context, r proxy.Refusal) error {
	return h.relieve(ctx, r, growth)
}

// relieve feeds a fence, or hands a sequence back to the upstream that setval moves beyond its fence.
func (h *Handovers) relieve(ctx context.Context, r proxy.Refusal, growth uint64) error {
	err := proxy.ErrPass
	for _, name := range h.registry.Mirrored(r.Database) {
		if name.Name != r.Sequence {
			continue
		}
		s, e := h.registry.Lookup(ctx, name)
		switch {
		case e != nil:
		case isDeclared(s.Item().Definition, r):
			continue
		case !r.Set:
			e = h.feedNow(ctx, r.Database, s.OID(), usedUp, growth)
		default:
			var item sequencer.Item
			if _, item, e = h.registry.Find(ctx, name); e == nil && !isFence(item, r.Low, r.High) {
				continue
			}
			if e == nil {
				e = h.Release(ctx, r.Database, s.OID())
			}
		}
		switch {
		case e == nil:
			err = nil
		case err == nil, errors.Is(e, errNoShare), errors.Is(e, sequencer.ErrExhausted), errors.Is(e, sequencer.ErrUndefined):
		default:
			err = e
		}
	}
	return err
}

// isFence reports whether these are the bounds that the upstream's sequence has or had as a fence.
func isFence(item sequencer.Item, low, high int64) bool {
	for _, f := range []*sequencer.Range{item.Fence, item.NextFence} {
		if f != nil && min(f.First, f.Last) == low && max(f.First, f.Last) == high {
			return true
		}
	}
	return false
}

// feedNow gives the upstream's sequence a further block at once: for a caller whom nextvald does not see and who found the last
// one used up. nil: there is one, and the call may be made again. errNoShare, errFree; ErrExhausted; 55P03.
func (h *Handovers) feedNow(ctx context.Context, database string, oid uint32, feedAt int64, growth uint64) error {
	e, found, err := h.entryOf(ctx, database, oid)
	if err != nil || !found {
		return err
	}
	item, err := h.settled(ctx, e)
	if errors.Is(err, sequencer.ErrUndefined) {
		return nil
	}
	if err != nil {
		return err
	}
	if feedAt == usedUp {
		if left, err := h.isLeft(ctx, e, item); left || err != nil {
			return err
		}
	}
	size := uint64(leastFeed)
	if f := item.Fence; f != nil {
		used := magnitude(f.Last, f.First)/magnitude(item.Definition.Increment, 0) + 1
		size = min(max(size, growth*min(used, mostFeed)), mostFeed)
	}
	return h.feed(ctx, e, int64(size), lockTries, feedAt)
}

// isLeft reports whether a fence has values left, or is none.
func (h *Handovers) isLeft(ctx context.Context, e sequencer.Entry, item sequencer.Item) (left bool, err error) {
	err = h.controls.use(ctx, e.Name.Database, func(ctx context.Context, conn *pgx.Conn) error {
		all, err := readFound(ctx, conn, []*look{{entry: e}})
		there, ok := all[e.OID]
		has, fenced := confined(item, there.definition)
		left = !ok || !fenced || !hungry(item, has, there.last, there.called, usedUp)
		return err
	})
	return left, err
}

// RelieveSoon implements proxy.Native.
func (h *Handovers) RelieveSoon(r proxy.Refusal) {
	if f := h.feeder; f != nil {
		f.mu.Lock()
		f.refused[r] = time.Now().Add(time.Minute)
		f.mu.Unlock()
	}
}

// relieve does what somebody's statement waits for that is not run again by itself.
func (f *feeder) relieve(ctx context.Context) {
	f.mu.Lock()
	due := maps.Clone(f.refused)
	f.mu.Unlock()
	for r, until := range due {
		bounded, cancel := context.WithTimeout(ctx, feedTimeout)
		err := f.h.relieve(bounded, r, growthByHand)
		cancel()
		if err == nil || errors.Is(err, proxy.ErrPass) || time.Now().After(until) {
			f.mu.Lock()
			if f.refused[r] == until {
				delete(f.refused, r)
			}
			f.mu.Unlock()
		}
	}
}
