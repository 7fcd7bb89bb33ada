package sequencer_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/faultstore"
	"github.com/nextvald/nextvald/sequencer/memstore"
)

// process is a registry that can be cut off from the store.
type process struct {
	*sequencer.Registry
	store *faultstore.Store
}

func start(t testing.TB, backing sequencer.Store, id string) process {
	store := faultstore.New(backing, nil)
	return process{open(t, store, sequencer.Config{MemberID: id}), store}
}

// cut makes every request fail; mend ends it.
func (p process) cut() {
	p.store.Plan(func(string) faultstore.Fault { return faultstore.Fault{Before: faultstore.ErrRefused} })
}
func (p process) mend() { p.store.Plan(nil) }

func (p process) close(t testing.TB) {
	p.mend()
	require.NoError(t, p.Close(context.Background()))
}

// three starts three processes of which the second and the third hold values of the sequence s, from 1000 on.
func three(t testing.TB) (backing *memstore.Store, a, b, c process) {
	backing = memstore.New()
	a, b, c = start(t, backing, "a"), start(t, backing, "b"), start(t, backing, "c")
	create(t, a.Registry, "s", sequencer.Options{Start: ptr[int64](1000)})
	next(t, lookup(t, b.Registry, "s"))
	next(t, lookup(t, c.Registry, "s"))
	synctest.Wait()
	return backing, a, b, c
}

func TestChangesReachEveryMember(t *testing.T) {
	ctx := context.Background()
	for title, change := range map[string]func(a process, s *sequencer.Sequence) error{
		"setval back":    func(_ process, s *sequencer.Sequence) error { return s.Set(ctx, 5, false) },
		"setval forward": func(_ process, s *sequencer.Sequence) error { return s.Set(ctx, 5000, false) },
		"restart": func(a process, _ *sequencer.Sequence) error {
			return a.Alter(ctx, name("s"), sequencer.Options{Restart: &sequencer.Restart{Value: 5}})
		},
		"increment": func(a process, _ *sequencer.Sequence) error {
			return a.Alter(ctx, name("s"), sequencer.Options{Increment: ptr[int64](1000)})
		},
		"turned": func(a process, _ *sequencer.Sequence) error {
			return a.Alter(ctx, name("s"), sequencer.Options{Increment: ptr[int64](-1)})
		},
		"strict": func(a process, _ *sequencer.Sequence) error {
			return a.Alter(ctx, name("s"), sequencer.Options{Cache: ptr[int64](1)})
		},
	} {
		t.Run(title, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				backing, a, b, c := three(t)
				s := lookup(t, a.Registry, "s")
				next(t, s)
				began := time.Now()
				require.NoError(t, change(a, s))
				require.Less(t, time.Since(began), time.Second)
				version := must(backing.Get(ctx, s.Incarnation())).Version
				require.Greater(t, version, int64(1))
				for _, p := range []process{b, c} {
					require.Zero(t, p.Stats().Depth, "what was held is dropped")
				}
				seen := map[int64]bool{}
				for _, p := range []process{a, b, c} {
					for _, v := range draw(t, lookup(t, p.Registry, "s"), 5) {
						require.False(t, seen[v], "%d twice", v)
						seen[v] = true
						switch title {
						case "setval forward":
							require.GreaterOrEqual(t, v, int64(5000))
						case "increment":
							require.EqualValues(t, 0, (v-200)%1000)
						}
					}
				}
				a.close(t)
				b.close(t)
				c.close(t)
				require.Empty(t, must(backing.Members(ctx)), "who holds nothing signs off")
			})
		})
	}
}

// A change that might give out values again fails while a member does not confirm, and changes nothing.
func TestMemberThatDoesNotConfirm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		backing, a, b, c := three(t)
		s := lookup(t, a.Registry, "s")
		b.cut()
		for title, change := range map[string]func() error{
			"setval": func() error { return s.Set(ctx, 2, true) },
			"restart": func() error {
				return a.Alter(ctx, name("s"), sequencer.Options{Restart: &sequencer.Restart{Bare: true}})
			},
			"drop":   func() error { return a.Drop(ctx, name("s")) },
			"strict": func() error { return a.Alter(ctx, name("s"), sequencer.Options{Cache: ptr[int64](1)}) },
		} {
			before := must(backing.Get(ctx, s.Incarnation()))
			began := time.Now()
			err := change()
			fails(t, err, "58030", `member "b" did not confirm that it dropped its values`)
			require.Contains(t, err.(*sequencer.Error).Hint, "nextvald evict b", title)
			require.InDelta(t, 5, time.Since(began).Seconds(), 0.1)
			after := must(backing.Get(ctx, s.Incarnation()))
			require.Equal(t, []any{before.Definition, sequencer.Active}, []any{after.Definition, after.State})
			require.Greater(t, after.Pos.Compare(sequencer.At(1100)), 0)
			next(t, s)
			next(t, lookup(t, b.Registry, "s")) // who is cut off goes on with what it holds
			synctest.Wait()
		}

		// One that is safe without the member's word waits a second for it, and succeeds.
		began := time.Now()
		require.NoError(t, s.Set(ctx, 10_000, true))
		require.InDelta(t, 1, time.Since(began).Seconds(), 0.1)
		require.EqualValues(t, 10_001, next(t, s))

		// Once it is known to be dead, nobody waits for it.
		require.ErrorIs(t, a.Evict(ctx, "x"), sequencer.ErrNotFound)
		members, err := a.Members(ctx)
		require.NoError(t, err)
		require.Len(t, members, 3)
		require.NoError(t, a.Evict(ctx, "b"))
		require.NoError(t, s.Set(ctx, 2, true))
		require.EqualValues(t, 3, next(t, s))

		// And when it was not dead, it drops what it holds and comes back.
		b.mend()
		time.Sleep(2 * time.Minute)
		require.Zero(t, b.Stats().Depth)
		next(t, lookup(t, b.Registry, "s"))
		members, err = a.Members(ctx)
		require.NoError(t, err)
		require.Len(t, members, 3)
		for _, p := range []process{a, b, c} {
			p.close(t)
		}
	})
}

// A process that is cut off hands out what it holds for a while, then stops; after twice that time nobody waits for it.
func TestMaxOffline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		_, a, b, c := three(t)
		s, held := lookup(t, a.Registry, "s"), lookup(t, b.Registry, "s")
		b.cut()
		time.Sleep(4*time.Minute + 50*time.Second)
		last := next(t, held)
		time.Sleep(11 * time.Second)
		depth := b.Stats().Depth
		for range 3 {
			_, err := held.Next(ctx)
			fails(t, err, "58030", "could not reserve values in the sequence store")
			require.ErrorContains(t, err, "nothing was heard of the store's feed for 5m0s")
			_, err = held.NextN(ctx, 2)
			require.ErrorIs(t, err, sequencer.ErrStore)
		}
		require.InDelta(t, depth, b.Stats().Depth, 3, "what is held is kept")
		require.ErrorIs(t, s.Set(ctx, 2, true), sequencer.ErrStore)
		time.Sleep(5*time.Minute + 10*time.Second)
		require.NoError(t, s.Set(ctx, 2, true))

		// Back again, the process finds that its values are of an old version.
		b.mend()
		v := next(t, held)
		require.NotEqual(t, last+1, v)
		time.Sleep(time.Second)
		require.Less(t, next(t, s), int64(500))
		require.Greater(t, next(t, held), v)

		// One that comes back in time goes on with what it holds.
		c.cut()
		other := lookup(t, c.Registry, "s")
		c.mend()
		time.Sleep(time.Second)
		last = next(t, other)
		c.cut()
		time.Sleep(6 * time.Minute)
		_, err := other.Next(ctx)
		require.Error(t, err)
		c.mend()
		time.Sleep(time.Second)
		require.InDelta(t, last+1, next(t, other), 1)
		for _, p := range []process{a, b, c} {
			p.close(t)
		}
	})
}

// jumping is a clock whose machine is suspended: the wall clock goes on, the monotonic clock and timers do not.
type jumping struct {
	mu  sync.Mutex
	gap time.Duration
}

func (j *jumping) Now() time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	return time.Now().Round(0).Add(j.gap)
}

func (j *jumping) After(d time.Duration) (<-chan time.Time, func()) {
	t := time.NewTimer(d)
	return t.C, func() { t.Stop() }
}

func (j *jumping) jump(d time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.gap += d
}

func (j *jumping) set(to time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.gap = to
}

// After a suspension the first claim already knows.
func TestSuspended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		backing := memstore.New()
		clock := &jumping{}
		store := faultstore.New(backing, nil)
		r := open(t, store, sequencer.Config{Clock: clock, MemberID: "sleeper"})
		other := start(t, backing, "other")
		s := create(t, r, "s", sequencer.Options{})
		draw(t, s, 3)
		synctest.Wait()
		clock.jump(time.Hour)
		members, err := other.Members(ctx)
		require.NoError(t, err)
		require.NoError(t, other.Evict(ctx, members[0].ID))
		require.NoError(t, lookup(t, other.Registry, "s").Set(ctx, 3, false))
		theirs := next(t, lookup(t, other.Registry, "s"))
		require.EqualValues(t, 3, theirs)
		require.Greater(t, next(t, s), int64(4), "not what it held")
		require.NoError(t, r.Close(ctx))
		other.close(t)
	})
}

// A process that starts again under its id takes the place of its old self, and nobody waits for that.
func TestRestartedUnderItsID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		backing, a, b, c := three(t)
		s := lookup(t, a.Registry, "s")
		b.cut() // dead, as far as anybody can tell
		require.ErrorIs(t, s.Set(ctx, 2, true), sequencer.ErrStore)
		again := start(t, backing, "b")
		next(t, lookup(t, again.Registry, "s"))
		require.NoError(t, s.Set(ctx, 2, true))

		// Two that live under one id by mistake go on under two.
		b.mend()
		time.Sleep(2 * time.Minute)
		next(t, lookup(t, b.Registry, "s"))
		time.Sleep(5 * time.Minute)
		next(t, lookup(t, again.Registry, "s"))
		next(t, lookup(t, b.Registry, "s"))
		members, err := a.Members(ctx)
		require.NoError(t, err)
		require.Len(t, members, 3, "%v", members)
		for _, p := range []process{a, b, c, again} {
			p.close(t)
		}
	})
}

// A change whose author died half way is undone by who comes next.
func TestAuthorDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		backing, a, b, c := three(t)
		s := lookup(t, b.Registry, "s")
		item := must(backing.Get(ctx, s.Incarnation()))
		_, err := backing.Revoke(ctx, item.Incarnation, item.Version, "died")
		require.NoError(t, err)
		_, err = backing.Announce(ctx, sequencer.Announcement{Incarnation: item.Incarnation})
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.Zero(t, b.Stats().Depth)
		began := time.Now()
		for {
			_, err := s.Next(ctx)
			if err == nil {
				break
			}
			require.ErrorIs(t, err, sequencer.ErrStore)
			require.Less(t, time.Since(began), 20*time.Second)
		}
		require.Greater(t, time.Since(began), 9*time.Second)
		require.Equal(t, sequencer.Active, must(backing.Get(ctx, s.Incarnation())).State)
		require.NoError(t, lookup(t, a.Registry, "s").Set(ctx, 7, true))
		for _, p := range []process{a, b, c} {
			p.close(t)
		}
	})
}

// A caller who gives up while members are waited for gets the change undone.
func TestCallerGivesUpAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b, c := three(t)
		s := lookup(t, a.Registry, "s")
		before := next(t, s)
		synctest.Wait()
		b.cut()
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		err := s.Set(ctx, 1, false)
		require.Equal(t, "57014", err.(*sequencer.Error).Code)
		require.Equal(t, before+1, next(t, s), "and not a value is lost here")
		for _, p := range []process{a, b, c} {
			p.close(t)
		}
	})
}

// A lease that was made before a change and is answered after the process confirmed the change is not used.
func TestLeaseAnsweredAfterTheChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		backing, a, b, c := three(t)
		slow := &slowAnswers{Store: backing}
		r := open(t, slow, sequencer.Config{MemberID: "slow"})
		s := lookup(t, r, "s")
		got := make(chan int64)
		go func() {
			v, err := s.Next(ctx)
			assert.NoError(t, err)
			got <- v
		}()
		time.Sleep(100 * time.Millisecond) // the lease is made, and not answered
		require.NoError(t, lookup(t, a.Registry, "s").Set(ctx, 1_000_000, false))
		require.NoError(t, lookup(t, a.Registry, "s").Set(ctx, 500_000, false))
		require.GreaterOrEqual(t, <-got, int64(500_000))
		require.NoError(t, r.Close(ctx))
		for _, p := range []process{a, b, c} {
			p.close(t)
		}
	})
}

// slowAnswers is a store whose first answer to a lease takes 3 s.
type slowAnswers struct {
	*memstore.Store
	once sync.Once
}

func (s *slowAnswers) Lease(ctx context.Context, item sequencer.Item, count int64) (sequencer.Lease, error) {
	l, err := s.Store.Lease(ctx, item, count)
	s.once.Do(func() { time.Sleep(3 * time.Second) })
	return l, err
}

// Many processes, faults, and positions that move back and forth: after a setval that succeeded, no call that begins gets a
// value of an older one (as far as it moved back); and no two calls get one value between two setvals.
func TestSetUnderFaults(t *testing.T) {
	for range 3 {
		seed := rand.Uint64()
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { setUnderFaults(t, seed) })
		})
	}
}

func setUnderFaults(t *testing.T, seed uint64) {
	const processes, callers, step = 3, 3, 1_000_000
	ctx := context.Background()
	backing := memstore.New()
	author := start(t, backing, "author")
	create(t, author.Registry, "s", sequencer.Options{Cache: ptr[int64](20)})

	var mu sync.Mutex
	order := map[int64]int{0: 0} // the number of the setval that moved to a range of values, by the range
	settled := 0                 // the last setval that succeeded
	taken := map[int64]bool{}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for p := range processes {
		proc := start(t, backing, fmt.Sprint("p", p))
		proc.store.Plan(dice(rand.New(rand.NewPCG(seed, uint64(p))), 10))
		wg.Go(func() {
			var live sync.WaitGroup
			for c := range callers {
				pauses := rand.New(rand.NewPCG(seed, uint64(100+10*p+c)))
				live.Go(func() {
					for {
						select {
						case <-stop:
							return
						case <-time.After(time.Duration(pauses.IntN(100)) * time.Millisecond):
						}
						mu.Lock()
						least := settled
						mu.Unlock()
						s, err := proc.Lookup(ctx, name("s"))
						var v int64
						if err == nil {
							v, err = s.Next(ctx)
						}
						mu.Lock()
						if err == nil {
							assert.GreaterOrEqual(t, order[v/step], least, "%d is of an old version", v)
							assert.False(t, taken[v], "%d twice", v)
							taken[v] = true
						} else {
							assert.ErrorIs(t, err, sequencer.ErrStore)
						}
						mu.Unlock()
					}
				})
			}
			live.Wait()
			closing, cancel := context.WithTimeout(ctx, 3*time.Second)
			defer cancel()
			_ = proc.Close(closing)
			proc.store.Wait()
		})
	}

	rng := rand.New(rand.NewPCG(seed, 99))
	author.store.Plan(dice(rand.New(rand.NewPCG(seed, 98)), 10))
	ranges := rng.Perm(40)
	succeeded := 0
	for i, at := range ranges {
		to := int64(at + 1)
		mu.Lock()
		order[to] = i + 1
		mu.Unlock()
		s, err := author.Lookup(ctx, name("s"))
		if err == nil {
			err = s.Set(ctx, to*step, false)
		}
		mu.Lock()
		if err == nil {
			succeeded++
			// One that moves beyond everything leased does not depend on everybody's word.
			for v := range taken {
				if v/step > to {
					settled = i + 1
				}
			}
		}
		mu.Unlock()
		time.Sleep(time.Duration(rng.IntN(2000)) * time.Millisecond)
	}
	close(stop)
	wg.Wait()
	t.Logf("%d of %d setvals, %d values", succeeded, len(ranges), len(taken))
	require.Greater(t, succeeded, len(ranges)/4)
	author.store.Wait()
	author.close(t)
}

// A renewal that comes to the store when later ones have been there does not make the member expire before it stops.
func TestLateRenewal(t *testing.T) {
	for _, joining := range []bool{true, false} {
		t.Run(fmt.Sprint("joining ", joining), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const maxOffline, late = 30 * time.Second, 35 * time.Second
				backing := memstore.New()
				author, store := start(t, backing, "author"), faultstore.New(backing, nil)
				r := open(t, store, sequencer.Config{MemberID: "late", MaxOffline: maxOffline})
				s := create(t, author.Registry, "s", sequencer.Options{})
				held := lookup(t, r, "s")
				comesLate := func() {
					var once sync.Once
					store.Plan(func(op string) (f faultstore.Fault) {
						if op == "put_member" {
							once.Do(func() { f = faultstore.Fault{Delay: late, Late: true} })
						}
						return f
					})
				}
				landed := time.Now().Add(late)
				if joining {
					comesLate()
					_, err := held.Next(context.Background()) // which the write of the membership times out for
					require.ErrorIs(t, err, sequencer.ErrStore)
				}
				next(t, held)
				if !joining {
					comesLate()
					landed = landed.Add(maxOffline/5 + 300*time.Millisecond) // the next renewal
				}
				time.Sleep(time.Until(landed) + 300*time.Millisecond)
				store.Plan(func(string) faultstore.Fault { return faultstore.Fault{Before: faultstore.ErrRefused} })
				for {
					err := s.Set(context.Background(), 1, true)
					_, serves := held.TryNext()
					if err == nil {
						require.False(t, serves, "it was not waited for, and hands out what it holds")
						break
					}
					time.Sleep(time.Second)
				}
				store.Plan(nil)
				author.close(t)
				require.NoError(t, r.Close(context.Background()))
				store.Wait()
			})
		})
	}
}

// A process comes back when nobody waits for its word any more, and reads the feed before a change and says that it is a
// member after it. It must not hand out what it holds then, although it has just followed the feed.
func TestChangeWhileAMemberComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		_, a, b, c := three(t)
		s, held := lookup(t, a.Registry, "s"), lookup(t, b.Registry, "s")
		old := next(t, held)
		b.cut()
		time.Sleep(11 * time.Minute)
		var wrote atomic.Bool // once it is a member again it does not hear of anything
		b.store.Plan(func(op string) faultstore.Fault {
			if op == "put_member" {
				wrote.Store(true)
				return faultstore.Fault{Delay: 900 * time.Millisecond}
			}
			if wrote.Load() {
				return faultstore.Fault{Before: faultstore.ErrRefused}
			}
			return faultstore.Fault{}
		})
		for !wrote.Load() {
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
		}
		require.NoError(t, s.Set(ctx, old-100, true), "nobody waits for the process")
		time.Sleep(2 * time.Second)
		_, err := held.Next(ctx)
		require.ErrorIs(t, err, sequencer.ErrStore)
		b.mend()
		time.Sleep(time.Second)
		require.Less(t, next(t, held), old)
		for _, p := range []process{a, b, c} {
			p.close(t)
		}
	})
}

// suspended is a clock of a machine that was asleep: its wall clock went on, its monotonic clock and its timers did not.
type suspended struct{ jumping }

func (s *suspended) Now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	// A time adds to both clocks or has one of them only, but for those that the system tells.
	type parts struct {
		_         uint64
		monotonic int64
	}
	later := now.Add(s.gap)
	(*parts)(unsafe.Pointer(&later)).monotonic -= int64(s.gap)
	return later
}

// After a suspension a process says that it is a member before it hands out what it holds.
func TestSuspendedMemberRenews(t *testing.T) {
	ctx := context.Background()
	backing := memstore.New()
	clock := &suspended{}
	r := open(t, backing, sequencer.Config{Clock: clock})
	s := create(t, r, "s", sequencer.Options{})
	draw(t, s, 3)
	clock.jump(time.Hour)
	began := time.Now()
	require.Less(t, clock.Now().Sub(began), time.Minute, "this clock does not do what it should")
	next(t, s)
	members, err := backing.Members(ctx)
	require.NoError(t, err)
	require.Greater(t, members[0].Expires, clock.Now().UnixMilli())
	require.NoError(t, r.Close(ctx))
}
