package native

import (
	"context"
	"hash/maphash"
	"log/slog"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nextvald/nextvald/sequencer"
)

// Members is what the manager needs of those who share a namespace. *sequencer.Registry implements it.
type Members interface {
	Hold(h sequencer.Holder)
	Join(ctx context.Context) error
	Announce(ctx context.Context, incarnation string) error
	Revoke(ctx context.Context, incarnation string) error
}

// Config is what a Manager needs. Upstream and Members are required.
type Config struct {
	Logger   *slog.Logger
	Upstream Upstream
	Members  Members
	// HotCalls is how many calls of a name in a second make them frequent: from then on values are drawn. Default: 50.
	HotCalls int
	// Hold is how long calls pass after somebody announced a change. Others rely on it, so it is the default but in tests:
	// 3 s.
	Hold time.Duration
	// Clock tells the time and makes timers. Default: the system's.
	Clock sequencer.Clock
}

type systemClock struct{}

func (systemClock) Now() time.Time { return time.Now() }

func (systemClock) After(d time.Duration) (<-chan time.Time, func()) {
	t := time.NewTimer(d)
	return t.C, func() { t.Stop() }
}

func (c *Config) setDefaults() {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.HotCalls == 0 {
		c.HotCalls = 50
	}
	if c.Hold == 0 {
		c.Hold = 3 * time.Second
	}
	if c.Clock == nil {
		c.Clock = systemClock{}
	}
}

// slots is the number of counts over which names are spread.
const slots = 1 << 12

// slot counts the calls of some names, mostly of one: memory does not grow with what clients call. Names that share one make
// each other frequent at worst.
type slot struct {
	calls tally
	// gate: calls were passed because there are few.
	gate gate
	// doubted counts the sequences in doubt.
	doubted atomic.Int32
}

// Manager deals with the upstream's own sequences for all sessions of a process. It is safe for concurrent use.
type Manager struct {
	cfg      Config
	controls *controls
	seed     maphash.Seed
	slots    [slots]slot
	began    time.Time
	feed     feed

	// ctx ends when the manager is closed.
	ctx    context.Context
	cancel context.CancelFunc

	mu        sync.Mutex // writers of databases, and starting
	databases atomic.Pointer[map[string]*database]
	closed    bool
	tasks     sync.WaitGroup
}

// New returns a manager, which opens no connection before it is needed.
func New(cfg Config) *Manager {
	cfg.setDefaults()
	m := &Manager{cfg: cfg, controls: newControls(cfg.Upstream), seed: maphash.MakeSeed(), began: cfg.Clock.Now()}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.databases.Store(&map[string]*database{})
	cfg.Members.Hold(m)
	return m
}

// Close ends all that runs in the background, and all connections. No sequence gives a value any more, and every call is to
// be passed. Values in hand are lost.
func (m *Manager) Close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.cancel()
	for _, d := range *m.databases.Load() {
		for _, s := range d.all() {
			s.passFor(time.Duration(1<<62) - time.Duration(m.elapsed(m.cfg.Clock.Now())))
			s.trust()
		}
	}
	m.tasks.Wait()
	m.controls.close()
}

// spawn runs f in a goroutine that Close waits for, unless the manager is closed.
func (m *Manager) spawn(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.tasks.Go(f)
	}
}

// rest waits, and reports whether to go on after.
func (m *Manager) rest(d time.Duration) bool {
	elapsed, stop := m.cfg.Clock.After(d)
	defer stop()
	select {
	case <-elapsed:
	case <-m.ctx.Done():
	}
	return m.ctx.Err() == nil
}

// elapsed is a time in nanoseconds since the manager began, by the monotonic clock: it neither jumps, nor goes on while the
// machine is suspended. So what lasts for some time by it lasts no shorter.
func (m *Manager) elapsed(now time.Time) int64 { return int64(now.Sub(m.began)) }

func (m *Manager) slot(database, name string) *slot {
	h := maphash.String(m.seed, name) ^ bits.RotateLeft64(maphash.String(m.seed, database), 1)
	return &m.slots[h%slots]
}

// Called implements proxy.Native.
func (m *Manager) Called(database, name string) (hot bool) {
	s, now := m.slot(database, name), m.cfg.Clock.Now()
	if s.calls.often(now, m.cfg.HotCalls) || s.doubted.Load() > 0 {
		return true
	}
	s.gate.pass(m.elapsed(now))
	return false
}

// database returns what is known of a database.
func (m *Manager) database(name string) *database {
	if d := (*m.databases.Load())[name]; d != nil {
		return d
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	old := *m.databases.Load()
	if d := old[name]; d != nil {
		return d
	}
	all := make(map[string]*database, len(old)+1)
	for name, d := range old {
		all[name] = d
	}
	d := newDatabase(m, name)
	all[name] = d
	m.databases.Store(&all)
	d.passed.Store(m.feed.holds(d.incarnation)) // after it is there, so that none that is heard now is missed
	return d
}

// Stats adds what was drawn and handed out to what the sequencer counts.
func (m *Manager) Stats(to *sequencer.Stats) {
	for _, d := range *m.databases.Load() {
		for _, s := range d.all() {
			s.mu.Lock()
			current := s.current.Load()
			to.Values += s.spent + uint64(current.taken())
			to.Depth += current.left()
			for _, b := range s.queue {
				to.Depth += b.left()
			}
			s.mu.Unlock()
		}
	}
}
