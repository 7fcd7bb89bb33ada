package peerstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/faultstore"
	"github.com/nextvald/nextvald/sequencer/memstore"
	"github.com/nextvald/nextvald/sequencer/peerstore"
)

// quick makes changes known fast, so that tests need not wait.
var quick = sequencer.Config{PollInterval: 5 * time.Millisecond}

func ctx(t testing.TB) context.Context {
	c, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return c
}

func ptr[T any](v T) *T { return &v }

func seq(n string) sequencer.Name { return sequencer.Name{Database: "shop", Schema: "public", Name: n} }

// sidecar is a process that leases from a centre.
type sidecar struct {
	*sequencer.Registry
	store *peerstore.Store
}

func startSidecar(t testing.TB, url, id string, cfg sequencer.Config) sidecar {
	store, err := peerstore.Open(ctx(t), peerstore.Config{URL: url, Namespace: "default"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	cfg.Logger, cfg.MemberID = silent, id
	r, err := sequencer.Open(ctx(t), store, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.Close(ctx(t)) })
	return sidecar{r, store}
}

func create(t testing.TB, r *sequencer.Registry, n string, o sequencer.Options) *sequencer.Sequence {
	d, err := sequencer.Define(o)
	require.NoError(t, err)
	s, err := r.Create(ctx(t), seq(n), d)
	require.NoError(t, err)
	return s
}

func lookup(t testing.TB, r *sequencer.Registry, n string) *sequencer.Sequence {
	s, err := r.Lookup(ctx(t), seq(n))
	require.NoError(t, err)
	return s
}

func draw(t testing.TB, s *sequencer.Sequence, n int) []int64 {
	var values []int64
	for range n {
		v, err := s.Next(ctx(t))
		require.NoError(t, err)
		values = append(values, v)
	}
	return values
}

// leases is the number of leases that a registry made at its store.
func leases(r *sequencer.Registry) uint64 {
	return r.Stats().Requests[sequencer.Request{Op: "lease", Outcome: sequencer.OutcomeOK}]
}

func members(t testing.TB, r *sequencer.Registry) (ids []string) {
	all, err := r.Members(ctx(t))
	require.NoError(t, err)
	for _, m := range all {
		ids = append(ids, m.ID)
	}
	return ids
}

func TestSidecarsShareTheCentresBlocks(t *testing.T) {
	cfg := quick
	cfg.MemberID, cfg.MinLease, cfg.MinThreshold = "centre", 1000, 1
	c := startCentre(t, memstore.New(), "default", "127.0.0.1:0", cfg)
	small := quick
	small.MinLease, small.MaxLease, small.MinThreshold = 50, 50, 1
	a, b := startSidecar(t, c.url(role), "a", small), startSidecar(t, c.url(role), "b", small)

	create(t, a.Registry, "s", sequencer.Options{Start: ptr[int64](7)})
	require.Equal(t, []int64{7, 8, 9}, draw(t, lookup(t, a.Registry, "s"), 3), "created and drawn at a sidecar")
	require.Equal(t, []int64{57, 58, 59}, draw(t, lookup(t, b.Registry, "s"), 3), "where the other's block ends")
	require.Equal(t, []int64{107, 108}, draw(t, lookup(t, c.registry, "s"), 2))
	require.EqualValues(t, 1, leases(c.registry), "the store saw one lease")
	require.Equal(t, []string{"a", "b", "centre"}, members(t, b.Registry))

	seen := map[int64]bool{}
	for range 300 {
		for _, r := range []*sequencer.Registry{a.Registry, b.Registry, c.registry} {
			v := draw(t, lookup(t, r, "s"), 1)[0]
			require.False(t, seen[v], v)
			seen[v] = true
		}
	}
	require.LessOrEqual(t, leases(c.registry), uint64(3))
	require.NoError(t, a.Close(ctx(t)), "what it has left is a gap, and no error")
	require.Equal(t, []string{"b", "centre"}, members(t, b.Registry))
}

func TestEndsOfSequencesThroughTheCentre(t *testing.T) {
	c := startCentre(t, memstore.New(), "default", "127.0.0.1:0", quick)
	a := startSidecar(t, c.url(role), "a", quick)
	create(t, a.Registry, "short", sequencer.Options{Max: &sequencer.Bound{Value: 3}})
	s := lookup(t, a.Registry, "short")
	require.Equal(t, []int64{1, 2, 3}, draw(t, s, 3))
	_, err := s.Next(ctx(t))
	require.ErrorIs(t, err, sequencer.ErrExhausted)

	create(t, a.Registry, "round", sequencer.Options{Max: &sequencer.Bound{Value: 3}, Cycle: ptr(true)})
	require.Equal(t, []int64{1, 2, 3, 1, 2, 3, 1}, draw(t, lookup(t, a.Registry, "round"), 7))

	create(t, a.Registry, "down", sequencer.Options{Increment: ptr[int64](-3), Min: &sequencer.Bound{Value: -7}, Max: &sequencer.Bound{Value: 0}})
	require.Equal(t, []int64{0, -3, -6}, draw(t, lookup(t, a.Registry, "down"), 3))
}

// Names that SQL cannot say are those that a transaction has not committed.
func TestNameThatCannotBeSaid(t *testing.T) {
	c := startCentre(t, memstore.New(), "default", "127.0.0.1:0", quick)
	a := startSidecar(t, c.url(role), "a", quick)
	create(t, a.Registry, "hidden\x00", sequencer.Options{})
	require.Equal(t, []int64{1, 2}, draw(t, lookup(t, a.Registry, "hidden\x00"), 2))
	require.NoError(t, a.Rename(ctx(t), seq("hidden\x00"), seq("shown")))
	require.Equal(t, []int64{3}, draw(t, lookup(t, a.Registry, "shown"), 1))
	require.NoError(t, a.Close(ctx(t)))
	require.Equal(t, []int64{4}, draw(t, lookup(t, c.registry, "shown"), 1), "what is leased at the store is given back to it")
}

// A sequence is served from blocks of all three processes; a change anywhere ends them all.
func TestChangesReachEveryTier(t *testing.T) {
	c := startCentre(t, memstore.New(), "default", "127.0.0.1:0", quick)
	a, b := startSidecar(t, c.url(role), "a", quick), startSidecar(t, c.url(role), "b", quick)
	all := map[string]*sequencer.Registry{"the centre": c.registry, "a sidecar": a.Registry, "the other sidecar": b.Registry}
	round := 0
	for where, author := range all {
		for what, change := range map[string]func(n string) (least int64){
			"setval back": func(n string) int64 {
				require.NoError(t, lookup(t, author, n).Set(ctx(t), 5, true))
				return 6
			},
			"setval on": func(n string) int64 {
				require.NoError(t, lookup(t, author, n).Set(ctx(t), 1_000_000, false))
				return 1_000_000
			},
			"RESTART": func(n string) int64 {
				require.NoError(t, author.Alter(ctx(t), seq(n), sequencer.Options{Restart: &sequencer.Restart{Bare: true}}))
				return 1000
			},
			"DROP and CREATE": func(n string) int64 {
				require.NoError(t, author.Drop(ctx(t), seq(n)))
				create(t, author, n, sequencer.Options{Start: ptr[int64](70)})
				return 70
			},
		} {
			t.Run(what+" at "+where, func(t *testing.T) {
				round++
				n := fmt.Sprint("s", round)
				create(t, author, n, sequencer.Options{Start: ptr[int64](1000)})
				for _, r := range all {
					draw(t, lookup(t, r, n), 5)
				}
				least := change(n)
				seen := map[int64]bool{}
				for range 200 {
					for where, r := range all {
						v, err := nextSoon(t, r, n)
						require.NoError(t, err, where)
						require.False(t, seen[v], v)
						require.GreaterOrEqual(t, v, least, where)
						require.Less(t, v, least+10_000, where)
						seen[v] = true
					}
				}
			})
		}
	}
}

// nextSoon is nextval for a sequence that may have been created just now elsewhere.
func nextSoon(t testing.TB, r *sequencer.Registry, n string) (v int64, err error) {
	require.Eventually(t, func() bool {
		var s *sequencer.Sequence
		if s, err = r.Lookup(ctx(t), seq(n)); err == nil {
			v, err = s.Next(ctx(t))
		}
		return !errors.Is(err, sequencer.ErrUndefined)
	}, 10*time.Second, time.Millisecond)
	return v, err
}

func TestStrictThroughTheCentre(t *testing.T) {
	c := startCentre(t, memstore.New(), "default", "127.0.0.1:0", quick)
	a, b := startSidecar(t, c.url(role), "a", quick), startSidecar(t, c.url(role), "b", quick)
	create(t, a.Registry, "s", sequencer.Options{Cache: ptr[int64](1)})
	want := int64(0)
	for range 50 {
		for _, r := range []*sequencer.Registry{a.Registry, c.registry, b.Registry} {
			want++
			require.Equal(t, want, draw(t, lookup(t, r, "s"), 1)[0])
		}
	}
}

// While the centre is gone a sidecar goes on with what it holds, and recovers by itself.
func TestCentreIsGone(t *testing.T) {
	store := memstore.New()
	cfg := quick
	cfg.MemberID = "centre"
	c := startCentre(t, store, "default", "127.0.0.1:0", cfg)
	impatient := quick
	impatient.StoreTimeout, impatient.MinThreshold, impatient.MinLease, impatient.MaxLease = 200*time.Millisecond, 1, 50, 50
	a := startSidecar(t, c.url(role), "a", impatient)
	create(t, a.Registry, "s", sequencer.Options{})
	s := lookup(t, a.Registry, "s")
	require.Equal(t, []int64{1}, draw(t, s, 1))
	address := c.address
	c.stop()
	last := draw(t, s, 49)[48]
	require.EqualValues(t, 50, last)
	_, err := s.Next(ctx(t))
	require.ErrorIs(t, err, sequencer.ErrStore)

	c = startCentre(t, store, "default", address, cfg)
	require.Eventually(t, func() bool { _, err := s.Next(ctx(t)); return err == nil }, 10*time.Second, time.Millisecond)
	require.ElementsMatch(t, []string{"a", "centre"}, members(t, c.registry))
}

func TestLeasesThatTheCentreRefuses(t *testing.T) {
	cfg := quick
	cfg.MaxLease, cfg.MemberID = 500, "centre"
	c := startCentre(t, memstore.New(), "default", "127.0.0.1:0", cfg)
	a := startSidecar(t, c.url(role), "a", quick)
	s := create(t, a.Registry, "s", sequencer.Options{})
	draw(t, s, 1)
	create(t, a.Registry, "strict", sequencer.Options{Cache: ptr[int64](1)})

	for name, test := range map[string]struct {
		ask  sequencer.PeerLease
		want *sequencer.Error
	}{
		"no such sequence":    {sequencer.PeerLease{Name: seq("none"), Count: 1, Member: "a"}, sequencer.ErrUndefined},
		"no values":           {sequencer.PeerLease{Name: seq("s"), Member: "a"}, &sequencer.Error{Code: "22023"}},
		"less than none":      {sequencer.PeerLease{Name: seq("s"), Count: -1, Member: "a"}, &sequencer.Error{Code: "22023"}},
		"no member":           {sequencer.PeerLease{Name: seq("s"), Count: 1, Member: "nobody"}, &sequencer.Error{Code: "42704"}},
		"no member's name":    {sequencer.PeerLease{Name: seq("s"), Count: 1}, &sequencer.Error{Code: "42704"}},
		"another incarnation": {sequencer.PeerLease{Name: seq("s"), Count: 1, Member: "a", Incarnation: "x"}, sequencer.ErrPeerBehind},
		"a newer version":     {sequencer.PeerLease{Name: seq("s"), Count: 1, Member: "a", Version: 2}, sequencer.ErrPeerBehind},
		"told of the future":  {sequencer.PeerLease{Name: seq("s"), Count: 1, Member: "a", Told: 1 << 40}, sequencer.ErrStore},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.registry.LeaseToPeer(ctx(t), test.ask)
			require.ErrorIs(t, err, test.want)
		})
	}
	got, err := c.registry.LeaseToPeer(ctx(t), sequencer.PeerLease{Name: seq("s"), Count: 1 << 50, Member: "a"})
	require.NoError(t, err)
	assert.LessOrEqual(t, got.Count, int64(500), "bounded")
	got, err = c.registry.LeaseToPeer(ctx(t), sequencer.PeerLease{Name: seq("strict"), Count: 3})
	require.NoError(t, err)
	assert.Equal(t, sequencer.Block{First: 1, Count: 3, Increment: 1}, got.Block, "nobody holds values of a strict sequence")
	assert.True(t, got.Strict)
}

// Whoever was told of a change was told by a process that holds nothing older: it says nothing before it has done the change
// itself.
func TestChangesAreToldWhenTheyAreDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backing := memstore.New()
		c := startBubbled(t, &network{}, backing, sequencer.Config{StoreTimeout: 3 * time.Second}, nil)
		other, err := sequencer.Open(context.Background(), backing, sequencer.Config{Logger: silent})
		require.NoError(t, err)
		create(t, c.Registry, "s", sequencer.Options{})
		draw(t, lookup(t, c.Registry, "s"), 1)
		feed, err := c.Followed(context.Background())
		require.NoError(t, err)
		told := feed.Rev
		require.NoError(t, c.ConfirmFor(context.Background(), "peer", told))

		c.store.Plan(func(op string) faultstore.Fault {
			if op == "get" {
				return faultstore.Fault{Before: errCut}
			}
			return faultstore.Fault{}
		})
		require.NoError(t, lookup(t, other, "s").Set(context.Background(), 1_000_000, false), "it moves on: nobody's word is needed")
		_, err = c.Followed(context.Background())
		require.ErrorIs(t, err, sequencer.ErrStore, "it cannot read what the sequence is now")
		ask := sequencer.PeerLease{Name: seq("s"), Count: 1, Member: "peer", Told: told}
		got, err := c.LeaseToPeer(context.Background(), ask)
		require.NoError(t, err)
		require.EqualValues(t, 1, got.Version, "a peer that knows no more either")
		ask.Told++ // by another process, which knew
		_, err = c.LeaseToPeer(context.Background(), ask)
		require.ErrorIs(t, err, sequencer.ErrStore)

		c.store.Plan(nil)
		got, err = c.LeaseToPeer(context.Background(), ask)
		require.NoError(t, err)
		require.EqualValues(t, 2, got.Version)
		require.EqualValues(t, 1_000_000, got.First)
		feed, err = c.Followed(context.Background())
		require.NoError(t, err)
		require.Greater(t, feed.Rev, told)
		require.NoError(t, other.Close(context.Background()))
		c.stop(time.Minute)
	})
}

// An older version of a sequence is never given to one who knows a newer, nor a newer one to who knows an older.
func TestLeaseOfAnotherVersion(t *testing.T) {
	store := memstore.New()
	slow := sequencer.Config{PollInterval: time.Hour, MemberID: "centre"} // it hears of nothing
	c := startCentre(t, store, "default", "127.0.0.1:0", slow)
	other, err := sequencer.Open(ctx(t), store, sequencer.Config{Logger: silent, MemberID: "other"})
	require.NoError(t, err)
	defer func() { require.NoError(t, other.Close(ctx(t))) }()
	require.NoError(t, c.registry.ConfirmFor(ctx(t), "a", 0))

	create(t, c.registry, "s", sequencer.Options{})
	draw(t, lookup(t, c.registry, "s"), 1)
	require.NoError(t, lookup(t, other, "s").Set(ctx(t), 1_000_000, false)) // moves on: nobody's word is needed

	ask := sequencer.PeerLease{Name: seq("s"), Count: 10, Member: "a"}
	old, err := c.registry.LeaseToPeer(ctx(t), ask)
	require.NoError(t, err)
	require.EqualValues(t, 1, old.Version, "the centre has not heard of it")
	ask.Version = 2
	got, err := c.registry.LeaseToPeer(ctx(t), ask)
	require.NoError(t, err)
	require.EqualValues(t, 2, got.Version, "it looks when a peer knows more")
	require.EqualValues(t, 1_000_000, got.First)
	ask.Version = 1
	_, err = c.registry.LeaseToPeer(ctx(t), ask)
	require.ErrorIs(t, err, sequencer.ErrPeerBehind)
}
