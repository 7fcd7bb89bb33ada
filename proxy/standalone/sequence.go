package standalone

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgtype"
	pg_query "github.com/pganalyze/pg_query_go/v5"

	"github.com/nextvald/nextvald/proxy/answer"
	"github.com/nextvald/nextvald/proxy/wire"
	"github.com/nextvald/nextvald/sqlrewrite"
)

// sequenceCall is what an ExprCall of a command stands for. The sequences that exist are called in the proxy: a call
// that gets here fails, unless its argument is NULL.
type sequenceCall func(e *evaluation) (v int64, null bool, err error)

func isSequenceFunction(name string) bool {
	switch name {
	case "nextval", "currval", "lastval", "setval":
		return true
	}
	return false
}

// sequence reads a call of a sequence function. A name that is a constant is looked up at once, as PostgreSQL does.
func (b *builder) sequence(name string, f *pg_query.FuncCall, sources []source) (sqlrewrite.Expr, error) {
	least, most := 1, 1
	switch name {
	case "lastval":
		least, most = 0, 0
	case "setval":
		least, most = 2, 3
	}
	var args []sqlrewrite.Expr
	for i, n := range f.Args {
		if i == 0 {
			n = withoutRegclass(n)
		}
		if named := n.GetNamedArgExpr(); named != nil {
			return sqlrewrite.Expr{}, unsupported("a named argument")
		}
		x, err := b.expression(n, sources)
		if err != nil {
			return x, err
		}
		args = append(args, x)
	}
	if len(args) < least || len(args) > most {
		return sqlrewrite.Expr{}, b.noFunction(f, name, args)
	}
	for i, typ := range []uint32{0, pgtype.Int8OID, pgtype.BoolOID} {
		if i > 0 && i < len(args) && !b.accept(&args[i], typ) {
			return sqlrewrite.Expr{}, b.noFunction(f, name, args)
		}
	}
	call := func(*evaluation) (int64, bool, error) {
		return 0, false, errorf("55000", "lastval is not yet defined in this session")
	}
	if name != "lastval" {
		argument := args[0]
		if typ, _, ok := answer.TypeOf(&argument, b.types()); ok && !namesRelation(typ) {
			return sqlrewrite.Expr{}, b.noFunction(f, name, args)
		}
		if argument.Kind == sqlrewrite.ExprParam && b.params[argument.Param-1].typ == 0 {
			b.params[argument.Param-1].typ = answer.RegclassOID
		}
		if argument.Kind == sqlrewrite.ExprConstant && argument.Type == pgtype.UnknownOID && !argument.Null && !sqlrewrite.IsOID(argument.Text) {
			return sqlrewrite.Expr{}, b.at(b.session.noRelation(argument.Text), withoutRegclass(f.Args[0]).GetAConst().GetLocation())
		}
		call = func(e *evaluation) (int64, bool, error) {
			if argument.Kind == sqlrewrite.ExprParam && e.params[argument.Param-1].Type == answer.RegclassOID {
				// Bind has refused every other value.
				return 0, true, nil
			}
			v, err := e.value(&argument)
			if err != nil || v.Null() {
				return 0, true, err
			}
			return 0, false, e.session.noRelation(v.Text())
		}
	}
	b.sequences = append(b.sequences, call)
	return sqlrewrite.Expr{Kind: sqlrewrite.ExprCall, Call: len(b.sequences) - 1, Type: pgtype.Int8OID, Typmod: -1}, nil
}

// namesRelation reports whether PostgreSQL makes a regclass of a value of the type without being told.
func namesRelation(typ uint32) bool {
	switch typ {
	case pgtype.TextOID, pgtype.VarcharOID, pgtype.UnknownOID, pgtype.OIDOID, pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID, answer.RegclassOID:
		return true
	}
	return false
}

// withoutRegclass takes the casts to regclass off an argument.
func withoutRegclass(n *pg_query.Node) *pg_query.Node {
	for {
		c := n.GetTypeCast()
		if c == nil || lastName(c.TypeName.GetNames()) != "regclass" {
			return n
		}
		n = c.Arg
	}
}

// noRelation is the error of a text that means a relation to regclass.
func (s *session) noRelation(text string) error {
	if sqlrewrite.IsOID(text) {
		return errorf("XX000", "could not open relation with OID %s", text)
	}
	name, err := sqlrewrite.ParseQualifiedName(text)
	switch {
	case errors.Is(err, sqlrewrite.ErrTooManyParts):
		return errorf("42601", "improper relation name (too many dotted names): %s", text)
	case err != nil:
		return errorf("42602", "invalid name syntax")
	}
	if name.Database != "" && name.Database != s.database {
		return errorf("0A000", "cross-database references are not implemented: \"%s.%s.%s\"", name.Database, name.Schema, name.Name)
	}
	qualified := name.Name
	if name.Schema != "" {
		if !isSchema(name.Schema) {
			return errorf("3F000", "schema \"%s\" does not exist", name.Schema)
		}
		qualified = name.Schema + "." + name.Name
	}
	return errorf("42P01", "relation \"%s\" does not exist", qualified)
}

// at gives an error a position.
func (b *builder) at(err error, location int32) error {
	if e, ok := err.(*wire.Error); ok {
		e.Position = positionOf(b.text, location)
	}
	return err
}

// checkParams reads the parameters of a Bind. One that names a relation is looked up, as PostgreSQL does at Bind.
func (s *session) checkParams(params []answer.Param, portal string) error {
	readable := append([]answer.Param(nil), params...)
	for i := range readable {
		if readable[i].Type == answer.RegclassOID {
			readable[i] = answer.Param{Type: pgtype.TextOID}
		}
	}
	if err := answer.Check(readable, portal); err != nil {
		return err
	}
	for i, p := range params {
		if p.Type != answer.RegclassOID {
			continue
		}
		text, null, err := answer.Text(p)
		if err == nil && !null {
			err = s.noRelation(text)
		}
		if e, ok := err.(*wire.Error); ok {
			e.Where = fmt.Sprintf("unnamed portal parameter $%d = '...'", i+1)
			if portal != "" {
				e.Where = fmt.Sprintf("portal \"%s\" parameter $%d = '...'", portal, i+1)
			}
			return e
		}
	}
	return nil
}
