package native

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/nextvald/nextvald/sequencer"
)

// Finding is what Check says of one sequence.
type Finding struct {
	Name sequencer.Name
	// Source is who hands it out. Kind is empty for one of the upstream's own.
	Source sequencer.Source
	Kind   sequencer.Kind
	// Last and Called are where it stands.
	Last   int64
	Called bool
	// Unsafe says why it is, empty when it is safe: it hands out values that are in use, or could.
	Unsafe string
	// Advice is for the operator.
	Advice string
}

// Report is what Check found.
type Report struct {
	Findings []Finding
	// Functions are those of the database whose texts name currval or lastval: after a value that nextvald handed out itself
	// they see an older one, or 55000.
	Functions []string
	// Fenced is how many sequences show a fence to whoever reads the upstream past nextvald.
	Fenced int
}

// Check compares store, fences and the columns that own sequences: of the sequences named, or of all. It changes nothing.
func (b *Batch) Check(ctx context.Context, names []string) (Report, error) {
	var report Report
	targets, err := b.targets(ctx, names)
	if err != nil {
		return report, err
	}
	findings := make([]Finding, len(targets))
	index := map[*target]int{}
	for i, t := range targets {
		index[t] = i
	}
	outcomes, err := b.each(ctx, targets, func(ctx context.Context, t *target, o *Outcome) {
		findings[index[t]], o.Err = b.checkOne(ctx, t)
	})
	if err != nil {
		return report, err
	}
	for i, o := range outcomes {
		if o.Err != nil {
			findings[i].Unsafe = "it could not be checked: " + Explain(o.Err)
		}
		if findings[i].Kind == sequencer.Mirrored {
			report.Fenced++
		}
	}
	report.Findings = findings
	err = b.controls.use(ctx, b.Database, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `SELECT p.oid::pg_catalog.regprocedure::text FROM pg_catalog.pg_proc p
			JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
			WHERE p.prosrc ~* '\m(currval|lastval)\M' AND n.nspname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1`)
		if err != nil {
			return err
		}
		report.Functions, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	return report, err
}

func (b *Batch) checkOne(ctx context.Context, t *target) (Finding, error) {
	f := Finding{Name: t.name, Source: sequencer.FromUpstream}
	var native position
	var furthest *int64
	if t.there != nil {
		err := b.controls.use(ctx, b.Database, func(ctx context.Context, conn *pgx.Conn) (err error) {
			// The column first: what is drawn meanwhile shows in both.
			r := *t.there
			if t.entry != nil {
				r.definition = t.item.Definition
			}
			if furthest, err = r.furthest(ctx, conn); err != nil {
				return err
			}
			native.last, native.called, err = r.where(ctx, conn)
			return err
		})
		if err != nil {
			return f, err
		}
		f.Last, f.Called = native.last, native.called
	}
	definition, limit := sequencer.Definition{}, native
	if t.entry != nil {
		// As it is now: what was leased since the column was read is behind the position.
		item, err := b.registry.Item(ctx, *t.entry)
		if err != nil {
			return f, err
		}
		f.Source, f.Kind, definition = item.Source, item.Kind, item.Definition
		s := item.Reads()
		f.Last, f.Called = s.LastValue, s.IsCalled
		limit = position{last: f.Last, called: f.Called}
		if item.Kind == sequencer.Mirrored {
			if f.Unsafe = b.unsafeFence(t, item); f.Unsafe == "" {
				block, _ := confined(item, t.there.definition)
				limit.last, limit.called = item.Resume(block, native.last, native.called)
			}
		}
	} else {
		definition = t.there.definition
	}
	if f.Unsafe == "" && furthest != nil && !definition.Cycle &&
		(further(*furthest, limit.last, definition.Increment) || *furthest == limit.last && !limit.called) {
		f.Unsafe = fmt.Sprintf("%s.%s has %d, which it has not handed out yet", t.there.table, t.there.column, *furthest)
		f.Advice = fmt.Sprintf("SELECT setval('%s', %d)", t.there.quoted, *furthest)
	}
	if f.Advice == "" && f.Source == sequencer.FromStore && t.there != nil && (t.there.column != "" || t.there.referred) {
		f.Advice = "a column default draws from it, whom nextvald does not see: better the upstream's (nextvald release)"
	}
	if f.Unsafe == "" && f.Kind == sequencer.Mirrored && t.there != nil && !t.there.owned {
		f.Advice = "the role of --upstream may not alter it, so its fence is not fed: " +
			"callers past nextvald get 2200H once it is used up"
	}
	return f, nil
}

// unsafeFence says why a mirrored sequence is not safe, empty when it is.
func (b *Batch) unsafeFence(t *target, item sequencer.Item) string {
	switch {
	case t.there == nil:
		return "the upstream does not have it any more; the store's is dead"
	case t.there.here(item) != nil || t.there.oid != item.RelOID:
		return "the upstream's is another one than was adopted: a restored database is repaired by nextvald release --restored"
	case item.Source == sequencer.Moving && b.isAbandoned(item):
		return "a handover was not ended; a nextvald that serves the database ends it, and so does nextvald adopt or release"
	case item.Source == sequencer.Moving:
		return "" // its bounds may be either
	}
	if _, fenced := confined(item, t.there.definition); !fenced {
		d := t.there.definition
		return fmt.Sprintf("the upstream's is not confined to its fence: MINVALUE %d MAXVALUE %d; nextvald release repairs it", d.Min, d.Max)
	}
	return ""
}

// Unsafe is how many sequences are not safe.
func (r Report) Unsafe() (n int) {
	for _, f := range r.Findings {
		if f.Unsafe != "" {
			n++
		}
	}
	return n
}

// Warnings are about the database rather than a sequence.
func (r Report) Warnings() []string {
	var w []string
	if r.Fenced > 0 {
		w = append(w, fmt.Sprintf("%d sequences are fenced: a pg_dump, a copy or a promoted replica taken past nextvald shows the fence; "+
			"nextvald release --restored repairs those", r.Fenced))
	}
	if len(r.Functions) > 0 && r.Fenced > 0 {
		w = append(w, "these functions name currval or lastval, which do not see values that nextvald hands out itself: "+
			strings.Join(r.Functions, ", "))
	}
	return w
}
