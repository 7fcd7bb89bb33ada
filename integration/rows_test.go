package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	gosync "sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What the clients of TestComparedWithPostgreSQL do not send: portals, pipelines, functional notation.
func TestFramesOfRows(t *testing.T) {
	t.Parallel()
	direct, through := twins(t)
	for _, url := range []string{direct, through} {
		exec(t, url, "CREATE SEQUENCE s", "CREATE TABLE t (id bigint, v text)", "INSERT INTO t VALUES (3, 'c'), (1, 'a'), (2, 'b')", "CREATE TABLE u (id bigint PRIMARY KEY, v text)")
	}
	for name, c := range map[string]conversation{
		"describe": {
			send(parse("p", "SELECT nextval('s'), $1::text, v FROM t WHERE id >= $2 AND v <> $3 ORDER BY id"), describeS("p"), sync),
			send(bind("", "p", "x", "2", "z"), describeP(""), execute("", 0), sync),
			send(bind("", "p", "x", "2", "z"), execute("", 0), bind("", "p", "y", "3", "z"), execute("", 0), sync),
			send(bind("", "p", "x", "7", "z"), execute("", 0), sync, query("SELECT currval('s')")),
			send(bind("", "p", "x", "no number", "z"), execute("", 0), sync, query("SELECT 1")),
			send(bind("", "p", "x", "2"), execute("", 0), sync),
		},
		"rows at a time": {
			send(query("BEGIN"), parse("", "SELECT nextval('s'), id FROM t ORDER BY id"), bind("", ""), execute("", 2), execute("", 2), sync, query("COMMIT")),
			send(parse("", "SELECT nextval('s'), id FROM t ORDER BY id"), bind("a", ""), execute("a", 1), sync, query("SELECT currval('s') > 0")),
		},
		"pipeline": {
			send(parse("", "INSERT INTO t VALUES (4, 'd')"), bind("", ""), execute("", 0),
				parse("", "INSERT INTO u SELECT nextval('s'), v FROM t ORDER BY id"), bind("", ""), execute("", 0),
				parse("", "SELECT * FROM u ORDER BY id"), bind("", ""), execute("", 0), sync),
			send(parse("", "DELETE FROM t WHERE id = 4"), bind("", ""), execute("", 0),
				parse("", "INSERT INTO u SELECT nextval('s'), v FROM t ORDER BY id"), bind("", ""), execute("", 0),
				parse("", "INSERT INTO u VALUES (NULL, 'x')"), bind("", ""), execute("", 0), sync, query("SELECT count(*) FROM u"), query("SELECT currval('s')")),
			send(parse("", "SELECT nextval('s') FROM absent"), bind("", ""), execute("", 0), sync),
			send(query("BEGIN"), parse("", "SELECT nextval('s') FROM t WHERE id = absent"), bind("", ""), execute("", 0), sync, query("ROLLBACK")),
		},
		"read only": {
			send(query("BEGIN READ ONLY"), parse("", "SELECT nextval('s') FROM t WHERE false"), bind("", ""), execute("", 0), sync),
			send(parse("", "SELECT nextval('s') FROM t"), bind("", ""), describeP(""), execute("", 0), sync, query("ROLLBACK")),
		},
		"several statements": {
			send(query("SELECT nextval('s') AS a; SELECT nextval('s') AS b FROM t WHERE id > 1 ORDER BY id")),
			send(query("BEGIN; SELECT nextval('s') FROM t ORDER BY id; INSERT INTO u VALUES (900, 'z'); ROLLBACK; SELECT count(*) FROM u WHERE id = 900")),
		},
		"cursor": {
			send(query("BEGIN"), query("DECLARE c CURSOR FOR SELECT nextval('s'), id FROM t ORDER BY id"), query("FETCH 2 FROM c"), query("FETCH ALL FROM c"),
				query("CLOSE c"), query("COMMIT")),
			send(query("BEGIN"), parse("", "DECLARE c CURSOR FOR SELECT nextval('s'), id FROM t WHERE id > 1 ORDER BY id"), bind("", ""), execute("", 0), sync,
				query("FETCH ALL FROM c"), query("ROLLBACK"), query("SELECT currval('s') > 0")),
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, url := range []string{direct, through} { // each conversation begins alike
				exec(t, url, "SELECT setval('s', 100)", "TRUNCATE u")
			}
			require.Equal(t, strings.Join(converse(t, direct, c), "\n"), strings.Join(converse(t, through, c), "\n"))
		})
	}
}

// TestRowsThatCome: rows that come between the count and the statement make it fail, and undo it; rows that go leave a gap.
func TestRowsThatCome(t *testing.T) {
	t.Parallel()
	direct := freshDatabase(t)
	url := proxied(t, direct)
	ctx := context.Background()
	exec(t, url, "CREATE SEQUENCE s", "CREATE TABLE src (id int)", "INSERT INTO src VALUES (1), (2), (3)",
		"CREATE TABLE dst (n bigint PRIMARY KEY, id int)")
	const insert = "INSERT INTO dst SELECT nextval('s'), id FROM src ORDER BY id"
	for name, run := range map[string]func(conn *pgx.Conn) error{
		"simple": func(conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, insert, pgx.QueryExecModeSimpleProtocol)
			return err
		},
		"extended": func(conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, insert)
			return err
		},
		"cursor": func(conn *pgx.Conn) error {
			tx, err := conn.Begin(ctx)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback(ctx) }()
			_, err1 := tx.Exec(ctx, "DECLARE c CURSOR FOR SELECT nextval('s'), (SELECT max(id) FROM dst) FROM src")
			_, err2 := tx.Exec(ctx, "FETCH ALL FROM c")
			return errors.Join(err1, err2)
		},
	} {
		t.Run(name, func(t *testing.T) {
			conn, other := connect(t, url), connect(t, direct)
			require.NoError(t, run(conn)) // prepared from now on
			var before int
			require.NoError(t, other.QueryRow(ctx, "SELECT count(*) FROM dst").Scan(&before))
			// The statement waits for dst, and takes its snapshot after that.
			during := func(sql string) error {
				tx, err := other.Begin(ctx)
				require.NoError(t, err)
				_, err = tx.Exec(ctx, "LOCK dst IN ACCESS EXCLUSIVE MODE")
				require.NoError(t, err)
				ended := make(chan error, 1)
				go func() { ended <- run(conn) }()
				require.Eventually(t, func() (waits bool) {
					require.NoError(t, tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'dst'::regclass AND NOT granted)").Scan(&waits))
					return waits
				}, time.Minute, 5*time.Millisecond)
				_, err = tx.Exec(ctx, sql)
				require.NoError(t, err)
				require.NoError(t, tx.Commit(ctx))
				return <-ended
			}
			err := during("INSERT INTO src VALUES (0), (4)")
			require.Equal(t, "40001", code(err), "%v", err)
			require.NotEmpty(t, hint(err))
			var after int
			require.NoError(t, conn.QueryRow(ctx, "SELECT count(*) FROM dst").Scan(&after))
			require.Equal(t, before, after)
			require.NoError(t, during("DELETE FROM src WHERE id IN (0, 4)"))
			require.NoError(t, run(conn))
		})
	}
}

// TestUniqueByRows: whatever rows come and go, no value is used twice.
func TestUniqueByRows(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	url := through(t)
	ctx := context.Background()
	exec(t, url, "CREATE SEQUENCE s", "CREATE TABLE src (id int)", "INSERT INTO src SELECT generate_series(1, 20)",
		"CREATE TABLE dst (n bigint, m bigint)")
	var wg gosync.WaitGroup
	for worker := range 6 {
		conn := connect(t, url)
		random := rand.New(rand.NewPCG(seed, uint64(worker)))
		wg.Go(func() {
			for range 60 {
				var err error
				switch k := random.IntN(20); random.IntN(5) {
				case 0:
					_, err = conn.Exec(ctx, "INSERT INTO src SELECT generate_series(1, $1::int)", k)
				case 1:
					_, err = conn.Exec(ctx, "DELETE FROM src WHERE id > $1", k)
				case 2:
					_, err = conn.Exec(ctx, "INSERT INTO dst VALUES (nextval('s'), nextval('s'))")
				case 3:
					_, err = conn.Exec(ctx, "INSERT INTO dst SELECT nextval('s'), nextval('s') FROM src WHERE id < $1 ORDER BY id", k)
				case 4:
					_, err = conn.Exec(ctx, fmt.Sprintf("INSERT INTO dst SELECT nextval('s'), nextval('s') FROM src WHERE id < %d", k), pgx.QueryExecModeSimpleProtocol)
				}
				if err != nil && code(err) != "40001" {
					assert.NoError(t, err)
					return
				}
			}
		})
	}
	wg.Wait()
	var values, distinct int
	conn := connect(t, url)
	require.NoError(t, conn.QueryRow(ctx, "SELECT count(v), count(DISTINCT v) FROM (SELECT n FROM dst UNION ALL SELECT m FROM dst) AS d(v)").Scan(&values, &distinct))
	require.NotZero(t, values)
	require.Equal(t, values, distinct)
}

// TestRowsOfOneSnapshot: at REPEATABLE READ rows that come do not show there.
func TestRowsOfOneSnapshot(t *testing.T) {
	t.Parallel()
	url := through(t)
	ctx := context.Background()
	exec(t, url, "CREATE SEQUENCE s", "CREATE TABLE src (id int)", "INSERT INTO src VALUES (1), (2)")
	tx, err := connect(t, url).BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	_, err = tx.Exec(ctx, "SELECT count(*) FROM src")
	require.NoError(t, err)
	exec(t, url, "INSERT INTO src VALUES (3)")
	rows, err := tx.Query(ctx, "SELECT nextval('s') FROM src")
	require.NoError(t, err)
	values, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	require.NoError(t, err)
	require.Equal(t, []int64{1, 2}, values)
}
