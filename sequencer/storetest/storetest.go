// Package storetest is the conformance suite of sequencer.Store: what the sequencer relies on, as tests that every store
// passes.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/sequencer"
)

// Opener opens a namespace of one backing store. The suite closes what it opens, and opens one at a time; what was written
// must be there when the namespace is opened again.
type Opener func(t testing.TB, namespace string) sequencer.Store

// Run runs the suite. fresh returns an opener on an empty backing store of its own.
func Run(t *testing.T, fresh func(t testing.TB) Opener) {
	for name, test := range map[string]func(*testing.T, Opener){
		"items are kept whole":                    itemsAreKeptWhole,
		"many items are read at once":             manyItems,
		"a put is conditional on rev":             putIsConditional,
		"a delete is conditional on rev":          deleteIsConditional,
		"names":                                   names,
		"names with any characters":               namesOfAnyCharacters,
		"namespaces are apart":                    namespacesAreApart,
		"what was written is there after opening": durable,
		"leases":                                       leases,
		"leases at the ends of int8":                   leasesAtTheEnds,
		"a lease is refused":                           leaseIsRefused,
		"leases skip what is set apart":                leasesSkip,
		"leases skip at random":                        leasesSkipAtRandom,
		"a give-back":                                  giveBack,
		"a give-back sent again after another's lease": giveBackABA,
		"leases and give-backs at random":              random,
		"leases at the same time do not overlap":       concurrentLeases,
		"puts at the same time: one wins":              concurrentPuts,
		"a change begins":                              revoke,
		"members":                                      members,
		"the feed":                                     feed,
		"OIDs count down and are never given twice":    oids,
		"a caller whose time is up does not wait":      canceledCaller,
		"an item that cannot be right is not written":  strangeItems,
	} {
		t.Run(name, func(t *testing.T) { test(t, fresh(t)) })
	}
}

// open opens a namespace until the end of the test.
func open(t testing.TB, o Opener) sequencer.Store {
	s := o(t, "default")
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func ctx(t testing.TB) context.Context {
	c, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return c
}

// item is a new item of a definition.
func item(incarnation string, d sequencer.Definition) sequencer.Item {
	return sequencer.Item{
		Incarnation: incarnation, Version: 1, State: sequencer.Active, Source: sequencer.FromStore, Kind: sequencer.Virtual,
		Mode: sequencer.Cached, Pos: sequencer.At(d.Start), Definition: d, OID: 4294967294,
		Created: "2026-01-02T03:04:05Z", Changed: "2026-01-02T03:04:05Z/0",
	}
}

func define(t testing.TB, increment, from, to, start int64) sequencer.Definition {
	d, err := sequencer.Define(sequencer.Options{
		Increment: &increment, Start: &start, Min: &sequencer.Bound{Value: from}, Max: &sequencer.Bound{Value: to},
	})
	require.NoError(t, err)
	return d
}

func ptr[T any](v T) *T { return &v }

// put writes a new item and returns it as it is stored.
func put(t testing.TB, s sequencer.Store, it sequencer.Item) sequencer.Item {
	require.NoError(t, s.Put(ctx(t), it, 0))
	return get(t, s, it.Incarnation)
}

func get(t testing.TB, s sequencer.Store, incarnation string) sequencer.Item {
	it, err := s.Get(ctx(t), incarnation)
	require.NoError(t, err)
	return it
}

// rewrite changes an item under its rev.
func rewrite(t testing.TB, s sequencer.Store, it sequencer.Item, change func(*sequencer.Item)) sequencer.Item {
	rev := it.Rev
	change(&it)
	require.NoError(t, s.Put(ctx(t), it, rev))
	return get(t, s, it.Incarnation)
}

// conflict is the item that a refusal carries.
func conflict(t testing.TB, err error) sequencer.Item {
	var c *sequencer.Conflict
	require.ErrorAs(t, err, &c)
	return c.Item
}

func itemsAreKeptWhole(t *testing.T, o Opener) {
	s := open(t, o)
	_, err := s.Get(ctx(t), "none")
	require.ErrorIs(t, err, sequencer.ErrNotFound)

	full := item("full", define(t, math.MinInt64, math.MinInt64, math.MaxInt64, math.MinInt64))
	full.Definition.Type = sequencer.Bigint
	full.Definition.Cache = math.MaxInt64
	full.Definition.Cycle = true
	full.Definition.OwnedBy, full.Definition.Owner = `public."täble".c`, `"o'wner"`
	full.Definition.Policy = sequencer.Policy{
		Mode: sequencer.Cached, BufferSeconds: 0.5, MinThreshold: 1, MinLease: 2, MaxLease: 1 << 40, LeaseSeconds: 86400,
	}
	full.Version = math.MaxInt64
	full.State, full.Source, full.Kind, full.Mode = sequencer.Revoking, sequencer.Moving, sequencer.Mirrored, sequencer.Strict
	full.Pos = sequencer.At(math.MinInt64).Plus(sequencer.At(math.MinInt64))
	full.High, full.Fresh = ptr[int64](math.MinInt64), ptr[int64](math.MaxInt64)
	full.DBOID, full.RelOID = math.MaxUint32, 16384
	full.Fence = &sequencer.Range{First: math.MinInt64, Last: math.MaxInt64}
	full.NextFence = &sequencer.Range{First: 3, Last: 2}
	full.Holes = []sequencer.Range{{First: -1, Last: 1}, {First: 5, Last: 5}}
	bare := item("bare", define(t, 1, 1, math.MaxInt16, 1))
	bare.Definition.Type = sequencer.Smallint
	zero := item("zero", define(t, 1, -1, 1, 0))
	zero.High, zero.Fresh = ptr[int64](0), ptr[int64](0)
	past := item("past", define(t, math.MaxInt64, 1, math.MaxInt64, 1))
	past.Pos = sequencer.At(math.MaxInt64).Plus(sequencer.At(math.MaxInt64))

	for _, it := range []sequencer.Item{full, bare, zero, past} {
		got := put(t, s, it)
		it.Rev = 1
		require.Equal(t, it, got)
		// And the caller's copy is the caller's.
		if got.High != nil {
			*got.High = 77
			require.Equal(t, it, get(t, s, it.Incarnation))
		}
	}
}

func manyItems(t *testing.T, o Opener) {
	s := open(t, o)
	none, err := s.GetAll(ctx(t), nil)
	require.NoError(t, err)
	require.Empty(t, none)

	const n = 250 // more than fit into one request of any store
	asked, want := []string{"none"}, map[string]sequencer.Item{}
	for i := range n {
		it := item(fmt.Sprintf("it/%03d", i), define(t, 1, 1, math.MaxInt64, int64(i+1)))
		require.NoError(t, s.Put(ctx(t), it, 0))
		it.Rev = 1
		asked, want[it.Incarnation] = append(asked, it.Incarnation), it
	}
	put(t, s, item("not asked for", define(t, 1, 1, 9, 1)))
	got, err := s.GetAll(ctx(t), asked)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func putIsConditional(t *testing.T, o Opener) {
	s := open(t, o)
	it := item("a", define(t, 1, 1, 100, 1))
	require.ErrorIs(t, s.Put(ctx(t), it, 1), sequencer.ErrNotFound)
	stored := put(t, s, it)
	require.Equal(t, stored, conflict(t, s.Put(ctx(t), it, 0)))
	require.Equal(t, stored, conflict(t, s.Put(ctx(t), it, 2)))

	it.Version, it.Pos = 2, sequencer.At(50)
	require.NoError(t, s.Put(ctx(t), it, 1))
	it.Rev = 2
	require.Equal(t, it, get(t, s, "a"))
	require.Equal(t, it, conflict(t, s.Put(ctx(t), it, 1)))
}

func deleteIsConditional(t *testing.T, o Opener) {
	s := open(t, o)
	require.ErrorIs(t, s.Delete(ctx(t), "a", 1), sequencer.ErrNotFound)
	it := put(t, s, item("a", define(t, 1, 1, 100, 1)))
	require.Equal(t, it, conflict(t, s.Delete(ctx(t), "a", 2)))
	require.NoError(t, s.Delete(ctx(t), "a", 1))
	require.ErrorIs(t, s.Delete(ctx(t), "a", 1), sequencer.ErrNotFound)
	_, err := s.Lease(ctx(t), it, 1)
	require.ErrorIs(t, err, sequencer.ErrNotFound)
	require.ErrorIs(t, s.GiveBack(ctx(t), sequencer.GiveBack{Incarnation: "a", Version: 1, Rev: 1}), sequencer.ErrNotFound)
}

func names(t *testing.T, o Opener) {
	s := open(t, o)
	n := sequencer.Name{Database: "shop", Schema: "public", Name: "orders_seq"}
	e := sequencer.Entry{Name: n, Incarnation: "a", OID: 4294967294}
	_, err := s.Resolve(ctx(t), n)
	require.ErrorIs(t, err, sequencer.ErrNotFound)
	require.NoError(t, s.PutName(ctx(t), e))
	require.ErrorIs(t, s.PutName(ctx(t), e), sequencer.ErrExists)
	other := e
	other.Incarnation = "b"
	require.ErrorIs(t, s.PutName(ctx(t), other), sequencer.ErrExists)
	got, err := s.Resolve(ctx(t), n)
	require.NoError(t, err)
	require.Equal(t, e, got)

	require.ErrorIs(t, s.DeleteName(ctx(t), n, "b"), sequencer.ErrNotFound)
	require.NoError(t, s.DeleteName(ctx(t), n, "a"))
	require.ErrorIs(t, s.DeleteName(ctx(t), n, "a"), sequencer.ErrNotFound)
	_, err = s.Resolve(ctx(t), n)
	require.ErrorIs(t, err, sequencer.ErrNotFound)
	require.NoError(t, s.PutName(ctx(t), other))
}

func namesOfAnyCharacters(t *testing.T, o Opener) {
	s := open(t, o)
	databases := []string{"shop", "shop2", "sho", "sh/op", "sh%2Fop", "", " ", "täglich", "\x01\xff"}
	want := map[string][]sequencer.Entry{}
	for _, db := range databases {
		want[db] = nil
		for _, schema := range []string{"public", "a/b", "%", "Ünicode", "x.y"} {
			for _, name := range []string{"s", "s/t", "a b", `q"'`, "%2F", "z\xff"} {
				e := sequencer.Entry{
					Name:        sequencer.Name{Database: db, Schema: schema, Name: name},
					Incarnation: fmt.Sprintf("%q %q %q", db, schema, name), OID: 17,
				}
				want[db] = append(want[db], e)
				require.NoError(t, s.PutName(ctx(t), e), "%q", e.Name)
			}
		}
	}
	for _, db := range databases {
		got, err := s.Names(ctx(t), db)
		require.NoError(t, err)
		require.ElementsMatch(t, want[db], got, "%q", db)
		for _, e := range want[db] {
			got, err := s.Resolve(ctx(t), e.Name)
			require.NoError(t, err)
			require.Equal(t, e, got)
		}
	}
	none, err := s.Names(ctx(t), "no such database")
	require.NoError(t, err)
	require.Empty(t, none)
}

func namespacesAreApart(t *testing.T, o Opener) {
	e := sequencer.Entry{Name: sequencer.Name{Database: "shop", Schema: "public", Name: "s"}, Incarnation: "a", OID: 4294967294}
	for _, namespace := range []string{"default", "other", "def", "default/shop", "default%2Fshop"} {
		s := o(t, namespace)
		_, err := s.Resolve(ctx(t), e.Name)
		require.ErrorIs(t, err, sequencer.ErrNotFound)
		_, err = s.Get(ctx(t), "a")
		require.ErrorIs(t, err, sequencer.ErrNotFound)
		f, err := s.Feed(ctx(t))
		require.NoError(t, err)
		require.Zero(t, f)
		require.NoError(t, s.PutName(ctx(t), e))
		put(t, s, item("a", define(t, 1, 1, 100, 1)))
		_, err = s.Announce(ctx(t), sequencer.Announcement{Names: true})
		require.NoError(t, err)
		oid, err := s.NextOID(ctx(t))
		require.NoError(t, err)
		require.EqualValues(t, sequencer.MaxOID, oid)
		require.NoError(t, s.Close())
	}
}

func durable(t *testing.T, o Opener) {
	s := o(t, "default")
	it := put(t, s, item("a", define(t, 1, 1, 100, 1)))
	lease, err := s.Lease(ctx(t), it, 10)
	require.NoError(t, err)
	it.Apply(lease)
	e := sequencer.Entry{Name: sequencer.Name{Database: "shop", Schema: "public", Name: "s"}, Incarnation: "a", OID: 9}
	require.NoError(t, s.PutName(ctx(t), e))
	rev, err := s.Announce(ctx(t), sequencer.Announcement{Incarnation: "a"})
	require.NoError(t, err)
	require.NoError(t, s.Close())

	s = open(t, o)
	require.Equal(t, it, get(t, s, "a"))
	got, err := s.Resolve(ctx(t), e.Name)
	require.NoError(t, err)
	require.Equal(t, e, got)
	f, err := s.Feed(ctx(t))
	require.NoError(t, err)
	require.Equal(t, rev, f.Rev)
	require.EqualValues(t, 1, f.Topics[sequencer.Topic("a")])
}

// lease leases and checks that the block and the item are what the promises allow.
func lease(t testing.TB, s sequencer.Store, known sequencer.Item, count int64) (sequencer.Lease, error) {
	before := get(t, s, known.Incarnation)
	l, err := s.Lease(ctx(t), known, count)
	after := get(t, s, known.Incarnation)
	if err != nil {
		require.Equal(t, before, after, "a refused lease changes nothing")
		return l, err
	}
	d := before.Definition
	require.Equal(t, before.Pos, sequencer.At(l.First), "a block begins at pos")
	require.GreaterOrEqual(t, l.Count, int64(1))
	require.LessOrEqual(t, l.Count, count)
	last, ok := sequencer.At(l.First).Plus(sequencer.Product(l.Count-1, d.Increment)).Value()
	require.True(t, ok && last >= d.Min && last <= d.Max, "a block ends within the bounds")
	high := last
	if h := before.High; h != nil && (d.Increment > 0) == (*h > last) {
		high = *h
	}
	want := before
	want.Rev++
	want.Pos, want.High = sequencer.At(last).Plus(sequencer.At(d.Increment)), &high
	require.Equal(t, want, after)
	require.Equal(t, sequencer.Lease{First: l.First, Count: l.Count, Rev: want.Rev, Pos: want.Pos, High: want.High}, l)
	return l, nil
}

func leases(t *testing.T, o Opener) {
	s := open(t, o)
	for name, c := range map[string]struct {
		definition sequencer.Definition
		ask        int64
		first      []int64 // of the blocks, until the sequence is exhausted
		count      []int64
	}{
		"up":                    {define(t, 1, 1, 10, 1), 4, []int64{1, 5, 9}, []int64{4, 4, 2}},
		"up by three":           {define(t, 3, 1, 12, 2), 2, []int64{2, 8}, []int64{2, 2}},
		"up, ends between":      {define(t, 3, 1, 10, 2), 2, []int64{2, 8}, []int64{2, 1}},
		"down":                  {define(t, -1, -10, -1, -1), 4, []int64{-1, -5, -9}, []int64{4, 4, 2}},
		"down by three":         {define(t, -3, -5, 5, 4), 3, []int64{4, -5}, []int64{3, 1}},
		"one value":             {define(t, 1, 1, 2, 2), 100, []int64{2}, []int64{1}},
		"more than there is":    {define(t, 1, 1, 3, 1), math.MaxInt64, []int64{1}, []int64{3}},
		"increment past bounds": {define(t, 100, 1, 50, 7), 10, []int64{7}, []int64{1}},
	} {
		t.Run(name, func(t *testing.T) {
			it := put(t, s, item(name, c.definition))
			for i := range c.first {
				l, err := lease(t, s, it, c.ask)
				require.NoError(t, err)
				require.Equal(t, []int64{c.first[i], c.count[i]}, []int64{l.First, l.Count})
				it.Apply(l)
			}
			for _, known := range []sequencer.Item{it, get(t, s, name)} {
				_, err := lease(t, s, known, 1)
				require.Equal(t, get(t, s, name), conflict(t, err), "exhausted")
			}
		})
	}
}

func leasesAtTheEnds(t *testing.T, o Opener) {
	s := open(t, o)
	for name, c := range map[string]struct {
		definition sequencer.Definition
		ask        int64
		values     []int64
	}{
		"top":                {define(t, 1, 1, math.MaxInt64, math.MaxInt64-1), 5, []int64{math.MaxInt64 - 1, math.MaxInt64}},
		"bottom":             {define(t, -1, math.MinInt64, -1, math.MinInt64+1), 5, []int64{math.MinInt64 + 1, math.MinInt64}},
		"greatest increment": {define(t, math.MaxInt64, math.MinInt64, math.MaxInt64, math.MinInt64), 9, []int64{math.MinInt64, -1, math.MaxInt64 - 1}},
		"least increment":    {define(t, math.MinInt64, math.MinInt64, math.MaxInt64, math.MaxInt64), 9, []int64{math.MaxInt64, -1}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, ask := range []int64{1, c.ask} {
				id := fmt.Sprintf("%s %d", name, ask)
				it := put(t, s, item(id, c.definition))
				var got []int64
				for len(got) <= len(c.values) {
					l, err := lease(t, s, it, ask)
					if err != nil {
						conflict(t, err)
						break
					}
					for i := range l.Count {
						got = append(got, l.First+i*it.Definition.Increment)
					}
					it.Apply(l)
				}
				require.Equal(t, c.values, got)
			}
		})
	}
	t.Run("a whole range", func(t *testing.T) {
		it := put(t, s, item("whole", define(t, 1, math.MinInt64, math.MaxInt64, math.MinInt64)))
		for _, first := range []int64{math.MinInt64, -1} {
			l, err := lease(t, s, it, math.MaxInt64)
			require.NoError(t, err)
			require.Equal(t, []int64{first, math.MaxInt64}, []int64{l.First, l.Count})
			it.Apply(l)
		}
		l, err := lease(t, s, it, math.MaxInt64)
		require.NoError(t, err)
		require.Equal(t, []int64{math.MaxInt64 - 1, 2}, []int64{l.First, l.Count})
	})
}

// leasesSkip: no block holds a value of a range that leases skip, and none begins there.
func leasesSkip(t *testing.T, o Opener) {
	s := open(t, o)
	r := func(first, last int64) sequencer.Range { return sequencer.Range{First: first, Last: last} }
	for name, c := range map[string]struct {
		definition  sequencer.Definition
		fence, next *sequencer.Range
		holes       []sequencer.Range
		pos         int64
		count       int64 // of the lease; 0: it is refused
	}{
		"up to a fence":                 {define(t, 1, 1, 100, 1), ptr(r(10, 19)), nil, nil, 1, 9},
		"up to the next fence":          {define(t, 1, 1, 100, 1), ptr(r(50, 59)), ptr(r(10, 19)), nil, 1, 9},
		"up to a hole":                  {define(t, 1, 1, 100, 1), ptr(r(1, 2)), nil, []sequencer.Range{r(70, 80), r(40, 41)}, 5, 35},
		"between holes":                 {define(t, 1, 1, 100, 1), nil, nil, []sequencer.Range{r(70, 80), r(40, 41)}, 42, 28},
		"after all of them":             {define(t, 1, 1, 100, 1), ptr(r(10, 19)), nil, []sequencer.Range{r(70, 80)}, 81, 20},
		"at the beginning of one":       {define(t, 1, 1, 100, 1), ptr(r(10, 19)), nil, nil, 10, 0},
		"at the end of one":             {define(t, 1, 1, 100, 1), ptr(r(10, 19)), nil, nil, 19, 0},
		"up to the bound":               {define(t, 1, 1, 100, 1), ptr(r(101, 200)), nil, nil, 95, 6},
		"a step across a small one":     {define(t, 10, 1, 100, 1), ptr(r(12, 19)), nil, nil, 1, 2},
		"down to a fence":               {define(t, -1, -100, -1, -1), ptr(r(-10, -19)), nil, nil, -1, 9},
		"down, written the other way":   {define(t, -1, -100, -1, -1), ptr(r(-19, -10)), nil, nil, -1, 9},
		"down, between":                 {define(t, -3, -100, -1, -1), ptr(r(-10, -19)), nil, []sequencer.Range{r(-50, -60)}, -22, 10},
		"down, in one":                  {define(t, -1, -100, -1, -1), nil, nil, []sequencer.Range{r(-50, -60)}, -55, 0},
		"all of it":                     {define(t, 1, 1, 100, 1), ptr(r(1, 100)), nil, nil, 1, 0},
		"the ends of int8":              {define(t, 1, math.MinInt64, math.MaxInt64, 0), ptr(r(math.MaxInt64, math.MaxInt64)), nil, []sequencer.Range{r(math.MinInt64, -1)}, math.MaxInt64 - 3, 3},
		"the ends of int8, coming down": {define(t, -1, math.MinInt64, math.MaxInt64, 0), ptr(r(math.MinInt64, math.MinInt64)), nil, []sequencer.Range{r(1, math.MaxInt64)}, math.MinInt64 + 3, 3},
	} {
		t.Run(name, func(t *testing.T) {
			it := item(name, c.definition)
			it.Fence, it.NextFence, it.Holes, it.Pos = c.fence, c.next, c.holes, sequencer.At(c.pos)
			it = put(t, s, it)
			l, err := lease(t, s, it, 1000)
			if c.count == 0 {
				require.Equal(t, it, conflict(t, err))
				return
			}
			require.NoError(t, err)
			require.Equal(t, []int64{c.pos, c.count}, []int64{l.First, l.Count})
		})
	}
	t.Run("whoever knows an old position", func(t *testing.T) {
		it := item("old", define(t, 1, 1, 1000, 1))
		it.Fence = ptr(r(101, 200))
		old := put(t, s, it)
		moved := rewrite(t, s, old, func(it *sequencer.Item) {
			it.Pos = sequencer.At(401)
			it.Holes, it.Fence = []sequencer.Range{*it.Fence}, ptr(r(301, 400)) // added behind the position
		})
		l, err := lease(t, s, old, 1000)
		require.NoError(t, err)
		require.Equal(t, []int64{401, 600}, []int64{l.First, l.Count})
		require.Equal(t, moved.Rev+1, l.Rev)
	})
	t.Run("whoever knows a position within one", func(t *testing.T) {
		it := item("in", define(t, 1, 1, 1000, 1))
		it.Fence = ptr(r(101, 200))
		it.Pos = sequencer.At(101)
		in := put(t, s, it)
		rewrite(t, s, in, func(it *sequencer.Item) { it.Pos = sequencer.At(201) })
		l, err := lease(t, s, in, 10)
		require.NoError(t, err)
		require.Equal(t, []int64{201, 10}, []int64{l.First, l.Count})
	})
}

// leasesSkipAtRandom leases while ranges are set apart behind the position, by those who know the item as it was at any time
// of the version.
func leasesSkipAtRandom(t *testing.T, o Opener) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	s := open(t, o)
	for round, increment := range []int64{1, -1, 7, -7} {
		id := fmt.Sprint("skip", round)
		from, to := int64(-2000), int64(2000)
		start := from
		if increment < 0 {
			start = to
		}
		it := item(id, define(t, increment, from, to, start))
		var apart []sequencer.Range
		for range 4 {
			first := from + rng.Int64N(to-from-50)
			apart = append(apart, sequencer.Range{First: first, Last: first + rng.Int64N(50)})
		}
		it.Fence, it.Holes = &apart[0], apart[1:]
		it = put(t, s, it)
		known := []sequencer.Item{it}
		taken := map[int64]bool{}
		for range 120 {
			before := get(t, s, id)
			hint := known[rng.IntN(len(known))]
			l, err := lease(t, s, hint, 1+rng.Int64N(30))
			if err != nil {
				require.Equal(t, before, conflict(t, err))
				// As a registry does that finds a range in its way.
				known = append(known, rewrite(t, s, before, func(it *sequencer.Item) {
					if next := it.Pos.Plus(sequencer.At(increment)); next.Compare(sequencer.At(from)) >= 0 && next.Compare(sequencer.At(to)) <= 0 {
						it.Pos = next
					}
				}))
				continue
			}
			for i := range l.Count {
				v := l.First + i*increment
				require.False(t, taken[v], "%d twice", v)
				taken[v] = true
				for _, r := range before.Skips() {
					require.False(t, v >= min(r.First, r.Last) && v <= max(r.First, r.Last), "%d is of %v", v, r)
				}
			}
			after := before
			after.Apply(l)
			known = append(known, after)
			if rng.IntN(4) == 0 { // what was leased becomes the fence
				known = append(known, rewrite(t, s, get(t, s, id), func(it *sequencer.Item) {
					it.Holes = append(it.Holes, *it.Fence)
					it.Fence = &sequencer.Range{First: l.First, Last: l.First + (l.Count-1)*increment}
				}))
			}
		}
	}
}

func leaseIsRefused(t *testing.T, o Opener) {
	s := open(t, o)
	it := put(t, s, item("a", define(t, 1, 1, 100, 1)))
	_, err := s.Lease(ctx(t), item("none", it.Definition), 1)
	require.ErrorIs(t, err, sequencer.ErrNotFound)

	changed := rewrite(t, s, it, func(it *sequencer.Item) { it.Version = 2; it.Pos = sequencer.At(7) })
	_, err = lease(t, s, it, 1)
	require.Equal(t, changed, conflict(t, err), "another version")
	for name, change := range map[string]func(*sequencer.Item){
		"a change is under way": func(it *sequencer.Item) { it.State = sequencer.Revoking },
		"the upstream has it":   func(it *sequencer.Item) { it.State, it.Source = sequencer.Active, sequencer.FromUpstream },
		"it moves":              func(it *sequencer.Item) { it.Source = sequencer.Moving },
	} {
		changed = rewrite(t, s, get(t, s, "a"), change)
		_, err = lease(t, s, changed, 1)
		require.Equal(t, changed, conflict(t, err), name)
	}
}

func giveBack(t *testing.T, o Opener) {
	s := open(t, o)
	it := put(t, s, item("a", define(t, 10, 1, 1000, 1)))
	l, err := lease(t, s, it, 5) // 1 .. 41
	require.NoError(t, err)
	it.Apply(l)
	back := sequencer.GiveBack{Incarnation: "a", Version: 1, Rev: l.Rev, Pos: sequencer.At(21)}

	wrong := back
	wrong.Rev--
	require.Equal(t, it, conflict(t, s.GiveBack(ctx(t), wrong)))
	wrong = back
	wrong.Version++
	require.Equal(t, it, conflict(t, s.GiveBack(ctx(t), wrong)))
	require.Equal(t, it, get(t, s, "a"))

	require.NoError(t, s.GiveBack(ctx(t), back))
	it.Rev, it.Pos = it.Rev+1, sequencer.At(21)
	require.Equal(t, it, get(t, s, "a"), "high stays")
	require.Equal(t, it, conflict(t, s.GiveBack(ctx(t), back)), "sent again")

	// What was given back is leased again, within what was leased before and past it.
	for _, want := range []int64{21, 31, 41, 51} {
		l, err := lease(t, s, it, 1)
		require.NoError(t, err)
		require.Equal(t, want, l.First)
		it.Apply(l)
	}
	frozen := rewrite(t, s, it, func(it *sequencer.Item) { it.State = sequencer.Revoking })
	back = sequencer.GiveBack{Incarnation: "a", Version: 1, Rev: frozen.Rev, Pos: sequencer.At(51)}
	require.Equal(t, frozen, conflict(t, s.GiveBack(ctx(t), back)), "during a change")
}

// giveBackABA: a give-back takes place and its answer is lost; another client leases the same range; the give-back is sent
// again. It must not take place a second time, although the position is what it was.
func giveBackABA(t *testing.T, o Opener) {
	s := open(t, o)
	it := put(t, s, item("a", define(t, 1, 1, 1000, 1)))
	mine, err := lease(t, s, it, 100)
	require.NoError(t, err)
	back := sequencer.GiveBack{Incarnation: "a", Version: 1, Rev: mine.Rev, Pos: sequencer.At(mine.First)}
	require.NoError(t, s.GiveBack(ctx(t), back)) // and the answer is lost

	others, err := lease(t, s, it, 100)
	require.NoError(t, err)
	require.Equal(t, []any{mine.First, mine.Count, mine.Pos}, []any{others.First, others.Count, others.Pos})

	conflict(t, s.GiveBack(ctx(t), back))
	next, err := lease(t, s, it, 100)
	require.NoError(t, err)
	require.EqualValues(t, 101, next.First)
}

// random leases, gives back and moves at random, with hints that are right, old or wrong.
func random(t *testing.T, o Opener) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	s := open(t, o)
	for round := range 6 {
		increment := []int64{1, -1, 7, -7, math.MaxInt64 / 40, math.MinInt64 / 40}[round]
		id := fmt.Sprint("random", round)
		it := put(t, s, item(id, define(t, increment, math.MinInt64+3, math.MaxInt64-3, 5)))
		d := it.Definition
		known := []sequencer.Item{it}
		for range 80 {
			before := get(t, s, id)
			switch rng.IntN(8) {
			case 0:
				behind := sequencer.Product(rng.Int64N(60), increment)
				pos := before.Pos.Minus(behind)
				if pos.Compare(sequencer.At(d.Min)) < 0 || pos.Compare(sequencer.At(d.Max)) > 0 {
					continue
				}
				require.NoError(t, s.GiveBack(ctx(t),
					sequencer.GiveBack{Incarnation: id, Version: before.Version, Rev: before.Rev, Pos: pos}))
			case 1:
				known = []sequencer.Item{rewrite(t, s, before, func(it *sequencer.Item) {
					it.Version++
					v := rng.Int64()
					it.Pos = sequencer.At(max(d.Min, min(d.Max, v)))
				})}
			default:
				hint := known[rng.IntN(len(known))]
				l, err := lease(t, s, hint, 1+rng.Int64N(50))
				if err != nil {
					require.Equal(t, before, conflict(t, err))
					continue
				}
				after := before
				after.Apply(l)
				known = append(known, after)
			}
		}
	}
}

func concurrentLeases(t *testing.T, o Opener) {
	const clients, each = 8, 40
	s := open(t, o)
	it := put(t, s, item("a", define(t, 2, 1, math.MaxInt64, 1)))
	var mu sync.Mutex
	var wg sync.WaitGroup
	owner := map[int64]int{}
	revs := map[int64]bool{}
	for client := range clients {
		wg.Go(func() {
			known := it
			for i := range each {
				l, err := s.Lease(ctx(t), known, int64(1+i%5))
				if !assert.NoError(t, err) {
					return
				}
				known.Apply(l)
				mu.Lock()
				assert.False(t, revs[l.Rev], "rev %d twice", l.Rev)
				revs[l.Rev] = true
				for k := range l.Count {
					v := l.First + k*2
					_, taken := owner[v]
					assert.False(t, taken, "value %d twice", v)
					owner[v] = client
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	require.Equal(t, sequencer.At(int64(1+2*len(owner))), get(t, s, "a").Pos, "and none is lost")
}

func concurrentPuts(t *testing.T, o Opener) {
	s := open(t, o)
	it := put(t, s, item("a", define(t, 1, 1, 100, 1)))
	const clients = 8
	var wg sync.WaitGroup
	won := make(chan int64, clients)
	for i := range int64(clients) {
		wg.Go(func() {
			mine := it.Clone()
			mine.Version = 10 + i
			switch err := s.Put(ctx(t), mine, it.Rev); {
			case err == nil:
				won <- mine.Version
			default:
				assert.ErrorAs(t, err, ptr(&sequencer.Conflict{}))
			}
		})
	}
	wg.Wait()
	require.Len(t, won, 1)
	require.Equal(t, <-won, get(t, s, "a").Version)
}

func revoke(t *testing.T, o Opener) {
	s := open(t, o)
	_, err := s.Revoke(ctx(t), "a", 1, "x")
	require.ErrorIs(t, err, sequencer.ErrNotFound)
	it := put(t, s, item("a", define(t, 1, 1, 100, 1)))
	l, err := lease(t, s, it, 10)
	require.NoError(t, err)
	it.Apply(l)

	_, err = s.Revoke(ctx(t), "a", 2, "x")
	require.Equal(t, it, conflict(t, err), "another version")
	revoked, err := s.Revoke(ctx(t), "a", 1, "x")
	require.NoError(t, err)
	it.Rev, it.Version, it.State, it.Changed = it.Rev+1, 2, sequencer.Revoking, "x"
	require.Equal(t, it, revoked)
	require.Equal(t, it, get(t, s, "a"))

	for _, version := range []int64{1, 2} {
		_, err = s.Revoke(ctx(t), "a", version, "y")
		require.Equal(t, it, conflict(t, err), "under way")
		known := it.Clone()
		known.Version = version
		_, err = lease(t, s, known, 1)
		require.Equal(t, it, conflict(t, err))
		require.Equal(t, it, conflict(t, s.GiveBack(ctx(t),
			sequencer.GiveBack{Incarnation: "a", Version: version, Rev: l.Rev, Pos: sequencer.At(1)})))
	}
	done := rewrite(t, s, it, func(it *sequencer.Item) { it.State, it.Pos = sequencer.Active, sequencer.At(50) })
	l, err = lease(t, s, done, 10)
	require.NoError(t, err)
	require.EqualValues(t, 50, l.First)
	moved := rewrite(t, s, get(t, s, "a"), func(it *sequencer.Item) { it.Source = sequencer.Moving })
	_, err = s.Revoke(ctx(t), "a", 2, "z")
	require.Equal(t, moved, conflict(t, err), "of another source")
}

func members(t *testing.T, o Opener) {
	s := open(t, o)
	read := func() []sequencer.Member {
		all, err := s.Members(ctx(t))
		require.NoError(t, err)
		return all
	}
	require.Empty(t, read())
	a := sequencer.Member{ID: "host:6432", Token: "1", Seen: 5, Expires: math.MaxInt64}
	b := sequencer.Member{ID: "häst/%2F [::1]:6432", Token: "2"}
	require.ErrorIs(t, s.PutMember(ctx(t), a, "1"), sequencer.ErrNotFound)
	require.NoError(t, s.PutMember(ctx(t), a, ""))
	require.NoError(t, s.PutMember(ctx(t), b, ""))
	require.ElementsMatch(t, []sequencer.Member{a, b}, read())

	a.Seen++
	require.ErrorIs(t, s.PutMember(ctx(t), a, "2"), sequencer.ErrNotFound)
	require.NoError(t, s.PutMember(ctx(t), a, "1"))
	late := a
	late.Expires--
	for _, token := range []string{"", "1"} {
		require.ErrorIs(t, s.PutMember(ctx(t), late, token), sequencer.ErrNotFound, "one that expires earlier comes late")
	}
	require.ElementsMatch(t, []sequencer.Member{a, b}, read())
	a.Token, a.Expires = "3", 7
	require.NoError(t, s.PutMember(ctx(t), a, ""), "a process takes the place of another one")
	require.ErrorIs(t, s.PutMember(ctx(t), a, "1"), sequencer.ErrNotFound)
	require.ErrorIs(t, s.DeleteMember(ctx(t), a.ID, "1"), sequencer.ErrNotFound)
	require.ElementsMatch(t, []sequencer.Member{a, b}, read())
	require.NoError(t, s.DeleteMember(ctx(t), a.ID, "3"))
	require.ErrorIs(t, s.DeleteMember(ctx(t), a.ID, "3"), sequencer.ErrNotFound)
	require.Equal(t, []sequencer.Member{b}, read())
}

func feed(t *testing.T, o Opener) {
	s := open(t, o)
	read := func() sequencer.Feed {
		f, err := s.Feed(ctx(t))
		require.NoError(t, err)
		return f
	}
	require.Zero(t, read())
	want := sequencer.Feed{}
	for _, a := range []sequencer.Announcement{
		{}, {Names: true}, {Incarnation: "a"}, {Names: true, Incarnation: "b"}, {Incarnation: "a"},
	} {
		rev, err := s.Announce(ctx(t), a)
		require.NoError(t, err)
		want.Rev++
		if a.Names {
			want.Names++
		}
		if a.Incarnation != "" {
			want.Topics[sequencer.Topic(a.Incarnation)]++
			want.Latest[sequencer.Topic(a.Incarnation)] = a.Incarnation
		}
		require.Equal(t, want.Rev, rev)
		require.Equal(t, want, read())
	}
	for i := range sequencer.Topics {
		for n := 0; ; n++ {
			id := fmt.Sprint(n)
			if sequencer.Topic(id) == i {
				_, err := s.Announce(ctx(t), sequencer.Announcement{Incarnation: id})
				require.NoError(t, err)
				want.Rev++
				want.Topics[i]++
				want.Latest[i] = id
				break
			}
		}
	}
	require.Equal(t, want, read())
}

func oids(t *testing.T, o Opener) {
	s := open(t, o)
	var mu sync.Mutex
	var wg sync.WaitGroup
	given := map[uint32]bool{}
	const clients, each = 4, 5
	for range clients {
		wg.Go(func() {
			last := uint32(math.MaxUint32)
			for range each {
				oid, err := s.NextOID(ctx(t))
				assert.NoError(t, err)
				assert.Less(t, oid, last)
				last = oid
				mu.Lock()
				assert.False(t, given[oid], "OID %d twice", oid)
				given[oid] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for i := range uint32(clients * each) {
		require.True(t, given[sequencer.MaxOID-i])
	}
}

func canceledCaller(t *testing.T, o Opener) {
	s := open(t, o)
	it := put(t, s, item("a", define(t, 1, 1, 100, 1)))
	done, cancel := context.WithCancel(context.Background())
	cancel()
	n := sequencer.Name{Database: "d", Schema: "s", Name: "n"}
	_, errLease := s.Lease(done, it, 1)
	_, errGet := s.Get(done, "a")
	_, errFeed := s.Feed(done)
	for _, err := range []error{
		errLease, errGet, errFeed, s.Put(done, it, 1), s.PutName(done, sequencer.Entry{Name: n, Incarnation: "a"}),
	} {
		require.ErrorIs(t, err, context.Canceled)
		require.False(t, errors.Is(err, sequencer.ErrNotFound))
	}
	require.Equal(t, it, get(t, s, "a"))
}

func strangeItems(t *testing.T, o Opener) {
	s := open(t, o)
	for name, spoil := range map[string]func(*sequencer.Item){
		"state":     func(it *sequencer.Item) { it.State = "resting" },
		"increment": func(it *sequencer.Item) { it.Definition.Increment = 0 },
		"position":  func(it *sequencer.Item) { it.Pos = sequencer.At(0) },
	} {
		it := item("a", define(t, 1, 1, 100, 1))
		spoil(&it)
		require.Error(t, s.Put(ctx(t), it, 0), name)
		_, err := s.Get(ctx(t), "a")
		require.ErrorIs(t, err, sequencer.ErrNotFound, name)
	}
}
