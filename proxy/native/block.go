package native

import (
	"math"
	"slices"
	"sync/atomic"
	"time"
)

const (
	// blockLife is how long values that were drawn are handed out, from when they were asked for.
	blockLife = time.Second
	// cacheLine is the size of a cache line in bytes, or of two where they are fetched in pairs.
	cacheLine = 128
)

// block is what was drawn by one statement: ranges of values, since other callers of the sequence take some between. It is
// immutable but for the counters.
type block struct {
	ranges    []valueRange
	count     int64 // of values
	increment int64
	era       era
	// refillAt is the claim from which on the next block is wanted.
	refillAt atomic.Int64

	// claimed counts the claims, successful or not; values below count belong to their claimers. It only grows, and close
	// makes it huge. It is all that a claim writes, and has a cache line to itself.
	_       [cacheLine]byte
	claimed atomic.Int64
	_       [cacheLine - 8]byte
}

// valueRange is values an increment apart; before is how many the block has in the ranges before it.
type valueRange struct{ first, count, before int64 }

// era is when a block was asked for, and what must not have happened since for its values to be used.
type era struct {
	asked    time.Time
	sequence uint64 // drawn.gate
	name     uint64 // slot.gate
}

// newBlock makes a block of ranges in the order of the sequence, which it keeps.
func newBlock(ranges []valueRange, increment int64, e era) *block {
	b := &block{ranges: ranges, increment: increment, era: e}
	for i := range ranges {
		ranges[i].before = b.count
		b.count += ranges[i].count
	}
	b.refillAt.Store(b.count / 2)
	return b
}

// value is the value of a claim below count.
func (b *block) value(claim int64) int64 {
	i := 0
	if len(b.ranges) > 1 {
		at, found := slices.BinarySearchFunc(b.ranges, claim, func(r valueRange, claim int64) int { return int(min(1, max(-1, r.before-claim))) })
		if i = at; !found {
			i-- // it is within the range that begins before it
		}
	}
	r := &b.ranges[i]
	return r.first + (claim-r.before)*b.increment
}

// last is the furthest value.
func (b *block) last() int64 {
	r := b.ranges[len(b.ranges)-1]
	return r.first + (r.count-1)*b.increment
}

// left is how many values have not been claimed.
func (b *block) left() int64 { return b.count - b.taken() }

// taken is how many values have been claimed.
func (b *block) taken() int64 { return min(b.claimed.Load(), b.count) }

// close makes every later claim fail, and returns how many values were claimed.
func (b *block) close() int64 { return min(b.claimed.Swap(math.MaxInt64/2), b.count) }

// age is how long ago a block was asked for. The wall clock counts the time for which the machine was suspended, the
// monotonic clock is not set: the longer one is right.
func (e *era) age(now time.Time) time.Duration {
	return max(now.Sub(e.asked), time.Duration(now.UnixNano()-e.asked.UnixNano()))
}
