package sequencer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/faultstore"
	"github.com/nextvald/nextvald/sequencer/memstore"
)

// A listing tells of each sequence what State tells, whoever uses it.
func TestListing(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	ctx := context.Background()
	store := memstore.New()
	here, there := open(t, store, sequencer.Config{}), open(t, store, sequencer.Config{})
	const sequences = 300
	for i := range sequences {
		n := fmt.Sprintf("s%d", i)
		s := create(t, here, n, sequencer.Options{Increment: ptr(int64(rng.IntN(5) + 1))})
		switch rng.IntN(6) {
		case 0:
			draw(t, s, rng.IntN(100))
		case 1:
			draw(t, lookup(t, there, n), 1+rng.IntN(100))
		case 2:
			draw(t, s, 3)
			draw(t, lookup(t, there, n), 1)
		case 3:
			require.NoError(t, s.Set(ctx, rng.Int64N(1000)+1, rng.IntN(2) == 0))
		case 4:
			require.NoError(t, here.Drop(ctx, name(n)))
		}
	}
	for _, r := range []*sequencer.Registry{here, there} {
		entries, err := r.List(ctx, "shop")
		require.NoError(t, err)
		before := map[string]sequencer.State{}
		for _, e := range entries {
			before[e.Incarnation] = state(t, lookup(t, r, e.Name.Name))
		}
		list, err := r.Listing(ctx, "shop")
		require.NoError(t, err)
		require.Len(t, list, len(entries))
		compared := 0
		for _, l := range list {
			s := lookup(t, r, l.Entry.Name.Name)
			if want := state(t, s); want == before[s.Incarnation()] { // nobody leased meanwhile
				l.State.LogCnt = want.LogCnt // any number
				require.Equal(t, want, l.State, l.Entry.Name.Name)
				compared++
			}
			require.Equal(t, s.Incarnation(), l.Item.Incarnation)
			require.Equal(t, s.Definition(), l.Item.Definition)
		}
		require.Greater(t, compared, sequences/2)
	}
	none, err := here.Listing(ctx, "other")
	require.NoError(t, err)
	require.Empty(t, none)
}

// A listing costs a request for many sequences, and fails when the store does.
func TestListingReadsTogether(t *testing.T) {
	ctx := context.Background()
	var (
		mu       sync.Mutex
		requests []string
	)
	store := faultstore.New(memstore.New(), nil)
	r := open(t, store, sequencer.Config{})
	for i := range 50 {
		create(t, r, fmt.Sprintf("s%d", i), sequencer.Options{})
	}
	store.Plan(func(op string) faultstore.Fault {
		if op == "names" || strings.HasPrefix(op, "get") {
			mu.Lock()
			requests = append(requests, op)
			mu.Unlock()
		}
		return faultstore.Fault{}
	})
	_, err := r.Listing(ctx, "shop")
	store.Plan(nil)
	require.NoError(t, err)
	slices.Sort(requests)
	require.Equal(t, []string{"get_all", "names"}, requests)

	store.Plan(func(op string) faultstore.Fault {
		if op == "get_all" {
			return faultstore.Fault{Before: errors.New("away")}
		}
		return faultstore.Fault{}
	})
	_, err = r.Listing(ctx, "shop")
	require.ErrorIs(t, err, sequencer.ErrStore)
	store.Plan(nil)
}
