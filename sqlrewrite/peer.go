package sqlrewrite

import (
	"slices"
	"strings"

	pg_query "github.com/pganalyze/pg_query_go/v5"
)

// peerSchema holds the functions by which other processes lease from this one. It exists nowhere else.
const peerSchema = "nextvald"

// peerFunction is the signature of a function of that schema. Each returns one row.
type peerFunction struct {
	arguments []uint32
	required  int // so many must be given
	columns   []string
	types     []uint32 // of the columns
}

var peerFunctions = map[string]peerFunction{
	// The database is the connection's. Arguments: schema, name, how many values, member id; and what the caller knows, so
	// that nothing is leased for one who knows too little: incarnation, version, the feed's rev.
	"lease": {
		arguments: []uint32{oidText, oidText, oidInt8, oidText, oidText, oidInt8, oidInt8}, required: 4,
		columns: []string{"first", "count", "increment", "incarnation", "version", "rev"},
		types:   []uint32{oidInt8, oidInt8, oidInt8, oidText, oidInt8, oidInt8},
	},
	// Argument: the feed's rev that the caller was told last.
	"changes": {
		arguments: []uint32{oidInt8}, required: 1,
		columns: []string{"rev", "names", "topics"}, types: []uint32{oidInt8, oidInt8, oidText},
	},
	// Arguments: member id, the feed's rev; and, for a member that keeps a token, the token and when it expires.
	"confirm": {
		arguments: []uint32{oidText, oidInt8, oidText, oidInt8}, required: 2,
		columns: []string{"confirm"}, types: []uint32{oidInt8},
	},
	// Arguments: the name of an operation, and what it takes as JSON.
	"store": {
		arguments: []uint32{oidText, oidText}, required: 2,
		columns: []string{"store"}, types: []uint32{oidText},
	},
}

// peer recognises a SELECT from one function of the schema.
func (p *planner) peer(node *pg_query.Node, params int) {
	s := plainSelect(node)
	if s == nil || len(s.FromClause) != 1 {
		return
	}
	from := s.FromClause[0].GetRangeFunction()
	if from == nil {
		return
	}
	call := soleFunction(from).GetFuncCall()
	if name := call.GetFuncname(); len(name) != 2 || name[0].GetString_().GetSval() != peerSchema {
		return
	}
	name := call.Funcname[1].GetString_().GetSval()
	peer := &PeerCall{Function: name, Start: int(call.Location)}
	b := answerBuilder{planner: p, answer: &Answer{Read: -1, Params: make([]uint32, params)}}
	f, found := peerFunctions[name]
	found = found && len(call.Args) >= f.required && len(call.Args) <= len(f.arguments) && plainCall(call)
	given := make([]string, len(call.Args))
	for i, n := range call.Args {
		wanted := uint32(oidText)
		if found {
			wanted = f.arguments[i]
		}
		e, ok := b.argument(n, wanted)
		if !ok {
			return // an expression: nobody here can evaluate it
		}
		given[i] = typeName(e.Type)
		found = found && implicit(e.Type, wanted)
		peer.Arguments = append(peer.Arguments, Expr{Kind: ExprCast, Type: wanted, Typmod: -1, Arg: &e})
	}
	p.st.Peer, p.st.Kind = peer, KindUse
	if !found {
		peer.Missing = peerSchema + "." + name + "(" + strings.Join(given, ", ") + ")"
		return
	}
	b.offer(f, name, from.Alias)
	if !b.targets(s.TargetList) || slices.Contains(b.answer.Params, 0) {
		p.st.Peer, p.st.Kind = nil, KindPass
		return
	}
	p.st.Answer = b.answer
}

// plainCall reports whether a call is of arguments in their order, and nothing else.
func plainCall(n *pg_query.FuncCall) bool {
	return len(n.AggOrder) == 0 && n.AggFilter == nil && n.Over == nil && !n.AggDistinct && !n.AggStar && !n.FuncVariadic &&
		!slices.ContainsFunc(n.Args, func(a *pg_query.Node) bool { return a.GetNamedArgExpr() != nil })
}

// argument reads an argument; a bare parameter has the type that is wanted. The type of its Expr is 0 for that, and
// unknown for a plain string.
func (b *answerBuilder) argument(n *pg_query.Node, wanted uint32) (Expr, bool) {
	if ref := n.GetParamRef(); ref != nil && ref.Number > 0 {
		return Expr{Kind: ExprParam, Param: int(ref.Number), Typmod: -1}, b.param(int(ref.Number), wanted)
	}
	return b.expr(n)
}

// offer makes the columns of a function those that targets may name.
func (b *answerBuilder) offer(f peerFunction, name string, alias *pg_query.Alias) {
	b.columns, b.table = slices.Clone(f.columns), []string{name}
	for i, column := range f.columns {
		b.exprs = append(b.exprs, Expr{Kind: ExprField, Text: column, Type: f.types[i], Typmod: -1})
	}
	if alias == nil {
		return
	}
	b.table = []string{alias.Aliasname}
	if len(b.columns) == 1 {
		b.columns[0] = alias.Aliasname // as of every function that returns a plain value
	}
	for i, n := range alias.Colnames[:min(len(alias.Colnames), len(b.columns))] {
		b.columns[i] = n.GetString_().GetSval()
	}
}

// implicit reports whether PostgreSQL passes a value of a type, 0 for an undeclared parameter, where a function takes the
// other one.
func implicit(from, to uint32) bool {
	switch from {
	case 0, oidUnknown, to:
		return true
	case oidInt2, oidInt4:
		return to == oidInt8
	case oidVarchar, oidBpchar, oidName:
		return to == oidText
	}
	return false
}

// typeNames are those that differ in PostgreSQL's messages from the ones in pg_type.
var typeNames = map[uint32]string{
	0: "unknown", oidBool: "boolean", oidInt2: "smallint", oidInt4: "integer", oidInt8: "bigint", oidFloat8: "double precision",
	oidVarchar: "character varying", oidBpchar: "character",
}

// typeName is the name of a type in PostgreSQL's messages.
func typeName(oid uint32) string {
	if name, ok := typeNames[oid]; ok {
		return name
	}
	for name, o := range typeOIDs {
		if o == oid {
			return name
		}
	}
	return "unknown"
}
