package native

import (
	"context"
	"errors"
	"fmt"

	"github.com/nextvald/nextvald/sequencer"
)

// Release hands a sequence back to the upstream, with the definition that was declared, past everything that was handed out.
// It is no error when the store does not have it. Errors: proxy.ErrNotAllowed; 55P03 when a transaction that uses it does not
// end; 58030 when a member does not confirm that it dropped its values. After an error it is the store's still, or becomes so
// again within seconds.
func (h *Handovers) Release(ctx context.Context, database string, oid uint32) error {
	e, found, err := h.entryOf(ctx, database, oid)
	if err != nil || !found {
		return err
	}
	_, err = h.release(ctx, e)
	if errors.Is(err, sequencer.ErrUndefined) {
		return nil
	}
	return err
}

// otherHandovers is how many handovers of others a release waits for.
const otherHandovers = 5

// position is where a sequence stands.
type position struct {
	last   int64
	called bool
}

// release hands a sequence back, and returns where it stands then.
//
// In the order of the steps: the item becomes moving, after every member dropped its values; with the lock in hand, it is
// written again; what was declared is committed; the item is removed.
func (h *Handovers) release(ctx context.Context, e sequencer.Entry) (to position, err error) {
	item, err := h.registry.Freeze(ctx, e)
	for n := 0; errors.Is(err, sequencer.ErrMoving) && n < otherHandovers; n++ {
		if _, err = h.settled(ctx, e); err == nil {
			item, err = h.registry.Freeze(ctx, e)
		}
	}
	if err != nil {
		return to, err
	}
	h.between("frozen")
	frozen, written := item, false
	err = h.lock(ctx, e.Name.Database, item.RelOID, func(ctx context.Context, l *locked) (bool, error) {
		if err := l.here(frozen); err != nil {
			return false, err
		}
		var err error
		written = true
		if item, err = h.registry.Settle(ctx, e, frozen, sequencer.Moving); err != nil {
			return false, err
		}
		h.between("item written")
		to = l.resume(item)
		if err := l.exec(ctx, declare(l.quoted, item.Definition, to.last)); err != nil {
			return false, err
		}
		if to.called {
			err = l.exec(ctx, fmt.Sprintf("SELECT pg_catalog.setval(%d::pg_catalog.oid::pg_catalog.regclass, %d, true)", l.oid, to.last))
		}
		return err == nil, err
	})
	switch {
	case errors.Is(err, errGone):
		return to, h.bury(ctx, e, frozen)
	case err != nil && !written:
		// The upstream's sequence is what it was, as long as nobody wrote the item.
		_, undoErr := h.registry.Settle(context.WithoutCancel(ctx), e, frozen, sequencer.FromStore)
		return to, errors.Join(err, undoErr)
	case err != nil:
		return to, errors.Join(err, h.recover(context.WithoutCancel(ctx), e))
	}
	return to, h.registry.Remove(ctx, e, item)
}

// resume is where a locked sequence goes on that the upstream takes over.
func (l *locked) resume(item sequencer.Item) (to position) {
	block, fenced := confined(item, l.definition)
	if !fenced {
		// Somebody gave it other bounds past nextvald: whatever it handed out counts.
		block = &sequencer.Range{First: l.last, Last: l.last}
	}
	to.last, to.called = item.Resume(block, l.last, l.called)
	return to
}
