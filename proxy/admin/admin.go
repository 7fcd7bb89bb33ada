// Package admin serves health checks and metrics over HTTP:
//
//	/healthz  200 while the process runs
//	/readyz   200 when every check passes, else 503 with a line for each that does not
//	/metrics  Prometheus
package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nextvald/nextvald/sequencer"
)

const (
	// checkTimeout bounds the checks of one request together.
	checkTimeout = 4 * time.Second
	// Bounds of one HTTP exchange. The answer includes the checks.
	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second
	writeTimeout  = 20 * time.Second
	idleTimeout   = time.Minute
	maxHeader     = 16 << 10
)

// Check is a condition of being ready.
type Check struct {
	Name string
	// Run returns why the condition is not met, or nil. It is called at each request, by many at once.
	Run func(context.Context) error
}

// Config is what a Server needs. Every field is required.
type Config struct {
	Logger *slog.Logger
	Checks []Check
	// Stats and Connections are called at each request for metrics.
	Stats       func() sequencer.Stats
	Connections func() int
}

// Server answers HTTP requests.
type Server struct {
	checks []Check
	http   *http.Server
}

// New returns a Server that serves nothing yet.
func New(cfg Config) *Server {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		&metrics{stats: cfg.Stats, connections: cfg.Connections},
	)
	log := slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelWarn)
	s := &Server{checks: cfg.Checks}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, "ok\n") })
	mux.HandleFunc("GET /readyz", s.ready)
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorLog: log}))
	s.http = &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          log,
	}
	return s
}

// Serve answers requests that come to l until Shutdown, which makes it return nil. It closes l.
func (s *Server) Serve(l net.Listener) error {
	err := s.http.Serve(l)
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Shutdown stops accepting and waits for the answers under way, or for ctx: then it ends them.
func (s *Server) Shutdown(ctx context.Context) error {
	if err := s.http.Shutdown(ctx); err != nil {
		return errors.Join(err, s.http.Close())
	}
	return nil
}

func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
	defer cancel()
	failures := make([]string, len(s.checks))
	var running sync.WaitGroup
	for i, check := range s.checks {
		running.Go(func() {
			if err := check.Run(ctx); err != nil {
				failures[i] = fmt.Sprintf("%s: %s\n", check.Name, strings.Join(strings.Fields(err.Error()), " "))
			}
		})
	}
	running.Wait()
	if body := strings.Join(failures, ""); body != "" {
		reply(w, http.StatusServiceUnavailable, body)
		return
	}
	reply(w, http.StatusOK, "ready\n")
}

func reply(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	// A client that went away misses nothing that anybody could do something about.
	_, _ = w.Write([]byte(body))
}
