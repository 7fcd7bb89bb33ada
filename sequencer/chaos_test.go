package sequencer_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/faultstore"
	"github.com/nextvald/nextvald/sequencer/memstore"
)

var (
	chaosSeed = flag.Uint64("chaos-seed", 0, "seed of TestChaos (0: another one each time)")
	chaosRuns = flag.Int("chaos-runs", 2, "runs of TestChaos with each kind of clocks")
)

// Times of a run, in virtual time.
const (
	chaosLength     = 5 * time.Minute
	chaosMaxOffline = 15 * time.Second
	// slot is the distance between two positions that the sequence is moved to. Each is used once, so that a value says
	// which change it comes from.
	slot = 1_000_000
)

// Processes that die, end and start again, clocks that jump, a store that fails in every way and cannot be reached for a
// while, and a sequence that is moved, restarted, made anew, and strict for a while: no value comes twice, and after a
// change that had to be confirmed none comes that is older. With clocks that jump too far the second promise is off.
func TestChaos(t *testing.T) {
	for title, jump := range map[string]time.Duration{
		// Far below the half of MaxOffline that clocks may differ by: those of the test have no monotonic part, so that
		// setting one back makes its process serve for longer.
		"clocks that jump": chaosMaxOffline / 8, "clocks that jump far": time.Hour,
	} {
		t.Run(title, func(t *testing.T) {
			for range *chaosRuns {
				seed := *chaosSeed
				if seed == 0 {
					seed = rand.Uint64()
				}
				t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						c := &chaos{t: t, backing: memstore.New(), seed: seed, jump: jump, taken: map[int64]int{}}
						c.run()
					})
				})
			}
		})
	}
}

type chaos struct {
	t       *testing.T
	backing *memstore.Store
	seed    uint64
	jump    time.Duration // clocks are off by so much at most

	mu      sync.Mutex
	lives   []*life // that the processes are in
	buried  []*life
	taken   map[int64]int // values, and the changes that they come from
	order   []int64       // the slots that changes moved to, in their order
	created int           // the change that created the sequence
	settled int           // no value may come from before this change
	counts  [3]int        // changes made, changes failed, calls failed
	began   time.Time
	events  []string // what happened, printed when a check fails
}

// life is a process from its start to its end.
type life struct {
	*sequencer.Registry
	store *faultstore.Store
	clock *jumping
	id    string
	dead  bool // under chaos.mu; whoever was killed answers nobody
}

func (c *chaos) rng(of uint64) *rand.Rand { return rand.New(rand.NewPCG(c.seed, of)) }

// fork makes a generator that another goroutine may use.
func fork(rng *rand.Rand) *rand.Rand { return rand.New(rand.NewPCG(rng.Uint64(), 0)) }

func (c *chaos) start(id string, rng *rand.Rand) *life {
	l := &life{id: id, store: faultstore.New(c.backing, nil), clock: &jumping{}}
	l.Registry = open(c.t, l.store, sequencer.Config{MemberID: id, MaxOffline: chaosMaxOffline, Clock: l.clock, MinLease: 20, MaxLease: 2000})
	l.store.Plan(dice(fork(rng), 15))
	return l
}

func (c *chaos) run() {
	const processes, callers = 3, 3
	ctx, cancel := context.WithTimeout(context.Background(), chaosLength)
	defer cancel()
	author := c.start("author", c.rng(1))
	author.store.Plan(nil)
	create(c.t, author.Registry, "s", sequencer.Options{})
	author.store.Plan(dice(c.rng(2), 10))
	c.order = []int64{0}
	c.began = time.Now()
	defer func() {
		if c.t.Failed() {
			c.t.Log("what happened:\n" + strings.Join(c.events, "\n"))
		}
	}()

	var troubles []*rand.Rand
	for p := range processes {
		rng := c.rng(10 + uint64(p))
		c.lives = append(c.lives, c.start(fmt.Sprint("p", p), rng))
		troubles = append(troubles, rng)
	}
	var wg sync.WaitGroup
	for p, rng := range troubles {
		wg.Go(func() { c.trouble(ctx, p, author, rng) })
		for n := range callers {
			own := c.rng(100 + 10*uint64(p) + uint64(n))
			wg.Go(func() {
				for c.pause(ctx, own, 300*time.Millisecond) {
					c.call(p, own)
				}
			})
		}
	}
	wg.Go(func() { c.author(ctx, author, c.rng(3)) })
	wg.Wait()

	c.t.Logf("%d values, %d changes made, %d failed, %d calls failed, %d lives", len(c.taken), c.counts[0], c.counts[1], c.counts[2],
		len(c.buried)+len(c.lives)+1)
	assert.Greater(c.t, len(c.taken), 1000, "or the test shows nothing")
	assert.Greater(c.t, c.counts[0], 0, "or the test shows nothing")
	for _, l := range append(append(c.lives, c.buried...), author) {
		closing, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		_ = l.Close(closing) // what it could not give back is a gap
		cancel()
		l.store.Wait()
	}
}

// happened keeps what happened.
func (c *chaos) happened(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, fmt.Sprintf("%8.3fs ", time.Since(c.began).Seconds())+fmt.Sprintf(format, args...))
}

func (c *chaos) pause(ctx context.Context, rng *rand.Rand, most time.Duration) bool {
	select {
	case <-time.After(time.Duration(rng.Int64N(int64(most)))):
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// call draws values from a process.
func (c *chaos) call(p int, rng *rand.Rand) {
	c.mu.Lock()
	l, least := c.lives[p], c.settled
	c.mu.Unlock()
	ctx, cancel := context.Background(), context.CancelFunc(func() {})
	if rng.IntN(20) == 0 {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(rng.IntN(1000))*time.Millisecond)
	}
	defer cancel()
	s, err := l.Lookup(ctx, name("s"))
	var blocks []sequencer.Block
	if err == nil {
		if n := rng.Int64N(30); n > 20 {
			blocks, err = s.NextN(ctx, n)
		} else {
			var v int64
			v, err = s.Next(ctx)
			blocks = []sequencer.Block{{First: v, Count: 1, Increment: 1}}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.counts[2]++
		var known *sequencer.Error
		if !assert.ErrorAs(c.t, err, &known) || !assert.Contains(c.t, []string{"58030", "57014", "57P03", "42P01"}, known.Code) {
			c.t.Log(err)
		}
		return
	}
	if l.dead {
		return // nobody is there to get it
	}
	for _, b := range blocks {
		from := -1
		for i, at := range c.order {
			if at == b.First/slot {
				from = i
			}
		}
		assert.NotEqual(c.t, -1, from, "%d comes from no change", b.First)
		for v := b.First; v <= b.Last(); v += b.Increment {
			if before, again := c.taken[v]; again {
				c.t.Errorf("%d twice: from changes %d and %d", v, before, from)
			}
			c.taken[v] = from
		}
		if c.jump < chaosMaxOffline {
			assert.GreaterOrEqual(c.t, from, least, "%v of %s at %v is older than the change to %d", b, l.id, time.Since(c.began), c.order[least])
		}
	}
}

// trouble makes things go wrong for a process, one after the other. Who is dead is evicted by somebody else.
func (c *chaos) trouble(ctx context.Context, p int, by *life, rng *rand.Rand) {
	percent := 15
	for c.pause(ctx, rng, 10*time.Second) {
		c.mu.Lock()
		l := c.lives[p]
		c.mu.Unlock()
		switch rng.IntN(6) {
		case 0: // it is killed, and starts again under its id or another one
			c.mu.Lock()
			l.dead = true
			c.buried = append(c.buried, l)
			c.mu.Unlock()
			process{l.Registry, l.store}.cut()
			c.happened("%s is killed", l.id)
			id := fmt.Sprint("p", p)
			if rng.IntN(2) == 0 {
				id += fmt.Sprint("-", rng.IntN(1000))
			}
			c.replace(p, id, rng)
			if id != l.id && rng.IntN(4) > 0 {
				c.happened("%s is evicted: %v", l.id, by.Evict(ctx, l.id))
			}
		case 1: // it ends, and starts again
			closing, cancel := context.WithTimeout(ctx, time.Duration(rng.IntN(3000))*time.Millisecond)
			c.happened("%s ended: %v", l.id, l.Close(closing))
			cancel()
			c.mu.Lock()
			c.buried = append(c.buried, l)
			c.mu.Unlock()
			c.replace(p, fmt.Sprint("p", p), rng)
		case 2: // it is cut off
			fault := faultstore.Fault{Before: faultstore.ErrRefused}
			if rng.IntN(2) == 0 {
				fault = faultstore.Fault{Delay: time.Hour}
			}
			c.happened("%s is cut off by %v", l.id, fault)
			l.store.Plan(func(string) faultstore.Fault { return fault })
			c.pause(ctx, rng, []time.Duration{chaosMaxOffline / 3, 3 * chaosMaxOffline}[rng.IntN(2)])
			c.happened("%s is back", l.id)
			l.store.Plan(dice(fork(rng), percent))
		case 3:
			l.clock.set(time.Duration(rng.Int64N(2*int64(c.jump))) - c.jump)
		default:
			percent = rng.IntN(60)
			l.store.Plan(dice(fork(rng), percent))
		}
	}
}

func (c *chaos) replace(p int, id string, rng *rand.Rand) {
	next := c.start(id, rng)
	c.happened("%s starts", id)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lives[p] = next
}

// author changes the sequence again and again.
func (c *chaos) author(ctx context.Context, by *life, rng *rand.Rand) {
	for _, at := range rng.Perm(2000) {
		if !c.pause(ctx, rng, 6*time.Second) {
			return
		}
		to := int64(at + 1)
		c.mu.Lock()
		c.order = append(c.order, to)
		number := len(c.order) - 1
		// It has to be confirmed by all when it moves to before what was handed out.
		confirmed := false
		for v, from := range c.taken {
			confirmed = confirmed || v/slot > to && from >= c.created
		}
		c.mu.Unlock()
		c.happened("change %d to %d begins", number, to)
		anew, how := false, "set"
		s, err := by.Lookup(context.Background(), name("s"))
		if errors.Is(err, sequencer.ErrUndefined) { // a DROP that was said to have failed
			_, err = by.Create(context.Background(), name("s"), define(c.t, sequencer.Options{Start: ptr(to * slot)}))
			anew, confirmed, how = true, false, "create"
		} else if err == nil {
			switch rng.IntN(6) {
			case 0:
				how = "drop"
				if err = by.Drop(context.Background(), name("s")); err == nil {
					anew, confirmed = true, true
					for {
						_, err = by.Create(context.Background(), name("s"), define(c.t, sequencer.Options{Start: ptr(to * slot)}))
						if err == nil || errors.Is(err, sequencer.ErrDuplicate) {
							break
						}
					}
				}
			case 1:
				how = "restart"
				err = by.Alter(context.Background(), name("s"), sequencer.Options{Restart: &sequencer.Restart{Value: to * slot}})
			case 2:
				mode := []string{"strict", "cached"}[rng.IntN(2)]
				how = mode
				err = by.Alter(context.Background(), name("s"), sequencer.Options{
					Restart: &sequencer.Restart{Value: to * slot}, Set: []sequencer.Setting{{Key: "mode", Value: mode}},
				})
			default:
				err = s.Set(context.Background(), to*slot, false)
			}
		}
		c.happened("change %d by %s, to be confirmed: %v, ends: %v", number, how, confirmed, err)
		c.mu.Lock()
		if anew {
			c.created = number
		}
		if err == nil {
			c.counts[0]++
			if confirmed {
				c.settled = number
			}
		} else {
			c.counts[1]++
		}
		c.mu.Unlock()
	}
}
