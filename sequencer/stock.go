package sequencer

import (
	"math"
	"sync/atomic"
)

// maxBlock bounds the values of one block and of one claim, so that the claim counter cannot overflow: it would take
// millions of claims at the same moment.
const maxBlock = 1 << 40

// Block is a range of values: First, First + Increment, ... Count of them.
type Block struct {
	First, Count, Increment int64
}

// Last returns the block's last value.
func (b Block) Last() int64 { return b.First + (b.Count-1)*b.Increment }

// stock is a leased block from which callers claim values.
type stock struct {
	Block
	// refillAt is the claim from which on the next block is wanted.
	refillAt atomic.Int64
	// rev is the item's after the lease, and before is the position that the lease (or the remainder that this is) began
	// at. It differs from First only where a lease jumped: over a range that leases skip, or round a CYCLE.
	rev    int64
	before Position
	// term is that of the membership in which it was leased, version and mode are the item's.
	term    uint64
	version int64
	mode    Mode

	// claimed counts the claims, successful or not; values below Count belong to their claimers. It only grows, and
	// close makes it huge. It is all that a claim writes, and has a cache line to itself.
	_       [cacheLine]byte
	claimed atomic.Int64
	_       [cacheLine - 8]byte
}

// cacheLine is the size of a cache line in bytes, or of two where they are fetched in pairs.
const cacheLine = 128

func newStock(b Block, before Position, rev int64) *stock {
	s := &stock{Block: b, before: before, rev: rev}
	s.refillAt.Store(math.MaxInt64)
	return s
}

// claim takes up to n values; the block has Count 0 when there is none left.
func (s *stock) claim(n int64) (b Block) {
	if s.claimed.Load() >= s.Count {
		return b // without adding to the counter
	}
	if i := s.claimed.Add(n) - n; i < s.Count {
		b = Block{First: s.First + i*s.Increment, Count: min(n, s.Count-i), Increment: s.Increment}
	}
	return b
}

// taken is how many values have been claimed.
func (s *stock) taken() int64 { return min(s.claimed.Load(), s.Count) }

// left is how many values have not been claimed.
func (s *stock) left() int64 { return s.Count - s.taken() }

// close makes every later claim fail and returns how many values were claimed, finally.
func (s *stock) close() int64 { return min(s.claimed.Swap(2*maxBlock), s.Count) }

// at is the position after the first n values.
func (s *stock) at(n int64) Position {
	if n == 0 {
		return s.before
	}
	return At(s.First).Plus(Product(n, s.Increment))
}

// remainder is what a stock that was closed after n claims has left, as a new stock. It may be empty.
func (s *stock) remainder(n int64) *stock {
	rest := newStock(Block{First: s.First + n*s.Increment, Count: s.Count - n, Increment: s.Increment}, s.at(n), s.rev)
	rest.term, rest.version, rest.mode = s.term, s.version, s.mode
	return rest
}
