package native

import (
	"sync/atomic"
	"time"
)

// tally counts calls, and knows how many there were in the last second. The zero value is ready for use. It is safe for
// concurrent use, and a call costs a few atomic operations.
type tally struct {
	// counts is the second (24 bits), the calls in the second before it and those in it (20 bits each, no more than that).
	counts atomic.Uint64
	// frequent: there were many calls in a second, and there have not been few since.
	frequent atomic.Bool
}

const (
	tallyBits = 20
	tallyMost = 1<<tallyBits - 1
)

// call counts a call and returns about how many there were in the second that ends with it.
func (t *tally) call(now time.Time) float64 {
	for {
		old := t.counts.Load()
		second, before, current := t.at(old, now)
		current = min(current+1, tallyMost)
		if t.counts.CompareAndSwap(old, second<<(2*tallyBits)|before<<tallyBits|current) {
			return estimate(now, before, current)
		}
	}
}

// perSecond is about how many calls there were in the second before now.
func (t *tally) perSecond(now time.Time) float64 {
	_, before, current := t.at(t.counts.Load(), now)
	return estimate(now, before, current)
}

// at is what counts are in the second of now.
func (t *tally) at(counts uint64, now time.Time) (second, before, current uint64) {
	const seconds = 1<<(64-2*tallyBits) - 1
	second = uint64(now.Unix()) & seconds
	switch counts >> (2 * tallyBits) {
	case second:
		return second, counts >> tallyBits & tallyMost, counts & tallyMost
	case (second - 1) & seconds:
		return second, counts & tallyMost, 0
	}
	return second, 0, 0
}

// estimate counts the calls of the second before by the part of it that is less than a second ago.
func estimate(now time.Time, before, current uint64) float64 {
	return float64(current) + float64(before)*(1-float64(now.Nanosecond())/float64(time.Second))
}

// often counts a call and reports whether calls are frequent: from hot in a second on, until they are fewer than half.
func (t *tally) often(now time.Time, hot int) bool {
	n, frequent := t.call(now), t.frequent.Load()
	switch {
	case n >= float64(hot):
		if !frequent {
			t.frequent.Store(true)
		}
		return true
	case frequent && n < float64(hot)/2:
		t.frequent.Store(false)
		return false
	}
	return frequent
}
