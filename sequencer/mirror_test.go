package sequencer_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/memstore"
)

var mirrorRange = sequencer.Mirror{Last: 1, DBOID: 5, RelOID: 16400}

// adopt makes a store sequence of one that the upstream has, and returns where to find it.
func adopt(t testing.TB, r *sequencer.Registry, n string, m sequencer.Mirror) (sequencer.Entry, sequencer.Item) {
	item, err := r.Adopt(context.Background(), name(n), m)
	require.NoError(t, err)
	e := sequencer.Entry{Name: name(n), Incarnation: item.Incarnation, OID: item.OID}
	item, err = r.Settle(context.Background(), e, item, sequencer.FromStore)
	require.NoError(t, err)
	return e, item
}

func mirror(t testing.TB, o sequencer.Options) sequencer.Mirror {
	m := mirrorRange
	m.Definition = define(t, o)
	m.Last = m.Definition.Start
	return m
}

func TestAdoptedSequenceSkipsItsFence(t *testing.T) {
	ctx := context.Background()
	for title, c := range map[string]struct {
		options sequencer.Options
		fence   *sequencer.Range
		want    []int64 // values by their number
	}{
		"up":                  {sequencer.Options{}, &sequencer.Range{First: 1001, Last: 2000}, []int64{0: 1, 999: 1000, 1000: 2001}},
		"down":                {sequencer.Options{Increment: ptr[int64](-2)}, &sequencer.Range{First: -2001, Last: -3999}, []int64{0: -1, 999: -1999, 1000: -4001}},
		"not much":            {sequencer.Options{Max: &sequencer.Bound{Value: 400}}, &sequencer.Range{First: 5, Last: 8}, []int64{0: 1, 3: 4, 4: 9, 395: 400}},
		"too little to share": {sequencer.Options{Max: &sequencer.Bound{Value: 2}}, nil, []int64{0: 1, 1: 2}},
	} {
		t.Run(title, func(t *testing.T) {
			r := open(t, memstore.New(), sequencer.Config{})
			e, item := adopt(t, r, "s", mirror(t, c.options))
			require.Equal(t, c.fence, item.Fence)
			s, err := r.LookupOID(ctx, "shop", 16400)
			require.NoError(t, err)
			require.EqualValues(t, 16400, s.OID())
			values := draw(t, s, len(c.want))
			for i, want := range c.want {
				if want != 0 {
					require.Equal(t, want, values[i], i)
				}
			}
			last := values[len(values)-1]
			require.Equal(t, sequencer.State{LastValue: last, IsCalled: true}, state(t, s))
			if c.options.Max != nil {
				_, err := s.Next(ctx)
				require.ErrorIs(t, err, sequencer.ErrExhausted)
			}
			frozen, err := r.Freeze(ctx, e)
			require.NoError(t, err)
			_, err = s.Next(ctx)
			require.ErrorIs(t, err, sequencer.ErrMoving)
			require.ErrorIs(t, s.Set(ctx, 1, true), sequencer.ErrMoving)
			_, err = r.Freeze(ctx, e)
			require.ErrorIs(t, err, sequencer.ErrMoving)
			at, called := frozen.Resume(nil, 0, false)
			require.Equal(t, []any{last, true}, []any{at, called})
			require.NoError(t, r.Remove(ctx, e, frozen))
			_, err = s.Next(ctx)
			require.ErrorIs(t, err, sequencer.ErrUndefined)
			_, err = r.Lookup(ctx, name("s"))
			require.ErrorIs(t, err, sequencer.ErrUndefined)
		})
	}
}

// A release gives the upstream's sequence the place where its own would stand: past what was used, and no further.
func TestResume(t *testing.T) {
	r := func(first, last int64) *sequencer.Range { return &sequencer.Range{First: first, Last: last} }
	for title, c := range map[string]struct {
		increment   int64
		pos         int64
		fresh       bool
		fence, next *sequencer.Range
		holes       []sequencer.Range
		within      *sequencer.Range
		last        int64
		called      bool
		wantLast    int64
		wantCalled  bool
	}{
		"nobody called it":                {1, 1, true, r(1001, 2000), nil, nil, r(1001, 2000), 1001, false, 1, false},
		"only the proxy did":              {1, 51, false, r(1001, 2000), nil, nil, r(1001, 2000), 1001, false, 50, true},
		"only others did":                 {1, 1, true, r(1001, 2000), nil, nil, r(1001, 2000), 1001, true, 1001, true},
		"others, and then the proxy":      {1, 5000, false, r(1001, 2000), nil, nil, r(1001, 2000), 1500, true, 4999, true},
		"a hole ahead was used":           {1, 51, false, r(41, 50), nil, []sequencer.Range{*r(1001, 2000)}, r(41, 50), 41, false, 2000, true},
		"a fence is about to be left":     {1, 51, false, r(1001, 2000), r(41, 50), nil, r(1001, 2000), 1001, false, 50, true},
		"a fence was left":                {1, 51, false, r(1001, 2000), r(41, 50), nil, r(41, 50), 41, false, 2000, true},
		"moved back since it was fenced":  {1, 1, true, r(1001, 2000), nil, []sequencer.Range{*r(1001, 2000)}, r(1001, 2000), 1001, false, 1, false},
		"down":                            {-1, -1, true, r(-1001, -2000), nil, nil, r(-1001, -2000), -1003, true, -1003, true},
		"down, the position is further":   {-1, -3000, false, r(-1001, -2000), nil, nil, r(-1001, -2000), -1003, true, -2999, true},
		"exhausted":                       {1, 10_001, false, nil, nil, nil, nil, 0, false, 10_000, true},
		"set, and not called since":       {1, 77, true, r(1001, 2000), nil, nil, r(1001, 2000), 1001, false, 77, false},
		"others used the last of a fence": {1, 1, true, r(1001, 2000), nil, nil, r(1001, 2000), 2000, true, 2000, true},
	} {
		t.Run(title, func(t *testing.T) {
			it := sequencer.Item{
				Definition: define(t, sequencer.Options{Increment: &c.increment, Max: &sequencer.Bound{Value: max(10_000*c.increment, -1)}, Min: &sequencer.Bound{Value: min(10_000*c.increment, 1)}}),
				Pos:        sequencer.At(c.pos), Fence: c.fence, NextFence: c.next, Holes: c.holes,
			}
			if c.fresh {
				it.Fresh = &c.pos
			}
			last, called := it.Resume(c.within, c.last, c.called)
			require.Equal(t, []any{c.wantLast, c.wantCalled}, []any{last, called})
		})
	}
}

// A move says by Holes that the fence is of before it.
func TestSetOfAnAdoptedSequence(t *testing.T) {
	ctx := context.Background()
	r := open(t, memstore.New(), sequencer.Config{})
	e, item := adopt(t, r, "s", mirror(t, sequencer.Options{}))
	s := lookup(t, r, "s")
	require.Empty(t, item.Holes)
	for _, move := range []int64{5000, 1500, 1} {
		require.NoError(t, s.Set(ctx, move, false))
		item, err := r.Item(ctx, e)
		require.NoError(t, err)
		require.Equal(t, []sequencer.Range{*item.Fence}, item.Holes)
		want := move
		if move == 1500 {
			want = 2001
		}
		require.Equal(t, want, next(t, s))
	}
}

// relation stands for the upstream's sequence in tests in virtual time.
type relation struct {
	lock chan struct{} // a token while nobody has it: of its callers, or of who changes it
	mu   sync.Mutex
	at   bounds
}

type bounds struct {
	min, max, last int64
	called, fenced bool
}

func (n *relation) read() bounds {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.at
}

// nextval draws as a caller whom nextvald does not see.
func (n *relation) nextval(increment int64) (int64, bool) {
	<-n.lock
	defer func() { n.lock <- struct{}{} }()
	n.mu.Lock()
	defer n.mu.Unlock()
	v := n.at.last
	if n.at.called {
		v += increment
	}
	if v < n.at.min || v > n.at.max {
		return 0, false
	}
	n.at.last, n.at.called = v, true
	return v, true
}

// handovers is a test of adopt, release, feed and recovery, by processes that die in the middle of it, beside callers of
// nextvald and others.
type handovers struct {
	t          *testing.T
	backing    *memstore.Store
	native     *relation
	definition sequencer.Definition

	mu     sync.Mutex
	taken  map[int64]string
	counts map[string]int
	events []string
}

func (h *handovers) note(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, time.Now().Format("04:05.000 ")+fmt.Sprintf(format, args...))
}

var errDied = errors.New("the process died here")

// perhaps ends a process's work in one of many places.
func perhaps(rng *rand.Rand) bool { return rng.IntN(12) == 0 }

// transaction runs f with the lock of the relation; what it returns takes effect, unless it fails. errDied leaves the lock
// to somebody who notices after a while, and the outcome to chance when commit was sent.
func (h *handovers) transaction(rng *rand.Rand, f func(now bounds) (bounds, error)) error {
	select {
	case <-h.native.lock:
	case <-time.After(time.Duration(rng.IntN(1000)) * time.Millisecond):
		return errors.New("lock timeout")
	}
	after, err := f(h.native.read())
	died := errors.Is(err, errDied) || err == nil && perhaps(rng)
	committed := err == nil && (!died || rng.IntN(2) == 0)
	h.note("tx err=%v died=%v committed=%v after=%+v", err, died, committed, after)
	finish := func() {
		if committed {
			h.note("committed %+v", after)
			h.native.mu.Lock()
			h.native.at = after
			h.native.mu.Unlock()
		}
		h.native.lock <- struct{}{}
	}
	if died {
		h.count("died in a transaction")
		time.AfterFunc(time.Duration(rng.IntN(15))*time.Second, finish)
		return errDied
	}
	finish()
	return err
}

func (h *handovers) count(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts[what]++
}

func (h *handovers) take(v int64, by string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if before, ok := h.taken[v]; ok {
		h.events = append(h.events, fmt.Sprintf("%s twice %d %s %s", time.Now().Format("04:05.000 "), v, before, by))
		assert.Fail(h.t, "twice", "%d: %s and %s", v, before, by)
	}
	h.taken[v] = by
	h.counts[by]++
}

// entry is that of the sequence, when the store has it.
func (h *handovers) entry(ctx context.Context, l *life) (sequencer.Entry, sequencer.Item, error) {
	entries, err := l.List(ctx, "shop")
	if err != nil {
		return sequencer.Entry{}, sequencer.Item{}, err
	}
	if len(entries) == 0 {
		return sequencer.Entry{}, sequencer.Item{}, sequencer.ErrUndefined
	}
	item, err := l.Item(ctx, entries[0])
	return entries[0], item, err
}

func (h *handovers) fenced(r *sequencer.Range) bounds {
	if r == nil {
		return bounds{min: 1, max: 1, last: 1, called: true, fenced: true}
	}
	return bounds{min: min(r.First, r.Last), max: max(r.First, r.Last), last: r.First, fenced: true}
}

func (b bounds) within(r *sequencer.Range) bool {
	return r != nil && b.fenced && b.min == min(r.First, r.Last) && b.max == max(r.First, r.Last)
}

func (h *handovers) adopt(ctx context.Context, l *life, rng *rand.Rand) error {
	var e sequencer.Entry
	var item sequencer.Item
	err := h.transaction(rng, func(now bounds) (_ bounds, err error) {
		if _, _, err := h.entry(ctx, l); !errors.Is(err, sequencer.ErrUndefined) {
			return now, fmt.Errorf("it is adopted: %w", err)
		}
		m := sequencer.Mirror{Definition: h.definition, Last: now.last, Called: now.called, DBOID: 5, RelOID: 16400}
		if item, err = l.Adopt(ctx, name("s"), m); err != nil {
			return now, err
		}
		e = sequencer.Entry{Name: name("s"), Incarnation: item.Incarnation, OID: 16400}
		if perhaps(rng) {
			return now, errDied
		}
		return h.fenced(item.Fence), nil
	})
	if err != nil || perhaps(rng) {
		return err
	}
	_, err = l.Settle(ctx, e, item, sequencer.FromStore)
	return err
}

func (h *handovers) release(ctx context.Context, l *life, rng *rand.Rand) error {
	e, _, err := h.entry(ctx, l)
	if err != nil {
		return err
	}
	item, err := l.Freeze(ctx, e)
	if err != nil || perhaps(rng) {
		return err
	}
	time.Sleep(time.Duration(rng.IntN(12_000)) * time.Millisecond)
	err = h.transaction(rng, func(now bounds) (_ bounds, err error) {
		if item, err = l.Settle(ctx, e, item, sequencer.Moving); err != nil {
			return now, err
		}
		if perhaps(rng) {
			return now, errDied
		}
		assert.True(h.t, now.fenced)
		var within *sequencer.Range
		for _, r := range []*sequencer.Range{item.Fence, item.NextFence} {
			if now.within(r) {
				within = r
			}
		}
		last, called := item.Resume(within, now.last, now.called)
		return bounds{min: h.definition.Min, max: h.definition.Max, last: last, called: called}, nil
	})
	if err != nil || perhaps(rng) {
		return err
	}
	return l.Remove(ctx, e, item)
}

func (h *handovers) recover(ctx context.Context, l *life, rng *rand.Rand) error {
	e, item, err := h.entry(ctx, l)
	if err != nil || item.Source != sequencer.Moving {
		return errors.Join(err, errors.New("nothing to recover"))
	}
	return h.transaction(rng, func(now bounds) (bounds, error) {
		item, err := l.Item(ctx, e)
		switch {
		case err != nil:
			return now, err
		case item.Source != sequencer.Moving:
			return now, errors.New("nothing to recover any more")
		case now.fenced:
			_, err = l.Settle(ctx, e, item, sequencer.FromStore)
		default:
			err = l.Remove(ctx, e, item)
		}
		return now, err
	})
}

func (h *handovers) feed(ctx context.Context, l *life, rng *rand.Rand) error {
	e, _, err := h.entry(ctx, l)
	if err != nil {
		return err
	}
	s, err := l.Lookup(ctx, e.Name)
	if err != nil {
		return err
	}
	claim, err := s.Claim(ctx, 20)
	if err != nil {
		return err
	}
	var item sequencer.Item
	err = h.transaction(rng, func(now bounds) (_ bounds, err error) {
		item, err = l.Item(ctx, e)
		switch {
		case err != nil:
			return now, err
		case item.Source != sequencer.FromStore || item.State != sequencer.Active || item.Version != claim.Version || claim.Count < 2:
			return now, errors.New("not now")
		case item.NextFence != nil:
			if _, err := l.Fenced(ctx, e, item, now.within(item.NextFence)); err != nil {
				return now, err
			}
			return now, errors.New("another one's feed is ended")
		}
		assert.True(h.t, now.fenced)
		block := sequencer.Range{First: claim.First, Last: claim.Last()}
		if item, err = l.PlanFence(ctx, e, item, block); err != nil {
			return now, err
		}
		if perhaps(rng) {
			return now, errDied
		}
		return h.fenced(&block), nil
	})
	if err != nil || perhaps(rng) {
		return err
	}
	_, err = l.Fenced(ctx, e, item, true)
	return err
}

// run lets several processes hand the sequence over, feed it and call it for a while.
func (h *handovers) run(seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	c := &chaos{t: h.t, backing: h.backing, seed: seed}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for p := range 3 {
		l := c.start(fmt.Sprint("p", p), c.rng(uint64(p)))
		l.store.Plan(nil)
		require.NoError(h.t, l.Load(ctx, "shop"))
		l.store.Plan(dice(c.rng(uint64(100+p)), 10))
		c.lives = append(c.lives, l)
		for range 2 {
			rng := fork(rng)
			wg.Go(func() {
				for ctx.Err() == nil {
					time.Sleep(time.Duration(rng.IntN(400)) * time.Millisecond)
					s, err := l.Lookup(ctx, name("s"))
					var v int64
					if err == nil {
						v, err = s.Next(ctx)
					}
					switch {
					case err == nil:
						h.take(v, "store")
					case errors.Is(err, sequencer.ErrUndefined), errors.Is(err, sequencer.ErrMoving):
						if v, ok := h.native.nextval(h.definition.Increment); ok {
							h.take(v, "passed")
						}
					}
				}
			})
		}
		for what, work := range map[string]func(context.Context, *life, *rand.Rand) error{
			"adopt": h.adopt, "release": h.release, "recover": h.recover, "feed": h.feed,
		} {
			rng := fork(rng)
			pause := map[string]int{"adopt": 5, "release": 40, "recover": 20, "feed": 4}[what]
			wg.Go(func() {
				for ctx.Err() == nil {
					time.Sleep(time.Duration(rng.IntN(2000*pause)) * time.Millisecond)
					err := work(ctx, l, rng)
					if err == nil {
						h.count(what)
					}
					h.note("%s %s: %v", l.id, what, err)
				}
			})
		}
	}
	unseen := fork(rng)
	wg.Go(func() {
		for ctx.Err() == nil {
			time.Sleep(time.Duration(unseen.IntN(800)) * time.Millisecond)
			if v, ok := h.native.nextval(h.definition.Increment); ok {
				h.take(v, "unseen")
			}
		}
	})
	wg.Wait()
	for _, l := range c.lives {
		l.store.Plan(nil)
	}
	time.Sleep(time.Minute) // until every transaction and every request that comes late has ended
	for _, l := range c.lives {
		l.store.Wait()
	}
}

// Whatever dies in the middle of a handover, no value comes twice, and the sequence goes on.
func TestHandoversAtRandom(t *testing.T) {
	for _, increment := range []int64{1, -3} {
		seed := rand.Uint64()
		if *chaosSeed != 0 {
			seed = *chaosSeed
		}
		t.Run(fmt.Sprint("increment ", increment, " seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &handovers{t: t, backing: memstore.New(), taken: map[int64]string{}, counts: map[string]int{}}
				h.definition = define(t, sequencer.Options{
					Increment: &increment, Start: ptr[int64](1),
					Min: &sequencer.Bound{Value: math.MinInt64}, Max: &sequencer.Bound{Value: math.MaxInt64},
				})
				h.native = &relation{lock: make(chan struct{}, 1), at: bounds{min: math.MinInt64, max: math.MaxInt64, last: 1}}
				h.native.lock <- struct{}{}
				h.run(seed)
				if t.Failed() {
					for _, e := range h.events {
						t.Log(e)
					}
				}
				t.Log(h.counts)
				for _, what := range []string{"adopt", "release", "recover", "feed", "store", "passed", "unseen", "died in a transaction"} {
					require.NotZero(t, h.counts[what], what)
				}
			})
		})
	}
}
