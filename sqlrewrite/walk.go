package sqlrewrite

import (
	"slices"

	pg_query "github.com/pganalyze/pg_query_go/v5"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// How often PostgreSQL evaluates a call follows from where it stands:
//
//   - What a query without FROM, or over one row at most, computes is evaluated once. So is what an aggregate query
//     without GROUP BY computes from its aggregates; their arguments are evaluated once for each row.
//   - An uncorrelated subquery of an expression runs once for its statement, whatever the rows around it, as does a CTE
//     and a function in FROM. A subquery or VALUES in FROM beside other relations runs once where the planner keeps its
//     result, which it does but for tables that it takes for tiny; it is counted as once, as SQL has it.
//   - Everything else is once for each row.
//
// A set-returning function that somebody defined makes rows of a target list, and no text tells it from another.

// context is what the place of an expression says about the calls in it.
type context struct {
	evaluation Evaluation
	// input is the evaluation of the arguments of an aggregate.
	input Evaluation
	place Place
	// prepared: by PREPARE. What it reads is read when it is executed.
	prepared bool
	// rows: exactly once for each row of the statement's own query.
	rows bool
}

// later is the context of what the statement only defines.
var later = context{evaluation: Later, input: Later}

// perRow is c once for each row of what the statement reads.
func (c context) perRow() context {
	e := max(c.evaluation, PerRow)
	return context{evaluation: e, input: e, prepared: c.prepared}
}

// whole is the context of a query that stands where c does.
func (c context) whole() context {
	return context{evaluation: c.evaluation, input: c.evaluation, prepared: c.prepared}
}

// reads reports whether what stands here is read when the statement runs, or when what it prepares does.
func (c context) reads() bool { return c.evaluation != Later || c.prepared }

// runnable walks a statement that EXPLAIN takes: a query, or one that runs one.
func (p *planner) runnable(node *pg_query.Node) {
	switch n := node.Node.(type) {
	case *pg_query.Node_CreateTableAsStmt:
		s := n.CreateTableAsStmt
		if !p.st.Explain {
			p.creates(s.Into.GetRel())
		}
		if s.Objtype == pg_query.ObjectType_OBJECT_MATVIEW {
			p.query(s.Query, later) // REFRESH runs it again
			for i := range p.st.Calls {
				p.st.Calls[i].Default = true
			}
			return
		}
		p.runnable(s.Query)
	case *pg_query.Node_DeclareCursorStmt:
		p.st.Cursor = true
		p.query(n.DeclareCursorStmt.Query, context{})
	case *pg_query.Node_ExecuteStmt:
		p.st.Explain = false // the arguments are evaluated even so
		p.execute(n.ExecuteStmt)
		for _, a := range n.ExecuteStmt.Params {
			p.expr(a, context{})
		}
	default:
		p.query(node, context{})
	}
}

// query walks a statement that can stand inside others: SELECT, INSERT, UPDATE, DELETE, MERGE.
func (p *planner) query(node *pg_query.Node, c context) {
	if node == nil {
		return
	}
	defer p.leave(len(p.scope))
	switch n := node.Node.(type) {
	case *pg_query.Node_SelectStmt:
		p.selectStmt(n.SelectStmt, c)
	case *pg_query.Node_InsertStmt:
		p.insertStmt(n.InsertStmt, c)
	case *pg_query.Node_UpdateStmt:
		s := n.UpdateStmt
		p.with(s.WithClause, c)
		p.from(s.FromClause, c)
		p.expr(s.WhereClause, c.perRow())
		p.each(s.TargetList, c.perRow(), false)
		p.each(s.ReturningList, c.perRow(), true)
	case *pg_query.Node_DeleteStmt:
		s := n.DeleteStmt
		p.with(s.WithClause, c)
		p.from(s.UsingClause, c)
		p.expr(s.WhereClause, c.perRow())
		p.each(s.ReturningList, c.perRow(), true)
	case *pg_query.Node_MergeStmt:
		p.mergeStmt(n.MergeStmt, c)
	default:
		p.expr(node, later)
	}
}

// with walks the CTEs of a statement and brings their names into scope, until leave.
func (p *planner) with(w *pg_query.WithClause, c context) {
	if w == nil {
		return
	}
	if w.Recursive {
		for _, node := range w.Ctes {
			p.scope = append(p.scope, node.GetCommonTableExpr().GetCtename())
		}
	}
	for _, node := range w.Ctes {
		cte := node.GetCommonTableExpr()
		if s := cte.Ctequery.GetSelectStmt(); w.Recursive && s.GetRarg() != nil {
			p.recursive(s, c)
		} else {
			p.query(cte.Ctequery, c.whole())
		}
		if !w.Recursive {
			p.scope = append(p.scope, cte.Ctename)
		}
	}
}

// recursive walks a CTE whose second half runs once for each round.
func (p *planner) recursive(s *pg_query.SelectStmt, c context) {
	defer p.leave(len(p.scope))
	p.with(s.WithClause, c)
	p.selectStmt(s.Larg, c.whole())
	p.selectStmt(s.Rarg, c.perRow())
	p.each(s.SortClause, c.perRow(), false)
	p.expr(s.LimitOffset, c)
	p.expr(s.LimitCount, c)
}

// leave forgets the CTEs that came into scope since it held n names.
func (p *planner) leave(n int) { p.scope = p.scope[:n] }

func (p *planner) selectStmt(s *pg_query.SelectStmt, c context) {
	if s == nil {
		return
	}
	defer p.leave(len(p.scope))
	c = c.whole()
	p.with(s.WithClause, c)
	if s.Op != pg_query.SetOperation_SETOP_NONE {
		p.selectStmt(s.Larg, c)
		p.selectStmt(s.Rarg, c)
		p.each(s.SortClause, c.perRow(), false)
		p.expr(s.LimitOffset, c)
		p.expr(s.LimitCount, c)
		return
	}
	input, output := rows(s, c)
	for _, values := range s.ValuesLists {
		p.each(values.GetList().GetItems(), output, false)
	}
	p.from(s.FromClause, c)
	p.keys(s)
	p.expr(s.WhereClause, input)
	p.each(s.GroupClause, input, false)
	p.expr(s.HavingClause, output)
	p.each(s.WindowClause, output, false)
	p.each(s.DistinctClause, output, false)
	targets := output
	targets.rows = s == p.own
	p.each(s.TargetList, targets, true)
	p.each(s.SortClause, output, false)
	p.expr(s.LimitOffset, c)
	p.expr(s.LimitCount, c)
}

// rows are the contexts of what a SELECT computes from the rows it reads, and of what it computes for the rows it
// returns.
func rows(s *pg_query.SelectStmt, c context) (input, output context) {
	input, output = c, c
	if !fromOneRow(s.FromClause) {
		input, output = c.perRow(), c.perRow()
	}
	if aggregated(s) {
		output.evaluation = c.evaluation
	}
	if makesRows(s) {
		output.evaluation = c.perRow().evaluation
	}
	return input, output
}

// makesRows reports whether a SELECT returns more rows than it reads: by a set-returning function in its targets or in
// what sorts or groups them, or by grouping sets. A single row of VALUES in an INSERT may hold such a function too.
func makesRows(s *pg_query.SelectStmt) bool {
	clauses := [][]*pg_query.Node{s.TargetList, s.DistinctClause, s.GroupClause, s.WindowClause, s.SortClause}
	if len(s.ValuesLists) == 1 {
		clauses = append(clauses, s.ValuesLists)
	}
	return slices.ContainsFunc(s.GroupClause, func(n *pg_query.Node) bool { return n.GetGroupingSet() != nil }) ||
		slices.ContainsFunc(clauses, func(nodes []*pg_query.Node) bool {
			return slices.ContainsFunc(nodes, func(n *pg_query.Node) bool { return returnsSet(n.ProtoReflect()) })
		})
}

// oneRow reports whether a SELECT returns one row at most.
func oneRow(s *pg_query.SelectStmt) bool {
	if s.Op != pg_query.SetOperation_SETOP_NONE || len(s.ValuesLists) > 1 {
		return false
	}
	_, output := rows(s, context{})
	return output.evaluation == Once
}

// fromOneRow reports whether FROM items give one row at most.
func fromOneRow(items []*pg_query.Node) bool {
	for _, item := range items {
		switch f := item.Node.(type) {
		case *pg_query.Node_RangeSubselect:
			if s := f.RangeSubselect.Subquery.GetSelectStmt(); s == nil || !oneRow(s) {
				return false
			}
		case *pg_query.Node_RangeFunction:
			for _, fn := range f.RangeFunction.Functions {
				call := fn.GetList().GetItems()[0].GetFuncCall()
				if call == nil {
					return false
				}
				if _, ok := sequenceFunction(call); !ok {
					return false
				}
			}
		default:
			return false
		}
	}
	return true
}

// insertStmt walks an INSERT.
func (p *planner) insertStmt(s *pg_query.InsertStmt, c context) {
	p.with(s.WithClause, c)
	p.query(s.SelectStmt, c.whole())
	p.each(s.Cols, c.perRow(), false) // subscripts
	row := c.whole()
	if sub := s.SelectStmt.GetSelectStmt(); sub != nil && !oneRow(sub) {
		row = c.perRow()
	}
	if oc := s.OnConflictClause; oc != nil {
		p.each(oc.TargetList, row, false)
		p.expr(oc.WhereClause, row)
	}
	p.each(s.ReturningList, row, true)
}

// mergeStmt walks a MERGE. Of one source row it inserts one row at most, but may update many.
func (p *planner) mergeStmt(s *pg_query.MergeStmt, c context) {
	p.with(s.WithClause, c)
	source := []*pg_query.Node{s.SourceRelation}
	p.from(source, c)
	p.expr(s.JoinCondition, c.perRow())
	for _, node := range s.MergeWhenClauses {
		row := c.perRow()
		if when := node.GetMergeWhenClause(); !when.GetMatched() && fromOneRow(source) {
			row = c.whole()
		}
		p.expr(node, row)
	}
}

// from walks FROM items. What they produce is asked for once for each time that their query runs.
func (p *planner) from(items []*pg_query.Node, c context) {
	for _, item := range items {
		if item == nil {
			continue
		}
		switch n := item.Node.(type) {
		case *pg_query.Node_RangeVar:
			p.read(n.RangeVar, c)
		case *pg_query.Node_JoinExpr:
			p.from([]*pg_query.Node{n.JoinExpr.Larg, n.JoinExpr.Rarg}, c)
			p.expr(n.JoinExpr.Quals, c.perRow())
		case *pg_query.Node_RangeSubselect:
			if n.RangeSubselect.Lateral {
				p.query(n.RangeSubselect.Subquery, c.perRow())
			} else {
				p.query(n.RangeSubselect.Subquery, c.whole())
			}
		case *pg_query.Node_RangeFunction:
			p.functions(n.RangeFunction, c)
		default:
			p.expr(item, c.perRow())
		}
	}
}

// read notes a relation that may be a sequence, or tells of sequences. What a definition reads is read later: it is none of
// ours to replace.
func (p *planner) read(rv *pg_query.RangeVar, c context) {
	first := p.tokenAt(int(rv.Location))
	if !c.reads() || first >= len(p.tokens) || rv.Schemaname == "" && slices.Contains(p.scope, rv.Relname) {
		return
	}
	last := first
	for p.token(last+1) == pg_query.Token_ASCII_46 { // .
		last += 2
	}
	switch {
	case p.token(last+1) == pg_query.Token_ASCII_42: // *
		last++
	case !rv.Inh:
		for first > 0 && p.token(first) != pg_query.Token_ONLY {
			first--
		}
		if p.token(first+1) == pg_query.Token_ASCII_40 { // (
			last++
		}
	}
	table := p.token(first-1) == pg_query.Token_TABLE
	if table {
		first--
	}
	name, start, end := nameOf(rv), int(p.tokens[first].Start), int(p.tokens[last].End)
	if kind, ok := catalogRelation(name); ok {
		p.st.Catalogs = append(p.st.Catalogs, Catalog{
			Kind: kind, Start: start, End: end, Bare: rv.Schemaname == "", Alias: rv.Alias != nil, Table: table,
		})
		return
	}
	p.st.Reads = append(p.st.Reads, Read{
		Name: name, Start: start, End: end, Alias: rv.Alias != nil, Table: table, Prepared: c.prepared,
	})
}

// functions walks the functions of a FROM item. They may refer to the items before it.
func (p *planner) functions(f *pg_query.RangeFunction, c context) {
	for _, fn := range f.Functions {
		node := fn.GetList().GetItems()[0]
		inner := c.whole()
		if hasColumns(node.ProtoReflect()) {
			inner = c.perRow()
		}
		inner.place = PlaceFrom
		catalog := true
		switch {
		case f.Alias != nil && len(f.Functions) == 1:
		case f.Ordinality || f.IsRowsfrom:
			// The name that the function gives its column cannot be kept by an edit in its place.
			inner.evaluation = inner.perRow().evaluation
			catalog = false // nor a subquery stand in its place
		default:
			inner.place = PlaceFromBare
		}
		if call := node.GetFuncCall(); call == nil {
			p.column(node, inner) // a CAST, say: what is in it names the column
		} else if !p.call(call, inner) && !(catalog && p.catalogCall(call, inner)) {
			for _, a := range call.Args {
				p.expr(a, inner)
			}
		}
	}
}

// each walks a list; targets says that its ResTargets name output columns.
func (p *planner) each(nodes []*pg_query.Node, c context, targets bool) {
	for _, n := range nodes {
		if t := n.GetResTarget(); t != nil && targets && t.Name == "" {
			p.column(t.Val, c)
			continue
		}
		p.expr(n, c)
	}
}

// column walks an output column without a name of its own: the expression gives it one.
func (p *planner) column(n *pg_query.Node, c context) {
	if n == nil {
		return
	}
	switch e := n.Node.(type) {
	case *pg_query.Node_FuncCall:
		named := c
		named.place = PlaceColumn
		if p.call(e.FuncCall, named) || p.catalogCall(e.FuncCall, named) || c.evaluation != Later && p.classCall(e.FuncCall, true) {
			return
		}
	case *pg_query.Node_TypeCast:
		if c.evaluation != Later && p.classCast(e.TypeCast) {
			return
		}
		p.column(e.TypeCast.Arg, c)
		return
	case *pg_query.Node_CollateClause:
		p.column(e.CollateClause.Arg, c)
		return
	case *pg_query.Node_CaseExpr:
		c.rows = false
		p.expr(e.CaseExpr.Arg, c)
		p.each(e.CaseExpr.Args, c, false)
		p.column(e.CaseExpr.Defresult, c)
		return
	}
	p.expr(n, c)
}

func (p *planner) expr(n *pg_query.Node, c context) {
	if n != nil {
		p.walk(n.ProtoReflect(), c)
	}
}

// walk looks for calls in an expression, or in a definition that holds some.
func (p *planner) walk(m protoreflect.Message, c context) {
	c.place = PlaceExpression
	c.rows = c.rows && everyRow(m)
	switch n := m.Interface().(type) {
	case *pg_query.FuncCall:
		if p.call(n, c) || p.catalogCall(n, c) || c.evaluation != Later && p.classCall(n, false) {
			return
		}
		if isAggregate(n) {
			c.evaluation = c.input
		}
	case *pg_query.TypeCast:
		if c.evaluation != Later && p.classCast(n) {
			return
		}
	case *pg_query.A_Indirection:
		if p.catalogField(n, c) {
			return
		}
	case *pg_query.SubLink:
		p.expr(n.Testexpr, c)
		p.query(n.Subselect, sublink(n, c))
		return
	case *pg_query.SelectStmt:
		p.selectStmt(n, c)
		return
	case *pg_query.MultiAssignRef:
		if n.Colno > 1 {
			return // SET (a, b) = source: each column refers to the same source
		}
	}
	children(m, func(child protoreflect.Message) { p.walk(child, c) })
}

// sublink is the context of a subquery in an expression: once for its statement when nothing in it can depend on a row
// around it.
func sublink(s *pg_query.SubLink, c context) context {
	if c.evaluation != PerRow {
		return c.whole()
	}
	switch s.SubLinkType {
	case pg_query.SubLinkType_EXPR_SUBLINK, pg_query.SubLinkType_EXISTS_SUBLINK, pg_query.SubLinkType_ARRAY_SUBLINK:
		if !hasColumns(s.Subselect.ProtoReflect()) {
			return context{prepared: c.prepared}
		}
	}
	return c.perRow()
}

func hasColumns(m protoreflect.Message) (found bool) {
	if _, ok := m.Interface().(*pg_query.ColumnRef); ok {
		return true
	}
	children(m, func(c protoreflect.Message) { found = found || hasColumns(c) })
	return found
}

// aggregated reports whether a SELECT makes one row of all that it reads.
func aggregated(s *pg_query.SelectStmt) bool {
	if len(s.GroupClause) > 0 {
		return false
	}
	return s.HavingClause != nil || slices.ContainsFunc(s.TargetList, func(t *pg_query.Node) bool {
		return ownFunction(t.ProtoReflect(), isAggregate)
	})
}

// returnsSet reports whether an expression makes rows by itself.
func returnsSet(m protoreflect.Message) bool {
	return ownFunction(m, func(n *pg_query.FuncCall) bool { return setReturning[functionName(n)] })
}

// ownFunction reports whether an expression holds such a call outside its subqueries.
func ownFunction(m protoreflect.Message, is func(*pg_query.FuncCall) bool) (found bool) {
	switch n := m.Interface().(type) {
	case *pg_query.SubLink:
		return false
	case *pg_query.FuncCall:
		if is(n) {
			return true
		}
	}
	children(m, func(c protoreflect.Message) { found = found || ownFunction(c, is) })
	return found
}

// functionName is the name of a function of pg_catalog; empty for one that is written with another schema.
func functionName(n *pg_query.FuncCall) string {
	switch names := n.Funcname; {
	case len(names) == 1, len(names) == 2 && names[0].GetString_().GetSval() == "pg_catalog":
		return names[len(names)-1].GetString_().GetSval()
	}
	return ""
}

// isAggregate reports whether a call is certainly that of an aggregate.
func isAggregate(n *pg_query.FuncCall) bool {
	return n.Over == nil && (n.AggStar || n.AggFilter != nil || n.AggDistinct || len(n.AggOrder) > 0 ||
		len(n.Args) == 1 && aggregates[functionName(n)])
}

// aggregates of pg_catalog with one argument.
var aggregates = map[string]bool{
	"array_agg": true, "avg": true, "bit_and": true, "bit_or": true, "bit_xor": true, "bool_and": true, "bool_or": true,
	"count": true, "every": true, "json_agg": true, "jsonb_agg": true, "max": true, "min": true, "range_agg": true,
	"range_intersect_agg": true, "stddev": true, "stddev_pop": true, "stddev_samp": true, "sum": true, "var_pop": true,
	"var_samp": true, "variance": true, "xmlagg": true,
}

// setReturning are functions of pg_catalog that turn a target list into many rows.
var setReturning = map[string]bool{
	"generate_series": true, "generate_subscripts": true, "unnest": true, "regexp_matches": true,
	"regexp_split_to_table": true, "string_to_table": true, "json_array_elements": true, "json_array_elements_text": true,
	"json_each": true, "json_each_text": true, "json_object_keys": true, "json_populate_recordset": true,
	"json_to_recordset": true, "jsonb_array_elements": true, "jsonb_array_elements_text": true, "jsonb_each": true,
	"jsonb_each_text": true, "jsonb_object_keys": true, "jsonb_path_query": true, "jsonb_populate_recordset": true,
	"jsonb_path_query_tz": true, "jsonb_to_recordset": true, "aclexplode": true, "pg_ls_dir": true,
	"pg_options_to_table": true, "pg_partition_ancestors": true, "pg_partition_tree": true, "pg_snapshot_xip": true,
	"pg_tablespace_databases": true, "ts_debug": true, "ts_parse": true, "ts_stat": true, "ts_token_type": true,
	"txid_snapshot_xip": true,
}
