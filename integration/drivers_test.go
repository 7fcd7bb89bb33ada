package integration

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/lib/pq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// program is what an application does with a driver beyond single statements. It notes what it sees, one line for each
// step, and keeps on after an error.
type program func(ctx context.Context, url string, note func(format string, args ...any))

// driverSetup are the sequences of every program, driverTable the table of those that need an upstream.
var driverSetup = []string{"CREATE SEQUENCE s START 100", "CREATE SEQUENCE short MAXVALUE 3"}

const driverTable = "CREATE TABLE t (id bigint PRIMARY KEY, v text)"

// Programs that need nothing but sequences run without an upstream too; the others have a table.
var (
	sequencePrograms = map[string]program{
		"database/sql with pq: prepared":  preparedSQL("postgres"),
		"database/sql with pgx: prepared": preparedSQL("pgx"),
		"pgx: pool with a reset query":    pgxPool,
		"pgx: recreated sequence":         pgxRecreated,
		"pgx: batch of calls":             pgxBatches([]batchOf{{calls("s", 30)}, {[]string{nextOf("s"), "SELECT 1/0", nextOf("s")}}, {calls("short", 5)}}),
	}
	tablePrograms = map[string]program{
		"database/sql with pq: transactions":  transactionsSQL("postgres"),
		"database/sql with pgx: transactions": transactionsSQL("pgx"),
		"database/sql with pq: COPY":          copyPq,
		"pq: listener":                        listenPq,
		"pgx: COPY":                           copyPgx,
		"pgx: cursor":                         cursorPgx,
		"pgx: batches with inserts": pgxBatches([]batchOf{
			{[]string{insertOf("s"), nextOf("s"), insertOf("s"), "SELECT currval('s')"}},
			{[]string{insertOf("s"), nextOf("absent"), insertOf("s")}},
			{[]string{insertOf("s"), insertOf("short"), insertOf("short"), insertOf("short"), insertOf("short"), nextOf("s")}},
			{[]string{"INSERT INTO t VALUES (1, 'first')", nextOf("short"), nextOf("s")}},
			{[]string{"BEGIN", insertOf("s"), nextOf("s"), "ROLLBACK", nextOf("s")}},
			{[]string{nextOf("s"), "SELECT generate_series(1, 3000)", nextOf("s")}},
			{[]string{"SELECT count(*) FROM t"}},
		}),
	}
)

func nextOf(name string) string { return fmt.Sprintf("SELECT nextval('%s')", name) }
func insertOf(name string) string {
	return fmt.Sprintf("INSERT INTO t VALUES (nextval('%s'), 'x') RETURNING v", name)
}

func calls(name string, n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = nextOf(name)
	}
	return list
}

// What applications do with Go's drivers looks the same through nextvald as on a plain PostgreSQL.
func TestDrivers(t *testing.T) {
	t.Parallel()
	for name, p := range sequencePrograms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			direct, through := twins(t)
			want := observe(t, p, direct, driverSetup...)
			assert.Equal(t, want, observe(t, p, through, driverSetup...), "through nextvald")
			assert.Equal(t, want, observe(t, p, withoutUpstream(t), driverSetup...), "without an upstream")
		})
	}
	for name, p := range tablePrograms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			direct, through := twins(t)
			setup := append([]string{driverTable}, driverSetup...)
			assert.Equal(t, observe(t, p, direct, setup...), observe(t, p, through, setup...))
		})
	}
}

// observe sets a database up, runs a program and returns its notes.
func observe(t *testing.T, p program, database string, setup ...string) []string {
	t.Helper()
	exec(t, database, setup...)
	ctx, stop := context.WithTimeout(context.Background(), 2*time.Minute)
	defer stop()
	u, err := url.Parse(database)
	require.NoError(t, err)
	u.RawQuery = "sslmode=disable"
	var notes []string
	p(ctx, u.String(), func(format string, args ...any) {
		for i, a := range args {
			if err, ok := a.(error); ok {
				args[i] = describeError(err)
			}
		}
		notes = append(notes, strings.ReplaceAll(fmt.Sprintf(format, args...), strings.TrimPrefix(u.Path, "/"), "DATABASE"))
	})
	require.NotEmpty(t, notes)
	require.NotContains(t, notes[0], "ERROR", "the first step works")
	return notes
}

// preparedSQL executes prepared statements often enough for every driver's and server's change of plan.
func preparedSQL(driver string) program {
	return func(ctx context.Context, url string, note func(string, ...any)) {
		db, err := sql.Open(driver, url)
		if err != nil {
			note("open: %v", err)
			return
		}
		defer func() { note("close: %v", db.Close()) }()
		db.SetMaxOpenConns(1)
		note("ping: %v", db.PingContext(ctx))
		for _, text := range []string{
			"SELECT nextval('s')", "SELECT nextval($1)", "SELECT currval($1)", "SELECT nextval($1::regclass)",
			"SELECT nextval('short')", "SELECT nextval($1), currval($1)", "SELECT nextval('absent')",
		} {
			st, err := db.PrepareContext(ctx, text)
			note("prepare %s: %v", text, err)
			if err != nil {
				continue
			}
			var args []any
			if strings.Contains(text, "$1") {
				args = []any{"s"}
			}
			for range 12 {
				rows, err := st.QueryContext(ctx, args...)
				if err != nil {
					note("%v", err)
					continue
				}
				var s strings.Builder
				err = readSQL(&s, rows)
				note("%s %v", s.String(), err)
			}
			note("close: %v", st.Close())
		}
	}
}

// transactionsSQL commits, rolls back, and goes on after errors.
func transactionsSQL(driver string) program {
	return func(ctx context.Context, url string, note func(string, ...any)) {
		db, err := sql.Open(driver, url)
		if err != nil {
			note("open: %v", err)
			return
		}
		defer func() { _ = db.Close() }()
		for n, ends := range []struct {
			statements []string
			commit     bool
		}{
			{[]string{insertOf("s"), nextOf("s")}, true},
			{[]string{insertOf("s"), nextOf("s")}, false},
			{[]string{insertOf("s"), nextOf("absent"), nextOf("s")}, true},
			{[]string{nextOf("short"), nextOf("short"), nextOf("short"), insertOf("s"), nextOf("short"), nextOf("s")}, true},
			{[]string{"SAVEPOINT a", nextOf("short"), "ROLLBACK TO a", insertOf("s"), "RELEASE a"}, true},
			{[]string{"SET TRANSACTION READ ONLY", nextOf("s")}, true},
			{[]string{"DECLARE c CURSOR FOR SELECT v FROM t", "FETCH 2 FROM c", nextOf("s"), "CLOSE c"}, true},
		} {
			tx, err := db.BeginTx(ctx, nil)
			note("transaction %d: %v", n, err)
			if err != nil {
				continue
			}
			for _, text := range ends.statements {
				rows, err := tx.QueryContext(ctx, text)
				if err != nil {
					note("%s: %v", text, err)
					continue
				}
				var s strings.Builder
				err = readSQL(&s, rows)
				note("%s: %s %v", text, s.String(), err)
			}
			if ends.commit {
				note("commit: %v", tx.Commit())
			} else {
				note("rollback: %v", tx.Rollback())
			}
		}
		var n int
		err = db.QueryRowContext(ctx, "SELECT count(*) FROM t").Scan(&n)
		note("%d rows, %v", n, err)
	}
}

// pgxPool cleans connections as they go back to their pool.
func pgxPool(ctx context.Context, url string, note func(string, ...any)) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		note("parse: %v", err)
		return
	}
	cfg.MaxConns = 1
	cfg.AfterRelease = func(conn *pgx.Conn) bool {
		_, err := conn.Exec(ctx, "DISCARD SEQUENCES; RESET ALL")
		return err == nil
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		note("open: %v", err)
		return
	}
	defer pool.Close()
	note("ping: %v", pool.Ping(ctx))
	for range 3 {
		err := pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
			var v int64
			err := conn.QueryRow(ctx, "SELECT currval('s')").Scan(&v)
			note("currval %d %v", v, err)
			for range 3 {
				err = conn.QueryRow(ctx, "SELECT nextval($1)", "s").Scan(&v)
				note("nextval %d %v", v, err)
			}
			err = conn.QueryRow(ctx, "SELECT lastval()").Scan(&v)
			note("lastval %d %v", v, err)
			return nil
		})
		note("%v", err)
	}
}

// pgxRecreated keeps prepared statements while their sequence comes and goes.
func pgxRecreated(ctx context.Context, url string, note func(string, ...any)) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		note("connect: %v", err)
		return
	}
	defer func() { _ = conn.Close(ctx) }()
	for _, st := range [][2]string{{"constant", "SELECT nextval('s')"}, {"parameter", "SELECT nextval($1)"}, {"text", "SELECT nextval($1::text)"}} {
		_, err := conn.Prepare(ctx, st[0], st[1])
		note("prepare %s: %v", st[0], err)
	}
	for _, change := range []string{"", "ALTER SEQUENCE s INCREMENT 5", "DROP SEQUENCE s", "CREATE SEQUENCE s START 7", "ALTER SEQUENCE s RENAME TO r", "ALTER SEQUENCE r RENAME TO s"} {
		_, err := conn.Exec(ctx, change)
		note("%s: %v", change, err)
		for _, name := range []string{"constant", "parameter", "text"} {
			var args []any
			if name != "constant" {
				args = []any{"s"}
			}
			var v int64
			err := conn.QueryRow(ctx, name, args...).Scan(&v)
			note("%s %d %v", name, v, err)
		}
	}
}

// batchOf is what one batch sends, ended by one Sync.
type batchOf struct{ statements []string }

// pgxBatches sends every batch in every mode. A batch begins where no value was drawn before, since those drawn for what an
// error has skipped are gaps.
func pgxBatches(batches []batchOf) program {
	return func(ctx context.Context, url string, note func(string, ...any)) {
		from := 0
		for _, mode := range []pgx.QueryExecMode{
			pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeDescribeExec,
			pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeCacheStatement,
		} {
			cfg, err := pgx.ParseConfig(url)
			if err != nil {
				note("parse: %v", err)
				return
			}
			cfg.DefaultQueryExecMode = mode
			conn, err := pgx.ConnectConfig(ctx, cfg)
			if err != nil {
				note("connect: %v", err)
				return
			}
			for _, b := range batches {
				from += 1000
				_, err := conn.Exec(ctx, fmt.Sprintf("SELECT setval('s', %d)", from))
				note("%s %c %v", mode, conn.PgConn().TxStatus(), err)
				runBatch(ctx, conn, b, note)
			}
			note("close: %v", conn.Close(ctx))
		}
	}
}

// runBatch notes the answers up to the first error; what a driver says of the rest is its own affair.
func runBatch(ctx context.Context, conn *pgx.Conn, b batchOf, note func(string, ...any)) {
	var batch pgx.Batch
	for _, text := range b.statements {
		batch.Queue(text)
	}
	results := conn.SendBatch(ctx, &batch)
	defer func() { _ = results.Close() }()
	for _, text := range b.statements {
		rows, err := results.Query()
		n, last := 0, []any(nil)
		if err == nil {
			for rows.Next() {
				n++
				last, _ = rows.Values()
			}
			err = rows.Err()
		}
		if err != nil {
			note("%s: %v", text, err)
			return
		}
		note("%s: %d rows, last %v, %s", text, n, last, rows.CommandTag())
	}
}

func copyPgx(ctx context.Context, url string, note func(string, ...any)) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		note("connect: %v", err)
		return
	}
	defer func() { _ = conn.Close(ctx) }()
	for range 2 { // the second time is refused: the keys are taken
		n, err := conn.CopyFrom(ctx, pgx.Identifier{"t"}, []string{"id", "v"}, pgx.CopyFromSlice(3000, func(i int) ([]any, error) {
			return []any{int64(i), strings.Repeat("x", i%100)}, nil
		}))
		note("copied %d %v", n, err)
		var v int64
		err = conn.QueryRow(ctx, "SELECT nextval('s')").Scan(&v)
		note("%d %v", v, err)
	}
	var out strings.Builder
	tag, err := conn.PgConn().CopyTo(ctx, &out, "COPY (SELECT nextval('s'), 'x') TO STDOUT")
	note("%s %q %v", tag, out.String(), err)
}

func cursorPgx(ctx context.Context, url string, note func(string, ...any)) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		note("connect: %v", err)
		return
	}
	defer func() { _ = conn.Close(ctx) }()
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		for _, text := range []string{"DECLARE c CURSOR FOR SELECT nextval('s') UNION ALL SELECT nextval('s')", "FETCH 1 FROM c", "FETCH ALL FROM c", "MOVE BACKWARD ALL FROM c", "FETCH ALL FROM c"} {
			rows, err := tx.Query(ctx, text)
			if err != nil {
				return err
			}
			values, err := pgx.CollectRows(rows, pgx.RowToMap)
			note("%s: %v %s %v", text, values, rows.CommandTag(), err)
		}
		return errors.New("enough")
	})
	note("%v", err)
}

func copyPq(ctx context.Context, url string, note func(string, ...any)) {
	db, err := sql.Open("postgres", url)
	if err != nil {
		note("open: %v", err)
		return
	}
	defer func() { _ = db.Close() }()
	for range 2 {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			note("begin: %v", err)
			return
		}
		var v int64
		err = tx.QueryRowContext(ctx, "SELECT nextval('s')").Scan(&v)
		note("%d %v", v, err)
		st, err := tx.PrepareContext(ctx, "COPY t (id, v) FROM STDIN")
		note("copy in: %v", err)
		for i := range 2000 {
			if _, err := st.ExecContext(ctx, i, "v"); err != nil {
				note("row: %v", err)
				break
			}
		}
		_, err = st.ExecContext(ctx)
		note("end: %v", err)
		_ = st.Close()
		note("commit: %v", tx.Commit())
	}
	var n int
	err = db.QueryRowContext(ctx, "SELECT count(*) FROM t").Scan(&n)
	note("%d rows, %v", n, err)
}

func listenPq(ctx context.Context, url string, note func(string, ...any)) {
	l := pq.NewListener(url, time.Second, time.Minute, nil)
	defer func() { _ = l.Close() }()
	note("listen: %v", l.Listen("news"))
	db, err := sql.Open("postgres", url)
	if err != nil {
		note("open: %v", err)
		return
	}
	defer func() { _ = db.Close() }()
	_, err = db.ExecContext(ctx, "BEGIN; SELECT nextval('s'); SELECT pg_notify('news', 'drawn'); COMMIT")
	note("notify: %v", err)
	select {
	case n := <-l.Notify:
		note("heard %s %s", n.Channel, n.Extra)
	case <-ctx.Done():
		note("heard nothing")
	}
}

// readSQL writes down types and values.
func readSQL(s *strings.Builder, rows *sql.Rows) error {
	types, err := rows.ColumnTypes()
	if err != nil {
		return err
	}
	for _, c := range types {
		fmt.Fprintf(s, "[%s %s]", c.Name(), c.DatabaseTypeName())
	}
	values := make([]any, len(types))
	for i := range values {
		values[i] = new(any)
	}
	for rows.Next() {
		if err := rows.Scan(values...); err != nil {
			return err
		}
		for _, v := range values {
			fmt.Fprintf(s, " %v", *v.(*any))
		}
	}
	return errors.Join(rows.Err(), rows.Close())
}

// describeError is what a client sees of an error.
func describeError(err error) string {
	var fromPgx *pgconn.PgError
	var fromPq *pq.Error
	switch {
	case err == nil:
		return "no error"
	case errors.As(err, &fromPgx):
		e := fromPgx
		return fmt.Sprintf("%s %s %s detail=%q hint=%q position=%d where=%q", e.Severity, e.Code, e.Message, e.Detail, e.Hint, e.Position, e.Where)
	case errors.As(err, &fromPq):
		e := fromPq
		return fmt.Sprintf("%s %s %s detail=%q hint=%q position=%s where=%q", e.Severity, e.Code, e.Message, e.Detail, e.Hint, e.Position, e.Where)
	}
	return err.Error()
}
