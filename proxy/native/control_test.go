package native

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// backend returns the process id of the server's end.
func backend(conn *pgx.Conn) uint32 { return conn.PgConn().PID() }

func TestControlConnectionsAreKept(t *testing.T) {
	ctx := context.Background()
	up, database := testDatabase(t)
	c := newControls(up)
	c.keep = time.Hour
	defer c.close()

	var first, second uint32
	failed := errors.New("what the caller found")
	err := c.use(ctx, database, func(_ context.Context, conn *pgx.Conn) error { first = backend(conn); return failed })
	require.Same(t, failed, err)
	require.NoError(t, c.use(ctx, database, func(_ context.Context, conn *pgx.Conn) error { second = backend(conn); return nil }))
	require.Equal(t, first, second)

	// One that is left in a transaction is not used again.
	require.NoError(t, c.use(ctx, database, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "BEGIN")
		return err
	}))
	require.NoError(t, c.use(ctx, database, func(_ context.Context, conn *pgx.Conn) error { second = backend(conn); return nil }))
	require.NotEqual(t, first, second)

	// Nor is one that the server closed.
	up.run("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()")
	require.NoError(t, c.use(ctx, database, func(ctx context.Context, conn *pgx.Conn) error { return conn.Ping(ctx) }))
}

func TestControlConnectionsAreNotKeptForLong(t *testing.T) {
	ctx := context.Background()
	up, database := testDatabase(t)
	c := newControls(up)
	c.keep = time.Millisecond
	defer c.close()
	var first uint32
	require.NoError(t, c.use(ctx, database, func(_ context.Context, conn *pgx.Conn) error { first = backend(conn); return nil }))
	conn, err := pgx.Connect(ctx, up.url)
	require.NoError(t, err)
	defer closeControl(conn)
	require.Eventually(t, func() (gone bool) {
		require.NoError(t, conn.QueryRow(ctx, "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", int32(first)).Scan(&gone))
		return gone
	}, time.Minute, 10*time.Millisecond)
	require.NoError(t, c.use(ctx, database, func(ctx context.Context, conn *pgx.Conn) error { return conn.Ping(ctx) }))
}

func TestControlConnectionsDoNotDependOnSettings(t *testing.T) {
	up, database := testDatabase(t)
	for name, value := range map[string]string{
		"search_path": "public", "default_transaction_isolation": "serializable", "synchronous_commit": "off",
	} {
		up.run("ALTER DATABASE " + database + " SET " + name + " = " + value)
	}
	c := newControls(up)
	defer c.close()
	var path, isolation, commit string
	require.NoError(t, c.use(context.Background(), database, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT current_setting('search_path'), current_setting('transaction_isolation'), current_setting('synchronous_commit')").
			Scan(&path, &isolation, &commit)
	}))
	require.Equal(t, []string{"pg_catalog, pg_temp", "read committed", "on"}, []string{path, isolation, commit})
}

func TestControlConnectionsAreBounded(t *testing.T) {
	ctx := context.Background()
	up, database := testDatabase(t)
	c := newControls(up)
	using, release := make(chan struct{}, mostControls), make(chan struct{})
	var g errgroup.Group
	for range mostControls {
		g.Go(func() error {
			return c.use(ctx, database, func(context.Context, *pgx.Conn) error {
				using <- struct{}{}
				<-release
				return nil
			})
		})
	}
	for range mostControls {
		<-using
	}
	late, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, c.use(late, database, func(context.Context, *pgx.Conn) error { panic("there are too many already") }), context.DeadlineExceeded)

	// Closing waits for those in use, and lets nobody in after.
	closed := make(chan struct{})
	go func() { c.close(); close(closed) }()
	require.Eventually(t, func() bool {
		late, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		return errors.Is(c.use(late, database, nil), errClosed)
	}, time.Minute, time.Millisecond)
	select {
	case <-closed:
		require.FailNow(t, "closed while connections are in use")
	default:
	}
	close(release)
	<-closed
	require.NoError(t, g.Wait())
	require.ErrorIs(t, c.use(ctx, database, nil), errClosed)
}
