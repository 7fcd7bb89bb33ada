package native

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/sequencer"
)

// What a call costs that is answered here, as a session makes it.
func BenchmarkDrawn(b *testing.B) {
	f := newFleet(b)
	oid := f.sequence("s", "")
	m := f.manager()
	f.session(m, "s", oid).warm(b)
	name := f.named("s")
	b.ReportAllocs()
	for b.Loop() {
		if !m.Called(f.database, "s") {
			b.Fatal("calls are few")
		}
		seq := m.Drawn(f.database, oid, name)
		if seq == nil {
			b.Fatal("the call is passed")
		}
		if _, ok := seq.TryNext(); !ok {
			_, err := seq.Next(context.Background())
			require.NoError(b, err)
		}
	}
	var stats sequencer.Stats
	m.Stats(&stats)
	b.ReportMetric(float64(stats.Values)/float64(drawsOf(m)), "values/draw")
}

// What a claim alone costs, of values that do not end.
func BenchmarkTryNext(b *testing.B) {
	f := newFleet(b)
	m := f.manager()
	s := m.database(f.database).add(1, f.named("s"))
	s.ahead.Store(true) // so that none are drawn
	s.current.Store(newBlock([]valueRange{{first: 1, count: 1 << 40}}, 1, era{asked: time.Now().Add(time.Hour)}))
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, ok := s.TryNext(); !ok {
				b.Error("there is no value")
			}
		}
	})
}

// What a call costs that is passed.
func BenchmarkPassed(b *testing.B) {
	f := newFleet(b)
	m := f.manager(func(c *Config) { c.HotCalls = 1 << 20 })
	b.ReportAllocs()
	for b.Loop() {
		m.Called(f.database, "s")
	}
}

func drawsOf(m *Manager) (n uint64) {
	for _, d := range *m.databases.Load() {
		for _, s := range d.all() {
			s.mu.Lock()
			n += s.draws
			s.mu.Unlock()
		}
	}
	return n
}
