package integration

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
)

// run sends one Query and returns the SQLSTATE of its failure, or "".
func run(t testing.TB, conn *pgx.Conn, sql string) string {
	t.Helper()
	_, err := conn.Exec(context.Background(), sql, pgx.QueryExecModeSimpleProtocol)
	if err != nil && code(err) == "" {
		t.Fatalf("%s: %v", sql, err)
	}
	return code(err)
}

// TestShapesThatAreRefused holds the statements that cannot be answered rightly for a sequence that the upstream does
// not know: they fail with a hint, draw nothing and leave nothing behind.
func TestShapesThatAreRefused(t *testing.T) {
	t.Parallel()
	url := through(t)
	exec(t, url, "CREATE SEQUENCE s", "CREATE TABLE t (id bigint, v text)", "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
		"CREATE FUNCTION noisy() RETURNS int LANGUAGE sql AS 'SELECT 1'",
		"CREATE FUNCTION twins(text) RETURNS SETOF text LANGUAGE sql IMMUTABLE AS 'VALUES ($1), ($1)'",
		"CREATE FUNCTION doubled(t) RETURNS SETOF text LANGUAGE sql IMMUTABLE AS 'VALUES ($1.v), ($1.v)'",
		"CREATE FUNCTION paired(text, text) RETURNS SETOF text LANGUAGE sql IMMUTABLE AS 'VALUES ($1), ($2)'",
		"CREATE OPERATOR <<>> (LEFTARG = text, RIGHTARG = text, FUNCTION = paired)")
	conn := connect(t, url)
	for name, sql := range map[string]string{
		"of each group":                    "SELECT v, nextval('s') FROM t GROUP BY v",
		"of distinct rows":                 "SELECT DISTINCT nextval('s') FROM t",
		"of limited rows":                  "SELECT nextval('s') FROM t LIMIT 1",
		"of locked rows":                   "SELECT nextval('s') FROM t FOR UPDATE",
		"of some rows":                     "SELECT COALESCE(id, nextval('s')) FROM t",
		"of sampled rows":                  "SELECT nextval('s') FROM t TABLESAMPLE SYSTEM (50)",
		"of deleted rows":                  "WITH d AS (DELETE FROM t RETURNING v) SELECT nextval('s') FROM d",
		"in an aggregate":                  "SELECT sum(nextval('s')) FROM t",
		"in a subquery":                    "SELECT q.n FROM (SELECT nextval('s') AS n FROM t) q",
		"beside a window":                  "SELECT nextval('s'), rank() OVER (ORDER BY v) FROM t",
		"beside currval":                   "SELECT nextval('s'), currval('s') FROM t",
		"beside a subquery":                "SELECT nextval('s'), (SELECT nextval('s')) FROM t",
		"beside a set-returning function":  "SELECT nextval('s'), generate_series(1, 3)",
		"volatile WHERE":                   "SELECT nextval('s') FROM t WHERE random() < 2",
		"volatile function in FROM":        "SELECT nextval('s') FROM noisy()",
		"volatile ORDER BY":                "SELECT nextval('s'), v FROM t ORDER BY random()",
		"function that returns a set":      "SELECT nextval('s'), twins(v) FROM t",
		"column that returns a set":        "SELECT nextval('s'), t.doubled FROM t",
		"operator that returns a set":      "SELECT nextval('s'), v <<>> v FROM t",
		"aggregate of several arguments":   "SELECT nextval('s'), string_agg(v, ',') FROM t",
		"rows of the statement before":     "INSERT INTO t VALUES (3, 'c'); SELECT nextval('s') FROM t",
		"UPDATE":                           "UPDATE t SET id = nextval('s')",
		"in WHERE":                         "SELECT v FROM t WHERE id = nextval('s')",
		"RETURNING of many rows":           "INSERT INTO t VALUES (1, 'c'), (2, 'd') RETURNING nextval('s')",
		"recursive":                        "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE nextval('s') < 3) SELECT count(*) FROM r",
		"lateral":                          "SELECT q.n FROM t, LATERAL (SELECT nextval('s') AS n) q",
		"correlated":                       "SELECT (SELECT nextval('s') + t.id) FROM t",
		"setval for each row":              "SELECT setval('s', id) FROM t",
		"column default":                   "CREATE TABLE d (id bigint DEFAULT nextval('s'))",
		"column default later":             "ALTER TABLE t ALTER COLUMN id SET DEFAULT nextval('s')",
		"view":                             "CREATE VIEW w AS SELECT nextval('s')",
		"materialized view":                "CREATE MATERIALIZED VIEW w AS SELECT nextval('s')",
		"rule":                             "CREATE RULE r AS ON INSERT TO t DO ALSO SELECT nextval('s')",
		"SQL function":                     "CREATE FUNCTION f() RETURNS bigint LANGUAGE sql AS $$SELECT nextval('s')$$",
		"SQL function of the standard":     "CREATE FUNCTION f() RETURNS bigint RETURN nextval('s')",
		"PL/pgSQL function":                "CREATE FUNCTION f() RETURNS bigint LANGUAGE plpgsql AS $f$BEGIN RETURN nextval ( 'public.s' ); END$f$",
		"DO":                               "DO $$BEGIN PERFORM nextval('s'); END$$",
		"PREPARE":                          "PREPARE p AS SELECT nextval('s')",
		"DDL among statements of upstream": "CREATE SEQUENCE x; INSERT INTO t VALUES (9)",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := conn.Exec(context.Background(), sql, pgx.QueryExecModeSimpleProtocol)
			require.Equal(t, "0A000", code(err), "%v", err)
			require.NotEmpty(t, hint(err))
		})
	}
	t.Run("name in a parameter, for each row", func(t *testing.T) {
		_, err := conn.Exec(context.Background(), "SELECT nextval($1) FROM t", "s")
		require.Equal(t, "0A000", code(err), "%v", err)
	})
	var last int64
	var called bool
	require.NoError(t, conn.QueryRow(context.Background(), "SELECT last_value, is_called FROM s").Scan(&last, &called))
	require.False(t, called, "a refused statement drew a value")
	var rows int
	require.NoError(t, conn.QueryRow(context.Background(), "SELECT count(*) FROM t").Scan(&rows))
	require.Equal(t, 2, rows)
}

// TestNamesOfBothWorlds: sequences of nextvald and relations of the upstream share their names' space.
func TestNamesOfBothWorlds(t *testing.T) {
	t.Parallel()
	direct := freshDatabase(t)
	conn := connect(t, proxied(t, direct))
	require.Empty(t, run(t, conn, "CREATE SEQUENCE ours"))
	require.Empty(t, run(t, conn, "CREATE SCHEMA other; CREATE TABLE other.taken (id int); CREATE TABLE taken (id int)"))

	for _, sql := range []string{
		"CREATE TABLE ours (id int)", "CREATE VIEW ours AS SELECT 1", "CREATE TABLE ours AS SELECT 1", "SELECT 1 AS a INTO ours",
		"CREATE INDEX ours ON taken (id)", "ALTER TABLE taken RENAME TO ours", "CREATE SEQUENCE ours", "CREATE SEQUENCE taken",
		"ALTER SEQUENCE ours RENAME TO taken", "CREATE MATERIALIZED VIEW ours AS SELECT 1", "CREATE TYPE ours AS (a int)",
	} {
		require.Equal(t, "42P07", run(t, conn, sql), sql)
	}
	require.Empty(t, run(t, conn, "CREATE SEQUENCE t_id_seq"))
	require.Equal(t, "42P07", run(t, conn, "CREATE TABLE t (id serial)"))
	require.Equal(t, "42P07", run(t, conn, "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY)"))
	require.Equal(t, "3F000", run(t, conn, "CREATE SEQUENCE nosuch.x"))

	// The upstream's own sequences are its own.
	exec(t, direct, "CREATE SEQUENCE theirs START 70")
	for range 2 {
		var v int64
		require.NoError(t, conn.QueryRow(context.Background(), "SELECT nextval('theirs')").Scan(&v))
	}
	require.Equal(t, "0A000", run(t, conn, "DROP SEQUENCE ours, theirs"))
	require.Equal(t, "0A000", run(t, conn, "SELECT unnest(ARRAY[nextval('theirs'), nextval('ours')])"))
	var theirs, ours int64
	require.NoError(t, conn.QueryRow(context.Background(), "SELECT nextval('theirs'), nextval('ours')").Scan(&theirs, &ours))
	require.EqualValues(t, 72, theirs)
	require.EqualValues(t, 1, ours)

	// A relation that came past nextvald stops the sequence of its name.
	exec(t, direct, "CREATE TABLE ours (id int)")
	fresh := connect(t, proxied(t, direct))
	_, err := fresh.Exec(context.Background(), "SELECT nextval('ours')")
	require.Equal(t, "55000", code(err))
	require.NotEmpty(t, hint(err))
	exec(t, direct, "DROP TABLE ours")
	require.Empty(t, run(t, connect(t, proxied(t, direct)), "SELECT nextval('ours')"))

	// The search_path decides, as for any relation.
	require.Empty(t, run(t, conn, "CREATE SEQUENCE other.s START 500"))
	require.Empty(t, run(t, conn, "CREATE SEQUENCE s"))
	for path, want := range map[string]int64{"other, public": 500, "public, other": 1} {
		session := connect(t, proxied(t, direct))
		require.Empty(t, run(t, session, "SET search_path = "+path))
		var v int64
		require.NoError(t, session.QueryRow(context.Background(), "SELECT nextval('s')").Scan(&v))
		require.Equal(t, want, v, path)
	}
}

// TestCreateNeedsPrivilege: who may not create in a schema of the upstream may not create a sequence there.
func TestCreateNeedsPrivilege(t *testing.T) {
	t.Parallel()
	direct := freshDatabase(t)
	user := "reader_" + strings.ToLower(rand.Text()[:8])
	exec(t, direct, "CREATE ROLE "+user, "GRANT "+user+" TO CURRENT_USER")
	t.Cleanup(func() { exec(t, direct, "DROP ROLE "+user) })
	conn := connect(t, proxied(t, direct))
	require.Empty(t, run(t, conn, "SET ROLE "+user))
	require.Equal(t, "42501", run(t, conn, "CREATE SEQUENCE x"))
	require.Empty(t, run(t, conn, "RESET ROLE"))
	require.Empty(t, run(t, conn, "CREATE SEQUENCE x"))
}

// TestDDLInABlockIsRefused: until it can be undone with the block.
func TestDDLInABlockIsRefused(t *testing.T) {
	t.Parallel()
	conn := connect(t, through(t))
	require.Empty(t, run(t, conn, "CREATE SEQUENCE s"))
	for _, sql := range []string{"CREATE SEQUENCE x", "ALTER SEQUENCE s RESTART", "DROP SEQUENCE s", "ALTER SEQUENCE s RENAME TO r"} {
		require.Empty(t, run(t, conn, "BEGIN"))
		require.Equal(t, "0A000", run(t, conn, sql))
		require.Equal(t, "25P02", run(t, conn, "SELECT 1"))
		require.Empty(t, run(t, conn, "ROLLBACK"))
	}
	require.Empty(t, run(t, conn, "SELECT nextval('s')"))
	require.Empty(t, run(t, conn, "CREATE SEQUENCE a; CREATE SEQUENCE b; SELECT nextval('a'), nextval('b')"))
	require.Equal(t, "42P07", run(t, conn, "CREATE SEQUENCE c; CREATE SEQUENCE s"))
	require.Equal(t, "42P01", run(t, conn, "SELECT nextval('c')"), "DDL before the failure was not undone")
}

// TestDropSchema: the sequences of a schema go with it.
func TestDropSchema(t *testing.T) {
	t.Parallel()
	url := through(t)
	conn := connect(t, url)
	require.Empty(t, run(t, conn, "CREATE SCHEMA z"))
	require.Empty(t, run(t, conn, "CREATE SEQUENCE z.s"))
	require.Equal(t, "2BP01", run(t, conn, "DROP SCHEMA z"))
	require.Empty(t, run(t, conn, "BEGIN"))
	require.Equal(t, "0A000", run(t, conn, "DROP SCHEMA z CASCADE"))
	require.Empty(t, run(t, conn, "ROLLBACK"))
	require.Equal(t, "3F000", run(t, conn, "DROP SCHEMA z, nosuch CASCADE"))
	require.Empty(t, run(t, conn, "SELECT nextval('z.s')"), "a DROP that failed dropped a sequence")
	require.Empty(t, run(t, conn, "DROP SCHEMA z CASCADE; CREATE SCHEMA z"))
	require.Equal(t, "42P01", run(t, conn, "SELECT nextval('z.s')"))
	require.Empty(t, run(t, conn, "CREATE SEQUENCE z.s START 70"))
	_, err := conn.Exec(context.Background(), "DROP SCHEMA z CASCADE") // extended
	require.NoError(t, err)
	require.Empty(t, run(t, conn, "CREATE SCHEMA z"))
	require.Empty(t, run(t, conn, "CREATE SEQUENCE z.s START 80"))

	// The session may end right after its statement.
	exec(t, url, "DROP SCHEMA z CASCADE")
	require.Empty(t, run(t, conn, "CREATE SCHEMA z"))
	require.Eventually(t, func() bool { return run(t, conn, "CREATE SEQUENCE z.s") == "" }, 30*time.Second, 10*time.Millisecond)
}

// TestDatabasesAreSeparate: one name in two databases is two sequences.
func TestDatabasesAreSeparate(t *testing.T) {
	t.Parallel()
	a, b := connect(t, through(t)), connect(t, through(t))
	require.Empty(t, run(t, a, "CREATE SEQUENCE s START 5"))
	require.Equal(t, "42P01", run(t, b, "SELECT nextval('s')"))
	require.Empty(t, run(t, b, "CREATE SEQUENCE s START 9"))
	for conn, want := range map[*pgx.Conn]int64{a: 5, b: 9} {
		var v int64
		require.NoError(t, conn.QueryRow(context.Background(), "SELECT nextval('s')").Scan(&v))
		require.Equal(t, want, v)
	}
}

// TestSetvalOfAnExpression: the upstream computes the value once, in the transaction of the statement.
func TestSetvalOfAnExpression(t *testing.T) {
	t.Parallel()
	direct, through := twins(t)
	for _, url := range []string{direct, through} {
		exec(t, url, "CREATE SEQUENCE s", "CREATE TABLE t (id bigint)", "INSERT INTO t VALUES (41)")
	}
	c := conversation{
		send(query("SELECT setval('s', (SELECT max(id) FROM t))"), query("SELECT nextval('s')"), query("SELECT setval('s', (SELECT max(id) FROM t) + 1, false)"), query("SELECT nextval('s')")),
		send(query("SELECT setval('s', nextval('s') + 99)"), query("SELECT setval('s', (SELECT id FROM t WHERE id < 0))"), query("SELECT nextval('s')")),
		send(query("BEGIN"), query("INSERT INTO t VALUES (500)"), query("SELECT setval('s', (SELECT max(id) FROM t))"), query("ROLLBACK"), query("SELECT nextval('s')")),
		send(query("BEGIN"), query("SELECT setval('s', (SELECT 1/0 FROM t))"), query("SELECT 1"), query("ROLLBACK"), query("SELECT setval('s', (SELECT 1/0))")),
		send(parse("", "SELECT setval('s', (SELECT max(id) FROM t))"), bind("", ""), execute("", 0), sync), send(query("SELECT nextval('s')")),
		send(parse("", "INSERT INTO t VALUES (7)"), bind("", ""), execute("", 0), parse("", "SELECT setval('s', (SELECT min(id) FROM t))"), bind("", ""), execute("", 0), sync), send(query("SELECT nextval('s')")),
	}
	require.Equal(t, strings.Join(converse(t, direct, c), "\n"), strings.Join(converse(t, through, c), "\n"))
}

// TestLastvalAfterTheUpstreams: the later of the two wins.
func TestLastvalAfterTheUpstreams(t *testing.T) {
	t.Parallel()
	conn := connect(t, through(t))
	ctx := context.Background()
	require.Empty(t, run(t, conn, "CREATE TABLE t (id serial, ref bigint)"))
	require.Empty(t, run(t, conn, "CREATE SEQUENCE ours START 1000"))
	last := func() (v int64) {
		require.NoError(t, conn.QueryRow(ctx, "SELECT lastval()").Scan(&v))
		return v
	}
	require.Equal(t, "55000", run(t, conn, "SELECT lastval()"))
	require.Empty(t, run(t, conn, "SELECT nextval('ours')"))
	require.EqualValues(t, 1000, last())
	require.Empty(t, run(t, conn, "UPDATE t SET ref = 1"))
	require.EqualValues(t, 1000, last(), "the upstream drew nothing")
	require.Empty(t, run(t, conn, "INSERT INTO t (ref) VALUES (1)"))
	require.EqualValues(t, 1, last(), "the default drew the later value")
	require.Empty(t, run(t, conn, "BEGIN"))
	require.EqualValues(t, 1, last())
	require.Empty(t, run(t, conn, "COMMIT"))
	require.Empty(t, run(t, conn, "SELECT nextval('ours')"))
	require.EqualValues(t, 1001, last())
	require.Equal(t, "42P01", run(t, conn, "SELECT nextval('nosuch')"))
	require.EqualValues(t, 1001, last(), "a nextval that failed drew nothing")
	require.Empty(t, run(t, conn, "INSERT INTO t (ref) VALUES (1)"))
	require.Empty(t, run(t, conn, "SELECT nextval('ours')"))
	require.Empty(t, run(t, conn, "UPDATE t SET ref = 1"))
	require.Equal(t, "55000", run(t, conn, "SELECT lastval()"), "nobody can tell which was later")
	require.Empty(t, run(t, conn, "DISCARD ALL"))
	require.Equal(t, "55000", run(t, conn, "SELECT lastval()"))
}

// A sequence's own policy is changed in SQL. A plain PostgreSQL refuses all parameters of sequences, and so do we those of
// others.
func TestPolicyInSQL(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]string{"upstream": through(t), "standalone": withoutUpstream(t)} {
		t.Run(name, func(t *testing.T) {
			conn := connect(t, url)
			for _, c := range []struct{ sql, code, message string }{
				{"CREATE SEQUENCE s", "", ""},
				{"ALTER SEQUENCE s SET (nextvald.mode = strict, nextvald.max_lease = 500, nextvald.buffer_seconds = 2.5)", "", ""},
				{"ALTER SEQUENCE public.s SET (nextvald.mode = cached), RESET (nextvald.max_lease, nextvald.buffer_seconds)", "", ""},
				{"ALTER TABLE s RESET (nextvald.mode)", "", ""},
				{"ALTER SEQUENCE IF EXISTS nowhere SET (nextvald.mode = strict)", "", ""},
				{"ALTER SEQUENCE s SET (nextvald.mode = lazy)", "22023", `invalid value for parameter "nextvald.mode": "lazy"`},
				{"ALTER SEQUENCE s SET (nextvald.speed)", "22023", `unrecognized parameter "nextvald.speed"`},
				{"ALTER SEQUENCE s RESET (nextvald.speed)", "22023", `unrecognized parameter "nextvald.speed"`},
				{"ALTER SEQUENCE s SET (fillfactor = 3)", "42809", `ALTER action SET cannot be performed on relation "s"`},
				{"ALTER SEQUENCE s RESET (fillfactor)", "42809", `ALTER action RESET cannot be performed on relation "s"`},
				{"ALTER SEQUENCE nowhere SET (nextvald.mode = strict)", "42P01", `relation "nowhere" does not exist`},
			} {
				tag, err := conn.Exec(context.Background(), c.sql, pgx.QueryExecModeSimpleProtocol)
				require.Equal(t, c.code, code(err), "%s: %v", c.sql, err)
				if c.code != "" {
					require.ErrorContains(t, err, c.message, c.sql)
				} else {
					require.Equal(t, strings.Join(strings.Fields(c.sql)[:2], " "), tag.String())
				}
			}
			var v int64
			require.NoError(t, conn.QueryRow(context.Background(), "SELECT nextval('s')").Scan(&v))
			require.EqualValues(t, 1, v)
		})
	}
}

// A sequence has an OID, which names it in every function, as a number or bound as drivers do.
func TestOIDs(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]string{"upstream": through(t), "standalone": withoutUpstream(t)} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			conn := connect(t, url)
			exec := func(sql string) { require.Empty(t, run(t, conn, sql)) }
			exec("CREATE SEQUENCE s")
			exec("CREATE SEQUENCE u")
			var oid, other uint32
			require.NoError(t, conn.QueryRow(ctx, "SELECT 's'::regclass::oid, 'u'::regclass::oid").Scan(&oid, &other))
			require.NotEqual(t, oid, other)
			require.Greater(t, oid, uint32(1<<31), "beside those of the upstream")
			draw := func(want int64, sql string, args ...any) {
				t.Helper()
				var v int64
				require.NoError(t, conn.QueryRow(ctx, sql, args...).Scan(&v), sql)
				require.Equal(t, want, v, sql)
			}
			draw(1, fmt.Sprintf("SELECT nextval(%d)", oid), pgx.QueryExecModeSimpleProtocol)
			draw(2, fmt.Sprintf("SELECT nextval('%d')", oid))
			draw(3, "SELECT nextval($1)", oid)
			draw(4, "SELECT nextval($1)", fmt.Sprint(oid))
			draw(5, "SELECT nextval($1::oid)", oid)
			draw(5, "SELECT currval($1)", oid)
			draw(9, "SELECT setval($1, 9)", oid)
			draw(9, "SELECT currval('s')")
			for _, format := range []int16{0, 1} {
				name := []byte(fmt.Sprint(oid))
				if format == 1 {
					name = binary.BigEndian.AppendUint32(nil, oid)
				}
				r := conn.PgConn().ExecParams(ctx, "SELECT nextval($1)", [][]byte{name}, []uint32{2205}, []int16{format}, nil).Read()
				require.NoError(t, r.Err)
				require.Equal(t, fmt.Sprint(10+format), string(r.Rows[0][0]))
			}
			exec("ALTER SEQUENCE s RENAME TO v")
			draw(12, fmt.Sprintf("SELECT nextval(%d)", oid))
			var text string
			require.NoError(t, conn.QueryRow(ctx, "SELECT 'public.v'::regclass::text").Scan(&text))
			require.Equal(t, "v", text)
		})
	}
}

// TestDefaultSource creates sequences where the settings say: in the store, or, as by any other statement, in the upstream.
func TestDefaultSource(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	database := testenv.Database(t)
	file := filepath.Join(t.TempDir(), "nextvald.yaml")
	write(t, file, `
sequences:
  default_source: upstream
  policies:
    - {match: '*.public.ours*', default_source: store}
    - {match: '*.public.copied*', default_source: store, cache_one: cached}
`)
	p := testenv.Start(t, "--config", file, "--upstream", database, "--store", "memory:", "--upstream-sequences", "virtual")
	conn, direct := connect(t, p.URL(database)), connect(t, database)
	for _, sql := range []string{"CREATE SEQUENCE theirs", "CREATE SEQUENCE ours", "CREATE SEQUENCE copied CACHE 1", "BEGIN; CREATE SEQUENCE undone; ROLLBACK"} {
		require.Empty(t, run(t, conn, sql), sql)
	}
	upstreamHas := func(name string) (there bool) {
		require.NoError(t, direct.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", name).Scan(&there))
		return there
	}
	require.True(t, upstreamHas("theirs"))
	require.False(t, upstreamHas("ours"))
	require.False(t, upstreamHas("copied"))
	require.False(t, upstreamHas("undone"))
	for _, name := range []string{"theirs", "ours", "copied"} {
		var v int64
		require.NoError(t, conn.QueryRow(ctx, "SELECT nextval('"+name+"')").Scan(&v))
		require.EqualValues(t, 1, v, name)
		require.Equal(t, "42P07", run(t, conn, "CREATE SEQUENCE "+name))
		require.Empty(t, run(t, conn, "CREATE SEQUENCE IF NOT EXISTS "+name))
	}
	before := leases(t, p)
	for range 10 {
		require.Empty(t, run(t, conn, "SELECT nextval('copied')"))
	}
	require.Equal(t, before, leases(t, p), "it is cached")
	require.Empty(t, run(t, conn, "DROP SEQUENCE theirs"))
	require.False(t, upstreamHas("theirs"))
}
