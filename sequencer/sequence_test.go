package sequencer_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/history"
	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/faultstore"
	"github.com/nextvald/nextvald/sequencer/memstore"
)

// The values are PostgreSQL 15's.
func TestNext(t *testing.T) {
	bound := func(v int64) *sequencer.Bound { return &sequencer.Bound{Value: v} }
	for title, c := range map[string]struct {
		options sequencer.Options
		want    []int64
		end     string // the error after the values
	}{
		"plain":                {sequencer.Options{}, []int64{1, 2, 3}, ""},
		"start and increment":  {sequencer.Options{Start: ptr[int64](1000), Increment: ptr[int64](10)}, []int64{1000, 1010, 1020}, ""},
		"restart at creation":  {sequencer.Options{Start: ptr[int64](3), Restart: &sequencer.Restart{Value: 5}}, []int64{5, 6}, ""},
		"descending":           {sequencer.Options{Increment: ptr[int64](-1), Min: bound(-3)}, []int64{-1, -2, -3}, `nextval: reached minimum value of sequence "s" (-3)`},
		"to the maximum":       {sequencer.Options{Max: bound(3)}, []int64{1, 2, 3}, `nextval: reached maximum value of sequence "s" (3)`},
		"past the maximum":     {sequencer.Options{Max: bound(3), Increment: ptr[int64](2), Start: ptr[int64](2)}, []int64{2}, `nextval: reached maximum value of sequence "s" (3)`},
		"cycle":                {sequencer.Options{Max: bound(11), Increment: ptr[int64](3), Cycle: ptr(true)}, []int64{1, 4, 7, 10, 1, 4, 7, 10, 1}, ""},
		"cycle, start between": {sequencer.Options{Max: bound(11), Increment: ptr[int64](3), Start: ptr[int64](2), Cycle: ptr(true)}, []int64{2, 5, 8, 11, 1, 4, 7, 10, 1}, ""},
		"cycle down":           {sequencer.Options{Min: bound(-2), Max: bound(1), Increment: ptr[int64](-2), Cycle: ptr(true)}, []int64{1, -1, 1, -1}, ""},
		"cycle of one":         {sequencer.Options{Min: bound(1), Max: bound(2), Increment: ptr[int64](9), Cycle: ptr(true)}, []int64{1, 1, 1}, ""},
		"int8's last":          {sequencer.Options{Start: ptr[int64](math.MaxInt64 - 1)}, []int64{math.MaxInt64 - 1, math.MaxInt64}, `nextval: reached maximum value of sequence "s" (9223372036854775807)`},
		"int8's first":         {sequencer.Options{Increment: ptr[int64](-1), Start: ptr[int64](math.MinInt64 + 1)}, []int64{math.MinInt64 + 1, math.MinInt64}, `nextval: reached minimum value of sequence "s" (-9223372036854775808)`},
		"int2's last":          {sequencer.Options{As: ptr(sequencer.Smallint), Start: ptr[int64](32767)}, []int64{32767}, `nextval: reached maximum value of sequence "s" (32767)`},
		"int4's first":         {sequencer.Options{As: ptr(sequencer.Integer), Increment: ptr[int64](-1), Start: ptr[int64](math.MinInt32)}, []int64{math.MinInt32}, `nextval: reached minimum value of sequence "s" (-2147483648)`},
		"least increment":      {sequencer.Options{Increment: ptr[int64](math.MinInt64)}, []int64{-1}, `nextval: reached minimum value of sequence "s" (-9223372036854775808)`},
		"greatest increment":   {sequencer.Options{Increment: ptr[int64](math.MaxInt64), Max: bound(math.MaxInt64)}, []int64{1}, `nextval: reached maximum value of sequence "s" (9223372036854775807)`},
		"across zero":          {sequencer.Options{Increment: ptr[int64](-math.MaxInt64), Max: bound(math.MaxInt64), Start: ptr[int64](math.MaxInt64)}, []int64{math.MaxInt64, 0, -math.MaxInt64}, `nextval: reached minimum value of sequence "s" (-9223372036854775808)`},
	} {
		for mode, cache := range map[string]*int64{"": nil, ", strict": ptr[int64](1), ", cache 2": ptr[int64](2)} {
			t.Run(title+mode, func(t *testing.T) {
				c.options.Cache = cache
				s := create(t, open(t, memstore.New(), sequencer.Config{}), "s", c.options)
				require.Equal(t, sequencer.State{LastValue: c.want[0]}, state(t, s))
				for i, want := range c.want {
					require.Equal(t, want, next(t, s), "value %d", i)
					require.Equal(t, sequencer.State{LastValue: want, IsCalled: true}, state(t, s), "after value %d", i)
				}
				for range 3 {
					if c.end != "" {
						_, err := s.Next(context.Background())
						fails(t, err, "2200H", c.end)
						require.ErrorIs(t, err, sequencer.ErrExhausted)
						require.Equal(t, sequencer.State{LastValue: c.want[len(c.want)-1], IsCalled: true}, state(t, s))
					}
				}
			})
		}
	}
}

// Values are unique, and a call that begins after another one has returned gets a later value.
func TestOrderInOneProcess(t *testing.T) {
	for title, o := range map[string]sequencer.Options{
		"cached": {}, "strict": {Cache: ptr[int64](1)}, "cache 7": {Cache: ptr[int64](7)},
	} {
		t.Run(title, func(t *testing.T) {
			const callers, each = 16, 2000
			s := create(t, open(t, memstore.New(), sequencer.Config{}), "s", o)
			var seen greatest
			var taken sync.Map
			var count atomic.Int64
			var wg sync.WaitGroup
			for caller := range callers {
				wg.Go(func() {
					for i := range each {
						before := seen.Load()
						var values []int64
						if caller%4 == 0 && i%10 == 0 {
							blocks, err := s.NextN(context.Background(), 3)
							assert.NoError(t, err)
							for _, b := range blocks {
								for k := range b.Count {
									values = append(values, b.First+k*b.Increment)
								}
							}
							assert.Len(t, values, 3)
						} else {
							v, err := s.Next(context.Background())
							assert.NoError(t, err)
							values = append(values, v)
						}
						for _, v := range values {
							assert.Greater(t, v, before)
							before = v
							_, again := taken.LoadOrStore(v, true)
							assert.False(t, again, "%d twice", v)
							count.Add(1)
						}
						seen.raise(before)
					}
				})
			}
			wg.Wait()
			require.Equal(t, count.Load(), seen.Load(), "no value is left out")
		})
	}
}

// Strict sequences keep the order of the calls, between processes too, and leave nothing out.
func TestStrictOrder(t *testing.T) {
	const callers, each = 24, 250
	for _, processes := range []int{1, 3} {
		t.Run(fmt.Sprint(processes), func(t *testing.T) {
			backing := memstore.New()
			create(t, open(t, backing, sequencer.Config{}), "s", sequencer.Options{Cache: ptr[int64](1)})
			began := time.Now()
			var mu sync.Mutex
			var draws []history.Draw
			var wg sync.WaitGroup
			for p := range processes {
				rng := rand.New(rand.NewPCG(1, uint64(p)))
				store := faultstore.New(backing, dice(rng, 0))
				s := lookup(t, open(t, store, sequencer.Config{}), "s")
				for range callers / processes {
					wg.Go(func() {
						for range each {
							d := history.Draw{Begin: time.Since(began)}
							v, err := s.Next(context.Background())
							assert.NoError(t, err)
							d.End, d.Values = time.Since(began), []int64{v}
							mu.Lock()
							draws = append(draws, d)
							mu.Unlock()
						}
					})
				}
			}
			wg.Wait()
			require.NoError(t, history.Unique(draws))
			require.NoError(t, history.Ordered(draws))
			require.NoError(t, history.Linearizable(draws))
			require.Empty(t, history.Missing(draws, 1))
		})
	}
}

// Nothing is leased for callers of a strict sequence who gave up while the store was down.
func TestStrictCallersWhoGaveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := faultstore.New(memstore.New(), nil)
		r := open(t, store, sequencer.Config{})
		s := create(t, r, "s", sequencer.Options{Cache: ptr[int64](1)})
		require.EqualValues(t, 1, next(t, s))
		store.Plan(func(string) faultstore.Fault {
			return faultstore.Fault{Delay: 3 * time.Second, Before: faultstore.ErrRefused}
		})
		_, err := s.Next(context.Background())
		require.ErrorIs(t, err, sequencer.ErrStore)
		store.Plan(nil)
		time.Sleep(10 * time.Second)
		asked := func() (n uint64) {
			for request, times := range r.Stats().Requests {
				if request.Op == "lease" {
					n += times
				}
			}
			return n
		}
		before := asked()
		time.Sleep(10 * time.Second)
		require.Equal(t, before, asked())
		require.EqualValues(t, 2, next(t, s))
		require.NoError(t, r.Close(context.Background()))
	})
}

func TestNextN(t *testing.T) {
	ctx := context.Background()
	r := open(t, memstore.New(), sequencer.Config{})
	s := create(t, r, "s", sequencer.Options{Increment: ptr[int64](5), Start: ptr[int64](10)})
	blocks, err := s.NextN(ctx, 100_000)
	require.NoError(t, err)
	require.Equal(t, []sequencer.Block{{First: 10, Count: 100_000, Increment: 5}}, blocks)
	require.EqualValues(t, 500_005, blocks[0].Last())
	require.EqualValues(t, 500_010, next(t, s))

	end := create(t, r, "end", sequencer.Options{Max: &sequencer.Bound{Value: 10}})
	_, err = end.NextN(ctx, 11)
	require.ErrorIs(t, err, sequencer.ErrExhausted)
	for _, n := range []int64{0, -1, math.MinInt64, math.MaxInt64} {
		_, err = s.NextN(ctx, n)
		require.Error(t, err)
	}

	wraps := create(t, r, "wraps", sequencer.Options{Max: &sequencer.Bound{Value: 4}, Cycle: ptr(true)})
	blocks, err = wraps.NextN(ctx, 10)
	require.NoError(t, err)
	require.Equal(t, []sequencer.Block{{1, 4, 1}, {1, 4, 1}, {1, 2, 1}}, blocks)
}

func TestSet(t *testing.T) {
	ctx := context.Background()
	for title, o := range map[string]sequencer.Options{"cached": {}, "strict": {Cache: ptr[int64](1)}} {
		t.Run(title, func(t *testing.T) {
			o.As = ptr(sequencer.Integer)
			s := create(t, open(t, memstore.New(), sequencer.Config{}), "a1", o)
			for _, v := range []int64{0, 3000000000, -5} {
				for _, called := range []bool{true, false} {
					err := s.Set(ctx, v, called)
					fails(t, err, "22003", map[int64]string{
						0:          `setval: value 0 is out of bounds for sequence "a1" (1..2147483647)`,
						3000000000: `setval: value 3000000000 is out of bounds for sequence "a1" (1..2147483647)`,
						-5:         `setval: value -5 is out of bounds for sequence "a1" (1..2147483647)`,
					}[v])
				}
			}
			require.EqualValues(t, []int64{1, 2}, draw(t, s, 2))
			require.NoError(t, s.Set(ctx, 100, true))
			require.Equal(t, sequencer.State{LastValue: 100, IsCalled: true}, state(t, s))
			require.EqualValues(t, []int64{101, 102}, draw(t, s, 2))
			require.NoError(t, s.Set(ctx, 100, false))
			require.Equal(t, sequencer.State{LastValue: 100}, state(t, s))
			require.EqualValues(t, []int64{100, 101}, draw(t, s, 2))
			require.NoError(t, s.Set(ctx, math.MaxInt32, true))
			_, err := s.Next(ctx)
			fails(t, err, "2200H", `nextval: reached maximum value of sequence "a1" (2147483647)`)
			require.NoError(t, s.Set(ctx, 1, false))
			require.EqualValues(t, []int64{1, 2}, draw(t, s, 2))
		})
	}
}

// While others draw: every value after a setval that has returned is one of the new position.
func TestSetWhileOthersDraw(t *testing.T) {
	ctx := context.Background()
	for title, o := range map[string]sequencer.Options{"cached": {}, "strict": {Cache: ptr[int64](1)}} {
		t.Run(title, func(t *testing.T) {
			s := create(t, open(t, memstore.New(), sequencer.Config{}), "s", o)
			const step = 1_000_000
			var floor atomic.Int64
			var stop atomic.Bool
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					for !stop.Load() {
						least := floor.Load()
						v, err := s.Next(ctx)
						assert.NoError(t, err)
						assert.GreaterOrEqual(t, v, least)
					}
				})
			}
			for i := range int64(50) {
				require.NoError(t, s.Set(ctx, (i+1)*step, false))
				floor.Store((i + 1) * step)
			}
			stop.Store(true)
			wg.Wait()
		})
	}
}

// With one process no change skips a value, and bounds are checked against the last value handed out.
func TestAlter(t *testing.T) {
	ctx := context.Background()
	r := open(t, memstore.New(), sequencer.Config{})
	s := create(t, r, "a1", sequencer.Options{As: ptr(sequencer.Integer)})
	require.EqualValues(t, []int64{1, 2, 3}, draw(t, s, 3))
	alter := func(o sequencer.Options) error { return r.Alter(ctx, name("a1"), o) }

	fails(t, alter(sequencer.Options{Max: &sequencer.Bound{Value: 2}}), "22023", "RESTART value (3) cannot be greater than MAXVALUE (2)")
	fails(t, alter(sequencer.Options{Min: &sequencer.Bound{Value: 4}}), "22023", "START value (1) cannot be less than MINVALUE (4)")
	require.EqualValues(t, 4, next(t, s), "a change that is refused changes nothing")
	require.NoError(t, alter(sequencer.Options{Increment: ptr[int64](5)}))
	require.EqualValues(t, 9, next(t, s))
	require.NoError(t, alter(sequencer.Options{Owner: ptr("me")}))
	require.EqualValues(t, 14, next(t, s))
	require.Equal(t, "me", s.Definition().Owner)
	require.NoError(t, alter(sequencer.Options{Max: &sequencer.Bound{Value: 19}}))
	require.EqualValues(t, 19, next(t, s))
	_, err := s.Next(ctx)
	fails(t, err, "2200H", `nextval: reached maximum value of sequence "a1" (19)`)
	require.NoError(t, alter(sequencer.Options{Increment: ptr[int64](-2)}))
	require.EqualValues(t, []int64{17, 15}, draw(t, s, 2))
	require.NoError(t, alter(sequencer.Options{Cache: ptr[int64](1)}))
	require.EqualValues(t, []int64{13, 11}, draw(t, s, 2))
	require.NoError(t, alter(sequencer.Options{Cache: ptr[int64](20), Cycle: ptr(true)}))
	require.EqualValues(t, []int64{9, 7, 5, 3, 1, 19, 17}, draw(t, s, 7))
	require.NoError(t, alter(sequencer.Options{Increment: ptr[int64](1)}))
	require.EqualValues(t, []int64{18, 19, 1}, draw(t, s, 3), "after a wrap too")
	require.NoError(t, alter(sequencer.Options{Restart: &sequencer.Restart{Bare: true}}))
	require.Equal(t, sequencer.State{LastValue: 1}, state(t, s))
	require.NoError(t, alter(sequencer.Options{Increment: ptr[int64](3)}))
	require.EqualValues(t, []int64{1, 4}, draw(t, s, 2), "not yet called: the increment does not count")
	require.ErrorIs(t, r.Alter(ctx, name("none"), sequencer.Options{}), sequencer.ErrUndefined)
}

// A process that ends well gives back what it did not hand out.
func TestCloseLeavesNoGap(t *testing.T) {
	ctx := context.Background()
	store := memstore.New()
	r := open(t, store, sequencer.Config{})
	create(t, r, "up", sequencer.Options{})
	create(t, r, "down", sequencer.Options{Increment: ptr[int64](-3)})
	create(t, r, "cycle", sequencer.Options{Max: &sequencer.Bound{Value: 50}, Cycle: ptr(true)})
	create(t, r, "unused", sequencer.Options{Start: ptr[int64](7)})
	want := map[string]int64{"up": 1, "down": -1, "cycle": 1, "unused": 7}
	for _, n := range []int{1, 49, 1, 99, 300, 0, 51} {
		for _, id := range []string{"up", "down", "cycle"} {
			s := lookup(t, r, id)
			for range n {
				require.Equal(t, want[id], next(t, s))
				want[id] += s.Definition().Increment
				if id == "cycle" && want[id] > 50 {
					want[id] = 1
				}
			}
			if n > 0 {
				last := want[id] - s.Definition().Increment
				if id == "cycle" && want[id] == 1 {
					last = 50
				}
				require.Equal(t, sequencer.State{LastValue: last, IsCalled: true}, state(t, s))
			}
		}
		before := state(t, lookup(t, r, "cycle"))
		require.NoError(t, r.Close(ctx))
		r = open(t, store, sequencer.Config{})
		require.Equal(t, before, state(t, lookup(t, r, "cycle")))
		require.Equal(t, sequencer.State{LastValue: 7}, state(t, lookup(t, r, "unused")))
	}
}

// One process's remainder is not given back over what another one leased.
func TestCloseAfterAnother(t *testing.T) {
	ctx := context.Background()
	store := memstore.New()
	one, two := open(t, store, sequencer.Config{}), open(t, store, sequencer.Config{})
	create(t, one, "s", sequencer.Options{})
	require.EqualValues(t, 1, next(t, lookup(t, one, "s")))
	theirs := next(t, lookup(t, two, "s"))
	require.Greater(t, theirs, int64(1))
	require.NoError(t, one.Close(ctx))
	require.Equal(t, theirs+1, next(t, lookup(t, two, "s")))
	require.NoError(t, two.Close(ctx))
	require.Equal(t, theirs+2, next(t, lookup(t, open(t, store, sequencer.Config{}), "s")))
}

func TestDropped(t *testing.T) {
	ctx := context.Background()
	store := memstore.New()
	here, there := open(t, store, sequencer.Config{}), open(t, store, sequencer.Config{})
	create(t, here, "s", sequencer.Options{})
	held, heldThere := lookup(t, here, "s"), lookup(t, there, "s")
	draw(t, held, 2)
	first := next(t, heldThere)

	require.NoError(t, here.Drop(ctx, name("s")))
	_, err := held.Next(ctx)
	fails(t, err, "42P01", `relation "s" does not exist`)
	require.ErrorIs(t, held.Set(ctx, 1, true), sequencer.ErrUndefined)
	_, err = held.State(ctx)
	require.ErrorIs(t, err, sequencer.ErrUndefined)
	_, err = here.Lookup(ctx, name("s"))
	require.ErrorIs(t, err, sequencer.ErrUndefined)
	require.ErrorIs(t, here.Drop(ctx, name("s")), sequencer.ErrUndefined)

	again := create(t, here, "s", sequencer.Options{})
	require.NotEqual(t, held.Incarnation(), again.Incarnation())
	require.Greater(t, again.Incarnation(), held.Incarnation(), "a later life has a greater id")
	require.NotEqual(t, held.OID(), again.OID())
	require.EqualValues(t, 1, next(t, again))
	_, err = held.Next(ctx)
	require.ErrorIs(t, err, sequencer.ErrUndefined)

	// Elsewhere at the next lease at the latest.
	for n := int64(0); ; n++ {
		v, err := heldThere.Next(ctx)
		if err != nil {
			require.ErrorIs(t, err, sequencer.ErrUndefined)
			break
		}
		require.Equal(t, first+n+1, v)
		require.Less(t, n, int64(1000))
	}
	require.Equal(t, again.Incarnation(), lookup(t, there, "s").Incarnation())
}

// A change made elsewhere is met at the next lease.
func TestChangedElsewhere(t *testing.T) {
	ctx := context.Background()
	store := memstore.New()
	here, there := open(t, store, sequencer.Config{}), open(t, store, sequencer.Config{})
	s := create(t, here, "s", sequencer.Options{Cache: ptr[int64](10)})
	require.EqualValues(t, 1, next(t, s))
	require.NoError(t, there.Alter(ctx, name("s"), sequencer.Options{Increment: ptr[int64](100), Restart: &sequencer.Restart{Value: 5000}}))
	for v := next(t, s); v < 5000; v = next(t, s) {
		require.LessOrEqual(t, v, int64(20), "no lease is added to an old version")
	}
	require.EqualValues(t, 5100, next(t, s))
	require.EqualValues(t, 100, s.Definition().Increment)
}

func TestCacheFixesTheLease(t *testing.T) {
	r := open(t, memstore.New(), sequencer.Config{})
	s := create(t, r, "s", sequencer.Options{Cache: ptr[int64](25)})
	draw(t, s, 1000)
	leases := r.Stats().Leases
	require.GreaterOrEqual(t, leases, uint64(40))
	require.LessOrEqual(t, leases, uint64(42))
}

// With a store that takes its time, the next block is there before the last one ends, and requests are few.
func TestRefillComesInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := faultstore.New(memstore.New(), func(string) faultstore.Fault { return faultstore.Fault{Delay: 100 * time.Millisecond} })
		r := open(t, store, sequencer.Config{})
		s := create(t, r, "s", sequencer.Options{})
		const perSecond = 1000
		var waited time.Duration
		var at time.Time
		for i := range 120 * perSecond {
			if i == 5*perSecond {
				waited, at = 0, time.Now()
			}
			began := time.Now()
			next(t, s)
			waited += time.Since(began)
			time.Sleep(time.Second / perSecond)
		}
		require.Zero(t, waited, "after warm-up nobody waits")
		require.NotZero(t, at)
		stats := r.Stats()
		require.Less(t, stats.Leases, uint64(30))
		require.Greater(t, stats.Depth, int64(9*perSecond), "the supply is ten seconds' worth")
		require.Less(t, stats.Depth, int64(60*perSecond))
		require.NoError(t, r.Close(context.Background()))
	})
}

// A sequence that is hardly used leases little, also after it was used much.
func TestIdleSequencesShrink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := open(t, memstore.New(), sequencer.Config{})
		s := create(t, r, "s", sequencer.Options{})
		for range 20_000 {
			next(t, s)
			time.Sleep(time.Millisecond)
		}
		held := r.Stats().Depth
		require.Greater(t, held, int64(5_000))
		for range held + 500 {
			next(t, s)
			time.Sleep(time.Second)
		}
		require.LessOrEqual(t, r.Stats().Depth, int64(200))
		require.NoError(t, r.Close(context.Background()))
	})
}

func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		store := faultstore.New(memstore.New(), nil)
		r := open(t, store, sequencer.Config{})
		cached := create(t, r, "cached", sequencer.Options{})
		strict := create(t, r, "strict", sequencer.Options{Cache: ptr[int64](1)})
		require.EqualValues(t, 1, next(t, cached))
		require.EqualValues(t, 1, next(t, strict))
		synctest.Wait()

		for title, fault := range map[string]faultstore.Fault{
			"it refuses":    {Before: faultstore.ErrRefused},
			"it is silent":  {Delay: time.Hour},
			"answers early": {After: faultstore.ErrLost},
		} {
			store.Plan(nil)
			depth := r.Stats().Depth
			store.Plan(func(string) faultstore.Fault { return fault })
			for range depth {
				next(t, cached) // what is in hand serves
			}
			for _, s := range []*sequencer.Sequence{cached, strict} {
				began := time.Now()
				_, err := s.Next(ctx)
				fails(t, err, "58030", "could not reserve values in the sequence store")
				require.ErrorIs(t, err, sequencer.ErrStore, title)
				require.NotEmpty(t, err.(*sequencer.Error).Hint)
				require.Equal(t, 5*time.Second, time.Since(began), title)

				canceled, cancel := context.WithTimeout(ctx, time.Second)
				began = time.Now()
				_, err = s.Next(canceled)
				cancel()
				require.Equal(t, "57014", err.(*sequencer.Error).Code)
				require.Equal(t, time.Second, time.Since(began), title)
			}
			require.ErrorIs(t, cached.Set(ctx, 1, true), sequencer.ErrStore)

			// It recovers by itself, and nothing that may have been leased comes back.
			store.Plan(nil)
			time.Sleep(10 * time.Second)
			last := next(t, cached)
			require.Equal(t, last+1, next(t, cached))
			next(t, strict)
		}
		require.NoError(t, r.Close(ctx))
	})
}

// With the store answering, however slowly, there is always enough in hand for an outage of buffer_seconds: nobody notices.
func TestRunway(t *testing.T) {
	for _, latency := range []time.Duration{time.Millisecond, 300 * time.Millisecond, 2 * time.Second} {
		for _, perSecond := range []int{20, 200} {
			t.Run(fmt.Sprint(latency, " ", perSecond), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := faultstore.New(memstore.New(), nil)
					r := open(t, store, sequencer.Config{})
					s := create(t, r, "s", sequencer.Options{})
					require.Equal(t, math.Inf(1), r.Stats().Runway)
					store.Plan(func(string) faultstore.Fault { return faultstore.Fault{Delay: latency} })
					run := func(d time.Duration) (waited time.Duration, least float64) {
						least = math.Inf(1)
						for i := range int(d.Seconds()) * perSecond {
							began := time.Now()
							next(t, s)
							waited += time.Since(began)
							time.Sleep(time.Second / time.Duration(perSecond))
							if i%(perSecond/20) == 0 {
								least = min(least, r.Stats().Runway)
							}
						}
						return waited, least
					}
					run(70 * time.Second) // to warm up
					waited, least := run(time.Minute)
					require.Zero(t, waited)
					require.GreaterOrEqual(t, least, 9.0, "seconds, by a rate that is counted in whole values")
					for range 3 {
						store.Plan(func(string) faultstore.Fault { return faultstore.Fault{Before: faultstore.ErrRefused} })
						waited, _ := run(9 * time.Second)
						require.Zero(t, waited, "nobody notices an outage of that length")
						store.Plan(nil)
						run(15 * time.Second)
					}
					store.Plan(nil)
					require.NoError(t, r.Close(context.Background()))
				})
			})
		}
	}
}

// What Stats says of the runway when the store is lost is for how long callers get values: until the values in hand are used
// up, or until they may not be handed out any more.
func TestRunwayIsTrue(t *testing.T) {
	for title, maxOffline := range map[string]time.Duration{"used up": time.Hour, "not to be used": 12 * time.Second} {
		t.Run(title, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := faultstore.New(memstore.New(), nil)
				r := open(t, store, sequencer.Config{MaxOffline: maxOffline})
				s := create(t, r, "s", sequencer.Options{})
				for range 90 * 50 {
					next(t, s)
					time.Sleep(time.Second / 50)
				}
				store.Plan(func(string) faultstore.Fault { return faultstore.Fault{Before: faultstore.ErrRefused} })
				lost, said := time.Now(), r.Stats().Runway
				require.Greater(t, said, 10.0)
				require.LessOrEqual(t, said, maxOffline.Seconds())
				var asked time.Time
				for {
					asked = time.Now()
					if _, err := s.Next(context.Background()); err != nil {
						require.ErrorIs(t, err, sequencer.ErrStore)
						break
					}
					require.Zero(t, time.Since(asked), "a caller waited and was not told that the store is down")
					time.Sleep(time.Second / 50)
				}
				require.InDelta(t, said, asked.Sub(lost).Seconds(), 0.5)
				if title == "used up" {
					require.Zero(t, r.Stats().Depth)
				}
				require.Less(t, r.Stats().Runway, 1.0)
				store.Plan(nil)
				require.NoError(t, r.Close(context.Background()))
			})
		})
	}
}

func TestCallerGivesUp(t *testing.T) {
	r := open(t, memstore.New(), sequencer.Config{})
	s := create(t, r, "s", sequencer.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := s.Next(ctx)
	fails(t, err, "57014", "canceling statement due to user request")
	require.ErrorIs(t, err, context.Canceled)
	require.EqualValues(t, 1, next(t, s))
}

func TestNextDoesNotAllocate(t *testing.T) {
	ctx := context.Background()
	r := open(t, memstore.New(), sequencer.Config{MinLease: 1_000_000})
	s := create(t, r, "s", sequencer.Options{})
	next(t, s)
	require.Zero(t, testing.AllocsPerRun(10_000, func() { _, _ = s.Next(ctx) }))
	require.Zero(t, testing.AllocsPerRun(10_000, func() { _, _ = r.Lookup(ctx, name("s")) }))
}
