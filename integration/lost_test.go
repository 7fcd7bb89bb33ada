package integration

import (
	"context"
	"fmt"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
)

// What sessions do when their upstream goes: each starts something and returns once the upstream is at it.
var busy = map[string]func(*testing.T, *rawConn){
	"idle":   func(*testing.T, *rawConn) {},
	"block":  func(t *testing.T, c *rawConn) { c.exchange(t, send(query("BEGIN"))) },
	"failed": func(t *testing.T, c *rawConn) { c.exchange(t, send(query("BEGIN"), query("SELECT 1/0"))) },
	"query":  func(t *testing.T, c *rawConn) { c.send(t, query("SELECT pg_sleep(300)")) },
	"local":  func(t *testing.T, c *rawConn) { c.exchange(t, send(query("SELECT nextval('s')"))) },
	"copy in": func(t *testing.T, c *rawConn) {
		c.exchange(t, flush(1, query("COPY t FROM STDIN")))
		c.send(t, &pgproto3.CopyData{Data: []byte("1\n")})
	},
	"copy out": func(t *testing.T, c *rawConn) {
		c.exchange(t, flush(2, query("COPY (SELECT CASE g WHEN 20000 THEN pg_sleep(300)::text ELSE repeat('x', 100) END FROM generate_series(1, 20000) g) TO STDOUT")))
	},
	"pipeline": func(t *testing.T, c *rawConn) {
		c.exchange(t, flush(4, parse("", "SELECT nextval('s')"), bind("", ""), execute("", 0)))
		c.send(t, parse("", "SELECT pg_sleep(300)"), bind("", ""), execute("", 0), parse("", "SELECT nextval('s')"), bind("", ""), execute("", 0), sync)
	},
	"large": func(t *testing.T, c *rawConn) { c.send(t, query("SELECT repeat('x', 50000000)")) },
}

// send sends messages and waits for nothing.
func (c *rawConn) send(t *testing.T, messages ...pgproto3.FrontendMessage) {
	t.Helper()
	for _, m := range messages {
		c.frontend.Send(m)
	}
	require.NoError(t, c.frontend.Flush())
}

// last reads up to the end of the connection and returns the message before it.
func (c *rawConn) last(t *testing.T) (last string) {
	t.Helper()
	for {
		line := c.next(t)
		if line == theEnd {
			return last
		}
		last = line
	}
}

// A session hears the server's own last word, or 08006; new sessions are refused while the server is down, and work again
// afterwards, without a value coming back.
func TestLostUpstream(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lose func(*testing.T, *testenv.Server)
		word string
	}{
		"fast shutdown":      {func(t *testing.T, s *testenv.Server) { s.Stop(syscall.SIGINT) }, "57P01"},
		"immediate shutdown": {func(t *testing.T, s *testenv.Server) { s.Stop(syscall.SIGQUIT) }, "08006"},
		"killed":             {func(t *testing.T, s *testenv.Server) { s.Stop(syscall.SIGKILL) }, "(08006|57P01)"}, // backends may notice
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			upstream := testenv.Postgres(t)
			testenv.Exec(t, upstream.URL(), "CREATE TABLE t (id bigint)")
			p := testenv.Start(t, "--upstream", upstream.URL(), "--store", "memory:")
			url := p.URL(upstream.URL())
			testenv.Exec(t, url, "CREATE SEQUENCE s")
			sessions := map[string]*rawConn{}
			for name, start := range busy {
				sessions[name] = dialRaw(t, url)
				start(t, sessions[name])
			}
			before := number(t, connect(t, url), "SELECT nextval('s')")
			c.lose(t, upstream)
			for name, conn := range sessions {
				last := conn.last(t)
				if name != "large" { // which may have ended before, or inside of a message
					require.Regexp(t, "ErrorResponse FATAL/FATAL "+c.word, last, name)
				}
			}
			require.Equal(t, "08006", refused(t, url).Code)
			upstream.Start()
			require.Greater(t, number(t, connect(t, url), "SELECT nextval('s')"), before)
			testenv.Exec(t, url, "INSERT INTO t VALUES (nextval('s'))")
			p.Stop()
		})
	}
}

// One backend is killed: its session ends with 08006, as do the others, since the server starts anew.
func TestLostBackend(t *testing.T) {
	t.Parallel()
	upstream := testenv.Postgres(t)
	testenv.Exec(t, upstream.URL(), "CREATE TABLE t (id bigint)")
	url := testenv.Start(t, "--upstream", upstream.URL(), "--store", "memory:").URL(upstream.URL())
	testenv.Exec(t, url, "CREATE SEQUENCE s")
	for name, start := range busy {
		t.Run(name, func(t *testing.T) {
			conn := dialRaw(t, url)
			row := conn.exchange(t, send(query("SELECT pg_backend_pid()")))[1]
			var pid int
			_, err := fmt.Sscanf(row, `DataRow "%d"`, &pid)
			require.NoError(t, err)
			start(t, conn)
			other := connect(t, url)
			upstream.Signal(pid, syscall.SIGKILL)
			if last := conn.last(t); name != "large" {
				require.Contains(t, last, "ErrorResponse FATAL/FATAL 08006")
			}
			require.Equal(t, "08006", ends(t, other))
			require.Eventually(t, func() bool {
				c, err := pgx.Connect(context.Background(), url)
				return err == nil && c.Close(context.Background()) == nil
			}, patience, patience/1000)
		})
	}
}

// A session whose backend an administrator ends hears that, and nothing else.
func TestTerminatedBackend(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	database := testenv.Database(t)
	conn := connect(t, testenv.Start(t, "--upstream", database, "--store", "memory:").URL(database))
	_, err := connect(t, database).Exec(ctx, "SELECT pg_terminate_backend("+pid(conn)+")")
	require.NoError(t, err)
	require.Equal(t, "57P01", ends(t, conn))
}
