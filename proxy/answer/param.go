package answer

import (
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/nextvald/nextvald/proxy/wire"
)

// Param is a parameter's value as Bind brings it.
type Param struct {
	Value  []byte // nil for NULL
	Format int16  // 0 text, 1 binary
	Type   uint32 // its final type, as ParameterDescription says it
}

// Check reads all parameters as PostgreSQL does at Bind, and returns its error, with its CONTEXT, for the first that
// cannot be read. portal is the portal that Bind makes.
func Check(params []Param, portal string) error {
	for i := range params {
		_, err := decode(params[i], i+1)
		if err == nil {
			continue
		}
		e, ok := err.(*wire.Error)
		if !ok {
			return err
		}
		e.Where = fmt.Sprintf("unnamed portal parameter $%d", i+1)
		if portal != "" {
			e.Where = fmt.Sprintf("portal \"%s\" parameter $%d", portal, i+1)
		}
		if params[i].Format == 0 && e.Code != codeBadByteSequence {
			e.Where += " = '...'"
		}
		return e
	}
	return nil
}

// decode reads parameter number.
func decode(p Param, number int) (value, error) {
	typ := p.Type
	if typ == 0 || typ == pgtype.UnknownOID {
		typ = pgtype.TextOID
	}
	switch {
	case p.Format != 0 && p.Format != 1:
		return value{}, errFormat(p.Format)
	case !Known(typ):
		return value{}, errorf(codeFeatureNotSupported, "parameters of the type %s are not supported here", TypeName(typ))
	case p.Value == nil:
		return value{typ: typ, null: true}, nil
	case p.Format == 1:
		return parseBinary(typ, p.Value, number)
	}
	if err := CheckText(p.Value); err != nil {
		return value{}, err
	}
	return parse(typ, string(p.Value))
}

// Int8 reads a parameter where PostgreSQL wants a bigint: of type int2, int4 or int8, or of an unspecified type, which
// then is int8.
func Int8(p Param) (v int64, null bool, err error) {
	if p.Type == 0 || p.Type == pgtype.UnknownOID {
		p.Type = pgtype.Int8OID
	}
	if !isInt(p.Type) {
		return 0, false, errorf(codeCannotCoerce, "cannot cast type %s to bigint", TypeName(p.Type))
	}
	d, err := decode(p, 1)
	return d.int, d.null, err
}

// Bool reads a parameter where PostgreSQL wants a boolean: of type bool or of an unspecified type, which then is bool.
func Bool(p Param) (v bool, null bool, err error) {
	if p.Type == 0 || p.Type == pgtype.UnknownOID {
		p.Type = pgtype.BoolOID
	}
	if p.Type != pgtype.BoolOID {
		return false, false, errorf(codeCannotCoerce, "cannot cast type %s to boolean", TypeName(p.Type))
	}
	d, err := decode(p, 1)
	return d.int != 0, d.null, err
}

// Text reads a parameter where PostgreSQL wants a regclass, as the text of one: a name (of a string type, or of
// regclass in text form) or the digits of an OID (of an integer type, or of regclass in binary form).
func Text(p Param) (v string, null bool, err error) {
	if p.Type == RegclassOID {
		p.Type = pgtype.TextOID
		if p.Format == 1 {
			p.Type = pgtype.OIDOID
		}
	}
	d, err := decode(p, 1)
	switch {
	case err != nil || d.null:
		return "", d.null, err
	case isString(d.typ):
		return d.text, false, nil
	case isInt(d.typ) || d.typ == pgtype.OIDOID:
		oid, err := cast(d, pgtype.OIDOID, -1)
		return strconv.FormatInt(oid.int, 10), false, err
	}
	return "", false, errorf(codeCannotCoerce, "cannot cast type %s to regclass", TypeName(d.typ))
}
