package sequencer

import "math"

// A mirrored sequence shares its range with the upstream's own sequence: blocks of it are set apart for callers whom
// nextvald does not see, and leases skip those. What leases skip lies behind the position once it was leased like any other
// block, and ahead of it where it was set apart without a lease, or where the position moved back since.
//
// Whoever leases may know an item that is out of date. That does no harm, as long as within one version a range that leases
// skip is only ever added behind the position.

// contains reports whether a position lies within the range, whichever end of which is the greater one.
func (r Range) contains(p Position) bool {
	return p.Compare(At(min(r.First, r.Last))) >= 0 && p.Compare(At(max(r.First, r.Last))) <= 0
}

// Skips are the ranges that leases skip.
func (it Item) Skips() []Range {
	if it.Fence == nil && it.NextFence == nil {
		return it.Holes
	}
	var skips []Range
	for _, r := range []*Range{it.Fence, it.NextFence} {
		if r != nil {
			skips = append(skips, *r)
		}
	}
	return append(skips, it.Holes...)
}

// Stretch returns the ends of the widest stretch of values round a position that leases do not skip, in the order of
// numbers; ok is false where a lease cannot begin at the position.
func (it Item) Stretch(at Position) (least, greatest int64, ok bool) {
	least, greatest = it.Definition.Min, it.Definition.Max
	if at.Compare(At(least)) < 0 || at.Compare(At(greatest)) > 0 {
		return 0, 0, false
	}
	for _, r := range it.Skips() {
		from, to := min(r.First, r.Last), max(r.First, r.Last)
		switch {
		case r.contains(at):
			return 0, 0, false
		case At(to).Compare(at) < 0:
			least = max(least, to+1)
		default:
			greatest = min(greatest, from-1)
		}
	}
	return least, greatest, true
}

// room is how many values can be leased from a position on, before the bound or a range that leases skip.
func (it Item) room(from Position) int64 {
	d, ok := it.Definition, false
	if d.Min, d.Max, ok = it.Stretch(from); !ok {
		return 0
	}
	return d.room(from)
}

// landing is the first position from the given one on at which a lease can begin; ok is false when there is none before the
// bound.
func (it Item) landing(from Position) (at Position, ok bool) {
	for {
		if it.room(from) > 0 {
			return from, true
		}
		in := it.skipped(from)
		if in == nil {
			return from, false
		}
		from = in.past(from, it.Definition.Increment)
	}
}

// Hindered reports whether the values after a setval would begin in a range that leases skip, or come to it soon, where a handover
// anew would leave more room before it.
func (s *Sequence) Hindered(value int64, called bool) bool {
	it := s.Item()
	if value < it.Definition.Min || value > it.Definition.Max {
		return false
	}
	it.Holes = nil // those of now are forgotten then
	it.place(cursor{last: value, called: called})
	if it.skipped(it.Pos) != nil {
		return true
	}
	all := it.Definition.room(it.Pos)
	room := it.room(it.Pos)
	return room < all && room < min(firstFence, all/sharing)/10 // or each of many setvals in a row would be a handover
}

// skipped is a range that leases skip and that a position lies in, or nil.
func (it Item) skipped(at Position) *Range {
	for _, r := range it.Skips() {
		if r.contains(at) {
			return &r
		}
	}
	return nil
}

// past is the first position beyond the range, from one within it on in steps of the increment.
func (r Range) past(from Position, increment int64) Position {
	v, _ := from.Value() // as the range has it
	distance := uint64(max(r.First, r.Last)) - uint64(v)
	if increment < 0 {
		distance = uint64(v) - uint64(min(r.First, r.Last))
	}
	for steps := distance / magnitude(increment); ; steps -= math.MaxInt64 {
		from = from.Plus(Product(int64(min(steps, math.MaxInt64)), increment))
		if steps <= math.MaxInt64 {
			return from.Plus(At(increment))
		}
	}
}
