package integration

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
)

// unseen draw more values than a fence has in one statement, by calls that nextvald does not see: of a table d whose trigger calls
// nextval('u'), and of a function f that does.
var unseen = map[string]conversation{
	"by a trigger":          {send(query("INSERT INTO d (v) SELECT 'x' FROM generate_series(1, 25000)")), send(query("SELECT count(DISTINCT id) FROM d")), send(query("SELECT nextval('u') > 0"))},
	"by a function":         {send(query("SELECT count(DISTINCT f()) FROM generate_series(1, 2500)"))},
	"first a row":           {send(query("SELECT f() > 0")), send(query("SELECT count(f() + f()) FROM generate_series(1, 1300)"))},
	"returning":             {send(query("WITH i AS (INSERT INTO d (v) SELECT 'x' FROM generate_series(1, 2500) RETURNING id) SELECT count(DISTINCT id) FROM i"))},
	"extended":              {send(parse("", "INSERT INTO d (v) SELECT $1::text FROM generate_series(1, 2500)"), bind("", "", "x"), describeP(""), execute("", 0), sync), send(query("SELECT count(DISTINCT id), count(DISTINCT v) FROM d"))},
	"prepared":              {send(parse("p", "INSERT INTO d (v) SELECT $1 FROM generate_series(1, 2500)"), describeS("p"), sync), send(bind("", "p", "x"), execute("", 0), sync), send(bind("", "p", "y"), execute("", 0), sync), send(query("SELECT count(DISTINCT id), count(DISTINCT v) FROM d"))},
	"rows of a portal":      {send(parse("", "SELECT count(DISTINCT f()) FROM generate_series(1, 2500)"), bind("", ""), describeP(""), execute("", 1), sync)},
	"then a pipelined one":  {send(query("INSERT INTO d (v) SELECT 'x' FROM generate_series(1, 2500)")), send(query("SELECT 1"), query("SELECT nextval('u') > 0"), query("SELECT 2"))},
	"beside a call of ours": {send(query("INSERT INTO d (n, v) SELECT nextval('u'), 'x'")), send(query("INSERT INTO d (n, v) VALUES (nextval('s'), (SELECT count(f()) FROM generate_series(1, 2500))) RETURNING n"))},
	"another error":         {send(query("INSERT INTO d (v) SELECT CASE WHEN i < 3000 THEN 'x' ELSE (i/0)::text END FROM generate_series(1, 3000) i")), send(query("SELECT count(*) FROM d"))},
	"set back":              {send(query("SELECT nextval('u')")), send(query("SELECT h(1)")), send(query("SELECT nextval('u'), f()")), send(query("SELECT h(0)"))},
	"set, extended":         {send(parse("", "SELECT h($1)"), bind("", "", "900000"), describeP(""), execute("", 0), sync), send(query("SELECT nextval('u'), currval('u')"))},
	"beyond its end":        {send(query("CREATE SEQUENCE e MAXVALUE 2"), query("CREATE FUNCTION g() RETURNS bigint LANGUAGE plpgsql AS $$BEGIN RETURN nextval('u') / 0; END$$"), query("SELECT g()"))},
}

// TestUnseenCallsGoOn compares statements that use a fence up with a plain PostgreSQL, which knows no fences.
func TestUnseenCallsGoOn(t *testing.T) {
	t.Parallel()
	for name, c := range unseen {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			direct, upstream := freshDatabase(t), freshDatabase(t)
			through := sources["store"].behind(t, upstream)
			for _, url := range []string{direct, through} {
				exec(t, url, unseenTables...)
			}
			want, got := converse(t, direct, c), converse(t, through, c)
			require.Equal(t, strings.Join(want, "\n"), strings.Join(got, "\n"))
		})
	}
}

var unseenTables = []string{
	"CREATE SEQUENCE u", "CREATE SEQUENCE s", "CREATE TABLE d (id bigint, n bigint, v text)",
	"CREATE FUNCTION f() RETURNS bigint LANGUAGE plpgsql AS $$BEGIN RETURN nextval('u'); END$$",
	"CREATE FUNCTION h(bigint) RETURNS bigint LANGUAGE plpgsql AS $$BEGIN RETURN setval('u', $1); END$$",
	"CREATE FUNCTION t() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN NEW.id := nextval('u'); RETURN NEW; END$$",
	"CREATE TRIGGER t BEFORE INSERT ON d FOR EACH ROW EXECUTE FUNCTION t()",
}

// TestUnseenCallsAfterAStart runs such a statement as the first of a process, and in a session that waits for its client in a
// goroutine of its own, since it is encrypted.
func TestUnseenCallsAfterAStart(t *testing.T) {
	t.Parallel()
	cert, key := testenv.NewAuthority(t).Issue("localhost", "127.0.0.1")
	database, store := testenv.Database(t), testenv.Table(t)
	args := []string{"--upstream", database, "--store", store, "--upstream-sequences", "mirrored", "--tls-cert", cert, "--tls-key", key}
	exec(t, testenv.Start(t, args...).URL(database), unseenTables...)
	url := testenv.Start(t, args...).URL(database)
	cfg, err := pgx.ParseConfig(strings.Replace(url, "sslmode=disable", "sslmode=require", 1))
	require.NoError(t, err)
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	tag, err := conn.Exec(t.Context(), "INSERT INTO d (v) SELECT $1::text FROM generate_series(1, 25000)", "x")
	require.NoError(t, err)
	require.EqualValues(t, 25000, tag.RowsAffected())
}

// TestUnseenCallsInABlock: what cannot be run again fails with a hint, and goes on when the client runs it again.
func TestUnseenCallsInABlock(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ sql, code string }{
		"setval":  {"BEGIN; SELECT h(5000000); COMMIT", "22003"},
		"block":   {"BEGIN; INSERT INTO d (v) SELECT 'x' FROM generate_series(1, 5000); COMMIT", "2200H"},
		"DO":      {"DO $$BEGIN INSERT INTO d (v) SELECT 'x' FROM generate_series(1, 5000); END$$", "2200H"},
		"a table": {"CREATE TABLE copies AS SELECT f() FROM generate_series(1, 5000)", "2200H"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			through := sources["store"].behind(t, freshDatabase(t))
			exec(t, through, unseenTables...)
			conn := connect(t, through)
			_, err := conn.Exec(t.Context(), test.sql, pgx.QueryExecModeSimpleProtocol)
			var refused *pgconn.PgError
			require.ErrorAs(t, err, &refused)
			require.Equal(t, test.code, refused.Code)
			require.Contains(t, refused.Hint, "run the transaction again")
			require.Eventually(t, func() bool {
				_, err := conn.Exec(t.Context(), "ROLLBACK", pgx.QueryExecModeSimpleProtocol)
				require.NoError(t, err)
				_, err = conn.Exec(t.Context(), test.sql, pgx.QueryExecModeSimpleProtocol)
				return err == nil
			}, 30*time.Second, 100*time.Millisecond)
		})
	}
}

// A fence whose lock others hold cannot be fed: the statement fails with a hint, or is cancelled, and nothing of it is left.
func TestUnseenCallsWaitForALock(t *testing.T) {
	t.Parallel()
	upstream := freshDatabase(t)
	through := sources["store"].behind(t, upstream)
	exec(t, through, unseenTables...)
	holder, conn := connect(t, upstream), connect(t, through)
	const insert = "INSERT INTO d (v) SELECT 'x' FROM generate_series(1, 5000)"
	hold := func() {
		_, err := holder.Exec(t.Context(), "BEGIN; SELECT nextval('u')", pgx.QueryExecModeSimpleProtocol)
		require.NoError(t, err)
	}
	letGo := func() {
		_, err := holder.Exec(t.Context(), "ROLLBACK")
		require.NoError(t, err)
	}

	hold()
	var refused *pgconn.PgError
	_, err := conn.Exec(t.Context(), insert)
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "2200H", refused.Code)
	require.Contains(t, refused.Hint, "run the transaction again")
	require.Equal(t, byte('I'), conn.PgConn().TxStatus())

	done := make(chan error)
	go func() {
		_, err := conn.Exec(t.Context(), insert+" -- again")
		done <- err
	}()
	watch := connect(t, upstream)
	require.Eventually(t, func() bool { // it has failed, and its error is kept back
		var waits bool
		require.NoError(t, watch.QueryRow(t.Context(), "SELECT count(*) > 0 FROM pg_stat_activity WHERE pid = $1 AND state = 'idle' AND query LIKE '%-- again'",
			conn.PgConn().PID()).Scan(&waits))
		return waits
	}, 20*time.Second, time.Millisecond)
	require.NoError(t, conn.PgConn().CancelRequest(t.Context()))
	require.Equal(t, "57014", code(<-done))
	letGo()
	_, err = conn.Exec(t.Context(), insert)
	require.NoError(t, err)
	var rows int
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM d").Scan(&rows))
	require.Equal(t, 5000, rows)
}

// A batch that is more than one statement is undone as a whole, so it is not run again.
func TestUnseenCallsAmongOtherWork(t *testing.T) {
	t.Parallel()
	const work, many = "INSERT INTO d (v) VALUES ('x')", "INSERT INTO d (v) SELECT 'x' FROM generate_series(1, 2500)"
	for name, c := range map[string]conversation{
		"before it": {send(parse("", work), bind("", ""), execute("", 0), parse("", many), bind("", ""), execute("", 0), sync)},
		"answered":  {flush(3, parse("", work), bind("", ""), execute("", 0)), send(parse("", many), bind("", ""), execute("", 0), sync)},
		"bound":     {send(parse("a", many), sync), flush(3, parse("", work), bind("", ""), execute("", 0)), send(bind("", "a"), execute("", 0), sync)},
		"after it":  {send(parse("", many), bind("", ""), execute("", 0), parse("", work), bind("", ""), execute("", 0), sync)},
		"a query":   {flush(3, parse("", work), bind("", ""), execute("", 0)), send(query(many))},
		"a string":  {send(query(work + "; " + many))},
		"queries":   {send(query(many), query("SELECT 1"))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			through := sources["store"].behind(t, freshDatabase(t))
			exec(t, through, unseenTables...)
			require.Contains(t, strings.Join(converse(t, through, c), "\n"), "2200H")
			var rows int
			require.NoError(t, connect(t, through).QueryRow(t.Context(), "SELECT count(*) FROM d").Scan(&rows))
			require.Zero(t, rows)
		})
	}
}
