package dynamostore_test

import (
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/sequencer"
)

// relay stands between a client and the service, and breaks connections: before a request gets through, or after it did
// and before its answer does.
type relay struct {
	listener net.Listener
	service  string
	wg       sync.WaitGroup

	mu      sync.Mutex
	rng     *rand.Rand
	percent int // of requests and answers that go wrong
}

func newRelay(t testing.TB, service string, seed uint64) *relay {
	u, err := url.Parse(service)
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &relay{listener: listener, service: u.Host, rng: rand.New(rand.NewPCG(seed, 0))}
	r.wg.Go(r.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		r.wg.Wait()
	})
	return r
}

func (r *relay) spoil(percent int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.percent = percent
}

// roll says what happens to what is to be passed on: it is lost, or comes late.
func (r *relay) roll() (lost bool, late time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rng.IntN(100) >= r.percent {
		return false, 0
	}
	if r.rng.IntN(3) == 0 {
		return false, time.Duration(r.rng.IntN(1500)) * time.Millisecond
	}
	return true, 0
}

func (r *relay) accept() {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.wg.Go(func() {
			defer func() { _ = client.Close() }()
			service, err := net.Dial("tcp", r.service)
			if err != nil {
				return
			}
			defer func() { _ = service.Close() }()
			var pair sync.WaitGroup
			pair.Go(func() { r.pass(service, client) })
			pair.Go(func() { r.pass(client, service) })
			pair.Wait()
		})
	}
}

// pass copies one way until something goes wrong, and then closes both.
func (r *relay) pass(to, from net.Conn) {
	defer func() { _ = to.Close() }()
	defer func() { _ = from.Close() }()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		lost, late := r.roll()
		if lost {
			return
		}
		time.Sleep(late)
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// Processes on a service whose connections break and answer late: no value comes twice, in each process values grow, and
// changes that succeed have taken place.
func TestNoDuplicatesOverABrokenNetwork(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const processes, callers, each = 3, 4, 150
	ctx := context.Background()
	direct := config(t)
	first := open(t, direct)
	defer func() { require.NoError(t, first.Close()) }()

	var mu sync.Mutex
	taken := map[int64]bool{}
	failures := 0
	var wg sync.WaitGroup
	name := sequencer.Name{Database: "shop", Schema: "public", Name: "s"}
	for p := range processes {
		broken := newRelay(t, direct.Endpoint, seed+uint64(p))
		cfg := direct
		cfg.Endpoint = "http://" + broken.listener.Addr().String()
		store := open(t, cfg)
		r, err := sequencer.Open(ctx, store, sequencer.Config{
			Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), StoreTimeout: time.Second,
		})
		require.NoError(t, err)
		if p == 0 {
			seven := int64(7)
			d, err := sequencer.Define(sequencer.Options{Cache: &seven})
			require.NoError(t, err)
			_, err = r.Create(ctx, name, d)
			require.NoError(t, err)
		}
		broken.spoil(15)
		wg.Go(func() {
			var live sync.WaitGroup
			for range callers {
				live.Go(func() {
					last := int64(0)
					for range each {
						s, err := r.Lookup(ctx, name)
						var v int64
						if err == nil {
							v, err = s.Next(ctx)
						}
						mu.Lock()
						if err != nil {
							failures++
							assert.ErrorIs(t, err, sequencer.ErrStore)
						} else {
							assert.False(t, taken[v], "%d twice", v)
							taken[v] = true
							assert.Greater(t, v, last)
							last = v
						}
						mu.Unlock()
					}
				})
			}
			live.Wait()
			if p == 0 {
				// Beyond everything: it does not fail for the others, only for the network.
				s, err := r.Lookup(ctx, name)
				if err == nil {
					err = s.Set(ctx, 1_000_000, false)
				}
				broken.spoil(0)
				if err == nil {
					v, err := s.Next(ctx)
					assert.NoError(t, err)
					assert.GreaterOrEqual(t, v, int64(1_000_000))
				} else {
					assert.ErrorIs(t, err, sequencer.ErrStore)
				}
			}
			broken.spoil(0)
			closing, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			assert.NoError(t, r.Close(closing))
			assert.NoError(t, store.Close())
		})
	}
	wg.Wait()
	t.Logf("%d values, %d failures", len(taken), failures)
	require.Greater(t, len(taken), processes*callers*each/2)
}
