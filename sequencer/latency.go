package sequencer

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// latency knows how long the leases of late took. It is safe for concurrent use.
type latency struct {
	mu     sync.Mutex
	recent []time.Duration // the last ones, the oldest at next
	next   int
	p99    atomic.Int64 // nanoseconds
}

// latencies is the number of leases that are looked at. The 99th percentile of so few is the longest or nearly so, and one
// slow lease is forgotten after that many.
const latencies = 128

// took notes a lease.
func (l *latency) took(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.recent) < latencies {
		l.recent = append(l.recent, d)
	} else {
		l.recent[l.next] = d
		l.next = (l.next + 1) % latencies
	}
	sorted := slices.Sorted(slices.Values(l.recent))
	l.p99.Store(int64(sorted[len(sorted)*99/100]))
}

// percentile99 is the time that 99 of 100 leases do not exceed.
func (l *latency) percentile99() time.Duration { return time.Duration(l.p99.Load()) }
