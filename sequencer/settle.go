package sequencer

import (
	"context"
	"errors"
)

// The writes here end with a known outcome, or with ErrUnknownOutcome when the store could not be read back in time.

// attempts bounds how often a request is sent that fails or whose answer is lost.
const attempts = 4

// decided reports whether an error is the store's word on the matter rather than a failure.
func decided(err error) bool {
	var conflict *Conflict
	return err == nil || errors.As(err, &conflict) || errors.Is(err, ErrNotFound) || errors.Is(err, ErrExists)
}

// again repeats a request that may be repeated while the store fails.
func again[T any](ctx context.Context, r *Registry, request func() (T, error)) (T, error) {
	for n := 1; ; n++ {
		answer, err := request()
		if decided(err) || n == attempts || ctx.Err() != nil || !r.rest(r.cfg.pause(n)) {
			return answer, err
		}
	}
}

// get reads an item.
func (r *Registry) get(ctx context.Context, incarnation string) (Item, error) {
	return again(ctx, r, func() (Item, error) { return r.store.Get(ctx, incarnation) })
}

// nextOID gets an OID. One whose answer was lost is never used.
func (r *Registry) nextOID(ctx context.Context) (uint32, error) {
	return again(ctx, r, func() (uint32, error) { return r.store.NextOID(ctx) })
}

// settle runs write until its outcome is known: landed reads back whether a write whose answer was lost took place.
// ErrUnknownOutcome: it could not be told in time.
func (r *Registry) settle(ctx context.Context, write func(context.Context) error, landed func(context.Context) (bool, error)) error {
	var lost error
	for n := 1; ; n++ {
		err := write(ctx)
		switch {
		case errors.Is(err, ErrUnknownOutcome):
			lost = err
		case decided(err) && (err == nil || lost == nil):
			return err
		}
		if lost != nil {
			// A refusal may be the work of the write before it.
			done, readErr := landed(ctx)
			switch {
			case readErr == nil && done:
				return nil
			case readErr == nil && decided(err):
				return err
			}
		}
		if n == attempts || ctx.Err() != nil || !r.rest(r.cfg.pause(n)) {
			if lost != nil {
				return lost
			}
			return err
		}
		// It did not land, or not yet: the same conditional write is sent again, and lands at most once.
	}
}

// put writes an item.
func (r *Registry) put(ctx context.Context, item Item, ifRev int64) error {
	return r.settle(ctx,
		func(ctx context.Context) error { return r.store.Put(ctx, item, ifRev) },
		func(ctx context.Context) (bool, error) {
			stored, err := r.store.Get(ctx, item.Incarnation)
			if errors.Is(err, ErrNotFound) {
				return false, nil
			}
			if err == nil && stored.Version > item.Version {
				err = ErrUnknownOutcome // changed by somebody since
			}
			return stored.Changed == item.Changed, err
		})
}

// revoke begins a change and returns the item as it is then.
func (r *Registry) revoke(ctx context.Context, incarnation string, version int64) (item Item, err error) {
	changed := r.stamp()
	err = r.settle(ctx,
		func(ctx context.Context) (err error) {
			item, err = r.store.Revoke(ctx, incarnation, version, changed)
			return err
		},
		func(ctx context.Context) (_ bool, err error) {
			item, err = r.store.Get(ctx, incarnation)
			return item.Changed == changed, err
		})
	return item, err
}

// putName adds a name, unless it is there. ErrExists: it points to another incarnation that lives. One that points to
// nothing, which a DROP or a RENAME that died may leave, is replaced.
func (r *Registry) putName(ctx context.Context, e Entry) error {
	write := func(ctx context.Context) error { return r.store.PutName(ctx, e) }
	landed := func(ctx context.Context) (bool, error) {
		stored, err := r.store.Resolve(ctx, e.Name)
		if errors.Is(err, ErrNotFound) {
			return false, nil
		}
		return stored.Incarnation == e.Incarnation, err
	}
	err := r.settle(ctx, write, landed)
	if !errors.Is(err, ErrExists) {
		return err
	}
	stored, readErr := r.store.Resolve(ctx, e.Name)
	switch {
	case readErr != nil:
		return err
	case stored.Incarnation == e.Incarnation:
		return nil // the work of a RENAME that died
	}
	if _, readErr := r.store.Get(ctx, stored.Incarnation); !errors.Is(readErr, ErrNotFound) {
		return err
	}
	if err := r.deleteName(ctx, stored); err != nil {
		return err
	}
	return r.settle(ctx, write, landed)
}

// deleteName removes a name that points to e's incarnation, if it does.
func (r *Registry) deleteName(ctx context.Context, e Entry) error {
	err := r.settle(ctx,
		func(ctx context.Context) error { return r.store.DeleteName(ctx, e.Name, e.Incarnation) },
		func(ctx context.Context) (bool, error) {
			stored, err := r.store.Resolve(ctx, e.Name)
			if errors.Is(err, ErrNotFound) {
				return true, nil
			}
			return err == nil && stored.Incarnation != e.Incarnation, err
		})
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// deleteItem removes an item as it is known.
func (r *Registry) deleteItem(ctx context.Context, item Item) error {
	err := r.settle(ctx,
		func(ctx context.Context) error { return r.store.Delete(ctx, item.Incarnation, item.Rev) },
		func(ctx context.Context) (bool, error) {
			_, err := r.store.Get(ctx, item.Incarnation)
			if errors.Is(err, ErrNotFound) {
				return true, nil
			}
			return false, err
		})
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}
