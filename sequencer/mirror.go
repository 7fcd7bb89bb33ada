package sequencer

import (
	"context"
	"errors"
	"fmt"
)

// A mirrored sequence exists in the upstream too. While its source is the store, the upstream's own one is fenced: confined to
// a block that leases skip. Whoever hands it over between the two (package native) holds the lock of the upstream's
// sequence, which only one connection can, and keeps to this, so that a process may die between any two steps:
//
//   - A transaction that gives the upstream's sequence other bounds writes the item first, while it has the lock, and commits
//     only once the store has confirmed that.
//   - An item that is moving is written only while the lock is held, by its rev as it was read since then, and by what the
//     bounds are then; or by whoever committed the bounds, by the rev that it wrote before.
//
// So a write that was on its way when the lock was lost is refused, and the bounds tell how a handover ended whose author died.

// Mirror describes a sequence of the upstream that is to be handed out by the store.
type Mirror struct {
	Definition Definition
	// Last and Called are where it stands.
	Last   int64
	Called bool
	// DBOID and RelOID are those of its database and its own.
	DBOID, RelOID uint32
}

// sharing is the part of a sequence's range that callers whom nextvald does not see get at first, and how much they get at
// most; and how far ahead of the position it begins. Of a range where that is less than two values they get none.
const (
	sharing    = 100
	firstFence = 1000
)

// firstFence is the block that the upstream's sequence is confined to at first. It lies ahead, so that the first values
// are the proxy's. Nil: the range is too small to share.
func (it Item) firstFence() *Range {
	room := it.Definition.room(it.Pos)
	n := it.Share(firstFence)
	if n == 0 {
		return nil
	}
	ahead := min(firstFence, room/sharing)
	first, _ := it.Pos.Plus(Product(ahead, it.Definition.Increment)).Value()
	return &Range{First: first, Last: first + (n-1)*it.Definition.Increment}
}

// Adopt adds a sequence of the upstream as moving, under the OID that it has there, and returns its item: the definition,
// the position and the fence. Until it is settled no value is leased. ErrDuplicate: the name is another sequence's.
func (r *Registry) Adopt(ctx context.Context, name Name, m Mirror) (Item, error) {
	if err := m.Definition.validate(); err != nil {
		return Item{}, err
	}
	if err := r.running(); err != nil {
		return Item{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.StoreTimeout)
	defer cancel()
	now := r.stamp()
	item := Item{
		Incarnation: r.incarnation(), Version: 1, State: Active, Source: Moving, Kind: Mirrored,
		Mode: r.policy(name, m.Definition).Mode, Definition: m.Definition.stored(),
		OID: m.RelOID, RelOID: m.RelOID, DBOID: m.DBOID, Created: timeOf(now), Changed: now,
	}
	item.place(cursor{last: m.Last, called: m.Called})
	item.Fence = item.firstFence()
	if err := r.put(ctx, item, 0); err != nil {
		return Item{}, storeFailure("adopt the sequence", err)
	}
	item.Rev = 1
	entry := Entry{Name: name, Incarnation: item.Incarnation, OID: item.OID}
	if err := r.putName(ctx, entry); err != nil {
		// An item without a name is litter, and harmless.
		if dropErr := r.store.Delete(ctx, item.Incarnation, item.Rev); dropErr != nil {
			r.cfg.Logger.Warn("an item without a name stays in the store", "incarnation", item.Incarnation, "error", dropErr)
		}
		if errors.Is(err, ErrExists) {
			return Item{}, duplicate(name)
		}
		return Item{}, storeFailure("adopt the sequence", err)
	}
	if _, err := r.bind(entry, item, r.advance()); err != nil {
		return Item{}, err
	}
	r.announce(ctx, Announcement{Names: true})
	return item, nil
}

// Item reads the item of an entry. ErrUndefined: the sequence is gone.
func (r *Registry) Item(ctx context.Context, e Entry) (Item, error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.StoreTimeout)
	defer cancel()
	item, err := r.get(ctx, e.Incarnation)
	if errors.Is(err, ErrNotFound) {
		return Item{}, undefined(e.Name)
	}
	if err != nil {
		return Item{}, storeFailure("read the sequence", err)
	}
	return item, nil
}

// Find reads a name and its item from the store. ErrUndefined.
func (r *Registry) Find(ctx context.Context, name Name) (Entry, Item, error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.StoreTimeout)
	defer cancel()
	entry, item, err := r.resolve(ctx, name)
	if errors.Is(err, ErrNotFound) {
		return Entry{}, Item{}, undefined(name)
	}
	if err != nil {
		return Entry{}, Item{}, storeFailure("look up the sequence", err)
	}
	return entry, item, nil
}

// Settle gives a moving item a source, FromStore or Moving still, and returns it as it is then. A *Conflict, wrapped:
// somebody wrote it since it was read.
func (r *Registry) Settle(ctx context.Context, e Entry, item Item, source Source) (Item, error) {
	item.Source = source
	return r.rewrite(ctx, e, item)
}

// PlanFence notes the block that the upstream's sequence is about to be confined to: values that were leased by item's
// version, and that nobody else has. Errors as Settle's.
func (r *Registry) PlanFence(ctx context.Context, e Entry, item Item, block Range) (Item, error) {
	item = item.Clone()
	item.NextFence = &block
	return r.rewrite(ctx, e, item)
}

// Fenced notes that the upstream's sequence is confined to the block that PlanFence named, or that it will not be. Errors as
// Settle's.
func (r *Registry) Fenced(ctx context.Context, e Entry, item Item, confined bool) (Item, error) {
	item = item.Clone()
	if confined {
		// Only what was set apart without a lease may lie ahead of the position: the first fence, which is left first, and what
		// a move of the position went back over, which Set put into Holes. Any other block was leased in this version.
		if item.Fence != nil && len(item.Holes) == 0 {
			item.Holes = []Range{*item.Fence}
		}
		item.Fence = item.NextFence
	}
	item.NextFence = nil
	return r.rewrite(ctx, e, item)
}

// Mirrored returns the names of the sequences of a loaded database that the upstream has too, as they were within the last
// second.
func (r *Registry) Mirrored(database string) []Name {
	r.mu.Lock()
	d := r.databases[database]
	r.mu.Unlock()
	if d == nil {
		return nil
	}
	var names []Name
	for oid, name := range d.oids.all() {
		if oid < MaxOID/2 {
			names = append(names, name)
		}
	}
	return names
}

// Databases returns the names of the databases that were loaded.
func (r *Registry) Databases() []string {
	var names []string
	for _, d := range r.loadedDatabases() {
		names = append(names, d.name)
	}
	return names
}

// Item returns what this process knows of the sequence's item, which is what others wrote by a second ago but for its position.
func (s *Sequence) Item() Item {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.item.Clone()
}

// Share is how many values of what is left of a sequence's range the upstream's may be given at once, of those wanted: 0 where
// the range is too small to share.
func (it Item) Share(wanted int64) int64 {
	n := min(wanted, it.Definition.room(it.Pos)/sharing)
	if n < 2 {
		return 0
	}
	return n
}

// Halt ends the service of a mirrored sequence in this process, whose like in the upstream somebody set free: both would hand
// out the same values. It goes on when somebody moves it or hands it over.
func (r *Registry) Halt(e Entry) {
	r.mu.Lock()
	s := r.sequences[e.Incarnation]
	r.mu.Unlock()
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over == nil && s.stopped == nil && s.item.Source == FromStore {
		s.halt(&Error{
			Code:    codeState,
			Message: fmt.Sprintf("sequence %q is no longer confined in the upstream", bare(e.Name.Name)),
			Detail:  "Its bounds were changed past nextvald. It and the store would hand out the same values.",
			Hint:    "Hand it over to the upstream with: nextvald release",
		})
	}
}

// Reserve sets a block of a virtual sequence apart for the like of it that the upstream is about to get, and returns the item
// with the block in Holes: the last one; none where the range is too small to share. A *Conflict, wrapped: somebody leased
// meanwhile, and it may be tried again.
func (r *Registry) Reserve(ctx context.Context, e Entry, item Item) (Item, error) {
	item = item.Clone()
	if item.Source != FromStore || item.State != Active || item.Kind != Virtual {
		return Item{}, moving(e.Name)
	}
	if block := item.firstFence(); block != nil {
		// It lies ahead of the position, so nobody may lease who does not know of it.
		item.Version++
		item.Holes = append(item.Holes, *block)
	}
	return r.rewrite(ctx, e, item)
}

// Reflect makes a virtual sequence a mirrored one: the upstream has its like now, confined to a block of its Holes, or to
// nothing. Errors as Reserve's.
func (r *Registry) Reflect(ctx context.Context, e Entry, item Item, dbOID, relOID uint32, block *Range) (Item, error) {
	item = item.Clone()
	item.Kind, item.DBOID, item.RelOID, item.OID, item.Fence = Mirrored, dbOID, relOID, relOID, clone(block)
	item, err := r.rewrite(ctx, e, item)
	if err != nil {
		return Item{}, err
	}
	// The entry has the OID too. Another name has the sequence meanwhile, which whoever follows the upstream's names would
	// set right.
	ctx, cancel := context.WithTimeout(ctx, r.cfg.StoreTimeout)
	defer cancel()
	entry, meanwhile := e, e
	entry.OID, meanwhile.OID = relOID, relOID
	meanwhile.Name.Name = fmt.Sprintf("%s~%d", e.Name.Name, relOID)
	for _, step := range []func() error{
		func() error { return r.putName(ctx, meanwhile) },
		func() error { return r.deleteName(ctx, e) },
		func() error { return r.putName(ctx, entry) },
		func() error { return r.deleteName(ctx, meanwhile) },
	} {
		if err := step(); err != nil {
			return Item{}, storeFailure("adopt the sequence", err)
		}
	}
	_, err = r.bind(entry, item, r.advance())
	r.announce(ctx, Announcement{Names: true})
	return item, err
}

// rewrite writes an item of which nothing may have changed since it was read.
func (r *Registry) rewrite(ctx context.Context, e Entry, item Item) (Item, error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.StoreTimeout)
	defer cancel()
	if item.State != Active {
		return Item{}, moving(e.Name) // its author would find the item written by somebody else, and leave it so
	}
	item.Changed = r.stamp()
	if err := r.put(ctx, item, item.Rev); err != nil {
		if errors.Is(err, ErrNotFound) {
			return Item{}, undefined(e.Name)
		}
		return Item{}, storeFailure("hand over the sequence", err)
	}
	item.Rev++
	r.mu.Lock()
	s := r.sequences[item.Incarnation]
	r.mu.Unlock()
	if s != nil {
		s.mu.Lock()
		s.know(item)
		s.mu.Unlock()
	}
	r.announce(ctx, Announcement{Incarnation: item.Incarnation})
	return item, nil
}

// Freeze takes a sequence from the store, to hand it over to the upstream: it becomes moving, and no value is leased. All
// members drop their blocks before; what this process holds is not lost. It returns the item as it is then, also when it is
// moving already, with ErrMoving. A member that does not confirm makes it fail, as Sequence.Set.
func (r *Registry) Freeze(ctx context.Context, e Entry) (Item, error) {
	r.mu.Lock()
	s := r.sequences[e.Incarnation]
	r.mu.Unlock()
	if s == nil || s.gone.Load() {
		item, err := r.Item(ctx, e)
		if err != nil {
			return Item{}, err
		}
		if s, err = r.bind(e, item, r.now()); err != nil {
			return Item{}, err
		}
	}
	return s.freezeForUpstream(ctx)
}

func (s *Sequence) freezeForUpstream(ctx context.Context) (Item, error) {
	reading, cancel := context.WithTimeout(ctx, s.r.cfg.StoreTimeout)
	defer cancel()
	if err := s.freeze(reading); err != nil {
		return Item{}, err
	}
	defer s.thaw()
	known := s.revision()
	item, err := s.r.get(reading, s.incarnation)
	for err == nil && item.State == Revoking {
		item, err = s.awaitOther(reading, item)
	}
	if err != nil {
		return Item{}, s.failed("hand over the sequence", err)
	}
	if err := s.mayChange(item, known); err != nil {
		return Item{}, err
	}
	if item.Source != FromStore {
		return item, moving(s.Name())
	}
	var frozen Item
	err = s.revoke(ctx, reading, item.Version, func(begun Item) (func(context.Context) error, bool, error) {
		next, _, err := s.edited(begun, unbegun(begun), func(item *Item, at cursor) error {
			item.Source = Moving
			item.place(at)
			return nil
		})
		return func(ctx context.Context) error {
			err := s.r.put(ctx, next, begun.Rev)
			if err == nil {
				next.Rev = begun.Rev + 1
				s.learn(next)
				frozen = next
			}
			return err
		}, false, err
	})
	return frozen, err
}

// Remove ends the life of a moving item that the upstream hands out from now on. Errors as Settle's; one that is gone is
// none.
func (r *Registry) Remove(ctx context.Context, e Entry, item Item) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.StoreTimeout)
	defer cancel()
	if err := r.deleteItem(ctx, item); err != nil {
		return storeFailure("hand over the sequence", err)
	}
	r.mu.Lock()
	s := r.sequences[e.Incarnation]
	r.mu.Unlock()
	if s != nil {
		_ = s.dropped()
	}
	r.unbind(e.Name)
	// The sequence is gone already; a name of nothing, should this fail, is as good as none.
	err := r.deleteName(ctx, e)
	r.announce(ctx, Announcement{Names: true, Incarnation: e.Incarnation})
	if err != nil {
		r.cfg.Logger.Warn("the name of a sequence that was handed over stays in the store", "sequence", e.Name.String(), "error", err)
	}
	return nil
}

// Resume is where the upstream's sequence goes on that takes over from the store: past everything that was handed out, and
// no further than that. within is the block of the item's that it is confined to, nil for none, and last and called say
// where it stands in that. A block that nobody used does not count.
func (it Item) Resume(within *Range, last int64, called bool) (int64, bool) {
	at := it.cursor(it.Pos)
	pass := func(value int64) {
		// Where the position is past the value, it is past it.
		if next := At(value).Plus(At(it.Definition.Increment)); it.Definition.beyond(next, it.Pos) {
			it.Pos = next
			at = cursor{last: value, called: true}
		}
	}
	used := it.Holes
	if within != nil {
		if called || last != within.First {
			pass(last)
		}
		if it.NextFence != nil && *within == *it.NextFence && it.Fence != nil && *it.Fence != *within {
			used = append(used[:len(used):len(used)], *it.Fence)
		}
	}
	for _, r := range used {
		if within == nil || r != *within {
			pass(r.Last)
		}
	}
	return at.last, at.called
}
