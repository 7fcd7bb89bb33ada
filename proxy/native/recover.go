package native

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nextvald/nextvald/sequencer"
)

// settled waits until a sequence is not being handed over, and returns its item. A handover whose author died is ended.
// ErrUndefined: it is the upstream's then.
func (h *Handovers) settled(ctx context.Context, e sequencer.Entry) (sequencer.Item, error) {
	const look = 100 * time.Millisecond
	for {
		item, err := h.registry.Item(ctx, e)
		if err != nil || item.Source != sequencer.Moving {
			return item, err
		}
		if h.isAbandoned(item) {
			err = h.recover(ctx, e)
		} else {
			select {
			case <-time.After(look):
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		if err != nil {
			return item, err
		}
	}
}

// isAbandoned reports whether a moving item was written so long ago that its author is taken for dead.
func (h *Handovers) isAbandoned(item sequencer.Item) bool {
	at, _, _ := strings.Cut(item.Changed, "/")
	written, err := time.Parse(time.RFC3339Nano, at)
	return err != nil || time.Since(written) > h.abandoned
}

// recover ends a handover that its author did not: forward or back, as the bounds of the upstream's sequence say. Nothing is
// to be done for an item that is not moving.
func (h *Handovers) recover(ctx context.Context, e sequencer.Entry) error {
	item, err := h.registry.Item(ctx, e)
	if errors.Is(err, sequencer.ErrUndefined) || err == nil && item.Source != sequencer.Moving {
		return nil
	}
	if err != nil {
		return err
	}
	err = h.lock(ctx, e.Name.Database, item.RelOID, func(ctx context.Context, l *locked) (bool, error) {
		// As it is since the lock is held: nobody who had it before can write it any more.
		item, err := h.registry.Item(ctx, e)
		if err != nil || item.Source != sequencer.Moving {
			return false, err
		}
		if err := l.here(item); err != nil {
			return false, err
		}
		h.between("recovering")
		if _, fenced := confined(item, l.definition); fenced {
			_, err = h.registry.Settle(ctx, e, item, sequencer.FromStore)
		} else {
			err = h.registry.Remove(ctx, e, item)
		}
		h.log.Info("ended a handover of a sequence whose author did not", "sequence", e.Name.String(), "error", err)
		return false, err
	})
	switch {
	case errors.Is(err, errGone):
		return h.bury(ctx, e, item)
	case errors.Is(err, sequencer.ErrUndefined):
		return nil
	}
	return err
}
