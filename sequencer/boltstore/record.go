package boltstore

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/nextvald/nextvald/sequencer"
)

// record is what a tier's file has of one incarnation: blocks of one version, in the order of their use. A record of
// version 0 is none.
type record struct {
	Version   int64   `json:"version"`
	Increment int64   `json:"increment"`
	Blocks    []block `json:"blocks"`
}

// block is what is left of a leased block: Left values from Next on. The last one of a record stays when it is used up, for
// what may be given back.
type block struct {
	Next sequencer.Position `json:"next"`
	Left int64              `json:"left"`
	Rev  int64              `json:"rev"` // of the lease
}

func (r record) clone() record {
	r.Blocks = slices.Clone(r.Blocks)
	return r
}

// left is the number of values that can be served.
func (r record) left() (n int64) {
	for _, b := range r.Blocks {
		n += b.Left
	}
	return n
}

// rev is that of the last lease.
func (r record) rev() int64 {
	if len(r.Blocks) == 0 {
		return 0
	}
	return r.Blocks[len(r.Blocks)-1].Rev
}

// end is the position after a block.
func (r record) end(b block) sequencer.Position {
	return b.Next.Plus(sequencer.Product(b.Left, r.Increment))
}

// take takes up to n values from the first block that has any.
func (r *record) take(n int64) sequencer.Lease {
	for len(r.Blocks) > 1 && r.Blocks[0].Left == 0 {
		r.Blocks = r.Blocks[1:]
	}
	b := &r.Blocks[0]
	first, _ := b.Next.Value() // there is a value left
	n = min(n, b.Left)
	b.Next, b.Left = b.Next.Plus(sequencer.Product(n, r.Increment)), b.Left-n
	return sequencer.Lease{First: first, Count: n, Rev: b.Rev, Held: true}
}

// put takes back values that were taken last. It reports whether it could.
func (r *record) put(g sequencer.GiveBack) bool {
	if r.Version != g.Version || len(r.Blocks) == 0 {
		return false
	}
	b := &r.Blocks[0]
	if g.End != b.Next || g.Pos.Plus(sequencer.Product(g.Count, r.Increment)) != b.Next {
		return false
	}
	b.Next, b.Left = g.Pos, b.Left+g.Count
	return true
}

// before is where the blocks begin that continue each other up to pos, or pos.
func (r record) before(pos sequencer.Position) sequencer.Position {
	for _, b := range slices.Backward(r.Blocks) {
		if r.end(b) == pos {
			pos = b.Next
		}
	}
	return pos
}

// Keys of a tier's bucket: the file itself, the number of transactions, and a record for each incarnation.
var (
	identityKey = []byte("identity")
	writesKey   = []byte("writes")
)

const recordPrefix = "block/"

func recordKey(incarnation string) []byte { return []byte(recordPrefix + incarnation) }

func parseRecordKey(key []byte) (incarnation string, ok bool) {
	return strings.CutPrefix(string(key), recordPrefix)
}

func encodeRecord(r record) ([]byte, error) { return json.Marshal(r) }

// decodeRecord refuses what no version of this package would have written.
func decodeRecord(incarnation string, value []byte) (record, error) {
	var r record
	err := json.Unmarshal(value, &r)
	if err == nil && (r.Version < 1 || r.Increment == 0) {
		err = fmt.Errorf("version %d or increment %d cannot be", r.Version, r.Increment)
	}
	for _, b := range r.Blocks {
		if err != nil {
			break
		}
		_, ok := b.Next.Value()
		if b.Left < 0 || b.Left > maxLease*2 || b.Rev < 1 || b.Left > 0 && !ok {
			err = fmt.Errorf("a block of %d values from %v of rev %d cannot be", b.Left, b.Next, b.Rev)
		} else if b.Left > 0 {
			last := b.Next.Plus(sequencer.Product(b.Left-1, r.Increment))
			if _, ok := last.Value(); !ok {
				err = fmt.Errorf("a block of %d values from %v goes past the range of bigint", b.Left, b.Next)
			}
		}
	}
	if err != nil {
		return record{}, fmt.Errorf("tier: blocks of incarnation %s: %w", incarnation, err)
	}
	return r, nil
}
