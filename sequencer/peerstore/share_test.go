package peerstore_test

import (
	"context"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/memstore"
	"github.com/nextvald/nextvald/sequencer/peerstore"
)

// traffic is what the sidecars of a simulation are asked for. `make peers` runs a larger one than the test does by itself.
var traffic = struct {
	sequences, sidecars *int
	rate                *float64
	warmUp, minutes     *int
}{
	flag.Int("peers.sequences", 200, "sequences, the nth one used 1/n as often as the first"),
	flag.Int("peers.sidecars", 4, "sidecars, used alike"),
	flag.Float64("peers.rate", 2000, "values per second, of all together"),
	flag.Int("peers.warmup", 10, "minutes before it is measured"),
	flag.Int("peers.minutes", 5, "minutes that are measured"),
}

// counts are those of leases and values so far.
type counts struct{ values, fromCentre, fromStore uint64 }

func (c counts) minus(d counts) counts {
	return counts{c.values - d.values, c.fromCentre - d.fromCentre, c.fromStore - d.fromStore}
}

// Of the values that sidecars hand out, at least 99 % come from their memory without a request, less than 1 % cost a request
// to the centre, and at most 0.1 % one to the store.
func TestShares(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(seed, 0))
		n := &network{weather: func() (time.Duration, bool) { return time.Millisecond, false }}
		centre := startBubbled(t, n, memstore.New(), sequencer.Config{LeaseTarget: sequencer.DefaultLeaseTarget}, nil) // as on DynamoDB
		var sidecars []*sequencer.Registry
		var stores []*peerstore.Store
		for i := range *traffic.sidecars {
			store, err := peerstore.Open(context.Background(), peerstore.Config{
				URL: "postgres://" + role + "@127.0.0.1/?sslmode=disable", Namespace: "default", Dial: n.dial,
			})
			require.NoError(t, err)
			r, err := sequencer.Open(context.Background(), store, sequencer.Config{Logger: silent, MemberID: fmt.Sprint(i)})
			require.NoError(t, err)
			stores, sidecars = append(stores, store), append(sidecars, r)
		}
		rates := make([]float64, *traffic.sequences) // of one sidecar
		var harmonic float64
		for i := range rates {
			harmonic += 1 / float64(i+1)
		}
		sequences := make([][]*sequencer.Sequence, len(rates))
		for i := range rates {
			rates[i] = *traffic.rate / harmonic / float64(i+1) / float64(len(sidecars))
			create(t, centre.Registry, fmt.Sprint("s", i), sequencer.Options{})
			for _, r := range sidecars {
				sequences[i] = append(sequences[i], lookup(t, r, fmt.Sprint("s", i)))
			}
		}
		waited := 0 // calls that found nothing in memory
		second := func() {
			for i, rate := range rates {
				for _, s := range sequences[i] {
					k := poisson(rng, rate)
					if k == 0 {
						continue
					}
					began := time.Now()
					_, err := s.NextN(context.Background(), k)
					require.NoError(t, err)
					if time.Now() != began {
						waited++
					}
				}
			}
			time.Sleep(time.Second)
		}
		count := func() (c counts) {
			for _, r := range sidecars {
				c.values += r.Stats().Values
				c.fromCentre += leases(r)
			}
			c.fromStore = leases(centre.Registry)
			return c
		}
		for range *traffic.warmUp * 60 {
			second()
		}
		before, others := count(), centre.Stats().Requests
		waited = 0
		for range *traffic.minutes * 60 {
			second()
		}
		c := count().minus(before)
		share := func(n uint64) float64 { return 100 * float64(n) / float64(c.values) }
		now := centre.Stats().Requests
		feed := sequencer.Request{Op: "feed", Outcome: sequencer.OutcomeOK}
		seconds := float64(*traffic.minutes * 60)
		t.Logf("%d sequences, %d sidecars, %d minutes, %d values", len(rates), len(sidecars), *traffic.minutes, c.values)
		t.Logf("from memory           %8.4f %%  (%d calls waited)", 100-share(c.fromCentre), waited)
		t.Logf("requests to the centre%8.4f %%  (%.1f leases/s)", share(c.fromCentre), float64(c.fromCentre)/seconds)
		t.Logf("requests to the store %8.4f %%  (%.1f leases/s; feed: %.1f reads/s)", share(c.fromStore), float64(c.fromStore)/seconds,
			float64(now[feed]-others[feed])/seconds)
		require.Less(t, share(c.fromCentre), 1.0)
		require.LessOrEqual(t, share(c.fromStore), 0.1)

		closing, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for i, r := range sidecars {
			require.NoError(t, r.Close(closing))
			require.NoError(t, stores[i].Close())
		}
		centre.stop(time.Minute)
	})
}

// poisson is how many values are asked for in a while in which so many are expected.
func poisson(rng *rand.Rand, expected float64) (k int64) {
	if expected > 50 {
		return max(0, int64(math.Round(expected+math.Sqrt(expected)*rng.NormFloat64())))
	}
	for p := rng.Float64(); p > math.Exp(-expected); p *= rng.Float64() {
		k++
	}
	return k
}
