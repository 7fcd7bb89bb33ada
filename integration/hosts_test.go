package integration

import (
	"context"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
)

// upstreamOf is the URL of several hosts.
func upstreamOf(attributes string, hosts ...string) string {
	return "postgres://postgres@" + strings.Join(hosts, ",") + "/postgres?sslmode=disable&connect_timeout=3&" + attributes
}

// through starts a nextvald in front of an upstream, and returns the URL of its database postgres.
func inFront(t *testing.T, upstream string) string {
	t.Helper()
	return testenv.Start(t, "--upstream", upstream, "--store", "memory:").URL("postgres://postgres@host/postgres?sslmode=disable")
}

// server is the address of the server that a new session is on.
func server(t *testing.T, url string) string {
	t.Helper()
	return serverOf(t, connect(t, url))
}

func serverOf(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	return "127.0.0.1:" + strconv.FormatInt(number(t, conn, "SELECT current_setting('port')::int"), 10)
}

func TestHostsAreTriedInOrder(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	a, b := testenv.Postgres(t), testenv.Postgres(t)
	url := inFront(t, upstreamOf("", a.Address(), b.Address()))
	first := connect(t, url)
	require.Equal(t, a.Address(), serverOf(t, first))
	a.Stop(syscall.SIGINT)
	second := connect(t, url)
	require.Equal(t, b.Address(), serverOf(t, second))
	a.Start()
	require.Equal(t, a.Address(), server(t, url))

	// A cancel request goes to the host of its session, though the first is up.
	asleep := start(second, "SELECT pg_sleep(300)")
	sleeps(t, connect(t, b.URL()), second)
	require.NoError(t, second.PgConn().CancelRequest(ctx))
	require.Equal(t, "57014", code(<-asleep))

	a.Stop(syscall.SIGQUIT)
	b.Stop(syscall.SIGQUIT)
	refusal := refused(t, url)
	require.Equal(t, "08006", refusal.Code)
	require.Contains(t, refusal.Detail, a.Address())
	require.Contains(t, refusal.Detail, b.Address())
	b.Start()
	require.Equal(t, b.Address(), server(t, url))
}

// A host that takes connections and says nothing, or speaks something else, is passed over.
func TestHostsThatAreNoPostgreSQL(t *testing.T) {
	t.Parallel()
	upstream, err := pgx.ParseConfig(testenv.Upstream(t))
	require.NoError(t, err)
	good := upstream.Host + ":" + strconv.Itoa(int(upstream.Port))
	for name, address := range map[string]func(*testing.T) string{"closed": closed, "mute": mute, "chatty": chatty} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, good, server(t, inFront(t, upstreamOf("", address(t), good))))
		})
	}
}

// A host that says that it cannot take connections now is passed over; when there is no other, the client hears it.
func TestHostsThatStart(t *testing.T) {
	t.Parallel()
	primary := testenv.Postgres(t)
	cold := primary.Standby()
	url := inFront(t, upstreamOf("", cold.Address(), primary.Address()))
	alone := inFront(t, upstreamOf("", cold.Address()))
	require.Equal(t, cold.Address(), server(t, url))
	testenv.Exec(t, cold.URL(), "ALTER SYSTEM SET hot_standby = off")
	cold.Stop(syscall.SIGINT)
	cold.Launch()
	require.Eventually(t, func() bool {
		_, err := pgx.Connect(context.Background(), cold.URL())
		return code(err) == "57P03"
	}, patience, patience/1000)
	require.Equal(t, primary.Address(), server(t, url))
	_, direct := pgx.Connect(context.Background(), cold.URL())
	var want, got *pgconn.PgError
	require.ErrorAs(t, direct, &want)
	got = refused(t, alone)
	require.Equal(t, *want, *got)
}

func TestTargetSessionAttributes(t *testing.T) {
	t.Parallel()
	primary := testenv.Postgres(t)
	standby := primary.Standby()
	p, s := primary.Address(), standby.Address()
	fronts := map[string]string{}
	for _, c := range []struct{ attributes, want string }{
		{"any", p}, {"read-write", p}, {"primary", p}, {"read-only", s}, {"standby", s}, {"prefer-standby", s},
	} {
		fronts[c.attributes] = inFront(t, upstreamOf("target_session_attrs="+c.attributes, p, s))
		assert.Equal(t, c.want, server(t, fronts[c.attributes]), c.attributes)
	}
	backwards := inFront(t, upstreamOf("target_session_attrs=read-write", s, p))
	require.Equal(t, p, server(t, backwards))

	standby.Stop(syscall.SIGINT)
	require.Equal(t, p, server(t, fronts["prefer-standby"]))
	for _, attributes := range []string{"standby", "read-only"} {
		require.Equal(t, "08006", refused(t, fronts[attributes]).Code)
	}
	r := testenv.Command{Args: []string{"serve", "--store", "memory:", "--upstream", upstreamOf("target_session_attrs=standby", p)}}.Run(t)
	require.Equal(t, 1, r.Code)
	require.Contains(t, r.Stderr, "--upstream: no PostgreSQL answers at "+p+": server is not in hot standby mode")

	standby.Start()
	primary.Stop(syscall.SIGQUIT)
	require.Equal(t, "08006", refused(t, backwards).Code)
	standby.Promote()
	require.Equal(t, s, server(t, backwards))
	require.Equal(t, s, server(t, fronts["primary"]))
}

// By its socket, with a cancel request.
func TestUpstreamSocketCancel(t *testing.T) {
	t.Parallel()
	database := testenv.Database(t)
	var folder, port string
	watcher := connect(t, database)
	require.NoError(t, watcher.QueryRow(context.Background(), "SELECT current_setting('unix_socket_directories'), current_setting('port')").Scan(&folder, &port))
	u, err := url.Parse(database)
	require.NoError(t, err)
	p := testenv.Start(t, "--store", "memory:", "--upstream", "postgres://postgres@"+url.QueryEscape(folder)+":"+port+u.Path)
	conn := connect(t, p.URL(database))
	asleep := start(conn, "SELECT pg_sleep(300)")
	sleeps(t, watcher, conn)
	require.NoError(t, conn.PgConn().CancelRequest(context.Background()))
	require.Equal(t, "57014", code(<-asleep))
}
