package sqlrewrite

import pg_query "github.com/pganalyze/pg_query_go/v5"

// bodies looks for calls in the strings of a function body or DO.
func (p *planner) bodies(options []*pg_query.Node) {
	for _, o := range options {
		d := o.GetDefElem()
		if d == nil || d.Defname != "as" {
			continue
		}
		var texts []*pg_query.Node
		if l := d.Arg.GetList(); l != nil {
			texts = l.Items
		} else {
			texts = []*pg_query.Node{d.Arg}
		}
		for _, t := range texts {
			if s := t.GetString_(); s != nil {
				p.body(s.Sval, int(d.Location))
			}
		}
	}
}

// body finds calls with a literal name in a text that is read later, by a language that has PostgreSQL's tokens. What it
// cannot find the upstream refuses when it comes to it.
func (p *planner) body(text string, at int) {
	tokens, err := tokensOf(text)
	if err != nil {
		return
	}
	word := func(i int) string {
		if i < 0 || i >= len(tokens) {
			return ""
		}
		return text[tokens[i].Start:tokens[i].End]
	}
	for i := range tokens {
		f, ok := functionOf(identifier(word(i)))
		if !ok || word(i+1) != "(" || word(i-1) == "." && identifier(word(i-2)) != "pg_catalog" {
			continue
		}
		literal := i + 2
		for word(literal) == "(" || castWords[identifier(word(literal))] {
			literal++ // (CAST('s' AS ..., regclass 's'
		}
		if literal == len(tokens) || tokens[literal].Token != pg_query.Token_SCONST {
			continue
		}
		if name, ok := stringConstant(word(literal)); ok {
			p.st.Calls = append(p.st.Calls, Call{Function: f, Start: at, End: at, Evaluation: Later, Body: true,
				Name: Argument{Kind: Constant, Value: name}})
		}
	}
}

// castWords may stand between the parenthesis of a call and its literal.
var castWords = map[string]bool{"cast": true, "regclass": true, "text": true}

// identifier is the name that a token stands for.
func identifier(token string) string {
	if name, err := ParseQualifiedName(token); err == nil && name.Schema == "" {
		return name.Name
	}
	return ""
}

// stringConstant is the value of a string's token.
func stringConstant(token string) (string, bool) {
	tree, err := parseTree("SELECT " + token)
	if err != nil {
		return "", false
	}
	c := tree.Stmts[0].Stmt.GetSelectStmt().GetTargetList()[0].GetResTarget().GetVal().GetAConst().GetSval()
	return c.GetSval(), c != nil
}
