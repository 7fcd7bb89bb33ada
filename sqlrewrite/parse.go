package sqlrewrite

import (
	"errors"
	"slices"
	"strings"

	pg_query "github.com/pganalyze/pg_query_go/v5"
	"github.com/pganalyze/pg_query_go/v5/parser"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// SyntaxError is PostgreSQL's own error for a text that does not parse.
type SyntaxError struct {
	Message  string
	Position int // in characters from 1, 0 when unknown
}

func (e *SyntaxError) Error() string { return e.Message }

// Parse reads a text with PostgreSQL's grammar. Errors are ErrTooComplex, *SyntaxError, or another for a text that
// cannot be judged, such as one that holds a zero byte. Of a text in a single-byte encoding, names and constants beyond
// ASCII are Opaque.
func Parse(text string) (*Plan, error) { return ParseVoid(text, nil) }

// ParseVoid is Parse for a text whose parameters of these numbers are declared void: PostgreSQL drops them from the
// arguments of a call. JDBC's `{? = call f(?)}` has one in the place of the result.
func ParseVoid(text string, void []int) (*Plan, error) {
	if len(text) > maxLength {
		return nil, ErrTooComplex
	}
	read, err := readable(text)
	if err != nil {
		return nil, err
	}
	tokens, err := tokensOf(read)
	if err != nil {
		return nil, err
	}
	if err := checkBounds(tokens); err != nil {
		return nil, err
	}
	tree, err := parseTree(read)
	if err != nil {
		return nil, err
	}
	p := &planner{text: read, tokens: tokens, uses: make(map[int32]int), dropped: make(map[int32][]int), void: void}
	countParams(tree.ProtoReflect(), p.uses)
	if len(void) > 0 {
		p.dropVoid(tree.ProtoReflect(), void)
	}
	plan := &Plan{Text: text}
	for n := range p.uses {
		plan.Params = max(plan.Params, int(n))
	}
	for _, raw := range tree.Stmts {
		st := p.statement(raw, plan.Params)
		if read != text {
			st.forget(text)
		}
		plan.Statements = append(plan.Statements, st)
	}
	plan.noteSets()
	return plan, nil
}

// noteSets finds out whether only PostgreSQL can tell what the calls of the text give (Statement.Sets).
func (plan *Plan) noteSets() {
	moves, sets, computed := 0, 0, false
	for i := range plan.Statements {
		st := &plan.Statements[i]
		for k := range st.Calls {
			c := &st.Calls[k]
			if st.Explain || c.Evaluation == Later {
				continue
			}
			switch c.Function {
			case Nextval:
				moves++
			case Setval:
				moves++
				sets++
				computed = computed || c.Value.Kind == Opaque || c.IsCalled.Kind == Opaque
			}
		}
	}
	if computed || sets > 0 && moves > 1 {
		for i := range plan.Statements {
			plan.Statements[i].Sets = true
		}
	}
}

// syntaxError is the error of a text that the parser refused, or whose tree was too deep to be handed over.
func syntaxError(err error) error {
	if e := (*parser.Error)(nil); errors.As(err, &e) {
		return &SyntaxError{Message: e.Message, Position: e.Cursorpos}
	}
	return ErrTooComplex
}

// tokensOf are the tokens of a text, without its comments. The scanner takes texts of any depth.
func tokensOf(text string) ([]*pg_query.ScanToken, error) {
	scanned, err := pg_query.Scan(text)
	if err != nil {
		return nil, syntaxError(err)
	}
	return slices.DeleteFunc(scanned.Tokens, func(t *pg_query.ScanToken) bool {
		return t.Token == pg_query.Token_SQL_COMMENT || t.Token == pg_query.Token_C_COMMENT
	}), nil
}

// parseTree is the syntax tree of a text, which must be within the bounds.
func parseTree(text string) (*pg_query.ParseResult, error) {
	tree, err := pg_query.Parse(text)
	if err != nil {
		return nil, syntaxError(err)
	}
	return tree, nil
}

func countParams(m protoreflect.Message, uses map[int32]int) {
	switch n := m.Interface().(type) {
	case *pg_query.ParamRef:
		uses[n.Number]++
		return
	case *pg_query.MultiAssignRef:
		if n.Colno > 1 {
			return // SET (a, b) = source: each column refers to the same source
		}
	}
	children(m, func(c protoreflect.Message) { countParams(c, uses) })
}

// dropVoid takes the parameters of type void out of the arguments of calls.
func (p *planner) dropVoid(m protoreflect.Message, void []int) {
	if call, ok := m.Interface().(*pg_query.FuncCall); ok {
		kept := call.Args[:0]
		for i, a := range call.Args {
			if ref := a.GetParamRef(); ref != nil && slices.Contains(void, int(ref.Number)) {
				p.dropped[call.Location] = append(p.dropped[call.Location], i)
				continue
			}
			kept = append(kept, a)
		}
		call.Args = kept
	}
	children(m, func(c protoreflect.Message) { p.dropVoid(c, void) })
}

// children calls f for each message directly inside m, in order of fields.
func children(m protoreflect.Message, f func(protoreflect.Message)) {
	fields := m.Descriptor().Fields()
	if _, ok := m.Interface().(*pg_query.Node); ok { // one of hundreds of fields, all too slow to ask
		if fd := m.WhichOneof(m.Descriptor().Oneofs().Get(0)); fd != nil {
			f(m.Get(fd).Message())
		}
		return
	}
	for i := range fields.Len() {
		fd := fields.Get(i)
		if fd.Kind() != protoreflect.MessageKind || !m.Has(fd) {
			continue
		}
		if fd.IsList() {
			list := m.Get(fd).List()
			for k := range list.Len() {
				f(list.Get(k).Message())
			}
			continue
		}
		f(m.Get(fd).Message())
	}
}

// planner makes the plan of one text.
type planner struct {
	text   string
	tokens []*pg_query.ScanToken
	uses   map[int32]int // of each parameter, in the whole text
	// dropped are the arguments, by the location of their call, that are parameters of type void.
	dropped map[int32][]int
	void    []int // the numbers of these parameters
	st      *Statement
	own     *pg_query.SelectStmt // of the statement, where its rows can be numbered
	scope   []string             // CTEs that a name in FROM may mean
}

// statement plans one statement.
func (p *planner) statement(raw *pg_query.RawStmt, params int) Statement {
	st := Statement{Kind: KindPass}
	end := len(p.text)
	if raw.StmtLen > 0 {
		end = int(raw.StmtLocation + raw.StmtLen)
	}
	st.Start, st.End = int(raw.StmtLocation), end
	if i := p.tokenAt(st.Start); i < len(p.tokens) && int(p.tokens[i].Start) < end {
		st.Start = int(p.tokens[i].Start)
		for ; i < len(p.tokens) && int(p.tokens[i].End) <= end; i++ {
			if p.tokens[i].Token == pg_query.Token_ASCII_59 {
				break
			}
			st.End = int(p.tokens[i].End)
		}
	}
	p.st, p.scope, p.own = &st, nil, nil
	if own, _, _ := ownQuery(raw.Stmt); own != nil && numbered(own) {
		p.own = own
	}
	p.classify(raw.Stmt)
	p.moves(raw.Stmt)
	if len(st.Reads) > 0 || len(st.Catalogs) > 0 {
		p.columns(raw.Stmt.ProtoReflect())
	}
	p.rows(raw.Stmt)
	if len(st.Calls) > 0 || len(st.Reads) > 0 || len(st.Classes) > 0 || len(st.Catalogs) > 0 || st.Execute != nil {
		fixCurrent(st.Calls)
		if st.Kind == KindPass {
			st.Kind = KindUse
		}
	}
	switch st.Kind {
	case KindUse:
		st.Answer = p.answer(raw.Stmt, params)
	case KindPass:
		p.peer(raw.Stmt, params)
	}
	return st
}

// fixCurrent makes currval and lastval constants of the statement where nothing in it can move them.
func fixCurrent(calls []Call) {
	moved := make(map[string]bool) // names, without their schema, of what nextval and setval move
	all := false
	for i := range calls {
		switch c := &calls[i]; c.Function {
		case Nextval, Setval:
			name, known := bareName(c)
			moved[name], all = true, all || !known
		}
	}
	for i := range calls {
		c := &calls[i]
		if c.Evaluation != PerRow {
			continue
		}
		switch c.Function {
		case Lastval:
			if len(moved) == 0 {
				c.Evaluation = Once
			}
		case Currval:
			if name, known := bareName(c); len(moved) == 0 || !all && known && !moved[name] {
				c.Evaluation = Once
			}
		}
	}
}

// bareName is the name of a call's sequence without its schema, and whether the text tells it.
func bareName(c *Call) (string, bool) {
	if c.Name.Kind != Constant {
		return "", false
	}
	name, err := ParseQualifiedName(c.Name.Value)
	return name.Name, err == nil && !IsOID(name.Name)
}

// tokenAt is the index of the first token at or after a byte offset.
func (p *planner) tokenAt(offset int) int {
	lo, hi := 0, len(p.tokens)
	for lo < hi {
		mid := (lo + hi) / 2
		if int(p.tokens[mid].Start) < offset {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// token is the kind of a token, or none outside the text.
func (p *planner) token(i int) pg_query.Token {
	if i < 0 || i >= len(p.tokens) {
		return pg_query.Token_NUL
	}
	return p.tokens[i].Token
}

// classify finds out what kind of statement it is, and what in it concerns sequences.
func (p *planner) classify(node *pg_query.Node) {
	st := p.st
	switch n := node.Node.(type) {
	case *pg_query.Node_TransactionStmt:
		st.Kind, st.Transaction = KindTransaction, transaction(n.TransactionStmt)
	case *pg_query.Node_DeallocateStmt:
		st.Kind, st.Deallocate = KindDeallocate, n.DeallocateStmt.Name
	case *pg_query.Node_DiscardStmt:
		st.Kind = KindDiscard
		st.Discard = strings.TrimPrefix(n.DiscardStmt.Target.String(), "DISCARD_")
	case *pg_query.Node_SelectStmt:
		st.Tag = "SELECT"
		p.query(node, context{})
		p.creates(n.SelectStmt.IntoClause.GetRel())
	case *pg_query.Node_InsertStmt, *pg_query.Node_UpdateStmt, *pg_query.Node_DeleteStmt, *pg_query.Node_MergeStmt,
		*pg_query.Node_CreateTableAsStmt, *pg_query.Node_DeclareCursorStmt, *pg_query.Node_ExecuteStmt:
		p.runnable(node)
	case *pg_query.Node_ExplainStmt:
		st.Explain = true
		for _, o := range n.ExplainStmt.Options {
			if d := o.GetDefElem(); d != nil && d.Defname == "analyze" {
				st.Analyze = truth(d.Arg)
				st.Explain = !st.Analyze
			}
		}
		p.runnable(n.ExplainStmt.Query)
	case *pg_query.Node_CopyStmt:
		st.Utility = true
		p.query(n.CopyStmt.Query, context{})
		p.expr(n.CopyStmt.WhereClause, context{}.perRow())
	case *pg_query.Node_CallStmt:
		for _, a := range n.CallStmt.Funccall.GetArgs() {
			p.expr(a, context{})
		}
	case *pg_query.Node_PrepareStmt:
		st.Prepare, st.Utility = prepare(n.PrepareStmt), true
		prepared := later
		prepared.prepared = true
		p.query(n.PrepareStmt.Query, prepared)
	case *pg_query.Node_DoStmt:
		p.bodies(n.DoStmt.Args)
	case *pg_query.Node_CreateFunctionStmt:
		p.bodies(n.CreateFunctionStmt.Options)
		p.walk(node.ProtoReflect(), later)
	default:
		if !p.ddl(node) {
			p.createsOf(node)
			p.walk(node.ProtoReflect(), later)
			for i := range st.Calls {
				st.Calls[i].Default = defines(node)
			}
			if t := node.GetCreateTrigStmt(); t != nil {
				p.triggers(t)
			}
		}
	}
}

// triggers notes the arguments of a trigger, any of which may name a sequence that its function calls.
func (p *planner) triggers(t *pg_query.CreateTrigStmt) {
	for _, a := range t.Args {
		if name, err := ParseQualifiedName(a.GetString_().GetSval()); err == nil {
			p.st.Arguments = append(p.st.Arguments, name)
		}
	}
}

// defines reports whether a statement defines a table, a domain, a view or a rule.
func defines(node *pg_query.Node) bool {
	switch node.Node.(type) {
	case *pg_query.Node_CreateStmt, *pg_query.Node_CreateForeignTableStmt, *pg_query.Node_AlterTableStmt,
		*pg_query.Node_CreateDomainStmt, *pg_query.Node_AlterDomainStmt, *pg_query.Node_ViewStmt, *pg_query.Node_RuleStmt:
		return true
	}
	return false
}

func transaction(t *pg_query.TransactionStmt) Transaction {
	verbs := map[pg_query.TransactionStmtKind]TransactionVerb{
		pg_query.TransactionStmtKind_TRANS_STMT_BEGIN: Begin, pg_query.TransactionStmtKind_TRANS_STMT_START: Begin,
		pg_query.TransactionStmtKind_TRANS_STMT_COMMIT: Commit, pg_query.TransactionStmtKind_TRANS_STMT_ROLLBACK: Rollback,
		pg_query.TransactionStmtKind_TRANS_STMT_SAVEPOINT: Savepoint, pg_query.TransactionStmtKind_TRANS_STMT_RELEASE: Release,
		pg_query.TransactionStmtKind_TRANS_STMT_ROLLBACK_TO: RollbackTo, pg_query.TransactionStmtKind_TRANS_STMT_PREPARE: PrepareTransaction,
		pg_query.TransactionStmtKind_TRANS_STMT_COMMIT_PREPARED:   CommitPrepared,
		pg_query.TransactionStmtKind_TRANS_STMT_ROLLBACK_PREPARED: RollbackPrepared,
	}
	result := Transaction{Verb: verbs[t.Kind], Savepoint: t.SavepointName, Chain: t.Chain}
	for _, o := range t.Options {
		if d := o.GetDefElem(); d != nil && d.Defname == "transaction_read_only" {
			on := truth(d.Arg)
			result.ReadOnly = &on
		}
	}
	return result
}

// truth reads the value of a boolean option; none means true.
func truth(n *pg_query.Node) bool {
	if n == nil {
		return true
	}
	if c := n.GetAConst(); c != nil {
		switch v := c.Val.(type) {
		case *pg_query.A_Const_Ival:
			return v.Ival.Ival != 0
		case *pg_query.A_Const_Boolval:
			return v.Boolval.Boolval
		case *pg_query.A_Const_Sval:
			return isTrue(v.Sval.Sval)
		}
		return false
	}
	switch v := n.Node.(type) {
	case *pg_query.Node_Integer:
		return v.Integer.Ival != 0
	case *pg_query.Node_Boolean:
		return v.Boolean.Boolval
	case *pg_query.Node_String_:
		return isTrue(v.String_.Sval)
	}
	return false
}

func isTrue(word string) bool {
	return strings.EqualFold(word, "true") || strings.EqualFold(word, "on")
}
