package sequencer

import (
	"fmt"
	"math"
)

// DataType is a sequence's type: it limits the bounds.
type DataType uint8

// The types of sequences. The zero value is Bigint, PostgreSQL's default.
const (
	Bigint DataType = iota
	Integer
	Smallint
)

// String returns the type's name in SQL.
func (t DataType) String() string {
	switch t {
	case Integer:
		return "integer"
	case Smallint:
		return "smallint"
	}
	return "bigint"
}

// ParseDataType reads a type's name in SQL, as String writes it.
func ParseDataType(s string) (DataType, error) {
	for _, t := range []DataType{Bigint, Integer, Smallint} {
		if t.String() == s {
			return t, nil
		}
	}
	return 0, invalid("sequence type must be smallint, integer, or bigint")
}

// limits are the least and the greatest value of the type.
func (t DataType) limits() (least, greatest int64) {
	switch t {
	case Integer:
		return math.MinInt32, math.MaxInt32
	case Smallint:
		return math.MinInt16, math.MaxInt16
	}
	return math.MinInt64, math.MaxInt64
}

// Definition is what CREATE SEQUENCE declares, defaults filled in. Define makes one.
type Definition struct {
	Type      DataType
	Start     int64
	Increment int64 // never zero
	Min, Max  int64 // inclusive; Min < Max
	// Cache is the number that CACHE gave; 0 where the clause was not written. 1 makes the sequence strict (unless
	// Config.CacheOne), a greater number fixes the size of its leases.
	Cache int64
	Cycle bool
	// Policy is the sequence's own: SET (nextvald.<key> = <value>).
	Policy Policy
	// OwnedBy is the owning column as the caller wrote it, and Owner the owning role; both are only recorded.
	OwnedBy, Owner string

	// first is where a new sequence begins when CREATE was written with RESTART (restarted); else it begins at Start.
	first     int64
	restarted bool
}

// Options are the clauses of CREATE SEQUENCE or ALTER SEQUENCE. A nil one was not written.
type Options struct {
	As        *DataType
	Increment *int64
	Min, Max  *Bound
	Start     *int64
	Restart   *Restart
	Cache     *int64
	Cycle     *bool
	OwnedBy   *string // empty: OWNED BY NONE
	Owner     *string
	// Set and Reset change the sequence's own policy: SET (nextvald.<key> = <value>), RESET (nextvald.<key>).
	Set   []Setting
	Reset []string
}

// Bound is a MINVALUE or MAXVALUE clause.
type Bound struct {
	Value int64
	No    bool // NO MINVALUE, NO MAXVALUE
}

// Restart is a RESTART clause.
type Restart struct {
	Value int64
	Bare  bool // without a value: at the recorded START
}

// Define makes the definition of a new sequence: it fills in PostgreSQL's defaults and makes its checks in its order.
// The error is an *Error with PostgreSQL's text and SQLSTATE.
func Define(o Options) (Definition, error) {
	d, at, err := merge(Definition{}, cursor{}, o, true)
	if err != nil {
		return Definition{}, err
	}
	if o.Restart != nil {
		d.first, d.restarted = at.last, true
	}
	return d, nil
}

// begin is the value that a new sequence of this definition gives first.
func (d Definition) begin() int64 {
	if d.restarted {
		return d.first
	}
	return d.Start
}

// stored is the definition without what only CREATE needs.
func (d Definition) stored() Definition {
	d.first, d.restarted = 0, false
	return d
}

// room is how many values there are from a position to the bound that the sequence runs towards; 0 when it is past it.
// At most math.MaxInt64.
func (d Definition) room(from Position) int64 {
	if from.Compare(At(d.Min)) < 0 || from.Compare(At(d.Max)) > 0 {
		return 0
	}
	v, _ := from.Value() // within the bounds, so within int8
	var distance uint64
	if d.Increment > 0 {
		distance = uint64(d.Max) - uint64(v)
	} else {
		distance = uint64(v) - uint64(d.Min)
	}
	return int64(min(distance/magnitude(d.Increment), math.MaxInt64-1)) + 1
}

// wrapped is the value at which CYCLE goes on.
func (d Definition) wrapped() int64 {
	if d.Increment < 0 {
		return d.Max
	}
	return d.Min
}

// beyond reports whether a lies further than b in the sequence's direction.
func (d Definition) beyond(a, b Position) bool {
	if d.Increment < 0 {
		return a.Compare(b) < 0
	}
	return a.Compare(b) > 0
}

// validate refuses a definition that Define would not have made.
func (d Definition) validate() error {
	least, greatest := d.Type.limits()
	switch {
	case d.Type > Smallint:
		return fmt.Errorf("type %d is unknown", d.Type)
	case d.Increment == 0:
		return invalid("INCREMENT must not be zero")
	case d.Max > greatest || d.Max < least:
		return invalid("MAXVALUE (%d) is out of range for sequence data type %v", d.Max, d.Type)
	case d.Min < least || d.Min > greatest:
		return invalid("MINVALUE (%d) is out of range for sequence data type %v", d.Min, d.Type)
	case d.Min >= d.Max:
		return invalid("MINVALUE (%d) must be less than MAXVALUE (%d)", d.Min, d.Max)
	case d.Start < d.Min:
		return invalid("START value (%d) cannot be less than MINVALUE (%d)", d.Start, d.Min)
	case d.Start > d.Max:
		return invalid("START value (%d) cannot be greater than MAXVALUE (%d)", d.Start, d.Max)
	case d.begin() < d.Min:
		return invalid("RESTART value (%d) cannot be less than MINVALUE (%d)", d.begin(), d.Min)
	case d.begin() > d.Max:
		return invalid("RESTART value (%d) cannot be greater than MAXVALUE (%d)", d.begin(), d.Max)
	case d.Cache < 0:
		return invalid("CACHE (%d) must be greater than zero", d.Cache)
	}
	return nil
}

// cursor is where a sequence stands, in PostgreSQL's terms.
type cursor struct {
	last   int64 // last_value
	called bool  // is_called
}

// merge applies options to a definition and a cursor as PostgreSQL's init_params does, check by check in its order: a new
// sequence (create) takes defaults for what is not written, an existing one keeps what it has.
func merge(d Definition, at cursor, o Options, create bool) (Definition, cursor, error) {
	fail := func(e error) (Definition, cursor, error) { return Definition{}, cursor{}, e }
	resetMin, resetMax := false, false
	if o.As != nil {
		// Bounds that were the old type's follow the type; any other were chosen by the user.
		least, greatest := d.Type.limits()
		resetMin, resetMax = !create && d.Min == least, !create && d.Max == greatest
		d.Type = *o.As
	}
	switch {
	case o.Increment != nil && *o.Increment == 0:
		return fail(invalid("INCREMENT must not be zero"))
	case o.Increment != nil:
		d.Increment = *o.Increment
	case create:
		d.Increment = 1
	}
	if o.Cycle != nil {
		d.Cycle = *o.Cycle
	}

	least, greatest := d.Type.limits()
	switch {
	case o.Max != nil && !o.Max.No:
		d.Max = o.Max.Value
	case create || o.Max != nil || resetMax:
		d.Max = -1
		if d.Increment > 0 || resetMax {
			d.Max = greatest
		}
	}
	if d.Max < least || d.Max > greatest {
		return fail(invalid("MAXVALUE (%d) is out of range for sequence data type %v", d.Max, d.Type))
	}
	switch {
	case o.Min != nil && !o.Min.No:
		d.Min = o.Min.Value
	case create || o.Min != nil || resetMin:
		d.Min = 1
		if d.Increment < 0 || resetMin {
			d.Min = least
		}
	}
	if d.Min < least || d.Min > greatest {
		return fail(invalid("MINVALUE (%d) is out of range for sequence data type %v", d.Min, d.Type))
	}
	if d.Min >= d.Max {
		return fail(invalid("MINVALUE (%d) must be less than MAXVALUE (%d)", d.Min, d.Max))
	}

	switch {
	case o.Start != nil:
		d.Start = *o.Start
	case create:
		d.Start = d.wrapped()
	}
	if d.Start < d.Min {
		return fail(invalid("START value (%d) cannot be less than MINVALUE (%d)", d.Start, d.Min))
	}
	if d.Start > d.Max {
		return fail(invalid("START value (%d) cannot be greater than MAXVALUE (%d)", d.Start, d.Max))
	}

	switch {
	case o.Restart != nil && !o.Restart.Bare:
		at = cursor{last: o.Restart.Value}
	case o.Restart != nil || create:
		at = cursor{last: d.Start}
	}
	// PostgreSQL words it so even when the value is the current one and only the bounds change.
	if at.last < d.Min {
		return fail(invalid("RESTART value (%d) cannot be less than MINVALUE (%d)", at.last, d.Min))
	}
	if at.last > d.Max {
		return fail(invalid("RESTART value (%d) cannot be greater than MAXVALUE (%d)", at.last, d.Max))
	}

	if o.Cache != nil {
		if *o.Cache <= 0 {
			return fail(invalid("CACHE (%d) must be greater than zero", *o.Cache))
		}
		d.Cache = *o.Cache
	}
	if o.OwnedBy != nil {
		d.OwnedBy = *o.OwnedBy
	}
	if o.Owner != nil {
		d.Owner = *o.Owner
	}
	for _, key := range o.Reset {
		if err := d.Policy.Reset(key); err != nil {
			return Definition{}, cursor{}, err
		}
	}
	for _, setting := range o.Set {
		if err := d.Policy.Set(setting); err != nil {
			return Definition{}, cursor{}, err
		}
	}
	return d, at, nil
}
