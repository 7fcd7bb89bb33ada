package peerstore_test

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nextvald/nextvald/proxy"
	"github.com/nextvald/nextvald/proxy/standalone"
	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/memstore"
	"github.com/nextvald/nextvald/sequencer/peerstore"
	"github.com/nextvald/nextvald/sequencer/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const role = "sidecar"

var silent = slog.New(slog.DiscardHandler)

// centre is a nextvald without an upstream, in process, that others lease from.
type centre struct {
	registry *sequencer.Registry
	server   *proxy.Server
	backend  *standalone.Backend
	address  string
	stop     func()
}

// url is the centre's for a user.
func (c *centre) url(user string) string {
	return "postgres://" + user + "@" + c.address + "/?sslmode=disable"
}

// startCentre starts a centre on a store, at an address.
func startCentre(t testing.TB, store sequencer.Store, namespace, address string, cfg sequencer.Config) *centre {
	cfg.Logger = silent
	registry, err := sequencer.Open(context.Background(), store, cfg)
	require.NoError(t, err)
	l, err := net.Listen("tcp", address)
	require.NoError(t, err)
	c := &centre{registry: registry, backend: standalone.New(standalone.Config{Logger: silent}), address: l.Addr().String()}
	c.server = proxy.New(proxy.Config{
		Logger: silent, Upstream: proxy.Dialer(c.backend.Dial), Sequences: registry, Standalone: true, DialTimeout: time.Second,
		PeerRole: role, Peers: peerstore.NewCentre(registry, store, namespace),
	})
	served := make(chan error, 1)
	go func() { served <- c.server.Serve(context.Background(), l) }()
	c.stop = func() {
		c.stop = func() {}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = c.server.Shutdown(ctx)
		require.NoError(t, <-served)
		_ = registry.Close(ctx)
		require.NoError(t, c.backend.Close())
	}
	t.Cleanup(func() { c.stop() })
	return c
}

// withCentre is a store and the centre that it leases from.
type withCentre struct {
	*peerstore.Store
	centre *centre
}

func (s withCentre) Close() error {
	err := s.Store.Close()
	s.centre.stop()
	return err
}

// TestStore runs the suite of stores. Its sequences have no names, so they are leased at the store behind the centre.
func TestStore(t *testing.T) {
	storetest.Run(t, func(testing.TB) storetest.Opener {
		backing := map[string]*memstore.Store{}
		return func(t testing.TB, namespace string) sequencer.Store {
			if backing[namespace] == nil {
				backing[namespace] = memstore.New()
			}
			c := startCentre(t, backing[namespace], namespace, "127.0.0.1:0", sequencer.Config{PollInterval: time.Millisecond})
			s, err := peerstore.Open(context.Background(), peerstore.Config{URL: c.url(role), Namespace: namespace})
			require.NoError(t, err)
			return withCentre{s, c}
		}
	})
}
