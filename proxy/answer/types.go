package answer

import (
	"fmt"

	"github.com/jackc/pgx/v5/pgtype"
)

// OIDs of pg_type that pgtype does not name.
const (
	RegclassOID uint32 = 2205
	VoidOID     uint32 = 2278
)

// typeInfo is what PostgreSQL's pg_type says of a type.
type typeInfo struct {
	name string // as format_type writes it, and as errors name it
	size int16  // typlen
}

// types are all types that a value can have here.
var types = map[uint32]typeInfo{
	pgtype.BoolOID:        {"boolean", 1},
	pgtype.Int2OID:        {"smallint", 2},
	pgtype.Int4OID:        {"integer", 4},
	pgtype.Int8OID:        {"bigint", 8},
	pgtype.OIDOID:         {"oid", 4},
	pgtype.Float8OID:      {"double precision", 8},
	pgtype.NumericOID:     {"numeric", -1},
	pgtype.TextOID:        {"text", -1},
	pgtype.VarcharOID:     {"character varying", -1},
	pgtype.BPCharOID:      {"character", -1},
	pgtype.NameOID:        {"name", 64},
	pgtype.UnknownOID:     {"unknown", -2},
	pgtype.TimestamptzOID: {"timestamp with time zone", 8},
	pgtype.NameArrayOID:   {"name[]", -1},
	VoidOID:               {"void", 4},
	RegclassOID:           {"regclass", 4},
}

// TypeName is the name that PostgreSQL's messages give a type.
func TypeName(typ uint32) string {
	if t, ok := types[typ]; ok {
		return t.name
	}
	return fmt.Sprintf("with OID %d", typ)
}

// Known reports whether values of the type can be written in a query and sent as parameters.
func Known(typ uint32) bool {
	switch typ {
	case pgtype.TimestamptzOID, pgtype.NameArrayOID, VoidOID, RegclassOID:
		return false
	}
	_, ok := types[typ]
	return ok
}

func isInt(typ uint32) bool {
	return typ == pgtype.Int2OID || typ == pgtype.Int4OID || typ == pgtype.Int8OID
}

func isString(typ uint32) bool {
	switch typ {
	case pgtype.TextOID, pgtype.VarcharOID, pgtype.BPCharOID, pgtype.NameOID, pgtype.UnknownOID:
		return true
	}
	return false
}

// Castable reports whether PostgreSQL has an explicit cast between two types that are known here.
func Castable(from, to uint32) bool {
	switch {
	case from == to:
		return true
	case from == VoidOID || !Known(to):
		return false
	case isString(from) || isString(to):
		return true
	}
	switch from {
	case pgtype.BoolOID:
		return to == pgtype.Int4OID
	case pgtype.Int4OID:
		return true
	case pgtype.Int2OID, pgtype.Int8OID:
		return to != pgtype.BoolOID
	case RegclassOID:
		return to == pgtype.OIDOID || to == pgtype.Int4OID || to == pgtype.Int8OID
	case pgtype.OIDOID:
		return to == pgtype.Int4OID || to == pgtype.Int8OID
	case pgtype.NumericOID, pgtype.Float8OID:
		return isInt(to) || to == pgtype.NumericOID || to == pgtype.Float8OID
	}
	return false
}

// CommonType is the type of a VALUES column or a COALESCE that holds a and b; ok is false when PostgreSQL has none or it cannot be
// told here.
func CommonType(a, b uint32) (typ uint32, ok bool) {
	rank := func(typ uint32) int {
		switch typ {
		case pgtype.Int2OID:
			return 1
		case pgtype.Int4OID:
			return 2
		case pgtype.Int8OID:
			return 3
		case pgtype.NumericOID:
			return 4
		case pgtype.Float8OID:
			return 5
		}
		return 0
	}
	switch {
	case a == b, b == pgtype.UnknownOID:
		return a, true
	case a == pgtype.UnknownOID:
		return b, true
	case rank(a) > 0 && rank(b) > 0:
		if rank(a) > rank(b) {
			return a, true
		}
		return b, true
	case isString(a) && isString(b) && (a == pgtype.TextOID || b == pgtype.TextOID):
		return pgtype.TextOID, true
	}
	return 0, false
}
