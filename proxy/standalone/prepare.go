package standalone

import (
	"errors"
	"unicode/utf8"

	pg_query "github.com/pganalyze/pg_query_go/v5"
	"github.com/pganalyze/pg_query_go/v5/parser"

	"github.com/nextvald/nextvald/proxy/answer"
	"github.com/nextvald/nextvald/proxy/wire"
	"github.com/nextvald/nextvald/sqlrewrite"
)

// maxText bounds what is parsed, in bytes. The parser takes the process down on expressions of tens of thousands of
// operators, which do not fit.
const maxText = 16 << 10

// node is one statement of a text as it was parsed.
type node = *pg_query.RawStmt

// command is what a statement does. It is immutable.
type command struct {
	// exits: the command may run in a failed block, which it ends.
	exits bool
	// run carries out a command that returns no rows, and returns its tag.
	run func(s *session) (tag string, err error)

	// A command that returns rows has the following instead.
	returnsRows bool
	tag         string
	columns     []answer.Column
	rows        func(s *session, params []answer.Param) ([][]sqlrewrite.Expr, error)
	constants   [][]sqlrewrite.Expr // rows that are known before the command runs
	functions   []functionCall      // what ExprField stands for in them
	sequences   []sequenceCall      // what ExprCall stands for in them
}

// parseText parses a text into its statements.
func parseText(text string) ([]node, error) {
	if len(text) > maxText {
		return nil, &wire.Error{Code: "54001", Message: "statement is too long for a server without an upstream", Hint: hintUpstream}
	}
	tree, err := pg_query.Parse(text)
	if err != nil {
		var e *parser.Error
		if errors.As(err, &e) {
			return nil, &wire.Error{Code: "42601", Message: e.Message, Position: e.Cursorpos}
		}
		return nil, &wire.Error{Code: "54001", Message: "statement cannot be read: " + err.Error(), Hint: hintUpstream}
	}
	return tree.Stmts, nil
}

// checkEncoding checks that a text is UTF-8. No other encoding is converted: with one, only ASCII is understood.
func (s *session) checkEncoding(text string) error {
	if err := answer.CheckText([]byte(text)); err != nil {
		return err
	}
	encoding := s.settings.get("client_encoding")
	if encoding == "UTF8" || encoding == "SQL_ASCII" || utf8.RuneCountInString(text) == len(text) {
		return nil
	}
	return &wire.Error{Code: "0A000", Message: "characters outside ASCII are not supported in client_encoding " + encoding,
		Hint: "Set client_encoding to UTF8."}
}

// exitsBlock reports whether a statement may run in a failed block.
func exitsBlock(n node) bool {
	switch n.Stmt.GetTransactionStmt().GetKind() {
	case pg_query.TransactionStmtKind_TRANS_STMT_COMMIT, pg_query.TransactionStmtKind_TRANS_STMT_ROLLBACK,
		pg_query.TransactionStmtKind_TRANS_STMT_ROLLBACK_TO, pg_query.TransactionStmtKind_TRANS_STMT_PREPARE:
		return true
	}
	return false
}

// prepare makes a statement of what was parsed. declared are the parameter types of Parse; a simple query has no
// parameters.
func (s *session) prepare(text string, n node, declared []uint32, extended bool) (*statement, error) {
	st := &statement{params: declared}
	var err error
	switch stmt := n.Stmt.Node.(type) {
	case *pg_query.Node_SelectStmt:
		b := &builder{session: s, text: text, extended: extended}
		st.command, st.params, err = b.build(stmt.SelectStmt, declared)
	case *pg_query.Node_TransactionStmt:
		st.command, err = transactionCommand(stmt.TransactionStmt)
	case *pg_query.Node_VariableSetStmt:
		st.command, err = setCommand(stmt.VariableSetStmt)
	case *pg_query.Node_VariableShowStmt:
		st.command, err = s.showCommand(stmt.VariableShowStmt.Name)
	case *pg_query.Node_DiscardStmt:
		st.command, err = discardCommand(stmt.DiscardStmt.Target)
	case *pg_query.Node_DeallocateStmt:
		st.command = deallocateCommand(stmt.DeallocateStmt.Name)
	case *pg_query.Node_ClosePortalStmt:
		st.command = closeCommand(stmt.ClosePortalStmt.Portalname)
	case *pg_query.Node_UnlistenStmt:
		st.command = tagCommand("UNLISTEN") // nothing can be listened to
	default:
		err = unsupported(statementName(n.Stmt))
	}
	if err != nil {
		return nil, err
	}
	return st, nil
}

// tagCommand is a command of which nothing is left to do here.
func tagCommand(tag string) *command {
	return &command{run: func(*session) (string, error) { return tag, nil }}
}

// statementName names a statement in the words that begin it, as far as clients often send it.
func statementName(n *pg_query.Node) string {
	switch n.Node.(type) {
	case *pg_query.Node_InsertStmt:
		return "INSERT"
	case *pg_query.Node_UpdateStmt:
		return "UPDATE"
	case *pg_query.Node_DeleteStmt:
		return "DELETE"
	case *pg_query.Node_MergeStmt:
		return "MERGE"
	case *pg_query.Node_CopyStmt:
		return "COPY"
	case *pg_query.Node_CreateStmt, *pg_query.Node_CreateTableAsStmt:
		return "CREATE TABLE"
	case *pg_query.Node_IndexStmt:
		return "CREATE INDEX"
	case *pg_query.Node_ViewStmt:
		return "CREATE VIEW"
	case *pg_query.Node_CreateSchemaStmt:
		return "CREATE SCHEMA"
	case *pg_query.Node_CreateFunctionStmt:
		return "CREATE FUNCTION"
	case *pg_query.Node_CreateSeqStmt, *pg_query.Node_AlterSeqStmt:
		return "a sequence of this kind"
	case *pg_query.Node_AlterTableStmt:
		return "ALTER TABLE"
	case *pg_query.Node_DropStmt:
		return "DROP"
	case *pg_query.Node_TruncateStmt:
		return "TRUNCATE"
	case *pg_query.Node_PrepareStmt:
		return "PREPARE"
	case *pg_query.Node_ExecuteStmt:
		return "EXECUTE"
	case *pg_query.Node_DeclareCursorStmt:
		return "DECLARE"
	case *pg_query.Node_FetchStmt:
		return "FETCH"
	case *pg_query.Node_ExplainStmt:
		return "EXPLAIN"
	case *pg_query.Node_CallStmt:
		return "CALL"
	case *pg_query.Node_DoStmt:
		return "DO"
	case *pg_query.Node_ListenStmt:
		return "LISTEN"
	case *pg_query.Node_NotifyStmt:
		return "NOTIFY"
	case *pg_query.Node_LockStmt:
		return "LOCK"
	}
	return "this statement"
}
