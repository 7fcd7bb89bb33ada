package native

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/nextvald/nextvald/proxy"
	"github.com/nextvald/nextvald/sequencer"
)

// Adopt hands a sequence over to the store. It is no error when it has to stay the upstream's (it is temporary, a column owns
// it or has a default that calls it), does not exist any more, or is the store's already. Errors: proxy.ErrNotAllowed; 55P03
// when a transaction that uses the sequence does not end; ErrDuplicate when the store has another sequence of its name.
func (h *Handovers) Adopt(ctx context.Context, database string, oid uint32) error {
	var r relation
	err := h.controls.use(ctx, database, func(ctx context.Context, conn *pgx.Conn) (err error) {
		r, err = readRelation(ctx, conn, oid)
		return err
	})
	if err == nil && (r.temporary || r.column != "" || r.referred) {
		return nil
	}
	if err == nil {
		_, err = h.adopt(ctx, r, nil)
	}
	if errors.Is(err, errGone) {
		return nil
	}
	return err
}

// adopt hands a sequence over. beyond is a value that the position must be past, or nil. It returns the item as it is then.
//
// In the order of the steps: with the lock in hand, the item is written as moving; the fence is committed; the item becomes
// the store's. Whoever finds it moving after that sees by the fence how far it went.
func (h *Handovers) adopt(ctx context.Context, r relation, beyond *int64) (item sequencer.Item, err error) {
	if !r.owned {
		return item, proxy.ErrNotAllowed
	}
	if e, found, err := h.entryOf(ctx, r.name.Database, r.oid); err != nil {
		return item, err
	} else if found {
		item, err := h.settled(ctx, e)
		if err == nil && r.here(item) != nil {
			err = h.registry.Remove(ctx, e, item)
		} else if err == nil {
			return item, nil
		}
		if err != nil && !errors.Is(err, sequencer.ErrUndefined) {
			return item, err
		}
	}
	var e sequencer.Entry
	others := false // somebody else adopts it, or has done so
	err = h.lock(ctx, r.name.Database, r.oid, func(ctx context.Context, l *locked) (bool, error) {
		if e, others, err = h.vacate(ctx, l); others || err != nil {
			return false, err
		}
		m := sequencer.Mirror{Definition: l.definition, Last: l.last, Called: l.called, DBOID: l.database, RelOID: l.oid}
		if beyond != nil && !m.Definition.Cycle && further(*beyond, l.last, m.Definition.Increment) {
			m.Last, m.Called = *beyond, true
		}
		if item, err = h.registry.Adopt(ctx, l.name, m); err != nil {
			return false, err
		}
		e = sequencer.Entry{Name: l.name, Incarnation: item.Incarnation, OID: item.OID}
		h.between("item written")
		if err := l.confine(ctx, fenceOf(l.definition, item.Fence)); err != nil {
			return false, err
		}
		return true, nil
	})
	if err != nil {
		if e.Incarnation != "" {
			err = errors.Join(err, h.recover(context.WithoutCancel(ctx), e))
		}
		return item, err
	}
	if others {
		return h.settled(ctx, e)
	}
	if item, err = h.registry.Settle(ctx, e, item, sequencer.FromStore); conflict(err) {
		return h.settled(ctx, e) // somebody found it moving and was faster
	}
	return item, err
}

// confine fences the sequence.
func (l *locked) confine(ctx context.Context, f fence) error {
	if err := l.exec(ctx, f.alter(l.quoted)); err != nil {
		return err
	}
	if f.called {
		return l.exec(ctx, fmt.Sprintf("SELECT pg_catalog.setval(%d::pg_catalog.oid::pg_catalog.regclass, %d, true)", l.oid, f.last))
	}
	return nil
}

func conflict(err error) bool {
	var c *sequencer.Conflict
	return errors.As(err, &c)
}

// vacate makes sure that the store has nothing of the name of a locked sequence. A dead entry goes: one whose sequence, or
// whose database, does not exist any more in the upstream. same: it has this very sequence. ErrDuplicate: it has another one
// that lives.
func (h *Handovers) vacate(ctx context.Context, l *locked) (e sequencer.Entry, same bool, err error) {
	e, item, err := h.registry.Find(ctx, l.name)
	if errors.Is(err, sequencer.ErrUndefined) {
		return sequencer.Entry{}, false, nil
	}
	if err != nil {
		return sequencer.Entry{}, false, err
	}
	if item.Kind == sequencer.Mirrored {
		dead := item.DBOID != l.database
		if !dead && item.RelOID == l.oid {
			return e, true, nil
		}
		if !dead {
			_, err := readRelation(ctx, l.conn, item.RelOID)
			dead = errors.Is(err, errGone)
			if err != nil && !dead {
				return sequencer.Entry{}, false, err
			}
		}
		if dead {
			return sequencer.Entry{}, false, h.registry.Remove(ctx, e, item)
		}
	}
	return sequencer.Entry{}, false, &sequencer.Error{
		Code:    "42P07",
		Message: fmt.Sprintf("the store has another sequence %q", l.name.Name),
		Hint:    "Rename or drop one of them.",
	}
}

// Follow gives what the store has of a sequence the name that the upstream has for it now. It is no error when there is
// nothing to follow.
func (h *Handovers) Follow(ctx context.Context, database string, oid uint32) error {
	e, found, err := h.entryOf(ctx, database, oid)
	if err != nil || !found {
		return err
	}
	var r relation
	err = h.controls.use(ctx, database, func(ctx context.Context, conn *pgx.Conn) (err error) {
		r, err = readRelation(ctx, conn, oid)
		return err
	})
	if errors.Is(err, errGone) {
		return nil
	}
	if err == nil && r.name != e.Name {
		err = h.registry.Rename(ctx, e.Name, r.name)
	}
	return err
}
