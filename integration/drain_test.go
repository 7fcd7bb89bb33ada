package integration

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
)

// patience bounds waits for what has to happen.
const patience = 30 * time.Second

// ends waits until the server ends a session that says nothing, and returns the SQLSTATE of its last word.
func ends(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	_, err := conn.WaitForNotification(ctx)
	require.NoError(t, ctx.Err(), "the session does not end")
	require.Error(t, err)
	return code(err)
}

// number is the one value of a query.
func number(t *testing.T, conn *pgx.Conn, sql string) (n int64) {
	t.Helper()
	require.NoError(t, conn.QueryRow(context.Background(), sql).Scan(&n), sql)
	return n
}

// pid is the backend process id of a session.
func pid(conn *pgx.Conn) string { return strconv.FormatUint(uint64(conn.PgConn().PID()), 10) }

// start executes a statement beside the test and returns its outcome.
func start(conn *pgx.Conn, sql string) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), sql)
		done <- err
	}()
	return done
}

// sleeps waits until the upstream's backend of a session runs pg_sleep.
func sleeps(t *testing.T, watcher, conn *pgx.Conn) {
	t.Helper()
	require.Eventually(t, func() bool {
		return number(t, watcher, "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%pg_sleep%' AND pid = "+
			pid(conn)) == 1
	}, patience, 10*time.Millisecond)
}

// refused tries to log in until that is refused, and returns the error.
func refused(t *testing.T, url string) (refusal *pgconn.PgError) {
	t.Helper()
	require.Eventually(t, func() bool {
		conn, err := pgx.Connect(context.Background(), url)
		if err == nil {
			_ = conn.Close(context.Background())
			return false
		}
		require.ErrorAs(t, err, &refusal)
		return true
	}, patience, 10*time.Millisecond)
	return refusal
}

func TestDrain(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	database := testenv.Database(t)
	testenv.Exec(t, database, "CREATE TABLE t (id bigint)")
	watcher := connect(t, database)
	p := testenv.Start(t, "--upstream", database, "--store", "memory:", "--drain-timeout", "1h")
	url := p.URL(database)
	testenv.Exec(t, url, "CREATE SEQUENCE s")

	silent, err := net.Dial("tcp", p.Address)
	require.NoError(t, err)
	defer func() { _ = silent.Close() }()
	resting, listening, running := connect(t, url), connect(t, url), connect(t, url)
	_, err = listening.Exec(ctx, "LISTEN news")
	require.NoError(t, err)
	tx, err := running.Begin(ctx)
	require.NoError(t, err)
	_, err = tx.Exec(ctx, "INSERT INTO t VALUES (nextval('s'))")
	require.NoError(t, err)
	asleep := start(connect(t, url), "SELECT pg_sleep(0.5)")
	local := connect(t, url)
	block, err := local.Begin(ctx)
	require.NoError(t, err)

	p.Signal(syscall.SIGTERM)
	require.Equal(t, "57P01", ends(t, resting))
	require.Equal(t, "57P01", ends(t, listening))
	refusal := refused(t, url)
	require.Equal(t, "57P03", refusal.Code)
	require.Equal(t, "FATAL", refusal.Severity)
	require.Equal(t, "the database system is shutting down", refusal.Message)
	require.NoError(t, <-asleep)
	status, body := get(t, p, "/readyz")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Equal(t, "sessions: nextvald stops\n", body)

	// The transactions go on, and can be cancelled.
	done := start(running, "SAVEPOINT here; SELECT pg_sleep(300)")
	sleeps(t, watcher, running)
	require.NoError(t, running.PgConn().CancelRequest(ctx))
	require.Equal(t, "57014", code(<-done))
	_, err = tx.Exec(ctx, "ROLLBACK TO here")
	require.NoError(t, err)
	_, err = tx.Exec(ctx, "INSERT INTO t VALUES (nextval('s'))")
	require.NoError(t, err)
	require.NoError(t, tx.Commit(ctx))
	require.Equal(t, "57P01", ends(t, running))
	require.NoError(t, block.Rollback(ctx))
	require.Equal(t, "57P01", ends(t, local))
	p.Ends()
	require.EqualValues(t, 2, number(t, watcher, "SELECT count(*) FROM t"))
}

func TestDrainWithoutUpstream(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := testenv.Start(t, "--store", "memory:", "--drain-timeout", "1h")
	url := p.URL("postgres://me@host/shop?sslmode=disable")
	testenv.Exec(t, url, "CREATE SEQUENCE s")
	resting, running := connect(t, url), connect(t, url)
	_, err := running.Exec(ctx, "BEGIN; SELECT nextval('s')")
	require.NoError(t, err)
	p.Signal(syscall.SIGTERM)
	require.Equal(t, "57P01", ends(t, resting))
	require.Equal(t, "57P03", refused(t, url).Code)
	require.EqualValues(t, 2, number(t, running, "SELECT nextval('s')"))
	_, err = running.Exec(ctx, "COMMIT")
	require.NoError(t, err)
	require.Equal(t, "57P01", ends(t, running))
	p.Ends()
}

// What does not end in time is cut off, and carried out no further.
func TestDrainTimeout(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	database := testenv.Database(t)
	watcher := connect(t, database)
	p := testenv.Start(t, "--upstream", database, "--store", "memory:", "--drain-timeout", "100ms")
	running, waiting := connect(t, p.URL(database)), connect(t, p.URL(database))
	_, err := waiting.Exec(ctx, "BEGIN")
	require.NoError(t, err)
	done := start(running, "SELECT pg_sleep(300)")
	sleeps(t, watcher, running)
	p.Signal(syscall.SIGTERM)
	require.Equal(t, "57P01", code(<-done))
	require.Equal(t, "57P01", ends(t, waiting))
	p.Ends()
	require.Contains(t, p.Log(), "sessions did not end in time and were cut off")
	require.Eventually(t, func() bool {
		return number(t, watcher, "SELECT count(*) FROM pg_stat_activity WHERE pid = "+pid(running)) == 0
	}, patience, 10*time.Millisecond)
}

// A client that reads nothing of a large result holds nothing up.
func TestDrainOfAClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	database := testenv.Database(t)
	p := testenv.Start(t, "--upstream", database, "--store", "memory:", "--drain-timeout", "100ms")
	stuck := dialRaw(t, p.URL(database))
	stuck.frontend.Send(query("SELECT repeat('x', 100000000)"))
	require.NoError(t, stuck.frontend.Flush())
	p.StopBy(syscall.SIGTERM)
}

// A batch that has begun is finished: sessions are not idle before its end, nor inside of a message.
func TestDrainEndsBatches(t *testing.T) {
	t.Parallel()
	database := testenv.Database(t)
	testenv.Exec(t, database, "CREATE TABLE t (id bigint)")
	p := testenv.Start(t, "--upstream", database, "--store", "memory:", "--drain-timeout", "1h")
	url := p.URL(database)
	testenv.Exec(t, url, "CREATE SEQUENCE s")
	data := &pgproto3.CopyData{Data: []byte("1\n")}
	batches := map[string]struct{ first, rest exchange }{
		"passed":       {flush(3, parse("", "INSERT INTO t VALUES (1)"), bind("", ""), execute("", 0)), send(sync)},
		"local":        {flush(3, parse("", "SELECT nextval('s')"), bind("", ""), execute("", 0)), send(sync)},
		"parsed":       {flush(1, parse("", "SELECT 1")), send(bind("", ""), execute("", 0), sync)},
		"failed":       {flush(1, parse("", "SELECT nosuch")), exchange{[]pgproto3.FrontendMessage{query("SELECT 1"), sync}, 1}},
		"failed here":  {flush(1, parse("", "SELECT nextval('nosuch')")), send(sync)},
		"copy":         {flush(1, query("COPY t FROM STDIN")), exchange{[]pgproto3.FrontendMessage{data, &pgproto3.CopyDone{}}, 2}},
		"copy, failed": {flush(1, query("COPY t FROM STDIN")), exchange{[]pgproto3.FrontendMessage{data, &pgproto3.CopyFail{Message: "no"}}, 2}},
		"copy, pipelined": {
			flush(3, parse("", "COPY t FROM STDIN"), bind("", ""), execute("", 0), sync),
			send(data, &pgproto3.CopyDone{}, sync),
		},
	}
	sessions := map[string]*rawConn{}
	for name, b := range batches {
		sessions[name] = dialRaw(t, url)
		sessions[name].exchange(t, b.first)
	}
	torn := dialRaw(t, url)
	message, err := query("SELECT nextval('s')").Encode(nil)
	require.NoError(t, err)
	_, err = torn.Write(message[:len(message)-1])
	require.NoError(t, err)
	// The whole message of another session, sent later, was read: so the torn one arrived, too.
	require.NotEmpty(t, dialRaw(t, url).exchange(t, send(query("SELECT 1"))))

	p.Signal(syscall.SIGTERM)
	require.Equal(t, "57P03", refused(t, url).Code)
	for name, b := range batches {
		t.Run(name, func(t *testing.T) {
			lines := sessions[name].exchange(t, b.rest)
			require.Equal(t, "ReadyForQuery I", lines[len(lines)-1])
			require.Equal(t, lastWord, sessions[name].next(t))
			require.Equal(t, theEnd, sessions[name].next(t))
		})
	}
	_, err = torn.Write(message[len(message)-1:])
	require.NoError(t, err)
	for _, want := range []string{"RowDescription", "DataRow", "CommandComplete", "ReadyForQuery I", lastWord, theEnd} {
		require.Contains(t, torn.next(t), want)
	}
	p.Ends()
}

const lastWord = `ErrorResponse FATAL/FATAL 57P01 "terminating connection due to administrator command" detail="" position=0 where=""`

func TestSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	p := testenv.Start(t, "--store", "memory:", "--drain-timeout", "1h")
	url := p.URL("postgres://me@host/shop?sslmode=disable")
	running := connect(t, url)
	_, err := running.Exec(context.Background(), "BEGIN")
	require.NoError(t, err)
	p.Signal(syscall.SIGTERM)
	require.Equal(t, "57P03", refused(t, url).Code)
	p.Signal(syscall.SIGINT)
	require.Equal(t, 128+int(syscall.SIGINT), p.Wait().ExitCode())
	require.Empty(t, ends(t, running))
}
