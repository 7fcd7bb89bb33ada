package boltstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"

	"github.com/nextvald/nextvald/sequencer"
)

const (
	// defaultMultiple is how many of the blocks that are asked for a tier leases at once.
	defaultMultiple = 100
	// shareOfRange is the part of what is left in a sequence's range that a tier leases at once at most, so that it does
	// not take from others what is scarce.
	shareOfRange = 100
	// maxLease bounds what a tier leases at once, in values.
	maxLease = 1 << 40
	// ahead is the part of a lease that is left when the next one is made.
	ahead = 4
	// leaseTimeout bounds a request for a lease, and the pause after one that failed grows from the first to the last.
	leaseTimeout           = 5 * time.Second
	firstPause, finalPause = 100 * time.Millisecond, 5 * time.Second
	// landingTime is how long a reader waits for a lease that may explain what it read.
	landingTime = 200 * time.Millisecond
)

// TierConfig tunes a tier. The zero value of each field means its default.
type TierConfig struct {
	// Logger gets what happens in the background. Default: slog.Default().
	Logger *slog.Logger
	// Multiple is how many of the blocks that a registry asks for are leased at once. 1 leases no more than is asked for.
	// Default: 100.
	Multiple int64
	// WitnessFolder is where the tier keeps a witness of what it wrote: by it, a process that was killed finds its blocks
	// again. The folder must not survive a restart of the machine, nor be part of what brings back an older copy of the
	// file. Without one, the blocks of a process that was killed are a gap. Default: /dev/shm, or "-" for none.
	WitnessFolder string
}

// Tier is a sequencer.Store that keeps large blocks, leased from another store, in a file, and serves the leases of one
// registry from them. A process that is killed loses what the registry had in its memory, which is little, and the store
// beneath is asked rarely. While it is down the blocks go on.
//
// Cached sequences without CACHE n are served so. All else is passed to the store beneath.
//
// A value is served once, whatever becomes of the file. Before any block of it is used, the tier makes sure that it is of
// the item's present version; and that the file is the one that was used last, neither a copy of it nor an older state: by a
// mark in the store, which every opening changes on condition of what the file says, and, if the file was not closed, by its
// witness. A file that is not discards its blocks, which is a gap.
//
// What changes an item on the condition that nobody leased, as ALTER SEQUENCE does, is right with a tier as without: Get
// shows the position as if the tier's blocks, where they are the last that were leased, had not been, and Put drops them.
// That holds for one registry: two must not share a tier. Others use the store beneath, as another process does.
type Tier struct {
	// Store is the one beneath.
	sequencer.Store
	file     *file
	log      *slog.Logger
	multiple int64

	// self is what the file says of itself, and writes counts the transactions. Both belong to who opens and closes, and to
	// the goroutine that commits.
	self    identity
	writes  uint64
	witness *witness // nil: there is none

	// term counts the times that the registry became a member. What was compared with the store in another term may be of
	// an old version.
	term atomic.Uint64

	ctx    context.Context // of what runs in the background
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	holdings map[string]*holding // by incarnation
}

var _ sequencer.LocalStore = (*Tier)(nil)

// holding is what a tier has of a sequence. Whoever has the turn owns it.
type holding struct {
	turn   chan struct{} // holds a token while nobody has the turn
	record record        // as it is in the file; empty when there is none
	// compared is the term in which the record was found to be of the item's version, 0 for none.
	compared uint64
	// known is the item as the store told it last: a hint, for the next lease.
	known sequencer.Item
	// flight is the lease that is on its way, or nil.
	flight *flight
	// dry: nothing was left to lease. Until the blocks are used up nothing is leased ahead.
	dry bool
	// setBack is set while the store contradicts what is known of the item; a change that is written clears it.
	setBack  error
	failures int       // in a row
	notUntil time.Time // nothing is leased ahead
}

// flight is a lease on its way to the store beneath.
type flight struct {
	version int64         // of the item
	done    chan struct{} // closed when err is set
	err     error
}

// Local implements sequencer.LocalStore.
func (t *Tier) Local() {}

// Lease implements sequencer.Leaser.
func (t *Tier) Lease(ctx context.Context, item sequencer.Item, count int64) (sequencer.Lease, error) {
	if item.Mode != sequencer.Cached || item.Definition.Cache > 1 || t.multiple == 1 {
		return t.Store.Lease(ctx, item, count)
	}
	h := t.holding(item.Incarnation)
	if err := h.take(ctx); err != nil {
		return sequencer.Lease{}, err
	}
	defer h.give()
	for own := false; ; {
		if err := t.compare(ctx, h, item); err != nil {
			return sequencer.Lease{}, err
		}
		if h.record.left() > 0 {
			l, err := t.serve(ctx, h, item.Incarnation, count)
			if err == nil {
				t.leaseAhead(h, item, count)
			}
			return l, err
		}
		f := h.flight
		if f == nil && own {
			return sequencer.Lease{}, errors.New("a block that was leased is of an old version already")
		}
		if f == nil {
			f, own = t.launch(h, item, count), true
		}
		if err := h.await(ctx, f); err != nil {
			return sequencer.Lease{}, err
		}
		// What failed before this caller came may be out of date.
		if own && f.err != nil {
			return sequencer.Lease{}, f.err
		}
	}
}

// compare makes sure that the blocks in hand are of the item's version. The caller has the turn, but for a while.
func (t *Tier) compare(ctx context.Context, h *holding, item sequencer.Item) error {
	for {
		r, term := h.record, t.term.Load()
		switch {
		case h.setBack != nil:
			return h.setBack
		case r.Version == 0, r.Version == item.Version && h.compared == term:
			return nil
		case r.Version < item.Version:
			return t.drop(ctx, h, item.Incarnation)
		}
		h.give()
		stored, err := t.Store.Get(ctx, item.Incarnation)
		h.retake()
		if h.record.Version != r.Version || h.record.rev() != r.rev() {
			continue // it was of no use
		}
		switch {
		case errors.Is(err, sequencer.ErrNotFound):
			return t.ended(ctx, h, item.Incarnation, err)
		case err != nil:
			return fmt.Errorf("the blocks in the tier's file cannot be compared with the store: %w", err)
		}
		h.known = stored.Clone()
		if err := h.forward(stored.Rev+1, r.rev()); err != nil {
			return err // and the record stays, as evidence
		}
		if stored.Version != r.Version || stored.State != sequencer.Active || stored.Source != sequencer.FromStore {
			if err := t.drop(ctx, h, item.Incarnation); err != nil {
				return err
			}
		}
		if stored.Version != item.Version {
			return &sequencer.Conflict{Item: h.shown(stored)}
		}
		h.compared = term
		return nil
	}
}

// serve takes values from the blocks in hand, and has that on disk before it returns.
func (t *Tier) serve(ctx context.Context, h *holding, incarnation string, count int64) (sequencer.Lease, error) {
	r := h.record.clone()
	l := r.take(count)
	if err := t.write(ctx, h, incarnation, r); err != nil {
		return sequencer.Lease{}, err
	}
	return l, nil
}

// forward compares the rev of a write with what was known before it. One that does not follow that is of a store that was
// set back: what was leased since would be leased again.
func (h *holding) forward(rev, known int64) error {
	if rev <= known {
		h.setBack = fmt.Errorf("%w: it is at rev %d and was at %d", sequencer.ErrSetBack, rev-1, known)
		return h.setBack
	}
	return nil
}

// size is how many values to lease at once for a registry that asks for count.
func (t *Tier) size(h *holding, item sequencer.Item, count int64) int64 {
	n := int64(maxLease)
	if count < maxLease/t.multiple {
		n = count * t.multiple
	}
	known := h.hint(item)
	known.State, known.Source = sequencer.Active, sequencer.FromStore
	if all, err := known.Grant(known.Version, math.MaxInt64); err == nil {
		n = min(n, all.Count/shareOfRange)
	}
	if most := item.Definition.Policy.MaxLease; most > 0 {
		n = min(n, most)
	}
	return max(n, count)
}

// leaseAhead leases the next large block in the background when little is left, unless that failed of late.
func (t *Tier) leaseAhead(h *holding, item sequencer.Item, count int64) {
	if h.flight != nil || h.dry || time.Now().Before(h.notUntil) {
		return
	}
	if size := t.size(h, item, count); size > count && h.record.left() < size/ahead {
		t.launch(h, item, count)
	}
}

// launch starts a lease of a large block. The caller has the turn.
func (t *Tier) launch(h *holding, item sequencer.Item, count int64) *flight {
	f := &flight{version: item.Version, done: make(chan struct{})}
	known, size, term := h.hint(item), t.size(h, item, count), t.term.Load()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		f.err = errClosed
		close(f.done)
		return f
	}
	h.flight = f
	t.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(t.ctx, leaseTimeout)
		defer cancel()
		l, err := t.Store.Lease(ctx, known, size)
		h.retake()
		defer h.give()
		h.flight = nil
		if err == nil {
			err = t.install(h, known, l, term)
			known.Apply(l)
		}
		h.learn(known, err)
		f.err = err
		close(f.done)
	})
	return f
}

// install puts a block in the file.
func (t *Tier) install(h *holding, item sequencer.Item, l sequencer.Lease, term uint64) error {
	if l.Held {
		return errors.New("a tier cannot be over a store that has large blocks itself")
	}
	if err := h.forward(l.Rev, max(item.Rev, h.record.rev())); err != nil {
		return err
	}
	r := h.record.clone()
	switch {
	case r.Version > item.Version:
		return nil // it was changed meanwhile, and the block is a gap
	case r.Version < item.Version:
		r = record{Version: item.Version, Increment: item.Definition.Increment}
		h.compared = term
	case h.compared != term:
		h.compared = 0
	}
	r.Blocks = append(r.Blocks, block{Next: sequencer.At(l.First), Left: l.Count, Rev: l.Rev})
	return t.write(context.WithoutCancel(t.ctx), h, item.Incarnation, r)
}

// learn notes what an attempt to lease says of the item. known is the item after it when err is nil.
func (h *holding) learn(known sequencer.Item, err error) {
	var conflict *sequencer.Conflict
	if errors.As(err, &conflict) {
		known = conflict.Item
		h.compared = 0 // should the blocks be of another version
	}
	if err == nil || conflict != nil {
		h.known = known
		h.failures, h.dry = 0, conflict != nil
		return
	}
	h.failures++
	pause := min(firstPause<<min(h.failures-1, 10), finalPause)
	h.notUntil = time.Now().Add(pause/2 + rand.N(pause/2))
}

// hint is the better known of the item as the caller knows it and as the store told it.
func (h *holding) hint(item sequencer.Item) sequencer.Item {
	if h.known.Incarnation == item.Incarnation && h.known.Version == item.Version && h.known.Rev >= item.Rev {
		return h.known.Clone()
	}
	return item.Clone()
}

// GiveBack implements sequencer.Leaser. What came from the file goes back into it.
func (t *Tier) GiveBack(ctx context.Context, g sequencer.GiveBack) error {
	h := t.held(g.Incarnation)
	if h == nil {
		return t.Store.GiveBack(ctx, g)
	}
	if err := h.take(ctx); err != nil {
		return err
	}
	defer h.give()
	r := h.record.clone()
	switch {
	case g.Rev > r.rev(): // the registry leased it past the file
		return t.Store.GiveBack(ctx, g)
	case !r.put(g):
		return &sequencer.Conflict{Item: h.known}
	}
	return t.write(ctx, h, g.Incarnation, r)
}

// Get implements sequencer.Store. The position is the one that the store would have had the tier leased no more than it
// served, where nobody else leased since.
func (t *Tier) Get(ctx context.Context, incarnation string) (sequencer.Item, error) {
	for waited := false; ; waited = true {
		item, err := t.Store.Get(ctx, incarnation)
		h := t.held(incarnation)
		if h == nil || err != nil && !errors.Is(err, sequencer.ErrNotFound) {
			return item, err
		}
		if err := h.take(ctx); err != nil {
			return sequencer.Item{}, err
		}
		if err != nil {
			defer h.give()
			return sequencer.Item{}, t.ended(ctx, h, incarnation, err)
		}
		shown := h.shown(item)
		if f := h.flight; f != nil && !waited && f.version == item.Version && item.Rev > h.record.rev() {
			// Perhaps its block is what lies between.
			landing, cancel := context.WithTimeout(ctx, landingTime)
			_ = h.await(landing, f)
			cancel()
			h.give()
			continue
		}
		h.give()
		return shown, nil
	}
}

// GetAll implements sequencer.Store. What the tier holds nothing of is read from the store behind it together.
func (t *Tier) GetAll(ctx context.Context, incarnations []string) (map[string]sequencer.Item, error) {
	var held, others []string
	for _, incarnation := range incarnations {
		if t.held(incarnation) != nil {
			held = append(held, incarnation)
		} else {
			others = append(others, incarnation)
		}
	}
	items, err := t.Store.GetAll(ctx, others)
	if err != nil {
		return nil, err
	}
	more, err := sequencer.GetEach(ctx, held, t.Get)
	maps.Copy(items, more)
	return items, err
}

// ended removes what is held of a sequence that the store does not know, by cause. The caller has the turn.
func (t *Tier) ended(ctx context.Context, h *holding, incarnation string, cause error) error {
	if err := t.drop(ctx, h, incarnation); err != nil {
		return errors.Join(cause, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.holdings, incarnation)
	return cause
}

// Put implements sequencer.Store. It drops the tier's blocks first, since the new position may be before them, unless it
// must fail because of the tier's own lease.
func (t *Tier) Put(ctx context.Context, item sequencer.Item, ifRev int64) error {
	h := t.held(item.Incarnation)
	if h == nil {
		return t.Store.Put(ctx, item, ifRev)
	}
	if err := h.takeGrounded(ctx); err != nil {
		return err
	}
	if h.record.rev() > ifRev {
		h.give()
		stored, err := t.Get(ctx, item.Incarnation)
		if err != nil {
			return err
		}
		if stored.Rev != ifRev {
			return &sequencer.Conflict{Item: stored}
		}
		// The store was set back, and this may repair it.
		h.retake()
	}
	err := t.drop(ctx, h, item.Incarnation)
	h.known, h.setBack = sequencer.Item{}, nil
	h.give()
	if err != nil {
		return err
	}
	return t.Store.Put(ctx, item, ifRev)
}

// Delete implements sequencer.Store.
func (t *Tier) Delete(ctx context.Context, incarnation string, ifRev int64) error {
	h := t.held(incarnation)
	if h == nil {
		return t.Store.Delete(ctx, incarnation, ifRev)
	}
	if err := h.takeGrounded(ctx); err != nil {
		return err
	}
	err := t.drop(ctx, h, incarnation)
	h.give()
	if err != nil {
		return err
	}
	return t.Store.Delete(ctx, incarnation, ifRev)
}

// Revoke implements sequencer.Store. The position is shown as Get shows it.
func (t *Tier) Revoke(ctx context.Context, incarnation string, version int64, changed string) (sequencer.Item, error) {
	h := t.held(incarnation)
	if h == nil {
		return t.Store.Revoke(ctx, incarnation, version, changed)
	}
	if err := h.takeGrounded(ctx); err != nil {
		return sequencer.Item{}, err
	}
	h.compared = 0 // whatever comes of it
	h.give()
	item, err := t.Store.Revoke(ctx, incarnation, version, changed)
	if err != nil {
		return sequencer.Item{}, err
	}
	h.retake()
	defer h.give()
	return h.shown(item), nil
}

// shown is an item with its position moved back over the blocks in hand that end there, because nobody leased since. It may
// get to the same place by another way in a later version, or round a CYCLE.
func (h *holding) shown(item sequencer.Item) sequencer.Item {
	before := item
	if item.State == sequencer.Revoking {
		before.Version, before.Rev = item.Version-1, item.Rev-1 // as it was before the change began
	}
	if h.record.Version == before.Version && (!item.Definition.Cycle || h.record.rev() == before.Rev) {
		item.Pos = h.record.before(item.Pos)
	}
	return item
}

// Members implements sequencer.Store. The tier's own mark is not shown.
func (t *Tier) Members(ctx context.Context) ([]sequencer.Member, error) {
	all, err := t.Store.Members(ctx)
	var members []sequencer.Member
	for _, m := range all {
		if m.ID != t.self.mark() {
			members = append(members, m)
		}
	}
	return members, err
}

// PutMember implements sequencer.Store. A process that becomes a member was none before, and nobody waited for its word:
// what it holds is compared with the store again.
func (t *Tier) PutMember(ctx context.Context, m sequencer.Member, ifToken string) error {
	err := t.Store.PutMember(ctx, m, ifToken)
	if ifToken == "" {
		t.term.Add(1)
	}
	return err
}

// Close ends what runs in the background, and closes the file and the store beneath. The blocks stay in the file. Closing
// again does nothing.
func (t *Tier) Close() error {
	t.mu.Lock()
	closed := t.closed
	t.closed = true
	t.mu.Unlock()
	if closed {
		return nil
	}
	t.cancel()
	t.tasks.Wait()
	return errors.Join(t.shut(), t.file.Close(), t.Store.Close())
}

// held returns what the tier has of a sequence, or nil. Whatever comes to be leased at the same time raises the item's rev,
// so that a write on condition of that does not go unseen.
func (t *Tier) held(incarnation string) *holding {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.holdings[incarnation]
}

// holding returns what the tier has of a sequence, and be it nothing.
func (t *Tier) holding(incarnation string) *holding {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.holdings[incarnation]
	if h == nil {
		h = newHolding(record{})
		t.holdings[incarnation] = h
	}
	return h
}

func newHolding(r record) *holding {
	h := &holding{turn: make(chan struct{}, 1), record: r}
	h.give()
	return h
}

// take waits for the turn, until ctx is done.
func (h *holding) take(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-h.turn:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// takeGrounded waits for the turn while no lease is on its way.
func (h *holding) takeGrounded(ctx context.Context) error {
	if err := h.take(ctx); err != nil {
		return err
	}
	for h.flight != nil {
		if err := h.await(ctx, h.flight); err != nil {
			h.give()
			return err
		}
	}
	return nil
}

func (h *holding) give() { h.turn <- struct{}{} }

// retake waits for the turn, which nobody keeps for longer than a write to the file takes.
func (h *holding) retake() { <-h.turn }

// await lets others have the turn until a flight has ended. When ctx is done before, it has the turn nevertheless.
func (h *holding) await(ctx context.Context, f *flight) error {
	h.give()
	var err error
	select {
	case <-f.done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	h.retake()
	return err
}

// drop removes a record from the file. As long as it cannot, the record stays, and what would move the position over it
// must not be done.
func (t *Tier) drop(ctx context.Context, h *holding, incarnation string) error {
	if h.record.Version == 0 {
		return nil
	}
	err := t.file.update(ctx, func(b *bbolt.Bucket) error { return broken(b.Delete(recordKey(incarnation))) })
	if err == nil {
		h.record, h.compared, h.dry = record{}, 0, false
	}
	return err
}

// write puts a record into the file. When the outcome is unknown what it took is a gap.
func (t *Tier) write(ctx context.Context, h *holding, incarnation string, r record) error {
	value, err := encodeRecord(r)
	if err != nil {
		return err
	}
	err = t.file.update(ctx, func(b *bbolt.Bucket) error { return broken(b.Put(recordKey(incarnation), value)) })
	if err == nil || errors.Is(err, sequencer.ErrUnknownOutcome) {
		h.record = r
	}
	return err
}
