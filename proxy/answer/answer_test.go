package answer

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/proxy/wire"
	"github.com/nextvald/nextvald/sqlrewrite"
)

func constantOf(typ uint32, text string) sqlrewrite.Expr {
	return sqlrewrite.Expr{Kind: sqlrewrite.ExprConstant, Type: typ, Text: text}
}

func null() sqlrewrite.Expr { return sqlrewrite.Expr{Kind: sqlrewrite.ExprConstant, Null: true} }

func param(n int) sqlrewrite.Expr { return sqlrewrite.Expr{Kind: sqlrewrite.ExprParam, Param: n} }

func castOf(x sqlrewrite.Expr, typ uint32, typmod int32) sqlrewrite.Expr {
	return sqlrewrite.Expr{Kind: sqlrewrite.ExprCast, Type: typ, Typmod: typmod, Arg: &x}
}

func nextval() sqlrewrite.Expr {
	return sqlrewrite.Expr{Kind: sqlrewrite.ExprCall, Type: pgtype.Int8OID}
}

// answerOf is an Answer of the given rows with columns c1, c2, ...
func answerOf(rows ...[]sqlrewrite.Expr) *sqlrewrite.Answer {
	a := &sqlrewrite.Answer{Rows: rows, Read: -1}
	for i := range rows[0] {
		a.Columns = append(a.Columns, fmt.Sprintf("c%d", i+1))
	}
	return a
}

// evaluate gives the values of a row of one column as a client receives them.
func evaluate(x sqlrewrite.Expr, format int16, params ...Param) (string, error) {
	a := answerOf([]sqlrewrite.Expr{x})
	var types []uint32
	for _, p := range params {
		types = append(types, p.Type)
	}
	cols, ok := Columns(a, types)
	if !ok {
		return "", errors.New("not answered")
	}
	if err := Constants(a, cols); err != nil {
		return "", err
	}
	frame, err := Row(nil, a.Rows[0], cols, []int16{format}, params,
		func(int) (int64, bool, error) { return 42, false, nil }, nil)
	if err != nil {
		return "", err
	}
	values, err := wire.DecodeDataRow(frame[wire.HeaderLen:])
	if err != nil {
		return "", err
	}
	switch {
	case values[0] == nil:
		return "NULL", nil
	case format == 1:
		return hex.EncodeToString(values[0]), nil
	}
	return string(values[0]), nil
}

func TestCasts(t *testing.T) {
	unknown := func(s string) sqlrewrite.Expr { return constantOf(0, s) }
	int4 := func(s string) sqlrewrite.Expr { return constantOf(pgtype.Int4OID, s) }
	numeric := func(s string) sqlrewrite.Expr { return constantOf(pgtype.NumericOID, s) }
	boolean := constantOf(pgtype.BoolOID, "true")
	to := func(x sqlrewrite.Expr, typ uint32) sqlrewrite.Expr { return castOf(x, typ, -1) }
	cases := map[string]struct {
		expr sqlrewrite.Expr
		want string // the text, or the error
	}{
		"call":                         {nextval(), "42"},
		"call as text":                 {to(nextval(), pgtype.TextOID), "42"},
		"string":                       {unknown("a"), "a"},
		"null":                         {null(), "NULL"},
		"null integer":                 {to(null(), pgtype.Int4OID), "NULL"},
		"blanks round an integer":      {to(unknown(" +5 "), pgtype.Int4OID), "5"},
		"not an integer":               {to(unknown("x"), pgtype.Int4OID), `22P02 invalid input syntax for type integer: "x"`},
		"empty integer":                {to(unknown(""), pgtype.Int8OID), `22P02 invalid input syntax for type bigint: ""`},
		"sign apart":                   {to(unknown("- 5"), pgtype.Int4OID), `22P02 invalid input syntax for type integer: "- 5"`},
		"hexadecimal":                  {to(unknown("0x10"), pgtype.Int4OID), `22P02 invalid input syntax for type integer: "0x10"`},
		"integer text too large":       {to(unknown("99999999999"), pgtype.Int4OID), `22003 value "99999999999" is out of range for type integer`},
		"too large before bad digits":  {to(unknown("99999x"), pgtype.Int2OID), `22003 value "99999x" is out of range for type smallint`},
		"integer too large":            {to(int4("99999"), pgtype.Int2OID), "22003 smallint out of range"},
		"bigint too large":             {to(constantOf(pgtype.Int8OID, "99999999999"), pgtype.Int4OID), "22003 integer out of range"},
		"numeric too large":            {to(numeric("99999999999999999999"), pgtype.Int8OID), "22003 bigint out of range"},
		"half rounds up":               {to(numeric("2.5"), pgtype.Int4OID), "3"},
		"negative half rounds down":    {to(numeric("-2.5"), pgtype.Int8OID), "-3"},
		"small negative":               {to(numeric("-0.4"), pgtype.Int8OID), "0"},
		"largest bigint and a half":    {to(numeric("9223372036854775807.5"), pgtype.Int8OID), "22003 bigint out of range"},
		"NaN integer":                  {to(to(unknown("nan"), pgtype.NumericOID), pgtype.Int4OID), "0A000 cannot convert NaN to integer"},
		"float half to even":           {to(to(unknown("2.5"), pgtype.Float8OID), pgtype.Int4OID), "2"},
		"float too large":              {to(to(unknown("1e30"), pgtype.Float8OID), pgtype.Int8OID), "22003 bigint out of range"},
		"scale kept":                   {numeric("1.50"), "1.50"},
		"exponent":                     {numeric("1e3"), "1000"},
		"negative exponent":            {numeric("1.5e-3"), "0.0015"},
		"bare fraction":                {numeric(".5"), "0.5"},
		"no negative zero":             {numeric("-0.00"), "0.00"},
		"huge exponent":                {numeric("1e99999"), "22003 value overflows numeric format"},
		"not a numeric":                {to(unknown("x"), pgtype.NumericOID), `22P02 invalid input syntax for type numeric: "x"`},
		"lone point":                   {to(unknown("."), pgtype.NumericOID), `22P02 invalid input syntax for type numeric: "."`},
		"float in full":                {to(unknown("1e14"), pgtype.Float8OID), "100000000000000"},
		"float with exponent":          {to(unknown("1e15"), pgtype.Float8OID), "1e+15"},
		"small float":                  {to(unknown("0.00001"), pgtype.Float8OID), "1e-05"},
		"infinite float":               {to(unknown("-inf"), pgtype.Float8OID), "-Infinity"},
		"float out of range":           {to(unknown("1e400"), pgtype.Float8OID), `22003 "1e400" is out of range for type double precision`},
		"float to numeric":             {to(to(unknown("0.1"), pgtype.Float8OID), pgtype.NumericOID), "0.1"},
		"true":                         {boolean, "t"},
		"true as text":                 {to(boolean, pgtype.TextOID), "true"},
		"true as name":                 {to(boolean, pgtype.NameOID), "t"},
		"true as integer":              {to(boolean, pgtype.Int4OID), "1"},
		"true as bigint":               {to(boolean, pgtype.Int8OID), "not answered"},
		"integer as boolean":           {to(int4("5"), pgtype.BoolOID), "t"},
		"prefix of a boolean":          {to(unknown(" TR "), pgtype.BoolOID), "t"},
		"ambiguous boolean":            {to(unknown("o"), pgtype.BoolOID), `22P02 invalid input syntax for type boolean: "o"`},
		"negative oid":                 {to(unknown("-1"), pgtype.OIDOID), "4294967295"},
		"negative integer as oid":      {to(int4("-1"), pgtype.OIDOID), "4294967295"},
		"negative bigint as oid":       {to(constantOf(pgtype.Int8OID, "-1"), pgtype.OIDOID), "22003 OID out of range"},
		"large oid as integer":         {to(to(unknown("4294967295"), pgtype.OIDOID), pgtype.Int4OID), "-1"},
		"oid too large":                {to(unknown("99999999999"), pgtype.OIDOID), `22003 value "99999999999" is out of range for type oid`},
		"varchar cut":                  {castOf(unknown("äbc"), pgtype.VarcharOID, 4+2), "äb"},
		"char filled":                  {castOf(unknown("abc"), pgtype.BPCharOID, 4+5), "abc  "},
		"char as text":                 {to(castOf(unknown("abc"), pgtype.BPCharOID, 4+5), pgtype.TextOID), "abc"},
		"long name":                    {to(unknown(strings.Repeat("x", 70)), pgtype.NameOID), strings.Repeat("x", 63)},
		"unknown type":                 {to(unknown("x"), pgtype.UUIDOID), "not answered"},
		"regclass":                     {to(unknown("x"), RegclassOID), "not answered"},
		"numeric of a fixed precision": {castOf(int4("1"), pgtype.NumericOID, 5<<16|2+4), "not answered"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := evaluate(c.expr, 0)
			if e := (*wire.Error)(nil); errors.As(err, &e) {
				got = e.Code + " " + e.Message
			} else if err != nil {
				got = err.Error()
			}
			assert.Equal(t, c.want, got)
		})
	}
}

func TestBinaryResults(t *testing.T) {
	cases := map[string]struct {
		typ  uint32
		text string
		want string
	}{
		"bool":             {pgtype.BoolOID, "t", "01"},
		"int2":             {pgtype.Int2OID, "-2", "fffe"},
		"int4":             {pgtype.Int4OID, "7", "00000007"},
		"int8":             {pgtype.Int8OID, "-9223372036854775808", "8000000000000000"},
		"oid":              {pgtype.OIDOID, "4294967295", "ffffffff"},
		"float8":           {pgtype.Float8OID, "1.5", "3ff8000000000000"},
		"text":             {pgtype.TextOID, "ab", "6162"},
		"numeric":          {pgtype.NumericOID, "1.50", "0002000000000002" + "00011388"},
		"numeric zero":     {pgtype.NumericOID, "0.00", "0000000000000002"},
		"negative numeric": {pgtype.NumericOID, "-0.05", "0001ffff40000002" + "01f4"},
		"large numeric":    {pgtype.NumericOID, "12345678901234567890.123", "0006000400000003" + "04d2162e23340d801ed204ce"},
		"NaN":              {pgtype.NumericOID, "NaN", "00000000c0000000"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := evaluate(castOf(constantOf(0, c.text), c.typ, -1), 1)
			require.NoError(t, err)
			assert.Equal(t, c.want, got)

			raw, err := hex.DecodeString(got)
			require.NoError(t, err)
			back, err := evaluate(param(1), 0, Param{Value: raw, Format: 1, Type: c.typ})
			require.NoError(t, err)
			assert.Equal(t, c.text, back)
		})
	}
}

func TestFields(t *testing.T) {
	zone := time.FixedZone("", 5*3600+1800)
	fields := map[string]any{
		"last_value": int64(7), "is_called": true, "user": "me", "none": nil,
		"schemas": []string{"pg_catalog", `o"dd`}, "now": time.Date(2026, 1, 2, 3, 4, 5, 120_000_000, zone),
	}
	expr := func(name string, typ uint32) sqlrewrite.Expr {
		return sqlrewrite.Expr{Kind: sqlrewrite.ExprField, Text: name, Type: typ}
	}
	a := answerOf([]sqlrewrite.Expr{
		expr("last_value", pgtype.Int8OID), expr("is_called", pgtype.BoolOID), expr("user", pgtype.NameOID),
		expr("none", pgtype.TextOID), expr("schemas", pgtype.NameArrayOID), expr("now", pgtype.TimestamptzOID),
	})
	cols, ok := Columns(a, nil)
	require.True(t, ok)
	field := func(e *sqlrewrite.Expr) (any, error) { return fields[e.Text], nil }
	decodeRow := func(format int16) []string {
		frame, err := Row(nil, a.Rows[0], cols, []int16{format}, nil, nil, field)
		require.NoError(t, err)
		values, err := wire.DecodeDataRow(frame[wire.HeaderLen:])
		require.NoError(t, err)
		var texts []string
		for _, v := range values {
			texts = append(texts, string(v))
		}
		return texts
	}
	assert.Equal(t, []string{"7", "t", "me", "", `{pg_catalog,"o\"dd"}`, "2026-01-02 03:04:05.12+05:30"}, decodeRow(0))
	binary := decodeRow(1)
	m := pgtype.NewMap()
	var names []string
	require.NoError(t, m.Scan(pgtype.NameArrayOID, 1, []byte(binary[4]), &names))
	assert.Equal(t, fields["schemas"], names)
	var at time.Time
	require.NoError(t, m.Scan(pgtype.TimestamptzOID, 1, []byte(binary[5]), &at))
	assert.True(t, at.Equal(fields["now"].(time.Time)))
}

func TestValuesColumns(t *testing.T) {
	int4, int8 := constantOf(pgtype.Int4OID, "1"), constantOf(pgtype.Int8OID, "2")
	cases := map[string]struct {
		first, second sqlrewrite.Expr
		want          uint32 // 0: not answered
	}{
		"same":               {int4, int4, pgtype.Int4OID},
		"wider":              {int4, nextval(), pgtype.Int8OID},
		"wider first":        {int8, int4, pgtype.Int8OID},
		"numeric":            {int8, constantOf(pgtype.NumericOID, "1.5"), pgtype.NumericOID},
		"string and integer": {constantOf(0, "5"), int4, pgtype.Int4OID},
		"strings":            {constantOf(0, "a"), constantOf(0, "b"), pgtype.TextOID},
		"nulls":              {null(), null(), pgtype.TextOID},
		"null and call":      {null(), nextval(), pgtype.Int8OID},
		"integer and bool":   {int4, constantOf(pgtype.BoolOID, "t"), 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			cols, ok := Columns(answerOf([]sqlrewrite.Expr{c.first}, []sqlrewrite.Expr{c.second}), nil)
			require.Equal(t, c.want != 0, ok)
			if ok {
				assert.Equal(t, c.want, cols[0].Type)
			}
		})
	}
}

func TestParams(t *testing.T) {
	cases := map[string]struct {
		param Param
		want  string // error, empty for none
		where string
	}{
		"good":         {Param{Value: []byte("5"), Type: pgtype.Int4OID}, "", ""},
		"null":         {Param{Type: pgtype.Int4OID, Format: 1}, "", ""},
		"not a number": {Param{Value: []byte("abc"), Type: pgtype.Int4OID}, `22P02 invalid input syntax for type integer: "abc"`, "unnamed portal parameter $1 = '...'"},
		"short":        {Param{Value: []byte("ab"), Format: 1, Type: pgtype.Int4OID}, "08P01 insufficient data left in message", "unnamed portal parameter $1"},
		"long":         {Param{Value: []byte("abcde"), Format: 1, Type: pgtype.Int4OID}, "22P03 incorrect binary data format in bind parameter 1", "unnamed portal parameter $1"},
		"bad UTF-8":    {Param{Value: []byte("ab\xff"), Type: pgtype.TextOID}, `22021 invalid byte sequence for encoding "UTF8": 0xff`, "unnamed portal parameter $1"},
		"cut UTF-8":    {Param{Value: []byte("\xe2\x82"), Type: pgtype.TextOID, Format: 1}, `22021 invalid byte sequence for encoding "UTF8": 0xe2 0x82`, "unnamed portal parameter $1"},
		"zero byte":    {Param{Value: []byte("a\x00b"), Type: pgtype.TextOID}, `22021 invalid byte sequence for encoding "UTF8": 0x00`, "unnamed portal parameter $1"},
		"format":       {Param{Value: []byte("a"), Format: 2, Type: pgtype.TextOID}, "22023 unsupported format code: 2", "unnamed portal parameter $1"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			err := Check([]Param{c.param}, "")
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			var e *wire.Error
			require.ErrorAs(t, err, &e)
			assert.Equal(t, c.want, e.Code+" "+e.Message)
			assert.Equal(t, c.where, e.Where)
		})
	}
}

func TestArguments(t *testing.T) {
	v, isNull, err := Int8(Param{Value: []byte{0, 5}, Format: 1, Type: pgtype.Int2OID})
	require.NoError(t, err)
	assert.False(t, isNull)
	assert.Equal(t, int64(5), v)
	v, _, err = Int8(Param{Value: []byte("-7")})
	require.NoError(t, err)
	assert.Equal(t, int64(-7), v)
	_, isNull, err = Int8(Param{})
	require.NoError(t, err)
	assert.True(t, isNull)
	_, _, err = Int8(Param{Value: []byte("1.5"), Type: pgtype.NumericOID})
	assert.Error(t, err)

	b, _, err := Bool(Param{Value: []byte{1}, Format: 1, Type: pgtype.BoolOID})
	require.NoError(t, err)
	assert.True(t, b)

	texts := map[string]Param{
		"orders_seq": {Value: []byte("orders_seq"), Type: pgtype.VarcharOID},
		"a.b":        {Value: []byte("a.b"), Type: RegclassOID},
		"4294967294": {Value: []byte{0xff, 0xff, 0xff, 0xfe}, Format: 1, Type: RegclassOID},
		"4294967295": {Value: []byte("-1"), Type: pgtype.Int4OID},
		"12":         {Value: []byte("12"), Type: pgtype.OIDOID},
	}
	for want, p := range texts {
		got, _, err := Text(p)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	_, _, err = Text(Param{Value: []byte("t"), Type: pgtype.BoolOID})
	assert.Error(t, err)
}

func TestUnsupportedFormatComesAfterEvaluation(t *testing.T) {
	a := answerOf([]sqlrewrite.Expr{nextval(), nextval()})
	cols, ok := Columns(a, nil)
	require.True(t, ok)
	calls := 0
	dst := []byte("before")
	dst, err := Row(dst, a.Rows[0], cols, []int16{2}, nil,
		func(int) (int64, bool, error) { calls++; return 1, false, nil }, nil)
	assert.ErrorContains(t, err, "unsupported format code: 2")
	assert.Equal(t, 2, calls)
	assert.Equal(t, "before", string(dst))
}

func TestFoldSkipsCalls(t *testing.T) {
	a := answerOf([]sqlrewrite.Expr{castOf(nextval(), pgtype.Int2OID, -1), castOf(param(1), pgtype.Int2OID, -1)})
	params := []Param{{Value: []byte("70000"), Type: pgtype.Int4OID}}
	cols, ok := Columns(a, []uint32{pgtype.Int4OID})
	require.True(t, ok)
	assert.ErrorContains(t, Fold(a.Rows, cols, params), "smallint out of range")
	params[0].Value = []byte("7")
	assert.NoError(t, Fold(a.Rows, cols, params))
}

func TestRowOfOneCallDoesNotAllocate(t *testing.T) {
	row, cols, buf, call := oneCall()
	for _, formats := range [][]int16{nil, {1}} {
		allocs := testing.AllocsPerRun(100, func() {
			if _, err := Row(buf, row, cols, formats, nil, call, nil); err != nil {
				t.Fatal(err)
			}
		})
		assert.Zero(t, allocs)
	}
}

func oneCall() ([]sqlrewrite.Expr, []Column, []byte, func(int) (int64, bool, error)) {
	row := []sqlrewrite.Expr{nextval()}
	cols := []Column{{Name: "nextval", Type: pgtype.Int8OID, Size: 8, Typmod: -1}}
	next := int64(1_000_000)
	return row, cols, make([]byte, 0, 64), func(int) (int64, bool, error) { next++; return next, false, nil }
}

func BenchmarkRow(b *testing.B) {
	row, cols, buf, call := oneCall()
	for name, formats := range map[string][]int16{"text": nil, "binary": {1}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Row(buf, row, cols, formats, nil, call, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// FuzzParam reads hostile parameters of every type and prints what could be read.
func FuzzParam(f *testing.F) {
	f.Add([]byte("5"), int16(0), uint32(pgtype.Int4OID))
	f.Add([]byte("1e999"), int16(0), uint32(pgtype.NumericOID))
	f.Add([]byte("\x00\x02\x00\x00\x00\x00\x00\x02\x00\x01\x13\x88"), int16(1), uint32(pgtype.NumericOID))
	f.Add([]byte("\xff\xff\x7f\xff\x00\x00\x7f\xff"), int16(1), uint32(pgtype.NumericOID))
	f.Add([]byte("\xf0\x28"), int16(1), uint32(pgtype.TextOID))
	f.Fuzz(func(t *testing.T, value []byte, format int16, typ uint32) {
		p := Param{Value: value, Format: format, Type: typ}
		for _, read := range []func(Param) error{
			func(p Param) error { _, _, err := Int8(p); return err },
			func(p Param) error { _, _, err := Bool(p); return err },
			func(p Param) error { _, _, err := Text(p); return err },
		} {
			var e *wire.Error
			if err := read(p); err != nil && !errors.As(err, &e) {
				t.Fatalf("an error without a code: %v", err)
			}
		}
		if !Known(typ) || Check([]Param{p}, "") != nil {
			return
		}
		text, err := evaluate(castOf(param(1), pgtype.TextOID, -1), 0, p)
		if err != nil {
			t.Fatalf("accepted by Check, not printed: %v", err)
		}
		if _, err := evaluate(param(1), 1, p); err != nil {
			t.Fatalf("%q accepted by Check, not sent: %v", text, err)
		}
	})
}
