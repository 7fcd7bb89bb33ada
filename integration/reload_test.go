package integration

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
)

// hangUp has the process reload, and waits until it has.
func hangUp(t *testing.T, p *testenv.Process) {
	t.Helper()
	const done = "nextvald has reloaded"
	before := strings.Count(p.Log(), done) + strings.Count(p.Log(), "cannot be read again")
	p.Signal(syscall.SIGHUP)
	require.Eventually(t, func() bool {
		return strings.Count(p.Log(), done)+strings.Count(p.Log(), "cannot be read again") > before
	}, patience, 10*time.Millisecond)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

// leases is how many blocks the process has leased.
func leases(t *testing.T, p *testenv.Process) (n int) {
	t.Helper()
	_, body := get(t, p, "/metrics")
	_, rest, ok := strings.Cut(body, "\nnextvald_leases_total ")
	require.True(t, ok)
	_, err := fmt.Sscan(rest, &n)
	require.NoError(t, err)
	return n
}

func TestReload(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	file := filepath.Join(t.TempDir(), "nextvald.yaml")
	write(t, file, "store: 'memory:'\nlog_level: info\n")
	p := testenv.Start(t, "--config", file)
	url := p.URL("postgres://me@host/shop?sslmode=disable")
	conn := connect(t, url)
	_, err := conn.Exec(ctx, "BEGIN; CREATE SEQUENCE s")
	require.NoError(t, err)

	write(t, file, `
store: 'memory:'
log_level: debug
max_connections: 2
namespace: other
sequences:
  policies:
    - match: '*.invoices'
      mode: strict
`)
	hangUp(t, p)
	require.Contains(t, p.Log(), `msg="a setting has changed" setting=log_level from=info to=debug`)
	require.Contains(t, p.Log(), `msg="a setting has changed" setting=max_connections from=0 to=2`)
	require.Contains(t, p.Log(), `setting=sequences.policies`)
	require.Contains(t, p.Log(), `msg="a setting that has changed counts after a restart" setting=namespace`)
	_, err = conn.Exec(ctx, "SELECT nextval('s'); COMMIT")
	require.NoError(t, err)
	other := connect(t, url)
	require.Eventually(t, func() bool { return strings.Contains(p.Log(), "session begins") }, patience, 10*time.Millisecond) // at level debug
	require.Equal(t, "53300", refused(t, url).Code)
	_, err = other.Exec(ctx, "CREATE SEQUENCE invoices")
	require.NoError(t, err)
	// Each value of a strict sequence is leased for itself.
	before := leases(t, p)
	for range 20 {
		number(t, other, "SELECT nextval('invoices')")
	}
	require.GreaterOrEqual(t, leases(t, p), before+20)

	// A mistake changes nothing, not even what is right beside it.
	write(t, file, "store: 'memory:'\nlog_level: loud\nmax_connections: 0\n")
	hangUp(t, p)
	require.Contains(t, p.Log(), "level=ERROR")
	require.Contains(t, p.Log(), `loud`)
	require.Equal(t, "53300", refused(t, url).Code)
	write(t, file, "store: 'memory:'\nclient_idle_timeout: 100ms\n")
	hangUp(t, p)
	require.Equal(t, "57P05", ends(t, conn))
	require.Equal(t, "57P05", ends(t, other))
	p.Stop()
}

// New files count for new handshakes, and a broken one for none.
func TestReloadOfTLS(t *testing.T) {
	t.Parallel()
	first, second := testenv.NewAuthority(t), testenv.NewAuthority(t)
	cert, key := first.Issue("server")
	p := testenv.Start(t, "--store", "memory:", "--tls-cert", cert, "--tls-key", key)
	url := p.URL("postgres://me@host/shop?sslmode=require")
	conn := connect(t, url)
	serial := func() string {
		cfg, err := pgx.ParseConfig(url)
		require.NoError(t, err)
		c, err := pgx.ConnectConfig(context.Background(), cfg)
		require.NoError(t, err)
		defer func() { _ = c.Close(context.Background()) }()
		return c.PgConn().Conn().(*tls.Conn).ConnectionState().PeerCertificates[0].Issuer.String() +
			c.PgConn().Conn().(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	old := serial()
	newCert, newKey := second.Issue("server")
	for from, to := range map[string]string{newCert: cert, newKey: key} {
		text, err := os.ReadFile(from)
		require.NoError(t, err)
		write(t, to, string(text))
	}
	require.Equal(t, old, serial())
	hangUp(t, p)
	renewed := serial()
	require.NotEqual(t, old, renewed)
	write(t, cert, "not a certificate")
	hangUp(t, p)
	require.Contains(t, p.Log(), `what="TLS files"`)
	require.Equal(t, renewed, serial())
	require.EqualValues(t, 1, number(t, conn, "SELECT 1"))
}

// systemd is told what happens.
func TestNotify(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	next := func() string {
		require.NoError(t, l.SetReadDeadline(time.Now().Add(patience)))
		buffer := make([]byte, 1000)
		n, err := l.Read(buffer)
		require.NoError(t, err)
		return string(buffer[:n])
	}
	p := testenv.Command{Args: []string{"--store", "memory:"}, Env: []string{"NOTIFY_SOCKET=" + path}}.Start(t)
	require.Equal(t, "READY=1", next())
	p.Signal(syscall.SIGHUP)
	require.Regexp(t, `^RELOADING=1\nMONOTONIC_USEC=\d+\n$`, next())
	require.Equal(t, "READY=1", next())
	p.Stop()
	require.Equal(t, "STOPPING=1", next())
}
