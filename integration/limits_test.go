package integration

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
)

func TestMaxConnections(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	database := testenv.Database(t)
	watcher := connect(t, database)
	p := testenv.Start(t, "--upstream", database, "--store", "memory:", "--max-connections", "2")
	url := p.URL(database)
	first, second := connect(t, url), connect(t, url)
	refusal := refused(t, url)
	require.Equal(t, "53300", refusal.Code)
	require.Equal(t, "FATAL", refusal.Severity)
	require.Equal(t, "sorry, too many clients already", refusal.Message)

	// A cancel request takes no place.
	asleep := start(first, "SELECT pg_sleep(300)")
	sleeps(t, watcher, first)
	require.NoError(t, first.PgConn().CancelRequest(ctx))
	require.Equal(t, "57014", code(<-asleep))

	require.NoError(t, second.Close(ctx))
	require.Eventually(t, func() bool {
		conn, err := pgx.Connect(ctx, url)
		return err == nil && conn.Close(ctx) == nil
	}, patience, patience/1000)
}

func TestClientIdleTimeout(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	database := testenv.Database(t)
	p := testenv.Start(t, "--upstream", database, "--store", "memory:", "--client-idle-timeout", "4s")
	alone := testenv.Start(t, "--store", "memory:", "--client-idle-timeout", "4s")
	for name, url := range map[string]string{"upstream": p.URL(database), "alone": alone.URL("postgres://me@host/shop?sslmode=disable")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testenv.Exec(t, url, "CREATE SEQUENCE s")
			// This one waits longer than those after it, but inside of a transaction.
			block := connect(t, url)
			_, err := block.Exec(ctx, "BEGIN; SELECT nextval('s')")
			require.NoError(t, err)
			pipeline := dialRaw(t, url)
			pipeline.exchange(t, flush(4, parse("", "SELECT nextval('s')"), bind("", ""), execute("", 0)))

			idle := dialRaw(t, url)
			require.Equal(t, idleWord, idle.next(t))
			require.Equal(t, theEnd, idle.next(t))
			used := dialRaw(t, url)
			used.exchange(t, send(query("SELECT nextval('s')")))
			require.Equal(t, idleWord, used.next(t))

			require.NoError(t, block.QueryRow(ctx, "SELECT nextval('s')").Scan(new(int64)))
			_, err = block.Exec(ctx, "COMMIT")
			require.NoError(t, err)
			require.Equal(t, "57P05", ends(t, block))
			require.Equal(t, []string{"ReadyForQuery I"}, pipeline.exchange(t, send(sync)))
			require.Equal(t, idleWord, pipeline.next(t))
		})
	}

	// A query may take longer.
	conn := dialRaw(t, p.URL(database))
	conn.exchange(t, send(query("SELECT pg_sleep(5)"), query("SELECT 1")))
	require.Equal(t, idleWord, conn.next(t))
}

const idleWord = `ErrorResponse FATAL/FATAL 57P05 "terminating connection due to idle-session timeout" detail="" position=0 where=""`

// Who does not log in within the time is closed: without a word before a session was asked for, as PostgreSQL does.
func TestLoginTimeout(t *testing.T) {
	t.Parallel()
	ca := testenv.NewAuthority(t)
	cert, key := ca.Issue("server")
	upstream := testenv.Upstream(t)
	role, stored := newRole(t, "scram", "scram-sha-256")
	patient := []string{"--store", "memory:", "--login-timeout", "100ms", "--tls-cert", cert, "--tls-key", key}
	relay := testenv.Start(t, append(patient, "--upstream", upstream)...)
	scram := testenv.Start(t, append(patient, "--upstream", upstream, "--auth", "scram", "--users", usersFile(t, role, stored))...)
	balanced := testenv.Start(t, append(patient, "--proxy-protocol", "true")...)
	startup, request := untyped(version30, parameters("user", role, "database", "postgres")), untyped(sslRequest, "")
	hello := string(helloOf(t))

	const late = "FATAL 57014 canceling authentication due to timeout"
	for name, c := range map[string]struct {
		to         *testenv.Process
		sent, hear string // what is heard ends so
	}{
		"nothing":                {to: relay},
		"part of a length":       {to: relay, sent: "\x00\x00"},
		"part of a packet":       {to: relay, sent: startup[:12]},
		"no packet after a no":   {to: relay, sent: untyped(gssRequest, ""), hear: "N"},
		"no handshake":           {to: relay, sent: request, hear: "S"},
		"part of a handshake":    {to: relay, sent: hello[:20]},
		"all but its end":        {to: relay, sent: hello},
		"no PROXY header":        {to: balanced},
		"part of a PROXY header": {to: balanced, sent: "\r\n\r\n\x00\r\nQUIT\n"},
		"no packet behind it":    {to: balanced, sent: "\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00"},
		"no password":            {to: relay, sent: startup, hear: late},
		"no password here":       {to: scram, sent: startup, hear: late},
		"part of a password":     {to: relay, sent: startup + "p\x00\x00\x00\x20S", hear: late},
		"part of one here":       {to: scram, sent: startup + "p\x00\x00\x00\x20S", hear: late},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", c.to.Address)
			require.NoError(t, err)
			defer func() { _ = conn.Close() }()
			require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
			_, err = io.WriteString(conn, c.sent)
			require.NoError(t, err)
			heard, err := io.ReadAll(conn)
			require.NoError(t, err)
			switch {
			case c.hear == late:
				at := strings.LastIndex(string(heard), "SFATAL\x00")
				require.Positive(t, at, "%q", heard)
				require.Contains(t, string(heard[at:]), "C57014\x00Mcanceling authentication due to timeout\x00")
			case name == "all but its end":
				require.NotEmpty(t, heard)
			default:
				require.Equal(t, c.hear, string(heard))
			}
		})
	}
	// Nothing is left of them, and who has logged in may take any time.
	target := asUser(t, upstream, scram.Address, role, rightPassword, "sslmode", "require")
	conn := connect(t, target)
	require.NoError(t, conn.PgConn().Exec(context.Background(), "SELECT pg_sleep(0.2)").Close())
	for _, p := range []*testenv.Process{relay, scram, balanced} {
		want := map[bool]string{true: "nextvald_connections 1\n", false: "nextvald_connections 0\n"}[p == scram]
		require.Eventually(t, func() bool {
			_, body := get(t, p, "/metrics")
			return strings.Contains(body, "\n"+want)
		}, patience, 10*time.Millisecond)
	}
	require.EqualValues(t, 1, number(t, conn, "SELECT 1"))
	require.Eventually(t, func() bool {
		return number(t, connect(t, upstream), "SELECT count(*) FROM pg_stat_activity WHERE usename = '"+role+"' AND pid <> "+pid(conn)) == 0
	}, patience, 10*time.Millisecond)
}
