package sequencer

import (
	"fmt"
	"math/big"
	"math/bits"
)

// Position is a point of a sequence's number line, in 128 bits of two's complement. It is wider than a value because the
// position of an exhausted sequence lies one increment past its bound, which may be past int8.
//
// Sums and differences of positions and products of two int64 never overflow as the sequencer uses them: a position is
// at most one increment away from an int64.
type Position struct {
	hi int64
	lo uint64
}

// At returns the position of a value.
func At(value int64) Position {
	return Position{hi: value >> 63, lo: uint64(value)}
}

// Product returns a × b, exactly.
func Product(a, b int64) Position {
	hi, lo := bits.Mul64(magnitude(a), magnitude(b))
	p := Position{hi: int64(hi), lo: lo}
	if (a < 0) != (b < 0) {
		return Position{}.Minus(p)
	}
	return p
}

// Plus returns p + q.
func (p Position) Plus(q Position) Position {
	lo, carry := bits.Add64(p.lo, q.lo, 0)
	hi, _ := bits.Add64(uint64(p.hi), uint64(q.hi), carry)
	return Position{hi: int64(hi), lo: lo}
}

// Minus returns p - q.
func (p Position) Minus(q Position) Position {
	lo, borrow := bits.Sub64(p.lo, q.lo, 0)
	hi, _ := bits.Sub64(uint64(p.hi), uint64(q.hi), borrow)
	return Position{hi: int64(hi), lo: lo}
}

// Compare returns -1, 0 or +1 as p is less than, equal to or greater than q.
func (p Position) Compare(q Position) int {
	switch {
	case p.hi != q.hi && p.hi < q.hi, p.hi == q.hi && p.lo < q.lo:
		return -1
	case p == q:
		return 0
	}
	return 1
}

// Value returns the position as a value; ok is false when it lies outside int8.
func (p Position) Value() (v int64, ok bool) {
	v = int64(p.lo)
	return v, p == At(v)
}

// String returns the position in decimal.
func (p Position) String() string {
	if v, ok := p.Value(); ok {
		return fmt.Sprint(v)
	}
	b := new(big.Int).Lsh(big.NewInt(p.hi), 64)
	return b.Or(b, new(big.Int).SetUint64(p.lo)).String()
}

// ParsePosition reads a decimal of at most 128 bits, as String writes it.
func ParsePosition(s string) (Position, error) {
	const digits = 39 // of 2^127, the widest magnitude
	if len(s) > digits+1 {
		return Position{}, fmt.Errorf("position %.50q is too long", s)
	}
	b, ok := new(big.Int).SetString(s, 10)
	// The round trip also refuses underscores, a plus sign, leading zeros and what does not fit.
	if ok {
		p := Position{
			hi: new(big.Int).Rsh(b, 64).Int64(),
			lo: new(big.Int).And(b, new(big.Int).SetUint64(1<<64-1)).Uint64(),
		}
		if p.String() == s {
			return p, nil
		}
	}
	return Position{}, fmt.Errorf("position %q is not a decimal of 128 bits", s)
}

// MarshalText implements encoding.TextMarshaler.
func (p Position) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *Position) UnmarshalText(text []byte) (err error) {
	*p, err = ParsePosition(string(text))
	return err
}

// magnitude is |v|, right for the smallest int64 too.
func magnitude(v int64) uint64 {
	if v < 0 {
		return -uint64(v)
	}
	return uint64(v)
}
