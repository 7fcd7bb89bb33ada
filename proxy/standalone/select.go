package standalone

import (
	"slices"

	"github.com/jackc/pgx/v5/pgtype"
	pg_query "github.com/pganalyze/pg_query_go/v5"

	"github.com/nextvald/nextvald/proxy/answer"
	"github.com/nextvald/nextvald/proxy/wire"
	"github.com/nextvald/nextvald/sqlrewrite"
)

// builder makes a command of a SELECT or VALUES. What stands in FROM may only be a source of exactly one row (a scalar
// function, a SELECT without FROM); references to its columns are replaced by the expressions of that row, so that what
// is evaluated has no FROM.
type builder struct {
	session  *session
	text     string
	extended bool

	params    []param
	bare      []bareParam
	functions []functionCall
	sequences []sequenceCall
}

// param is what is known of a parameter.
type param struct {
	typ  uint32 // 0 while nothing tells it
	used bool
}

// bareParam is a parameter without a type that stands as an output column.
type bareParam struct {
	number   int
	location int32
}

// source is one row in FROM.
type source struct {
	name    string
	columns []target
}

// target is an expression with the name that its column gets.
type target struct {
	name string
	expr sqlrewrite.Expr
}

func (b *builder) errorAt(location int32, code, format string, args ...any) error {
	e := errorf(code, format, args...)
	e.Position = positionOf(b.text, location)
	return e
}

func (b *builder) build(stmt *pg_query.SelectStmt, declared []uint32) (*command, []uint32, error) {
	for _, typ := range declared {
		if typ == pgtype.UnknownOID {
			typ = 0
		}
		b.params = append(b.params, param{typ: typ, used: typ != 0})
	}
	if c, ok, err := b.typeLookup(stmt); ok || err != nil {
		if err != nil {
			return nil, nil, err
		}
		params, err := b.paramTypes()
		return c, params, err
	}
	a := &sqlrewrite.Answer{Read: -1}
	var err error
	if len(stmt.ValuesLists) > 0 {
		err = b.values(a, stmt)
	} else {
		err = b.targets(a, stmt)
	}
	if err != nil {
		return nil, nil, err
	}
	params, err := b.paramTypes()
	if err != nil {
		return nil, nil, err
	}
	if len(a.Columns) > 1664 {
		return nil, nil, errorf("54011", "target lists can have at most 1664 entries")
	}
	columns, ok := answer.Columns(a, params)
	if !ok {
		return nil, nil, unsupported("an expression of this type")
	}
	if err := b.readConstants(a, columns, stmt.ValuesLists); err != nil {
		return nil, nil, err
	}
	c := &command{returnsRows: true, tag: "SELECT", columns: columns, constants: a.Rows, functions: b.functions, sequences: b.sequences}
	c.rows = func(*session, []answer.Param) ([][]sqlrewrite.Expr, error) { return a.Rows, nil }
	return c, params, nil
}

// paramTypes settles the types of all parameters.
func (b *builder) paramTypes() ([]uint32, error) {
	for _, bare := range b.bare {
		p := &b.params[bare.number-1]
		if p.typ != 0 && p.typ != pgtype.TextOID {
			e := errorf("42P08", "inconsistent types deduced for parameter $%d", bare.number)
			e.Detail = answer.TypeName(p.typ) + " versus text"
			e.Position = positionOf(b.text, bare.location)
			return nil, e
		}
		p.typ = pgtype.TextOID
	}
	var types []uint32
	for i, p := range b.params {
		if p.typ == 0 {
			return nil, errorf("42P18", "could not determine data type of parameter $%d", i+1)
		}
		types = append(types, p.typ)
	}
	return types, nil
}

// types are the types of the parameters so far.
func (b *builder) types() []uint32 {
	var types []uint32
	for _, p := range b.params {
		types = append(types, p.typ)
	}
	return types
}

// plain reports whether a SELECT has nothing but targets and FROM.
func plain(s *pg_query.SelectStmt) bool {
	return s.Op == pg_query.SetOperation_SETOP_NONE && len(s.DistinctClause) == 0 && s.IntoClause == nil &&
		s.WhereClause == nil && len(s.GroupClause) == 0 && s.HavingClause == nil && len(s.WindowClause) == 0 &&
		len(s.SortClause) == 0 && s.LimitOffset == nil && s.LimitCount == nil && len(s.LockingClause) == 0 && s.WithClause == nil
}

// targets reads a SELECT.
func (b *builder) targets(a *sqlrewrite.Answer, stmt *pg_query.SelectStmt) error {
	targets, err := b.row(stmt)
	if err != nil {
		return err
	}
	row := []sqlrewrite.Expr{}
	for i := range targets {
		a.Columns = append(a.Columns, targets[i].name)
		row = append(row, targets[i].expr)
	}
	a.Rows = [][]sqlrewrite.Expr{row}
	return nil
}

// row reads the one row of a SELECT.
func (b *builder) row(stmt *pg_query.SelectStmt) ([]target, error) {
	if stmt.WithClause != nil {
		return nil, unsupported("WITH")
	}
	sources, err := b.from(stmt.FromClause)
	if err != nil {
		return nil, err
	}
	if !plain(stmt) || len(stmt.ValuesLists) > 0 {
		return nil, unsupported("a SELECT of this form")
	}
	var targets []target
	for _, n := range stmt.TargetList {
		t := n.GetResTarget()
		if fields := t.GetVal().GetColumnRef().GetFields(); len(fields) > 0 && fields[len(fields)-1].GetAStar() != nil {
			all, err := b.star(sources, t.Val.GetColumnRef())
			if err != nil {
				return nil, err
			}
			targets = append(targets, all...)
			continue
		}
		x, err := b.expression(t.GetVal(), sources)
		if err != nil {
			return nil, err
		}
		if x.Kind == sqlrewrite.ExprParam && b.params[x.Param-1].typ == 0 {
			b.bare = append(b.bare, bareParam{x.Param, t.Location})
		}
		name := t.Name
		if name == "" {
			name, _ = columnName(t.Val)
		}
		targets = append(targets, target{name, x})
	}
	return targets, nil
}

// values reads VALUES lists.
func (b *builder) values(a *sqlrewrite.Answer, stmt *pg_query.SelectStmt) error {
	if !plain(stmt) {
		return unsupported("VALUES of this form")
	}
	width := len(stmt.ValuesLists[0].GetList().GetItems())
	for _, list := range stmt.ValuesLists {
		items := list.GetList().GetItems()
		if len(items) != width {
			return b.errorAt(firstLocation(items), "42601", "VALUES lists must all be the same length")
		}
		var row []sqlrewrite.Expr
		for _, n := range items {
			x, err := b.expression(n, nil)
			if err != nil {
				return err
			}
			row = append(row, x)
		}
		a.Rows = append(a.Rows, row)
	}
	for i := range width {
		a.Columns = append(a.Columns, "column"+itoa(i+1))
		b.settleColumn(a.Rows, i)
	}
	return nil
}

// readConstants reads the string constants of VALUES lists as the types of their columns.
func (b *builder) readConstants(a *sqlrewrite.Answer, columns []answer.Column, lists []*pg_query.Node) error {
	for n, list := range lists {
		for i, item := range list.GetList().GetItems() {
			if x := a.Rows[n][i]; x.Kind == sqlrewrite.ExprConstant && x.Type == pgtype.UnknownOID {
				cast := castTo(x, columns[i].Type)
				if _, err := answer.Evaluate(&cast, nil, nil, nil); err != nil {
					return b.at(err, item.GetAConst().GetLocation())
				}
			}
		}
	}
	return nil
}

// settleColumn gives the parameters without a type in a column of VALUES the type of the others.
func (b *builder) settleColumn(rows [][]sqlrewrite.Expr, i int) {
	typ := uint32(pgtype.UnknownOID)
	var open []int
	for _, row := range rows {
		x := &row[i]
		if x.Kind == sqlrewrite.ExprParam && b.params[x.Param-1].typ == 0 {
			open = append(open, x.Param)
			continue
		}
		t, _, ok := answer.TypeOf(x, b.types())
		if common, both := answer.CommonType(typ, t); ok && both {
			typ = common
		}
	}
	if typ == pgtype.UnknownOID {
		typ = pgtype.TextOID
	}
	for _, number := range open {
		b.params[number-1].typ = typ
	}
}

// from reads the sources of a FROM clause.
func (b *builder) from(clause []*pg_query.Node) ([]source, error) {
	var sources []source
	for _, n := range clause {
		var src source
		var err error
		switch item := n.Node.(type) {
		case *pg_query.Node_RangeSubselect:
			src, err = b.fromSelect(item.RangeSubselect)
		case *pg_query.Node_RangeFunction:
			src, err = b.fromFunction(item.RangeFunction)
		case *pg_query.Node_RangeVar:
			err = b.relation(item.RangeVar)
		case *pg_query.Node_JoinExpr:
			// The relations that are joined have better errors.
			if _, err = b.from([]*pg_query.Node{item.JoinExpr.Larg, item.JoinExpr.Rarg}); err == nil {
				err = unsupported("a join")
			}
		default:
			err = unsupported("a FROM clause of this form")
		}
		if err != nil {
			return nil, err
		}
		sources = append(sources, src)
	}
	return sources, nil
}

// relation is the error of a relation in FROM: there is none, but those of the catalogs exist in every PostgreSQL.
func (b *builder) relation(r *pg_query.RangeVar) error {
	name := r.Relname
	if r.Schemaname != "" {
		name = r.Schemaname + "." + name
	}
	if r.Schemaname == "information_schema" || r.Schemaname == "pg_catalog" || r.Schemaname == "" && len(r.Relname) > 3 && r.Relname[:3] == "pg_" {
		return unsupported("reading " + name)
	}
	e := errorf("42P01", "relation \"%s\" does not exist", name)
	e.Position = positionOf(b.text, r.Location)
	return e
}

func (b *builder) fromSelect(r *pg_query.RangeSubselect) (source, error) {
	stmt := r.Subquery.GetSelectStmt()
	if r.Lateral || stmt == nil || len(stmt.ValuesLists) > 0 {
		return source{}, unsupported("a FROM clause of this form")
	}
	columns, err := b.row(stmt)
	if err != nil {
		return source{}, err
	}
	for i := range columns {
		if b.settle(&columns[i].expr, pgtype.TextOID) != nil {
			return source{}, unsupported("a FROM clause of this form")
		}
	}
	return rename(source{columns: columns}, r.Alias)
}

// fromFunction reads a function in FROM; scalar functions give one row of one column.
func (b *builder) fromFunction(r *pg_query.RangeFunction) (source, error) {
	refused := unsupported("a FROM clause of this form")
	if r.Lateral || r.Ordinality || r.IsRowsfrom || len(r.Functions) != 1 || len(r.Coldeflist) > 0 {
		return source{}, refused
	}
	parts := r.Functions[0].GetList().GetItems()
	if len(parts) == 0 || parts[0].GetFuncCall() == nil {
		return source{}, refused
	}
	x, err := b.expression(parts[0], nil)
	if err != nil {
		return source{}, err
	}
	name, _ := columnName(parts[0])
	src := source{name: name, columns: []target{{name, x}}}
	if r.Alias != nil {
		src.columns[0].name = r.Alias.Aliasname
	}
	return rename(src, r.Alias)
}

// rename applies an alias with its column names.
func rename(src source, alias *pg_query.Alias) (source, error) {
	if alias == nil {
		return src, nil
	}
	src.name = alias.Aliasname
	if n := len(alias.Colnames); n > len(src.columns) {
		return src, errorf("42P10", "table \"%s\" has %d columns available but %d columns specified", src.name, len(src.columns), n)
	}
	for i, n := range alias.Colnames {
		src.columns[i].name = n.GetString_().GetSval()
	}
	return src, nil
}

// star expands * and name.*.
func (b *builder) star(sources []source, ref *pg_query.ColumnRef) ([]target, error) {
	if len(sources) == 0 {
		return nil, b.errorAt(ref.Location, "42601", "SELECT * with no tables specified is not valid")
	}
	var targets []target
	if len(ref.Fields) == 1 {
		for _, src := range sources {
			targets = append(targets, src.columns...)
		}
		return targets, nil
	}
	name := ref.Fields[0].GetString_().GetSval()
	i := slices.IndexFunc(sources, func(src source) bool { return src.name == name })
	if i < 0 || len(ref.Fields) > 2 {
		return nil, b.errorAt(ref.Location, "42P01", "missing FROM-clause entry for table \"%s\"", name)
	}
	return sources[i].columns, nil
}

// column finds the expression that a column reference means.
func (b *builder) column(ref *pg_query.ColumnRef, sources []source) (sqlrewrite.Expr, error) {
	var names []string
	for _, f := range ref.Fields {
		names = append(names, f.GetString_().GetSval())
	}
	if len(names) > 2 {
		return sqlrewrite.Expr{}, unsupported("a column reference of this form")
	}
	name := names[len(names)-1]
	var found []sqlrewrite.Expr
	known := false
	for _, src := range sources {
		if len(names) == 2 && src.name != names[0] {
			continue
		}
		known = true
		for _, c := range src.columns {
			if c.name == name {
				found = append(found, c.expr)
			}
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return sqlrewrite.Expr{}, b.errorAt(ref.Location, "42702", "column reference \"%s\" is ambiguous", name)
	case len(names) == 2 && !known:
		return sqlrewrite.Expr{}, b.errorAt(ref.Location, "42P01", "missing FROM-clause entry for table \"%s\"", names[0])
	case len(names) == 2:
		return sqlrewrite.Expr{}, b.errorAt(ref.Location, "42703", "column %s.%s does not exist", names[0], name)
	}
	return sqlrewrite.Expr{}, b.errorAt(ref.Location, "42703", "column \"%s\" does not exist", name)
}

// settle gives a parameter without a type one.
func (b *builder) settle(x *sqlrewrite.Expr, typ uint32) error {
	if x.Kind == sqlrewrite.ExprParam && b.params[x.Param-1].typ == 0 {
		b.params[x.Param-1].typ = typ
	}
	if t, _, ok := answer.TypeOf(x, b.types()); !ok || !answer.Castable(t, typ) && t != typ {
		return &wire.Error{Code: "42846", Message: "cannot cast type " + answer.TypeName(t) + " to " + answer.TypeName(typ)}
	}
	return nil
}
