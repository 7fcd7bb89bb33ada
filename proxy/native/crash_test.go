package native

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/nextvald/nextvald/integration/testenv"
	"github.com/nextvald/nextvald/sequencer/memstore"
)

// ownServer is a fleet on a PostgreSQL of its own, which may be stopped.
func ownServer(t testing.TB) (*fleet, *testenv.Server) {
	server := testenv.Postgres(t)
	return &fleet{t: t, store: memstore.New(), up: &testUpstream{t: t, url: server.URL()}, database: "postgres"}, server
}

// call is next for a session whose connection may be lost: it tries again until it is answered.
func (f *fleet) call(s *session) (int64, bool) {
	var value int64
	var drawn bool
	require.Eventually(f.t, func() bool {
		var err error
		if value, drawn, err = s.next(); err == nil {
			return true
		}
		if s.conn.IsClosed() {
			if conn, err := pgx.Connect(context.Background(), f.up.url); err == nil {
				s.conn = conn
				f.t.Cleanup(func() { _ = conn.Close(context.Background()) })
			}
		}
		return false
	}, time.Minute, 5*time.Millisecond)
	return value, drawn
}

// A server that crashes while values are drawn gives none of them to anybody after.
func TestCrashOfTheServer(t *testing.T) {
	f, server := ownServer(t)
	oid := f.sequence("s", "")
	m := f.manager()
	var mu sync.Mutex
	seen := map[int64]string{}
	took := func(who string, v int64) error {
		mu.Lock()
		defer mu.Unlock()
		if before := seen[v]; before != "" {
			return fmt.Errorf("%d was given to %s and to %s", v, before, who)
		}
		seen[v] = who
		return nil
	}
	s := f.session(m, "s", oid)
	for round := range 2 {
		s.conn = f.session(m, "s", oid).conn
		s.warm(t)
		// Others leave transactions open that have called it: what they wrote need not be on disk.
		for range 3 {
			open := f.session(m, "s", oid).conn
			_, err := open.Exec(context.Background(), "BEGIN; SELECT nextval('s')", pgx.QueryExecModeSimpleProtocol)
			require.NoError(t, err)
		}
		var stop atomic.Bool
		var g errgroup.Group
		var drawnHere atomic.Int64
		for range 3 {
			s := f.session(m, "s", oid)
			g.Go(func() error {
				for !stop.Load() {
					v, drawn, err := s.next()
					if err != nil {
						return nil // the server is gone
					}
					if drawn {
						drawnHere.Add(1)
					}
					if err := took("a session", v); err != nil {
						return err
					}
				}
				return nil
			})
		}
		time.Sleep(time.Duration(20+37*round) * time.Millisecond) // any moment will do
		server.Stop(syscall.SIGQUIT)
		stop.Store(true)
		require.NoError(t, g.Wait())
		require.Positive(t, drawnHere.Load())
		server.Start()
		direct := f.session(m, "s", oid)
		for range 200 {
			var v int64
			require.NoError(t, direct.conn.QueryRow(context.Background(), "SELECT nextval('s')").Scan(&v))
			require.NoError(t, took("somebody after the crash", v))
		}
		for range 200 {
			v, _ := f.call(s)
			require.NoError(t, took("a session after the crash", v))
		}
	}
}

// A draw of few values, which finds them in what another open transaction wrote, is on disk when it returns.
func TestSmallDrawIsOnDisk(t *testing.T) {
	ctx := context.Background()
	f, server := ownServer(t)
	f.up.run("ALTER SYSTEM SET wal_writer_delay = '10s'") // so that nobody else writes it out
	server.Stop(syscall.SIGINT)
	server.Start()
	oid := f.sequence("s", "")
	f.up.run("SELECT nextval('s')", "CHECKPOINT")
	other, err := pgx.Connect(ctx, f.up.url)
	require.NoError(t, err)
	defer func() { _ = other.Close(ctx) }()
	_, err = other.Exec(ctx, "BEGIN; SELECT nextval('s')", pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	conn, err := openControl(ctx, f.up, "postgres")
	require.NoError(t, err)
	defer closeControl(conn)
	ranges, _, err := drawRanges(ctx, conn, oid, leastDrawn)
	require.NoError(t, err)
	require.Len(t, ranges, 1)
	server.Stop(syscall.SIGQUIT)
	server.Start()
	var v int64
	f.ask("SELECT nextval('s')", &v)
	require.Greater(t, v, ranges[0].first+ranges[0].count-1)
}

// A server that was put back to an older state is brought past what was drawn from it before, also while nobody calls.
func TestServerThatWasSetBack(t *testing.T) {
	f, server := ownServer(t)
	near, far := f.sequence("near", ""), f.sequence("far", "")
	m := f.manager()
	server.Stop(syscall.SIGINT)
	old := filepath.Join(server.Folder(), "old")
	copyFolder(t, filepath.Join(server.Folder(), "data"), old)
	server.Start()

	a, b := f.session(m, "near", near), f.session(m, "far", far)
	furthest := int64(0)
	for range 5000 {
		furthest = a.warm(t)
	}
	f.up.run("SELECT setval('far', 50000000)")
	require.Greater(t, b.warm(t), int64(50000000))

	server.Stop(syscall.SIGQUIT)
	require.NoError(t, os.RemoveAll(filepath.Join(server.Folder(), "data")))
	require.NoError(t, os.Rename(old, filepath.Join(server.Folder(), "data")))
	server.Start()
	var last int64
	f.ask("SELECT last_value FROM near", &last)
	require.Less(t, last, furthest, "the server was not set back")

	for _, s := range []*session{a, b} {
		s.conn = f.session(m, s.name.Name, s.oid).conn
	}
	v, _ := f.call(a)
	require.Greater(t, v, furthest)
	v, _ = f.call(b)
	require.Greater(t, v, int64(50000000))
}

// A sequence that was put back through nextvald is not brought past what it was before, when its server starts again.
func TestSequenceThatWasPutBackStaysThere(t *testing.T) {
	f, server := ownServer(t)
	oid := f.sequence("s", "")
	f.up.run("SELECT setval('s', 50000)")
	m := f.manager()
	s := f.session(m, "s", oid)
	s.warm(t)
	done, err := m.Revoke(context.Background(), "postgres", oid)
	require.NoError(t, err)
	f.up.run("ALTER SEQUENCE s RESTART")
	done()
	known := m.database("postgres").find(oid)
	require.Eventually(t, func() bool { return !known.changed.Load() }, 20*time.Second, time.Millisecond)
	server.Stop(syscall.SIGINT)
	server.Start()
	s.conn = f.session(m, "s", oid).conn
	v, _ := f.call(s)
	require.Less(t, v, int64(50000))
}

// Without the privilege to move a sequence that was set back too far its calls fail, until somebody moves it.
func TestServerThatWasSetBackTooFar(t *testing.T) {
	f, server := ownServer(t)
	oid := f.sequence("s", "")
	f.up.run("CREATE ROLE plain LOGIN", "GRANT USAGE ON SEQUENCE s TO plain")
	m := f.manager(func(c *Config) {
		c.Upstream = &testUpstream{t: t, url: "postgres://plain@" + server.Address() + "/postgres?sslmode=disable"}
	})
	server.Stop(syscall.SIGINT)
	old := filepath.Join(server.Folder(), "old")
	copyFolder(t, filepath.Join(server.Folder(), "data"), old)
	server.Start()
	s := f.session(m, "s", oid)
	f.up.run("SELECT setval('s', 50000000)")
	require.Greater(t, s.warm(t), int64(50000000))
	server.Stop(syscall.SIGQUIT)
	require.NoError(t, os.RemoveAll(filepath.Join(server.Folder(), "data")))
	require.NoError(t, os.Rename(old, filepath.Join(server.Folder(), "data")))
	server.Start()
	s.conn = f.session(m, "s", oid).conn

	for {
		v, drawn, err := s.next()
		if err != nil {
			require.ErrorContains(t, err, `the upstream was set back for sequence "s"`)
			break
		}
		require.True(t, drawn, "it was passed") // it was drawn before
		require.Greater(t, v, int64(50000000))
	}
	f.up.run("SELECT setval('s', 60000000)")
	v, _ := f.call(s)
	require.Greater(t, v, int64(60000000))
}

// While the server does not let nextvald in, what was drawn before is neither handed out nor passed.
func TestServerThatIsAway(t *testing.T) {
	f, server := ownServer(t)
	oid := f.sequence("s", "")
	s := f.session(f.manager(), "s", oid)
	s.warm(t)
	server.Stop(syscall.SIGQUIT)
	began := time.Now()
	for {
		_, _, err := s.next()
		if err != nil {
			require.ErrorContains(t, err, "cannot tell whether the upstream knows all values")
			break
		}
		require.Less(t, time.Since(began), 10*time.Second)
	}
	server.Start()
	s.conn = f.session(s.m, "s", oid).conn
	f.call(s)
	s.warm(t)
}

func copyFolder(t testing.TB, from, to string) {
	t.Helper()
	out, err := exec.Command("cp", "-a", from, to).CombinedOutput()
	require.NoError(t, err, string(out))
}
