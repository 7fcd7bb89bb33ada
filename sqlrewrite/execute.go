package sqlrewrite

import pg_query "github.com/pganalyze/pg_query_go/v5"

// prepare reads a PREPARE. It has as many parameters as it declares, or as it uses where these are more.
func prepare(n *pg_query.PrepareStmt) *Prepare {
	uses := make(map[int32]int)
	countParams(n.Query.ProtoReflect(), uses)
	params := len(n.Argtypes)
	for number := range uses {
		params = max(params, int(number))
	}
	return &Prepare{Name: n.Name, Params: params}
}

// execute notes an EXECUTE and where its arguments stand, which the syntax tree does not tell.
func (p *planner) execute(n *pg_query.ExecuteStmt) {
	for i := p.tokenAt(p.st.Start); i < len(p.tokens) && int(p.tokens[i].End) <= p.st.End; i++ {
		if p.tokens[i].Token != pg_query.Token_EXECUTE || i+1 == len(p.tokens) {
			continue
		}
		name := p.tokens[i+1]
		if identifier(p.text[name.Start:name.End]) != n.Name {
			continue // it is another's name
		}
		p.st.Utility, p.st.Execute = true, &Execute{Name: n.Name, Params: len(n.Params), Start: int(name.End), End: int(name.End)}
		if len(n.Params) > 0 {
			_, p.st.Execute.End, _ = p.extent(int(name.Start))
		}
	}
}

// Edit gives what is executed another argument, the last. all says that it is the only one.
func (e *Execute) Edit(value string, all bool) Edit {
	if all || e.Params == 0 {
		return Edit{Start: e.Start, End: e.End, Text: "(" + value + ")"}
	}
	return Edit{Start: e.End - 1, End: e.End - 1, Text: ", " + value}
}
