package answer

import (
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgtype"
)

// cast converts v as an explicit cast does.
func cast(v value, to uint32, typmod int32) (value, error) {
	out := value{typ: to, null: v.null}
	if v.null || v.typ == to && typmod <= 0 {
		v.typ = to
		return v, nil
	}
	if !Castable(v.typ, to) {
		return out, errorf(codeCannotCoerce, "cannot cast type %s to %s", TypeName(v.typ), TypeName(to))
	}
	var err error
	switch {
	case isString(to):
		out.text = fitText(textOf(v, to), to, typmod)
	case isString(v.typ):
		return parse(to, textOf(v, to))
	case to == pgtype.BoolOID:
		if v.int != 0 {
			out.int = 1
		}
	case to == pgtype.OIDOID && v.typ != pgtype.Int8OID:
		out.int = int64(uint32(v.int))
	case to == pgtype.Int4OID && (v.typ == pgtype.OIDOID || v.typ == RegclassOID):
		out.int = int64(int32(v.int))
	case isInt(to) || to == pgtype.OIDOID:
		out.int, err = intOf(v, to)
	case to == pgtype.Float8OID:
		out.float, err = floatOf(v)
	case to == pgtype.NumericOID && v.typ == pgtype.Float8OID:
		// A real server keeps the 15 digits that every float8 has.
		out.text, err = parseNumeric(strconv.FormatFloat(v.float, 'g', 15, 64))
	case to == pgtype.NumericOID && v.typ != pgtype.NumericOID:
		out.text = strconv.FormatInt(v.int, 10)
	default:
		out.text = v.text
	}
	return out, err
}

// textOf is the text that a cast to a string type starts from.
func textOf(v value, to uint32) string {
	switch v.typ {
	case pgtype.BPCharOID:
		return strings.TrimRight(v.text, " ")
	case pgtype.BoolOID:
		if to != pgtype.NameOID {
			return strconv.FormatBool(v.int != 0)
		}
	}
	return string(v.appendText(nil))
}

// fitText applies a string type's length: varchar(n) and char(n) cut, char(n) also fills up.
func fitText(s string, typ uint32, typmod int32) string {
	const header = 4 // a typmod counts the length word of the stored value
	switch typ {
	case pgtype.NameOID:
		return truncateName(s)
	case pgtype.VarcharOID, pgtype.BPCharOID:
		if typmod > header {
			return fitLength(s, int(typmod-header), typ == pgtype.BPCharOID)
		}
	}
	return s
}

func fitLength(s string, limit int, pad bool) string {
	n := 0
	for i := range s {
		if n == limit {
			return s[:i]
		}
		n++
	}
	if pad {
		s += strings.Repeat(" ", limit-utf8.RuneCountInString(s))
	}
	return s
}

// intOf rounds and narrows a number.
func intOf(v value, to uint32) (int64, error) {
	switch v.typ {
	case pgtype.NumericOID:
		return roundNumeric(to, v.text)
	case pgtype.Float8OID:
		f := math.RoundToEven(v.float)
		if math.IsNaN(f) || f < math.MinInt64 || f >= -math.MinInt64 {
			return 0, errOutOfRange(to)
		}
		return narrow(to, int64(f))
	}
	return narrow(to, v.int)
}

func floatOf(v value) (float64, error) {
	if v.typ == pgtype.NumericOID {
		return parseFloat(v.text)
	}
	return float64(v.int), nil
}
