package sequencer_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nextvald/nextvald/sequencer"
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
