package sequencer

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"
)

// Config tunes a registry. The zero value of each field means its default.
type Config struct {
	// Logger gets what happens in the background. Default: slog.Default().
	Logger *slog.Logger
	// StoreTimeout bounds each request to the store and each wait of a caller for one. Default: 5 s.
	StoreTimeout time.Duration
	// Window and ShortWindow are the stretches of time over which the rate of a sequence is measured; the larger of the
	// two rates counts, so that a burst is seen at once. Whole seconds. Defaults: 60 s and 1 s.
	Window, ShortWindow time.Duration
	// BufferSeconds is the supply, in seconds at the current rate, that an outage of the store should find: the next block
	// is leased when no more than that is left and what a lease takes. Default: 10.
	BufferSeconds float64
	// MinThreshold is the number of values below which the next block is leased whatever the rate. Default: 50.
	MinThreshold int64
	// MinLease and MaxLease bound the size of a lease, in values, where no CACHE clause fixes it. Leases start at
	// MinLease and grow, by doubling at most, until what is held after one lasts for LeaseTarget at the rate of the last
	// Window; with that they shrink. So a process that is killed loses that much of a sequence, or some MinLease. By the
	// store: DefaultLeaseTarget, or LocalLeaseTarget over a LocalStore.
	// Defaults of the bounds: 100 and 10,000,000.
	MinLease, MaxLease int64
	LeaseTarget        time.Duration
	// Mode is that of sequences for which nothing else says one. Default: Cached.
	Mode Mode
	// CacheOne is the mode that CACHE 1 in a statement means: Cached makes it, which every dump of PostgreSQL's carries, mean
	// no more than no CACHE clause. Default: Strict.
	CacheOne Mode
	// DefaultSource says whose a sequence is that is created: FromStore, the default, or FromUpstream.
	DefaultSource Source
	// Policies tune sequences by their names; the first that matches counts.
	Policies []PolicyRule
	// PollInterval is how often the feed is read. Default: 250 ms.
	PollInterval time.Duration
	// MemberID names the process among those that share the namespace. A process that starts with the id of another one
	// takes its place at once, so it should be the same after a restart, and no two may run with one. Default: random.
	MemberID string
	// MaxOffline is how long the process goes on handing out values that it holds while it cannot follow the feed. After
	// twice that time others do not wait any more for its word. Clocks of processes may differ by half of it. Default:
	// 5 min.
	MaxOffline time.Duration
	// AbsentFor is how long a name that the store does not know is taken for unknown without asking again. At most 1 s,
	// the default.
	AbsentFor time.Duration
	// Clock tells the time and makes timers. Default: the system's.
	Clock Clock
	// Rand returns a random number in [0, 1), for jitter. It must be safe for concurrent use. Default: math/rand/v2.
	Rand func() float64

	local bool // the store is a LocalStore
}

// Defaults of Config.LeaseTarget.
const (
	// DefaultLeaseTarget weighs what the store is written against what a crash loses (docs/sequencer.md has the numbers): it
	// is where writes begin to fall slowly.
	DefaultLeaseTarget = 5 * time.Minute
	// LocalLeaseTarget is for a LocalStore, whose writes do not count: little more than what is needed to lease in time.
	LocalLeaseTarget = 30 * time.Second
)

// Clock is the time as the sequencer sees it.
type Clock interface {
	Now() time.Time
	// After returns a channel that gets a value after d, and a function that releases the timer.
	After(d time.Duration) (<-chan time.Time, func())
}

type systemClock struct{}

func (systemClock) Now() time.Time { return time.Now() }

func (systemClock) After(d time.Duration) (<-chan time.Time, func()) {
	t := time.NewTimer(d)
	return t.C, func() { t.Stop() }
}

// Back-off of failed leases: the wait doubles from the first to the last, with jitter from half to the whole.
const (
	firstBackoff = 20 * time.Millisecond
	lastBackoff  = time.Second
)

func orDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (c *Config) setDefaults() {
	orDefault(&c.StoreTimeout, 5*time.Second)
	orDefault(&c.Window, time.Minute)
	orDefault(&c.ShortWindow, time.Second)
	orDefault(&c.BufferSeconds, 10)
	orDefault(&c.MinThreshold, 50)
	orDefault(&c.MinLease, 100)
	orDefault(&c.MaxLease, 10_000_000)
	if c.local {
		orDefault(&c.LeaseTarget, LocalLeaseTarget)
	}
	orDefault(&c.LeaseTarget, DefaultLeaseTarget)
	orDefault(&c.Mode, Cached)
	orDefault(&c.CacheOne, Strict)
	orDefault(&c.DefaultSource, FromStore)
	orDefault(&c.PollInterval, 250*time.Millisecond)
	orDefault(&c.AbsentFor, time.Second)
	orDefault(&c.MaxOffline, 5*time.Minute)
	orDefault(&c.MemberID, "~"+token(8))
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Clock == nil {
		c.Clock = systemClock{}
	}
	if c.Rand == nil {
		c.Rand = rand.Float64
	}
}

func (c *Config) validate() error {
	const maxWindow = 10 * time.Minute
	for _, f := range []struct {
		name  string
		value any
		ok    bool
	}{
		{"StoreTimeout", c.StoreTimeout, c.StoreTimeout > 0},
		{"Window", c.Window, c.Window%time.Second == 0 && c.Window >= time.Second && c.Window <= maxWindow},
		{"ShortWindow", c.ShortWindow, c.ShortWindow%time.Second == 0 && c.ShortWindow >= time.Second && c.ShortWindow <= c.Window},
		{"BufferSeconds", c.BufferSeconds, c.BufferSeconds > 0 && c.BufferSeconds <= 86400},
		{"MinThreshold", c.MinThreshold, c.MinThreshold >= 1},
		{"MinLease", c.MinLease, c.MinLease >= 1 && c.MinLease <= c.MaxLease},
		{"MaxLease", c.MaxLease, c.MaxLease <= maxBlock},
		{"LeaseTarget", c.LeaseTarget, c.LeaseTarget > 0},
		{"Mode", c.Mode, c.Mode.known()},
		{"CacheOne", c.CacheOne, c.CacheOne.known()},
		{"DefaultSource", c.DefaultSource, c.DefaultSource.creatable()},
		{"PollInterval", c.PollInterval, c.PollInterval > 0},
		{"MaxOffline", c.MaxOffline, c.MaxOffline >= 10*time.Second},
		{"AbsentFor", c.AbsentFor, c.AbsentFor > 0 && c.AbsentFor <= time.Second},
	} {
		if !f.ok {
			return fmt.Errorf("sequencer: %s of %v is out of range", f.name, f.value)
		}
	}
	return c.checkPolicies()
}

// pause is the wait after the nth failure in a row, from 1.
func (c *Config) pause(n int) time.Duration {
	d := lastBackoff
	if n < 10 {
		d = min(firstBackoff<<(n-1), lastBackoff)
	}
	return d/2 + time.Duration(c.Rand()*float64(d/2))
}
