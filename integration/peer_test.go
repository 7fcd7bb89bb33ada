package integration

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
	"github.com/nextvald/nextvald/proxy"
	"github.com/nextvald/nextvald/proxy/standalone"
	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/memstore"
)

// echo answers the functions of schema nextvald by what they were given, as echoInSQL does in PostgreSQL.
type echo struct{}

func (echo) Call(_ context.Context, _, function string, a []any) (map[string]any, error) {
	switch function {
	case "lease":
		n := a[2].(int64)
		return map[string]any{
			"first": n, "count": n + 1, "increment": int64(-1), "incarnation": fmt.Sprintf("%s.%s@%s", a[0], a[1], a[3]),
			"version": int64(len(a)), "rev": int64(4),
		}, nil
	case "changes":
		return map[string]any{"rev": a[0], "names": int64(2), "topics": nil}, nil
	case "confirm":
		return map[string]any{"confirm": a[1]}, nil
	}
	return map[string]any{"store": fmt.Sprint(a[0], a[1])}, nil
}

const echoInSQL = `
CREATE SCHEMA nextvald;
CREATE FUNCTION nextvald.lease(text, text, bigint, text, text DEFAULT NULL, bigint DEFAULT NULL, bigint DEFAULT NULL,
	OUT first bigint, OUT count bigint, OUT increment bigint, OUT incarnation text, OUT version bigint, OUT rev bigint) LANGUAGE sql AS
	$$SELECT $3, $3 + 1, -1::bigint, $1 || '.' || $2 || '@' || $4,
		4::bigint + ($5 IS NOT NULL)::int + ($6 IS NOT NULL)::int + ($7 IS NOT NULL)::int, 4::bigint$$;
CREATE FUNCTION nextvald.changes(bigint, OUT rev bigint, OUT names bigint, OUT topics text) LANGUAGE sql AS
	$$SELECT $1, 2::bigint, NULL::text$$;
CREATE FUNCTION nextvald.confirm(text, bigint, text DEFAULT NULL, bigint DEFAULT NULL) RETURNS bigint LANGUAGE sql AS $$SELECT $2$$;
CREATE FUNCTION nextvald.store(text, text) RETURNS text LANGUAGE sql AS $$SELECT $1 || $2$$;`

// outcomeOf runs a statement and writes down all that a client sees of it. format is that of the results, -1 for the simple
// protocol.
func outcomeOf(t *testing.T, c *pgconn.PgConn, statement string, format int16, parameters ...string) string {
	var b strings.Builder
	var results []*pgconn.Result
	var err error
	if format < 0 {
		results, err = c.Exec(t.Context(), statement).ReadAll()
	} else {
		values := make([][]byte, len(parameters))
		for i, p := range parameters {
			values[i] = []byte(p)
		}
		r := c.ExecParams(t.Context(), statement, values, nil, nil, []int16{format}).Read()
		results, err = []*pgconn.Result{r}, r.Err
	}
	for _, r := range results {
		for _, f := range r.FieldDescriptions {
			fmt.Fprintf(&b, "%s %d %d %d %d\n", f.Name, f.DataTypeOID, f.DataTypeSize, f.TypeModifier, f.Format)
		}
		for _, row := range r.Rows {
			for _, v := range row {
				fmt.Fprintf(&b, "%v %s ", v == nil, hex.EncodeToString(v))
			}
			fmt.Fprintln(&b)
		}
		fmt.Fprintln(&b, r.CommandTag)
	}
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		fmt.Fprintf(&b, "%s %s | %s | %s | %d\n", refused.Severity, refused.Code, refused.Message, refused.Hint, refused.Position)
	} else {
		require.NoError(t, err)
	}
	return b.String() + string(c.TxStatus())
}

// The functions of schema nextvald look as they would if they were PostgreSQL's.
func TestPeerFunctionsLookLikePostgreSQLs(t *testing.T) {
	t.Parallel()
	direct := freshDatabase(t)
	exec(t, direct, echoInSQL)
	behind, err := url.Parse(direct)
	require.NoError(t, err)
	cfg := proxy.Config{Upstream: tcp(behind.Host), PeerRole: "postgres", Peers: echo{}}
	alone := proxy.Config{Upstream: proxy.Dialer(standalone.New(standalone.Config{}).Dial), Standalone: true, PeerRole: "postgres", Peers: echo{}}
	memory := func() (sequencer.Store, error) { return memstore.New(), nil }
	for name, addr := range map[string]string{
		"before an upstream": new(inProcess).start(t, cfg, memory), "alone": new(inProcess).start(t, alone, memory),
	} {
		t.Run(name, func(t *testing.T) {
			through := *behind
			through.Host = addr
			want, got := connect(t, direct).PgConn(), connect(t, through.String()).PgConn()
			compare := func(format int16, statement string, parameters ...string) {
				t.Helper()
				assert.Equal(t, outcomeOf(t, want, statement, format, parameters...), outcomeOf(t, got, statement, format, parameters...),
					"%s (format %d)", statement, format)
			}
			statements := []string{
				"SELECT first, count, increment, incarnation, version, rev FROM nextvald.lease('public', 'ß', 100::bigint, 'me')",
				"SELECT * FROM nextvald.lease('public', 's', '-9223372036854775808', 'me', 'inc', 1, 2)",
				"SELECT l.rev AS \"R\", first::text, 'x', count FROM nextvald.lease('a'::varchar, 'b', 1::smallint, 'c') AS l",
				"SELECT * FROM nextvald.changes(5) AS c(x, y)",
				"SELECT topics, names FROM nextvald.changes('6')",
				"SELECT confirm FROM nextvald.confirm('me', 7)",
				"SELECT * FROM nextvald.confirm('me', 7, 'token', 8) seen",
				"SELECT store FROM nextvald.store('get', '{}')",
				"select * from nextvald.none()",
				"SELECT 'ß', store FROM nextvald.store(1, 2)",
				"SELECT * FROM nextvald.changes(1.0)",
			}
			run := func() {
				for _, s := range statements {
					for _, format := range []int16{-1, 0, 1} {
						compare(format, s)
					}
				}
				compare(0, "SELECT incarnation, first FROM nextvald.lease($1, $2, $3::bigint, $4)", "public", "s", "12", "me")
				compare(1, "SELECT incarnation, first, version FROM nextvald.lease($1, $2, $3, $4, $5, $6, $7)", "p", "s", "1", "m", "i", "2", "3")
				compare(0, "SELECT first FROM nextvald.lease($1, $2, $3, $4)", "p", "s", "many", "m")
			}
			run()
			compare(-1, "BEGIN")
			for _, s := range statements[:8] {
				compare(-1, s)
				compare(1, s)
			}
			compare(-1, "COMMIT")
			for _, failing := range []string{statements[8], statements[10]} {
				compare(-1, "BEGIN")
				compare(0, failing)
				for _, s := range statements[:8] {
					compare(-1, s)
					compare(0, s)
				}
				compare(-1, "ROLLBACK")
			}
			run()
		})
	}
}

// url is where clients of a process find a database, as a user.
func urlAs(p *testenv.Process, user, database string) string {
	return "postgres://" + user + "@" + p.Address + "/" + database + "?sslmode=disable"
}

// Sidecars, each before a PostgreSQL, lease from a centre without one, and the centre from the store.
func TestSidecars(t *testing.T) {
	t.Parallel()
	store, upstream := testenv.Table(t), testenv.Database(t)
	centre := testenv.Start(t, "--store", store, "--peer-role", "sidecar")
	peer := "peer:postgres://sidecar:hunter2@" + centre.Address + "/?sslmode=disable"
	a := testenv.Start(t, "--store", peer, "--upstream", upstream)
	b := testenv.Start(t, "--store", "peer:"+url.PathEscape(strings.TrimPrefix(peer, "peer:")), "--upstream", upstream)
	for _, p := range []*testenv.Process{a, b} {
		assert.NotContains(t, p.Log(), "hunter2")
		assert.Contains(t, p.Log(), "peer:postgres://sidecar@"+centre.Address)
	}
	atA, atB := connect(t, a.URL(upstream)), connect(t, b.URL(upstream))
	sql := func(c *pgx.Conn, statement string) {
		t.Helper()
		_, err := c.Exec(t.Context(), statement)
		require.NoError(t, err)
	}
	seen := map[int64]bool{}
	draw := func(c *pgx.Conn, least, most int64) {
		t.Helper()
		var v int64
		require.NoError(t, c.QueryRow(t.Context(), "SELECT nextval('s')").Scan(&v))
		require.False(t, seen[v], v)
		require.True(t, v >= least && v <= most, v)
		seen[v] = true
	}
	both := func(least, most int64) {
		t.Helper()
		clear(seen)
		for range 300 {
			draw(atA, least, most)
			draw(atB, least, most)
		}
	}
	sql(atA, "CREATE SEQUENCE s START 1000000")
	require.Eventually(t, func() bool {
		_, err := atB.Exec(t.Context(), "SELECT nextval('s')")
		return err == nil
	}, 5*time.Second, 10*time.Millisecond)
	both(1_000_000, 1_100_000)
	sql(atB, "SELECT setval('s', 10)")
	both(11, 100_000)
	sql(atA, "ALTER SEQUENCE s RESTART WITH 500000")
	both(500_000, 600_000)
	sql(atA, "BEGIN")
	sql(atA, "SELECT nextval('s')")
	sql(atA, "ROLLBACK")

	list := testenv.Command{Args: []string{"members", "--store", peer}}.Run(t)
	require.Equal(t, 0, list.Code, list.Stderr)
	for _, p := range []*testenv.Process{a, b, centre} {
		assert.Contains(t, list.Stdout, p.Address)
	}

	// The centre dies, and comes back.
	centre.Kill()
	testenv.Start(t, "--store", store, "--peer-role", "sidecar", "--listen", centre.Address)
	both(500_000, 600_000)
	sql(atB, "SELECT setval('s', 1, false)")
	both(1, 100_000)

	// A sidecar dies, and a change waits for it, until it is back.
	a.Kill()
	_, err := atB.Exec(t.Context(), "SELECT setval('s', 1, false)")
	requireCode(t, err, "58030")
	a = testenv.Start(t, "--store", peer, "--upstream", upstream, "--listen", a.Address)
	atA = connect(t, a.URL(upstream))
	sql(atB, "SELECT setval('s', 1, false)")
	both(1, 100_000)
	sql(atA, "DROP SEQUENCE s")
	_, err = atB.Exec(t.Context(), "SELECT nextval('s')")
	requireCode(t, err, "42P01")
}

func requireCode(t *testing.T, err error, code string) {
	t.Helper()
	var refused *pgconn.PgError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, code, refused.Code, refused.Message)
	if code != "42P01" {
		require.NotEmpty(t, refused.Hint)
	}
}

func TestWhoMayBeASidecar(t *testing.T) {
	t.Parallel()
	centre := testenv.Start(t, "--store", "memory:", "--peer-role", "sidecar")
	closed := testenv.Start(t, "--store", "memory:")
	for url, want := range map[string]string{
		urlAs(centre, "other", "shop"): "42501", urlAs(closed, "sidecar", "shop"): "42501", urlAs(closed, "", "shop"): "42501",
	} {
		_, err := connect(t, strings.Replace(url, "//@", "//", 1)).Exec(t.Context(), "SELECT * FROM nextvald.lease('public', 's', 1, 'm')")
		requireCode(t, err, want)
	}
	c := connect(t, urlAs(centre, "sidecar", "shop"))
	exec := func(sql string) error {
		_, err := c.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
		return err
	}
	require.NoError(t, exec("CREATE SEQUENCE s"))
	requireCode(t, exec("SELECT * FROM nextvald.lease('public', 's', 10, 'm')"), "42704")
	require.NoError(t, exec("SELECT * FROM nextvald.confirm('m', 0)"))
	require.NoError(t, exec("SELECT * FROM nextvald.lease('public', 's', 10, 'm')"))
	var first int64
	require.NoError(t, c.QueryRow(t.Context(), "SELECT first FROM nextvald.lease('public', 's', 10, 'm')").Scan(&first))
	require.EqualValues(t, 11, first)
	// A member that never follows the feed keeps the sequence from moving back.
	requireCode(t, exec("SELECT setval('s', 1)"), "58030")
	var rev int64
	require.NoError(t, c.QueryRow(t.Context(), "SELECT rev FROM nextvald.changes(0)").Scan(&rev))
	require.NoError(t, exec(fmt.Sprintf("SELECT * FROM nextvald.confirm('m', %d)", rev+1)))
	require.NoError(t, exec("SELECT setval('s', 1)"))

	for name, url := range map[string]string{
		"not the role":      "peer:postgres://other@" + centre.Address + "/?sslmode=disable",
		"no centre":         "peer:postgres://sidecar:hunter2@127.0.0.1:1/",
		"no PostgreSQL URL": "peer:http://sidecar:hunter2@h/",
		"nothing":           "peer:",
		"malformed":         "peer:postgres://u:hunter2@h:abc/d",
	} {
		t.Run(name, func(t *testing.T) {
			failsToStart(t, testenv.Command{Args: []string{"serve", "--store", url}}, "--store", "peer")
		})
	}
	failsToStart(t, testenv.Command{Args: []string{"serve", "--namespace", "x", "--store", "peer:postgres://sidecar@" + centre.Address + "/"}}, "namespace")
}
