package sequencer_test

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/faultstore"
	"github.com/nextvald/nextvald/sequencer/memstore"
)

// Next beside what it cannot be faster than, a bare atomic add, and what it should beat, a counter under a mutex.
func BenchmarkNext(b *testing.B) {
	ctx := context.Background()
	var bare atomic.Int64
	var mu sync.Mutex
	var counter int64
	r := open(b, memstore.New(), sequencer.Config{})
	s := create(b, r, "s", sequencer.Options{})
	c, err := sequencer.NewClient(ctx, r, "shop")
	if err != nil {
		b.Fatal(err)
	}
	for _, way := range []struct {
		name string
		next func() (int64, error)
	}{
		{"atomic", func() (int64, error) { return bare.Add(1), nil }},
		{"mutex", func() (int64, error) {
			mu.Lock()
			defer mu.Unlock()
			counter++
			return counter, nil
		}},
		{"sequence", func() (int64, error) { return s.Next(ctx) }},
		{"client", func() (int64, error) { return c.Next(ctx, "s") }},
	} {
		b.Run(way.name+"/single", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := way.next(); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(way.name+"/parallel", func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := way.next(); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

// A strict sequence on a store of one millisecond's round trip, with 256 callers: they share requests.
func BenchmarkStrict(b *testing.B) {
	ctx := context.Background()
	store := faultstore.New(memstore.New(), func(string) faultstore.Fault { return faultstore.Fault{Delay: time.Millisecond} })
	r := open(b, store, sequencer.Config{})
	s := create(b, r, "s", sequencer.Options{Cache: ptr[int64](1)})
	b.SetParallelism(256 / runtime.GOMAXPROCS(0))
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := s.Next(ctx); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "values/s")
	b.ReportMetric(float64(b.N)/float64(r.Stats().Leases), "values/lease")
}
