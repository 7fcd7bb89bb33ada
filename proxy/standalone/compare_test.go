package standalone

import (
	"os"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
)

type messages = []pgproto3.FrontendMessage

// TestAsPostgreSQL sends the same messages to a real PostgreSQL and to the backend, and compares all answers.
func TestAsPostgreSQL(t *testing.T) {
	url := os.Getenv("NEXTVALD_TEST_UPSTREAM")
	if url == "" {
		t.Fatal("NEXTVALD_TEST_UPSTREAM names no PostgreSQL to compare with: run make test, or set it to a URL")
	}
	cases := map[string]messages{
		"empty queries":           script("", ";", "-- ping", " ; ; "),
		"empty statement":         {parse("", ""), describeTarget('S', ""), bind("", ""), describeTarget('P', ""), execute("", 0), execute("", 0), syncMessage},
		"constants":               script("select 1, -5, +5, - 5, 99999999999, 99999999999999999999, 1.50, 'a', null, true, false"),
		"no columns":              script("select"),
		"names":                   script(`select 1 as "a b", 'x' x, 5::int, '5'::varchar(3), 'a'::char(3), cast(5 as bigint), 5::decimal, '5'::double precision, int4 '5', text 'x', (1)`),
		"names of functions":      script("select current_user, user, session_user, current_role, current_catalog, current_schema, current_database(), current_schema(), pg_is_in_recovery(), pg_advisory_unlock_all(), current_schemas(true), current_schemas(false)"),
		"names through casts":     script("select current_user::text, (select 5::int8 as nextval), (select 5), (select 'a' as b)::text, coalesce(null, 5), current_schema()::text::varchar"),
		"casts":                   script("select 1.5::int, 2.5::int, -2.5::int8, 1e3, 1.5e-3, .5, 1::numeric, 1.50::text, true::int, true::text, 5::bool, 5::oid, (-1)::oid, ' 5 '::int, 'on'::bool"),
		"floats":                  script("select 1e15::float8, 1e14::float8, 123456789.123::float8, 1e-5::float8, 0.0001::float8, 'nan'::float8, '-inf'::float8, 2.5::float8::int"),
		"strings":                 script("select 'abc'::varchar(2), 'abc'::bpchar(5), 'abc'::char, 'abc  '::bpchar::text, 'abc'::name, E'a\\nb', $$x$$, U&'\\00e4'"),
		"not an integer":          script("select 'x'::int"),
		"not an integer, later":   script("select 1, ä.b from x", "select 'ä', 'x'::int"),
		"out of range":            script("select 99999::int2", "select 99999999999::int4", "select '99999999999'::int", "select 99999999999999999999::int8", "select (-1)::int8::oid"),
		"no such cast":            script("select 5::int8::bool", "select true::int8", "select 5::oid::numeric", "select 'x'::bool", "select 'x'::numeric", "select 'NaN'::numeric::int"),
		"bad type modifiers":      script("select '5'::int4(3)", "select 'a'::varchar(0)", "select 'a'::char(0)"),
		"arithmetic":              script("select 1+1, 7/2, -7/2, 3*4-2, 1+null, 1::int2+1, 1+1::int8", "select 2147483647+1", "select 9223372036854775807+1", "select 1/0", "select -(-9223372036854775808)"),
		"values":                  script("values (1),(2.5)", "values ('a'),('b')", "values (1),(null)", "values (null)", "values ('5'),(1::int8)", "values (1,'a',true)"),
		"bad values":              script("values (1),('x')", "values ('a'),(1::int8)", "values (1),(1,2)"),
		"subselects in FROM":      script("select * from (select 5::int8 as last_value, 0::int8 as log_cnt, true as is_called) as s", "select s.last_value, is_called from (select 5::int8 as last_value, true as is_called) s", "select x.*, y.b from (select 1 as a) x, (select 2 as b) y", "select a from (select 1 as a) x, (select 2 as a) y"),
		"functions in FROM":       script("select * from pg_catalog.int8larger(5::int8,6::int8) as nextval", "select * from int8larger(5,6)", "select y from int8larger(5,6) x(y)", "select * from int8larger(5,6) as x", "select * from current_database()"),
		"unknown columns":         script("select x", "select a.x", "select *", "select b from (select 1 as a) x", "select x.b from (select 1 as a) x", "select y.* from (select 1 as a) x"),
		"unknown relations":       script("select * from foo", "select x from public.bar", "select 1 from a, b"),
		"bad functions":           script("select nextval()", "select nextval(1.5)", "select setval('x')", "select current_schemas(5)", "select version(1)"),
		"unknown sequences":       script("select nextval('nope')", "select nextval('Nope'), 1", "select currval('nope'::regclass)", "select setval('nope', 1, true)", "select nextval('\"No pe\"')", "select nextval('nope.s')", "select nextval('')", "select nextval('other.public.s')", "select nextval('\"A.b\".\"c\"\"d\"')", "select nextval(' Nope ')", "select nextval('a.b.c.d')", "select lastval()", "select nextval(null)", "select nextval('nope'::text)"),
		"sequence parameters":     {parse("", "select nextval($1)"), describeTarget('S', ""), bind("", "", "nope"), execute("", 0), syncMessage, bind("", "", "NULL"), execute("", 0), syncMessage},
		"sequence text parameter": {parse("", "select nextval($1)", 25), describeTarget('S', ""), bind("", "", "nope"), execute("", 0), syncMessage},
		"syntax errors":           script("foo", "select 1; select 2; foo", "select 'ä' foo bar", "select 'unterminated", "select $1", "select $0"),
		"commands in one query":   script("select 1; select 2", "select 1; select 'x'::int; select 3", "begin; select 1; commit", "select 1; begin; select 2", "rollback"),
		"empty among others":      script("; select 1;; select 2;"),
		"begin twice":             script("begin", "begin", "commit", "commit", "rollback", "end", "abort", "start transaction", "begin work", "end"),
		"commit inside":           script("select 1; commit; select 2", "select 1; rollback", "commit and chain", "rollback and chain", "begin; commit; select 1"),
		"savepoints":              script("begin; savepoint a; savepoint b", "release c", "rollback to a", "rollback to b", "select 1", "savepoint x", "rollback to savepoint a", "release a", "commit and chain", "commit"),
		"savepoints outside":      script("savepoint a", "release a", "rollback to a", "select 1; savepoint a; select 2", "select 1; begin; savepoint z; rollback to z; commit"),
		"failed block":            script("begin", "select 'x'::int", "select 1", "savepoint a", "begin", "show timezone", "", "commit", "select 1"),
		"failed chain":            script("begin isolation level serializable", "foo", "commit and chain", "show transaction_isolation", "rollback"),
		"nested savepoint":        script("begin; savepoint a; set a.b = 1; savepoint a; set a.b = 2; rollback to a; show a.b", "show a.b", "release a; rollback to a; show a.b", "commit; show a.b"),
		"set and show":            script("set application_name = 'x'", "show application_name", "SHOW Application_Name", "reset application_name", "set application_name to default"),
		"set undone":              script("set application_name = 'w'", "begin; set application_name = 'x'; commit", "begin; set application_name = 'y'", "rollback", "show application_name", "set application_name = 'z'; select 'x'::int", "show application_name"),
		"set local":               script("set local a.b = 1", "show a.b", "begin; set local application_name = 'y'", "show application_name", "commit", "show application_name", "begin; set local work_mem = '1MB'; set work_mem = '2MB'; commit; show work_mem"),
		"set in a failed block":   script("begin; set application_name = 'y'", "foo", "rollback"),
		"set in a pipeline":       {parse("", "set application_name = 'y'"), bind("", ""), execute("", 0), parse("", "foo"), syncMessage, q("show application_name")},
		"custom settings":         script("set a.b.c = 1", "show a.b.c", `set "a b".c = 1`, "set _x.y = 'z'", "reset x.y", "show x.y", "show never.set"),
		"unknown settings":        script("show foo", "set foo = 1", "reset foo", "set foo to default", "select current_setting('foo')", "select current_setting('foo', true)", "select set_config('foo', 'x', false)"),
		"fixed settings":          script("set server_version = '1'", "set is_superuser = off", "reset server_version", "set max_identifier_length = 5"),
		"integer settings":        script("set statement_timeout = 5000", "show statement_timeout", "set statement_timeout = '90s'", "show statement_timeout", "set statement_timeout = '1.5s'; show statement_timeout", "set statement_timeout = 'x'", "set statement_timeout = '5 foo'", "set statement_timeout = -5", "set statement_timeout = '7d'; show statement_timeout", "set statement_timeout = 0; show statement_timeout", "set statement_timeout = '99999999999'"),
		"memory settings":         script("set work_mem = '64MB'; show work_mem", "set work_mem = 100; show work_mem", "set work_mem = '1GB'; show work_mem", "set work_mem = 1", "set work_mem = '1 foo'", "show effective_cache_size"),
		"other settings":          script("set extra_float_digits = 9", "set extra_float_digits = 3; show extra_float_digits", "set enable_seqscan = maybe", "set enable_seqscan = OF; show enable_seqscan", "set bytea_output = foo", "set bytea_output = 'HEX'; show bytea_output", "set random_page_cost = 1.1; show random_page_cost", "set random_page_cost = -1.1", "set client_min_messages = debug; show client_min_messages", "set synchronous_commit = true; show synchronous_commit"),
		"date style":              script("set datestyle = 'german'", "set datestyle = 'iso, dmy'", "set datestyle = 'foo'", "set datestyle = sql, ymd", "reset datestyle"),
		"time zone":               script("set time zone 'Europe/Berlin'", "set time zone -3", "set time zone interval '+00:00' hour to minute", "set time zone interval '-05:30' hour to minute", "set time zone 'foo/bar'", "set timezone = 'GMT+03'", "set timezone = 'europe/berlin'", "set time zone 'America/Argentina/Buenos_Aires'", "set time zone 'UTC'", "set timezone = 'utc'"),
		"search path":             script(`set search_path = a, "B c", "$user"`, "show search_path", "set search_path = ''; show search_path", "select current_schema(), current_schemas(true)", "set search_path to default; show search_path", "set schema 'foo'; show search_path", "select current_schema()", "set search_path = 'a, b'; show search_path", "set search_path = public, pg_catalog; select current_schemas(false), current_schemas(true)"),
		"encodings":               script("set client_encoding = 'sql_ascii'", "set names 'utf8'", "set client_encoding = 'foo'", "set client_encoding to unicode", "show client_encoding", "reset client_encoding"),
		"roles":                   script("set role none", "show role", "set role nobody_at_all", "set session authorization default", "show session_authorization", "set session authorization nobody_at_all", "reset role", "reset session authorization"),
		"transaction modes":       script("set transaction isolation level serializable", "begin isolation level serializable read only deferrable", "show transaction_isolation", "show transaction isolation level", "show transaction_read_only", "set transaction read write", "show transaction_read_only", "show transaction_deferrable", "commit", "show transaction_isolation"),
		"modes after a query":     script("begin read only; select 1", "set transaction read write", "rollback", "begin; select 1; set transaction isolation level serializable", "rollback", "begin; select 1; set transaction read only; show transaction_read_only; rollback", "set transaction_isolation = 'foo'"),
		"session characteristics": script("set session characteristics as transaction isolation level repeatable read, read only", "show default_transaction_isolation", "show transaction isolation level", "begin; show transaction_read_only; show transaction_isolation; commit", "set session characteristics as transaction read write", "reset all"),
		"set_config":              script("select set_config('a.b', 'x', false), current_setting('a.b')", "select set_config(null, 'x', false)", "select set_config('work_mem', null, false)", "select set_config('search_path', 'a, b', false)", "show search_path", "begin; select set_config('work_mem', '2MB', true); commit; show work_mem", "select current_setting('work_mem', null)", "select set_config('statement_timeout', 'x', false)"),
		"reset all":               script("set application_name = 'x'; set work_mem = '8MB'; set a.b = 1", "reset all", "show work_mem", "show a.b"),
		"discard":                 script("set application_name = 'x'", "discard all", "begin; discard all", "rollback", "select 1; discard all", "discard plans", "discard temp", "discard temporary", "discard sequences"),
		"pool reset":              script("SELECT pg_advisory_unlock_all(); CLOSE ALL; UNLISTEN *; RESET ALL;", "unlisten foo", "close foo", "close all"),
		"deallocate":              {parse("a", "select 1"), syncMessage, q("deallocate a"), bind("", "a"), syncMessage, q("deallocate a"), q("deallocate all"), q("deallocate prepare all")},
		"name taken":              {parse("a", "select 1"), parse("a", "select 2"), syncMessage, parse("a", "foo"), syncMessage},
		"portal taken":            {parse("", "select 1"), bind("p1", ""), bind("p1", ""), q("select 5"), execute("", 0), syncMessage},
		"nothing of the name":     {bind("", "nope"), syncMessage, describeTarget('S', "nope"), syncMessage, describeTarget('P', "nope"), syncMessage, execute("nope", 0), syncMessage, closeTarget('S', "nope"), closeTarget('P', "nope"), syncMessage, bind("", ""), syncMessage, describeTarget('X', "a"), syncMessage, closeTarget('X', "a"), syncMessage},
		"row limits":              {parse("", "values (1),(2),(3)"), bind("", ""), execute("", 1), execute("", 1), execute("", 0), execute("", 0), execute("", 1), syncMessage},
		"row limit is the count":  {parse("", "values (1),(2)"), bind("", ""), execute("", 2), execute("", 1), syncMessage},
		"row limit of SHOW":       {parse("", "show work_mem"), bind("", ""), describeTarget('P', ""), execute("", 1), execute("", 1), execute("", 0), syncMessage},
		"command run twice":       {parse("", "set a.b = 1"), bind("", ""), describeTarget('P', ""), execute("", 1), execute("", 1), syncMessage},
		"several statements":      {parse("", "select 1; select 2"), syncMessage},
		"SHOW of nothing":         {parse("", "show nope"), bind("", ""), syncMessage},
		"failed block, extended":  {parse("a", "select 1"), parse("r", "rollback"), syncMessage, q("begin"), q("select 1/0"), describeTarget('S', "a"), syncMessage, describeTarget('S', "r"), syncMessage, bind("", "a"), syncMessage, bind("", "r"), describeTarget('P', ""), syncMessage, closeTarget('S', "a"), syncMessage, parse("", ""), syncMessage, parse("", "foo"), syncMessage, parse("", "select 2"), syncMessage, bind("", "r"), execute("", 0), syncMessage},
		"portals of a block":      {q("begin"), parse("", "values (1),(2)"), bind("a", ""), execute("a", 1), syncMessage, execute("a", 0), syncMessage, q("commit"), execute("a", 0), syncMessage},
		"portal outside a block":  {parse("", "select 1"), bind("a", ""), syncMessage, execute("a", 0), syncMessage},
		"portal closed":           {parse("", "select 1"), bind("a", ""), closeTarget('P', "a"), execute("a", 0), syncMessage},
		"portal and savepoint":    {parse("s", "select 1"), q("begin"), bind("a", "s"), syncMessage, q("savepoint x"), bind("b", "s"), syncMessage, q("rollback to x"), execute("a", 0), syncMessage, q("rollback to x"), execute("b", 0), syncMessage, q("rollback")},
		"unnamed statement":       {parse("", "select 1"), syncMessage, q("select 2"), bind("", ""), syncMessage},
		"BEGIN in a pipeline":     {parse("", "begin"), bind("", ""), execute("", 0), parse("", "select 1"), bind("", ""), execute("", 0), syncMessage, q("commit")},
		"COMMIT in a pipeline":    {parse("", "select 1"), bind("a", ""), parse("", "commit"), bind("", ""), execute("", 0), execute("a", 0), syncMessage},
		"Query in a pipeline":     {parse("", "select 1"), bind("a", ""), execute("a", 0), q("select 2"), execute("a", 0), syncMessage},
		"parameters":              extended("select $1, $2::int8, $3::varchar(5), $1, $4::bool", "a", "5", "long text", "on"),
		"NULL parameters":         extended("select $1::int, $2", "NULL", "NULL"),
		"binary results":          {parse("", "select 1.50, 0.00, 100000000, 1e10, -0.05, 12345678901234567890.123, true, 'a', 5::int8, 5::int2, 1.5::float8, 7::oid, null"), inBinary(bind("", "")), describeTarget('P', ""), execute("", 0), syncMessage},
		"binary name array":       {parse("", "select current_schemas(true), current_user, pg_advisory_unlock_all()"), inBinary(bind("", "")), execute("", 0), syncMessage},
		"declared types":          {parse("", "select $1", 23, 20), describeTarget('S', ""), bind("", "", "5", "6"), execute("", 0), syncMessage, parse("", "select $1", 705), describeTarget('S', ""), syncMessage},
		"types of VALUES":         {parse("", "values ($1), (5), ($2)"), describeTarget('S', ""), bind("", "", "1", "2"), execute("", 0), syncMessage, parse("", "values ($1), ('a')"), describeTarget('S', ""), syncMessage},
		"parameter missing":       extended("select $2::int"),
		"inconsistent types":      extended("select $1, $1::int"),
		"cast first":              extended("select $1::int, $1::text", "5"),
		"bad parameter":           extended("select $1::int4", "abc"),
		"bad named portal":        {parse("", "select $1::int4"), bind("po", "", "abc"), syncMessage},
		"parameter out of range":  extended("select $1::int8::int2", "99999"),
		"bad characters":          {parse("", "select $1::text"), bind("", "", "ab\xff"), syncMessage, parse("", "select 'ab\xe2\x82'"), syncMessage, q("select '\xff'"), bind("", "", "a\x00b"), syncMessage},
		"binary parameters":       {parse("", "select $1::int4"), &pgproto3.Bind{Parameters: [][]byte{{0, 0, 0, 7}}, ParameterFormatCodes: []int16{1}}, execute("", 0), syncMessage},
		"short binary parameter":  {parse("", "select $1::int4"), &pgproto3.Bind{Parameters: [][]byte{{0, 7}}, ParameterFormatCodes: []int16{1}}, execute("", 0), syncMessage},
		"long binary parameter":   {parse("", "select $1::int4"), &pgproto3.Bind{Parameters: [][]byte{{0, 0, 0, 0, 7}}, ParameterFormatCodes: []int16{1}}, execute("", 0), syncMessage},
		"parameter format":        {parse("", "select $1"), &pgproto3.Bind{Parameters: [][]byte{{'a'}}, ParameterFormatCodes: []int16{2}}, execute("", 0), syncMessage},
		"result format":           {parse("", "select $1"), &pgproto3.Bind{Parameters: [][]byte{{'a'}}, ResultFormatCodes: []int16{2}}, describeTarget('P', ""), execute("", 0), syncMessage},
		"too many parameters":     extended("select $1", "a", "b"),
		"too many formats":        {parse("", "select $1"), &pgproto3.Bind{Parameters: [][]byte{{'a'}}, ParameterFormatCodes: []int16{0, 0}}, syncMessage, &pgproto3.Bind{Parameters: [][]byte{{'a'}}, ResultFormatCodes: []int16{0, 0}}, syncMessage},
		"formats of a command":    {parse("", "begin"), &pgproto3.Bind{ResultFormatCodes: []int16{1, 1}}, execute("", 0), syncMessage, q("rollback")},
		"constant refused early":  extended("select 'x'::int"),
		"constant refused late":   extended("select 99999::int2"),
		"division refused late":   extended("select 1/0"),
		"failing statement":       {q("begin"), parse("", "SELECT CAST('nextvald' AS pg_catalog.int4)"), syncMessage, q("rollback")},
		"substituted calls":       extended("select (select $1::pg_catalog.int8 as nextval), coalesce($2::pg_catalog.int8, 5)", "7", "NULL"),
		"COPY data outside COPY":  {&pgproto3.CopyData{Data: []byte("x")}, &pgproto3.CopyDone{}, &pgproto3.CopyFail{Message: "x"}, syncMessage},
		"negative row limit":      {parse("", "values (1),(2)"), bind("", ""), execute("", 0xFFFFFFFF), syncMessage},
		"what pools send":         script("SET extra_float_digits = 3", "SET application_name = ''", "SHOW TRANSACTION ISOLATION LEVEL", "select current_schema()", "select pg_catalog.current_schema()", "show standard_conforming_strings", "SELECT 1 AS x", "SELECT 1+1 AS result", "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED", "SELECT CAST('test plain returns' AS VARCHAR(60)) AS anon_1"),
	}
	for name, messages := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := upstream(t, url).exchange(t, messages)
			session := login(t, newBackend(t))
			session.drain(t, 1)
			require.Equal(t, lines(want), lines(session.exchange(t, messages)))
		})
	}
}
