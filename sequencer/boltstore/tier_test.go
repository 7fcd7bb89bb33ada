package boltstore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/boltstore"
	"github.com/nextvald/nextvald/sequencer/faultstore"
	"github.com/nextvald/nextvald/sequencer/memstore"
	"github.com/nextvald/nextvald/sequencer/storetest"
)

// A tier that leases no more than is asked for is a store as any other.
func TestTierIsAStore(t *testing.T) {
	storetest.Run(t, func(t testing.TB) storetest.Opener {
		path := filepath.Join(t.TempDir(), "tier.db")
		namespaces := map[string]*memstore.Store{}
		return func(t testing.TB, namespace string) sequencer.Store {
			if namespaces[namespace] == nil {
				namespaces[namespace] = memstore.New()
			}
			s, err := boltstore.OpenTier(context.Background(), path, namespaces[namespace],
				boltstore.TierConfig{Multiple: 1, WitnessFolder: t.TempDir()})
			require.NoError(t, err)
			return s
		}
	})
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// host is a machine: a folder on disk, and one in memory that is lost when the machine starts again.
type host struct {
	folder, memory string
}

func newHost(t testing.TB) *host { return &host{folder: t.TempDir(), memory: t.TempDir()} }

func (h *host) path(file string) string { return filepath.Join(h.folder, file) }

// reboot forgets what is in memory.
func (h *host) reboot(t testing.TB) {
	require.NoError(t, os.RemoveAll(h.memory))
	require.NoError(t, os.Mkdir(h.memory, 0o700))
}

// copyFile copies over what is there, as cp does.
func copyFile(t testing.TB, from, to string) {
	data, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(to, data, 0o600))
}

// process is a registry over a tier on a store that can be cut off.
type process struct {
	*sequencer.Registry
	tier  *boltstore.Tier
	store *faultstore.Store
}

// start starts a process on a file.
func start(t testing.TB, backing sequencer.Store, h *host, file string) (*process, error) {
	store := faultstore.New(backing, nil)
	tier, err := boltstore.OpenTier(context.Background(), h.path(file), store,
		boltstore.TierConfig{Logger: quiet, WitnessFolder: h.memory})
	if err != nil {
		return nil, err
	}
	r, err := sequencer.Open(context.Background(), tier, sequencer.Config{Logger: quiet, MemberID: h.path(file)})
	if err != nil {
		return nil, errors.Join(err, tier.Close())
	}
	p := &process{r, tier, store}
	return p, nil
}

func run(t testing.TB, backing sequencer.Store, h *host, file string) *process {
	p, err := start(t, backing, h, file)
	require.NoError(t, err)
	return p
}

// cut makes every request to the store fail; mend ends it.
func (p *process) cut() {
	p.store.Plan(func(string) faultstore.Fault { return faultstore.Fault{Before: faultstore.ErrRefused} })
}
func (p *process) mend() { p.store.Plan(nil) }

// stop ends the process as SIGTERM does, kill as SIGKILL does.
func (p *process) stop(t testing.TB) {
	require.NoError(t, p.Close(context.Background()))
	require.NoError(t, p.tier.Close())
}

func (p *process) kill(t testing.TB) {
	p.cut()
	require.NoError(t, p.tier.Crash())
	done, cancel := context.WithCancel(context.Background())
	cancel()
	_ = p.Close(done) // which only ends its goroutines
	p.store.Wait()
}

func name(n string) sequencer.Name {
	return sequencer.Name{Database: "shop", Schema: "public", Name: n}
}

func create(t testing.TB, r *sequencer.Registry, n string, o sequencer.Options) {
	d, err := sequencer.Define(o)
	require.NoError(t, err)
	_, err = r.Create(context.Background(), name(n), d)
	require.NoError(t, err)
}

func (p *process) sequence(t testing.TB, n string) *sequencer.Sequence {
	s, err := p.Lookup(context.Background(), name(n))
	require.NoError(t, err)
	return s
}

func (p *process) next(t testing.TB, n string) int64 {
	v, err := p.sequence(t, n).Next(context.Background())
	require.NoError(t, err)
	return v
}

// draw draws many values and returns the last one.
func (p *process) draw(t testing.TB, n string, count int) (last int64) {
	for range count {
		last = p.next(t, n)
	}
	return last
}

func state(t testing.TB, s *sequencer.Sequence) sequencer.State {
	st, err := s.State(context.Background())
	require.NoError(t, err)
	st.LogCnt = 0 // any number
	return st
}

func ptr[T any](v T) *T { return &v }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// requests counts the leases that a process made at the store beneath.
type counting struct {
	sequencer.Store
	mu     sync.Mutex
	leases int
}

func (c *counting) Lease(ctx context.Context, item sequencer.Item, count int64) (sequencer.Lease, error) {
	c.mu.Lock()
	c.leases++
	c.mu.Unlock()
	return c.Store.Lease(ctx, item, count)
}

// A process that ends well leaves no gap, shows its position exactly, and changes it exactly; a lease at the store is rare.
func TestTierLeavesNoGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		backing := &counting{Store: memstore.New()}
		h := newHost(t)
		p := run(t, backing, h, "tier.db")
		create(t, p.Registry, "up", sequencer.Options{})
		create(t, p.Registry, "down", sequencer.Options{Increment: ptr[int64](-3)})
		create(t, p.Registry, "cycle", sequencer.Options{Max: &sequencer.Bound{Value: 5000}, Cycle: ptr(true)})
		create(t, p.Registry, "unused", sequencer.Options{Start: ptr[int64](7)})
		want := map[string]int64{"up": 1, "down": -1, "cycle": 1}
		for _, n := range []int{1, 49, 1, 99, 300, 0, 51, 4300, 900, 700} {
			for _, id := range []string{"up", "down", "cycle"} {
				s := p.sequence(t, id)
				for range n {
					require.Equal(t, want[id], p.next(t, id), id)
					want[id] += s.Definition().Increment
					if id == "cycle" && want[id] > 5000 {
						want[id] = 1
					}
				}
				last := want[id] - s.Definition().Increment
				if id == "cycle" && want[id] == 1 {
					last = 5000
				}
				require.Equal(t, sequencer.State{LastValue: last, IsCalled: true}, state(t, s), "%s after %d", id, n)
				if n == 300 {
					// A change that keeps the position does.
					require.NoError(t, p.Alter(ctx, name(id), sequencer.Options{Owner: ptr("me")}))
				}
			}
			before := state(t, p.sequence(t, "up"))
			p.stop(t)
			if n == 51 {
				h.reboot(t)
			}
			p = run(t, backing, h, "tier.db")
			require.Equal(t, before, state(t, p.sequence(t, "up")))
			require.Equal(t, sequencer.State{LastValue: 7}, state(t, p.sequence(t, "unused")))
		}
		require.Less(t, backing.leases, 40+6100/50, "cycle is too short for large blocks, the others are not")
		p.stop(t)
	})
}

// A process that is killed loses what it had in memory and no more; one whose machine went down loses its blocks.
func TestTierCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backing := memstore.New()
		h := newHost(t)
		p := run(t, backing, h, "tier.db")
		create(t, p.Registry, "s", sequencer.Options{})
		last := p.draw(t, "s", 30)
		synctest.Wait()
		for range 5 {
			depth := p.Stats().Depth
			p.kill(t)
			p = run(t, backing, h, "tier.db")
			require.Equal(t, last+depth+1, p.next(t, "s"))
			last = p.draw(t, "s", 75)
			synctest.Wait()
		}
		end := must(backing.Get(context.Background(), p.sequence(t, "s").Incarnation())).Pos
		p.kill(t)
		h.reboot(t)
		p = run(t, backing, h, "tier.db")
		require.Equal(t, end, sequencer.At(p.next(t, "s")))
		p.stop(t)
		marks := must(backing.Members(context.Background()))
		require.Len(t, marks, 1, "%v", marks)
		require.True(t, marks[0].Mark())
	})
}

// While the store is down the blocks in the file go on, for as long as the process may be without it.
func TestTierOutlivesItsStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backing := memstore.New()
		p := run(t, backing, newHost(t), "tier.db")
		create(t, p.Registry, "s", sequencer.Options{})
		p.next(t, "s")
		synctest.Wait()
		p.cut()
		require.EqualValues(t, 9000, p.draw(t, "s", 8999))
		time.Sleep(4 * time.Minute)
		p.draw(t, "s", 100)
		time.Sleep(2 * time.Minute)
		_, err := p.sequence(t, "s").Next(context.Background())
		require.ErrorIs(t, err, sequencer.ErrStore)
		p.mend()
		time.Sleep(time.Second)
		require.InDelta(t, 9101, p.next(t, "s"), 1)
		p.stop(t)

		// Without the store nothing starts, and afterwards nothing is lost.
		store := faultstore.New(backing, func(string) faultstore.Fault { return faultstore.Fault{Before: faultstore.ErrRefused} })
		h := newHost(t)
		_, err = boltstore.OpenTier(context.Background(), h.path("x.db"), store, boltstore.TierConfig{Logger: quiet, WitnessFolder: h.memory})
		require.ErrorContains(t, err, "the store does not take the tier's mark")
	})
}

// What a change made elsewhere made of the blocks in the file, while the process was away.
func TestTierAfterAChangeElsewhere(t *testing.T) {
	for title, away := range map[string]func(*testing.T, *process){"stopped": func(t *testing.T, p *process) { p.stop(t) }, "killed": func(t *testing.T, p *process) { p.kill(t) }} {
		t.Run(title, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := context.Background()
				backing := memstore.New()
				here, there := newHost(t), newHost(t)
				p := run(t, backing, here, "tier.db")
				other := run(t, backing, there, "tier.db")
				for _, id := range []string{"back", "beyond", "restarted", "dropped", "strict"} {
					create(t, p.Registry, id, sequencer.Options{})
					p.draw(t, id, 3)
				}
				synctest.Wait()
				away(t, p)
				if title == "killed" {
					require.NoError(t, other.Evict(ctx, here.path("tier.db")))
				}
				require.NoError(t, other.sequence(t, "back").Set(ctx, 2, true))
				require.NoError(t, other.sequence(t, "beyond").Set(ctx, 50_000, true))
				require.NoError(t, other.Alter(ctx, name("restarted"), sequencer.Options{Restart: &sequencer.Restart{Bare: true}}))
				require.NoError(t, other.Drop(ctx, name("dropped")))
				create(t, other.Registry, "dropped", sequencer.Options{Start: ptr[int64](7000)})
				require.NoError(t, other.Alter(ctx, name("strict"), sequencer.Options{Cache: ptr[int64](1)}))
				require.EqualValues(t, 3, other.next(t, "back"))
				require.EqualValues(t, 1, other.next(t, "restarted"))

				p = run(t, backing, here, "tier.db")
				synctest.Wait()
				block := int64(10_000)
				require.EqualValues(t, 3+block, p.next(t, "back"))
				require.EqualValues(t, 50_001, p.next(t, "beyond"))
				require.EqualValues(t, 1+block, p.next(t, "restarted"))
				require.EqualValues(t, 7000, p.next(t, "dropped"))
				strict := p.next(t, "strict")
				require.Equal(t, strict+1, other.next(t, "strict"))
				p.stop(t)
				other.stop(t)
			})
		})
	}
}

// No copy of a file revives a value, in whatever state it was made and wherever it is opened.
func TestTierCopies(t *testing.T) {
	ctx := context.Background()
	for _, made := range []string{"while it ran", "when it was stopped", "when it was killed"} {
		for _, left := range []string{"running", "stopped", "killed"} {
			for _, opened := range []string{"in its place", "beside it", "elsewhere", "in its place after a restart of the machine"} {
				if left == "running" && (opened == "in its place" || opened == "in its place after a restart of the machine") {
					continue
				}
				t.Run(fmt.Sprintf("made %s, left %s, opened %s", made, left, opened), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						backing := memstore.New()
						h := newHost(t)
						p := run(t, backing, h, "tier.db")
						create(t, p.Registry, "s", sequencer.Options{})
						p.draw(t, "s", 200)
						synctest.Wait()
						switch made {
						case "when it was stopped":
							p.stop(t)
						case "when it was killed":
							p.kill(t)
						}
						copyFile(t, h.path("tier.db"), h.path("copy.db"))
						if made != "while it ran" {
							p = run(t, backing, h, "tier.db")
						}
						last := p.draw(t, "s", 4000)
						synctest.Wait()
						leased := must(backing.Get(ctx, p.sequence(t, "s").Incarnation())).Pos
						require.Less(t, last, int64(10_000), "it went on in its first block, which the copy has too")
						switch left {
						case "stopped":
							p.stop(t)
						case "killed":
							p.kill(t)
						}

						file := "copy.db"
						switch opened {
						case "in its place":
							file = "tier.db"
							copyFile(t, h.path("copy.db"), h.path(file))
						case "in its place after a restart of the machine":
							file = "tier.db"
							copyFile(t, h.path("copy.db"), h.path(file))
							h.reboot(t)
						case "elsewhere":
							other := newHost(t)
							copyFile(t, h.path("copy.db"), other.path("copy.db"))
							h = other
						}
						copied := run(t, backing, h, file)
						require.Equal(t, leased, sequencer.At(copied.next(t, "s")), "what is in the copy is discarded")
						if left == "running" {
							require.Equal(t, last+1, p.next(t, "s"), "the process that lives is not disturbed")
							p.stop(t)
						}
						copied.stop(t)
						require.NotEmpty(t, must(backing.Members(ctx)))
					})
				})
			}
		}
	}
}

// Two copies of a file that was closed: the first one to be opened goes on, the other one begins anew.
func TestTierTwoCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backing := memstore.New()
		h, other := newHost(t), newHost(t)
		p := run(t, backing, h, "tier.db")
		create(t, p.Registry, "s", sequencer.Options{})
		last := p.draw(t, "s", 200)
		p.stop(t)
		copyFile(t, h.path("tier.db"), other.path("tier.db"))
		clone := run(t, backing, other, "tier.db")
		require.Equal(t, last+1, clone.next(t, "s"))
		p = run(t, backing, h, "tier.db")
		require.Greater(t, p.next(t, "s"), last+1000)
		p.stop(t)
		clone.stop(t)
	})
}

// A copy that is the same as the file of a process which lives, and for the moment writes nothing.
func TestTierCopyOfAnIdleProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backing := memstore.New()
		h := newHost(t)
		p := run(t, backing, h, "tier.db")
		create(t, p.Registry, "s", sequencer.Options{})
		last := p.draw(t, "s", 200)
		synctest.Wait()
		copyFile(t, h.path("tier.db"), h.path("copy.db"))
		copied := run(t, backing, h, "copy.db")
		leased := must(backing.Get(context.Background(), p.sequence(t, "s").Incarnation())).Pos
		require.Equal(t, leased, sequencer.At(copied.next(t, "s")))
		require.Equal(t, last+1, p.next(t, "s"))
		p.stop(t)
		copied.stop(t)
	})
}

// A process that was evicted and lives compares its blocks with the store before it uses them again.
func TestTierEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		backing := memstore.New()
		h := newHost(t)
		p, other := run(t, backing, h, "tier.db"), run(t, backing, newHost(t), "tier.db")
		create(t, p.Registry, "s", sequencer.Options{})
		create(t, p.Registry, "same", sequencer.Options{})
		p.draw(t, "s", 3)
		last := p.draw(t, "same", 3)
		synctest.Wait()
		depth := p.Stats().Depth
		p.cut()
		require.NoError(t, other.Evict(ctx, h.path("tier.db")))
		require.NoError(t, other.sequence(t, "s").Set(ctx, 2, true))
		require.EqualValues(t, 3, other.next(t, "s"))
		time.Sleep(6 * time.Minute)
		p.mend()
		time.Sleep(2 * time.Minute)
		require.EqualValues(t, 10_003, p.next(t, "s"))
		v := p.next(t, "same")
		require.Greater(t, v, last)
		require.LessOrEqual(t, v, last+depth+1, "a block that nobody changed goes on")
		p.stop(t)
		other.stop(t)
	})
}

// A store that knows less than it did stops the sequence, before and after a restart, until it is moved.
func TestTierStoreIsSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		backing := memstore.New()
		h := newHost(t)
		p := run(t, backing, h, "tier.db")
		create(t, p.Registry, "s", sequencer.Options{})
		id := p.sequence(t, "s").Incarnation()
		old := must(backing.Get(ctx, id))
		p.draw(t, "s", 12_000)
		synctest.Wait()
		p.stop(t)
		now := must(backing.Get(ctx, id))
		require.NoError(t, backing.Delete(ctx, id, now.Rev))
		require.NoError(t, backing.Put(ctx, old, 0))
		for range 2 {
			p = run(t, backing, h, "tier.db")
			_, err := p.sequence(t, "s").Next(ctx)
			require.ErrorContains(t, err, `the sequence store was set back for sequence "s"`)
			p.stop(t)
		}
		p = run(t, backing, h, "tier.db")
		s := p.sequence(t, "s")
		_, err := s.Next(ctx)
		require.Error(t, err)
		require.NoError(t, s.Set(ctx, 20_000, true))
		require.EqualValues(t, 20_001, p.next(t, "s"))
		p.stop(t)
	})
}

// An ALTER SEQUENCE whose answer is lost, and that comes late: what the tier serves meanwhile is not leased again.
func TestTierLatePut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		backing := memstore.New()
		p, other := run(t, backing, newHost(t), "tier.db"), run(t, backing, newHost(t), "tier.db")
		create(t, p.Registry, "s", sequencer.Options{})
		p.draw(t, "s", 3)
		synctest.Wait()
		p.store.Plan(func(op string) faultstore.Fault {
			if op == "put" {
				return faultstore.Fault{Delay: 20 * time.Second, Late: true}
			}
			return faultstore.Fault{}
		})
		require.ErrorIs(t, p.Alter(ctx, name("s"), sequencer.Options{Owner: ptr("me")}), sequencer.ErrStore)
		p.mend()
		taken := map[int64]bool{}
		draw := func(p *process, n int) {
			for range n {
				v := p.next(t, "s")
				require.False(t, taken[v], "%d twice", v)
				taken[v] = true
			}
		}
		draw(p, 30) // so few that no block need be leased for them: only that keeps the late change from coming to pass
		time.Sleep(time.Minute)
		require.EqualValues(t, 1, must(backing.Get(ctx, p.sequence(t, "s").Incarnation())).Version)
		draw(other, 300)
		draw(p, 300)
		p.stop(t)
		other.stop(t)
	})
}

func TestTierOpenSaysWhatIsWrong(t *testing.T) {
	ctx := context.Background()
	h := newHost(t)
	p := run(t, memstore.New(), h, "held.db")
	plain, err := boltstore.Open(h.path("plain.db"), "default")
	require.NoError(t, err)
	require.NoError(t, plain.Close())
	for file, message := range map[string]string{
		"held.db":  "held.db is held by another process",
		"plain.db": "it holds sequences of its own: it is no tier over another store",
	} {
		_, err := boltstore.OpenTier(ctx, h.path(file), memstore.New(), boltstore.TierConfig{Logger: quiet, WitnessFolder: h.memory})
		require.ErrorContains(t, err, message)
	}
	p.stop(t)
	_, err = boltstore.Open(h.path("held.db"), "default")
	require.ErrorContains(t, err, "it is a tier over another store")
}

// Everything at random: processes on several hosts that are stopped and killed, files that are copied and put back, machines
// that start again, faults of the network, and an author who moves the sequence. No value comes twice, and after a setval
// none of an older position.
func TestTierAtRandom(t *testing.T) {
	for range 3 {
		seed := rand.Uint64()
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { tiersAtRandom(t, seed) })
		})
	}
}

// stride is the distance between the positions that a sequence is moved to: more than is ever leased from one of them.
const stride = 1 << 50

func tiersAtRandom(t *testing.T, seed uint64) {
	const hosts, steps = 4, 120
	ctx := context.Background()
	backing := memstore.New()
	author := run(t, backing, newHost(t), "author.db")
	create(t, author.Registry, "s", sequencer.Options{})

	var mu sync.Mutex
	order := map[int64]int{0: 0} // the number of the setval that moved to a range of values, by the range
	settled := 0                 // the last setval that succeeded
	taken := map[int64]bool{}
	happened := map[string]int{}
	note := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		happened[what]++
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	for i := range hosts {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		h := newHost(t)
		wg.Go(func() {
			var p *process
			copies := 0
			for step := 0; ; step++ {
				select {
				case <-done:
					if p != nil {
						p.mend()
						p.stop(t)
					}
					return
				default:
				}
				if p == nil {
					var err error
					if p, err = start(t, backing, h, "tier.db"); !assert.NoError(t, err) {
						return
					}
				}
				time.Sleep(time.Duration(rng.IntN(400)) * time.Millisecond)
				switch what := rng.IntN(40); {
				case what == 0:
					note("stopped")
					p.mend()
					p.stop(t)
					p = nil
				case what == 1:
					note("killed")
					p.kill(t)
					p = nil
				case what == 2:
					note("copied")
					copies++
					copyFile(t, h.path("tier.db"), h.path(fmt.Sprint("copy", copies)))
				case what == 3 && copies > 0:
					if rng.IntN(2) == 0 {
						p.kill(t)
					} else {
						p.mend()
						p.stop(t)
					}
					note("put back")
					copyFile(t, h.path(fmt.Sprint("copy", 1+rng.IntN(copies))), h.path("tier.db"))
					p = nil
				case what == 4 && copies > 0:
					note("cloned")
					from, file := fmt.Sprint("copy", 1+rng.IntN(copies)), fmt.Sprint("clone", step)
					copyFile(t, h.path(from), h.path(file))
					clone, err := start(t, backing, h, file)
					if !assert.NoError(t, err) {
						return
					}
					drawSome(ctx, t, &mu, clone, rng.IntN(150), order, taken, &settled)
					clone.stop(t)
				case what == 5:
					note("killed with its machine")
					p.kill(t)
					h.reboot(t)
					p = nil
				case what == 6:
					note("cut off")
					p.cut()
				case what < 10:
					p.mend()
				case what < 13:
					dice := rand.New(rand.NewPCG(seed, rng.Uint64()))
					var turn sync.Mutex
					p.store.Plan(func(string) faultstore.Fault {
						turn.Lock()
						defer turn.Unlock()
						f := faultstore.Fault{Delay: time.Duration(dice.IntN(30)) * time.Millisecond}
						switch dice.IntN(12) {
						case 0:
							f.Before = faultstore.ErrLost
						case 1:
							f.After = faultstore.ErrLost
						case 2:
							f.Delay, f.Late = time.Duration(dice.IntN(9000))*time.Millisecond, true
						}
						return f
					})
				default:
					drawSome(ctx, t, &mu, p, rng.IntN(150), order, taken, &settled)
				}
			}
		})
	}

	rng := rand.New(rand.NewPCG(seed, 99))
	succeeded := 0
	for i, at := range rng.Perm(steps / 4) {
		to := int64(at + 1)
		mu.Lock()
		order[to] = i + 1
		mu.Unlock()
		s := author.sequence(t, "s")
		var err error
		if rng.IntN(3) == 0 {
			err = author.Alter(ctx, name("s"), sequencer.Options{Owner: ptr(fmt.Sprint(i))})
		} else if err = s.Set(ctx, to*stride, false); err == nil {
			mu.Lock()
			succeeded++
			// One that moves beyond everything leased does not depend on everybody's word.
			for v := range taken {
				if v/stride > to {
					settled = i + 1
				}
			}
			mu.Unlock()
		}
		if err != nil {
			assert.ErrorIs(t, err, sequencer.ErrStore)
		}
		time.Sleep(time.Duration(rng.IntN(3000)) * time.Millisecond)
	}
	close(done)
	wg.Wait()
	author.stop(t)
	t.Logf("%d values, %d setvals, %v", len(taken), succeeded, happened)
	require.Greater(t, len(taken), 1000, "or the test shows nothing")
	require.Greater(t, succeeded, 3)
}

// drawSome draws values and checks them.
func drawSome(
	ctx context.Context, t *testing.T, mu *sync.Mutex, p *process, n int, order map[int64]int, taken map[int64]bool, settled *int,
) {
	for range n {
		mu.Lock()
		least := *settled
		mu.Unlock()
		s, err := p.Lookup(ctx, name("s"))
		var v int64
		if err == nil {
			v, err = s.Next(ctx)
		}
		if err != nil {
			assert.ErrorIs(t, err, sequencer.ErrStore)
			return
		}
		mu.Lock()
		assert.GreaterOrEqual(t, order[v/stride], least, "%d is of an old version", v)
		assert.False(t, taken[v], "%d twice", v)
		taken[v] = true
		mu.Unlock()
	}
}
