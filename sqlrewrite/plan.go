package sqlrewrite

// Kind says what a statement means to sequences.
type Kind uint8

const (
	// KindPass: the statement concerns no sequence, or nothing in it can be known before it runs.
	KindPass Kind = iota
	// KindUse: the statement calls sequence functions or reads sequence relations (Calls, Reads); Answer is set when
	// its shape can be answered without the upstream.
	KindUse
	// KindDDL: CREATE, ALTER or DROP SEQUENCE, or an ALTER TABLE form that PostgreSQL accepts for a sequence (DDL).
	KindDDL
	// KindTransaction: BEGIN, COMMIT, ROLLBACK, SAVEPOINT and their relatives (Transaction).
	KindTransaction
	// KindDeallocate: DEALLOCATE [PREPARE] name | ALL (Deallocate).
	KindDeallocate
	// KindDiscard: DISCARD ALL | SEQUENCES | PLANS | TEMP (Discard).
	KindDiscard
)

// Plan is what one text (a Query or a Parse message) means to sequences. It is immutable and may be shared.
type Plan struct {
	Text       string
	Statements []Statement
	// Params is the highest $n of the text.
	Params int
}

// Statement is one statement of a Plan.
type Statement struct {
	Kind Kind
	// Start and End are its byte range in Plan.Text, without surrounding blanks, comments before it, or the semicolon.
	Start, End int

	// Calls are the sequence function calls, in the order in which PostgreSQL evaluates them: FROM before the targets,
	// inner before outer, else by position.
	Calls []Call
	// Reads are the relation names in FROM that might be sequences.
	Reads []Read
	// Classes are the constants of type regclass, which may be sequences.
	Classes []Class
	// Catalogs are the places where the statement, or one that it prepares, reads what the catalogs tell of sequences.
	Catalogs []Catalog
	// Prefixes are the schemas in names of columns, and System the system columns that are named: a subquery in the place of a
	// table has none by itself.
	Prefixes []Prefix
	System   []string
	star     bool // all columns are named by *
	// Rows is set when there are calls that are evaluated once for each row of it (Call.Rows).
	Rows *Rows
	// Answer is set when every target is a call, a constant, a parameter or a cast of one, and there is no FROM (or
	// FROM is one sequence function, or one relation of Reads whose columns alone are read).
	Answer *Answer
	// Peer is set when the statement selects from a function of the schema nextvald, and Answer is then too, unless the
	// function does not exist. The columns of the function are its ExprField.
	Peer *PeerCall
	// Tag is the command tag's first word for a statement that returns rows ("SELECT"), empty otherwise.
	Tag string
	// Explain: the statement is under EXPLAIN without ANALYZE; its calls must not consume values.
	Explain bool
	// Analyze: it is under EXPLAIN ANALYZE, whose result shows the statement's text in its plan.
	Analyze bool
	// Cursor: it is DECLARE, whose calls are evaluated when rows are fetched.
	Cursor bool
	// Sets: the text has a setval of a value that PostgreSQL computes, or one beside another setval or nextval: what each call
	// gives depends on when PostgreSQL comes to it.
	Sets bool

	// Prepare is set for PREPARE, and Execute for EXECUTE, also under EXPLAIN and CREATE TABLE AS.
	Prepare *Prepare
	Execute *Execute
	// Utility: PostgreSQL takes no parameters of the extended protocol in it, though it reads: PREPARE, EXECUTE and COPY.
	Utility bool

	DDL         *DDL
	Transaction Transaction
	// Deallocate is the name of KindDeallocate; empty means ALL.
	Deallocate string
	// Discard is "ALL", "SEQUENCES", "PLANS" or "TEMP" of KindDiscard.
	Discard string

	// Creates are the relations that the statement would create or rename to (tables, indexes, views, the sequences of
	// serial and identity columns, ...), whatever the Kind. Empty names are omitted.
	Creates []Name
	// DropSchemas are the schemas of a DROP SCHEMA, and DropCascade says that it is written with CASCADE.
	DropSchemas []string
	DropCascade bool
	// Moves are the sequences that the statement may move; nil when there are none.
	Moves *Moves
	// Arguments are those of a trigger that is created, as names. Some may be of sequences, which its function calls.
	Arguments []Name
}

// Function is one of the four sequence functions.
type Function uint8

const (
	Nextval Function = iota
	Currval
	Lastval
	Setval
)

// Evaluation says how often PostgreSQL evaluates a call during one execution of its statement.
type Evaluation uint8

const (
	// Once: a number of times known from the text: once for each Call (each VALUES row holds calls of its own), or not
	// at all where a branch is not taken.
	Once Evaluation = iota
	// PerRow: once for each row of something.
	PerRow
	// Later: not by this statement, but whenever what it defines is used (a column default, a view, a function body,
	// PREPARE).
	Later
)

// Call is one call of a sequence function in a text.
type Call struct {
	Function Function
	// Start and End are the byte range of the whole call in Plan.Text, from the function's (schema-qualified) name to
	// the closing parenthesis.
	Start, End int
	// Name is the sequence argument (nothing for lastval).
	Name Argument
	// Value and IsCalled are the further arguments of setval. IsCalled is a constant TRUE when absent.
	Value, IsCalled Argument
	Evaluation      Evaluation
	// Rows: PerRow, exactly once for each row of Statement.Rows, in their order. It is a nextval of a constant name.
	Rows bool
	// Place is where the call stands; Replacement depends on it.
	Place Place
	// Body: the call stands inside a string (the body of a function or DO); it cannot be replaced.
	Body bool
	// Default: the call stands in the definition of a table, domain, view or rule, as the default of a column, say.
	Default bool

	nameAt int // with Rows: where the target ends that it stands in
}

// Place says what must be kept when the call is replaced.
type Place uint8

const (
	// PlaceExpression: the call's own name shows nowhere.
	PlaceExpression Place = iota
	// PlaceColumn: the call gives an output column its name.
	PlaceColumn
	// PlaceFrom: the call is a function in FROM that has an alias.
	PlaceFrom
	// PlaceFromBare: the call is a function in FROM without an alias: its name is also the alias.
	PlaceFromBare
)

// ArgumentKind says what an argument of a call is.
type ArgumentKind uint8

const (
	// Opaque: an expression whose value the text does not tell.
	Opaque ArgumentKind = iota
	// Constant: Value holds it, as text ("" with Null for NULL).
	Constant
	// Parameter: $Param.
	Parameter
)

// Argument is one argument of a call.
type Argument struct {
	Kind  ArgumentKind
	Value string
	Null  bool
	Param int
	// Type is the OID of the type of the constant or of the innermost cast applied to the constant or parameter; 0 when unknown or
	// undeclared.
	Type uint32
	// Sole: the parameter occurs nowhere else in the text.
	Sole bool
	// Start and End are its byte range in Plan.Text.
	Start, End int
}

// Read is a relation in FROM that may be a sequence.
type Read struct {
	Name Name
	// Start and End are the byte range of the relation's name (with ONLY and *, where written), without its alias.
	Start, End int
	// Alias: an alias follows in the text.
	Alias bool
	// Table: written as TABLE name, which is then the range.
	Table bool
	// Prepared: it is read when what the statement prepares is executed.
	Prepared bool
}

// Prepare is a PREPARE.
type Prepare struct {
	Name string
	// Params is the number of its parameters.
	Params int
}

// Execute is an EXECUTE.
type Execute struct {
	Name string
	// Params is the number of arguments, and Start and End are the byte range of their parentheses, or the place after the name
	// where there are none.
	Params     int
	Start, End int
}

// Name is a possibly schema-qualified relation name, folded to lower case where it was not quoted. Database is empty
// unless it was written.
type Name struct {
	Database, Schema, Name string
}

// Answer is a result that can be computed without the upstream.
type Answer struct {
	Columns []string
	// Rows holds one row of a SELECT, or the rows of VALUES.
	Rows [][]Expr
	// Read, when >= 0, is the index in Statement.Reads of the sequence whose columns Rows name (ExprField); -1 otherwise.
	Read int
	// Params are the types that PostgreSQL would infer for undeclared parameters ($1 first); 0 where it could not.
	Params []uint32
}

// ExprKind says what an Expr is.
type ExprKind uint8

const (
	// ExprCall: the result of Statement.Calls[Call].
	ExprCall ExprKind = iota
	// ExprConstant: Text (or Null), of type Type.
	ExprConstant
	// ExprParam: $Param.
	ExprParam
	// ExprCast: Arg cast to Type with Typmod.
	ExprCast
	// ExprField: the column Text (last_value, log_cnt or is_called) of the sequence read.
	ExprField
	// ExprClass: Statement.Classes[Class].
	ExprClass
)

// Expr is one target of an Answer.
type Expr struct {
	Kind  ExprKind
	Call  int
	Class int
	Text  string
	Null  bool
	Param int
	// Type is an OID of pg_type: that of the expression's result (0 for an undeclared parameter).
	Type   uint32
	Typmod int32
	Arg    *Expr
}

// PeerCall is the call of a function of the schema nextvald, by which other processes lease from this one.
type PeerCall struct {
	Function string
	// Arguments are constants and parameters, cast to int8 or text as the function takes them.
	Arguments []Expr
	// Missing is the signature of a function that does not exist, as PostgreSQL words it; empty for one that does.
	Missing string
	// Start is the byte offset of the call in Plan.Text.
	Start int
}

// TransactionVerb is what a transaction statement does.
type TransactionVerb uint8

const (
	NoVerb TransactionVerb = iota
	Begin
	Commit
	Rollback
	Savepoint
	RollbackTo
	Release
	PrepareTransaction
	CommitPrepared
	RollbackPrepared
)

// Transaction is a transaction statement.
type Transaction struct {
	Verb TransactionVerb
	// Savepoint is the savepoint's name, for Savepoint, RollbackTo and Release.
	Savepoint string
	// Chain: AND CHAIN.
	Chain bool
	// ReadOnly is the access mode written in BEGIN: nil when none is.
	ReadOnly *bool
}

// DDLVerb is what a sequence DDL statement does.
type DDLVerb uint8

const (
	CreateSequence DDLVerb = iota
	AlterSequence
	DropSequence
	RenameSequence
	SetSchema
	OwnerTo
	SetParameters // SET (...) and RESET (...)
)

// DDL is a statement about sequences as relations.
type DDL struct {
	Verb DDLVerb
	// Names is the sequence; several for DROP.
	Names []Name
	// IfExists: IF EXISTS, or IF NOT EXISTS of CREATE.
	IfExists bool
	// Temporary, Unlogged: persistence of CREATE.
	Temporary, Unlogged bool
	Cascade             bool
	// Options of CREATE and ALTER, in the order written.
	Options []Option
	// Parameters of SET and RESET, in the order written.
	Parameters []StorageParameter
	// To is the new name, schema or owner of RENAME TO, SET SCHEMA and OWNER TO (CURRENT_USER and its like as written, upper case).
	To string
	// Table: written as ALTER TABLE (or VIEW, ...): when the name is no sequence of ours the statement passes.
	Table bool
	// Tag is the command tag ("ALTER SEQUENCE", or "ALTER TABLE" when so written).
	Tag string
}

// Option is one option of CREATE or ALTER SEQUENCE.
type Option struct {
	// Name is PostgreSQL's own: "as", "increment", "minvalue", "maxvalue", "start", "restart", "cache", "cycle",
	// "owned_by", "sequence_name", "logged".
	Name string
	// Value is the decimal number as written, the type's name ("pg_catalog.int2" for smallint) or the dotted OWNED BY column; empty with None.
	Value string
	// None: NO MINVALUE, NO MAXVALUE, NO CYCLE, OWNED BY NONE, RESTART without a value.
	None bool
	// Parts are the name parts of "as" (without array or typmod marks) and "owned_by".
	Parts []string
	// Start is the option's byte offset in Plan.Text, and ValueStart that of the type of "as", for error positions.
	Start, ValueStart int
}

// StorageParameter is one parameter of ALTER SEQUENCE .. SET (...) or RESET (...). PostgreSQL's sequences have none.
type StorageParameter struct {
	// Namespace is what was written before the name: nextvald of nextvald.mode. It may be empty.
	Namespace, Name string
	// Value is what was written, without quotes; "true" where nothing was. Empty with Reset.
	Value string
	Reset bool
}
