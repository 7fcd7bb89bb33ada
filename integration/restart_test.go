package integration

import (
	"context"
	"net/url"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
)

// drawn draws n values of the sequence s, one statement each.
func drawn(t *testing.T, url string, n int) []int64 {
	t.Helper()
	conn := connect(t, url)
	var values []int64
	for range n {
		var v int64
		require.NoError(t, conn.QueryRow(context.Background(), "SELECT nextval('s')").Scan(&v))
		values = append(values, v)
	}
	return values
}

// Alone on the embedded store: what a crash costs is a gap, and an orderly end costs nothing.
func TestRestartOnTheEmbeddedStore(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "nextvald.db")
	start := func() (*testenv.Process, string) {
		p := testenv.Start(t, "--store", "bolt:"+path)
		return p, p.URL("postgres://me@host/shop?sslmode=disable")
	}
	p, url := start()
	testenv.Exec(t, url, "CREATE SEQUENCE s START 1000 INCREMENT 10")
	before := drawn(t, url, 250)
	require.EqualValues(t, 1000, before[0])
	require.EqualValues(t, 1000+249*10, before[249])

	p.Kill()
	p, url = start()
	crashed := drawn(t, url, 10)
	require.Greater(t, crashed[0], before[249], "a value came back")

	p.Stop()
	_, url = start()
	stopped := drawn(t, url, 1)
	require.Equal(t, crashed[9]+10, stopped[0], "values were lost without a crash")
}

// The upstream's socket in place of its port.
func TestUpstreamSocket(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	database := testenv.Database(t)
	var folder, port string
	conn := connect(t, database)
	require.NoError(t, conn.QueryRow(ctx, "SELECT current_setting('unix_socket_directories'), current_setting('port')").Scan(&folder, &port))
	cfg, err := pgx.ParseConfig(database)
	require.NoError(t, err)
	socket := url.URL{Scheme: "postgres", User: url.User(cfg.User), Path: "/" + cfg.Database, RawQuery: url.Values{"host": {folder}, "port": {port}}.Encode()}
	p := testenv.Start(t, "--upstream", socket.String(), "--store", "memory:")
	through := connect(t, p.URL(database))
	var local bool
	require.NoError(t, through.QueryRow(ctx, "SELECT inet_client_addr() IS NULL").Scan(&local))
	require.True(t, local, "the session did not come by the socket")
}
