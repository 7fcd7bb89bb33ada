package native

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/nextvald/nextvald/sequencer"
)

// materialize gives a virtual sequence its like in the upstream, fenced. 42P07: another relation has the name.
//
// In the order of the steps: a block is set apart in the item; the upstream's sequence is created, confined to it; the item
// says so. Whoever finds a sequence that is confined to a block of the item's goes on from there.
func (h *Handovers) materialize(ctx context.Context, e sequencer.Entry, item sequencer.Item) (sequencer.Item, error) {
	quoted := pgx.Identifier{e.Name.Schema, e.Name.Name}.Sanitize()
	exists, err := h.relationNamed(ctx, e.Name.Database, quoted)
	if err != nil {
		return item, err
	}
	block, done := exists.blockOf(item)
	if exists != nil && !done {
		return item, fmt.Errorf("%w: the upstream has a relation of this name", sequencer.ErrDuplicate)
	}
	if exists == nil {
		err := againstLeases(func() (err error) {
			if item, err = h.registry.Item(ctx, e); err == nil {
				item, err = h.registry.Reserve(ctx, e, item)
			}
			return err
		})
		if err != nil {
			return item, err
		}
		if n := len(item.Holes); n > 0 {
			block = &item.Holes[n-1]
		}
		h.between("reserved")
		if exists, err = h.create(ctx, e, quoted, item, block); err != nil {
			return item, err
		}
		h.between("created")
	}
	err = againstLeases(func() (err error) {
		if item, err = h.registry.Item(ctx, e); err == nil && item.Kind == sequencer.Virtual {
			item, err = h.registry.Reflect(ctx, e, item, exists.database, exists.oid, block)
		}
		return err
	})
	return item, err
}

// blockOf finds the block of a virtual item that an existing relation is confined to.
func (r *relation) blockOf(item sequencer.Item) (block *sequencer.Range, found bool) {
	if r == nil {
		return nil, false
	}
	for _, hole := range item.Holes {
		if fenceOf(item.Definition, &hole).holds(r.definition) {
			return &hole, true
		}
	}
	return nil, len(item.Holes) == 0 && fenceOf(item.Definition, nil).holds(r.definition)
}

// relationNamed reads a sequence by its name; nil when there is no relation of it. ErrDuplicate: one that is no sequence.
func (h *Handovers) relationNamed(ctx context.Context, database, quoted string) (r *relation, err error) {
	err = h.controls.use(ctx, database, func(ctx context.Context, conn *pgx.Conn) error {
		var oid *uint32
		if err := conn.QueryRow(ctx, "SELECT pg_catalog.to_regclass($1)::pg_catalog.oid", quoted).Scan(&oid); err != nil || oid == nil {
			return err
		}
		found, err := readRelation(ctx, conn, *oid)
		if errors.Is(err, errGone) {
			return fmt.Errorf("%w: the upstream has a relation of this name", sequencer.ErrDuplicate)
		}
		r = &found
		return err
	})
	return r, err
}

// create makes the upstream's like of a virtual sequence.
func (h *Handovers) create(ctx context.Context, e sequencer.Entry, quoted string, item sequencer.Item, block *sequencer.Range) (*relation, error) {
	d, f := item.Definition, fenceOf(item.Definition, block)
	sql := fmt.Sprintf("BEGIN; CREATE SEQUENCE %s AS %s INCREMENT %d MINVALUE %d MAXVALUE %d START %d CACHE %d NO CYCLE;",
		quoted, d.Type, d.Increment, f.least, f.greatest, f.start, max(d.Cache, 1))
	if f.called {
		sql += fmt.Sprintf("SELECT pg_catalog.setval('%s'::pg_catalog.regclass, %d, true);", literal(quoted), f.last)
	}
	err := h.controls.use(ctx, e.Name.Database, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql+"COMMIT", pgx.QueryExecModeSimpleProtocol)
		if err != nil && !conn.IsClosed() {
			_, _ = conn.Exec(ctx, "ROLLBACK", pgx.QueryExecModeSimpleProtocol) // else the connection is closed
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	r, err := h.relationNamed(ctx, e.Name.Database, quoted)
	if err == nil && r == nil {
		err = errGone
	}
	return r, err
}
