package sqlrewrite

import (
	"slices"
	"strings"

	pg_query "github.com/pganalyze/pg_query_go/v5"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// context is what the place of an expression says about the calls in it.
type context struct {
	evaluation Evaluation
	place      Place
}

// setReturning are functions of pg_catalog that turn a target list into many rows.
var setReturning = map[string]bool{
	"generate_series": true, "generate_subscripts": true, "unnest": true, "regexp_matches": true,
	"regexp_split_to_table": true, "string_to_table": true, "json_array_elements": true, "json_array_elements_text": true,
	"json_each": true, "json_each_text": true, "json_object_keys": true, "json_populate_recordset": true,
	"json_to_recordset": true, "jsonb_array_elements": true, "jsonb_array_elements_text": true, "jsonb_each": true,
	"jsonb_each_text": true, "jsonb_object_keys": true, "jsonb_path_query": true, "jsonb_populate_recordset": true,
	"jsonb_to_recordset": true, "pg_ls_dir": true, "ts_stat": true,
}

// query walks a statement that can stand inside others: SELECT, INSERT, UPDATE, DELETE, MERGE.
func (p *planner) query(node *pg_query.Node, c context) {
	if node == nil {
		return
	}
	switch n := node.Node.(type) {
	case *pg_query.Node_SelectStmt:
		p.selectStmt(n.SelectStmt, c)
	case *pg_query.Node_InsertStmt:
		p.insertStmt(n.InsertStmt, c)
	case *pg_query.Node_UpdateStmt:
		s := n.UpdateStmt
		p.with(s.WithClause, c)
		p.from(s.FromClause, c)
		p.each(s.TargetList, perRow(c), false)
		p.expr(s.WhereClause, perRow(c))
		p.each(s.ReturningList, perRow(c), true)
	case *pg_query.Node_DeleteStmt:
		s := n.DeleteStmt
		p.with(s.WithClause, c)
		p.from(s.UsingClause, c)
		p.expr(s.WhereClause, perRow(c))
		p.each(s.ReturningList, perRow(c), true)
	case *pg_query.Node_MergeStmt:
		p.with(n.MergeStmt.WithClause, c)
		p.from([]*pg_query.Node{n.MergeStmt.SourceRelation}, c)
		p.expr(n.MergeStmt.JoinCondition, perRow(c))
		p.each(n.MergeStmt.MergeWhenClauses, perRow(c), false)
	default:
		p.expr(node, context{evaluation: Later})
	}
}

// perRow is c once for each row of what the statement reads.
func perRow(c context) context {
	return context{evaluation: max(c.evaluation, PerRow)}
}

func (p *planner) with(w *pg_query.WithClause, c context) {
	if w == nil {
		return
	}
	for _, node := range w.Ctes {
		cte := node.GetCommonTableExpr()
		if s := cte.Ctequery.GetSelectStmt(); w.Recursive && s != nil && s.Rarg != nil {
			p.with(s.WithClause, c)
			p.selectStmt(s.Larg, c)
			p.selectStmt(s.Rarg, perRow(c))
			continue
		}
		p.query(cte.Ctequery, c)
	}
}

func (p *planner) selectStmt(s *pg_query.SelectStmt, c context) {
	if s == nil {
		return
	}
	p.with(s.WithClause, c)
	if s.Op != pg_query.SetOperation_SETOP_NONE {
		p.selectStmt(s.Larg, c)
		p.selectStmt(s.Rarg, c)
		p.each(s.SortClause, perRow(c), false)
		p.expr(s.LimitOffset, c)
		p.expr(s.LimitCount, c)
		return
	}
	row := c
	row.place = PlaceExpression
	if !oneRow(s) {
		row = perRow(c)
	}
	for _, values := range s.ValuesLists {
		for _, v := range values.GetList().GetItems() {
			p.expr(v, context{evaluation: c.evaluation})
		}
	}
	p.each(s.DistinctClause, row, false)
	p.each(s.TargetList, row, true)
	p.from(s.FromClause, c)
	p.expr(s.WhereClause, row)
	p.each(s.GroupClause, row, false)
	p.expr(s.HavingClause, row)
	p.each(s.WindowClause, row, false)
	p.each(s.SortClause, row, false)
	p.expr(s.LimitOffset, c)
	p.expr(s.LimitCount, c)
}

// oneRow reports whether a SELECT evaluates its targets at most once.
func oneRow(s *pg_query.SelectStmt) bool {
	if s.Op != pg_query.SetOperation_SETOP_NONE || len(s.ValuesLists) > 1 {
		return false
	}
	for _, f := range s.FromClause {
		switch f := f.Node.(type) {
		case *pg_query.Node_RangeSubselect:
			sub := f.RangeSubselect.Subquery.GetSelectStmt()
			if sub == nil || !oneRow(sub) {
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
	for _, t := range s.TargetList {
		if returnsSet(t.ProtoReflect()) {
			return false
		}
	}
	return true
}

// returnsSet reports whether an expression calls a set-returning function at its own level.
func returnsSet(m protoreflect.Message) (found bool) {
	switch n := m.Interface().(type) {
	case *pg_query.SubLink:
		return false
	case *pg_query.FuncCall:
		if len(n.Funcname) > 0 && setReturning[n.Funcname[len(n.Funcname)-1].GetString_().GetSval()] {
			return true
		}
	}
	children(m, func(c protoreflect.Message) { found = found || returnsSet(c) })
	return found
}

func (p *planner) insertStmt(s *pg_query.InsertStmt, c context) {
	p.with(s.WithClause, c)
	single := true // the statement inserts at most one row
	if sub := s.SelectStmt.GetSelectStmt(); sub != nil {
		single = oneRow(sub)
	}
	p.query(s.SelectStmt, c)
	row := context{evaluation: c.evaluation}
	if !single {
		row = perRow(c)
	}
	if oc := s.OnConflictClause; oc != nil {
		p.each(oc.TargetList, row, false)
		p.expr(oc.WhereClause, row)
	}
	p.each(s.ReturningList, row, true)
}

// from walks FROM items. What they produce is asked for once for each time that their query runs.
func (p *planner) from(items []*pg_query.Node, c context) {
	for _, item := range items {
		if item == nil {
			continue
		}
		switch n := item.Node.(type) {
		case *pg_query.Node_RangeVar:
			p.read(n.RangeVar)
		case *pg_query.Node_JoinExpr:
			p.from([]*pg_query.Node{n.JoinExpr.Larg, n.JoinExpr.Rarg}, c)
			p.expr(n.JoinExpr.Quals, perRow(c))
		case *pg_query.Node_RangeSubselect:
			inner := context{evaluation: c.evaluation}
			if n.RangeSubselect.Lateral {
				inner = perRow(c)
			}
			p.query(n.RangeSubselect.Subquery, inner)
		case *pg_query.Node_RangeFunction:
			f := n.RangeFunction
			for _, fn := range f.Functions {
				inner := context{evaluation: c.evaluation, place: PlaceFrom}
				if f.Alias == nil && len(f.Functions) == 1 && !f.IsRowsfrom && !f.Ordinality {
					inner.place = PlaceFromBare
				}
				function := fn.GetList().GetItems()[0]
				if call := function.GetFuncCall(); call == nil || !p.call(call, inner) {
					p.expr(function, context{evaluation: c.evaluation})
				}
			}
		default:
			p.expr(item, perRow(c))
		}
	}
}

// read notes a relation that may be a sequence.
func (p *planner) read(rv *pg_query.RangeVar) {
	if !rv.Inh || rv.Schemaname == "" && p.ctes[rv.Relname] {
		return
	}
	i := p.tokenAt(int(rv.Location))
	if i >= len(p.tokens) {
		return
	}
	end := i
	for end+2 < len(p.tokens) && p.tokens[end+1].Token == pg_query.Token_ASCII_46 {
		end += 2
	}
	last := int(p.tokens[end].End)
	if end+1 < len(p.tokens) && p.tokens[end+1].Token == pg_query.Token_ASCII_42 && rv.Alias == nil {
		last = int(p.tokens[end+1].End)
	}
	p.st.Reads = append(p.st.Reads, Read{
		Name:  Name{Database: rv.Catalogname, Schema: rv.Schemaname, Name: rv.Relname},
		Start: int(rv.Location), End: last, Alias: rv.Alias != nil,
	})
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
		if p.call(e.FuncCall, named) {
			return
		}
	case *pg_query.Node_TypeCast:
		p.column(e.TypeCast.Arg, c)
		return
	case *pg_query.Node_CollateClause:
		p.column(e.CollateClause.Arg, c)
		return
	case *pg_query.Node_CaseExpr:
		p.expr(e.CaseExpr.Arg, c)
		p.each(e.CaseExpr.Args, c, false)
		p.column(e.CaseExpr.Defresult, c)
		return
	}
	p.expr(n, c)
}

func (p *planner) expr(n *pg_query.Node, c context) {
	if n != nil {
		c.place = PlaceExpression
		p.walk(n.ProtoReflect(), c)
	}
}

// walk looks for calls in an expression.
func (p *planner) walk(m protoreflect.Message, c context) {
	switch n := m.Interface().(type) {
	case *pg_query.FuncCall:
		if p.call(n, c) {
			return
		}
	case *pg_query.SubLink:
		if n.Testexpr != nil {
			p.expr(n.Testexpr, c)
		}
		p.query(n.Subselect, p.sublink(n, c))
		return
	case *pg_query.SelectStmt:
		p.selectStmt(n, c)
		return
	}
	children(m, func(child protoreflect.Message) { p.walk(child, context{evaluation: c.evaluation}) })
}

// sublink is the context of a subquery in an expression: once for its statement when nothing in it can depend on a row
// around it.
func (p *planner) sublink(s *pg_query.SubLink, c context) context {
	if c.evaluation != PerRow {
		return context{evaluation: c.evaluation}
	}
	switch s.SubLinkType {
	case pg_query.SubLinkType_EXPR_SUBLINK, pg_query.SubLinkType_EXISTS_SUBLINK, pg_query.SubLinkType_ARRAY_SUBLINK:
		if !hasColumns(s.Subselect.ProtoReflect()) {
			return context{}
		}
	}
	return context{evaluation: PerRow}
}

func hasColumns(m protoreflect.Message) (found bool) {
	if _, ok := m.Interface().(*pg_query.ColumnRef); ok {
		return true
	}
	children(m, func(c protoreflect.Message) { found = found || hasColumns(c) })
	return found
}

// sequenceFunction recognises a call of one of the four that PostgreSQL would resolve to its own.
func sequenceFunction(n *pg_query.FuncCall) (Function, bool) {
	if len(n.Funcname) == 0 || len(n.Funcname) > 2 || len(n.AggOrder) > 0 || n.AggFilter != nil || n.Over != nil ||
		n.AggDistinct || n.AggStar || n.FuncVariadic || n.AggWithinGroup {
		return 0, false
	}
	if len(n.Funcname) == 2 && n.Funcname[0].GetString_().GetSval() != "pg_catalog" {
		return 0, false
	}
	f, ok := functionOf(n.Funcname[len(n.Funcname)-1].GetString_().GetSval())
	if !ok {
		return 0, false
	}
	for _, a := range n.Args {
		if a.GetNamedArgExpr() != nil {
			return 0, false
		}
	}
	switch args := len(n.Args); f {
	case Lastval:
		return f, args == 0
	case Setval:
		return f, args == 2 || args == 3
	default:
		return f, args == 1
	}
}

// call notes a call of a sequence function; false when it is none.
func (p *planner) call(n *pg_query.FuncCall, c context) bool {
	f, ok := sequenceFunction(n)
	if !ok {
		return false
	}
	start, end, args := p.extent(int(n.Location))
	for k, i := range p.dropped[n.Location] {
		if i-k >= len(args) {
			return false
		}
		args = slices.Delete(args, i-k, i-k+1)
	}
	if len(args) != len(n.Args) {
		return false
	}
	call := Call{Function: f, Start: start, End: end, Evaluation: c.evaluation, Place: c.place}
	for i, a := range n.Args {
		p.expr(a, context{evaluation: c.evaluation})
		arg := p.argument(a, i)
		arg.Start, arg.End = args[i][0], args[i][1]
		switch i {
		case 0:
			call.Name = arg
		case 1:
			call.Value = arg
		case 2:
			call.IsCalled = arg
		}
	}
	if f == Setval && len(n.Args) == 2 {
		call.IsCalled = Argument{Kind: Constant, Value: "t", Type: oidBool}
	}
	p.st.Calls = append(p.st.Calls, call)
	return true
}

// extent finds the text of a call whose name begins at an offset, and of its arguments.
func (p *planner) extent(location int) (start, end int, args [][2]int) {
	i := p.tokenAt(location)
	for i < len(p.tokens) && p.tokens[i].Token != pg_query.Token_ASCII_40 {
		i++
	}
	depth := 0
	for first := i + 1; i < len(p.tokens); i++ {
		switch p.tokens[i].Token {
		case pg_query.Token_ASCII_40, pg_query.Token_ASCII_91:
			depth++
		case pg_query.Token_ASCII_44:
			if depth == 1 {
				args = append(args, [2]int{int(p.tokens[first].Start), int(p.tokens[i-1].End)})
				first = i + 1
			}
		case pg_query.Token_ASCII_41, pg_query.Token_ASCII_93:
			if depth--; depth == 0 {
				if first < i {
					args = append(args, [2]int{int(p.tokens[first].Start), int(p.tokens[i-1].End)})
				}
				return location, int(p.tokens[i].End), args
			}
		}
	}
	return location, location, nil
}

// argument reads argument i of a call: a constant, a parameter, or casts of one that do not change what it means.
func (p *planner) argument(n *pg_query.Node, i int) Argument {
	a := Argument{}
	for {
		cast := n.GetTypeCast()
		if cast == nil {
			break
		}
		oid, _, ok := typeOID(cast.TypeName)
		if !ok || !castable(oid, i) {
			return a
		}
		if inner := cast.Arg.GetTypeCast(); inner == nil {
			a.Type = oid
		}
		n = cast.Arg
	}
	if ref := n.GetParamRef(); ref != nil && ref.Number > 0 {
		a.Kind, a.Param, a.Sole = Parameter, int(ref.Number), p.uses[ref.Number] == 1
		return a
	}
	c := n.GetAConst()
	if c == nil {
		return Argument{}
	}
	value, oid, null := constant(c)
	if oid == 0 {
		return Argument{}
	}
	if a.Type == 0 {
		a.Type = oid
	}
	if !null && a.Type == oid && !constantFits(oid, i) {
		return Argument{}
	}
	a.Kind, a.Value, a.Null = Constant, value, null
	return a
}

// castable reports whether a cast to the type leaves argument i what the function takes.
func castable(oid uint32, i int) bool {
	switch i {
	case 0:
		return oid == oidRegclass || oid == oidText || oid == oidVarchar || oid == oidUnknown || oid == oidOID
	case 1:
		return oid == oidInt2 || oid == oidInt4 || oid == oidInt8
	default:
		return oid == oidBool
	}
}

// constantFits reports whether PostgreSQL takes an uncast constant of the type for argument i.
func constantFits(oid uint32, i int) bool {
	switch oid {
	case oidUnknown:
		return true
	case oidInt4, oidInt8:
		return i < 2
	case oidBool:
		return i == 2
	}
	return false
}

// constant reads a constant: its text, and its type, 0 for one that is not supported.
func constant(c *pg_query.A_Const) (value string, oid uint32, null bool) {
	if c.Isnull {
		return "", oidUnknown, true
	}
	switch v := c.Val.(type) {
	case *pg_query.A_Const_Ival:
		return itoa(int64(v.Ival.Ival)), oidInt4, false
	case *pg_query.A_Const_Fval:
		s := v.Fval.Fval
		if _, err := atoi(s); err == nil {
			return s, oidInt8, false
		}
		return s, oidNumeric, false
	case *pg_query.A_Const_Boolval:
		if v.Boolval.Boolval {
			return "t", oidBool, false
		}
		return "f", oidBool, false
	case *pg_query.A_Const_Sval:
		return v.Sval.Sval, oidUnknown, false
	}
	return "", 0, false
}

// OIDs of pg_type.
const (
	oidBool     = 16
	oidName     = 19
	oidInt8     = 20
	oidInt2     = 21
	oidInt4     = 23
	oidText     = 25
	oidOID      = 26
	oidFloat8   = 701
	oidUnknown  = 705
	oidBpchar   = 1042
	oidVarchar  = 1043
	oidNumeric  = 1700
	oidRegclass = 2205
	oidVoid     = 2278
)

var typeOIDs = map[string]uint32{
	"bool": oidBool, "name": oidName, "int8": oidInt8, "int2": oidInt2, "int4": oidInt4, "text": oidText, "oid": oidOID,
	"float8": oidFloat8, "unknown": oidUnknown, "bpchar": oidBpchar, "varchar": oidVarchar, "numeric": oidNumeric,
	"regclass": oidRegclass,
}

// typeOID finds the type of a cast among those that are known here.
func typeOID(t *pg_query.TypeName) (oid uint32, typmod int32, ok bool) {
	if t == nil || t.Setof || t.PctType || len(t.ArrayBounds) > 0 || len(t.Names) == 0 || len(t.Names) > 2 {
		return 0, 0, false
	}
	if len(t.Names) == 2 && t.Names[0].GetString_().GetSval() != "pg_catalog" {
		return 0, 0, false
	}
	oid, ok = typeOIDs[strings.ToLower(t.Names[len(t.Names)-1].GetString_().GetSval())]
	if !ok {
		return 0, 0, false
	}
	var mods []int32
	for _, m := range t.Typmods {
		c := m.GetAConst().GetIval()
		if c == nil {
			return 0, 0, false
		}
		mods = append(mods, c.Ival)
	}
	switch {
	case len(mods) == 0:
		return oid, -1, true
	case len(mods) == 1 && (oid == oidVarchar || oid == oidBpchar) && mods[0] > 0:
		return oid, mods[0] + 4, true
	case oid == oidNumeric && len(mods) == 1 && mods[0] > 0:
		return oid, mods[0]<<16 + 4, true
	case oid == oidNumeric && len(mods) == 2 && mods[0] > 0 && mods[1] >= 0:
		return oid, (mods[0]<<16 | mods[1]) + 4, true
	}
	return 0, 0, false
}
