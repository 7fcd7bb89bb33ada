package integration

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	gosync "sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/proxy"
	"github.com/nextvald/nextvald/proxy/standalone"
	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/dynamostore"
	"github.com/nextvald/nextvald/sequencer/memstore"
)

// environment is the value of a variable that `make test` sets.
func environment(t testing.TB, name string) string {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		t.Fatalf("%s is not set: run `make test`, or name an existing server in it", name)
	}
	return v
}

// tcp is the upstream of an in-process proxy.
func tcp(address string) proxy.Dialer {
	return func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", address)
	}
}

// inProcess is a proxy in the test's process.
type inProcess struct {
	once   gosync.Once
	addr   string
	server *proxy.Server
	err    error
	log    failures
}

// failures is what the proxy logged as an error: a session that panicked.
type failures struct {
	mu   gosync.Mutex
	text strings.Builder
}

func (f *failures) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.text.Write(p)
}

func (f *failures) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.text.String()
}

var before, standing inProcess

// start runs the proxy once for all tests.
func (p *inProcess) start(t testing.TB, cfg proxy.Config, open func() (sequencer.Store, error)) string {
	t.Helper()
	return p.startWith(t, cfg, open, sequencer.Config{}, func(*sequencer.Registry, *proxy.Config) {})
}

// startWith is start with a configuration of the registry, and more of the proxy's that needs the registry.
func (p *inProcess) startWith(t testing.TB, cfg proxy.Config, open func() (sequencer.Store, error), leasing sequencer.Config,
	finish func(*sequencer.Registry, *proxy.Config)) string {
	t.Helper()
	p.once.Do(func() {
		p.err = func() error {
			store, err := open()
			if err != nil {
				return err
			}
			cfg.Logger, cfg.DialTimeout = slog.New(slog.NewTextHandler(&p.log, &slog.HandlerOptions{Level: slog.LevelError})), 5*time.Second
			leasing.Logger = cfg.Logger
			registry, err := sequencer.Open(context.Background(), store, leasing)
			if err != nil {
				return err
			}
			cfg.Sequences = registry
			finish(registry, &cfg)
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return err
			}
			p.server, p.addr = proxy.New(cfg), l.Addr().String()
			go func() { _ = p.server.Serve(context.Background(), l) }()
			return nil
		}()
	})
	require.NoError(t, p.err)
	return p.addr
}

// proxied is the URL of a database behind a proxy that runs in the test's process, on a table of its own.
func proxied(t testing.TB, upstream string) string {
	t.Helper()
	u, err := url.Parse(upstream)
	require.NoError(t, err)
	endpoint := environment(t, "NEXTVALD_TEST_DYNAMODB")
	u.Host = before.start(t, proxy.Config{Upstream: tcp(u.Host)}, func() (sequencer.Store, error) {
		return dynamostore.Open(context.Background(), dynamostore.Config{
			Table: "inprocess-" + rand.Text(), Region: "us-east-1", Endpoint: endpoint, Namespace: "test",
			Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
		})
	})
	return u.String()
}

// withoutUpstream is the URL of a fresh database of a proxy without an upstream.
func withoutUpstream(t testing.TB) string {
	t.Helper()
	addr := standing.start(t, proxy.Config{Upstream: proxy.Dialer(standalone.New(standalone.Config{}).Dial), Standalone: true},
		func() (sequencer.Store, error) { return memstore.New(), nil })
	return "postgres://postgres@" + addr + "/test_" + strings.ToLower(rand.Text()[:12])
}

// freshDatabase creates a database in the upstream and returns its URL there.
func freshDatabase(t testing.TB) string {
	t.Helper()
	admin := environment(t, "NEXTVALD_TEST_UPSTREAM")
	u, err := url.Parse(admin)
	require.NoError(t, err)
	name := "test_" + strings.ToLower(rand.Text()[:12])
	exec(t, admin, "CREATE DATABASE "+name)
	t.Cleanup(func() { exec(t, admin, fmt.Sprintf("DROP DATABASE IF EXISTS %s WITH (FORCE)", name)) })
	u.Path = "/" + name
	return u.String()
}

// twins are two fresh databases: the first is reached directly, the second through a proxy.
func twins(t testing.TB) (direct, through string) {
	t.Helper()
	return freshDatabase(t), proxied(t, freshDatabase(t))
}

func exec(t testing.TB, url string, statements ...string) {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	conn, err := pgx.Connect(ctx, url)
	require.NoError(t, err)
	defer func() { _ = conn.Close(ctx) }()
	for _, sql := range statements {
		_, err := conn.Exec(ctx, sql)
		require.NoError(t, err, sql)
	}
}
