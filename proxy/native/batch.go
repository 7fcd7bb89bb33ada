package native

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/nextvald/nextvald/proxy"
	"github.com/nextvald/nextvald/sequencer"
)

// batchAtOnce is how many sequences of a batch are handled at a time.
const batchAtOnce = mostControls

// Outcome is what became of one sequence of a batch.
type Outcome struct {
	Name sequencer.Name
	// Done says what was done, or would be; nothing for a sequence that was left as it is.
	Done string
	// Last and Called are where the sequence stands, when Known.
	Known  bool
	Last   int64
	Called bool
	// Note is for the operator. Err says why it failed.
	Note string
	Err  error
}

// Batch is a command for many sequences.
type Batch struct {
	*Handovers
	Database string
	// DryRun: nothing is changed.
	DryRun bool
	// Progress is called when a sequence is done, of so many; it may be nil.
	Progress func(done, all int)
}

// ErrNoSequence: neither the upstream nor the store has a sequence of a name.
var ErrNoSequence = errors.New("there is no such sequence")

// target is a sequence that a batch is about: of the upstream, of the store, or of both.
type target struct {
	name  sequencer.Name
	there *relation
	entry *sequencer.Entry
	item  sequencer.Item
}

// targets finds the sequences of names as SQL writes them, those without a schema in public; without names all of the
// database, but for temporary ones.
func (b *Batch) targets(ctx context.Context, names []string) ([]*target, error) {
	var all []relation
	var wanted []sequencer.Name
	err := b.controls.use(ctx, b.Database, func(ctx context.Context, conn *pgx.Conn) (err error) {
		for _, name := range names {
			var parts []string
			if err := conn.QueryRow(ctx, "SELECT pg_catalog.parse_ident($1)", name).Scan(&parts); err != nil {
				return err
			}
			if len(parts) == 1 {
				parts = []string{"public", parts[0]}
			}
			if len(parts) != 2 {
				return fmt.Errorf("%q is not the name of a sequence of one database", name)
			}
			wanted = append(wanted, sequencer.Name{Database: b.Database, Schema: parts[0], Name: parts[1]})
		}
		all, err = readRelations(ctx, conn, "c.relpersistence <> 't'")
		return err
	})
	if err != nil {
		return nil, err
	}
	entries, err := b.registry.List(ctx, b.Database)
	if err != nil {
		return nil, err
	}
	return b.join(ctx, all, entries, wanted)
}

// join finds what belongs together: by the OID, or by the name where the store's sequence is of another database or virtual.
func (b *Batch) join(ctx context.Context, all []relation, entries []sequencer.Entry, wanted []sequencer.Name) ([]*target, error) {
	byOID, byName := map[uint32]*target{}, map[sequencer.Name]*target{}
	var targets []*target
	for i := range all {
		t := &target{name: all[i].name, there: &all[i]}
		byOID[all[i].oid], byName[t.name] = t, t
		targets = append(targets, t)
	}
	items := make([]sequencer.Item, len(entries))
	var g errgroup.Group
	g.SetLimit(4 * batchAtOnce)
	for i, e := range entries {
		if len(wanted) > 0 && !slices.Contains(wanted, e.Name) && byOID[e.OID] == nil {
			continue
		}
		g.Go(func() (err error) {
			items[i], err = b.registry.Item(ctx, e)
			if errors.Is(err, sequencer.ErrUndefined) {
				return nil // it was dropped meanwhile
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for i, e := range entries {
		item := items[i]
		if item.Incarnation == "" {
			continue
		}
		t := byOID[item.RelOID]
		if item.Kind == sequencer.Virtual || t == nil || t.there.here(item) != nil {
			t = byName[e.Name]
		}
		if t == nil || t.entry != nil {
			t = &target{name: e.Name}
			targets = append(targets, t)
		}
		t.entry, t.item = &e, item
	}
	if len(wanted) == 0 {
		return targets, nil
	}
	var chosen []*target
	for _, name := range wanted {
		i := slices.IndexFunc(targets, func(t *target) bool { return t.name == name })
		if i < 0 {
			return nil, fmt.Errorf("%w: %s.%s", ErrNoSequence, name.Schema, name.Name)
		}
		chosen = append(chosen, targets[i])
	}
	return chosen, nil
}

// each carries out work for all targets, several at a time, and returns what became of them in their order.
func (b *Batch) each(ctx context.Context, targets []*target, work func(context.Context, *target, *Outcome)) ([]Outcome, error) {
	outcomes := make([]Outcome, len(targets))
	finished := make(chan struct{}, len(targets))
	var g errgroup.Group
	g.SetLimit(batchAtOnce)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range targets {
			<-finished
			if b.Progress != nil {
				b.Progress(i+1, len(targets))
			}
		}
	}()
	for i, t := range targets {
		outcomes[i].Name = t.name
		g.Go(func() error {
			defer func() { finished <- struct{}{} }()
			if err := ctx.Err(); err != nil {
				outcomes[i].Err = err
				return nil
			}
			work(ctx, t, &outcomes[i])
			return nil
		})
	}
	_ = g.Wait() // no work returns an error
	<-done
	return outcomes, ctx.Err()
}

// stands notes where a store's sequence stands.
func (o *Outcome) stands(item sequencer.Item) {
	s := item.Reads()
	o.Known, o.Last, o.Called = true, s.LastValue, s.IsCalled
}

// Adopt hands sequences over to the store: those named, or all. What the store has already is left as it is, so that a batch
// that was cut off may be repeated; a virtual one that is named gets its like in the upstream.
func (b *Batch) Adopt(ctx context.Context, names []string) ([]Outcome, error) {
	targets, err := b.targets(ctx, names)
	if err != nil {
		return nil, err
	}
	return b.each(ctx, targets, func(ctx context.Context, t *target, o *Outcome) { b.adoptOne(ctx, t, o, len(names) > 0) })
}

func (b *Batch) adoptOne(ctx context.Context, t *target, o *Outcome, named bool) {
	if t.entry != nil {
		switch {
		case t.item.Kind == sequencer.Virtual && !named:
			o.Note = "virtual; adopt it by its name to create it in the upstream"
			o.stands(t.item)
			return
		case t.item.Kind == sequencer.Virtual:
			b.materializeOne(ctx, t, o)
			return
		case t.there == nil:
			o.Note = "the upstream has no such sequence any more"
			return
		case t.there.here(t.item) == nil && t.there.oid == t.item.RelOID && t.item.Source == sequencer.FromStore:
			o.Note = "the store's already"
			o.stands(t.item)
			return
		}
	}
	var beyond *int64
	err := b.controls.use(ctx, b.Database, func(ctx context.Context, conn *pgx.Conn) (err error) {
		// Before any lock is taken: it may take minutes.
		if beyond, err = t.there.furthest(ctx, conn); err != nil {
			return fmt.Errorf("cannot read the furthest value of %s.%s: %w", t.there.table, t.there.column, err)
		}
		o.Last, o.Called, err = t.there.where(ctx, conn)
		return err
	})
	if err == nil && beyond != nil && !t.there.definition.Cycle && further(*beyond, o.Last, t.there.definition.Increment) {
		o.Note = fmt.Sprintf("it stood at %d; %s.%s has %d", o.Last, t.there.table, t.there.column, *beyond)
		o.Last, o.Called = *beyond, true
	}
	switch {
	case err != nil:
		o.Err = err
		return
	case !t.there.owned:
		o.Err = proxy.ErrNotAllowed
		return
	case b.DryRun:
		o.Known, o.Done = true, "would be adopted"
		return
	}
	item, err := b.adopt(ctx, *t.there, beyond)
	if err != nil {
		o.Err = err
		return
	}
	o.Done = "adopted"
	o.stands(item)
	if item.Fence == nil {
		o.Note = "its range is too small to share: callers past nextvald get 2200H"
	}
}

func (b *Batch) materializeOne(ctx context.Context, t *target, o *Outcome) {
	if b.DryRun {
		o.Done = "would be created in the upstream"
		if t.there != nil {
			if _, done := t.there.blockOf(t.item); !done {
				o.Done, o.Err = "", fmt.Errorf("%w: the upstream has a relation of this name", sequencer.ErrDuplicate)
			}
		}
		o.stands(t.item)
		return
	}
	item, err := b.materialize(ctx, *t.entry, t.item)
	if err != nil {
		o.Err = err
		return
	}
	o.Done = "created in the upstream"
	o.stands(item)
}

// Release hands sequences back to the upstream: those named, or all that the store has and the upstream too.
func (b *Batch) Release(ctx context.Context, names []string) ([]Outcome, error) {
	targets, err := b.targets(ctx, names)
	if err != nil {
		return nil, err
	}
	return b.each(ctx, targets, func(ctx context.Context, t *target, o *Outcome) {
		switch {
		case t.entry == nil:
			o.Note = "the upstream's already"
		case t.item.Kind == sequencer.Virtual:
			o.Note = "virtual: the upstream has none"
		case t.there == nil || t.there.here(t.item) != nil || t.there.oid != t.item.RelOID:
			o.Err = errors.New("the upstream has another sequence of this name, or none: is this a restored database? Use --restored")
		default:
			b.releaseOne(t, o, func() (position, error) { return b.release(ctx, *t.entry) })
		}
	})
}

// releaseOne hands a sequence back in one of two ways.
func (b *Batch) releaseOne(t *target, o *Outcome, release func() (position, error)) {
	switch {
	case !t.there.owned:
		o.Err = proxy.ErrNotAllowed
	case b.DryRun:
		o.Done = "would be released"
		o.stands(t.item)
	default:
		to, err := release()
		if o.Err = err; err == nil {
			o.Done, o.Known, o.Last, o.Called = "released", true, to.last, to.called
		}
	}
}

// Restored repairs the sequences of a database that was restored, copied or promoted, where a fence of some time shows
// instead of what was declared: those named, or all that the store knows by their names. They are the upstream's then, past
// everything that may have been handed out.
func (b *Batch) Restored(ctx context.Context, names []string) ([]Outcome, error) {
	targets, err := b.targets(ctx, names)
	if err != nil {
		return nil, err
	}
	return b.each(ctx, targets, func(ctx context.Context, t *target, o *Outcome) {
		switch {
		case t.entry == nil:
			o.Note = "not of the store"
		case t.item.Kind == sequencer.Virtual:
			o.Note = "virtual: the upstream has none"
		case t.there == nil:
			o.Err = errors.New("the database has no sequence of this name")
		default:
			b.releaseOne(t, o, func() (position, error) { return b.restore(ctx, *t.entry, t.there.oid) })
		}
	})
}

// restore is release for a sequence whose bounds are of some other time than the item, and that may have another OID.
func (h *Handovers) restore(ctx context.Context, e sequencer.Entry, oid uint32) (to position, err error) {
	item, err := h.registry.Freeze(ctx, e)
	if err != nil && !errors.Is(err, sequencer.ErrMoving) {
		return to, err
	}
	err = h.lock(ctx, e.Name.Database, oid, func(ctx context.Context, l *locked) (bool, error) {
		var err error
		if item, err = h.registry.Item(ctx, e); err != nil {
			return false, err
		}
		if item, err = h.registry.Settle(ctx, e, item, sequencer.Moving); err != nil {
			return false, err
		}
		// How much of its fences was used is not known here.
		all := item.Clone()
		all.Holes, all.Fence, all.NextFence = item.Skips(), nil, nil
		to.last, to.called = all.Resume(&sequencer.Range{First: l.last, Last: l.last}, l.last, l.called && within(item.Definition, l.last))
		if err := l.exec(ctx, declare(l.quoted, item.Definition, to.last)); err != nil {
			return false, err
		}
		if to.called {
			err = l.exec(ctx, fmt.Sprintf("SELECT pg_catalog.setval(%d::pg_catalog.oid::pg_catalog.regclass, %d, true)", l.oid, to.last))
		}
		return err == nil, err
	})
	if err != nil {
		return to, err
	}
	return to, h.registry.Remove(ctx, e, item)
}

func within(d sequencer.Definition, v int64) bool { return v >= d.Min && v <= d.Max }

// Explain words an error for an operator.
func Explain(err error) string {
	switch {
	case errors.Is(err, proxy.ErrNotAllowed):
		return "the role of --upstream may not alter it: it must own it, or be a superuser"
	case busy(err):
		return "a transaction that uses it does not end; try again"
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}
