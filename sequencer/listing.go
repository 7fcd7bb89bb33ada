package sequencer

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sync/errgroup"
)

// readsAtOnce is how many items are read at the same time where each is a request of its own.
const readsAtOnce = 16

// maxListed bounds a Listing.
const maxListed = 200_000

// GetEach is Store.GetAll by single reads, for stores that know no better way.
func GetEach(ctx context.Context, incarnations []string, get func(context.Context, string) (Item, error)) (map[string]Item, error) {
	var (
		mu    sync.Mutex
		items = make(map[string]Item, len(incarnations))
	)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readsAtOnce)
	for _, incarnation := range incarnations {
		g.Go(func() error {
			item, err := get(ctx, incarnation)
			if errors.Is(err, ErrNotFound) {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			items[incarnation] = item
			return err
		})
	}
	return items, g.Wait()
}

// Listed is what the store has of a sequence.
type Listed struct {
	Entry Entry
	Item  Item
	State State
}

// Listing reads all sequences of a database with their state, in no order: what Sequence.Read tells of each. It costs a
// listing of names and a request of the store for every hundred or so. More than 200,000 are an error.
func (r *Registry) Listing(ctx context.Context, database string) ([]Listed, error) {
	entries, err := r.List(ctx, database)
	if err != nil {
		return nil, err
	}
	if len(entries) > maxListed {
		return nil, &Error{Code: codeLimit, Message: "too many sequences to list", Hint: "Ask for one by its OID or name."}
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.StoreTimeout)
	defer cancel()
	incarnations := make([]string, len(entries))
	readings := make(map[string]reading)
	for i, e := range entries {
		incarnations[i] = e.Incarnation
		if s := r.sequence(e.Incarnation); s != nil {
			if readings[e.Incarnation], err = s.read(ctx); err != nil {
				delete(readings, e.Incarnation) // it was dropped, or the registry is closed
			}
		}
	}
	items, err := again(ctx, r, func() (map[string]Item, error) { return r.store.GetAll(ctx, incarnations) })
	if err != nil {
		return nil, storeFailure("list the sequences", err)
	}
	list := make([]Listed, 0, len(entries))
	for _, e := range entries {
		item, ok := items[e.Incarnation]
		if !ok {
			continue // dropped meanwhile, or renamed: there is another entry
		}
		l := Listed{Entry: e, Item: item, State: item.Reads()}
		if from, ok := readings[e.Incarnation]; ok {
			state, current, err := from.state(item)
			if err == nil && !current {
				l.Item, state, err = from.sequence.Read(ctx)
			}
			if err == nil { // else the store contradicts what was known: what it says is shown
				l.State = state
			}
		}
		list = append(list, l)
	}
	return list, nil
}

// sequence is the one of an incarnation that this process has used, nil for any other.
func (r *Registry) sequence(incarnation string) *Sequence {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sequences[incarnation]
	if s == nil || s.gone.Load() {
		return nil
	}
	return s
}

// reading is what was known of a sequence before its item was read.
type reading struct {
	sequence *Sequence
	flights  uint64
	rev      int64
}

// read begins to read the sequence.
func (s *Sequence) read(ctx context.Context) (reading, error) {
	flights, err := s.landed(ctx)
	return reading{sequence: s, flights: flights, rev: s.revision()}, err
}

// state is the sequence's by an item that was read since. It is not current where a block was leased meanwhile: what was
// read is not comparable with what is held.
func (from reading) state(item Item) (state State, current bool, err error) {
	s := from.sequence
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.forward(item.Rev, from.rev) {
		return State{}, false, s.stopped
	}
	pos := item.Pos
	if rest, ok := s.rest(); ok && rest.reaches(item) {
		pos = rest.pos
	}
	item.Pos = pos
	return item.Reads(), s.flights == from.flights || s.item.Mode == Strict, nil
}
