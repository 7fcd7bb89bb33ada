package integration

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
)

// connect opens a session that ends with the test.
func connect(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(stop)
	conn, err := pgx.Connect(ctx, url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func through(t testing.TB) string {
	t.Helper()
	return proxied(t, freshDatabase(t))
}

func TestCopyBothWays(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	conn := connect(t, through(t))
	_, err := conn.Exec(ctx, "CREATE TABLE c (id bigint, v text)")
	require.NoError(t, err)

	const rows = 200_000
	i := 0
	n, err := conn.CopyFrom(ctx, pgx.Identifier{"c"}, []string{"id", "v"}, pgx.CopyFromFunc(func() ([]any, error) {
		if i == rows {
			return nil, nil
		}
		i++
		return []any{int64(i), strings.Repeat("x", i%100)}, nil
	}))
	require.NoError(t, err)
	require.EqualValues(t, rows, n)

	var out bytes.Buffer
	tag, err := conn.PgConn().CopyTo(ctx, &out, "COPY c TO STDOUT")
	require.NoError(t, err)
	require.EqualValues(t, rows, tag.RowsAffected())
	require.Equal(t, rows, bytes.Count(out.Bytes(), []byte("\n")))

	// A COPY that fails half way leaves the session usable.
	_, err = conn.PgConn().CopyFrom(ctx, strings.NewReader("1\ta\nnot a number\tb\n"), "COPY c FROM STDIN")
	require.Equal(t, "22P02", code(err))
	_, err = conn.PgConn().CopyFrom(ctx, &failingReader{}, "COPY c FROM STDIN")
	require.Error(t, err)
	var count int64
	require.NoError(t, conn.QueryRow(ctx, "SELECT count(*) FROM c").Scan(&count))
	require.EqualValues(t, rows, count)
}

type failingReader struct{}

func (*failingReader) Read([]byte) (int, error) { return 0, errors.New("the client gave up") }

// code is the SQLSTATE of an error.
func code(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// hint is the hint of an error.
func hint(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Hint
	}
	return ""
}

// TestCopyInExtended sends the Sync before the data, as libpq does: the server ignores it.
func TestCopyInExtended(t *testing.T) {
	t.Parallel()
	direct, through := twins(t)
	for _, url := range []string{direct, through} {
		exec(t, url, "CREATE TABLE c (id int)", "CREATE SEQUENCE s")
	}
	c := conversation{
		flush(3, parse("", "COPY c FROM STDIN"), bind("", ""), execute("", 0), sync),
		send(&pgproto3.CopyData{Data: []byte("1\n2\n")}, &pgproto3.CopyDone{}, sync),
		send(query("SELECT nextval('s')")),
		send(query("SELECT count(*) FROM c")),
		flush(3, parse("", "COPY c FROM STDIN"), bind("", ""), execute("", 0), sync),
		send(&pgproto3.CopyData{Data: []byte("x\n")}, &pgproto3.CopyData{Data: []byte("3\n")}, &pgproto3.CopyDone{}, sync),
		send(query("SELECT nextval('s')")),
		flush(3, parse("", "COPY c FROM STDIN"), bind("", ""), execute("", 0)),
		send(&pgproto3.CopyFail{Message: "no more"}, sync),
		send(parse("", "SELECT nextval('s')"), bind("", ""), execute("", 0), sync),
	}
	require.Equal(t, strings.Join(converse(t, direct, c), "\n"), strings.Join(converse(t, through, c), "\n"))
}

func TestListenNotify(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	url := through(t)
	listener, notifier := connect(t, url), connect(t, url)
	_, err := listener.Exec(ctx, "LISTEN news")
	require.NoError(t, err)
	_, err = notifier.Exec(ctx, "NOTIFY news, 'hello'")
	require.NoError(t, err)
	wait, stop := context.WithTimeout(ctx, 30*time.Second)
	defer stop()
	n, err := listener.WaitForNotification(wait)
	require.NoError(t, err)
	require.Equal(t, "hello", n.Payload)
	require.Equal(t, notifier.PgConn().PID(), n.PID)
}

func TestCursorsAndLargeObjects(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	conn := connect(t, through(t))
	tx, err := conn.Begin(ctx)
	require.NoError(t, err)
	_, err = tx.Exec(ctx, "DECLARE c CURSOR FOR SELECT g FROM generate_series(1, 10) g")
	require.NoError(t, err)
	rows, err := tx.Query(ctx, "FETCH 4 FROM c")
	require.NoError(t, err)
	got, err := pgx.CollectRows(rows, pgx.RowTo[int])
	require.NoError(t, err)
	require.Equal(t, []int{1, 2, 3, 4}, got)

	objects := tx.LargeObjects()
	oid, err := objects.Create(ctx, 0)
	require.NoError(t, err)
	object, err := objects.Open(ctx, oid, pgx.LargeObjectModeWrite|pgx.LargeObjectModeRead)
	require.NoError(t, err)
	content := make([]byte, 300_000)
	_, err = rand.Read(content)
	require.NoError(t, err)
	_, err = object.Write(content)
	require.NoError(t, err)
	_, err = object.Seek(0, 0)
	require.NoError(t, err)
	back := make([]byte, len(content))
	n, err := object.Read(back)
	require.NoError(t, err)
	require.True(t, bytes.Equal(content[:n], back[:n]))
	require.NoError(t, tx.Commit(ctx))
}

func TestCancel(t *testing.T) {
	t.Parallel()
	conn := connect(t, through(t))
	done := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), "SELECT pg_sleep(300)")
		done <- err
	}()
	watcher := connect(t, environment(t, "NEXTVALD_TEST_UPSTREAM"))
	pid := conn.PgConn().PID()
	require.Eventually(t, func() bool {
		var active bool
		err := watcher.QueryRow(context.Background(),
			"SELECT count(*) > 0 FROM pg_stat_activity WHERE pid = $1 AND state = 'active' AND query LIKE '%pg_sleep%'", int64(pid)).Scan(&active)
		return err == nil && active
	}, 30*time.Second, 10*time.Millisecond)
	require.NoError(t, conn.PgConn().CancelRequest(context.Background()))
	require.Equal(t, "57014", code(<-done))
	var one int
	require.NoError(t, conn.QueryRow(context.Background(), "SELECT 1").Scan(&one))
}

// TestPasswords logs in by every method that PostgreSQL may ask for; the proxy relays them all.
func TestPasswords(t *testing.T) {
	t.Parallel()
	direct := freshDatabase(t)
	for method, encryption := range map[string]string{"md5": "md5", "scram": "scram-sha-256", "password": "scram-sha-256"} {
		t.Run(method, func(t *testing.T) {
			// The server's pg_hba.conf asks the members of a role for the method that it is named after.
			user := method + "_" + strings.ToLower(rand.Text()[:8])
			exec(t, direct,
				fmt.Sprintf("SET password_encryption = '%s'", encryption),
				fmt.Sprintf("BEGIN; SET LOCAL password_encryption = '%s'; CREATE ROLE %s LOGIN PASSWORD 'right'; GRANT auth_%s TO %s; COMMIT", encryption, user, method, user))
			t.Cleanup(func() { exec(t, direct, "DROP ROLE "+user) })
			u, err := url.Parse(proxied(t, direct))
			require.NoError(t, err)
			u.User = url.UserPassword(user, "right")
			var who string
			require.NoError(t, connect(t, u.String()).QueryRow(context.Background(), "SELECT current_user").Scan(&who))
			require.Equal(t, user, who)

			u.User = url.UserPassword(user, "wrong")
			_, err = pgx.Connect(context.Background(), u.String())
			require.Equal(t, "28P01", code(err))
		})
	}
}

// TestReplicationPasses runs a command of the replication protocol, which is not SQL.
func TestReplicationPasses(t *testing.T) {
	t.Parallel()
	u, err := url.Parse(through(t))
	require.NoError(t, err)
	q := u.Query()
	q.Set("replication", "database")
	u.RawQuery = q.Encode()
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	conn, err := pgconn.Connect(ctx, u.String())
	require.NoError(t, err)
	defer func() { _ = conn.Close(ctx) }()
	results, err := conn.Exec(ctx, "IDENTIFY_SYSTEM").ReadAll()
	require.NoError(t, err)
	require.Len(t, results, 1)
	require.Len(t, results[0].Rows, 1)
}

// TestLargeMessages sends and receives values larger than any buffer.
func TestLargeMessages(t *testing.T) {
	t.Parallel()
	conn := connect(t, through(t))
	want := strings.Repeat("0123456789", 2_000_000)
	var got string
	require.NoError(t, conn.QueryRow(context.Background(), "SELECT $1::text", want).Scan(&got))
	require.True(t, want == got)
	_, err := conn.Exec(context.Background(), "SELECT '"+want+"'")
	require.NoError(t, err)
}
