package standalone

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"
	pg_query "github.com/pganalyze/pg_query_go/v5"

	"github.com/nextvald/nextvald/proxy/answer"
	"github.com/nextvald/nextvald/sqlrewrite"
)

// evaluation is what the expressions of a command are evaluated with.
type evaluation struct {
	session *session
	command *command
	params  []answer.Param
}

// functionCall is what an ExprField of a command stands for; its Text is the call's index.
type functionCall struct {
	eval func(e *evaluation) (any, error)
	// immutable calls depend on constants and parameters alone: PostgreSQL evaluates them while it plans.
	immutable bool
}

func (e *evaluation) field(x *sqlrewrite.Expr) (any, error) {
	index := x.Text
	i, err := strconv.Atoi(index)
	if err != nil {
		return nil, err
	}
	return e.command.functions[i].eval(e)
}

func (e *evaluation) call(i int) (int64, bool, error) {
	return e.command.sequences[i](e)
}

func (e *evaluation) value(x *sqlrewrite.Expr) (answer.Result, error) {
	return answer.Evaluate(x, e.params, e.call, e.field)
}

// function is one that may be called.
type function struct {
	args     []uint32
	optional int // of args
	result   uint32
	// lax functions are called with NULL arguments, too; the others then are NULL.
	lax bool
	run func(s *session, args []answer.Result) (any, error)
}

// functions are those of pg_catalog that clients call to look after a session.
var functions = map[string]function{
	"version": {result: pgtype.TextOID, run: func(*session, []answer.Result) (any, error) {
		return "PostgreSQL " + serverVersion, nil
	}},
	"current_database": {result: pgtype.NameOID, run: func(s *session, _ []answer.Result) (any, error) { return s.database, nil }},
	"current_schema":   {result: pgtype.NameOID, run: func(s *session, _ []answer.Result) (any, error) { return s.currentSchema(), nil }},
	"current_schemas": {args: []uint32{pgtype.BoolOID}, result: pgtype.NameArrayOID, run: func(s *session, args []answer.Result) (any, error) {
		return s.schemas(args[0].Int() != 0), nil
	}},
	"current_setting":        {args: []uint32{pgtype.TextOID, pgtype.BoolOID}, optional: 1, result: pgtype.TextOID, run: currentSetting},
	"set_config":             {args: []uint32{pgtype.TextOID, pgtype.TextOID, pgtype.BoolOID}, result: pgtype.TextOID, lax: true, run: setConfig},
	"now":                    {result: pgtype.TimestamptzOID, run: transactionTime},
	"transaction_timestamp":  {result: pgtype.TimestamptzOID, run: transactionTime},
	"statement_timestamp":    {result: pgtype.TimestamptzOID, run: clockTime},
	"clock_timestamp":        {result: pgtype.TimestamptzOID, run: clockTime},
	"pg_is_in_recovery":      {result: pgtype.BoolOID, run: func(*session, []answer.Result) (any, error) { return false, nil }},
	"pg_backend_pid":         {result: pgtype.Int4OID, run: func(s *session, _ []answer.Result) (any, error) { return int64(s.pid), nil }},
	"pg_client_encoding":     {result: pgtype.NameOID, run: func(s *session, _ []answer.Result) (any, error) { return s.settings.get("client_encoding"), nil }},
	"pg_advisory_unlock_all": {result: answer.VoidOID, run: func(*session, []answer.Result) (any, error) { return "", nil }},
	"int8larger": {args: []uint32{pgtype.Int8OID, pgtype.Int8OID}, result: pgtype.Int8OID, run: func(_ *session, args []answer.Result) (any, error) {
		return max(args[0].Int(), args[1].Int()), nil
	}},
}

func currentSetting(s *session, args []answer.Result) (any, error) {
	name := args[0].Text()
	if !s.settings.known(name) {
		if len(args) > 1 && args[1].Int() != 0 {
			return nil, nil
		}
		return nil, errUnknownSetting(name)
	}
	return s.settings.get(name), nil
}

// setConfig is set_config(name, value, is_local); a NULL value resets.
func setConfig(s *session, args []answer.Result) (any, error) {
	if args[0].Null() {
		return nil, errorf("22004", "SET requires parameter name")
	}
	name, value, local := args[0].Text(), args[1].Text(), args[2].Int() != 0
	if args[1].Null() {
		if !s.settings.known(name) {
			return nil, errUnknownSetting(name)
		}
		value = s.settings.initial(name)
	}
	if err := s.set(name, value, local); err != nil {
		return nil, err
	}
	return s.settings.get(name), nil
}

func transactionTime(s *session, _ []answer.Result) (any, error) {
	return s.settings.localTime(s.tx.started)
}

func clockTime(s *session, _ []answer.Result) (any, error) {
	return s.settings.localTime(s.backend.now())
}

// function reads a call.
func (b *builder) function(f *pg_query.FuncCall, sources []source) (sqlrewrite.Expr, error) {
	name := lastName(f.Funcname)
	schema := ""
	if len(f.Funcname) > 1 {
		schema = f.Funcname[0].GetString_().GetSval()
	}
	var args []sqlrewrite.Expr
	if isSequenceFunction(name) && (schema == "" || schema == "pg_catalog") {
		return b.sequence(name, f, sources)
	}
	for _, n := range f.Args {
		x, err := b.expression(n, sources)
		if err != nil {
			return x, err
		}
		args = append(args, x)
	}
	fn, ok := functions[name]
	simple := len(f.Funcname) <= 2 && (schema == "" || schema == "pg_catalog") && !f.AggStar && !f.AggDistinct && !f.FuncVariadic &&
		len(f.AggOrder) == 0 && f.AggFilter == nil && f.Over == nil && !f.AggWithinGroup
	if !ok || !simple {
		return sqlrewrite.Expr{}, unsupported("the function " + name)
	}
	if len(args) > len(fn.args) || len(args) < len(fn.args)-fn.optional {
		return sqlrewrite.Expr{}, b.noFunction(f, name, args)
	}
	for i := range args {
		if !b.accept(&args[i], fn.args[i]) {
			return sqlrewrite.Expr{}, b.noFunction(f, name, args)
		}
		args[i] = castTo(args[i], fn.args[i])
	}
	return b.addFunction(fn.result, functionCall{eval: func(e *evaluation) (any, error) {
		var values []answer.Result
		for i := range args {
			v, err := e.value(&args[i])
			if err != nil || v.Null() && !fn.lax {
				return nil, err
			}
			values = append(values, v)
		}
		return fn.run(e.session, values)
	}}), nil
}

func castTo(x sqlrewrite.Expr, typ uint32) sqlrewrite.Expr {
	return sqlrewrite.Expr{Kind: sqlrewrite.ExprCast, Type: typ, Typmod: -1, Arg: &x}
}

func (b *builder) addFunction(result uint32, call functionCall) sqlrewrite.Expr {
	b.functions = append(b.functions, call)
	return sqlrewrite.Expr{Kind: sqlrewrite.ExprField, Type: result, Typmod: -1, Text: itoa(len(b.functions) - 1)}
}

// accept reports whether an argument is of a type, or becomes it without a cast; a parameter without a type gets it.
func (b *builder) accept(x *sqlrewrite.Expr, typ uint32) bool {
	if x.Kind == sqlrewrite.ExprParam && b.params[x.Param-1].typ == 0 {
		b.params[x.Param-1].typ = typ
		return true
	}
	from, _, ok := answer.TypeOf(x, b.types())
	if !ok {
		return false
	}
	common, ok := answer.CommonType(from, typ)
	return from == typ || from == pgtype.UnknownOID || ok && common == typ
}

// noFunction is the error of a call with arguments that no function has.
func (b *builder) noFunction(f *pg_query.FuncCall, name string, args []sqlrewrite.Expr) error {
	var types []string
	for i := range args {
		typ, _, _ := answer.TypeOf(&args[i], b.types())
		types = append(types, answer.TypeName(typ))
	}
	e := errorf("42883", "function %s(%s) does not exist", name, strings.Join(types, ", "))
	e.Hint = "No function matches the given name and argument types. You might need to add explicit type casts."
	e.Position = positionOf(b.text, f.Location)
	return e
}

// valueFunctionNames are the words of the SQL standard's functions without parentheses.
var valueFunctionNames = map[pg_query.SQLValueFunctionOp]string{
	pg_query.SQLValueFunctionOp_SVFOP_CURRENT_USER:      "current_user",
	pg_query.SQLValueFunctionOp_SVFOP_SESSION_USER:      "session_user",
	pg_query.SQLValueFunctionOp_SVFOP_USER:              "user",
	pg_query.SQLValueFunctionOp_SVFOP_CURRENT_ROLE:      "current_role",
	pg_query.SQLValueFunctionOp_SVFOP_CURRENT_CATALOG:   "current_catalog",
	pg_query.SQLValueFunctionOp_SVFOP_CURRENT_SCHEMA:    "current_schema",
	pg_query.SQLValueFunctionOp_SVFOP_CURRENT_TIMESTAMP: "current_timestamp",
}

func (b *builder) valueFunction(f *pg_query.SQLValueFunction) (sqlrewrite.Expr, error) {
	var value func(s *session) (any, error)
	typ := uint32(pgtype.NameOID)
	switch f.Op {
	case pg_query.SQLValueFunctionOp_SVFOP_CURRENT_USER, pg_query.SQLValueFunctionOp_SVFOP_SESSION_USER,
		pg_query.SQLValueFunctionOp_SVFOP_USER, pg_query.SQLValueFunctionOp_SVFOP_CURRENT_ROLE:
		value = func(s *session) (any, error) { return s.user, nil }
	case pg_query.SQLValueFunctionOp_SVFOP_CURRENT_CATALOG:
		value = func(s *session) (any, error) { return s.database, nil }
	case pg_query.SQLValueFunctionOp_SVFOP_CURRENT_SCHEMA:
		value = func(s *session) (any, error) { return s.currentSchema(), nil }
	case pg_query.SQLValueFunctionOp_SVFOP_CURRENT_TIMESTAMP:
		typ = pgtype.TimestamptzOID
		value = func(s *session) (any, error) { return s.settings.localTime(s.tx.started) }
	default:
		return sqlrewrite.Expr{}, unsupported("a date or time of this kind")
	}
	return b.addFunction(typ, functionCall{eval: func(e *evaluation) (any, error) { return value(e.session) }}), nil
}

// coalesce reads COALESCE: its arguments are evaluated one after the other until one is not NULL.
func (b *builder) coalesce(list []*pg_query.Node, sources []source) (sqlrewrite.Expr, error) {
	var args []sqlrewrite.Expr
	typ := uint32(pgtype.UnknownOID)
	for _, n := range list {
		x, err := b.expression(n, sources)
		if err != nil {
			return x, err
		}
		args = append(args, x)
		if x.Kind == sqlrewrite.ExprParam && b.params[x.Param-1].typ == 0 {
			continue
		}
		t, _, ok := answer.TypeOf(&x, b.types())
		if !ok {
			return x, unsupported("an expression of this type")
		}
		common, ok := answer.CommonType(typ, t)
		if !ok {
			return x, errorf("42804", "COALESCE types %s and %s cannot be matched", answer.TypeName(typ), answer.TypeName(t))
		}
		typ = common
	}
	if typ == pgtype.UnknownOID {
		typ = pgtype.TextOID
	}
	for i := range args {
		if err := b.settle(&args[i], typ); err != nil {
			return args[i], err
		}
	}
	return b.addFunction(typ, functionCall{eval: func(e *evaluation) (any, error) {
		for i := range args {
			v, err := e.value(&args[i])
			if err != nil || !v.Null() {
				return v, err
			}
		}
		return nil, nil
	}}), nil
}

// operator reads integer arithmetic.
func (b *builder) operator(o *pg_query.A_Expr, sources []source) (sqlrewrite.Expr, error) {
	name := lastName(o.Name)
	refused := unsupported(fmt.Sprintf("the operator %s", name))
	if o.Kind != pg_query.A_Expr_Kind_AEXPR_OP || len(o.Name) != 1 || !strings.Contains("+-*/", name) || len(name) != 1 {
		return sqlrewrite.Expr{}, unsupported("an expression of this kind")
	}
	right, err := b.expression(o.Rexpr, sources)
	if err != nil {
		return right, err
	}
	left := sqlrewrite.Expr{Kind: sqlrewrite.ExprConstant, Type: pgtype.Int2OID, Text: "0", Typmod: -1}
	switch {
	case o.Lexpr != nil:
		if left, err = b.expression(o.Lexpr, sources); err != nil {
			return left, err
		}
	case name != "+" && name != "-":
		return left, refused
	}
	typ, ok := b.integerType(&left, &right)
	if !ok {
		return left, refused
	}
	for _, x := range []*sqlrewrite.Expr{&left, &right} {
		if err := b.settle(x, typ); err != nil {
			return left, refused
		}
	}
	left, right = castTo(left, typ), castTo(right, typ)
	call := functionCall{immutable: b.immutable(&left) && b.immutable(&right)}
	call.eval = func(e *evaluation) (any, error) {
		l, err := e.value(&left)
		if err != nil || l.Null() {
			return nil, err
		}
		r, err := e.value(&right)
		if err != nil || r.Null() {
			return nil, err
		}
		return compute(name[0], l.Int(), r.Int(), typ)
	}
	return b.addFunction(typ, call), nil
}

// integerType is the type in which PostgreSQL computes with two operands.
func (b *builder) integerType(operands ...*sqlrewrite.Expr) (typ uint32, ok bool) {
	typ = pgtype.UnknownOID
	for _, x := range operands {
		if x.Kind == sqlrewrite.ExprParam && b.params[x.Param-1].typ == 0 {
			continue
		}
		t, _, ok := answer.TypeOf(x, b.types())
		common, both := answer.CommonType(typ, t)
		if !ok || !both {
			return 0, false
		}
		typ = common
	}
	return typ, typ == pgtype.Int2OID || typ == pgtype.Int4OID || typ == pgtype.Int8OID
}

// compute calculates in 64 bits and checks the range of the type.
func compute(op byte, l, r int64, typ uint32) (any, error) {
	var v int64
	overflow := false
	switch op {
	case '+':
		v = l + r
		overflow = (v > l) != (r > 0) && r != 0
	case '-':
		v = l - r
		overflow = (v < l) != (r > 0) && r != 0
	case '*':
		v = l * r
		overflow = l != 0 && (v/l != r || l == -1 && r == -1<<63)
	case '/':
		switch {
		case r == 0:
			return nil, errorf("22012", "division by zero")
		case r == -1:
			return compute('-', 0, l, typ)
		}
		v = l / r
	}
	bits := map[uint32]int{pgtype.Int2OID: 16, pgtype.Int4OID: 32, pgtype.Int8OID: 64}[typ]
	if shift := 64 - bits; overflow || v<<shift>>shift != v {
		return nil, errorf("22003", "%s out of range", answer.TypeName(typ))
	}
	return v, nil
}

// immutable reports whether an expression depends on constants and parameters alone.
func (b *builder) immutable(x *sqlrewrite.Expr) bool {
	for x.Kind == sqlrewrite.ExprCast {
		x = x.Arg
	}
	if x.Kind == sqlrewrite.ExprField {
		i, err := strconv.Atoi(x.Text)
		return err == nil && b.functions[i].immutable
	}
	return x.Kind == sqlrewrite.ExprConstant || x.Kind == sqlrewrite.ExprParam
}
