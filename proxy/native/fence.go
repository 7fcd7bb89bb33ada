package native

import (
	"fmt"

	"github.com/nextvald/nextvald/sequencer"
)

// A fence is a definition of the upstream's sequence that gives it the values of one block and no other: MINVALUE and MAXVALUE
// are the block's ends, START is its first value, and it does not CYCLE. Type, INCREMENT and CACHE stay what was declared. What
// was declared of the rest is in the store. Nobody but nextvald writes these bounds, so they tell whether a transaction took
// place whose end nobody heard of.
type fence struct {
	least, greatest, start int64
	// last and called are where the sequence stands before anybody calls it. called: it has nothing to give.
	last   int64
	called bool
}

// fenceOf is the fence that confines a sequence of a definition to a block, or to nothing.
func fenceOf(d sequencer.Definition, block *sequencer.Range) fence {
	if block != nil {
		return fence{
			least: min(block.First, block.Last), greatest: max(block.First, block.Last), start: block.First, last: block.First,
		}
	}
	// It stands at the last value, as if that had been called. The bounds must not be those that were declared.
	f := fence{least: d.Max - 1, greatest: d.Max, called: true}
	if d.Increment < 0 {
		f.least, f.greatest = d.Min, d.Min+1
	}
	if f.least == d.Min && f.greatest == d.Max {
		least, greatest := typeLimits(d.Type)
		if d.Min > least {
			f.least--
		} else if d.Max < greatest {
			f.greatest++
		}
	}
	f.last = f.greatest
	if d.Increment < 0 {
		f.last = f.least
	}
	f.start = f.last
	return f
}

// typeLimits are the least and the greatest value of a type.
func typeLimits(t sequencer.DataType) (least, greatest int64) {
	d, err := sequencer.Define(sequencer.Options{As: &t})
	if err != nil {
		panic(err) // it has all defaults
	}
	return -d.Max - 1, d.Max
}

// holds reports whether a definition is that of the fence.
func (f fence) holds(d sequencer.Definition) bool {
	return d.Min == f.least && d.Max == f.greatest && d.Start == f.start && !d.Cycle
}

// alter is the statement that confines a sequence.
func (f fence) alter(quoted string) string {
	return fmt.Sprintf("ALTER SEQUENCE %s MINVALUE %d MAXVALUE %d START %d RESTART %d NO CYCLE", quoted, f.least, f.greatest, f.start, f.last)
}

// declare is the statement that gives a sequence the definition that was declared.
func declare(quoted string, d sequencer.Definition, last int64) string {
	cycle := "NO CYCLE"
	if d.Cycle {
		cycle = "CYCLE"
	}
	return fmt.Sprintf("ALTER SEQUENCE %s MINVALUE %d MAXVALUE %d START %d RESTART %d %s", quoted, d.Min, d.Max, d.Start, last, cycle)
}

// confined finds the block of an item that a relation is confined to; fenced is false when it is not confined as nextvald does.
// A fence that has nothing to give has no block.
func confined(item sequencer.Item, d sequencer.Definition) (block *sequencer.Range, fenced bool) {
	for _, r := range []*sequencer.Range{item.Fence, item.NextFence} {
		if r != nil && fenceOf(item.Definition, r).holds(d) {
			return r, true
		}
	}
	return nil, item.Fence == nil && fenceOf(item.Definition, nil).holds(d)
}
