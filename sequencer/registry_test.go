package sequencer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/faultstore"
	"github.com/nextvald/nextvald/sequencer/memstore"
)

func TestLookup(t *testing.T) {
	ctx := context.Background()
	r := open(t, memstore.New(), sequencer.Config{})
	_, err := r.Lookup(ctx, name("s"))
	fails(t, err, "42P01", `relation "s" does not exist`)
	s := create(t, r, "s", sequencer.Options{})
	require.Same(t, s, lookup(t, r, "s"), "an own creation is known at once")
	require.Equal(t, name("s"), s.Name())
	require.EqualValues(t, sequencer.MaxOID, s.OID())
	for _, other := range []sequencer.Name{
		{Database: "shop", Schema: "public", Name: "S"},
		{Database: "shop", Schema: "other", Name: "s"},
		{Database: "bank", Schema: "public", Name: "s"},
	} {
		_, err := r.Lookup(ctx, other)
		require.ErrorIs(t, err, sequencer.ErrUndefined)
	}
	_, err = r.Create(ctx, name("s"), s.Definition())
	fails(t, err, "42P07", `relation "s" already exists`)
	_, err = r.Create(ctx, name("t"), sequencer.Definition{})
	require.Error(t, err)
}

// What another process did is known within a second; what this one did, at once.
func TestNamesElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		store := memstore.New()
		here, there := open(t, store, sequencer.Config{}), open(t, store, sequencer.Config{})
		require.True(t, here.Known("shop")("anything"), "before Load every name may exist")
		for range 2 {
			require.NoError(t, here.Load(ctx, "shop"))
			require.NoError(t, there.Load(ctx, "shop"))
		}
		known, knownThere := here.Known("shop"), there.Known("shop")
		undefined := func(n string) {
			_, err := there.Lookup(ctx, name(n))
			require.ErrorIs(t, err, sequencer.ErrUndefined)
		}
		undefined("a")
		require.False(t, known("a"))
		a := create(t, here, "a", sequencer.Options{})
		require.True(t, known("a"))
		time.Sleep(time.Second)
		require.True(t, knownThere("a"))
		require.False(t, knownThere("A"))
		require.Equal(t, a.Incarnation(), lookup(t, there, "a").Incarnation())

		// RENAME, and another one of the old name.
		require.NoError(t, here.Rename(ctx, name("a"), name("b")))
		require.Equal(t, name("b"), a.Name())
		require.Same(t, a, lookup(t, here, "b"))
		_, err := here.Lookup(ctx, name("a"))
		require.ErrorIs(t, err, sequencer.ErrUndefined)
		time.Sleep(time.Second)
		undefined("a")
		require.Equal(t, a.Incarnation(), lookup(t, there, "b").Incarnation())
		require.False(t, knownThere("a"))
		second := create(t, here, "a", sequencer.Options{})
		time.Sleep(time.Second)
		require.Equal(t, second.Incarnation(), lookup(t, there, "a").Incarnation())

		require.NoError(t, there.Drop(ctx, name("b")))
		time.Sleep(time.Second)
		_, err = here.Lookup(ctx, name("b"))
		require.ErrorIs(t, err, sequencer.ErrUndefined)
		require.NoError(t, here.Close(ctx))
		require.NoError(t, there.Close(ctx))
	})
}

// A name that does not exist costs the store a read a second at most.
func TestAbsentNamesAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		r := open(t, memstore.New(), sequencer.Config{})
		for range 10_000 {
			_, err := r.Lookup(ctx, name("none"))
			require.ErrorIs(t, err, sequencer.ErrUndefined)
			time.Sleep(time.Millisecond)
		}
		require.LessOrEqual(t, r.Stats().Requests[sequencer.Request{Op: "resolve", Outcome: sequencer.OutcomeRefused}], uint64(11))
		require.NoError(t, r.Close(ctx))
	})
}

func TestRename(t *testing.T) {
	ctx := context.Background()
	r := open(t, memstore.New(), sequencer.Config{})
	s := create(t, r, "a", sequencer.Options{})
	create(t, r, "taken", sequencer.Options{})
	draw(t, s, 3)
	fails(t, r.Rename(ctx, name("none"), name("b")), "42P01", `relation "none" does not exist`)
	fails(t, r.Rename(ctx, name("a"), name("taken")), "42P07", `relation "taken" already exists`)
	fails(t, r.Rename(ctx, name("a"), name("a")), "42P07", `relation "a" already exists`)
	moved := sequencer.Name{Database: "shop", Schema: "archive", Name: "taken"}
	require.NoError(t, r.Rename(ctx, name("a"), moved))
	found, err := r.Lookup(ctx, moved)
	require.NoError(t, err)
	require.Same(t, s, found)
	require.EqualValues(t, 4, next(t, s), "the block in hand goes on")
	byOID, err := r.LookupOID(ctx, "shop", s.OID())
	require.NoError(t, err)
	require.Same(t, s, byOID)
	entries, err := r.List(ctx, "shop")
	require.NoError(t, err)
	require.Len(t, entries, 2)
}

func TestLookupOID(t *testing.T) {
	ctx := context.Background()
	store := memstore.New()
	r, other := open(t, store, sequencer.Config{}), open(t, store, sequencer.Config{})
	require.NoError(t, r.Load(ctx, "shop"))
	a := create(t, r, "a", sequencer.Options{})
	for _, reg := range []*sequencer.Registry{r, other} {
		s, err := reg.LookupOID(ctx, "shop", a.OID())
		require.NoError(t, err)
		require.Equal(t, a.Incarnation(), s.Incarnation())
		for _, oid := range []uint32{0, 1259, a.OID() - 1, a.OID() + 1} {
			_, err = reg.LookupOID(ctx, "shop", oid)
			fails(t, err, "42P01", fmt.Sprintf("relation %q does not exist", fmt.Sprint(oid)))
		}
		_, err = reg.LookupOID(ctx, "bank", a.OID())
		require.ErrorIs(t, err, sequencer.ErrUndefined)
	}
	require.NoError(t, r.Drop(ctx, name("a")))
	_, err := r.LookupOID(ctx, "shop", a.OID())
	require.ErrorIs(t, err, sequencer.ErrUndefined)
}

// A name that points to nothing, left by a process that died in a DROP or a RENAME, is as good as none.
func TestNameOfNothing(t *testing.T) {
	ctx := context.Background()
	store := memstore.New()
	require.NoError(t, store.PutName(ctx, sequencer.Entry{Name: name("ghost"), Incarnation: "gone", OID: 5}))
	r := open(t, store, sequencer.Config{})
	_, err := r.Lookup(ctx, name("ghost"))
	require.ErrorIs(t, err, sequencer.ErrUndefined)
	require.ErrorIs(t, r.Drop(ctx, name("ghost")), sequencer.ErrUndefined)
	s := create(t, r, "ghost", sequencer.Options{})
	require.EqualValues(t, 1, next(t, s))
	require.NoError(t, store.PutName(ctx, sequencer.Entry{Name: name("ghost2"), Incarnation: "gone", OID: 5}))
	require.NoError(t, r.Rename(ctx, name("ghost"), name("ghost2")))
	require.EqualValues(t, 2, next(t, lookup(t, r, "ghost2")))
}

// A RENAME that died half way is finished by the same RENAME.
func TestRenameHalfDone(t *testing.T) {
	ctx := context.Background()
	store := memstore.New()
	r := open(t, store, sequencer.Config{})
	s := create(t, r, "a", sequencer.Options{})
	require.NoError(t, store.PutName(ctx, sequencer.Entry{Name: name("b"), Incarnation: s.Incarnation(), OID: s.OID()}))
	require.Same(t, s, lookup(t, r, "b"), "meanwhile both names mean one sequence")
	require.EqualValues(t, 1, next(t, lookup(t, r, "a")))
	require.EqualValues(t, 2, next(t, lookup(t, r, "b")))
	require.NoError(t, r.Rename(ctx, name("a"), name("b")))
	entries, err := r.List(ctx, "shop")
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.Equal(t, name("b"), entries[0].Name)
}

func TestClosed(t *testing.T) {
	ctx := context.Background()
	r := open(t, memstore.New(), sequencer.Config{})
	s := create(t, r, "s", sequencer.Options{})
	strict := create(t, r, "strict", sequencer.Options{Cache: ptr[int64](1)})
	next(t, s)
	next(t, strict)
	require.NoError(t, r.Close(ctx))
	require.NoError(t, r.Close(ctx))
	_, errNext := s.Next(ctx)
	_, errNextN := s.NextN(ctx, 10)
	_, errStrict := strict.Next(ctx)
	_, errLookup := r.Lookup(ctx, name("other"))
	_, errCreate := r.Create(ctx, name("t"), s.Definition())
	for _, err := range []error{
		errNext, errNextN, errStrict, errLookup, errCreate, s.Set(ctx, 1, true), r.Drop(ctx, name("s")), r.Rename(ctx, name("s"), name("t")),
	} {
		require.ErrorIs(t, err, sequencer.ErrShuttingDown)
	}
}

// Close does not wait for a store that is down for longer than it is told to.
func TestCloseDuringAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := faultstore.New(memstore.New(), nil)
		r := open(t, store, sequencer.Config{})
		s := create(t, r, "s", sequencer.Options{})
		next(t, s)
		store.Plan(func(string) faultstore.Fault { return faultstore.Fault{Delay: time.Hour} })
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		began := time.Now()
		require.ErrorContains(t, r.Close(ctx), "is a gap")
		require.LessOrEqual(t, time.Since(began), 8*time.Second)
	})
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	broken := faultstore.New(memstore.New(), func(string) faultstore.Fault { return faultstore.Fault{Before: errors.New("it is on fire")} })
	_, err := sequencer.Open(context.Background(), broken, sequencer.Config{Logger: quiet})
	require.EqualError(t, err, "sequencer: cannot read the store's feed: it is on fire")
	for want, cfg := range map[string]sequencer.Config{
		"StoreTimeout of -1s":      {StoreTimeout: -time.Second},
		"Window of 1.5s":           {Window: 1500 * time.Millisecond},
		"ShortWindow of 2m0s":      {ShortWindow: 2 * time.Minute},
		"MinThreshold of -1":       {MinThreshold: -1},
		"MinLease of 20":           {MinLease: 20, MaxLease: 10},
		"AbsentFor of 2s":          {AbsentFor: 2 * time.Second},
		"BufferSeconds of -1":      {BufferSeconds: -1},
		"PollInterval of -1ns":     {PollInterval: -1},
		"LeaseTarget of -1ns":      {LeaseTarget: -1},
		"MaxLease of 109951162777": {MaxLease: 1<<40 + 1},
	} {
		_, err := sequencer.Open(context.Background(), memstore.New(), cfg)
		require.ErrorContains(t, err, want)
	}
}

func TestClient(t *testing.T) {
	ctx := context.Background()
	c, err := sequencer.NewClient(ctx, open(t, memstore.New(), sequencer.Config{}), "shop")
	require.NoError(t, err)
	_, err = c.Create(ctx, "billing.invoices_seq", sequencer.Options{Start: ptr[int64](100)})
	require.NoError(t, err)
	v, err := c.Next(ctx, "billing.invoices_seq")
	require.NoError(t, err)
	require.EqualValues(t, 100, v)
	_, err = c.Next(ctx, "invoices_seq")
	require.ErrorIs(t, err, sequencer.ErrUndefined)
	require.NoError(t, c.Set(ctx, "billing.invoices_seq", 500, true))
	blocks, err := c.NextN(ctx, "billing.invoices_seq", 3)
	require.NoError(t, err)
	require.Equal(t, []sequencer.Block{{First: 501, Count: 3, Increment: 1}}, blocks)
	require.NoError(t, c.Alter(ctx, "billing.invoices_seq", sequencer.Options{Increment: ptr[int64](2)}))
	v, err = c.Next(ctx, "billing.invoices_seq")
	require.NoError(t, err)
	require.EqualValues(t, 505, v)
	require.NoError(t, c.Drop(ctx, "billing.invoices_seq"))
	_, err = c.Create(ctx, "bad", sequencer.Options{Increment: ptr[int64](0)})
	fails(t, err, "22023", "INCREMENT must not be zero")
}
