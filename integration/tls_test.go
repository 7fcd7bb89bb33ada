package integration

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
)

// Requests that come before a startup packet.
const (
	sslRequest = 80877103
	gssRequest = 80877104
)

// untyped is a packet without a type: its length, a code and a body.
func untyped(code uint32, body string) string {
	packet := binary.BigEndian.AppendUint32(nil, uint32(8+len(body)))
	return string(binary.BigEndian.AppendUint32(packet, code)) + body
}

const version30 = 3 << 16

// withTLS starts a nextvald without an upstream that offers TLS.
func withTLS(t *testing.T, args ...string) (*testenv.Process, *testenv.Authority) {
	ca := testenv.NewAuthority(t)
	cert, key := ca.Issue("server")
	return testenv.Start(t, append([]string{"--store", "memory:", "--tls-cert", cert, "--tls-key", key}, args...)...), ca
}

// urlWith is the URL of a user's database behind a process, with options.
func urlWith(p *testenv.Process, user string, options ...string) string {
	query := url.Values{}
	for i := 0; i < len(options); i += 2 {
		query.Set(options[i], options[i+1])
	}
	return fmt.Sprintf("postgres://%s@%s/d?%s", user, p.Address, query.Encode())
}

func TestTLSOfClients(t *testing.T) {
	t.Parallel()
	p, ca := withTLS(t)
	for name, options := range map[string][]string{
		"verify-full": {"sslmode", "verify-full", "sslrootcert", ca.File},
		"verify-ca":   {"sslmode", "verify-ca", "sslrootcert", ca.File},
		"require":     {"sslmode", "require"},
		"prefer":      {"sslmode", "prefer"},
		"allow":       {"sslmode", "allow"},
		"disable":     {"sslmode", "disable"},
	} {
		t.Run(name, func(t *testing.T) {
			target := urlWith(p, "me", options...)
			r := testenv.Psql(t, target, "-c", "\\conninfo", "-c", "CREATE SEQUENCE IF NOT EXISTS s", "-c", "SELECT nextval('s')")
			require.Equal(t, 0, r.Code, r.Stderr)
			encrypted := name != "disable" && name != "allow"
			assert.Equal(t, encrypted, strings.Contains(r.Stdout, "SSL connection (protocol: TLSv1.3"), r.Stdout)
			exec(t, target, "SELECT nextval('s')")
			if name == "prefer" || name == "allow" { // lib/pq has neither
				return
			}
			db, err := sql.Open("postgres", target)
			require.NoError(t, err)
			defer func() { _ = db.Close() }()
			var v int64
			require.NoError(t, db.QueryRow("SELECT nextval('s')").Scan(&v))
		})
	}
	t.Run("at once", func(t *testing.T) {
		exec(t, urlWith(p, "me", "sslmode", "verify-full", "sslrootcert", ca.File, "sslnegotiation", "direct"), "SELECT 1")
	})
	t.Run("another authority", func(t *testing.T) {
		r := testenv.Psql(t, urlWith(p, "me", "sslmode", "verify-full", "sslrootcert", testenv.NewAuthority(t).File), "-c", "SELECT 1")
		require.Equal(t, 2, r.Code)
		require.Contains(t, r.Stderr, "certificate verify failed")
	})
}

// Messages larger than a record or a buffer pass whole, both ways at once, beside local answers.
func TestLargePipelines(t *testing.T) {
	t.Parallel()
	p, _ := withTLS(t, "--upstream", testenv.Upstream(t))
	for _, mode := range []string{"require", "disable"} {
		t.Run(mode, func(t *testing.T) {
			u, err := url.Parse(p.URL(testenv.Database(t)))
			require.NoError(t, err)
			u.RawQuery = "sslmode=" + mode
			exec(t, u.String(), "CREATE SEQUENCE s")
			text := strings.Repeat("x", 1<<20)
			var batch pgx.Batch
			for i := range 10 {
				batch.Queue("SELECT $1::text", text).QueryRow(func(row pgx.Row) error {
					var got string
					err := row.Scan(&got)
					assert.True(t, got == text)
					return err
				})
				batch.Queue("SELECT nextval('s')").QueryRow(func(row pgx.Row) error {
					var v int
					err := row.Scan(&v)
					assert.Equal(t, i+1, v)
					return err
				})
			}
			require.NoError(t, connect(t, u.String()).SendBatch(context.Background(), &batch).Close())
		})
	}
}

func TestCertificatesOfClients(t *testing.T) {
	t.Parallel()
	authority := testenv.NewAuthority(t)
	p, ca := withTLS(t, "--tls-client-ca", authority.File)
	query := func(t *testing.T, user string, options ...string) (string, int) {
		r := testenv.Psql(t, urlWith(p, user, options...), "-c", "SELECT 1")
		return r.Stderr + r.Stdout, r.Code
	}
	cert, key := authority.Issue("alice")
	alice := []string{"sslmode", "verify-full", "sslrootcert", ca.File, "sslcert", cert, "sslkey", key}
	strangerCert, strangerKey := ca.Issue("alice")

	said, code := query(t, "alice", alice...)
	require.Equal(t, 0, code, said)
	exec(t, urlWith(p, "alice", append(alice, "sslnegotiation", "direct")...), "SELECT 1")

	said, code = query(t, "bob", alice...)
	require.Equal(t, 2, code, said)
	require.Contains(t, said, `FATAL:  certificate authentication failed for user "bob"`)
	said, code = query(t, "alice", "sslmode", "require", "sslcert", "/nonexistent")
	require.Equal(t, 2, code, said)
	require.Contains(t, said, "FATAL:  connection requires a valid client certificate")
	said, code = query(t, "alice", "sslmode", "disable")
	require.Equal(t, 2, code, said)
	require.Contains(t, said, "FATAL:  connection requires a valid client certificate")
	said, code = query(t, "alice", "sslmode", "require", "sslcert", strangerCert, "sslkey", strangerKey)
	require.Equal(t, 2, code, said)
	require.Contains(t, said, "alert")
}

// Where TLS is required a client without it is refused, but for one on a socket and for a cancel request.
func TestTLSRequired(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	p, _ := withTLS(t, "--tls-required", "true", "--listen", "127.0.0.1:0", "--listen", "unix:"+folder)
	for _, mode := range []string{"require", "prefer", "allow"} {
		exec(t, urlWith(p, "me", "sslmode", mode), "SELECT 1")
	}
	_, err := pgx.Connect(context.Background(), urlWith(p, "me", "sslmode", "disable"))
	require.ErrorContains(t, err, "28000")
	require.ErrorContains(t, err, "connection requires TLS")
	exec(t, "postgres://me@/d?host="+folder+"&port="+port(t, p.Address), "SELECT 1")
	cancel(t, p.Address, &pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte("none")}, false)
}

// What comes before a session is answered as PostgreSQL answers it.
func TestEncryptionRequests(t *testing.T) {
	t.Parallel()
	secured, _ := withTLS(t)
	plain := testenv.Start(t, "--store", "memory:")
	startup := untyped(version30, "user\x00me\x00\x00")
	const (
		welcome    = "R\x00\x00\x00\x08\x00\x00\x00\x00"
		unexpected = "C08P01\x00Mreceived unencrypted data after SSL request\x00"
	)
	unsupported := func(minor int) string {
		return fmt.Sprintf("C0A000\x00Munsupported frontend protocol 1234.%d: server supports 3.0 to 3.2\x00", minor)
	}
	type step struct{ send, want string } // what is wanted is the beginning, or a part that begins with C
	for name, c := range map[string]struct {
		to    *testenv.Process
		steps []step
	}{
		"no TLS":                  {plain, []step{{untyped(sslRequest, ""), "N"}, {startup, welcome}}},
		"no GSSAPI":               {plain, []step{{untyped(gssRequest, ""), "N"}, {startup, welcome}}},
		"no GSSAPI, TLS":          {secured, []step{{untyped(gssRequest, ""), "N"}, {untyped(sslRequest, ""), "S"}}},
		"longer request":          {plain, []step{{untyped(sslRequest, "more"), "N"}, {startup, welcome}}},
		"one after the other":     {plain, []step{{untyped(sslRequest, ""), "N"}, {untyped(gssRequest, ""), "N"}, {untyped(sslRequest, ""), "N"}, {untyped(gssRequest, ""), "N"}, {startup, welcome}}},
		"TLS twice":               {plain, []step{{untyped(sslRequest, ""), "N"}, {untyped(sslRequest, ""), unsupported(5679)}}},
		"GSSAPI twice":            {plain, []step{{untyped(gssRequest, ""), "N"}, {untyped(gssRequest, ""), unsupported(5680)}}},
		"startup behind":          {plain, []step{{untyped(sslRequest, "") + startup, unexpected}}},
		"startup behind, TLS":     {secured, []step{{untyped(sslRequest, "") + startup, unexpected}}},
		"startup behind GSSAPI":   {secured, []step{{untyped(gssRequest, "") + startup, unexpected}}},
		"handshake without TLS":   {plain, []step{{"\x16\x03\x01\x00\x05hello", ""}}},
		"no handshake":            {secured, []step{{untyped(sslRequest, ""), "S"}, {startup, ""}}},
		"handshake behind a no":   {secured, []step{{untyped(gssRequest, ""), "N"}, {"\x16\x03\x01\x00\x05hello", ""}}},
		"another protocol":        {plain, []step{{untyped(4<<16, ""), "C0A000\x00Munsupported frontend protocol 4.0: server supports 3.0 to 3.2\x00"}}},
		"protocol 2":              {plain, []step{{untyped(2<<16, ""), "EFATAL:  unsupported frontend protocol 2.0: server supports 3.0 to 3.2\n\x00"}}},
		"no user":                 {plain, []step{{untyped(version30, "database\x00d\x00\x00"), "C28000\x00Mno PostgreSQL user name specified in startup packet\x00"}}},
		"no terminator":           {plain, []step{{untyped(version30, "user\x00me\x00"), "C08P01\x00Minvalid startup packet layout: expected terminator as last byte\x00"}}},
		"longest packet":          {plain, []step{{untyped(version30, strings.Repeat("x", 9996)), "C08P01\x00"}}},
		"longer than the longest": {plain, []step{{untyped(version30, strings.Repeat("x", 9997)), ""}}},
		"shortest packet":         {plain, []step{{"\x00\x00\x00\x07abc", ""}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", c.to.Address)
			require.NoError(t, err)
			defer func() { _ = conn.Close() }()
			require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
			for i, s := range c.steps {
				_, err := io.WriteString(conn, s.send)
				require.NoError(t, err)
				if len(s.want) == 1 || s.want == welcome {
					got := make([]byte, len(s.want))
					_, err := io.ReadFull(conn, got)
					require.NoError(t, err)
					require.Equal(t, s.want, string(got), "step %d", i)
					continue
				}
				got, err := io.ReadAll(conn) // and it is the end
				require.NoError(t, err)
				if s.want == "" {
					require.Empty(t, got)
				}
				require.Contains(t, string(got), s.want)
			}
		})
	}
}

// A direct handshake needs the protocol's name, and what is within is a startup like any other.
func TestDirectTLS(t *testing.T) {
	t.Parallel()
	p, ca := withTLS(t)
	pem, err := os.ReadFile(ca.File)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(pem))
	dial := func(protocols ...string) (*tls.Conn, error) {
		conn, err := tls.Dial("tcp", p.Address, &tls.Config{RootCAs: roots, NextProtos: protocols})
		if err == nil {
			t.Cleanup(func() { _ = conn.Close() })
			err = conn.SetDeadline(time.Now().Add(time.Minute))
		}
		return conn, err
	}
	startup := untyped(version30, "user\x00me\x00\x00")

	conn, err := dial("postgresql")
	require.NoError(t, err)
	_, err = io.WriteString(conn, untyped(sslRequest, ""))
	require.NoError(t, err)
	answer := make([]byte, 1)
	_, err = io.ReadFull(conn, answer)
	require.NoError(t, err)
	require.Equal(t, "N", string(answer))
	_, err = io.WriteString(conn, startup)
	require.NoError(t, err)
	_, err = io.ReadFull(conn, answer)
	require.NoError(t, err)
	require.Equal(t, "R", string(answer))

	conn, err = dial()
	require.NoError(t, err)
	_, err = io.WriteString(conn, startup)
	require.NoError(t, err)
	got, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.Empty(t, got)

	_, err = dial("h2")
	require.ErrorContains(t, err, "no application protocol")
}

// A session behind TLS can be cancelled by a request behind TLS, or without.
func TestCancelBehindTLS(t *testing.T) {
	t.Parallel()
	p, _ := withTLS(t, "--upstream", testenv.Upstream(t))
	for name, mode := range map[string]string{"TLS": "require", "plain": "disable"} {
		t.Run(name, func(t *testing.T) {
			u, err := url.Parse(p.URL(testenv.Upstream(t)))
			require.NoError(t, err)
			u.RawQuery = "sslmode=require"
			conn := connect(t, u.String()).PgConn()
			config, err := pgconn.ParseConfig(u.String())
			require.NoError(t, err)
			slept := make(chan error, 1)
			go func() { slept <- conn.Exec(context.Background(), "SELECT pg_sleep(60)").Close() }()
			cancel := func() {
				raw, err := net.Dial("tcp", p.Address)
				require.NoError(t, err)
				defer func() { _ = raw.Close() }()
				if mode == "require" {
					_, err = io.WriteString(raw, untyped(sslRequest, ""))
					require.NoError(t, err)
					_, err = io.ReadFull(raw, make([]byte, 1))
					require.NoError(t, err)
					raw = tls.Client(raw, config.TLSConfig)
				}
				request, err := (&pgproto3.CancelRequest{ProcessID: conn.PID(), SecretKey: conn.SecretKey()}).Encode(nil)
				require.NoError(t, err)
				_, err = raw.Write(request)
				require.NoError(t, err)
				_, err = io.Copy(io.Discard, raw)
				require.NoError(t, err)
			}
			// The query may begin after the request.
			for {
				cancel()
				select {
				case err := <-slept:
					require.ErrorContains(t, err, "57014")
					return
				default:
				}
			}
		})
	}
}

func TestTLSSettings(t *testing.T) {
	t.Parallel()
	ca := testenv.NewAuthority(t)
	cert, key := ca.Issue("server")
	_, otherKey := ca.Issue("other")
	for name, c := range map[string]struct{ args, says []string }{
		"certificate alone":   {[]string{"--tls-cert", cert}, []string{"--tls-cert", "tls_key"}},
		"key alone":           {[]string{"--tls-key", key}, []string{"--tls-key", "tls_cert"}},
		"required alone":      {[]string{"--tls-required", "true"}, []string{"--tls-required", "tls_cert"}},
		"authority alone":     {[]string{"--tls-client-ca", ca.File}, []string{"--tls-client-ca", "tls_cert"}},
		"no such file":        {[]string{"--tls-cert", "/nonexistent/c.pem", "--tls-key", key}, []string{"--tls-cert", "/nonexistent/c.pem", "no such file"}},
		"no such key":         {[]string{"--tls-cert", cert, "--tls-key", "/nonexistent/k.pem"}, []string{"--tls-cert", "/nonexistent/k.pem", "no such file"}},
		"another's key":       {[]string{"--tls-cert", cert, "--tls-key", otherKey}, []string{"--tls-cert", "private key does not match"}},
		"no such authority":   {[]string{"--tls-cert", cert, "--tls-key", key, "--tls-client-ca", "/nonexistent/ca.pem"}, []string{"/nonexistent/ca.pem", "no such file"}},
		"authority that is a": {[]string{"--tls-cert", cert, "--tls-key", key, "--tls-client-ca", key}, []string{key, "no certificate"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			failsToStart(t, testenv.Command{Args: append([]string{"serve", "--store", "memory:"}, c.args...)}, c.says...)
		})
	}
}
