package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/nextvald/nextvald/integration/history"
)

// slotWidth is the distance between two positions that the moved sequence is moved to. Each is used once, so that a value
// says which change it comes from.
const slotWidth = 1_000_000

// outcome is what the author of a change knows of it.
type outcome int

const (
	unknown outcome = iota
	done
	refused // nothing was changed
)

// change moves a sequence to a slot.
type change struct {
	slot       int64
	begin, end time.Duration
	outcome    outcome
	anew       bool // by DROP and CREATE
}

// changes are those of the moved sequence, one after the other. The first one is its creation.
type changes struct {
	mu   sync.Mutex
	all  []change
	last error // of the statement that failed last
}

func (c *changes) add(made change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, made)
}

func (c *changes) made() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, made := range c.all {
		if made.outcome == done {
			n++
		}
	}
	return n
}

func (c *changes) failed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = err
}

// failure is why the last change that failed did.
func (c *changes) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// author changes the moved sequence again and again.
func (r *workload) author(ctx context.Context, rng *rand.Rand) {
	f := r.world.fleet
	r.changes.add(change{slot: 0, outcome: done})
	slots := rng.Perm(10_000)
	for _, slot := range slots {
		if !sleep(ctx, time.Duration(rng.IntN(1500))*time.Millisecond) {
			return
		}
		at := int64(slot + 1)
		made := change{slot: at, begin: f.since(), anew: rng.IntN(5) == 0}
		switch {
		case made.anew:
			made.outcome = r.createAnew(ctx, at*slotWidth, rng)
		case rng.IntN(3) == 0:
			made.outcome = outcomeOf(r.on(ctx, rng, fmt.Sprintf("ALTER SEQUENCE %s RESTART WITH %d", r.moved, at*slotWidth)))
		default:
			made.outcome = outcomeOf(r.on(ctx, rng, fmt.Sprintf("SELECT setval('%s', %d, false)", r.moved, at*slotWidth)))
		}
		made.end = f.since()
		r.changes.add(made)
	}
}

// createAnew drops the moved sequence and creates it again.
func (r *workload) createAnew(ctx context.Context, start int64, rng *rand.Rand) outcome {
	err := r.on(ctx, rng, "DROP SEQUENCE "+r.moved)
	if made := outcomeOf(err); made == refused && !is(err, "42P01") { // the work of an earlier attempt
		return refused
	}
	// It is gone, or may be: whoever finds it in the way does not know whether it is the old one or the work of an attempt
	// whose answer was lost.
	for ctx.Err() == nil {
		err := r.on(ctx, rng, fmt.Sprintf("CREATE SEQUENCE %s START %d", r.moved, start))
		switch {
		case err == nil:
			return done
		case is(err, "42P07"):
			return unknown
		}
		sleep(ctx, 100*time.Millisecond)
	}
	return unknown
}

// is reports whether an error has a SQLSTATE.
func is(err error, code string) bool {
	var answer *pgconn.PgError
	return errors.As(err, &answer) && answer.Code == code
}

// outcomeOf is what a statement's error says of the change that it was to make.
func outcomeOf(err error) outcome {
	var answer *pgconn.PgError
	switch {
	case err == nil:
		return done
	case errors.As(err, &answer) && !strings.Contains(answer.Detail, "did not say whether"):
		return refused
	}
	return unknown
}

// on runs a statement on a session with any process.
func (r *workload) on(ctx context.Context, rng *rand.Rand, sql string) error {
	f := r.world.fleet
	// Also when the round ends: the author must know what became of it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	var conn *pgx.Conn
	var life int
	var err error
	for {
		if conn, life, err = f.connect(ctx, rng.IntN(processes)); err == nil {
			break
		}
		if ctx.Err() != nil {
			return err
		}
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if _, err = conn.Exec(ctx, sql); err != nil {
		r.changes.failed(fmt.Errorf("%s: %w", sql, err))
	}
	if is(err, "42P07") && strings.HasPrefix(sql, "CREATE") {
		return err // one that is in the way
	}
	r.note(ctx, life, r.moved, patience, err)
	return err
}

// judgeChanges checks that no value of the moved sequence comes from before a change that had succeeded, nor from one that
// was not made.
func (r *workload) judgeChanges(t *testing.T) {
	all := r.changes.all
	bySlot := map[int64]int{}
	for i, made := range all {
		bySlot[made.slot] = i
	}
	draws := r.record.all(r.moved)
	slices.SortFunc(draws, func(a, b history.Draw) int { return int(a.End - b.End) })
	// A change that moves beyond everything leased does not wait for those who are cut off, who may go on with what they
	// hold. Any other one does: all values that come after it are its own, or of a later one.
	binding := make([]bool, len(all))
	for i, made := range all {
		binding[i] = made.outcome == done && made.anew
		if made.outcome != done {
			continue
		}
		since := 0 // the incarnation's first change
		for j := range all[:i] {
			if all[j].anew && all[j].outcome != refused {
				since = j
			}
		}
		for _, d := range draws {
			if d.End > made.begin {
				break
			}
			for _, v := range d.Values {
				if from := bySlot[v/slotWidth]; from >= since && v/slotWidth > made.slot {
					binding[i] = true
				}
			}
		}
	}
	values := 0
	for life, draws := range r.record.lives(r.moved) {
		bySlotOfLife := map[int64][]history.Draw{}
		for _, d := range draws {
			for _, v := range d.Values {
				values++
				from, ok := bySlot[v/slotWidth]
				switch {
				case !ok:
					t.Errorf("%s: %d comes from no change", r.moved, v)
					continue
				case all[from].outcome == refused:
					t.Errorf("%s: %d comes from a change that was said not to be made: %+v", r.moved, v, all[from])
				case d.End < all[from].begin:
					t.Errorf("%s: %d came before the change that made it", r.moved, v)
				}
				for i := from + 1; i < len(all); i++ {
					if binding[i] && all[i].end < d.Begin {
						t.Errorf("%s: %d was handed out between %v and %v by life %d, and is older than the change %+v", r.moved, v, d.Begin, d.End, life, all[i])
					}
				}
				slot := v / slotWidth
				bySlotOfLife[slot] = append(bySlotOfLife[slot], history.Draw{Begin: d.Begin, End: d.End, Values: []int64{v}})
			}
		}
		for slot, draws := range bySlotOfLife {
			if err := history.Ordered(draws); err != nil {
				t.Errorf("%s, life %d, slot %d: %v", r.moved, life, slot, err)
			}
		}
	}
	counts := map[outcome]int{}
	for _, made := range all {
		counts[made.outcome]++
	}
	t.Logf("%s: %d values; %d changes made, %d refused, %d of unknown outcome", r.moved, values, counts[done], counts[refused], counts[unknown])
}
