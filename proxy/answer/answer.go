package answer

import (
	"encoding/binary"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/nextvald/nextvald/proxy/wire"
	"github.com/nextvald/nextvald/sqlrewrite"
)

const (
	// maxColumns is PostgreSQL's limit of a target list (MaxTupleAttributeNumber).
	maxColumns = 1664
	// maxLength bounds the n of varchar(n) and char(n), since char(n) makes n bytes of nothing.
	maxLength = 1 << 16
)

// Column is what RowDescription says of one column; table and attribute are always 0.
type Column struct {
	Name   string
	Type   uint32
	Size   int16
	Typmod int32
}

// Columns describes the result. params are the final types of the parameters, $1 first. ok is false when an
// expression cannot be evaluated here, or PostgreSQL would refuse it: the caller leaves the statement to the upstream.
func Columns(a *sqlrewrite.Answer, params []uint32) (cols []Column, ok bool) {
	if len(a.Rows) == 0 || len(a.Columns) > maxColumns {
		return nil, false
	}
	cols = make([]Column, len(a.Columns))
	for n, row := range a.Rows {
		if len(row) != len(cols) {
			return nil, false
		}
		for i := range row {
			typ, typmod, ok := TypeOf(&row[i], params)
			if !ok {
				return nil, false
			}
			if n == 0 {
				cols[i] = Column{Name: a.Columns[i], Type: typ, Typmod: typmod}
				continue
			}
			common, ok := CommonType(cols[i].Type, typ)
			if !ok {
				return nil, false
			}
			if common != typ || typ != cols[i].Type || typmod != cols[i].Typmod {
				cols[i].Typmod = -1
			}
			cols[i].Type = common
		}
	}
	for i := range cols {
		if cols[i].Type == pgtype.UnknownOID {
			cols[i].Type = pgtype.TextOID
		}
		cols[i].Size = types[cols[i].Type].size
	}
	return cols, true
}

// TypeOf is the type of an expression's result: unknown for a bare string or NULL, and text for a parameter without a
// type. ok is false where Columns would give up.
func TypeOf(x *sqlrewrite.Expr, params []uint32) (typ uint32, typmod int32, ok bool) {
	switch x.Kind {
	case sqlrewrite.ExprCall:
		return pgtype.Int8OID, -1, true
	case sqlrewrite.ExprConstant:
		if x.Type == 0 {
			return pgtype.UnknownOID, -1, true
		}
		return x.Type, -1, Known(x.Type)
	case sqlrewrite.ExprField, sqlrewrite.ExprClass:
		_, ok := types[x.Type]
		return x.Type, -1, ok
	case sqlrewrite.ExprParam:
		if x.Param < 1 || x.Param > len(params) {
			return 0, 0, false
		}
		typ = params[x.Param-1]
		if typ == 0 || typ == pgtype.UnknownOID {
			typ = pgtype.TextOID
		}
		return typ, -1, Known(typ)
	case sqlrewrite.ExprCast:
		from, _, ok := TypeOf(x.Arg, params)
		if !ok || !Castable(from, x.Type) || x.Type == pgtype.UnknownOID {
			return 0, 0, false
		}
		if x.Typmod <= 0 {
			return x.Type, -1, true
		}
		isSized := x.Type == pgtype.VarcharOID || x.Type == pgtype.BPCharOID
		return x.Type, x.Typmod, isSized && x.Typmod > 4 && x.Typmod <= maxLength
	}
	return 0, 0, false
}

// Row appends one row to dst as a complete DataRow frame. cols are those of Columns; formats are the result formats of
// Bind: none, one for all columns, or one each. call gives the results of the statement's sequence calls by index,
// field those of ExprField and ExprClass: int64, bool, string, []string, time.Time, Result or nil. On an error dst is returned as
// it was; as in PostgreSQL all expressions have been evaluated before an unsupported format is noticed.
func Row(dst []byte, row []sqlrewrite.Expr, cols []Column, formats []int16, params []Param,
	call func(i int) (v int64, null bool, err error), field func(e *sqlrewrite.Expr) (any, error),
) ([]byte, error) {
	start := len(dst)
	ev := evaluator{params: params, call: call, field: field}
	dst = append(dst, wire.TypeDataRow, 0, 0, 0, 0)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(row)))
	for i := range row {
		v, err := ev.eval(&row[i])
		if err == nil && v.typ != cols[i].Type {
			v, err = cast(v, cols[i].Type, -1)
		}
		if err != nil {
			return dst[:start], err
		}
		if v.null {
			dst = binary.BigEndian.AppendUint32(dst, 0xFFFFFFFF)
			continue
		}
		at := len(dst)
		dst = append(dst, 0, 0, 0, 0)
		if FormatOf(formats, i) == 1 {
			dst = v.appendBinary(dst)
		} else {
			dst = v.appendText(dst)
		}
		binary.BigEndian.PutUint32(dst[at:], uint32(len(dst)-at-4))
	}
	if err := checkFormats(formats); err != nil {
		return dst[:start], err
	}
	binary.BigEndian.PutUint32(dst[start+1:], uint32(len(dst)-start-1))
	return dst, nil
}

// FormatOf is the result format of column i.
func FormatOf(formats []int16, i int) int16 {
	switch {
	case len(formats) == 1:
		return formats[0]
	case i < len(formats):
		return formats[i]
	}
	return 0
}

func checkFormats(formats []int16) error {
	for _, f := range formats {
		if f != 0 && f != 1 {
			return errFormat(f)
		}
	}
	return nil
}

// Constants returns the error that PostgreSQL raises at Parse: a string constant that its cast, or its VALUES column,
// cannot read.
func Constants(a *sqlrewrite.Answer, cols []Column) error {
	for _, row := range a.Rows {
		for i := range row {
			if err := constant(&row[i], cols[i].Type); err != nil {
				return err
			}
		}
	}
	return nil
}

func constant(x *sqlrewrite.Expr, to uint32) error {
	switch {
	case x.Kind == sqlrewrite.ExprCast:
		return constant(x.Arg, x.Type)
	case x.Kind == sqlrewrite.ExprConstant && !x.Null && (x.Type == 0 || x.Type == pgtype.UnknownOID):
		_, err := parse(to, x.Text)
		return err
	}
	return nil
}

// Fold returns the error that PostgreSQL raises when it plans the statement, which is at Bind: a cast of a constant or
// parameter that fails. Expressions with a call or a field in them wait for Execute.
func Fold(rows [][]sqlrewrite.Expr, cols []Column, params []Param) error {
	ev := evaluator{params: params}
	for _, row := range rows {
		for i := range row {
			if !pure(&row[i]) {
				continue
			}
			v, err := ev.eval(&row[i])
			if err == nil {
				_, err = cast(v, cols[i].Type, -1)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func pure(x *sqlrewrite.Expr) bool {
	for x.Kind == sqlrewrite.ExprCast {
		x = x.Arg
	}
	return x.Kind == sqlrewrite.ExprConstant || x.Kind == sqlrewrite.ExprParam
}

// evaluator is what the expressions of one row are evaluated with.
type evaluator struct {
	params []Param
	call   func(i int) (int64, bool, error)
	field  func(e *sqlrewrite.Expr) (any, error)
}

func (ev *evaluator) eval(x *sqlrewrite.Expr) (value, error) {
	switch x.Kind {
	case sqlrewrite.ExprCall:
		n, null, err := ev.call(x.Call)
		return value{typ: pgtype.Int8OID, int: n, null: null}, err
	case sqlrewrite.ExprConstant:
		typ := x.Type
		if typ == 0 {
			typ = pgtype.UnknownOID
		}
		if x.Null {
			return value{typ: typ, null: true}, nil
		}
		return parse(typ, x.Text)
	case sqlrewrite.ExprParam:
		if x.Param < 1 || x.Param > len(ev.params) {
			return value{}, errorf("42P02", "there is no parameter $%d", x.Param)
		}
		return decode(ev.params[x.Param-1], x.Param)
	case sqlrewrite.ExprField, sqlrewrite.ExprClass:
		f, err := ev.field(x)
		if err != nil {
			return value{}, err
		}
		return fieldValue(x.Type, f)
	}
	v, err := ev.eval(x.Arg)
	if err != nil {
		return v, err
	}
	return cast(v, x.Type, x.Typmod)
}

// Result is the value of an expression. A field function may return one.
type Result struct{ v value }

// Null reports whether it is NULL.
func (r Result) Null() bool { return r.v.null }

// Text is its text form, "" for NULL.
func (r Result) Text() string {
	if r.v.null {
		return ""
	}
	return string(r.v.appendText(nil))
}

// Int is the value of an integer or an oid, and 1 or 0 of a boolean.
func (r Result) Int() int64 { return r.v.int }

// Evaluate evaluates one expression; the arguments are those of Row.
func Evaluate(x *sqlrewrite.Expr, params []Param,
	call func(i int) (v int64, null bool, err error), field func(e *sqlrewrite.Expr) (any, error),
) (Result, error) {
	ev := evaluator{params: params, call: call, field: field}
	v, err := ev.eval(x)
	return Result{v}, err
}
