package sqlrewrite

import (
	"slices"

	pg_query "github.com/pganalyze/pg_query_go/v5"
)

// sequenceFunction recognises a call of one of the four that PostgreSQL would resolve to its own.
func sequenceFunction(n *pg_query.FuncCall) (Function, bool) {
	if len(n.AggOrder) > 0 || n.AggFilter != nil || n.Over != nil || n.AggDistinct || n.AggStar || n.AggWithinGroup {
		return 0, false
	}
	f, ok := functionOf(functionName(n))
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
		arg := p.argument(a, i)
		if arg.Kind != Constant {
			p.expr(a, c)
		}
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
	call.Rows = c.rows && c.evaluation == PerRow && f == Nextval && call.Name.Kind == Constant
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
		oid, typmod, ok := typeOID(cast.TypeName)
		if !ok || typmod >= 0 || !castable(oid, i) {
			return Argument{}
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
	if !constantFits(oid, i) {
		return Argument{}
	}
	if a.Type == 0 {
		a.Type = oid
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

// constantFits reports whether PostgreSQL takes a constant of the type for argument i as it is written.
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

// functionOf is the sequence function of a name.
func functionOf(word string) (Function, bool) {
	for f, name := range functionNames {
		if name == word {
			return Function(f), true
		}
	}
	return 0, false
}
