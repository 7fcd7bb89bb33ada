package standalone

import (
	"github.com/jackc/pgx/v5/pgtype"
	pg_query "github.com/pganalyze/pg_query_go/v5"

	"github.com/nextvald/nextvald/proxy/answer"
	"github.com/nextvald/nextvald/sqlrewrite"
)

// extensionTypes are types that clients look for when they connect, to learn whether an extension is there. None is.
var extensionTypes = map[string]bool{
	"hstore": true, "citext": true, "ltree": true, "cube": true, "vector": true, "geometry": true, "geography": true, "raster": true,
}

// typeColumns are the columns of pg_type that such a lookup reads.
var typeColumns = map[string]answer.Column{
	"oid":      {Type: pgtype.OIDOID, Size: 4, Typmod: -1},
	"typarray": {Type: pgtype.OIDOID, Size: 4, Typmod: -1},
	"typname":  {Type: pgtype.NameOID, Size: 64, Typmod: -1},
	"typdelim": {Type: pgtype.QCharOID, Size: 1, Typmod: -1},
	"text":     {Type: pgtype.TextOID, Size: -1, Typmod: -1}, // a cast to text
}

// typeLookup reads a SELECT that looks for a type by its name in pg_type, and reports whether it is one: drivers ask for
// the types of extensions so. Its answer has no rows.
func (b *builder) typeLookup(stmt *pg_query.SelectStmt) (*command, bool, error) {
	if len(stmt.FromClause) != 1 || !readsTypes(stmt.FromClause[0]) || stmt.WithClause != nil || len(stmt.GroupClause) > 0 ||
		stmt.Op != pg_query.SetOperation_SETOP_NONE {
		return nil, false, nil
	}
	name := lookedUp(stmt.WhereClause.GetAExpr())
	if name == nil {
		return nil, false, nil
	}
	c := &command{returnsRows: true, tag: "SELECT"}
	for _, n := range stmt.TargetList {
		t := n.GetResTarget()
		column, ok := typeColumns[typeColumn(t.GetVal())]
		if !ok {
			return nil, false, nil
		}
		column.Name = t.Name
		if column.Name == "" {
			column.Name, _ = columnName(t.Val)
		}
		c.columns = append(c.columns, column)
	}
	x, err := b.expression(name, nil)
	if err != nil {
		return nil, false, err
	}
	if err := b.settle(&x, pgtype.TextOID); err != nil {
		return nil, false, nil
	}
	c.rows = func(s *session, params []answer.Param) ([][]sqlrewrite.Expr, error) {
		e := evaluation{session: s, command: c, params: params}
		v, err := e.value(&x)
		if err == nil && !v.Null() && !extensionTypes[v.Text()] {
			err = unsupported("reading pg_type")
		}
		return nil, err
	}
	return c, true, nil
}

// readsTypes reports whether FROM is pg_type, alone or joined with pg_namespace.
func readsTypes(n *pg_query.Node) bool {
	if j := n.GetJoinExpr(); j != nil {
		return j.Rarg.GetRangeVar().GetRelname() == "pg_namespace" && readsTypes(j.Larg)
	}
	r := n.GetRangeVar()
	return r.GetRelname() == "pg_type" && (r.Schemaname == "" || r.Schemaname == "pg_catalog")
}

// lookedUp is the name in `typname = name` or `oid = to_regtype(name)`; nil when the condition is neither.
func lookedUp(e *pg_query.A_Expr) *pg_query.Node {
	if e.GetKind() != pg_query.A_Expr_Kind_AEXPR_OP || lastName(e.GetName()) != "=" {
		return nil
	}
	switch lastName(e.Lexpr.GetColumnRef().GetFields()) {
	case "typname":
		return e.Rexpr
	case "oid":
		if f := e.Rexpr.GetFuncCall(); f != nil && lastName(f.Funcname) == "to_regtype" && len(f.Args) == 1 {
			return f.Args[0]
		}
	}
	return nil
}

// typeColumn is the key in typeColumns of a target.
func typeColumn(n *pg_query.Node) string {
	if c := n.GetTypeCast(); c != nil {
		return lastName(c.TypeName.GetNames())
	}
	return lastName(n.GetColumnRef().GetFields())
}
