package peerstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/proxy"
	"github.com/nextvald/nextvald/proxy/standalone"
	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/faultstore"
	"github.com/nextvald/nextvald/sequencer/memstore"
	"github.com/nextvald/nextvald/sequencer/peerstore"
)

// bubbled is a centre in a network, which can be killed.
type bubbled struct {
	*sequencer.Registry
	store  *faultstore.Store
	n      *network
	server *proxy.Server
	served chan error
	alone  *standalone.Backend
}

// startBubbled starts a centre on a store that fails as planned.
func startBubbled(t testing.TB, n *network, backing sequencer.Store, cfg sequencer.Config, plan func(string) faultstore.Fault) *bubbled {
	c := &bubbled{store: faultstore.New(backing, nil), n: n, served: make(chan error, 1)}
	cfg.Logger, cfg.MemberID = silent, "centre"
	var err error
	c.Registry, err = sequencer.Open(context.Background(), c.store, cfg)
	require.NoError(t, err)
	c.store.Plan(plan)
	c.alone = standalone.New(standalone.Config{Logger: silent})
	c.server = proxy.New(proxy.Config{
		Logger: silent, Upstream: proxy.Dialer(c.alone.Dial), Sequences: c.Registry, Standalone: true, DialTimeout: time.Second,
		PeerRole: role, Peers: peerstore.NewCentre(c.Registry, c.store, "default"),
	})
	l := n.listen()
	go func() { c.served <- c.server.Serve(context.Background(), l) }()
	return c
}

var errCut = errors.New("no way to the store")

// cut takes the store away.
func (c *bubbled) cut() {
	c.store.Plan(func(string) faultstore.Fault { return faultstore.Fault{Before: errCut} })
}

// kill ends the centre as a crash does: nothing of what it holds reaches the store or anybody any more.
func (c *bubbled) kill() {
	c.cut()
	c.n.breakAll()
	c.stop(0)
}

// stop ends the centre; it has that long to give back what it holds.
func (c *bubbled) stop(grace time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	_ = c.server.Shutdown(ctx)
	<-c.served
	_ = c.Close(ctx)
	c.store.Wait()
	_ = c.alone.Close()
}

// dice plans faults of a store.
func dice(rng *rand.Rand, percent int) func(string) faultstore.Fault {
	var mu sync.Mutex
	return func(string) faultstore.Fault {
		mu.Lock()
		defer mu.Unlock()
		f := faultstore.Fault{Delay: time.Duration(rng.IntN(5)) * time.Millisecond}
		if rng.IntN(100) < percent {
			switch rng.IntN(4) {
			case 0:
				f.Before = faultstore.ErrRefused
			case 1:
				f.Before = faultstore.ErrLost
			case 2:
				f.After = faultstore.ErrLost
			case 3:
				f.Delay, f.Late = time.Duration(rng.IntN(3000))*time.Millisecond, true
			}
		}
		return f
	}
}

// process is one of those that hand out values: the centre of the moment, a sidecar, or one beside them.
type process struct {
	name     string
	registry func() *sequencer.Registry
}

// run is what a random test knows of the values handed out.
type run struct {
	t *testing.T
	sync.Mutex
	order   map[int64]int // the number of the change that moved to a range of values, by the range
	settled int           // the last change after which no older value may be handed out
	born    int           // the change that created the sequence
	taken   map[int64]bool
	strict  int64 // the last value of the strict sequence whose call has returned
	by      map[string]int
}

const step = 1_000_000 // values of a range

// drawCached takes a value of the sequence that is changed.
func (r *run) drawCached(p process) {
	r.Lock()
	least := r.settled
	r.Unlock()
	ctx := context.Background()
	s, err := p.registry().Lookup(ctx, seq("s"))
	var v int64
	if err == nil {
		v, err = s.Next(ctx)
	}
	r.Lock()
	defer r.Unlock()
	if err == nil {
		assert.GreaterOrEqual(r.t, r.order[v/step], least, "%s: %d is of an old version, at %v", p.name, v, time.Now().Format("04:05.000"))
		assert.False(r.t, r.taken[v], "%s: %d twice", p.name, v)
		r.taken[v] = true
		r.by[p.name]++
	} else if !errors.Is(err, sequencer.ErrStore) && !errors.Is(err, sequencer.ErrUndefined) && !errors.Is(err, sequencer.ErrShuttingDown) {
		assert.NoError(r.t, err, p.name)
	}
}

// drawStrict takes a value of the strict sequence.
func (r *run) drawStrict(p process) {
	r.Lock()
	before := r.strict
	r.Unlock()
	ctx := context.Background()
	s, err := p.registry().Lookup(ctx, seq("strict"))
	var v int64
	if err == nil {
		v, err = s.Next(ctx)
	}
	r.Lock()
	defer r.Unlock()
	if err == nil {
		assert.Greater(r.t, v, before, "%s: another call had returned", p.name)
		r.strict = max(r.strict, v)
		r.by[p.name+", strict"]++
	}
}

// change moves the sequence to a range that was never used, and reports whether it is certain that it did.
func (r *run) change(rng *rand.Rand, p process, number int, to int64) bool {
	r.Lock()
	r.order[to] = number
	r.Unlock()
	ctx, registry := context.Background(), p.registry()
	define := func() error {
		d, err := sequencer.Define(sequencer.Options{Start: ptr(to * step)})
		if err == nil {
			_, err = registry.Create(ctx, seq("s"), d)
		}
		if err == nil {
			r.Lock()
			defer r.Unlock()
			r.born = number
		}
		return err
	}
	var err error
	dropped := false
	began, what := time.Now(), "RESTART"
	switch rng.IntN(4) {
	case 0:
		what = "setval"
		var s *sequencer.Sequence
		if s, err = registry.Lookup(ctx, seq("s")); err == nil {
			err = s.Set(ctx, to*step-1, true)
		}
	case 1, 2:
		err = registry.Alter(ctx, seq("s"), sequencer.Options{Restart: &sequencer.Restart{Value: to * step}})
	case 3:
		what = "DROP and CREATE"
		if err = registry.Drop(ctx, seq("s")); err == nil {
			dropped, err = true, define()
		}
	}
	if errors.Is(err, sequencer.ErrUndefined) {
		what += ", then CREATE"
		err = define() // an earlier one got no further than its DROP
	}
	r.t.Logf("%v to %v: change %d: %s to %d at %s: %v", began.Format("04:05.000"), time.Now().Format("04:05.000"), number, what, to, p.name, err)
	r.Lock()
	defer r.Unlock()
	if dropped {
		r.settled = number
	}
	if err != nil {
		return false
	}
	// One that moves beyond everything leased since the CREATE does not depend on everybody's word.
	for v := range r.taken {
		if v/step > to && r.order[v/step] >= r.born {
			r.settled = number
		}
	}
	return true
}

// A centre, two sidecars and a process beside them; connections that break, a store that fails, a centre that is killed and
// replaced or loses the store; and a sequence that is moved back and forth, or dropped and created, by any of them.
func TestRandomly(t *testing.T) {
	for range 3 {
		seed := rand.Uint64()
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { randomly(t, seed, 30) })
		})
	}
}

func randomly(t *testing.T, seed uint64, changes int) {
	rng := func(stream int) *rand.Rand { return rand.New(rand.NewPCG(seed, uint64(stream))) }
	backing := memstore.New()
	cfg := sequencer.Config{MinLease: 20, MaxLease: 200, MinThreshold: 10, BufferSeconds: 1, MaxOffline: 20 * time.Second}
	var mu sync.Mutex
	weather := rng(1)
	n := &network{weather: func() (time.Duration, bool) {
		mu.Lock()
		defer mu.Unlock()
		delay := time.Duration(weather.IntN(20)) * time.Millisecond
		if weather.IntN(50) == 0 {
			delay *= 50
		}
		return delay, weather.IntN(200) == 0
	}}
	faults := dice(rng(2), 3)
	var centre atomic.Pointer[bubbled]
	centre.Store(startBubbled(t, n, backing, cfg, faults))
	create(t, centre.Load().Registry, "s", sequencer.Options{})
	create(t, centre.Load().Registry, "strict", sequencer.Options{Cache: ptr[int64](1)})

	open := func(store sequencer.Store, id string) *sequencer.Registry {
		cfg := cfg
		cfg.Logger, cfg.MemberID = silent, id
		var r *sequencer.Registry
		require.Eventually(t, func() (ok bool) {
			var err error
			r, err = sequencer.Open(context.Background(), store, cfg)
			return err == nil
		}, time.Hour, time.Second)
		return r
	}
	var stores []*peerstore.Store
	var registries []*sequencer.Registry
	processes := []process{{"centre", func() *sequencer.Registry { return centre.Load().Registry }}}
	for _, id := range []string{"sidecar a", "sidecar b"} {
		var store *peerstore.Store
		require.Eventually(t, func() (ok bool) {
			var err error
			store, err = peerstore.Open(context.Background(), peerstore.Config{
				URL: "postgres://" + role + "@127.0.0.1/?sslmode=disable", Namespace: "default", Dial: n.dial,
			})
			return err == nil
		}, time.Hour, time.Second)
		r := open(store, id)
		stores, registries = append(stores, store), append(registries, r)
		processes = append(processes, process{id, func() *sequencer.Registry { return r }})
	}
	beside := open(backing, "beside")
	registries = append(registries, beside)
	processes = append(processes, process{"beside", func() *sequencer.Registry { return beside }})

	r := &run{t: t, order: map[int64]int{0: 0}, taken: map[int64]bool{}, by: map[string]int{}}
	stop := make(chan struct{})
	var callers sync.WaitGroup
	for i, p := range processes {
		for c, draw := range []func(process){r.drawCached, r.drawCached, r.drawStrict} {
			pauses := rng(100 + 10*i + c)
			callers.Go(func() {
				for {
					select {
					case <-stop:
						return
					case <-time.After(time.Duration(pauses.IntN(100)) * time.Millisecond):
					}
					draw(p)
				}
			})
		}
	}

	actions := rng(3)
	succeeded, killed := 0, 0
	for i, at := range actions.Perm(changes) {
		switch actions.IntN(8) {
		case 0:
			killed++
			centre.Load().kill()
			time.Sleep(time.Duration(actions.IntN(5000)) * time.Millisecond)
			centre.Store(startBubbled(t, n, backing, cfg, faults))
		case 1:
			n.breakAll()
		case 2:
			centre.Load().cut()
			time.Sleep(time.Duration(actions.IntN(60)) * time.Second) // long enough that all may stop handing out
			centre.Load().store.Plan(faults)
		}
		if r.change(actions, processes[actions.IntN(len(processes))], i+1, int64(at+1)) {
			succeeded++
		}
		time.Sleep(time.Duration(actions.IntN(2000)) * time.Millisecond)
	}
	close(stop)
	callers.Wait()
	t.Logf("%d of %d changes, %d centres killed, %d values: %v", succeeded, changes, killed, len(r.taken), r.by)
	assert.Greater(t, succeeded, changes/4)
	for _, p := range processes {
		assert.NotZero(t, r.by[p.name], p.name)
		assert.NotZero(t, r.by[p.name+", strict"], p.name)
	}

	closing, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, registry := range slices.Backward(registries) {
		_ = registry.Close(closing)
	}
	for _, s := range stores {
		require.NoError(t, s.Close())
	}
	centre.Load().stop(10 * time.Second)
}
