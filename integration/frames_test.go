package integration

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
)

// conversation is what a client sends. Every exchange is sent at once and then answered up to its last ReadyForQuery, or
// by the number of messages that a flush names.
type conversation []exchange

type exchange struct {
	messages []pgproto3.FrontendMessage
	answers  int // without a Sync or Query: how many messages to wait for
}

func send(messages ...pgproto3.FrontendMessage) exchange { return exchange{messages: messages} }

// flush ends an exchange by a Flush that n messages answer.
func flush(n int, messages ...pgproto3.FrontendMessage) exchange {
	return exchange{messages: append(messages, &pgproto3.Flush{}), answers: n}
}

// closes is an exchange after whose n messages the server closes the connection.
func closes(n int, messages ...pgproto3.FrontendMessage) exchange {
	return exchange{messages: messages, answers: n + 1}
}

func query(sql string) *pgproto3.Query { return &pgproto3.Query{String: sql} }
func parse(name, sql string, oids ...uint32) *pgproto3.Parse {
	return &pgproto3.Parse{Name: name, Query: sql, ParameterOIDs: oids}
}
func bind(portal, statement string, params ...any) *pgproto3.Bind {
	b := &pgproto3.Bind{DestinationPortal: portal, PreparedStatement: statement}
	for _, p := range params {
		switch p := p.(type) {
		case nil:
			b.Parameters = append(b.Parameters, nil)
		case string:
			b.Parameters = append(b.Parameters, []byte(p))
		case []byte:
			b.Parameters = append(b.Parameters, p)
		}
	}
	return b
}
func formats(b *pgproto3.Bind, params, results []int16) *pgproto3.Bind {
	b.ParameterFormatCodes, b.ResultFormatCodes = params, results
	return b
}
func describeS(name string) *pgproto3.Describe {
	return &pgproto3.Describe{ObjectType: 'S', Name: name}
}
func describeP(name string) *pgproto3.Describe {
	return &pgproto3.Describe{ObjectType: 'P', Name: name}
}
func execute(portal string, limit uint32) *pgproto3.Execute {
	return &pgproto3.Execute{Portal: portal, MaxRows: limit}
}
func closeS(name string) *pgproto3.Close { return &pgproto3.Close{ObjectType: 'S', Name: name} }
func closeP(name string) *pgproto3.Close { return &pgproto3.Close{ObjectType: 'P', Name: name} }

// malformed is a message as it is.
type malformed []byte

func (malformed) Frontend()                           {}
func (malformed) Decode([]byte) error                 { return nil }
func (m malformed) Encode(dst []byte) ([]byte, error) { return append(dst, m...), nil }

// function calls one by its OID in pg_proc, all arguments in one format.
func function(oid uint32, format, result uint16, arguments ...string) *pgproto3.FunctionCall {
	f := &pgproto3.FunctionCall{Function: oid, ArgFormatCodes: []uint16{format}, ResultFormatCode: result}
	for _, a := range arguments {
		f.Arguments = append(f.Arguments, []byte(a))
	}
	return f
}

var sync = &pgproto3.Sync{}

// converse carries out a conversation on a fresh connection and returns what the server said, a line for each message.
func converse(t *testing.T, url string, c conversation) []string {
	t.Helper()
	conn := dialRaw(t, url)
	var lines []string
	for _, e := range c {
		lines = append(lines, fmt.Sprintf("-- %T", e.messages[0]))
		lines = append(lines, conn.exchange(t, e)...)
		if lines[len(lines)-1] == theEnd {
			break
		}
	}
	return lines
}

// theEnd is what next returns at the end of the connection.
const theEnd = "closed"

// exchange carries out one exchange.
func (c *rawConn) exchange(t testing.TB, e exchange) (lines []string) {
	t.Helper()
	ready := 0
	for _, m := range e.messages {
		c.frontend.Send(m)
		switch m.(type) {
		case *pgproto3.Sync, *pgproto3.Query, *pgproto3.FunctionCall:
			if e.answers == 0 {
				ready++
			}
		}
	}
	require.NoError(t, c.frontend.Flush())
	for answers := e.answers; ready > 0 || answers > 0; answers-- {
		line := c.next(t)
		lines = append(lines, line)
		switch {
		case line == theEnd:
			return lines
		case strings.HasPrefix(line, "ReadyForQuery"):
			ready--
		}
	}
	return lines
}

// next receives one message, but for those that show leaves out.
func (c *rawConn) next(t testing.TB) string {
	t.Helper()
	for {
		m, err := c.frontend.Receive()
		if err != nil {
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
			return theEnd
		}
		if line := show(m); line != "" {
			return line
		}
	}
}

// show writes a message for people, without what differs between two servers.
func show(m pgproto3.BackendMessage) string {
	switch m := m.(type) {
	case *pgproto3.ErrorResponse:
		return fmt.Sprintf("ErrorResponse %s/%s %s %q detail=%q position=%d where=%q", m.Severity, m.SeverityUnlocalized, m.Code, m.Message, m.Detail, m.Position, m.Where)
	case *pgproto3.NoticeResponse:
		return fmt.Sprintf("NoticeResponse %s %s %q", m.Severity, m.Code, m.Message)
	case *pgproto3.RowDescription:
		var cols []string
		for _, f := range m.Fields {
			table := f.TableOID
			if table != 0 {
				table = 1
			}
			cols = append(cols, fmt.Sprintf("%s(%d.%d type %d size %d mod %d format %d)", f.Name, table, f.TableAttributeNumber, f.DataTypeOID, f.DataTypeSize, f.TypeModifier, f.Format))
		}
		return "RowDescription " + strings.Join(cols, ", ")
	case *pgproto3.DataRow:
		var values []string
		for _, v := range m.Values {
			if v == nil {
				values = append(values, "NULL")
			} else {
				values = append(values, fmt.Sprintf("%q", v))
			}
		}
		return "DataRow " + strings.Join(values, ", ")
	case *pgproto3.CommandComplete:
		return fmt.Sprintf("CommandComplete %s", m.CommandTag)
	case *pgproto3.ReadyForQuery:
		return fmt.Sprintf("ReadyForQuery %c", m.TxStatus)
	case *pgproto3.ParameterDescription:
		return fmt.Sprintf("ParameterDescription %v", m.ParameterOIDs)
	case *pgproto3.ParameterStatus:
		return ""
	default:
		return strings.TrimPrefix(fmt.Sprintf("%T", m), "*pgproto3.")
	}
}

type rawConn struct {
	net.Conn
	frontend *pgproto3.Frontend
}

// dialRaw logs in by hand, so that nothing but what the test sends is on the connection.
func dialRaw(t testing.TB, url string) *rawConn {
	t.Helper()
	cfg, err := pgx.ParseConfig(url)
	require.NoError(t, err)
	conn, err := net.Dial("tcp", net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port))))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	f := pgproto3.NewFrontend(conn, conn)
	f.Send(&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30,
		Parameters: map[string]string{"user": cfg.User, "database": cfg.Database}})
	require.NoError(t, f.Flush())
	for {
		m, err := f.Receive()
		require.NoError(t, err)
		switch m := m.(type) {
		case *pgproto3.ReadyForQuery:
			return &rawConn{conn, f}
		case *pgproto3.ErrorResponse:
			t.Fatalf("login: %s", m.Message)
		}
	}
}

// int8be is a bigint in binary form.
func int8be(v int64) []byte {
	b := make([]byte, 8)
	for i := range b {
		b[i] = byte(v >> (56 - 8*i))
	}
	return b
}

// sequences are created on both sides of a comparison.
var sequences = []string{
	"CREATE SEQUENCE s START 1000 INCREMENT 10",
	"CREATE SEQUENCE short MAXVALUE 2",
	`CREATE SEQUENCE "Mixed ""Case"`,
}

// conversations need the sequences and, where the name of their group says so, a table.
var (
	alone = map[string]conversation{
		"simple":               {send(query("SELECT nextval('s')")), send(query("select NEXTVAL( 's' ) , currval('s')AS c,lastval() ;"))},
		"simple forms":         {send(query("/* a */ SELECT pg_catalog.nextval('public.s'::regclass) AS \"X\", 1, 'a', NULL, true, 1.5 -- end"))},
		"regclass":             {send(query("SELECT 's'::regclass, regclass 'public.s', CAST('s' AS pg_catalog.regclass)::text, to_regclass('\"Mixed \"\"Case\"')"))},
		"regclass, extended":   {send(parse("", "SELECT 's'::regclass AS a, nextval('s'::regclass)"), bind("", ""), describeP(""), execute("", 0), sync)},
		"function call":        {send(function(1574, 0, 0, "s")), send(function(1574, 0, 1, "public.s")), send(function(1575, 0, 0, "s")), send(function(2559, 0, 0)), send(function(1576, 0, 0, "s", "40")), send(function(1765, 0, 1, "s", "50", "f")), send(function(1574, 0, 0, "s")), send(query("SELECT currval('s')"))},
		"function call errors": {send(function(1574, 0, 0, "nosuch")), send(function(1575, 0, 0, "s")), send(function(2559, 0, 0)), send(function(1576, 0, 0, "s", "x")), send(function(1576, 0, 0, "s", "0")), send(function(1576, 1, 0, "s", "12345678")), send(query("SELECT nextval('s')"))},
		"values":               {send(query("VALUES (nextval('s'), 'x'), (nextval('s'), 'y')"))},
		"function in from":     {send(query("SELECT * FROM nextval('s')"), query("SELECT * FROM nextval('s') AS x"), query("select * from nextval('s') as x(y)"))},
		"casts":                {send(query("SELECT nextval('s')::int, nextval('s')::text, CAST(nextval('s') AS smallint), nextval('s')::numeric"))},
		"quoted name":          {send(query(`SELECT nextval('"Mixed ""Case"'), nextval('public."Mixed ""Case"')`))},
		"string literal forms": {send(query(`SELECT nextval(E's'), nextval($$s$$), nextval($a$s$a$), nextval(' s '), nextval('S')`))},
		"several statements":   {send(query("SELECT nextval('s'); SELECT nextval('s'); SELECT currval('s')"))},
		"null":                 {send(query("SELECT nextval(NULL)"), query("SELECT setval('s', NULL)"), query("SELECT setval('s', 5, NULL)"))},
		"unknown":              {send(query("SELECT nextval('nosuch')"), query("SELECT currval('nosuch')"), query("SELECT setval('nosuch', 1)"))},
		"invalid names":        {send(query("SELECT nextval('')"), query("SELECT nextval('a.b.c.d')"), query("SELECT nextval('\"x')"))},
		"undefined":            {send(query("SELECT currval('s')"), query("SELECT lastval()"))},
		"setval":               {send(query("SELECT setval('s', 7)"), query("SELECT currval('s')"), query("SELECT nextval('s')"), query("SELECT setval('s', 50, false)"), query("SELECT currval('s')"), query("SELECT nextval('s')"))},
		"setval out of bounds": {send(query("SELECT setval('s', 0)"), query("SELECT setval('short', 3)"), query("SELECT setval('short', -1, false)"))},
		"setval forms":         {send(query("SELECT pg_catalog.setval('public.s', 20, true)"), query("SELECT setval('s','30','t')"), query("select setval('s', 40::bigint)"), query("SELECT setval('s', nextval('s'))"), query("SELECT * FROM setval('s', nextval('s'), false)"))},
		"limit":                {send(query("SELECT nextval('short'), nextval('short')"), query("SELECT nextval('short')"), query("SELECT 1"))},
		"block":                {send(query("BEGIN"), query("SELECT nextval('s')"), query("ROLLBACK"), query("SELECT nextval('s'), currval('s')"))},
		"read only":            {send(query("BEGIN READ ONLY"), query("SELECT nextval('s')"), query("ROLLBACK"), query("BEGIN"), query("SET TRANSACTION READ ONLY"), query("SELECT setval('s', 5)"), query("ROLLBACK"))},
		"read only by default": {send(query("SET default_transaction_read_only = on"), query("SELECT nextval('s')"), query("BEGIN READ WRITE"), query("SELECT nextval('s')"), query("COMMIT"))},
		"empty":                {send(query("")), send(query(";")), send(query("-- ping"))},
		"drop and create":      {send(query("DROP SEQUENCE s"), query("SELECT nextval('s')"), query("CREATE SEQUENCE s"), query("SELECT nextval('s')"), query("DROP SEQUENCE s, short"), query("DROP SEQUENCE s"), query("DROP SEQUENCE IF EXISTS s"))},
		"alter":                {send(query("ALTER SEQUENCE s RESTART"), query("SELECT nextval('s')"), query("ALTER SEQUENCE s INCREMENT 5"), query("SELECT nextval('s')"), query("ALTER SEQUENCE s RESTART WITH 77 MAXVALUE 90"), query("SELECT nextval('s')"), query("ALTER SEQUENCE s MAXVALUE 10"), query("ALTER SEQUENCE IF EXISTS nosuch RESTART"), query("ALTER SEQUENCE nosuch RESTART"), query("ALTER SEQUENCE s RESTART 1 RESTART 2"))},
		"cycle":                {send(query("CREATE SEQUENCE c AS smallint MINVALUE 1 MAXVALUE 3 CYCLE"), query("SELECT nextval('c'), nextval('c'), nextval('c'), nextval('c')"), query("CREATE SEQUENCE d INCREMENT -1 MINVALUE -3 MAXVALUE -1"), query("SELECT nextval('d'), nextval('d'), nextval('d')"), query("SELECT nextval('d')"))},
		"bounds":               {send(query("CREATE SEQUENCE b START 9223372036854775806"), query("SELECT nextval('b'), nextval('b')"), query("SELECT nextval('b')"), query("CREATE SEQUENCE e INCREMENT -1 MINVALUE -9223372036854775808 START -9223372036854775807"), query("SELECT nextval('e'), nextval('e')"), query("SELECT nextval('e')"))},
		"discard":              {send(query("SELECT nextval('s')"), query("DISCARD SEQUENCES"), query("SELECT currval('s')"), query("SELECT lastval()"))},
		"savepoint":            {send(query("BEGIN"), query("SAVEPOINT a"), query("SELECT nextval('short'), nextval('short')"), query("SELECT nextval('short')"), query("ROLLBACK TO a"), query("SELECT nextval('s')"), query("COMMIT"))},

		"extended":               {send(parse("", "SELECT nextval('s')"), bind("", ""), describeP(""), execute("", 0), sync)},
		"extended binary":        {send(parse("", "SELECT nextval('s')"), formats(bind("", ""), nil, []int16{1}), describeP(""), execute("", 0), sync)},
		"describe statement":     {send(parse("a", "SELECT nextval('s'), currval('s') AS c"), describeS("a"), sync)},
		"named":                  {send(parse("a", "SELECT nextval('s')"), sync), send(bind("", "a"), execute("", 0), sync), send(bind("p", "a"), execute("p", 0), execute("p", 0), sync)},
		"parameter name":         {send(parse("a", "SELECT nextval($1)"), describeS("a"), sync), send(bind("", "a", "s"), execute("", 0), sync), send(bind("", "a", nil), execute("", 0), sync), send(bind("", "a", "nosuch"), execute("", 0), sync), send(bind("", "a", "Public . S"), execute("", 0), sync)},
		"parameter name text":    {send(parse("a", "SELECT nextval($1)", 25), describeS("a"), sync), send(bind("", "a", "s"), execute("", 0), sync), send(bind("", "a", "nosuch"), execute("", 0), sync)},
		"parameter name varchar": {send(parse("a", "SELECT nextval($1)", 1043), describeS("a"), sync), send(bind("", "a", "s"), execute("", 0), sync)},
		"parameter name unknown": {send(parse("a", "SELECT nextval($1)", 705), describeS("a"), sync), send(bind("", "a", "s"), execute("", 0), sync)},
		"parameter name wrong":   {send(parse("a", "SELECT nextval($1)", 19), sync), send(query("SELECT nextval('s')"))},
		"parameter cast":         {send(parse("a", "SELECT nextval($1::text), currval($2::regclass)"), describeS("a"), sync), send(bind("", "a", "s", "s"), execute("", 0), sync)},
		"parameter setval":       {send(parse("a", "SELECT setval($1, $2, $3)"), describeS("a"), sync), send(bind("", "a", "s", "500", "f"), execute("", 0), sync), send(formats(bind("", "a", "s", int8be(600), []byte{1}), []int16{0, 1, 1}, []int16{1}), execute("", 0), sync), send(query("SELECT nextval('s')"))},
		"no execute":             {send(parse("", "SELECT nextval('s')"), bind("", ""), sync), send(query("SELECT nextval('s')"))},
		"row limit":              {send(parse("", "SELECT nextval('s')"), bind("", ""), execute("", 1), execute("", 1), sync), send(query("SELECT nextval('s')"))},
		"row limit two":          {send(parse("", "SELECT nextval('s')"), bind("", ""), execute("", 2), execute("", 0), sync)},
		"row limit values":       {send(parse("", "VALUES (nextval('s')), (nextval('s')), (nextval('s'))"), bind("", ""), execute("", 2), execute("", 2), execute("", 2), sync)},
		"too many formats":       {send(parse("", "SELECT nextval('s')"), formats(bind("", ""), nil, []int16{0, 1}), execute("", 0), sync)},
		"too many parameters":    {send(parse("", "SELECT nextval('s')"), bind("", "", "x"), execute("", 0), sync)},
		"too few parameters":     {send(parse("", "SELECT nextval($1)"), bind("", ""), execute("", 0), sync)},
		"bad format code":        {send(parse("", "SELECT nextval('s')"), formats(bind("", ""), nil, []int16{2}), execute("", 0), sync), send(query("SELECT nextval('s')"))},
		"unknown at parse":       {send(parse("", "SELECT nextval('nosuch')"), bind("", ""), execute("", 0), sync), send(query("SELECT 1"))},
		"read only extended":     {send(query("BEGIN READ ONLY")), send(parse("", "SELECT nextval('s')"), bind("", ""), execute("", 0), sync), send(query("ROLLBACK"))},
		"limit extended":         {send(query("SELECT nextval('short'), nextval('short')")), send(parse("", "SELECT nextval('short')"), bind("", ""), execute("", 0), sync), send(query("SELECT 1"))},
		"pipeline of syncs":      {send(parse("", "SELECT nextval('s')"), bind("", ""), execute("", 0), sync, parse("", "SELECT 1"), bind("", ""), execute("", 0), sync, query("SELECT nextval('s')"), query("SELECT 2"), sync)},
		"block in a pipeline":    {send(parse("", "BEGIN"), bind("", ""), execute("", 0), parse("", "SELECT nextval('s')"), bind("", ""), execute("", 0), sync, sync), send(parse("", "COMMIT"), bind("", ""), execute("", 0), sync)},
		"flush":                  {flush(2, parse("a", "SELECT nextval('s')"), describeS("a")), flush(3, bind("", "a"), execute("", 0)), send(sync)},
		"flush mixed":            {flush(3, parse("", "SELECT 7"), bind("", ""), execute("", 0)), send(parse("", "SELECT nextval('s')"), bind("", ""), execute("", 0), sync)},
		"portal after sync":      {send(parse("", "SELECT nextval('s')"), bind("p", ""), sync), send(execute("p", 0), sync)},
		"portal in a block":      {send(query("BEGIN")), send(parse("", "SELECT nextval('s')"), bind("p", ""), sync), send(execute("p", 0), sync), send(query("COMMIT")), send(execute("p", 0), sync)},
		"name used again":        {send(parse("a", "SELECT nextval('s')"), sync), send(parse("a", "SELECT nextval('s')"), sync), send(parse("a", "SELECT 1"), sync), send(query("BEGIN")), send(bind("p", "a"), bind("p", "a"), sync), send(query("ROLLBACK"))},
		"name used by upstream":  {send(parse("a", "SELECT 1"), sync), send(parse("a", "SELECT nextval('s')"), sync), send(closeS("a"), parse("a", "SELECT nextval('s')"), sync)},
		"close":                  {send(parse("a", "SELECT nextval('s')"), closeS("a"), closeS("nosuch"), closeP("nosuch"), sync), send(bind("", "a"), sync)},
		"deallocate":             {send(parse("a", "SELECT nextval('s')"), sync), send(query("DEALLOCATE a")), send(bind("", "a"), sync), send(parse("b", "SELECT nextval('s')"), sync), send(query("DEALLOCATE ALL")), send(bind("", "b"), sync), send(query("DEALLOCATE nosuch"))},
		"unnamed dropped":        {send(parse("", "SELECT nextval('s')"), sync), send(query("SELECT nextval('s')")), send(bind("", ""), sync)},
		"skip after error":       {exchange{messages: []pgproto3.FrontendMessage{parse("", "SELECT nextval('nosuch')"), query("SELECT 1"), sync}, answers: 2}, send(query("SELECT 2"))},
		"sync alone":             {send(sync, sync)},
		"ddl extended":           {send(parse("", "CREATE SEQUENCE x START 5"), describeS(""), bind("", ""), describeP(""), execute("", 0), sync), send(query("SELECT nextval('x')")), send(parse("", "CREATE SEQUENCE x"), bind("", ""), execute("", 0), sync)},
		"pgjdbc calls":           {send(parse("", "select * from nextval($1,$2)  as result", 2278, 1043), describeS(""), bind("", "", nil, "s"), describeP(""), execute("", 0), sync), send(parse("", "select * from setval($1,$2,$3)  as result", 2278, 1043, 20), bind("", "", nil, "s", "77"), describeP(""), execute("", 0), sync), send(parse("", "select * from lastval($1)  as result", 2278), bind("", "", nil), execute("", 0), sync)},
		"comment alone":          {send(query("-- nextval('s')"), query("/* CREATE SEQUENCE s */;"))},
		"close before ddl":       {send(parse("a", "SELECT 1"), sync), send(closeS("a"), parse("", "CREATE SEQUENCE x"), bind("", ""), execute("", 0), sync), send(query("SELECT nextval('x')")), send(closeS("a"), parse("", "SELECT currval('s')"), bind("", ""), execute("", 0), sync)},
		"rename again":           {send(query("ALTER SEQUENCE s RENAME TO b"), query("ALTER SEQUENCE s RENAME TO b"), query("SELECT nextval('b')"))},
		"sequence away":          {send(parse("a", "SELECT nextval('s')"), bind("", "a"), execute("", 0), sync), send(query("DROP SEQUENCE s")), send(bind("", "a"), execute("", 0), sync), send(query("CREATE SEQUENCE s START 50")), send(bind("", "a"), execute("", 0), sync), send(closeS("a"), sync), send(bind("", "a"), sync)},
		"parameter name, each":   {flush(1, parse("a", "SELECT nextval($1)")), flush(1, bind("", "a", "nosuch")), send(sync), flush(1, parse("b", "SELECT nextval($1)", 25)), flush(1, bind("", "b", "nosuch")), flush(1, execute("", 0)), send(sync), flush(1, parse("", "SELECT nextval('nosuch')")), send(sync)},
		"null, binary":           {send(parse("a", "SELECT nextval($1), currval($1)"), formats(bind("", "a", nil), []int16{1}, []int16{1}), describeP(""), execute("", 1), execute("", 1), sync)},
		"several portals":        {send(query("BEGIN")), send(parse("a", "VALUES (nextval('s')), (nextval('s'))"), bind("p", "a"), bind("q", "a"), execute("p", 1), execute("q", 1), execute("p", 1), execute("q", 0), execute("p", 0), closeP("p"), execute("p", 0), sync), send(query("ROLLBACK"))},
		"row limit, then close":  {send(parse("a", "SELECT nextval('s')"), bind("", "a"), execute("", 1), closeP(""), sync), send(bind("", "a"), execute("", 1), bind("", "a"), execute("", 0), execute("", 1), sync)},
		"bad format code, two":   {send(parse("", "SELECT nextval('s'), 1"), formats(bind("", ""), nil, []int16{0, 2}), describeP(""), execute("", 0), sync), send(query("SELECT nextval('s')"))},
		"too few formats":        {send(parse("", "SELECT nextval('s'), 1, 2"), formats(bind("", ""), nil, []int16{0, 1}), sync), send(parse("", "SELECT nextval($1)"), formats(bind("", "", "s"), []int16{0, 0}, nil), sync)},
		"read only in a batch":   {send(parse("", "BEGIN READ ONLY"), bind("", ""), execute("", 0), parse("", "SELECT nextval('s')"), describeS(""), bind("", ""), describeP(""), execute("", 0), parse("", "SELECT 1"), sync), send(query("ROLLBACK")), send(query("SELECT nextval('s')"))},
		"failed block, messages": {send(parse("a", "SELECT nextval('s')"), sync), send(query("BEGIN"), query("SELECT nextval('nosuch')")), send(describeP("p"), sync), send(execute("p", 0), sync), send(closeP("p"), sync), send(parse("b", "COMMIT"), bind("", "b"), execute("", 0), sync), send(bind("", "a"), execute("", 0), sync)},
		"block, one sync":        {send(parse("", "BEGIN"), bind("", ""), execute("", 0), parse("", "SELECT nextval('s')"), bind("", ""), execute("", 0), sync), send(query("COMMIT"))},
		"no columns":             {send(parse("", "SELECT FROM nextval('s')"), describeS(""), bind("", ""), describeP(""), execute("", 0), sync), send(query("SELECT nextval('s')"))},
		"data without a copy":    {send(&pgproto3.CopyData{Data: []byte("x")}, &pgproto3.CopyDone{}, &pgproto3.CopyFail{}, query("SELECT nextval('s')")), send(parse("", "SELECT nextval('s')"), &pgproto3.CopyData{Data: []byte("x")}, bind("", ""), &pgproto3.CopyDone{}, execute("", 0), sync)},
		"unknown message":        {send(query("SELECT nextval('s')")), closes(1, malformed("y\x00\x00\x00\x04"), query("SELECT nextval('s')"))},
		"length of an unknown":   {closes(1, malformed("y\x00\x00\x00\x03"))},
		"unknown, too long":      {closes(1, malformed("y\x7f\x00\x00\x00"))},
		"length too long":        {closes(0, malformed("Q\x7f\x00\x00\x00"))},
		"length of a message":    {closes(0, malformed("Q\x00\x00\x00\x03"), query("SELECT nextval('s')"))},
		"pgjdbc call":            {send(parse("", "select * from nextval($1) as result", 1043), bind("", "", "s"), describeP(""), execute("", 0), sync)},
	}
	withTable = map[string]conversation{
		"mixed statements":         {send(query("INSERT INTO t VALUES (nextval('s')); SELECT nextval('s'); SELECT id FROM t; SELECT count(*) FROM t"))},
		"function call in a block": {send(query("BEGIN")), send(function(1574, 0, 0, "s")), send(query("INSERT INTO t VALUES (1)")), send(function(1576, 0, 0, "s", "0")), send(function(1574, 0, 0, "s")), send(query("COMMIT")), send(query("SELECT count(*) FROM t")), send(function(1574, 0, 0, "t"))},
		"function call, limit":     {send(query("SELECT nextval('short'), nextval('short')")), send(function(1574, 0, 0, "short")), send(query("BEGIN READ ONLY")), send(function(1574, 0, 0, "s")), send(query("ROLLBACK")), send(function(1574, 0, 0, "s", "s")), send(function(1, 0, 0))},
		"flush with a body":        {send(query("SELECT nextval('s')")), {messages: []pgproto3.FrontendMessage{malformed("H\x00\x00\x00\x06ab"), query("SELECT 2"), query("SELECT 1"), sync}, answers: 2}, send(query("SELECT nextval('s')"))},
		"regclass elsewhere":       {send(query("SELECT count(*) FROM t WHERE id = 's'::regclass::oid::bigint"), query("SELECT to_regclass('s') IS NULL, 't'::regclass"), query("SELECT nextval('s'::regclass) FROM (SELECT 's'::regclass) q"))},
		"not a sequence":           {send(query("SELECT nextval('t')"))},
		"error later":              {send(parse("", "SELECT nextval('s')"), bind("", ""), execute("", 0), parse("", "INSERT INTO t VALUES (nextval('s'))"), bind("", ""), execute("", 0), parse("", "SELECT 1/0"), bind("", ""), execute("", 0), parse("", "SELECT nextval('s')"), bind("", ""), execute("", 0), sync), send(query("SELECT count(*) FROM t"), query("SELECT nextval('s') > 1010"))},
		"error later, in a block":  {send(query("BEGIN"), query("INSERT INTO t VALUES (nextval('s'))")), send(parse("", "SELECT nextval('s')"), bind("", ""), execute("", 0), parse("", "SELECT 1/0"), bind("", ""), execute("", 0), sync), send(query("SELECT nextval('s')"), query("COMMIT"), query("SELECT count(*) FROM t"), query("SELECT nextval('s')"))},
		"unknown in a batch":       {send(parse("", "INSERT INTO t VALUES (1)"), bind("", ""), execute("", 0), parse("", "SELECT nextval($1)"), bind("", "", "nosuch"), execute("", 0), sync), send(parse("", "INSERT INTO t VALUES (1)"), bind("", ""), execute("", 0), parse("", "SELECT nextval($1)", 25), bind("", "", "nosuch"), execute("", 0), sync), send(query("SELECT count(*) FROM t"))},
		"read only, batch":         {send(query("BEGIN READ ONLY"), query("SELECT count(*) FROM t")), send(parse("", "SELECT count(*) FROM t"), bind("", ""), execute("", 0), parse("", "SELECT nextval('s')"), bind("", ""), describeP(""), execute("", 0), sync), send(query("COMMIT"))},
		"limits of returned rows":  {send(parse("a", "INSERT INTO t VALUES (nextval('s')), (nextval('s')), (nextval('s')) RETURNING id"), bind("", "a"), execute("", 1), execute("", 1), execute("", 0), execute("", 0), sync), send(bind("p", "a"), execute("p", 2), sync), send(execute("p", 0), sync), send(query("SELECT count(*) FROM t"))},
		"names of edited ones":     {send(parse("a", "INSERT INTO t VALUES (nextval('s'))"), sync), send(parse("a", "INSERT INTO t VALUES (nextval('s'))"), sync), send(parse("a", "SELECT nextval('s')"), sync), send(query("BEGIN")), send(bind("p", "a"), execute("p", 0), bind("p", "a"), sync), send(query("ROLLBACK")), send(closeS("a"), parse("a", "SELECT nextval('s') > 1000"), bind("p", "a"), execute("p", 0), sync)},
		"bound and not executed":   {send(parse("a", "INSERT INTO t VALUES (nextval('s'))"), sync), send(bind("", "a", "x"), sync), send(bind("", "a"), execute("", 0), sync), send(query("SELECT count(*) FROM t"))},
		"no columns, passed":       {send(parse("a", "SELECT FROM t"), describeS("a"), bind("", "a"), describeP(""), execute("", 0), sync), send(query("SELECT FROM t"))},
		"errors in two batches":    {send(parse("", "INSERT INTO nosuch VALUES (1)"), bind("", ""), execute("", 0), parse("", "SELECT nextval($1)"), bind("", "", "nosuch"), execute("", 0), sync, parse("", "SELECT 1/"), bind("", ""), execute("", 0), parse("", "SELECT nextval($1)", 25), bind("", "", "nosuch"), execute("", 0), sync, query("SELECT nextval('s')"))},
		"error, then a batch":      {send(parse("", "SELECT 1/"), bind("", ""), execute("", 0), parse("", "SELECT nextval($1)"), bind("", "", "nosuch"), execute("", 0), sync, parse("", "INSERT INTO t VALUES (nextval('s'))"), bind("", ""), execute("", 0), parse("", "SELECT nextval('s')"), bind("", ""), execute("", 0), sync, query("SELECT count(*) FROM t"))},
		"query in a copy":          {flush(1, query("COPY t FROM STDIN")), closes(2, query("SELECT nextval('s')"))},
		"parse in a copy":          {flush(1, query("COPY t FROM STDIN")), closes(2, parse("", "SELECT nextval('s')"), sync)},
		"unknown in a copy":        {flush(1, query("COPY t FROM STDIN")), closes(2, malformed("y\x00\x00\x00\x04"))},
		"sync and flush in a copy": {flush(1, query("COPY t (id) FROM STDIN")), {messages: []pgproto3.FrontendMessage{sync, &pgproto3.CopyData{Data: []byte("1\n")}, &pgproto3.Flush{}, sync, &pgproto3.CopyDone{}}, answers: 2}, send(query("SELECT nextval('s')")), send(query("SELECT count(*) FROM t"))},
		"data after an error":      {flush(1, query("COPY t (id) FROM STDIN")), {messages: []pgproto3.FrontendMessage{&pgproto3.CopyData{Data: []byte("x\n")}}, answers: 2}, send(&pgproto3.CopyData{Data: []byte("1\n")}, &pgproto3.CopyData{Data: []byte("2\n")}, &pgproto3.CopyDone{}, query("SELECT nextval('s')"))},
		"copy refused at once":     {send(query("CREATE VIEW w AS SELECT 1 AS a")), {messages: []pgproto3.FrontendMessage{parse("", "COPY w FROM STDIN"), bind("", ""), execute("", 0), sync}, answers: 5}, send(query("SELECT nextval('s')")), send(parse("", "SELECT nextval('s') + count(*) FROM t"), bind("", ""), execute("", 0), sync)},
		"copy refused, data later": {send(query("CREATE VIEW w AS SELECT 1 AS a")), {messages: []pgproto3.FrontendMessage{parse("", "COPY w FROM STDIN"), bind("", ""), execute("", 0), sync}, answers: 5}, {messages: []pgproto3.FrontendMessage{&pgproto3.CopyData{Data: []byte("1\n")}, &pgproto3.CopyDone{}, sync}, answers: 1}, send(query("SELECT nextval('s') + count(*) FROM t"))},
		"copy refused, all sent":   {send(query("CREATE VIEW w AS SELECT 1 AS a")), {messages: []pgproto3.FrontendMessage{parse("", "COPY w FROM STDIN"), bind("", ""), execute("", 0), sync, &pgproto3.CopyData{Data: []byte("1\n")}, &pgproto3.CopyDone{}, sync, parse("", "SELECT nextval('s') + count(*) FROM t"), bind("", ""), execute("", 0), sync, query("INSERT INTO t VALUES (nextval('s'))"), sync}, answers: 13}, send(query("SELECT nextval('s') + count(*) FROM t"))},
		"copy fails at its data":   {{messages: []pgproto3.FrontendMessage{parse("", "COPY t (id) FROM STDIN"), bind("", ""), execute("", 0), sync, &pgproto3.CopyData{Data: []byte("x\n")}, &pgproto3.CopyDone{}, sync, parse("", "SELECT nextval('s') + count(*) FROM t"), bind("", ""), execute("", 0), sync, query("INSERT INTO t VALUES (nextval('s'))"), sync}, answers: 12}, send(query("SELECT nextval('s') + count(*) FROM t"))},
		"limit in a block":         {send(query("SELECT nextval('short'), nextval('short')"), query("BEGIN"), query("INSERT INTO t VALUES (1)"), query("SELECT nextval('short')"), query("SELECT nextval('s')"), query("COMMIT"), query("SELECT count(*) FROM t"))},
		"limit in one string":      {send(query("SELECT nextval('short'), nextval('short')"), query("INSERT INTO t VALUES (1); SELECT nextval('short')"), query("SELECT count(*) FROM t"))},
		"failed block":             {send(query("BEGIN"), query("SELECT 1/0"), query("SELECT nextval('s')"), query("ROLLBACK"), query("SELECT nextval('s')"))},
		"insert":                   {send(query("INSERT INTO t VALUES (nextval('s'), 'a'), (nextval('s'), 'b') RETURNING id, v"), query("INSERT INTO t SELECT nextval('s'), 'c' RETURNING *"))},
		"subquery and cte":         {send(query("SELECT (SELECT nextval('s')) + 1"), query("WITH x AS (SELECT nextval('s') AS id) INSERT INTO t SELECT id, 'q' FROM x RETURNING id"), query("SELECT a.n FROM (SELECT nextval('s') AS n) a"))},
		"currval in where":         {send(query("INSERT INTO t VALUES (nextval('s'), 'a')"), query("SELECT id, v FROM t WHERE id = currval('s')"), query("UPDATE t SET v = 'z' WHERE id = lastval()"))},
		"column names":             {send(query("SELECT nextval('s') FROM (SELECT 1) q"), query("SELECT nextval('s')::int LIMIT 1"), query("SELECT nextval('s') + 1, coalesce(nextval('s'), 1), (nextval('s'))"))},
		"error position":           {send(query("SELECT nextval('s'), nosuch"), query("SELECT nextval('s'), 'é', nosuch"), query("SELECT 'é', nextval('s') +, 1"), query("INSERT INTO t VALUES (nextval('s'), nosuch)"))},
		"syntax error":             {send(query("SELECT nextval('s'"), query("SELECT nextval('s') FRM t"))},
		"explain":                  {send(query("EXPLAIN (COSTS OFF) SELECT nextval('s')"), query("SELECT nextval('s')"))},
		"read":                     {send(query("SELECT last_value, is_called FROM s"), query("SELECT nextval('s')"), query("SELECT last_value, is_called FROM s"), query("SELECT s.last_value AS l FROM public.s"), query("SELECT is_called::text, last_value + 1 FROM s WHERE last_value > 0"))},
		"copy end too late":        {flush(1, query("COPY t FROM STDIN")), exchange{messages: []pgproto3.FrontendMessage{&pgproto3.CopyData{Data: []byte("x\n")}}, answers: 2}, send(&pgproto3.CopyDone{}, query("SELECT nextval('s')"))},
		"copy":                     {send(query("COPY (SELECT nextval('s'), 'x') TO STDOUT"))},
		"create errors":            {send(query("CREATE SEQUENCE s"), query("CREATE SEQUENCE IF NOT EXISTS s"), query("CREATE SEQUENCE nosuch.s"), query("CREATE SEQUENCE t"), query("CREATE SEQUENCE x INCREMENT 0"), query("CREATE SEQUENCE x CACHE 0"), query("CREATE SEQUENCE x MINVALUE 5 START 1"), query("CREATE SEQUENCE x AS text"), query("CREATE SEQUENCE x AS nosuch"), query("CREATE SEQUENCE x INCREMENT 1 INCREMENT 2"), query("CREATE SEQUENCE x AS smallint MAXVALUE 40000"), query("CREATE SEQUENCE x START 99999999999999999999"), query("CREATE SEQUENCE x OWNED BY nosuch.c"), query("CREATE SEQUENCE x OWNED BY t"), query("CREATE TABLE s (a int)"), query("CREATE SEQUENCE x MINVALUE 9 MAXVALUE 9"))},
		"rename":                   {send(query("ALTER SEQUENCE s RENAME TO r"), query("SELECT nextval('s')"), query("SELECT nextval('r')"), query("ALTER SEQUENCE r RENAME TO t"), query("ALTER TABLE r RENAME TO q"), query("SELECT nextval('q')"), query("ALTER SEQUENCE q SET SCHEMA nosuch"), query("CREATE SCHEMA other"), query("ALTER SEQUENCE q SET SCHEMA other"), query("SELECT nextval('q')"), query("SELECT nextval('other.q')"), query("SET search_path = other"), query("SELECT nextval('q')"), query("ALTER SEQUENCE q OWNER TO nosuch"), query("ALTER SEQUENCE q OWNER TO CURRENT_USER"))},
		"search path":              {send(query("SET search_path = pg_catalog"), query("SELECT nextval('s')"), query("RESET search_path"), query("SELECT nextval('s')"), query("BEGIN"), query("SET LOCAL search_path = pg_catalog"), query("SELECT nextval('s')"), query("ROLLBACK"), query("SELECT nextval('s')"))},
		"temporary":                {send(query("CREATE TEMP SEQUENCE s"), query("SELECT nextval('s')"), query("SELECT nextval('public.s')"), query("DROP SEQUENCE s"), query("SELECT nextval('s')"))},
		"parameter other":          {send(parse("a", "SELECT nextval('s'), $1::int, $2"), describeS("a"), sync), send(bind("", "a", "42", "x"), execute("", 0), sync), send(bind("", "a", "x", "x"), execute("", 0), sync)},
		"insert parameter":         {send(parse("a", "INSERT INTO t VALUES (nextval('s'), $1) RETURNING id, v"), describeS("a"), sync), send(bind("", "a", "x"), describeP(""), execute("", 0), sync), send(formats(bind("", "a", []byte("y")), []int16{1}, []int16{1, 0}), execute("", 0), sync), send(bind("", "a", nil), execute("", 0), sync)},
		"insert parameter name":    {send(parse("a", "INSERT INTO t VALUES (nextval($1), $2) RETURNING id, v"), describeS("a"), sync), send(bind("", "a", "s", "x"), execute("", 0), sync), send(bind("", "a", "nosuch", "x"), execute("", 0), sync)},
		"failed block extended":    {send(parse("a", "SELECT nextval('s')"), sync), send(query("BEGIN"), query("SELECT 1/0")), send(parse("", "SELECT nextval('s')"), sync), send(bind("", "a"), sync), send(describeS("a"), sync), send(closeS("a"), sync), send(parse("", "ROLLBACK"), bind("", ""), execute("", 0), sync)},
		"pipeline undone":          {send(query("SELECT nextval('short'), nextval('short')")), send(parse("", "INSERT INTO t VALUES (1)"), bind("", ""), execute("", 0), parse("", "SELECT nextval('short')"), bind("", ""), execute("", 0), parse("", "SELECT 5"), bind("", ""), execute("", 0), sync), send(query("SELECT count(*) FROM t"))},
		"pipeline undone insert":   {send(query("SELECT nextval('short'), nextval('short')")), send(parse("", "INSERT INTO t VALUES (1)"), bind("", ""), execute("", 0), parse("", "INSERT INTO t VALUES (nextval('short'))"), bind("", ""), execute("", 0), sync), send(query("SELECT count(*) FROM t"))},
		"pipeline mixed":           {send(parse("", "INSERT INTO t VALUES (nextval('s'))"), bind("", ""), execute("", 0), parse("", "SELECT nextval('s'), currval('s')"), bind("", ""), describeP(""), execute("", 0), parse("", "SELECT id FROM t"), bind("", ""), execute("", 0), sync)},
		"pipeline error first":     {send(parse("", "SELECT 1/0"), bind("", ""), execute("", 0), parse("a", "SELECT nextval('s')"), bind("", "a"), execute("", 0), sync), send(parse("a", "SELECT nextval('s')"), bind("", "a"), execute("", 0), sync)},
		"read extended":            {send(parse("", "SELECT last_value, is_called FROM s"), bind("", ""), describeP(""), execute("", 0), sync), send(parse("", "SELECT last_value + $1 FROM s WHERE is_called = $2"), describeS(""), sync)},
		"several in insert":        {send(parse("", "INSERT INTO t VALUES (nextval('s'), $1), (nextval('s'), $2), (currval('s'), 'c') RETURNING id"), bind("", "", "a", "b"), execute("", 0), sync)},
	}
)

// TestFrames compares what a client receives, message by message, with a plain PostgreSQL. Both have the same sequences.
func TestFrames(t *testing.T) {
	for _, group := range []map[string]conversation{alone, withTable} {
		for name, c := range group {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				direct, through := twins(t)
				for _, url := range []string{direct, through} {
					exec(t, url, "CREATE TABLE t (id bigint, v text)")
					exec(t, url, sequences...)
				}
				require.Equal(t, strings.Join(converse(t, direct, c), "\n"), strings.Join(converse(t, through, c), "\n"))
			})
		}
	}
}

// TestStandaloneFrames does the same with a nextvald that has no upstream.
func TestStandaloneFrames(t *testing.T) {
	for name, c := range alone {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			direct, standalone := freshDatabase(t), withoutUpstream(t)
			exec(t, direct, sequences...)
			exec(t, standalone, sequences...)
			require.Equal(t, strings.Join(converse(t, direct, c), "\n"), strings.Join(converse(t, standalone, c), "\n"))
		})
	}
}
