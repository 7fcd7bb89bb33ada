package sequencer_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/boltstore"
	"github.com/nextvald/nextvald/sequencer/faultstore"
	"github.com/nextvald/nextvald/sequencer/memstore"
)

var (
	simulate = flag.Bool("simulate", false, "run the whole simulation: 10,000 sequences for an hour, for each lease target")
	seedFlag = flag.Uint64("seed", 0, "seed of the simulation; 0: any")
)

// load is what a simulation does to a registry: sequences whose traffic follows Zipf's law, which swells and ebbs, and bursts.
type load struct {
	sequences     int
	perSecond     float64 // of all sequences together, on average
	warmUp, lasts time.Duration
	// target is Config.LeaseTarget, 0 for the default. tier: over a durable tier.
	target time.Duration
	tier   bool
}

// result is what came of it, after the warm-up.
type result struct {
	values  int64
	writes  float64 // of the store a second
	blocked int     // calls that waited
	runway  float64 // seconds: the least that any sequence had for more than two seconds
	// What a process would have lost that was killed at any time: the most of one sequence in seconds of its traffic, of
	// those of more than fewValues; the mean of the process's in seconds of all traffic; and how often the loss was more
	// than was promised.
	worst, mean float64
	broken      int
}

// fewValues may be lost of any sequence.
const fewValues = 200

// busy is the length of the busiest stretch, in seconds, by which the traffic of a sequence is measured.
const busy = 5

// traffic is what one sequence is asked for.
type traffic struct {
	s      *sequencer.Sequence
	rate   float64 // of an ordinary second
	factor float64 // of a burst
	until  time.Time
	drawn  [busy]int64 // by second
	sum    int64       // of drawn
	// peak is the greatest sum since what is in hand was leased, and for a minute or two before; recent that of this minute,
	// before that of the last one.
	peak, recent, before int64
	held                 int64      // what was in hand last
	runway               [2]float64 // two seconds ago, and one
}

// run simulates in the bubble of a test, on the real code with a clock that jumps. All draws are from one goroutine.
func (l load) run(t *testing.T, seed uint64) (res result) {
	ctx := context.Background()
	rng := rand.New(rand.NewPCG(seed, 1))
	latency := rand.New(rand.NewPCG(seed, 2))
	var turn = make(chan struct{}, 1)
	var writes atomic.Int64
	store := faultstore.New(memstore.New(), nil)
	var over sequencer.Store = store
	cfg := sequencer.Config{LeaseTarget: l.target, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	if l.tier {
		tier, err := boltstore.OpenTier(ctx, filepath.Join(memory(t), "tier.db"), store, boltstore.TierConfig{Logger: cfg.Logger, WitnessFolder: "-"})
		require.NoError(t, err)
		defer func() { require.NoError(t, tier.Close()) }()
		over = tier
	}
	r, err := sequencer.Open(ctx, over, cfg)
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close(ctx)) }()

	all := make([]*traffic, l.sequences)
	harmonic := 0.0
	for i := range all {
		harmonic += 1 / float64(i+1)
	}
	for i := range all {
		s := create(t, r, fmt.Sprintf("s%05d", i), sequencer.Options{})
		all[i] = &traffic{s: s, rate: l.perSecond / harmonic / float64(i+1), factor: 1}
	}
	store.Plan(func(op string) faultstore.Fault {
		switch op {
		case "get", "feed", "members", "resolve", "names":
		default:
			writes.Add(1)
		}
		turn <- struct{}{}
		defer func() { <-turn }()
		// A few milliseconds, now and then much more.
		d := 3 + 4*latency.ExpFloat64()
		if latency.IntN(100) == 0 {
			d *= 20
		}
		return faultstore.Fault{Delay: time.Duration(d * float64(time.Millisecond))}
	})

	// Everybody waits for a first value; here all at once.
	var first sync.WaitGroup
	for _, q := range all {
		first.Go(func() { _, _ = q.s.Next(ctx) })
	}
	first.Wait()

	const slots = 4 // of a second
	begin := time.Now()
	var warm int64 // writes until then
	var held, samples float64
	res.runway = math.Inf(1)
	target := l.target
	if target == 0 {
		target = sequencer.DefaultLeaseTarget
	}
	if l.tier {
		target = time.Minute
	}
	for second := range int((l.warmUp + l.lasts).Seconds()) {
		elapsed := time.Duration(second) * time.Second
		measured := elapsed >= l.warmUp
		if elapsed == l.warmUp {
			warm = writes.Load()
		}
		// All traffic swells and ebbs by half of itself, and rises from nothing at first.
		swell := 1 + math.Sin(2*math.Pi*elapsed.Minutes()/17)/2
		swell *= min(1, float64(second+1)/60)
		if second%5 == 0 { // a burst of some sequence
			b := all[int(math.Pow(float64(l.sequences), rng.Float64()))-1]
			b.factor, b.until = 1+rng.Float64()*5, time.Now().Add(time.Duration(rng.IntN(30))*time.Second)
		}
		for slot := range slots {
			for i, q := range all {
				if q.factor > 1 && !time.Now().Before(q.until) {
					q.factor = 1
				}
				if q.rate < slots && (i+slot)%slots != 0 { // a slow sequence draws once a second
					continue
				}
				mean := q.rate * q.factor * swell
				if q.rate >= slots {
					mean /= slots
				}
				n := poisson(rng, mean)
				if n == 0 {
					continue
				}
				asked := time.Now()
				_, err := q.s.NextN(ctx, n)
				require.NoError(t, err)
				if measured {
					res.values += n
					if time.Now().After(asked) {
						res.blocked++
					}
				}
				q.drawn[second%busy] += n
				q.sum += n
			}
			next := begin.Add(elapsed + time.Duration(slot+1)*time.Second/slots)
			if late := time.Since(next); late > 0 {
				begin = begin.Add(late) // who waited does not make up for it all at once
			}
			time.Sleep(time.Until(next))
			if slot == 1 && measured { // when the registry has looked at the rates, as it does every second
				for _, q := range all {
					seconds, ok := q.s.Runway()
					if !ok {
						seconds = math.Inf(1)
					}
					// A rate that jumps is seen within a second, and the lease takes its time, now and then another one.
					res.runway = min(res.runway, max(q.runway[0], q.runway[1], seconds))
					q.runway = [2]float64{q.runway[1], seconds}
				}
			}
		}
		for _, q := range all {
			if second%60 == 0 {
				q.before, q.recent = q.recent, 0
			}
			q.recent = max(q.recent, q.sum)
			q.peak = max(q.peak, q.sum)
			left := q.s.Held()
			if left > q.held {
				q.peak = max(q.before, q.recent)
			}
			q.held = left
			q.sum -= q.drawn[(second+1)%busy]
			q.drawn[(second+1)%busy] = 0
		}
		if !measured {
			continue
		}
		for _, q := range all {
			if second%5 != 0 {
				break
			}
			left, perSecond := q.held, float64(q.peak)/busy
			held += float64(left)
			if left > fewValues {
				res.worst = max(res.worst, float64(left)/perSecond)
			}
			if float64(left) > max(fewValues, perSecond*target.Seconds()) {
				res.broken++
				if res.broken <= 5 {
					t.Logf("after %v: %s holds %d at %.1f/s", elapsed, q.s.Name().Name, left, perSecond)
				}
			}
		}
		if second%5 == 0 {
			samples++
		}
	}
	res.writes = float64(writes.Load()-warm) / l.lasts.Seconds()
	res.mean = held / samples / (float64(res.values) / l.lasts.Seconds())
	return res
}

// memory is a folder in memory, where a file costs no writes to a disk.
func memory(t *testing.T) string {
	folder, err := os.MkdirTemp("/dev/shm", "nextvald-simulation-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	return folder
}

// poisson is a random number of events where so many are to be expected.
func poisson(rng *rand.Rand, mean float64) int64 {
	if mean > 50 {
		return max(0, int64(math.Round(mean+math.Sqrt(mean)*rng.NormFloat64())))
	}
	n, p := int64(-1), 1.0
	for limit := math.Exp(-mean); p > limit; n++ {
		p *= rng.Float64()
	}
	return n
}

// report runs a simulation and prints what came of it.
func (l load) report(t *testing.T, what string, seed uint64) (res result) {
	began := time.Now()
	synctest.Test(t, func(t *testing.T) { res = l.run(t, seed) })
	t.Logf("%-22s %8.1f %8d %8.1f %8.1f %8.1f   (%d values, in %v)",
		what, res.writes, res.blocked, res.runway, res.worst, res.mean, res.values, time.Since(began).Round(time.Second))
	return res
}

// The promises about supply, on a small load, or on the whole one by make simulate: after warm-up nobody waits, every
// sequence has its buffer, and a process that is killed loses no more than it may. With -simulate it prints too what the store
// is written and what is lost by the lease target, from which the default was taken.
func TestSimulation(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	l := load{sequences: 500, perSecond: 2500, warmUp: 5 * time.Minute, lasts: 5 * time.Minute}
	if *simulate {
		l = load{sequences: 10_000, perSecond: 50_000, warmUp: 15 * time.Minute, lasts: time.Hour}
	}
	t.Logf("seed %d: %d sequences, %.0f values/s, %v after a warm-up of %v", seed, l.sequences, l.perSecond, l.lasts, l.warmUp)
	t.Logf("%-22s %8s %8s %8s %8s %8s", "", "writes/s", "blocked", "runway s", "worst s", "mean s")
	const buffer = 10
	plain := l.report(t, fmt.Sprintf("the default, %v", sequencer.DefaultLeaseTarget), seed)
	l.tier = true
	tier := l.report(t, "with a durable tier", seed)
	if *simulate {
		for _, target := range []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute} {
			short := l
			short.tier = false
			short.target, short.lasts = target, 20*time.Minute
			short.report(t, fmt.Sprintf("lease target %v", target), seed)
		}
	}
	for what, res := range map[string]result{"without a tier": plain, "with a tier": tier} {
		require.Zero(t, res.blocked, what)
		require.GreaterOrEqual(t, res.runway, float64(buffer), what)
		require.Zero(t, res.broken, what)
	}
	require.LessOrEqual(t, tier.writes, 20*float64(l.sequences)/10_000)
}
