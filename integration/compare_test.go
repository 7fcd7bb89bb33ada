package integration

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	gosync "sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/lib/pq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
)

// call is a statement and its arguments.
type call struct {
	sql  string
	args []any
}

// script reads the statements of a file in testdata/scripts: blank lines part them.
func script(t *testing.T, path string) []call {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var calls []call
	for _, statement := range strings.Split(strings.TrimSpace(string(text)), "\n\n") {
		calls = append(calls, call{sql: statement})
	}
	return calls
}

// withArguments are statements that a script cannot hold.
var withArguments = []call{
	{"CREATE SEQUENCE s", nil},
	{"CREATE TABLE t (id bigint, v text)", nil},
	{"SELECT nextval($1)", []any{"s"}},
	{"SELECT nextval($1)", []any{"s"}},
	{"SELECT nextval($1::regclass)", []any{"public.s"}},
	{"SELECT nextval($1::text::regclass)", []any{"s"}},
	{"SELECT nextval($1), currval($1)", []any{"s"}},
	{"SELECT nextval($1)", []any{nil}},
	{"SELECT nextval($1)", []any{"absent"}},
	{"SELECT nextval('s'), $1::text AS v", []any{"x"}},
	{"SELECT $1::int4 AS n, nextval('s')", []any{7}},
	{"SELECT setval($1, $2)", []any{"s", int64(100)}},
	{"SELECT setval($1, $2, $3)", []any{"s", int64(200), false}},
	{"SELECT setval($1, $2, $3)", []any{"s", int64(200), true}},
	{"SELECT setval('s', $1)", []any{int64(0)}},
	{"SELECT currval($1)", []any{"s"}},
	{"SELECT * FROM nextval($1) AS result", []any{"s"}},
	{"VALUES (nextval($1))", []any{"s"}},
	{"INSERT INTO t VALUES (nextval('s'), $1) RETURNING id, v", []any{"a"}},
	{"INSERT INTO t VALUES (nextval('s'), $1) RETURNING id, v", []any{"b"}},
	{"INSERT INTO t VALUES (nextval($1), $2), (nextval('s'), $3) RETURNING id", []any{"s", "c", "d"}},
	{"UPDATE t SET id = (SELECT nextval('s')) WHERE v = $1 RETURNING id", []any{"a"}},
	{"SELECT v FROM t WHERE id < (SELECT currval('s')) AND v <> $1 ORDER BY v", []any{"b"}},
	{"SELECT nextval('s') + $1::int8", []any{int64(1000)}},
	{"SELECT id, v FROM t ORDER BY v", nil},
}

// client runs statements one after the other on one connection and says of each what can be seen of its answer.
type client struct {
	// arguments says whether statements may have arguments.
	arguments bool
	run       func(t *testing.T, url string, calls []call) []string
}

var clients = map[string]client{
	"pgx cached statements":    {true, runPgx(pgx.QueryExecModeCacheStatement)},
	"pgx cached descriptions":  {true, runPgx(pgx.QueryExecModeCacheDescribe)},
	"pgx described every time": {true, runPgx(pgx.QueryExecModeDescribeExec)},
	"pgx exec":                 {true, runPgx(pgx.QueryExecModeExec)},
	"pgx simple protocol":      {true, runPgx(pgx.QueryExecModeSimpleProtocol)},
	"database/sql with pgx":    {true, runSQL("pgx")},
	"database/sql with pq":     {true, runSQL("postgres")},
	"psql":                     {false, runPsql},
}

// differs opens a statement whose answer is known to differ from PostgreSQL's for some client. The reason follows.
const differs = "-- differs: "

// Every statement of the scripts is run on a plain PostgreSQL and through nextvald, by every client, and must look the same.
// A known difference is marked, and must be one still.
func TestComparedWithPostgreSQL(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("testdata/scripts/*.sql")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	scripts := map[string][]call{"with arguments": withArguments}
	for _, path := range paths {
		scripts[strings.TrimSuffix(filepath.Base(path), ".sql")] = script(t, path)
	}
	process := testenv.Start(t, "--upstream", testenv.Upstream(t), "--store", testenv.Table(t))
	for name, calls := range scripts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu gosync.Mutex
			different := make([]bool, len(calls))
			t.Cleanup(func() {
				for i, c := range calls {
					if strings.HasPrefix(c.sql, differs) && !different[i] {
						t.Errorf("statement %d does not differ any more: %s", i+1, c.sql)
					}
				}
			})
			for clientName, c := range clients {
				if name == "with arguments" && !c.arguments {
					continue
				}
				t.Run(clientName, func(t *testing.T) {
					t.Parallel()
					want := runScript(t, c, calls, func(url string) string { return url })
					got := runScript(t, c, calls, process.URL)
					for i := range calls {
						if want[i] == got[i] {
							continue
						}
						mu.Lock()
						different[i] = true
						mu.Unlock()
						if !strings.HasPrefix(calls[i].sql, differs) {
							t.Errorf("statement %d: %s\nPostgreSQL: %s\nnextvald:   %s", i+1, calls[i].sql, want[i], got[i])
						}
					}
				})
			}
		})
	}
}

func TestDifferencesAreExplained(t *testing.T) {
	docs, err := os.ReadFile("../docs/differences.md")
	require.NoError(t, err)
	paths, err := filepath.Glob("testdata/scripts/*.sql")
	require.NoError(t, err)
	reasons := map[string]bool{}
	for _, path := range paths {
		for _, c := range script(t, path) {
			if reason, ok := strings.CutPrefix(c.sql, differs); ok {
				reason, _, _ = strings.Cut(reason, "\n")
				reasons[reason] = true
				assert.Contains(t, string(docs), "| "+reason+" |")
			}
		}
	}
	assert.Equal(t, len(reasons)+2, strings.Count(string(docs), "\n|"), "a row for a difference that no script has")
}

// runScript runs statements on a database of their own and hides its name in the answers.
func runScript(t *testing.T, c client, calls []call, at func(url string) string) []string {
	t.Helper()
	database := testenv.Database(t)
	u, err := url.Parse(database)
	require.NoError(t, err)
	seen := c.run(t, at(database), calls)
	require.Len(t, seen, len(calls))
	for i := range seen {
		seen[i] = strings.ReplaceAll(seen[i], strings.TrimPrefix(u.Path, "/"), "DATABASE")
	}
	return seen
}

// runPgx runs statements by pgx in one of its modes.
func runPgx(mode pgx.QueryExecMode) func(*testing.T, string, []call) []string {
	return func(t *testing.T, url string, calls []call) []string {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		cfg, err := pgx.ParseConfig(url)
		require.NoError(t, err)
		cfg.DefaultQueryExecMode = mode
		var notices []string
		cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
			notices = append(notices, fmt.Sprintf("%s %s %s %q", n.Severity, n.Code, n.Message, n.Hint))
		}
		conn, err := pgx.ConnectConfig(ctx, cfg)
		require.NoError(t, err)
		defer func() { _ = conn.Close(ctx) }()
		var seen []string
		for _, c := range calls {
			notices = nil
			var s strings.Builder
			rows, err := conn.Query(ctx, c.sql, c.args...)
			if err == nil {
				for _, f := range rows.FieldDescriptions() {
					fmt.Fprintf(&s, "[%s %d %d %d %d]", f.Name, f.DataTypeOID, f.DataTypeSize, f.TypeModifier, f.Format)
				}
				for rows.Next() {
					values, err := rows.Values()
					fmt.Fprintf(&s, " %v %v", values, err)
				}
				err = rows.Err()
			}
			fmt.Fprintf(&s, " %q %c %v %v", rows.CommandTag(), conn.PgConn().TxStatus(), notices, describeError(err))
			seen = append(seen, s.String())
		}
		return seen
	}
}

// runSQL runs statements by database/sql on one of its drivers.
func runSQL(driver string) func(*testing.T, string, []call) []string {
	return func(t *testing.T, url string, calls []call) []string {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		db, err := sql.Open(driver, url)
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close()) }()
		conn, err := db.Conn(ctx)
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		var seen []string
		for _, c := range calls {
			if strings.HasPrefix(c.sql, "COPY ") {
				seen = append(seen, "") // not for these drivers
				continue
			}
			var s strings.Builder
			rows, err := conn.QueryContext(ctx, c.sql, c.args...)
			if err == nil {
				err = readSQL(&s, rows)
			}
			fmt.Fprintf(&s, " %v", describeError(err))
			seen = append(seen, s.String())
		}
		return seen
	}
}

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

// psqlMessage opens what psql writes to stderr about a line of its file.
var psqlMessage = regexp.MustCompile(`^psql:.*?:(\d+): (.*)`)

// runPsql runs statements by psql, which prints column names, rows, command tags, and errors with their place in the text.
func runPsql(t *testing.T, url string, calls []call) []string {
	const mark = "-- end of statement\n"
	text := "\\unset ON_ERROR_STOP\n\\set QUIET off\n"
	var lastLine []int // of each statement
	for _, c := range calls {
		text += c.sql + "\n"
		lastLine = append(lastLine, strings.Count(text, "\n"))
		text += "\\if :ERROR\n\\echo :SQLSTATE\n\\endif\n\\echo :ROW_COUNT\n\\echo " + mark
	}
	path := filepath.Join(t.TempDir(), "script.sql")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	r := testenv.Psql(t, url, "-f", path)
	require.Equal(t, 0, r.Code, r.Stderr)
	seen := strings.Split(r.Stdout, mark)
	require.Len(t, seen, len(calls)+1)
	// A message names a line of its statement, and may go on for more lines.
	i := 0
	for _, line := range strings.Split(strings.TrimSuffix(r.Stderr, "\n"), "\n") {
		if m := psqlMessage.FindStringSubmatch(line); m != nil {
			n, err := strconv.Atoi(m[1])
			require.NoError(t, err)
			i, _ = slices.BinarySearch(lastLine, n)
			line = m[2]
		}
		seen[i] += line + "\n"
	}
	return seen[:len(calls)]
}
