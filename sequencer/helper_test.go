package sequencer_test

import (
	"context"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nextvald/nextvald/sequencer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func ptr[T any](v T) *T { return &v }

func name(n string) sequencer.Name {
	return sequencer.Name{Database: "shop", Schema: "public", Name: n}
}

// open opens a registry that is closed at the end of the test.
func open(t testing.TB, store sequencer.Store, cfg sequencer.Config) *sequencer.Registry {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	r, err := sequencer.Open(context.Background(), store, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.Close(context.Background()) })
	return r
}

func define(t testing.TB, o sequencer.Options) sequencer.Definition {
	d, err := sequencer.Define(o)
	require.NoError(t, err)
	return d
}

func create(t testing.TB, r *sequencer.Registry, n string, o sequencer.Options) *sequencer.Sequence {
	s, err := r.Create(context.Background(), name(n), define(t, o))
	require.NoError(t, err)
	return s
}

func lookup(t testing.TB, r *sequencer.Registry, n string) *sequencer.Sequence {
	s, err := r.Lookup(context.Background(), name(n))
	require.NoError(t, err)
	return s
}

func next(t testing.TB, s *sequencer.Sequence) int64 {
	v, err := s.Next(context.Background())
	require.NoError(t, err)
	return v
}

// draw calls Next n times.
func draw(t testing.TB, s *sequencer.Sequence, n int) []int64 {
	var values []int64
	for range n {
		values = append(values, next(t, s))
	}
	return values
}

func state(t testing.TB, s *sequencer.Sequence) sequencer.State {
	st, err := s.State(context.Background())
	require.NoError(t, err)
	st.LogCnt = 0 // any number
	return st
}

// fails requires an error of this package's with a code and a message.
func fails(t testing.TB, err error, code, message string) {
	t.Helper()
	var e *sequencer.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, [2]string{code, message}, [2]string{e.Code, e.Message})
}

// greatest is a number that only grows.
type greatest struct{ atomic.Int64 }

func (g *greatest) raise(v int64) {
	for {
		old := g.Load()
		if v <= old || g.CompareAndSwap(old, v) {
			return
		}
	}
}
