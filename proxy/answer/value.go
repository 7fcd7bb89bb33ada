package answer

import (
	"encoding/binary"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgtype"
)

// value is a value of one of types.
type value struct {
	typ  uint32
	null bool
	// int holds bool (0 or 1), the integers, oid, and the microseconds since 2000-01-01 UTC of timestamptz.
	int   int64
	float float64
	// text holds the string types, numeric in PostgreSQL's decimal form, and the printed form of timestamptz and regclass.
	text  string
	elems []string // name[]
}

// parse reads a value from its text form.
func parse(typ uint32, s string) (value, error) {
	v := value{typ: typ}
	var err error
	switch typ {
	case pgtype.BoolOID:
		v.int, err = parseBool(s)
	case pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID:
		v.int, err = parseInt(typ, s)
	case pgtype.OIDOID:
		v.int, err = parseOID(s)
	case pgtype.Float8OID:
		v.float, err = parseFloat(s)
	case pgtype.NumericOID:
		v.text, err = parseNumeric(s)
	case pgtype.NameOID:
		v.text = truncateName(s)
	default:
		v.text = s
	}
	return v, err
}

// parseBinary reads a value from its binary form, of parameter number.
func parseBinary(typ uint32, b []byte, number int) (value, error) {
	v := value{typ: typ}
	if typ == pgtype.NumericOID {
		var err error
		v.text, err = parseBinaryNumeric(b, number)
		return v, err
	}
	if isString(typ) {
		if err := CheckText(b); err != nil {
			return v, err
		}
		return parse(typ, string(b))
	}
	if err := checkSize(b, int(types[typ].size), number); err != nil {
		return v, err
	}
	switch typ {
	case pgtype.BoolOID:
		if b[0] != 0 {
			v.int = 1
		}
	case pgtype.Int2OID:
		v.int = int64(int16(binary.BigEndian.Uint16(b)))
	case pgtype.Int4OID:
		v.int = int64(int32(binary.BigEndian.Uint32(b)))
	case pgtype.OIDOID:
		v.int = int64(binary.BigEndian.Uint32(b))
	case pgtype.Int8OID:
		v.int = int64(binary.BigEndian.Uint64(b))
	case pgtype.Float8OID:
		v.float = math.Float64frombits(binary.BigEndian.Uint64(b))
	}
	return v, nil
}

// checkSize compares a binary parameter's length with its type's.
func checkSize(b []byte, size, number int) error {
	switch {
	case len(b) < size:
		return errorf(codeProtocolViolation, "insufficient data left in message")
	case len(b) > size:
		return errorf(codeInvalidBinary, "incorrect binary data format in bind parameter %d", number)
	}
	return nil
}

// CheckText checks that b is UTF-8 without a zero byte, as every text in a database is.
func CheckText(b []byte) error {
	if utf8.Valid(b) {
		if strings.IndexByte(string(b), 0) < 0 {
			return nil
		}
	}
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if b[i] == 0 || r == utf8.RuneError && n <= 1 {
			return errorf(codeBadByteSequence, "invalid byte sequence for encoding \"UTF8\": %s", hexBytes(b[i:]))
		}
		i += n
	}
	return nil
}

// hexBytes lists the bytes that PostgreSQL names for a bad character at the start of b: as many as its first byte
// announces.
func hexBytes(b []byte) string {
	n := 1
	switch {
	case b[0] >= 0xF0 && b[0] < 0xF8:
		n = 4
	case b[0] >= 0xE0 && b[0] < 0xF0:
		n = 3
	case b[0] >= 0xC0 && b[0] < 0xE0:
		n = 2
	}
	var out []string
	for _, c := range b[:min(n, len(b))] {
		hex := strconv.FormatUint(uint64(c), 16)
		out = append(out, "0x"+strings.Repeat("0", 2-len(hex))+hex)
	}
	return strings.Join(out, " ")
}

// appendText appends the text form of v, which is not null.
func (v value) appendText(dst []byte) []byte {
	switch v.typ {
	case pgtype.BoolOID:
		if v.int != 0 {
			return append(dst, 't')
		}
		return append(dst, 'f')
	case pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID, pgtype.OIDOID:
		return strconv.AppendInt(dst, v.int, 10)
	case pgtype.Float8OID:
		return appendFloat(dst, v.float)
	case pgtype.NameArrayOID:
		return appendNames(dst, v.elems)
	}
	return append(dst, v.text...)
}

// appendBinary appends the binary form of v, which is not null.
func (v value) appendBinary(dst []byte) []byte {
	switch v.typ {
	case pgtype.BoolOID:
		return append(dst, byte(v.int))
	case pgtype.Int2OID:
		return binary.BigEndian.AppendUint16(dst, uint16(v.int))
	case pgtype.Int4OID, pgtype.OIDOID, RegclassOID:
		return binary.BigEndian.AppendUint32(dst, uint32(v.int))
	case pgtype.Int8OID, pgtype.TimestamptzOID:
		return binary.BigEndian.AppendUint64(dst, uint64(v.int))
	case pgtype.Float8OID:
		return binary.BigEndian.AppendUint64(dst, math.Float64bits(v.float))
	case pgtype.NumericOID:
		return appendBinaryNumeric(dst, v.text)
	case pgtype.NameArrayOID:
		return appendBinaryNames(dst, v.elems)
	}
	return append(dst, v.text...)
}

// postgresEpoch is the zero of PostgreSQL's timestamps.
var postgresEpoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// Regclass is a value of type regclass: a relation, and how it is written.
type Regclass struct {
	OID  uint32
	Text string
}

// fieldValue makes a value of what a field function returned.
func fieldValue(typ uint32, field any) (value, error) {
	v := value{typ: typ}
	switch f := field.(type) {
	case nil:
		v.null = true
	case int64:
		v.int = f
	case bool:
		if f {
			v.int = 1
		}
	case string:
		v.text = f
	case Regclass:
		v.int, v.text = int64(f.OID), f.Text
	case Result:
		return cast(f.v, typ, -1)
	case []string:
		v.elems = f
	case time.Time:
		v.int = f.Sub(postgresEpoch).Microseconds()
		v.text = timeText(f)
	default:
		return v, errorf("XX000", "no value of type %s in %T", TypeName(typ), field)
	}
	return v, nil
}

// timeText prints a timestamptz in DateStyle ISO.
func timeText(t time.Time) string {
	zone := "-07"
	switch _, offset := t.Zone(); {
	case offset%60 != 0:
		zone = "-07:00:00"
	case offset%3600 != 0:
		zone = "-07:00"
	}
	return t.Format("2006-01-02 15:04:05.999999" + zone)
}

// truncateName cuts s to what type name holds: 63 bytes, whole characters.
func truncateName(s string) string {
	const limit = 63
	if len(s) <= limit {
		return s
	}
	n := limit
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// appendNames appends the text form of a name[]; names of schemas that need quotes get them.
func appendNames(dst []byte, names []string) []byte {
	dst = append(dst, '{')
	for i, name := range names {
		if i > 0 {
			dst = append(dst, ',')
		}
		if name != "" && !strings.ContainsAny(name, "{},\"\\ \t\n\r\v\f") && !strings.EqualFold(name, "null") {
			dst = append(dst, name...)
			continue
		}
		dst = append(dst, '"')
		for j := 0; j < len(name); j++ {
			if name[j] == '"' || name[j] == '\\' {
				dst = append(dst, '\\')
			}
			dst = append(dst, name[j])
		}
		dst = append(dst, '"')
	}
	return append(dst, '}')
}

// appendBinaryNames appends the binary form of a name[]: dimensions, null flag, element type, length and lower bound
// of the one dimension, elements.
func appendBinaryNames(dst []byte, names []string) []byte {
	put := func(n uint32) { dst = binary.BigEndian.AppendUint32(dst, n) }
	if len(names) == 0 {
		put(0)
		put(0)
		put(pgtype.NameOID)
		return dst
	}
	put(1)
	put(0)
	put(pgtype.NameOID)
	put(uint32(len(names)))
	put(1)
	for _, name := range names {
		put(uint32(len(name)))
		dst = append(dst, name...)
	}
	return dst
}
