package standalone

import (
	"strconv"

	"github.com/jackc/pgx/v5/pgtype"
	pg_query "github.com/pganalyze/pg_query_go/v5"

	"github.com/nextvald/nextvald/proxy/answer"
	"github.com/nextvald/nextvald/sqlrewrite"
)

// maxParam is the largest number of parameters that Bind can carry.
const maxParam = 65535

// typeOIDs are the types that expressions can have, by their names in pg_type.
var typeOIDs = map[string]uint32{
	"bool": pgtype.BoolOID, "int2": pgtype.Int2OID, "int4": pgtype.Int4OID, "int8": pgtype.Int8OID, "oid": pgtype.OIDOID,
	"float8": pgtype.Float8OID, "numeric": pgtype.NumericOID, "text": pgtype.TextOID, "varchar": pgtype.VarcharOID,
	"bpchar": pgtype.BPCharOID, "name": pgtype.NameOID,
}

func itoa(n int) string { return strconv.Itoa(n) }

// expression reads an expression over the columns of sources.
func (b *builder) expression(n *pg_query.Node, sources []source) (sqlrewrite.Expr, error) {
	switch x := n.GetNode().(type) {
	case *pg_query.Node_AConst:
		return constant(x.AConst)
	case *pg_query.Node_ParamRef:
		return b.param(x.ParamRef)
	case *pg_query.Node_TypeCast:
		return b.cast(x.TypeCast, sources)
	case *pg_query.Node_ColumnRef:
		return b.column(x.ColumnRef, sources)
	case *pg_query.Node_FuncCall:
		return b.function(x.FuncCall, sources)
	case *pg_query.Node_SqlvalueFunction:
		return b.valueFunction(x.SqlvalueFunction)
	case *pg_query.Node_CoalesceExpr:
		return b.coalesce(x.CoalesceExpr.Args, sources)
	case *pg_query.Node_AExpr:
		return b.operator(x.AExpr, sources)
	case *pg_query.Node_SubLink:
		return b.subselect(x.SubLink)
	}
	return sqlrewrite.Expr{}, unsupported("an expression of this kind")
}

func constant(c *pg_query.A_Const) (sqlrewrite.Expr, error) {
	x := sqlrewrite.Expr{Kind: sqlrewrite.ExprConstant, Type: pgtype.UnknownOID, Typmod: -1}
	if c.Isnull {
		x.Null = true
		return x, nil
	}
	switch v := c.Val.(type) {
	case *pg_query.A_Const_Ival:
		x.Type, x.Text = pgtype.Int4OID, strconv.Itoa(int(v.Ival.GetIval()))
	case *pg_query.A_Const_Fval:
		x.Type, x.Text = pgtype.NumericOID, v.Fval.GetFval()
		if _, err := strconv.ParseInt(x.Text, 10, 64); err == nil {
			x.Type = pgtype.Int8OID
		}
	case *pg_query.A_Const_Sval:
		x.Text = v.Sval.GetSval()
	case *pg_query.A_Const_Boolval:
		x.Type, x.Text = pgtype.BoolOID, strconv.FormatBool(v.Boolval.GetBoolval())
	default:
		return x, unsupported("a bit string")
	}
	return x, nil
}

func (b *builder) param(p *pg_query.ParamRef) (sqlrewrite.Expr, error) {
	n := int(p.Number)
	if !b.extended || n < 1 || n > maxParam {
		return sqlrewrite.Expr{}, b.errorAt(p.Location, "42P02", "there is no parameter $%d", n)
	}
	for len(b.params) < n {
		b.params = append(b.params, param{})
	}
	return sqlrewrite.Expr{Kind: sqlrewrite.ExprParam, Param: n, Type: b.params[n-1].typ, Typmod: -1}, nil
}

// cast reads a cast. As in PostgreSQL a string constant is read as the type at once.
func (b *builder) cast(c *pg_query.TypeCast, sources []source) (sqlrewrite.Expr, error) {
	typ, typmod, err := typeOf(c.TypeName)
	if err != nil {
		return sqlrewrite.Expr{}, b.at(err, c.TypeName.GetLocation())
	}
	arg, err := b.expression(c.Arg, sources)
	if err != nil {
		return sqlrewrite.Expr{}, err
	}
	x := sqlrewrite.Expr{Kind: sqlrewrite.ExprCast, Type: typ, Typmod: typmod, Arg: &arg}
	switch arg.Kind {
	case sqlrewrite.ExprConstant:
		if arg.Type == pgtype.UnknownOID {
			if _, err := answer.Evaluate(&x, nil, nil, nil); err != nil {
				return x, b.at(err, c.Arg.GetAConst().GetLocation())
			}
		}
	case sqlrewrite.ExprParam:
		if p := &b.params[arg.Param-1]; p.typ == 0 {
			p.typ = typ
		}
	}
	from, _, ok := answer.TypeOf(&arg, b.types())
	switch {
	case !ok:
		return x, unsupported("an expression of this type")
	case !answer.Castable(from, typ):
		return x, b.errorAt(c.Location, "42846", "cannot cast type %s to %s", answer.TypeName(from), answer.TypeName(typ))
	}
	return x, nil
}

// typeOf reads the name of a type.
func typeOf(t *pg_query.TypeName) (typ uint32, typmod int32, err error) {
	var names []string
	for _, n := range t.GetNames() {
		names = append(names, n.GetString_().GetSval())
	}
	if len(names) == 2 && names[0] == "pg_catalog" {
		names = names[1:]
	}
	refused := unsupported("this type")
	if len(names) != 1 || len(t.ArrayBounds) > 0 || t.Setof || t.PctType {
		return 0, 0, refused
	}
	refused = unsupported("the type " + names[0])
	typ, ok := typeOIDs[names[0]]
	if !ok {
		return 0, 0, refused
	}
	if len(t.Typmods) == 0 {
		return typ, -1, nil
	}
	length := t.Typmods[0].GetAConst().GetIval().GetIval()
	switch {
	case typ == pgtype.NumericOID:
		return 0, 0, refused
	case typ != pgtype.VarcharOID && typ != pgtype.BPCharOID:
		return 0, 0, errorf("42601", "type modifier is not allowed for type \"%s\"", names[0])
	case len(t.Typmods) > 1 || t.Typmods[0].GetAConst() == nil:
		return 0, 0, refused
	case length < 1:
		name := names[0]
		if typ == pgtype.BPCharOID {
			name = "char"
		}
		return 0, 0, errorf("22023", "length for type %s must be at least 1", name)
	case length > 1<<15:
		return 0, 0, refused
	}
	const header = 4 // a typmod counts the length word of the stored value
	return typ, length + header, nil
}

// subselect reads a SELECT of one row as an expression.
func (b *builder) subselect(l *pg_query.SubLink) (sqlrewrite.Expr, error) {
	stmt := l.Subselect.GetSelectStmt()
	if l.SubLinkType != pg_query.SubLinkType_EXPR_SUBLINK || stmt == nil || len(stmt.ValuesLists) > 0 {
		return sqlrewrite.Expr{}, unsupported("a subquery of this form")
	}
	targets, err := b.row(stmt)
	switch {
	case err != nil:
		return sqlrewrite.Expr{}, err
	case len(targets) == 0:
		return sqlrewrite.Expr{}, b.errorAt(l.Location, "42601", "subquery must return a column")
	case len(targets) > 1:
		return sqlrewrite.Expr{}, b.errorAt(l.Location, "42601", "subquery must return only one column")
	}
	return targets[0].expr, nil
}

// columnName is the name that PostgreSQL gives a target without an alias. strong names survive a cast.
func columnName(n *pg_query.Node) (name string, strong bool) {
	switch x := n.GetNode().(type) {
	case *pg_query.Node_ColumnRef:
		return lastName(x.ColumnRef.Fields), true
	case *pg_query.Node_FuncCall:
		return lastName(x.FuncCall.Funcname), true
	case *pg_query.Node_SqlvalueFunction:
		return valueFunctionNames[x.SqlvalueFunction.Op], true
	case *pg_query.Node_CoalesceExpr:
		return "coalesce", true
	case *pg_query.Node_SubLink:
		if list := x.SubLink.Subselect.GetSelectStmt().GetTargetList(); len(list) > 0 {
			t := list[0].GetResTarget()
			if t.GetName() != "" {
				return t.GetName(), true
			}
			if name, strong := columnName(t.GetVal()); name != "?column?" {
				return name, strong
			}
		}
	case *pg_query.Node_TypeCast:
		if name, strong := columnName(x.TypeCast.Arg); strong {
			return name, true
		}
		return lastName(x.TypeCast.TypeName.GetNames()), false
	}
	return "?column?", false
}

func lastName(names []*pg_query.Node) string {
	if len(names) == 0 {
		return ""
	}
	return names[len(names)-1].GetString_().GetSval()
}

// firstLocation is where a list of expressions begins, as far as its first one tells.
func firstLocation(items []*pg_query.Node) int32 {
	if len(items) == 0 {
		return -1
	}
	switch x := items[0].Node.(type) {
	case *pg_query.Node_AConst:
		return x.AConst.Location
	case *pg_query.Node_ParamRef:
		return x.ParamRef.Location
	case *pg_query.Node_TypeCast:
		return x.TypeCast.Location
	case *pg_query.Node_FuncCall:
		return x.FuncCall.Location
	}
	return -1
}
