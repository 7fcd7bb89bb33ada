package sqlrewrite

import (
	"strconv"

	pg_query "github.com/pganalyze/pg_query_go/v5"
)

// Class is a constant of type regclass: 's'::regclass, CAST('s' AS regclass), regclass 's' or to_regclass('s'). The name
// argument of a sequence function is none.
type Class struct {
	// Name is the constant.
	Name Argument
	// Start and End are the byte range of its string, or of the whole call of to_regclass.
	Start, End int
	// Function: it is a call of to_regclass. Column: which gives an output column its name.
	Function, Column bool
}

// Replacement is the text that means the relation of an OID in the constant's place.
func (c *Class) Replacement(oid uint32) string {
	text := "'" + strconv.FormatUint(uint64(oid), 10) + "'"
	switch {
	case c.Column:
		return text + "::pg_catalog.regclass AS to_regclass"
	case c.Function:
		return text + "::pg_catalog.regclass"
	}
	return text
}

// classCast notes a constant that is cast to regclass; false when the cast is another.
func (p *planner) classCast(n *pg_query.TypeCast) bool {
	oid, typmod, ok := typeOID(n.TypeName)
	name := n.Arg.GetAConst()
	if !ok || oid != oidRegclass || typmod >= 0 || name.GetSval() == nil {
		return false
	}
	i := p.tokenAt(int(name.Location))
	if i >= len(p.tokens) || int(p.tokens[i].Start) != int(name.Location) {
		return false
	}
	p.st.Classes = append(p.st.Classes, Class{
		Name:  Argument{Kind: Constant, Value: name.GetSval().Sval, Type: oidRegclass},
		Start: int(p.tokens[i].Start), End: int(p.tokens[i].End),
	})
	return true
}

// classCall notes a call of to_regclass with a constant; false when the call is another.
func (p *planner) classCall(n *pg_query.FuncCall, column bool) bool {
	if functionName(n) != "to_regclass" || len(n.Args) != 1 || len(n.AggOrder) > 0 || n.AggFilter != nil || n.Over != nil || n.FuncVariadic {
		return false
	}
	name := p.argument(n.Args[0], 0)
	if name.Kind != Constant || name.Null || IsOID(name.Value) {
		return false
	}
	start, end, _ := p.extent(int(n.Location))
	p.st.Classes = append(p.st.Classes, Class{Name: name, Start: start, End: end, Function: true, Column: column})
	return true
}

// class reads an expression that is a Class.
func (b *answerBuilder) class(start int) (Expr, bool) {
	for i, c := range b.planner.st.Classes {
		if c.Start == start {
			return Expr{Kind: ExprClass, Class: i, Type: oidRegclass, Typmod: -1}, true
		}
	}
	return Expr{}, false
}
