package admin_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nextvald/nextvald/proxy/admin"
	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve starts a Server over a registry and returns a function that gets one of its pages.
func serve(t *testing.T, registry *sequencer.Registry, checks ...admin.Check) func(path string) (int, string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := admin.New(admin.Config{
		Logger: slog.New(slog.DiscardHandler), Checks: checks, Stats: registry.Stats, Connections: func() int { return 3 },
	})
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(func() {
		client.CloseIdleConnections()
		require.NoError(t, s.Shutdown(context.Background()))
		require.NoError(t, <-served)
	})
	return func(path string) (int, string) {
		r, err := client.Get("http://" + l.Addr().String() + path)
		require.NoError(t, err)
		defer func() { require.NoError(t, r.Body.Close()) }()
		body, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		return r.StatusCode, string(body)
	}
}

func open(t *testing.T) *sequencer.Registry {
	r, err := sequencer.Open(context.Background(), memstore.New(), sequencer.Config{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close(context.Background())) })
	return r
}

func TestHealth(t *testing.T) {
	get := serve(t, open(t))
	status, body := get("/healthz")
	assert.Equal(t, http.StatusOK, status)
	assert.Equal(t, "ok\n", body)
	status, _ = get("/elsewhere")
	assert.Equal(t, http.StatusNotFound, status)
}

func TestReady(t *testing.T) {
	var fault error
	check := func(name string) admin.Check {
		return admin.Check{Name: name, Run: func(context.Context) error { return fault }}
	}
	get := serve(t, open(t), check("store"), check("upstream"))
	status, body := get("/readyz")
	assert.Equal(t, http.StatusOK, status)
	assert.Equal(t, "ready\n", body)

	fault = errors.New("not\nthere")
	status, body = get("/readyz")
	assert.Equal(t, http.StatusServiceUnavailable, status)
	assert.Equal(t, "store: not there\nupstream: not there\n", body)
}

func TestMetrics(t *testing.T) {
	ctx := context.Background()
	registry := open(t)
	_, body := serve(t, registry)("/metrics")
	assert.Contains(t, strings.Split(body, "\n"), "nextvald_runway_seconds +Inf")
	def, err := sequencer.Define(sequencer.Options{})
	require.NoError(t, err)
	s, err := registry.Create(ctx, sequencer.Name{Database: "d", Schema: "public", Name: "s"}, def)
	require.NoError(t, err)
	for range 7 {
		_, err := s.Next(ctx)
		require.NoError(t, err)
	}
	_, body = serve(t, registry)("/metrics")
	lines := strings.Split(body, "\n")
	assert.Contains(t, lines, "nextvald_values_total 7")
	assert.Contains(t, lines, "nextvald_connections 3")
	assert.Regexp(t, `(?m)^nextvald_leases_total [1-9]`, body)
	assert.Regexp(t, `(?m)^nextvald_cache_depth [1-9]`, body)
	assert.Regexp(t, `(?m)^nextvald_runway_seconds [0-9.]+$`, body)
	assert.Regexp(t, `(?m)^nextvald_store_requests_total\{op="lease",outcome="ok"\} [1-9]`, body)
	assert.Regexp(t, `(?m)^go_goroutines [1-9]`, body)
	assert.Regexp(t, `(?m)^process_open_fds [1-9]`, body)
}
