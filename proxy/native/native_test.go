package native

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/nextvald/nextvald/integration/testenv"
	"github.com/nextvald/nextvald/proxy"
	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/memstore"
)

// fleet is nextvalds that share a namespace and an upstream.
type fleet struct {
	t        testing.TB
	store    sequencer.Store
	up       *testUpstream
	database string
}

func newFleet(t testing.TB) *fleet {
	up, database := testDatabase(t)
	return &fleet{t: t, store: memstore.New(), up: up, database: database}
}

// manager starts the part of a nextvald that is tested here. tune changes its configuration.
func (f *fleet) manager(tune ...func(*Config)) *Manager {
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(testLog{f.t}, nil))
	}
	cfg := Config{Logger: log, Upstream: f.up, HotCalls: 1, Hold: 50 * time.Millisecond}
	for _, change := range tune {
		change(&cfg)
	}
	r, err := sequencer.Open(context.Background(), f.store, sequencer.Config{
		Logger: log, PollInterval: 10 * time.Millisecond, Clock: cfg.Clock,
	})
	require.NoError(f.t, err)
	cfg.Members = r
	m := New(cfg)
	f.t.Cleanup(func() {
		m.Close()
		require.NoError(f.t, r.Close(context.Background()))
	})
	return m
}

type testLog struct{ t testing.TB }

func (l testLog) Write(b []byte) (int, error) { l.t.Log(string(b)); return len(b), nil }

// sequence makes a sequence of the schema public and returns its OID.
func (f *fleet) sequence(name, options string) uint32 {
	f.up.run("CREATE SEQUENCE " + name + " " + options)
	var oid uint32
	f.ask("SELECT $1::regclass::oid", &oid, name)
	return oid
}

// ask reads one value from the upstream, unseen by nextvald.
func (f *fleet) ask(sql string, to any, args ...any) {
	f.t.Helper()
	conn, err := pgx.Connect(context.Background(), f.up.url)
	require.NoError(f.t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	require.NoError(f.t, conn.QueryRow(context.Background(), sql, args...).Scan(to))
}

func (f *fleet) named(name string) sequencer.Name {
	return sequencer.Name{Database: f.database, Schema: "public", Name: name}
}

// session calls a sequence as a client's session does: what is not answered here is passed to the upstream, on a connection
// of its own.
type session struct {
	m    *Manager
	name sequencer.Name
	oid  uint32
	conn *pgx.Conn
}

func (f *fleet) session(m *Manager, name string, oid uint32) *session {
	conn, err := pgx.Connect(context.Background(), f.up.url)
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return &session{m: m, name: f.named(name), oid: oid, conn: conn}
}

// next is nextval; drawn says whether it was answered here.
func (s *session) next() (value int64, drawn bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if s.m.Called(s.name.Database, s.name.Name) {
		if seq := s.m.Drawn(s.name.Database, s.oid, s.name); seq != nil {
			v, ok := seq.TryNext()
			if !ok {
				v, err = seq.Next(ctx)
			}
			if !errors.Is(err, proxy.ErrPass) {
				return v, true, err
			}
		}
	}
	err = s.conn.QueryRow(ctx, fmt.Sprintf("SELECT nextval('%d'::regclass)", s.oid)).Scan(&value)
	return value, false, err
}

// warm calls until values are drawn, and returns the first one that was.
func (s *session) warm(t testing.TB) int64 {
	t.Helper()
	var value int64
	require.Eventually(t, func() bool {
		v, drawn, err := s.next()
		require.NoError(t, err)
		value = v
		return drawn
	}, 20*time.Second, time.Millisecond)
	return value
}

func TestCallsOfFewArePassed(t *testing.T) {
	f := newFleet(t)
	oid := f.sequence("s", "")
	m := f.manager(func(c *Config) { c.HotCalls = 1000 })
	s := f.session(m, "s", oid)
	for i := range int64(20) {
		v, drawn, err := s.next()
		require.NoError(t, err)
		require.False(t, drawn)
		require.Equal(t, i+1, v) // dense
	}
	require.Zero(t, f.up.opened.Load(), "no connection is opened")
}

// Values are unique among all callers, and grow for the callers of one process, while it begins to draw too.
func TestValuesAreUniqueAndGrow(t *testing.T) {
	for name, options := range map[string]string{
		"ascending":  "",
		"descending": "INCREMENT -3",
		"by many":    "INCREMENT 1000 MINVALUE -9223372036854775808 START -9223372036854775808",
		"over zero":  "MINVALUE -100000 START -300",
		"cached":     "CACHE 7",
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			oid := f.sequence("s", options)
			m := f.manager()
			const sessions, calls = 8, 3000
			var mu sync.Mutex
			seen := map[int64]bool{}
			var g errgroup.Group
			var stop atomic.Bool
			take := func(values []int64) error {
				mu.Lock()
				defer mu.Unlock()
				for _, v := range values {
					if seen[v] {
						return fmt.Errorf("%d came twice", v)
					}
					seen[v] = true
				}
				return nil
			}
			direct := make([]*pgx.Conn, 2)
			for i := range direct {
				direct[i] = f.session(m, "s", oid).conn
			}
			var others errgroup.Group
			for _, conn := range direct {
				others.Go(func() error {
					for !stop.Load() {
						rows, _ := conn.Query(context.Background(), "SELECT nextval($1::oid::regclass) FROM generate_series(1, 1 + (random() * 3)::int)", oid)
						values, err := pgx.CollectRows(rows, pgx.RowTo[int64])
						if err := errors.Join(err, take(values)); err != nil {
							return err
						}
					}
					return nil
				})
			}
			// A value that was returned before a call began comes before the call's.
			var furthest atomic.Pointer[int64]
			var answered atomic.Int64
			for range sessions {
				s := f.session(m, "s", oid)
				s.warm(t) // what was passed before is answered
				g.Go(func() error {
					for range calls {
						before := furthest.Load()
						v, drawn, err := s.next()
						if err != nil {
							return err
						}
						if !drawn {
							continue // it was off for a moment
						}
						answered.Add(1)
						increment := int64(1)
						if name == "descending" {
							increment = -1
						}
						if before != nil && !further(v, *before, increment) {
							return fmt.Errorf("%d came after %d", v, *before)
						}
						for {
							old := furthest.Load()
							if old != nil && !further(v, *old, increment) || furthest.CompareAndSwap(old, &v) {
								break
							}
						}
						if err := take([]int64{v}); err != nil {
							return err
						}
					}
					return nil
				})
			}
			err := g.Wait()
			stop.Store(true)
			require.NoError(t, errors.Join(err, others.Wait()))
			require.Greater(t, answered.Load(), int64(sessions*calls/2), "most calls were answered here")
			var stats sequencer.Stats
			m.Stats(&stats)
			require.GreaterOrEqual(t, stats.Values, uint64(answered.Load()))
		})
	}
}

// What is done to a sequence past nextvald is noticed: values of before are handed out for a second at most.
func TestChangesByOthersAreNoticed(t *testing.T) {
	for name, change := range map[string]string{
		"setval":   "SELECT setval('s', 5)",
		"RESTART":  "ALTER SEQUENCE s RESTART WITH 6",
		"TRUNCATE": "TRUNCATE t RESTART IDENTITY",
		"bounds":   "ALTER SEQUENCE s MAXVALUE 99 RESTART 7",
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			oid := f.sequence("s", "")
			f.up.run("CREATE TABLE t (id bigint DEFAULT nextval('s'))", "ALTER SEQUENCE s OWNED BY t.id", "SELECT setval('s', 10000000)")
			s := f.session(f.manager(), "s", oid)
			for range 100 {
				require.Greater(t, s.warm(t), int64(10000000))
			}
			f.up.run(change)
			began := time.Now()
			for {
				asked := time.Now()
				v, _, err := s.next()
				require.NoError(t, err)
				if v < 10000000 {
					break
				}
				require.Less(t, asked.Sub(began), blockLife, "a value of before was handed out")
			}
		})
	}
}

// What is announced first is exact: after it no value of before comes, from any process.
func TestRevocation(t *testing.T) {
	for name, all := range map[string]bool{"one sequence": false, "all of a database": true} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			oid := f.sequence("s", "")
			f.up.run("SELECT setval('s', 1000000)")
			hold := func(c *Config) { c.Hold = 3 * time.Second }
			first, second := f.manager(hold), f.manager(hold)
			var sessions []*session
			for _, m := range []*Manager{first, second} {
				s := f.session(m, "s", oid)
				s.warm(t)
				sessions = append(sessions, s)
			}
			revoked := oid
			if all {
				revoked = 0
			}
			for round := range int64(2) {
				var g errgroup.Group
				var moved, stop atomic.Bool
				for _, s := range sessions {
					g.Go(func() error {
						for !stop.Load() {
							after := moved.Load()
							v, _, err := s.next()
							if err != nil {
								return err
							}
							if after && v > 1000000 {
								return fmt.Errorf("%d was handed out after the sequence had been put back", v)
							}
						}
						return nil
					})
				}
				time.Sleep(20 * time.Millisecond) // values are handed out meanwhile
				done, err := first.Revoke(context.Background(), f.database, revoked)
				require.NoError(t, err)
				for _, m := range []*Manager{first, second} {
					require.Nil(t, m.Drawn(f.database, oid, f.named("s")))
				}
				f.up.run(fmt.Sprintf("SELECT setval('s', %d)", round+1))
				moved.Store(true)
				done()
				done() // once is enough
				time.Sleep(100 * time.Millisecond)
				stop.Store(true)
				require.NoError(t, g.Wait())
				f.up.run("SELECT setval('s', 1000000)")
				for _, s := range sessions {
					require.Eventually(t, func() bool { return s.warm(t) > 1000000 }, 10*time.Second, time.Millisecond)
				}
			}
		})
	}
}

// While a change is under way nobody draws, also who did not know of the sequence when it was announced.
func TestNobodyDrawsDuringAChange(t *testing.T) {
	f := newFleet(t)
	oid := f.sequence("s", "")
	hold := func(c *Config) { c.Hold = 3 * time.Second }
	m := f.manager(hold)
	done, err := m.Revoke(context.Background(), f.database, oid)
	require.NoError(t, err)
	late := f.session(f.manager(hold), "s", oid)
	for began := time.Now(); time.Since(began) < 5*time.Second; {
		_, drawn, err := late.next()
		require.NoError(t, err)
		require.False(t, drawn)
		time.Sleep(time.Millisecond)
	}
	done()
	late.warm(t)
}

// A member that does not give its word keeps a sequence from being changed, and is named.
func TestRevocationNeedsEveryMember(t *testing.T) {
	f := newFleet(t)
	oid := f.sequence("s", "")
	s := f.session(f.manager(), "s", oid)
	s.warm(t)
	require.NoError(t, f.store.PutMember(context.Background(), sequencer.Member{
		ID: "the-dead-one", Token: "x", Expires: time.Now().Add(time.Hour).UnixMilli(),
	}, ""))
	_, err := s.m.Revoke(context.Background(), f.database, oid)
	var refused *sequencer.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "58030", refused.Code)
	require.Contains(t, refused.Hint, "nextvald evict the-dead-one")
	s.warm(t) // it goes on
}

func TestWithoutPrivilegeCallsArePassed(t *testing.T) {
	f := newFleet(t)
	oid := f.sequence("s", "")
	role := "plain_" + f.database
	f.up.run("CREATE ROLE " + role + " LOGIN")
	u, err := url.Parse(f.up.url)
	require.NoError(t, err)
	u.User = url.User(role)
	own := &testUpstream{t: t, url: u.String()}
	t.Cleanup(func() { f.up.run("DROP OWNED BY "+role, "DROP ROLE "+role) })
	m := f.manager(func(c *Config) { c.Upstream = own })
	s := f.session(m, "s", oid)
	require.Eventually(t, func() bool {
		_, drawn, err := s.next()
		require.NoError(t, err)
		require.False(t, drawn)
		return own.opened.Load() > 0 && m.Drawn(f.database, oid, f.named("s")) == nil
	}, 10*time.Second, time.Millisecond)

	f.up.run("GRANT USAGE ON SEQUENCE s TO " + role)
	other := f.manager(func(c *Config) { c.Upstream = own })
	f.session(other, "s", oid).warm(t) // USAGE is all that it takes
}

// Near the limit nothing is drawn, so that nothing is lost to those who call: every value is handed out.
func TestEveryValueBeforeTheLimit(t *testing.T) {
	for name, options := range map[string]string{
		"short": "MAXVALUE 20", "few": "MAXVALUE 2", "down": "INCREMENT -1 MINVALUE -20",
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			oid := f.sequence("s", options)
			s := f.session(f.manager(), "s", oid)
			require.Eventually(t, func() bool { s.m.Drawn(f.database, oid, f.named("s")); return s.m.feed.joined.Load() > 0 },
				10*time.Second, time.Millisecond)
			var values []int64
			for {
				v, _, err := s.next()
				if err != nil {
					require.ErrorContains(t, err, "2200H")
					break
				}
				values = append(values, v)
			}
			var last int64
			f.ask("SELECT last_value FROM s", &last)
			require.Equal(t, last, values[len(values)-1])
			require.Equal(t, max(last, -last), int64(len(values)))
		})
	}
}

// A cycle begins again as it does without nextvald: within a round no value comes twice.
func TestCycle(t *testing.T) {
	f := newFleet(t)
	oid := f.sequence("s", "MAXVALUE 5000 CYCLE")
	s := f.session(f.manager(), "s", oid)
	s.warm(t)
	drawnSome := 0
	last := int64(0)
	rounds := 0
	for range 20000 {
		v, drawn, err := s.next()
		require.NoError(t, err)
		if drawn {
			drawnSome++
		}
		if v <= last {
			rounds++
			require.Greater(t, last, int64(4990), "a round ended early")
			require.Less(t, v, int64(10), "a round began late")
		}
		last = v
	}
	require.Greater(t, drawnSome, 100)
	require.Greater(t, rounds, 1)
}

// jumping is a clock that can be put forward, as the wall clock of a machine that was suspended.
type jumping struct{ by atomic.Int64 }

func (j *jumping) Now() time.Time {
	return time.Now().Add(time.Duration(j.by.Load()))
}

func (j *jumping) After(d time.Duration) (<-chan time.Time, func()) { return systemClock{}.After(d) }

// A process that was stopped does not use what it drew before.
func TestValuesOfBeforeAStopAreNotUsed(t *testing.T) {
	f := newFleet(t)
	oid := f.sequence("s", "")
	clock := &jumping{}
	s := f.session(f.manager(func(c *Config) { c.Clock = clock }), "s", oid)
	for range 1000 {
		s.warm(t)
	}
	seq := s.m.Drawn(f.database, oid, f.named("s"))
	require.NotNil(t, seq)
	_, ok := seq.TryNext()
	require.True(t, ok)
	f.up.run("SELECT setval('s', 10000000)")
	clock.by.Add(int64(blockLife))
	v, ok := seq.TryNext()
	require.True(t, !ok || v > 10000000, "a value of before was used: %d", v)
	require.Eventually(t, func() bool { return s.warm(t) > 10000000 }, 10*time.Second, time.Millisecond)
}

// Renamed past nextvald, a sequence is not drawn by its old name.
func TestRename(t *testing.T) {
	f := newFleet(t)
	oid := f.sequence("s", "")
	m := f.manager()
	s := f.session(m, "s", oid)
	s.warm(t)
	// Nobody calls it by its old name any more.
	f.up.run("ALTER SEQUENCE s RENAME TO q")
	q := f.session(m, "q", oid)
	q.warm(t)
	f.up.run("ALTER SEQUENCE q RENAME TO s")
	s.warm(t)
	// Somebody does.
	f.up.run("ALTER SEQUENCE s RENAME TO r")
	require.Eventually(t, func() bool {
		_, drawn, err := s.next()
		require.NoError(t, err)
		return !drawn
	}, 10*time.Second, time.Millisecond)
	r := f.session(m, "r", oid)
	require.Eventually(t, func() bool {
		_, drawn, err := r.next()
		require.NoError(t, err)
		return drawn
	}, 20*time.Second, time.Millisecond)
}

// A database can be dropped after a revocation, and what is created by its name is another one.
func TestDroppedDatabase(t *testing.T) {
	f := newFleet(t)
	oid := f.sequence("s", "")
	s, other := f.session(f.manager(), "s", oid), f.session(f.manager(), "s", oid)
	s.warm(t)
	other.warm(t)
	done, err := s.m.Revoke(context.Background(), f.database, 0)
	require.NoError(t, err)
	for _, s := range []*session{s, other} {
		require.NoError(t, s.conn.Close(context.Background()))
	}
	testenv.Exec(t, testenv.Upstream(t), "DROP DATABASE "+f.database, "CREATE DATABASE "+f.database)
	done()
	oid = f.sequence("s", "")
	require.Less(t, f.session(s.m, "s", oid).warm(t), int64(1000))
}

func TestDroppedSequenceIsPassed(t *testing.T) {
	f := newFleet(t)
	oid := f.sequence("s", "")
	s := f.session(f.manager(), "s", oid)
	s.warm(t)
	f.up.run("DROP SEQUENCE s")
	began := time.Now()
	for {
		asked := time.Now()
		if _, drawn, err := s.next(); !drawn {
			require.Error(t, err)
			break
		}
		require.Less(t, asked.Sub(began), blockLife)
	}
}

func TestBlockValues(t *testing.T) {
	b := newBlock([]valueRange{{first: 10, count: 3}, {first: 40, count: 1}, {first: 50, count: 2}}, 5, era{})
	var values []int64
	for i := range b.count {
		values = append(values, b.value(i))
	}
	assert.Equal(t, []int64{10, 15, 20, 40, 50, 55}, values)
	assert.Equal(t, int64(55), b.last())
	assert.True(t, slices.IsSortedFunc(values, cmp.Compare))
}

func TestTally(t *testing.T) {
	var c tally
	at := time.Unix(1000, 0)
	for i := range 49 {
		require.False(t, c.often(at.Add(time.Duration(i)*time.Millisecond), 50))
	}
	require.True(t, c.often(at.Add(50*time.Millisecond), 50))
	require.True(t, c.often(at.Add(1100*time.Millisecond), 50), "nearly all of them were in the last second")
	require.True(t, c.often(at.Add(1450*time.Millisecond), 50), "it is still more than half")
	require.False(t, c.often(at.Add(1600*time.Millisecond), 50))
	require.False(t, c.often(at.Add(10*time.Second), 50))
	require.InDelta(t, 1, c.perSecond(at.Add(10*time.Second)), 0)
}
