package integration

import (
	"context"
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
)

// How connections to the upstream are encrypted, by what its URL says, as libpq means it.
func TestTLSToTheUpstream(t *testing.T) {
	t.Parallel()
	ca := testenv.NewAuthority(t)
	cert, key := ca.Issue("alice")
	secured, plain := testenv.Postgres(t), testenv.Postgres(t)
	secured.Secure(ca, strings.Join([]string{
		"host    all postgres all trust", "hostssl all tlsonly all trust", "hostssl all alice all cert", "hostssl all scram all scram-sha-256",
	}, "\n"))
	testenv.Exec(t, secured.URL(), "CREATE ROLE tlsonly LOGIN", "CREATE ROLE alice LOGIN", "CREATE ROLE scram LOGIN PASSWORD 'hunter2'")
	other, foreign := testenv.NewAuthority(t), testenv.Postgres(t)
	foreign.Secure(ca, "host all all all trust", "elsewhere.example")

	const unverified = "certificate signed by unknown authority"
	type options = []string
	for name, c := range map[string]struct {
		host    string // empty: 127.0.0.1
		to      *testenv.Server
		options options
		tls     bool   // of sessions
		fails   string // nextvald does not start
	}{
		"disable":                    {to: secured, options: options{"sslmode", "disable"}},
		"allow":                      {to: secured, options: options{"sslmode", "allow"}},
		"prefer":                     {to: secured, options: options{"sslmode", "prefer"}, tls: true},
		"nothing said":               {to: secured, tls: true},
		"require":                    {to: secured, options: options{"sslmode", "require"}, tls: true},
		"verify-ca":                  {to: secured, options: options{"sslmode", "verify-ca", "sslrootcert", ca.File}, tls: true},
		"verify-full":                {to: secured, options: options{"sslmode", "verify-full", "sslrootcert", ca.File}, tls: true},
		"verify-full, by name":       {host: "localhost", to: secured, options: options{"sslmode", "verify-full", "sslrootcert", ca.File}, tls: true},
		"authority":                  {to: secured, options: options{"sslrootcert", ca.File}, tls: true},
		"another authority":          {to: secured, options: options{"sslrootcert", other.File}, fails: unverified},
		"another authority, require": {to: secured, options: options{"sslmode", "require", "sslrootcert", other.File}, fails: unverified},
		"another authority, prefer":  {to: secured, options: options{"sslmode", "prefer", "sslrootcert", other.File}, tls: true},
		"another name":               {to: foreign, options: options{"sslrootcert", ca.File}, fails: "certificate"},
		"another name, verify-ca":    {to: foreign, options: options{"sslmode", "verify-ca", "sslrootcert", ca.File}, tls: true},
		"another name, require":      {to: foreign, options: options{"sslmode", "require"}, tls: true},
		"prefer, no TLS":             {to: plain, options: options{"sslmode", "prefer"}},
		"require, no TLS":            {to: plain, options: options{"sslmode", "require"}, fails: "TLS"},
		"authority, no TLS":          {to: plain, options: options{"sslrootcert", ca.File}, fails: "TLS"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			upstream := asUser(t, c.to.URL(), "", "postgres", "", c.options...)
			if c.host != "" {
				upstream = strings.Replace(upstream, "127.0.0.1", c.host, 1)
			}
			if c.fails != "" {
				failsToStart(t, testenv.Command{Args: []string{"serve", "--store", "memory:", "--upstream", upstream}}, "--upstream", c.fails)
				return
			}
			p := testenv.Start(t, "--store", "memory:", "--upstream", upstream)
			conn := connect(t, p.URL(plain.URL()))
			assert.Equal(t, c.tls, sessionIsSecured(t, conn))
			var v int64
			exec(t, p.URL(plain.URL()), "CREATE SEQUENCE s")
			require.NoError(t, conn.QueryRow(context.Background(), "SELECT nextval('s')").Scan(&v))
		})
	}

	t.Run("certificate of the upstream URL", func(t *testing.T) {
		t.Parallel()
		p := testenv.Start(t, "--store", "memory:", "--upstream",
			asUser(t, secured.URL(), "", "alice", "", "sslmode", "verify-full", "sslrootcert", ca.File, "sslcert", cert, "sslkey", key))
		assert.NotContains(t, p.Log(), "WARN")
		exec(t, asUser(t, secured.URL(), p.Address, "alice", "", "sslmode", "disable"), "SELECT 1")
	})
	t.Run("cancel", func(t *testing.T) {
		t.Parallel()
		p := testenv.Start(t, "--store", "memory:", "--upstream", asUser(t, secured.URL(), "", "postgres", "", "sslrootcert", ca.File))
		conn := connect(t, asUser(t, secured.URL(), p.Address, "tlsonly", "", "sslmode", "disable"))
		slept := make(chan error, 1)
		go func() {
			_, err := conn.Exec(context.Background(), "SELECT pg_sleep(60)")
			slept <- err
		}()
		watcher := connect(t, secured.URL())
		require.Eventually(t, func() bool {
			var running bool
			require.NoError(t, watcher.QueryRow(context.Background(), "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(60)' AND state = 'active')").Scan(&running))
			return running
		}, time.Minute, 10*time.Millisecond)
		require.NoError(t, conn.PgConn().CancelRequest(context.Background()))
		require.Equal(t, "57014", code(<-slept))
	})
	t.Run("channel binding", func(t *testing.T) {
		t.Parallel()
		upstream := asUser(t, secured.URL(), "", "postgres", "", "sslrootcert", ca.File)
		var stored string
		require.NoError(t, connect(t, secured.URL()).QueryRow(context.Background(), "SELECT rolpassword FROM pg_authid WHERE rolname = 'scram'").Scan(&stored))
		p, clientCA := withTLS(t, "--upstream", upstream, "--auth", "scram", "--users", usersFile(t, "scram", stored))
		target := asUser(t, secured.URL(), p.Address, "scram", "hunter2", "sslmode", "verify-full", "sslrootcert", clientCA.File, "channel_binding", "require")
		assert.True(t, sessionIsSecured(t, connect(t, target)))
		psql, pgxError, pq := logIn(t, target, "scram")
		assert.Empty(t, psql+pgxError+pq)

		// A relayed login is bound to another connection than the client's.
		relay, relayCA := withTLS(t, "--upstream", upstream)
		bound := asUser(t, secured.URL(), relay.Address, "scram", "hunter2", "sslmode", "verify-full", "sslrootcert", relayCA.File)
		psql, pgxError, _ = logIn(t, bound, "scram")
		assert.Contains(t, psql, "SCRAM channel binding negotiation error")
		assert.Contains(t, psql, "HINT:  nextvald ends the client's TLS")
		assert.Contains(t, pgxError, "28000")
		psql, _, _ = logIn(t, bound+"&channel_binding=disable", "scram")
		assert.Empty(t, psql)
		psql, _, pq = logIn(t, asUser(t, secured.URL(), relay.Address, "scram", "hunter2", "sslmode", "disable"), "scram")
		assert.Empty(t, psql+pq)
		_, err := pgconn.Connect(context.Background(), bound+"&replication=database")
		require.ErrorContains(t, err, "28000")
	})
	t.Run("nextvald's own login", func(t *testing.T) {
		t.Parallel()
		p := testenv.Start(t, "--store", "memory:", "--upstream",
			asUser(t, secured.URL(), "", "scram", "hunter2", "sslrootcert", ca.File, "channel_binding", "require"))
		assert.NotContains(t, p.Log(), "WARN")
	})
}

// sessionIsSecured asks the upstream whether the session's connection to it has TLS.
func sessionIsSecured(t *testing.T, conn *pgx.Conn) bool {
	t.Helper()
	var secured bool
	require.NoError(t, conn.QueryRow(context.Background(), "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").Scan(&secured))
	return secured
}

// A certificate that both connections show lets a relayed login be bound.
func TestOneCertificateForBoth(t *testing.T) {
	t.Parallel()
	ca := testenv.NewAuthority(t)
	upstream := testenv.Postgres(t)
	cert, key := upstream.Secure(ca, "host all postgres all trust\nhostssl all scram all scram-sha-256")
	testenv.Exec(t, upstream.URL(), "CREATE ROLE scram LOGIN PASSWORD 'hunter2'")
	p := testenv.Start(t, "--store", "memory:", "--tls-cert", cert, "--tls-key", key,
		"--upstream", asUser(t, upstream.URL(), "", "postgres", "", "sslrootcert", ca.File))
	u, err := url.Parse(upstream.URL())
	require.NoError(t, err)
	u.Host, u.User = p.Address, url.UserPassword("scram", "hunter2")
	u.RawQuery = fmt.Sprintf("sslmode=verify-full&sslrootcert=%s&channel_binding=require", url.QueryEscape(ca.File))
	psql, pgxError, _ := logIn(t, u.String(), "scram")
	assert.Empty(t, psql+pgxError)
}
