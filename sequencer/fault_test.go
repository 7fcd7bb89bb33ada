package sequencer_test

import (
	"context"
	"errors"
	"fmt"
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

// dice makes a plan of faults: of a hundred requests, so many go wrong in one way or another.
func dice(rng *rand.Rand, percent int) func(string) faultstore.Fault {
	var mu sync.Mutex
	return func(string) faultstore.Fault {
		mu.Lock()
		defer mu.Unlock()
		f := faultstore.Fault{Delay: time.Duration(rng.IntN(3000)) * time.Microsecond}
		if rng.IntN(100) >= percent {
			return f
		}
		switch rng.IntN(5) {
		case 0:
			f.Before = faultstore.ErrRefused
		case 1:
			f.Before = faultstore.ErrLost
		case 2:
			f.After = faultstore.ErrLost
		case 3:
			f.Delay = time.Duration(rng.IntN(8000)) * time.Millisecond
		case 4:
			f.Delay, f.Late = time.Duration(rng.IntN(12000))*time.Millisecond, true
		}
		return f
	}
}

// Several processes on one store that fails in every way, closed and opened again all the time: no value comes twice, and
// in each process values only grow. Those of a strict sequence come in the order of the calls of all of them.
func TestNoDuplicatesUnderFaults(t *testing.T) {
	for title, o := range map[string]sequencer.Options{
		"cached":  {},
		"strict":  {Cache: ptr[int64](1)},
		"down":    {Increment: ptr[int64](-7), Cache: ptr[int64](12)},
		"no room": {Max: &sequencer.Bound{Value: 3000}},
	} {
		t.Run(title, func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			synctest.Test(t, func(t *testing.T) { underFaults(t, seed, o) })
		})
	}
}

func underFaults(t *testing.T, seed uint64, o sequencer.Options) {
	const processes, lives, callers, each = 3, 4, 4, 60
	ctx := context.Background()
	backing := memstore.New()
	s := create(t, open(t, backing, sequencer.Config{}), "s", o)
	increment := s.Definition().Increment

	var mu sync.Mutex
	taken := map[int64]string{}
	var draws []history.Draw
	began := time.Now()
	failures := 0
	var wg sync.WaitGroup
	for process := range processes {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(process)))
			faulty := faultstore.New(backing, nil)
			for life := range lives {
				faulty.Plan(nil)
				r := open(t, faulty, sequencer.Config{Rand: func() float64 { return 0.5 }})
				faulty.Plan(dice(rng, 25))
				var live sync.WaitGroup
				for caller := range callers {
					pauses := rand.New(rand.NewPCG(seed, uint64(1000*process+10*life+caller)))
					live.Go(func() {
						last, drew := int64(0), false
						for range each {
							d := history.Draw{Begin: time.Since(began)}
							seq, err := r.Lookup(ctx, name("s"))
							var v int64
							if err == nil {
								v, err = seq.Next(ctx)
							}
							time.Sleep(time.Duration(pauses.IntN(200)) * time.Millisecond)
							mu.Lock()
							switch {
							case err != nil:
								failures++
								if !errors.Is(err, sequencer.ErrStore) && !errors.Is(err, sequencer.ErrExhausted) {
									assert.NoError(t, err)
								}
							default:
								who := fmt.Sprintf("process %d, life %d, caller %d", process, life, caller)
								if other, again := taken[v]; again {
									t.Errorf("%d for %s and for %s", v, other, who)
								}
								taken[v] = who
								assert.True(t, !drew || (v-last)*increment > 0, "%d after %d", v, last)
								last, drew = v, true
								draws = append(draws, d)
							}
							mu.Unlock()
						}
					})
				}
				live.Wait()
				closing, cancel := context.WithTimeout(ctx, 3*time.Second)
				_ = r.Close(closing) // what it could not give back is a gap
				cancel()
			}
			faulty.Wait()
		})
	}
	wg.Wait()
	t.Logf("%d values, %d failures", len(taken), failures)
	require.Greater(t, len(taken), 300, "or the test shows nothing")
	if o.Cache != nil && *o.Cache == 1 {
		require.NoError(t, history.Ordered(draws))
		require.NoError(t, history.Linearizable(draws))
	}
}

// A sequence that goes round hands out no value twice in one round, whatever fails: no more often than there were rounds.
func TestRoundsUnderFaults(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		const processes, callers, each = 3, 4, 400
		ctx := context.Background()
		backing := &rounds{Store: memstore.New()}
		create(t, open(t, backing, sequencer.Config{}), "s", sequencer.Options{Max: &sequencer.Bound{Value: 250}, Cycle: ptr(true)})
		var mu sync.Mutex
		taken := map[int64]int64{}
		var wg sync.WaitGroup
		for p := range processes {
			store := faultstore.New(backing, nil)
			r := open(t, store, sequencer.Config{MinLease: 7, MaxLease: 40})
			store.Plan(dice(rand.New(rand.NewPCG(seed, uint64(p))), 20))
			wg.Go(func() {
				var live sync.WaitGroup
				for n := range callers {
					pauses := rand.New(rand.NewPCG(seed, uint64(100+10*p+n)))
					live.Go(func() {
						for range each {
							s, err := r.Lookup(ctx, name("s"))
							var v int64
							if err == nil {
								v, err = s.Next(ctx)
							}
							if err == nil {
								mu.Lock()
								taken[v]++
								mu.Unlock()
							}
							time.Sleep(time.Duration(pauses.IntN(200)) * time.Millisecond)
						}
					})
				}
				live.Wait()
				closing, cancel := context.WithTimeout(ctx, 3*time.Second)
				defer cancel()
				_ = r.Close(closing) // what it could not give back is a gap
				store.Wait()
			})
		}
		wg.Wait()
		turns := backing.turns.Load()
		t.Logf("%d rounds", turns+1)
		require.Greater(t, turns, int64(3), "or the test shows nothing")
		for v, times := range taken {
			require.LessOrEqual(t, times, turns+1, "%d was handed out more often than there were rounds", v)
		}
	})
}

// rounds counts how often a sequence was moved back to its beginning.
type rounds struct {
	sequencer.Store
	turns atomic.Int64
}

func (r *rounds) Put(ctx context.Context, item sequencer.Item, ifRev int64) error {
	err := r.Store.Put(ctx, item, ifRev)
	if err == nil && ifRev != 0 {
		r.turns.Add(1)
	}
	return err
}

// A change whose answer is lost is settled by reading back, as if it had not been.
func TestLostAnswersAreSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		for _, fault := range []faultstore.Fault{{After: faultstore.ErrLost}, {Before: faultstore.ErrLost}, {Before: faultstore.ErrRefused}} {
			backing := memstore.New()
			store := faultstore.New(backing, nil)
			r := open(t, store, sequencer.Config{})
			// lose makes the first request of an operation go wrong.
			lose := func(op string) {
				var mu sync.Mutex
				done := false
				store.Plan(func(asked string) faultstore.Fault {
					mu.Lock()
					defer mu.Unlock()
					if asked != op || done {
						return faultstore.Fault{}
					}
					done = true
					return fault
				})
			}
			for _, op := range []string{"put", "put_name", "announce", "next_oid", "resolve"} {
				lose(op)
				s := create(t, r, "s"+op, sequencer.Options{})
				require.EqualValues(t, 1, next(t, s), op)
				_, err := backing.Resolve(ctx, name("s"+op))
				require.NoError(t, err)
			}
			lose("put")
			s := lookup(t, r, "sput")
			require.NoError(t, s.Set(ctx, 10, true))
			require.EqualValues(t, 11, next(t, s))
			require.EqualValues(t, 2, must(backing.Get(ctx, s.Incarnation())).Version, "it was made once")
			lose("put")
			require.NoError(t, r.Alter(ctx, name("sput"), sequencer.Options{Increment: ptr[int64](5)}))
			require.EqualValues(t, 16, next(t, s))
			for _, op := range []string{"put_name", "delete_name"} {
				lose(op)
				require.NoError(t, r.Rename(ctx, name("sput"), name("renamed")), op)
				require.NoError(t, r.Rename(ctx, name("renamed"), name("sput")), op)
				require.Len(t, must(backing.Names(ctx, "shop")), 5)
			}
			for n, op := range map[string]string{
				"sput": "delete_name", "sput_name": "delete", "sannounce": "announce", "snext_oid": "get", "sresolve": "",
			} {
				lose(op)
				require.NoError(t, r.Drop(ctx, name(n)), op)
			}
			require.Empty(t, must(backing.Names(ctx, "shop")))
			require.NoError(t, r.Close(ctx))
		}
	})
}

// An announcement that the store did not take is made up for: others hear of the change all the same.
func TestAnnouncementsAreMadeUpFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		backing := memstore.New()
		store := faultstore.New(backing, nil)
		here, there := open(t, store, sequencer.Config{}), open(t, backing, sequencer.Config{})
		require.NoError(t, there.Load(ctx, "shop"))
		store.Plan(func(op string) faultstore.Fault {
			if op == "announce" {
				return faultstore.Fault{Before: faultstore.ErrRefused}
			}
			return faultstore.Fault{}
		})
		create(t, here, "s", sequencer.Options{})
		time.Sleep(10 * time.Second)
		require.False(t, there.Known("shop")("s"))
		store.Plan(nil)
		time.Sleep(time.Second)
		require.True(t, there.Known("shop")("s"))
		require.NoError(t, here.Close(ctx))
		require.NoError(t, there.Close(ctx))
	})
}

// A lease that comes to the store after its caller gave up, and after a give-back, moves the position and nothing else.
func TestLateLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		backing := memstore.New()
		store := faultstore.New(backing, nil)
		r := open(t, store, sequencer.Config{StoreTimeout: time.Second})
		s := create(t, r, "s", sequencer.Options{Cache: ptr[int64](10)})
		require.EqualValues(t, 1, next(t, s))
		synctest.Wait()
		depth := r.Stats().Depth
		store.Plan(func(op string) faultstore.Fault {
			if op == "lease" {
				return faultstore.Fault{Delay: 3 * time.Second, Late: true}
			}
			return faultstore.Fault{}
		})
		last := int64(1)
		for range depth {
			last = next(t, s)
		}
		_, err := s.Next(ctx)
		require.ErrorIs(t, err, sequencer.ErrStore)
		require.NoError(t, r.Close(ctx))
		store.Wait()
		other := open(t, backing, sequencer.Config{})
		require.Greater(t, next(t, lookup(t, other, "s")), last)
		require.NoError(t, other.Close(ctx))
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
