package sequencer_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/memstore"
)

// setBack restores an item as it was: its rev starts again.
func setBack(t testing.TB, store *memstore.Store, as sequencer.Item) {
	ctx := context.Background()
	if now, err := store.Get(ctx, as.Incarnation); err == nil {
		require.NoError(t, store.Delete(ctx, as.Incarnation, now.Rev))
	}
	require.NoError(t, store.Put(ctx, as, 0))
}

// A store that knows less than this process stops the sequence, however that shows, until somebody repairs it.
func TestStoreIsSetBack(t *testing.T) {
	ctx := context.Background()
	for title, c := range map[string]struct {
		options sequencer.Options
		meets   func(r *sequencer.Registry, s *sequencer.Sequence, store *memstore.Store) error
	}{
		"by a lease": {sequencer.Options{Cache: ptr[int64](5)}, func(_ *sequencer.Registry, s *sequencer.Sequence, _ *memstore.Store) error {
			for range 100 {
				if _, err := s.Next(ctx); err != nil {
					return err
				}
			}
			return nil
		}},
		"by a strict lease": {sequencer.Options{Cache: ptr[int64](1)}, func(_ *sequencer.Registry, s *sequencer.Sequence, _ *memstore.Store) error {
			_, err := s.Next(ctx)
			return err
		}},
		"by a change": {sequencer.Options{}, func(_ *sequencer.Registry, s *sequencer.Sequence, _ *memstore.Store) error {
			return s.Set(ctx, 1, false)
		}},
		"by reading": {sequencer.Options{}, func(_ *sequencer.Registry, s *sequencer.Sequence, _ *memstore.Store) error {
			_, err := s.State(ctx)
			return err
		}},
		"by the feed": {sequencer.Options{}, func(_ *sequencer.Registry, s *sequencer.Sequence, store *memstore.Store) error {
			if _, err := store.Announce(ctx, sequencer.Announcement{Incarnation: s.Incarnation()}); err != nil {
				return err
			}
			time.Sleep(time.Second)
			_, err := s.Next(ctx)
			return err
		}},
	} {
		t.Run(title, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				r := open(t, store, sequencer.Config{})
				s := create(t, r, "s", c.options)
				backup := must(store.Get(ctx, s.Incarnation()))
				draw(t, s, 300)
				synctest.Wait()
				setBack(t, store, backup)

				const message = `the sequence store was set back for sequence "s"`
				fails(t, c.meets(r, s, store), "58030", message)
				_, err := s.Next(ctx)
				fails(t, err, "58030", message)
				require.Contains(t, err.(*sequencer.Error).Hint, "setval")
				require.Zero(t, r.Stats().Depth, "nothing that others may lease again is handed out")

				require.NoError(t, s.Set(ctx, 5000, true))
				require.EqualValues(t, 5001, next(t, s))
				require.NoError(t, r.Close(ctx))
			})
		})
	}
}

// A sequence that was dropped does not come back to life.
func TestDroppedSequenceIsRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		store := memstore.New()
		r := open(t, store, sequencer.Config{})
		s := create(t, r, "s", sequencer.Options{})
		draw(t, s, 300)
		backup := must(store.Get(ctx, s.Incarnation()))
		require.NoError(t, r.Drop(ctx, name("s")))
		_, err := r.Lookup(ctx, name("s"))
		require.ErrorIs(t, err, sequencer.ErrUndefined)
		setBack(t, store, backup)
		require.NoError(t, store.PutName(ctx, sequencer.Entry{Name: name("s"), Incarnation: s.Incarnation(), OID: s.OID()}))
		for range 2 {
			time.Sleep(2 * time.Second)
			_, err = r.Lookup(ctx, name("s"))
			fails(t, err, "58030", `the sequence store was set back for sequence "s"`)
		}
		require.NoError(t, r.Close(ctx))
	})
}

// The end of the values in hand is where another process's setval put the sequence: they are of the past all the same.
func TestSetvalToTheEndOfWhatAnotherHolds(t *testing.T) {
	store := memstore.New()
	deaf := open(t, store, sequencer.Config{PollInterval: time.Hour})
	s := create(t, deaf, "s", sequencer.Options{})
	draw(t, s, 1)
	item := must(store.Get(t.Context(), s.Incarnation()))
	end, ok := item.Pos.Value()
	require.True(t, ok)

	other := open(t, store, sequencer.Config{})
	require.NoError(t, must(other.Lookup(t.Context(), s.Name())).Set(t.Context(), end, false))
	require.NoError(t, deaf.Alter(t.Context(), s.Name(), sequencer.Options{Start: ptr[int64](7)}))
	require.Equal(t, end, next(t, s))
}
