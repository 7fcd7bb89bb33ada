package integration

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	gosync "sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
	"github.com/nextvald/nextvald/proxy"
	"github.com/nextvald/nextvald/proxy/standalone"
	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/faultstore"
	"github.com/nextvald/nextvald/sequencer/memstore"
)

// stuck is a proxy of its own whose store can be made to hang. Its upstream is a fresh database, or none.
type stuck struct {
	url    string
	addr   string
	server *proxy.Server
	store  *faultstore.Store
	hung   chan string // gets the operations that hang

	mu      gosync.Mutex
	release chan struct{} // closed when they may go on; nil when nothing hangs
}

func newStuck(t *testing.T, upstream bool) *stuck {
	t.Helper()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	s := &stuck{hung: make(chan string, 100)}
	s.store = faultstore.New(memstore.New(), nil)
	registry, err := sequencer.Open(context.Background(), s.store, sequencer.Config{Logger: log, StoreTimeout: time.Hour})
	require.NoError(t, err)
	cfg := proxy.Config{Logger: log, Sequences: registry, DialTimeout: patience}
	target := "postgres://me@host/shop?sslmode=disable"
	if upstream {
		target = freshDatabase(t)
	}
	u, err := url.Parse(target)
	require.NoError(t, err)
	if upstream {
		cfg.Upstream = tcp(u.Host)
	} else {
		backend := standalone.New(standalone.Config{})
		t.Cleanup(func() { require.NoError(t, backend.Close()) })
		cfg.Upstream, cfg.Standalone = proxy.Dialer(backend.Dial), true
	}
	s.server = proxy.New(cfg)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s.addr = l.Addr().String()
	u.Host = s.addr
	s.url = u.String()
	go func() { _ = s.server.Serve(context.Background(), l) }()
	t.Cleanup(func() {
		s.goOn()
		ctx, stop := context.WithTimeout(context.Background(), patience)
		defer stop()
		_ = s.server.Shutdown(ctx) // what is still open is cut off
		require.NoError(t, registry.Close(ctx))
	})
	return s
}

// hang makes leases hang from now on, until goOn.
func (s *stuck) hang() {
	s.mu.Lock()
	defer s.mu.Unlock()
	release := make(chan struct{})
	s.release = release
	s.store.Plan(func(op string) faultstore.Fault {
		if op == "lease" {
			s.hung <- op
			<-release
		}
		return faultstore.Fault{}
	})
}

func (s *stuck) goOn() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store.Plan(nil)
	if s.release != nil {
		close(s.release)
		s.release = nil
	}
}

// A nextval that waits for the store is cancelled like a query, and nobody else's is.
func TestCancelOfALocalWait(t *testing.T) {
	t.Parallel()
	for name, upstream := range map[string]bool{"upstream": true, "alone": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			s := newStuck(t, upstream)
			exec(t, s.url, "CREATE SEQUENCE s", "CREATE SEQUENCE other")
			s.hang()
			conn, other, third := connect(t, s.url), connect(t, s.url), connect(t, s.url)
			_, err := third.Exec(ctx, "BEGIN")
			require.NoError(t, err)
			waits, elsewhere := start(conn, "SELECT nextval('s')"), start(other, "SELECT nextval('other')")
			<-s.hung
			<-s.hung
			inBlock := start(third, "SELECT nextval('s')")
			require.NoError(t, conn.PgConn().CancelRequest(ctx))
			require.Equal(t, "57014", code(<-waits))
			require.Eventually(t, func() bool { // a cancel request that comes too early is lost, as by PostgreSQL
				require.NoError(t, third.PgConn().CancelRequest(ctx))
				select {
				case err = <-inBlock:
					return true
				default:
					return false
				}
			}, patience, 10*time.Millisecond)
			require.Equal(t, "57014", code(err))
			require.EqualValues(t, 'E', third.PgConn().TxStatus())
			_, err = third.Exec(ctx, "ROLLBACK")
			require.NoError(t, err)
			require.Empty(t, elsewhere, "another session was cancelled, too")

			s.goOn()
			require.NoError(t, <-elsewhere)
			require.EqualValues(t, 1, number(t, conn, "SELECT 1"))
		})
	}
}

// The end of the server ends a wait, too.
func TestShutdownEndsALocalWait(t *testing.T) {
	t.Parallel()
	s := newStuck(t, true)
	exec(t, s.url, "CREATE SEQUENCE s")
	s.hang()
	waits := start(connect(t, s.url), "SELECT nextval('s')")
	<-s.hung
	ctx, stop := context.WithCancel(context.Background())
	stop()
	require.ErrorIs(t, s.server.Shutdown(ctx), context.Canceled)
	require.Equal(t, "57P01", code(<-waits))
	require.Zero(t, s.server.Connections())
	s.goOn()
}

// A wait for the store can be cancelled while the server drains, and the session ends then.
func TestCancelOfALocalWaitInADrain(t *testing.T) {
	t.Parallel()
	for name, upstream := range map[string]bool{"upstream": true, "alone": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStuck(t, upstream)
			exec(t, s.url, "CREATE SEQUENCE s")
			s.hang()
			conn := connect(t, s.url)
			waits := start(conn, "SELECT nextval('s')")
			<-s.hung
			down := make(chan error, 1)
			go func() { down <- s.server.Shutdown(context.Background()) }()
			require.Equal(t, "57P03", refused(t, s.url).Code)
			require.NoError(t, conn.PgConn().CancelRequest(context.Background()))
			require.Equal(t, "57014", code(<-waits))
			require.Equal(t, "57P01", ends(t, conn))
			require.NoError(t, <-down)
		})
	}
}

// key is what a login said of how to cancel the session.
func key(t *testing.T, addr string, version uint32) (*rawConn, *pgproto3.BackendKeyData) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	f := pgproto3.NewFrontend(conn, conn)
	f.Send(&pgproto3.StartupMessage{ProtocolVersion: version, Parameters: map[string]string{"user": "me", "database": "shop"}})
	require.NoError(t, f.Flush())
	var k *pgproto3.BackendKeyData
	for {
		m, err := f.Receive()
		require.NoError(t, err)
		switch m := m.(type) {
		case *pgproto3.BackendKeyData:
			k = &pgproto3.BackendKeyData{ProcessID: m.ProcessID, SecretKey: append([]byte(nil), m.SecretKey...)}
		case *pgproto3.ReadyForQuery:
			require.NotNil(t, k)
			return &rawConn{conn, f}, k
		}
	}
}

// cancel sends a cancel request, after an SSLRequest where asked, and waits until the server has dealt with it.
func cancel(t *testing.T, addr string, k *pgproto3.BackendKeyData, encrypted bool) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	if encrypted {
		_, err = conn.Write([]byte{0, 0, 0, 8, 4, 210, 22, 47})
		require.NoError(t, err)
		answer := make([]byte, 1)
		_, err = io.ReadFull(conn, answer)
		require.NoError(t, err)
		require.Equal(t, "N", string(answer))
	}
	packet, err := (&pgproto3.CancelRequest{ProcessID: k.ProcessID, SecretKey: k.SecretKey}).Encode(nil)
	require.NoError(t, err)
	_, err = conn.Write(packet)
	require.NoError(t, err)
	rest, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.Empty(t, rest)
}

// Keys of every length, and what stands before a cancel request.
func TestCancelKeys(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		version   uint32
		encrypted bool
		length    int
	}{
		"4 bytes":               {pgproto3.ProtocolVersion30, false, 4},
		"32 bytes":              {pgproto3.ProtocolVersion32, false, 32},
		"4 bytes after a wish":  {pgproto3.ProtocolVersion30, true, 4},
		"32 bytes after a wish": {pgproto3.ProtocolVersion32, true, 32},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStuck(t, false)
			exec(t, s.url, "CREATE SEQUENCE s CACHE 1")
			conn, k := key(t, s.addr, c.version)
			require.Len(t, k.SecretKey, c.length)
			hang := func() {
				s.hang()
				conn.frontend.Send(query("SELECT nextval('s')"))
				require.NoError(t, conn.frontend.Flush())
				<-s.hung
			}
			hang()
			for i := range k.SecretKey { // no other key will do
				wrong := &pgproto3.BackendKeyData{ProcessID: k.ProcessID, SecretKey: append([]byte(nil), k.SecretKey...)}
				wrong.SecretKey[i] ^= 1
				cancel(t, s.addr, wrong, c.encrypted)
			}
			cancel(t, s.addr, &pgproto3.BackendKeyData{ProcessID: k.ProcessID + 1, SecretKey: k.SecretKey}, c.encrypted)
			cancel(t, s.addr, &pgproto3.BackendKeyData{ProcessID: k.ProcessID, SecretKey: k.SecretKey[:c.length-1]}, c.encrypted)
			s.goOn()
			for _, want := range []string{"RowDescription", `DataRow "1"`, "CommandComplete", "ReadyForQuery I"} {
				require.Contains(t, conn.next(t), want)
			}

			hang()
			cancel(t, s.addr, k, c.encrypted)
			require.Contains(t, conn.next(t), "RowDescription")
			require.Contains(t, conn.next(t), "57014")
		})
	}
}

// The key that a client is told is the upstream's own, so that it works there, too; and that of a session that is over
// works nowhere.
func TestCancelKeysAreTheUpstreams(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	database := testenv.Database(t)
	watcher := connect(t, database)
	p := testenv.Start(t, "--upstream", database, "--store", "memory:")
	conn := connect(t, p.URL(database))
	require.EqualValues(t, conn.PgConn().PID(), number(t, conn, "SELECT pg_backend_pid()"))
	k := &pgproto3.BackendKeyData{ProcessID: conn.PgConn().PID(), SecretKey: conn.PgConn().SecretKey()}
	asleep := start(conn, "SELECT pg_sleep(300)")
	sleeps(t, watcher, conn)
	u, err := url.Parse(database)
	require.NoError(t, err)
	cancel(t, u.Host, k, false)
	require.Equal(t, "57014", code(<-asleep))

	require.NoError(t, conn.Close(ctx))
	other := connect(t, p.URL(database))
	asleep = start(other, "SELECT pg_sleep(300)")
	sleeps(t, watcher, other)
	cancel(t, p.Address, k, false)
	require.Empty(t, asleep)
	require.NoError(t, other.PgConn().CancelRequest(ctx))
	require.Equal(t, "57014", code(<-asleep))
}

// A client that leaves before its cancel request is dealt with disturbs nothing.
func TestCancelThatLeaves(t *testing.T) {
	t.Parallel()
	database := testenv.Database(t)
	watcher := connect(t, database)
	p := testenv.Start(t, "--upstream", database, "--store", "memory:")
	conn := connect(t, p.URL(database))
	asleep := start(conn, "SELECT pg_sleep(300)")
	sleeps(t, watcher, conn)
	packet, err := (&pgproto3.CancelRequest{ProcessID: conn.PgConn().PID(), SecretKey: conn.PgConn().SecretKey()}).Encode(nil)
	require.NoError(t, err)
	for n := range len(packet) + 1 {
		c, err := net.Dial("tcp", p.Address)
		require.NoError(t, err)
		_, err = c.Write(packet[:n])
		require.NoError(t, err)
		require.NoError(t, c.(*net.TCPConn).SetLinger(0))
		if n == len(packet) {
			require.NoError(t, c.(*net.TCPConn).SetLinger(-1)) // a reset may overtake it
		}
		require.NoError(t, c.Close())
	}
	require.Equal(t, "57014", code(<-asleep))
	require.EqualValues(t, 1, number(t, conn, "SELECT 1"))
}

// A replication connection, of which nothing but the key is looked at.
func TestCancelOfReplication(t *testing.T) {
	t.Parallel()
	database := testenv.Database(t)
	watcher := connect(t, database)
	p := testenv.Start(t, "--upstream", database, "--store", "memory:")
	cfg, err := pgx.ParseConfig(p.URL(database))
	require.NoError(t, err)
	cfg.RuntimeParams["replication"] = "database"
	conn, err := pgconn.ConnectConfig(context.Background(), &cfg.Config)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	done := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), "SELECT pg_sleep(300)").ReadAll()
		done <- err
	}()
	require.Eventually(t, func() bool {
		return number(t, watcher, fmt.Sprintf("SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND pid = %d", conn.PID())) == 1
	}, patience, 10*time.Millisecond)
	require.NoError(t, conn.CancelRequest(context.Background()))
	require.Equal(t, "57014", code(<-done))
}
