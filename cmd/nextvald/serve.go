package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/nextvald/nextvald/proxy"
	"github.com/nextvald/nextvald/proxy/admin"
	"github.com/nextvald/nextvald/proxy/standalone"
	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/boltstore"
	"github.com/nextvald/nextvald/sequencer/peerstore"
)

// stopTimeout bounds each part of an orderly end after the sessions': the admin's requests, and what is given back to the
// store.
const stopTimeout = 10 * time.Second

func serveCommand(environ []string, stderr io.Writer) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve clients until SIGTERM or SIGINT",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			read := func() (*settings, error) { return readSettings(cmd, environ) }
			s, err := read()
			if err != nil {
				return err
			}
			return serve(cmd.Context(), s, read, stderr)
		},
	}
	addFlags(cmd)
	return cmd
}

// serve runs a nextvald until ctx is done. An error before it serves is the only thing that is written to stderr. read reads
// the settings again.
func serve(ctx context.Context, s *settings, read func() (*settings, error), stderr io.Writer) (err error) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	out, level := newStartLog(stderr), new(slog.LevelVar)
	log := newLogger(out, s, level)
	again := &reloads{log: log, read: read, current: s}
	again.add("log level", func(s *settings) error { level.Set(s.logLevel); return nil }, "log_level")

	var clientTLS *proxy.TLS
	if s.tls.Cert != "" {
		if clientTLS, err = proxy.LoadTLS(s.tls); err != nil {
			return s.fault("tls_cert", err)
		}
		again.add("TLS files", func(*settings) error { return clientTLS.Reload() })
	}
	users, err := s.openUsers()
	if err != nil {
		return err
	}
	defer users.close()
	again.add("users", func(*settings) error { return users.reload() })
	listeners, err := s.listenAll()
	if err != nil {
		return err
	}
	for _, l := range listeners {
		defer func() { _ = l.Close() }()
	}
	var adminListener net.Listener
	if s.admin != "" {
		if adminListener, err = s.tcp.listen(s.admin); err != nil {
			return s.fault("admin", err)
		}
		defer func() { _ = adminListener.Close() }()
	}
	store, err := s.store.open(ctx, s.namespace, log)
	if err != nil {
		return s.fault("store", err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	leasing := s.sequencerConfig()
	leasing.Logger, leasing.MemberID = log, memberID(listeners[0].Addr())
	leasing.StoreTimeout, leasing.MaxOffline = s.storeTimeout, s.maxOffline
	registry, err := sequencer.Open(ctx, store, leasing)
	if err != nil {
		return s.fault("store", err)
	}
	defer func() {
		bounded, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		err = errors.Join(err, registry.Close(bounded))
	}()

	cfg := proxy.Config{
		Logger: log, Sequences: registry, TLS: clientTLS, Users: users.all(), DialTimeout: upstreamTimeout, Limits: s.limits,
		ProxyProtocol: s.proxyProtocol, TLSRequired: s.tlsRequired,
		PeerRole: s.peerRole, Peers: peerstore.NewCentre(registry, beneath(store), s.namespace),
	}
	checks := []admin.Check{{Name: "store", Run: func(ctx context.Context) error { _, err := store.Feed(ctx); return err }}}
	behind := "none"
	if s.upstream == nil {
		backend := standalone.New(standalone.Config{Logger: log})
		defer func() { err = errors.Join(err, backend.Close()) }()
		cfg.Upstream, cfg.Standalone = proxy.Dialer(backend.Dial), true
	} else {
		behind = s.upstream.address
		s.upstream.use(s.tcp)
		reached, err := s.upstream.check(ctx)
		if !reached {
			return s.fault("upstream", err)
		}
		if err != nil {
			log.Warn("the upstream refuses the login of nextvald's own control connection", "upstream", behind, "error", oneLine(err))
		}
		cfg.Upstream, cfg.DialTimeout = s.upstream, s.upstream.timeout
		checks = append(checks, admin.Check{Name: "upstream", Run: s.upstream.ready})
	}
	stats := registry.Stats
	if s.mirrored && s.upstream != nil {
		m := openMirrored(s, registry, log)
		defer m.close()
		cfg.Native = m
		stats = func() sequencer.Stats { return m.stats(registry) }
	}

	again.add("policies", func(s *settings) error { return registry.Tune(s.sequencerConfig()) }, tunable()...)

	server := proxy.New(cfg)
	again.add("limits", func(s *settings) error { server.SetLimits(s.limits); return nil }, "max_connections", "client_idle_timeout", "login_timeout")
	var drainTimeout atomic.Int64
	drainTimeout.Store(int64(s.drainTimeout))
	again.add("drain timeout", func(s *settings) error { drainTimeout.Store(int64(s.drainTimeout)); return nil }, "drain_timeout")
	running := &parts{}
	stopped := make(chan struct{})
	running.add(func() error { return again.serve(hangups, stopped) }, func() error { close(stopped); return nil })
	running.add(func() error { return serveAll(server, listeners) }, func() error {
		within := time.Duration(drainTimeout.Load())
		bounded, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		if server.Shutdown(bounded) != nil {
			log.Warn("sessions did not end in time and were cut off", "drain_timeout", within)
		}
		return nil
	})
	checks = append(checks, admin.Check{Name: "sessions", Run: func(context.Context) error {
		if server.Draining() {
			return errors.New("nextvald stops")
		}
		return nil
	}})
	about := []any{"address", addresses(listeners)}
	if clientTLS == nil {
		for _, l := range listeners {
			warnUnlessLoopback(log, "clients", l.Addr())
		}
	}
	if adminListener != nil {
		a := admin.New(admin.Config{Logger: log, Checks: checks, Stats: stats, Connections: server.Connections})
		running.add(func() error { return a.Serve(adminListener) }, func() error {
			bounded, cancel := context.WithTimeout(context.Background(), stopTimeout)
			defer cancel()
			return a.Shutdown(bounded)
		})
		about = append(about, "admin", adminListener.Addr().String())
		warnUnlessLoopback(log, "health checks and metrics", adminListener.Addr())
	}
	about = append(about, "upstream", behind, "store", s.store.text, "namespace", s.namespace, "version", version())
	log.Info("nextvald is ready", about...)
	out.started()
	notify(log, daemon.SdNotifyReady)
	defer context.AfterFunc(ctx, func() {
		log.Info("nextvald stops")
		notify(log, daemon.SdNotifyStopping)
	})()
	return running.run(ctx)
}

// beneath is the store for others than this process's registry: a tier is for that alone.
func beneath(store sequencer.Store) sequencer.Store {
	if tier, ok := store.(*boltstore.Tier); ok {
		return tier.Store
	}
	return store
}

// memberID names the process among those that share a store. It is the same after a restart on a fixed port, so that nobody
// waits for the word of a process that died and runs again.
func memberID(address net.Addr) string {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	return host + "/" + address.String()
}

// fault names the setting that an error is about, where it was written.
func (s *settings) fault(key string, err error) error {
	return fmt.Errorf("%s: %w", s.origins[key], err)
}

// serveAll serves on all listeners until the server is shut down, or one of them fails.
func serveAll(server *proxy.Server, listeners []net.Listener) error {
	var group errgroup.Group
	for _, l := range listeners {
		group.Go(func() error {
			err := server.Serve(context.Background(), l)
			if err != nil {
				for _, other := range listeners {
					_ = other.Close() // so that all end, and the program with them
				}
			}
			return err
		})
	}
	return group.Wait()
}

// parts run beside each other, and all stop when one does.
type parts struct {
	serve []func() error
	stop  []func() error
}

// add takes a function that returns once the other one is called, nil unless it failed.
func (p *parts) add(serve func() error, stop func() error) {
	p.serve = append(p.serve, serve)
	p.stop = append(p.stop, stop)
}

// run runs all until ctx is done or one fails, then stops all, in the order in which they were added.
func (p *parts) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, serve := range p.serve {
		group.Go(serve)
	}
	group.Go(func() error {
		<-ctx.Done()
		var errs []error
		for _, stop := range p.stop {
			errs = append(errs, stop())
		}
		return errors.Join(errs...)
	})
	return group.Wait()
}
