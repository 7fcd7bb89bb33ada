package sqlrewrite

import (
	"slices"
	"strconv"
	"strings"

	pg_query "github.com/pganalyze/pg_query_go/v5"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Rows is what a statement's own query reads, where its targets hold calls that are evaluated once for each of its rows: a
// SELECT with FROM, or that of an INSERT, COPY, cursor or CREATE TABLE AS. PostgreSQL evaluates the targets in the order
// in which the rows are returned, after it has sorted them. So the value of such a call (Call.Rows) follows from
// row_number() OVER (Window), and Count tells how many values are needed.
type Rows struct {
	// Window is an ORDER BY, or empty where the query does not sort, or sorts by the values themselves.
	Window string
	// Repeated are the names of the functions in what Count and Window repeat: that is right where none is volatile.
	Repeated []string
	// Functions, Attributes and Operators are the names of what the targets compute. A function that returns a set repeats
	// a row behind its number, and an aggregate makes one row of all. Attributes are written as a column of a relation
	// or an expression, which may mean a function too.
	Functions, Attributes, Operators []string
	// Series are the two or three arguments of generate_series, where FROM is nothing else and there is no WHERE: constants
	// and parameters.
	Series []Argument

	text   string
	with   [2]int // the WITH before the query; empty where there is none
	from   [2]int // FROM and WHERE
	order  [][2]int
	params []rowsParam
}

// rowsParam is a parameter in WITH, FROM or WHERE.
type rowsParam struct{ number, start, end int }

// Touches reports whether Count or Order repeats something of a byte range of Plan.Text.
func (r *Rows) Touches(start, end int) bool {
	touches := func(part [2]int) bool { return start < part[1] && part[0] < end }
	return touches(r.with) || touches(r.from) || slices.ContainsFunc(r.order, touches)
}

// Count is a query that counts the rows: of one row and column. params are the numbers of the client's parameters in it,
// which it has as $1 and so on. Positions lead to Plan.Text.
func (r *Rows) Count() (query string, params []int, positions Positions) {
	edits := []Edit{
		{0, r.with[0], ""},
		{r.with[1], r.from[0], " SELECT pg_catalog.count(*) FROM (SELECT "},
		{r.from[1], len(r.text), ") AS counted"},
	}
	for _, p := range r.params {
		i := slices.Index(params, p.number)
		if i < 0 {
			i, params = len(params), append(params, p.number)
		}
		edits = append(edits, Edit{p.start, p.end, "$" + strconv.Itoa(i+1)})
	}
	query, positions = Apply(r.text, edits)
	return query, params, positions
}

// RowEdits put an expression of type int8 in the place of a call that is evaluated once for each row.
func (c *Call) RowEdits(value string) []Edit {
	edits := []Edit{{c.Start, c.End, "(" + value + ")"}}
	if c.Place == PlaceColumn {
		edits = append(edits, Edit{c.nameAt, c.nameAt, ` AS "` + functionNames[c.Function] + `"`}) // in quotes, since a word may follow at once
	}
	return edits
}

// ownQuery is the SELECT whose rows a statement returns or inserts; nil where there is none. before is the WITH of the
// statement around it, and conflict the place of ON CONFLICT behind it, or -1.
func ownQuery(node *pg_query.Node) (query *pg_query.SelectStmt, before *pg_query.WithClause, conflict int) {
	if node == nil {
		return nil, nil, -1
	}
	switch n := node.Node.(type) {
	case *pg_query.Node_SelectStmt:
		return n.SelectStmt, nil, -1
	case *pg_query.Node_InsertStmt:
		conflict = -1
		if c := n.InsertStmt.OnConflictClause; c != nil {
			conflict = int(c.Location)
		}
		return n.InsertStmt.SelectStmt.GetSelectStmt(), n.InsertStmt.WithClause, conflict
	case *pg_query.Node_CreateTableAsStmt:
		if n.CreateTableAsStmt.Objtype != pg_query.ObjectType_OBJECT_MATVIEW {
			return ownQuery(n.CreateTableAsStmt.Query)
		}
	case *pg_query.Node_DeclareCursorStmt:
		return ownQuery(n.DeclareCursorStmt.Query)
	case *pg_query.Node_ExplainStmt:
		return ownQuery(n.ExplainStmt.Query)
	case *pg_query.Node_CopyStmt:
		return ownQuery(n.CopyStmt.Query)
	}
	return nil, nil, -1
}

// numbered reports whether the rows of a query can be numbered in the order in which it evaluates its targets, each once.
func numbered(s *pg_query.SelectStmt) bool {
	return s.Op == pg_query.SetOperation_SETOP_NONE && len(s.FromClause) > 0 && len(s.DistinctClause) == 0 &&
		len(s.GroupClause) == 0 && s.HavingClause == nil && len(s.WindowClause) == 0 && s.LimitOffset == nil &&
		s.LimitCount == nil && len(s.LockingClause) == 0 && !makesRows(s) && !aggregated(s)
}

// everyRow reports whether what is inside a part of a target is evaluated whenever the target is, and once.
func everyRow(m protoreflect.Message) bool {
	switch n := m.Interface().(type) {
	case *pg_query.Node, *pg_query.ResTarget, *pg_query.TypeCast, *pg_query.CollateClause, *pg_query.A_ArrayExpr, *pg_query.RowExpr,
		*pg_query.NullTest, *pg_query.NamedArgExpr:
		return true
	case *pg_query.FuncCall:
		return n.Over == nil && !isAggregate(n)
	case *pg_query.A_Expr:
		return n.Kind == pg_query.A_Expr_Kind_AEXPR_OP
	}
	return false
}

// rows describes the rows of the statement's own query where calls are to be numbered by them. Where that cannot be told
// from the text those calls are left as any that is evaluated once for each row.
func (p *planner) rows(node *pg_query.Node) {
	called := slices.ContainsFunc(p.st.Calls, func(c Call) bool { return c.Rows })
	if !called {
		return
	}
	s, before, conflict := ownQuery(node)
	r := &Rows{text: p.text}
	if !p.locateRows(r, s, before, conflict) {
		for i := range p.st.Calls {
			p.st.Calls[i].Rows = false
		}
		return
	}
	r.Repeated = functionsIn(r.Repeated, before.ProtoReflect())
	r.Repeated = functionsIn(r.Repeated, s.WithClause.ProtoReflect())
	for _, nodes := range [][]*pg_query.Node{s.FromClause, {s.WhereClause}, s.SortClause} {
		for _, n := range nodes {
			r.Repeated = functionsIn(r.Repeated, n.ProtoReflect())
		}
	}
	for _, t := range s.TargetList {
		r.computed(t.ProtoReflect())
	}
	r.Series = p.series(s)
	p.st.Rows = r
}

// part is a piece of a text that commas part, in tokens.
type part struct{ first, end int }

// locateRows finds the texts of the parts of a query, and where its targets and what it sorts by lie.
func (p *planner) locateRows(r *Rows, s *pg_query.SelectStmt, before *pg_query.WithClause, conflict int) bool {
	if before != nil && s.WithClause != nil || len(s.TargetList) == 0 {
		return false
	}
	with := before
	if with == nil {
		with = s.WithClause
	}
	if !again(with.ProtoReflect()) || !again(s.ProtoReflect()) {
		return false
	}
	if with != nil {
		first := p.tokenAt(int(with.Location))
		end := p.skip(first, func(i int) bool {
			return i > first && (p.token(i) == pg_query.Token_SELECT || p.token(i) == pg_query.Token_INSERT)
		})
		r.with = p.span(part{first, end})
	}
	targets, end := p.parts(p.tokenAt(int(s.TargetList[0].GetResTarget().GetLocation())), func(i int) bool {
		return p.token(i) == pg_query.Token_FROM && p.token(i-1) != pg_query.Token_DISTINCT || p.token(i) == pg_query.Token_INTO
	})
	if len(targets) != len(s.TargetList) {
		return false
	}
	for i := range p.st.Calls {
		for _, t := range targets {
			if c, at := &p.st.Calls[i], p.span(t); c.Rows && at[0] <= c.Start && c.End <= at[1] {
				c.nameAt = at[1]
			}
		}
	}
	from := p.skip(end, func(i int) bool { return p.token(i) == pg_query.Token_FROM })
	over := func(i int) bool {
		switch p.token(i) {
		case pg_query.Token_ORDER, pg_query.Token_RETURNING:
			return true
		case pg_query.Token_WITH: // of CREATE TABLE AS; else it belongs to a type or to ORDINALITY
			return p.token(i+1) == pg_query.Token_DATA_P || p.token(i+1) == pg_query.Token_NO
		}
		return conflict >= 0 && int(p.tokens[i].Start) == conflict
	}
	to := p.skip(from, over)
	r.from = p.span(part{from, to})
	if !p.paramsIn(r, r.with) || !p.paramsIn(r, r.from) {
		return false
	}
	if len(s.SortClause) > 0 {
		if p.token(to) != pg_query.Token_ORDER || p.token(to+1) != pg_query.Token_BY {
			return false
		}
		items, _ := p.parts(to+2, over)
		if len(items) != len(s.SortClause) {
			return false
		}
		if !p.orderRows(r, s, targets, items) {
			return false
		}
	}
	// Other windows leave the rows in an order of their own, in which they are returned where nothing sorts them.
	if r.Window == "" && slices.ContainsFunc(s.TargetList, func(t *pg_query.Node) bool {
		return ownFunction(t.ProtoReflect(), func(n *pg_query.FuncCall) bool { return n.Over != nil })
	}) {
		return false
	}
	return p.sameRows(r, s, with)
}

// skip is the index of the first token from i on, outside of parentheses, for which is holds, or which ends the query.
func (p *planner) skip(i int, is func(i int) bool) int {
	depth := 0
	for ; i < len(p.tokens) && int(p.tokens[i].Start) < p.st.End; i++ {
		switch p.tokens[i].Token {
		case pg_query.Token_ASCII_40, pg_query.Token_ASCII_91: // ( [
			depth++
		case pg_query.Token_ASCII_41, pg_query.Token_ASCII_93: // ) ]
			if depth--; depth < 0 {
				return i
			}
		default:
			// Behind a dot or AS any keyword is a name.
			if before := p.token(i - 1); depth == 0 && before != pg_query.Token_ASCII_46 && before != pg_query.Token_AS && is(i) {
				return i
			}
		}
	}
	return i
}

// parts are the parts of a list that begins with token i, and its end.
func (p *planner) parts(i int, is func(i int) bool) (list []part, end int) {
	for {
		end = p.skip(i, func(i int) bool { return p.token(i) == pg_query.Token_ASCII_44 || is(i) }) // ,
		if end == i {
			return nil, end
		}
		list = append(list, part{i, end})
		if p.token(end) != pg_query.Token_ASCII_44 {
			return list, end
		}
		i = end + 1
	}
}

// span is the byte range of some tokens.
func (p *planner) span(t part) [2]int {
	if t.first >= t.end {
		return [2]int{}
	}
	return [2]int{int(p.tokens[t.first].Start), int(p.tokens[t.end-1].End)}
}

// orderRows writes what rows are sorted by as OVER (ORDER BY ...) takes it: there a name is always a column of FROM, and a
// number is a constant, while an ORDER BY looks among the columns of the result first.
func (p *planner) orderRows(r *Rows, s *pg_query.SelectStmt, targets, items []part) bool {
	var list []string
	sortsBy := make(map[int]bool) // calls that it sorts by
	for i, node := range s.SortClause {
		item := p.span(items[i])
		text := p.text[item[0]:item[1]]
		expr := node.GetSortBy().GetNode()
		target, ok := targetOf(expr, s.TargetList)
		switch {
		case !ok:
			return false
		case target >= 0:
			at := p.span(targets[target])
			val := p.expression(s.TargetList[target].GetResTarget(), targets[target])
			if val[1] == 0 {
				return false
			}
			for k := range p.st.Calls {
				if c := &p.st.Calls[k]; at[0] <= c.Start && c.End <= at[1] {
					sortsBy[k] = true
				}
			}
			r.Repeated = functionsIn(r.Repeated, s.TargetList[target].ProtoReflect())
			r.order = append(r.order, val)
			first := p.tokens[items[i].first]
			text = "(" + p.text[val[0]:val[1]] + ")" + p.text[first.End:item[1]]
		default:
			r.order = append(r.order, item)
		}
		list = append(list, text)
	}
	for k := range p.st.Calls {
		c := &p.st.Calls[k]
		switch {
		case !c.Rows || len(sortsBy) == 0:
		case !sortsBy[k]:
			return false // drawn after the sort, and the others before it
		}
	}
	if len(sortsBy) > 0 {
		r.order, r.Repeated = nil, nil // the values are drawn as the rows come, which are sorted then
		return true
	}
	r.Window = "ORDER BY " + strings.Join(list, ", ")
	return true
}

// targetOf is the target that an ORDER BY means by a name or a number, or -1 for an expression over the columns of FROM; ok
// is false where the text does not tell.
func targetOf(sort *pg_query.Node, targets []*pg_query.Node) (index int, ok bool) {
	if c := sort.GetAConst(); c != nil {
		i := int(c.GetIval().GetIval()) - 1
		if c.GetIval() == nil || i < 0 || i >= len(targets) || slices.ContainsFunc(targets[:i+1], isStar) {
			return -1, false
		}
		return i, true
	}
	fields := sort.GetColumnRef().GetFields()
	if len(fields) != 1 {
		return -1, true
	}
	name := fields[0].GetString_().GetSval()
	index = -1
	for i, node := range targets {
		t := node.GetResTarget()
		called := t.GetName()
		if called == "" && !isStar(node) {
			if !nameTold(t.GetVal()) {
				return -1, false
			}
			called, _ = columnName(t.GetVal())
		}
		if called != name {
			continue
		}
		if index >= 0 {
			return -1, false
		}
		index = i
	}
	return index, true
}

func isStar(target *pg_query.Node) bool {
	fields := target.GetResTarget().GetVal().GetColumnRef().GetFields()
	return len(fields) > 0 && fields[len(fields)-1].GetAStar() != nil
}

// nameTold reports whether columnName tells what an expression is called.
func nameTold(n *pg_query.Node) bool {
	switch e := n.GetNode().(type) {
	case *pg_query.Node_FuncCall, *pg_query.Node_ColumnRef, *pg_query.Node_CoalesceExpr, *pg_query.Node_AConst, *pg_query.Node_ParamRef:
		return true
	case *pg_query.Node_AExpr:
		return e.AExpr.Kind == pg_query.A_Expr_Kind_AEXPR_OP
	case *pg_query.Node_TypeCast:
		return nameTold(e.TypeCast.Arg)
	case *pg_query.Node_CollateClause:
		return nameTold(e.CollateClause.Arg)
	}
	return false
}

// expression is the byte range of a target without its name; nothing where the name cannot be told from it.
func (p *planner) expression(t *pg_query.ResTarget, at part) [2]int {
	if t.GetName() != "" {
		if p.token(at.end-1) == pg_query.Token_SCONST { // UESCAPE
			return [2]int{}
		}
		if at.end--; p.token(at.end-1) == pg_query.Token_AS {
			at.end--
		}
	}
	return p.span(at)
}

// paramsIn notes the parameters in a byte range.
func (p *planner) paramsIn(r *Rows, span [2]int) bool {
	for i := p.tokenAt(span[0]); i < len(p.tokens) && int(p.tokens[i].End) <= span[1]; i++ {
		t := p.tokens[i]
		if t.Token != pg_query.Token_PARAM {
			continue
		}
		n, err := strconv.Atoi(p.text[t.Start+1 : t.End])
		if err != nil {
			return false
		}
		r.params = append(r.params, rowsParam{n, int(t.Start), int(t.End)})
	}
	return true
}

// sameRows reports whether the texts that were found are those of the query's WITH, FROM and WHERE.
func (p *planner) sameRows(r *Rows, s *pg_query.SelectStmt, with *pg_query.WithClause) bool {
	tree, err := parseTree(p.text[r.with[0]:r.with[1]] + " SELECT " + p.text[r.from[0]:r.from[1]])
	if err != nil || len(tree.Stmts) != 1 || tree.Stmts[0].Stmt.GetSelectStmt() == nil {
		return false
	}
	found := tree.Stmts[0].Stmt.GetSelectStmt()
	want := proto.Clone(&pg_query.SelectStmt{
		FromClause: s.FromClause, WhereClause: s.WhereClause, WithClause: with, LimitOption: s.LimitOption, Op: s.Op,
	})
	unplace(found.ProtoReflect())
	unplace(want.ProtoReflect())
	return proto.Equal(found, want)
}

// unplace takes the places in the text out of a tree.
func unplace(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		if fd := fields.Get(i); fd.Kind() == protoreflect.Int32Kind && strings.HasSuffix(string(fd.Name()), "location") {
			m.Clear(fd)
		}
	}
	children(m, unplace)
}

// functionsIn adds the names of the functions that a part calls.
func functionsIn(names []string, m protoreflect.Message) []string {
	if n, ok := m.Interface().(*pg_query.FuncCall); ok {
		names = addName(names, n.Funcname)
	}
	children(m, func(c protoreflect.Message) { names = functionsIn(names, c) })
	return names
}

// computed adds the names of what a target computes, outside of its subqueries.
func (r *Rows) computed(m protoreflect.Message) {
	switch n := m.Interface().(type) {
	case *pg_query.FuncCall:
		if _, ok := sequenceFunction(n); !ok && n.Over == nil {
			r.Functions = addName(r.Functions, n.Funcname)
		}
	case *pg_query.ColumnRef:
		if len(n.Fields) > 1 {
			r.Attributes = addName(r.Attributes, n.Fields)
		}
	case *pg_query.A_Indirection:
		for i := range n.Indirection {
			r.Attributes = addName(r.Attributes, n.Indirection[:i+1])
		}
	case *pg_query.A_Expr:
		r.Operators = addName(r.Operators, n.Name)
	case *pg_query.SubLink:
		return
	}
	children(m, r.computed)
}

// addName adds the last part of a name.
func addName(names []string, parts []*pg_query.Node) []string {
	if len(parts) == 0 {
		return names
	}
	name := parts[len(parts)-1].GetString_().GetSval()
	if name == "" || slices.Contains(names, name) {
		return names
	}
	return append(names, name)
}

// again reports whether reading rows a second time gives the same ones: nothing is modified or picked at random.
func again(m protoreflect.Message) bool {
	switch m.Interface().(type) {
	case *pg_query.InsertStmt, *pg_query.UpdateStmt, *pg_query.DeleteStmt, *pg_query.MergeStmt, *pg_query.RangeTableSample:
		return false
	}
	same := true
	children(m, func(c protoreflect.Message) { same = same && again(c) })
	return same
}

// series are the arguments of generate_series that tell how many rows there are.
func (p *planner) series(s *pg_query.SelectStmt) (list []Argument) {
	if len(s.FromClause) != 1 || s.WhereClause != nil || s.FromClause[0].GetRangeFunction() == nil {
		return nil
	}
	call := soleFunction(s.FromClause[0].GetRangeFunction()).GetFuncCall()
	if call == nil || functionName(call) != "generate_series" || len(call.Args) < 2 || len(call.Args) > 3 || call.FuncVariadic {
		return nil
	}
	for _, n := range call.Args {
		a := p.argument(n, 1)
		if a.Kind == Opaque || a.Kind == Constant && a.Type != oidInt4 && a.Type != oidInt8 {
			return nil
		}
		list = append(list, a)
	}
	return list
}
