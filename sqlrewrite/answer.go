package sqlrewrite

import (
	"slices"
	"strconv"

	pg_query "github.com/pganalyze/pg_query_go/v5"
)

func itoa(v int64) string          { return strconv.FormatInt(v, 10) }
func atoi(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) }

// answer describes the result of a statement that needs no upstream; nil when the statement is not of that shape.
func (p *planner) answer(node *pg_query.Node, params int) *Answer {
	s := plainSelect(node)
	if s == nil || len(p.st.Catalogs) > 0 {
		return nil
	}
	a := &Answer{Read: -1, Params: make([]uint32, params)}
	for _, i := range p.void {
		if i <= params {
			a.Params[i-1] = oidVoid
		}
	}
	b := answerBuilder{planner: p, answer: a}
	ok := true
	switch {
	case len(s.ValuesLists) > 0:
		ok = b.values(s.ValuesLists)
	case len(s.FromClause) == 0:
		ok = b.targets(s.TargetList)
	case len(s.FromClause) == 1:
		switch from := s.FromClause[0].Node.(type) {
		case *pg_query.Node_RangeFunction:
			ok = b.function(from.RangeFunction, s.TargetList)
		case *pg_query.Node_RangeVar:
			ok = b.relation(from.RangeVar, s.TargetList)
		default:
			ok = false
		}
	default:
		ok = false
	}
	if !ok || len(b.used) != len(p.st.Calls) || (a.Read < 0) != (len(p.st.Reads) == 0) {
		return nil
	}
	for i := range p.st.Calls {
		c := &p.st.Calls[i]
		if c.Evaluation != Once || c.Function != Lastval && c.Name.Kind == Opaque ||
			c.Function == Setval && (c.IsCalled.Kind == Opaque || c.Value.Kind == Opaque && !b.used[b.inside(i)]) {
			return nil
		}
		if !b.arguments(c) {
			return nil
		}
	}
	if slices.Contains(a.Params, 0) {
		return nil
	}
	return a
}

// plainSelect is a SELECT of nothing but targets and FROM, or VALUES; nil for any other statement.
func plainSelect(node *pg_query.Node) *pg_query.SelectStmt {
	s := node.GetSelectStmt()
	if s == nil || s.Op != pg_query.SetOperation_SETOP_NONE || s.IntoClause != nil || len(s.DistinctClause) > 0 ||
		s.WhereClause != nil || len(s.GroupClause) > 0 || s.HavingClause != nil || len(s.WindowClause) > 0 ||
		len(s.SortClause) > 0 || s.LimitOffset != nil || s.LimitCount != nil || len(s.LockingClause) > 0 || s.WithClause != nil {
		return nil
	}
	return s
}

// answerBuilder gathers the parts of an Answer.
type answerBuilder struct {
	planner *planner
	answer  *Answer
	used    map[int]bool // calls that are part of it
	columns []string     // names of the columns that FROM offers
	exprs   []Expr
	table   []string // what they may be qualified with, whole or its last part
}

func (b *answerBuilder) use(i int) {
	if b.used == nil {
		b.used = make(map[int]bool)
	}
	b.used[i] = true
}

// inside is the index of the call that is the whole value argument of setval call i; -1 when there is none.
func (b *answerBuilder) inside(i int) int {
	value := b.planner.st.Calls[i].Value
	for j := range i {
		if c := &b.planner.st.Calls[j]; c.Start == value.Start && c.End == value.End {
			return j
		}
	}
	return -1
}

func (b *answerBuilder) values(lists []*pg_query.Node) bool {
	for _, l := range lists {
		var row []Expr
		for _, item := range l.GetList().GetItems() {
			e, ok := b.expr(item)
			if !ok {
				return false
			}
			row = append(row, e)
		}
		if len(b.answer.Rows) > 0 && len(row) != len(b.answer.Rows[0]) {
			return false
		}
		b.answer.Rows = append(b.answer.Rows, row)
	}
	for i := range b.answer.Rows[0] {
		b.answer.Columns = append(b.answer.Columns, "column"+strconv.Itoa(i+1))
	}
	return true
}

// targets adds the one row of a SELECT.
func (b *answerBuilder) targets(list []*pg_query.Node) bool {
	var row []Expr
	for _, n := range list {
		t := n.GetResTarget()
		if t == nil {
			return false
		}
		if b.star(t.Val) {
			row = append(row, b.exprs...)
			b.answer.Columns = append(b.answer.Columns, b.columns...)
			continue
		}
		e, ok := b.expr(t.Val)
		if !ok {
			return false
		}
		name := t.Name
		if name == "" {
			name, _ = columnName(t.Val)
			if name == "" {
				name = "?column?"
			}
		}
		row = append(row, e)
		b.answer.Columns = append(b.answer.Columns, name)
	}
	b.answer.Rows = [][]Expr{row}
	return true
}

// star reports whether a target is * or table.* of what FROM offers.
func (b *answerBuilder) star(n *pg_query.Node) bool {
	fields := n.GetColumnRef().GetFields()
	if len(fields) == 0 || fields[len(fields)-1].GetAStar() == nil || len(b.columns) == 0 {
		return false
	}
	return b.ofTable(fields[:len(fields)-1])
}

// ofTable reports whether what qualifies a column is nothing, or names the table.
func (b *answerBuilder) ofTable(qualifiers []*pg_query.Node) bool {
	if len(qualifiers) > len(b.table) {
		return false
	}
	for i, q := range qualifiers {
		if q.GetString_().GetSval() != b.table[len(b.table)-len(qualifiers)+i] {
			return false
		}
	}
	return true
}

// soleFunction is the call of a plain function in FROM; nil for any other form.
func soleFunction(f *pg_query.RangeFunction) *pg_query.Node {
	if f.Lateral || f.Ordinality || f.IsRowsfrom || len(f.Coldeflist) > 0 || len(f.Functions) != 1 {
		return nil
	}
	items := f.Functions[0].GetList().GetItems()
	if items[0].GetFuncCall() == nil || len(items) > 1 && items[1] != nil && items[1].Node != nil {
		return nil
	}
	return items[0]
}

// function offers the column of a sequence function in FROM.
func (b *answerBuilder) function(f *pg_query.RangeFunction, targets []*pg_query.Node) bool {
	item := soleFunction(f)
	if item == nil {
		return false
	}
	call := item.GetFuncCall()
	e, ok := b.expr(item)
	if !ok || len(b.used) != len(b.planner.st.Calls) { // another call would be evaluated after this one
		return false
	}
	table := call.Funcname[len(call.Funcname)-1].GetString_().GetSval()
	column := table
	if f.Alias != nil {
		table, column = f.Alias.Aliasname, f.Alias.Aliasname
		switch len(f.Alias.Colnames) {
		case 0:
		case 1:
			column = f.Alias.Colnames[0].GetString_().GetSval()
		default:
			return false
		}
	}
	b.columns, b.exprs, b.table = []string{column}, []Expr{e}, []string{table}
	// Named twice it is still called once.
	columns := 0
	for _, t := range targets {
		if t.GetResTarget().GetVal().GetColumnRef() != nil {
			columns++
		}
	}
	return columns == 1 && b.targets(targets)
}

// relation offers the columns of a relation that may be a sequence.
func (b *answerBuilder) relation(rv *pg_query.RangeVar, targets []*pg_query.Node) bool {
	if len(b.planner.st.Reads) != 1 {
		return false
	}
	b.answer.Read = 0
	b.columns = []string{"last_value", "log_cnt", "is_called"}
	b.exprs = []Expr{{Kind: ExprField, Text: "last_value", Type: oidInt8, Typmod: -1},
		{Kind: ExprField, Text: "log_cnt", Type: oidInt8, Typmod: -1}, {Kind: ExprField, Text: "is_called", Type: oidBool, Typmod: -1}}
	b.table = []string{rv.Relname}
	if rv.Schemaname != "" {
		b.table = []string{rv.Schemaname, rv.Relname}
	}
	if rv.Alias != nil {
		if len(rv.Alias.Colnames) > 0 {
			return false
		}
		b.table = []string{rv.Alias.Aliasname}
	}
	return len(b.planner.st.Calls) == 0 && b.targets(targets)
}

// expr reads one expression.
func (b *answerBuilder) expr(n *pg_query.Node) (Expr, bool) {
	switch e := n.Node.(type) {
	case *pg_query.Node_FuncCall:
		for i := range b.planner.st.Calls {
			if c := &b.planner.st.Calls[i]; c.Start == int(e.FuncCall.Location) && !c.Body {
				b.use(i)
				if c.Function == Setval && c.Value.Kind == Opaque {
					j := b.inside(i)
					if j < 0 {
						return Expr{}, false
					}
					b.use(j)
				}
				return Expr{Kind: ExprCall, Call: i, Type: oidInt8, Typmod: -1}, true
			}
		}
		return b.class(int(e.FuncCall.Location))
	case *pg_query.Node_AConst:
		value, oid, null := constant(e.AConst)
		return Expr{Kind: ExprConstant, Text: value, Null: null, Type: oid, Typmod: -1}, oid != 0
	case *pg_query.Node_ParamRef:
		i := int(e.ParamRef.Number)
		return Expr{Kind: ExprParam, Param: i, Typmod: -1}, i > 0 && b.param(i, oidText)
	case *pg_query.Node_TypeCast:
		oid, typmod, ok := typeOID(e.TypeCast.TypeName)
		if !ok {
			return Expr{}, false
		}
		if c := e.TypeCast.Arg.GetAConst(); c != nil && oid == oidRegclass {
			return b.class(int(c.Location))
		}
		var arg Expr
		if ref := e.TypeCast.Arg.GetParamRef(); ref != nil {
			arg = Expr{Kind: ExprParam, Param: int(ref.Number), Typmod: -1}
			ok = ref.Number > 0 && b.param(int(ref.Number), oid)
		} else {
			arg, ok = b.expr(e.TypeCast.Arg)
		}
		return Expr{Kind: ExprCast, Type: oid, Typmod: typmod, Arg: &arg}, ok
	case *pg_query.Node_ColumnRef:
		fields := e.ColumnRef.Fields
		if len(fields) == 0 || !b.ofTable(fields[:len(fields)-1]) {
			return Expr{}, false
		}
		if i := slices.Index(b.columns, fields[len(fields)-1].GetString_().GetSval()); i >= 0 {
			return b.exprs[i], true
		}
	}
	return Expr{}, false
}

// param notes the type that one use of a parameter gives it; false when another use gives another.
func (b *answerBuilder) param(i int, oid uint32) bool {
	t := &b.answer.Params[i-1]
	if *t != 0 && *t != oid {
		return false
	}
	*t = oid
	return true
}

// arguments notes the types that a call gives to parameters.
func (b *answerBuilder) arguments(c *Call) bool {
	for _, a := range []struct {
		argument *Argument
		oid      uint32
	}{{&c.Name, oidRegclass}, {&c.Value, oidInt8}, {&c.IsCalled, oidBool}} {
		if a.argument.Kind != Parameter {
			continue
		}
		oid := a.oid
		if a.argument.Type != 0 {
			oid = a.argument.Type
		}
		if !b.param(a.argument.Param, oid) {
			return false
		}
	}
	return true
}

// columnName is the name that an expression gives its column, and how strongly: 2 beats the name of a type, 1 is one.
func columnName(n *pg_query.Node) (name string, strength int) {
	if n == nil {
		return "", 0
	}
	switch e := n.Node.(type) {
	case *pg_query.Node_FuncCall:
		return e.FuncCall.Funcname[len(e.FuncCall.Funcname)-1].GetString_().GetSval(), 2
	case *pg_query.Node_ColumnRef:
		return e.ColumnRef.Fields[len(e.ColumnRef.Fields)-1].GetString_().GetSval(), 2
	case *pg_query.Node_TypeCast:
		if name, strength = columnName(e.TypeCast.Arg); strength > 1 {
			return name, strength
		}
		names := e.TypeCast.TypeName.Names
		return names[len(names)-1].GetString_().GetSval(), 1
	case *pg_query.Node_CollateClause:
		return columnName(e.CollateClause.Arg)
	case *pg_query.Node_CoalesceExpr:
		return "coalesce", 2
	}
	return "", 0
}
