package native

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/proxy"
	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/memstore"
)

// process is what a nextvald has of a store and an upstream.
type process struct {
	*Handovers
	t        testing.TB
	registry *sequencer.Registry
	server   *testUpstream
	database string
	direct   *pgx.Conn // of somebody whom nextvald does not see
}

// newProcess starts a process on a store and a database.
func newProcess(t testing.TB, store sequencer.Store, s *testUpstream, database string) *process {
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	registry, err := sequencer.Open(t.Context(), store, sequencer.Config{Logger: log, PollInterval: 20 * time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(func() { _ = registry.Close(context.Background()) })
	require.NoError(t, registry.Load(t.Context(), database))
	h := NewHandovers(s, registry, log)
	h.abandoned, h.pace = 0, pace{50 * time.Millisecond, 200 * time.Millisecond}
	t.Cleanup(h.Close)
	direct, err := pgx.Connect(t.Context(), s.url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = direct.Close(context.Background()) })
	return &process{Handovers: h, t: t, registry: registry, server: s, database: database, direct: direct}
}

// oid is that of a relation.
func (p *process) oid(name string) (oid uint32) {
	require.NoError(p.t, p.direct.QueryRow(p.t.Context(), "SELECT $1::regclass::oid", name).Scan(&oid))
	return oid
}

// nextval draws past nextvald.
func (p *process) nextval(name string) (v int64, err error) {
	err = p.direct.QueryRow(p.t.Context(), "SELECT nextval($1::regclass)", name).Scan(&v)
	return v, err
}

// declared is what pg_dump would read of a sequence.
func (p *process) declared(name string) string {
	var text string
	require.NoError(p.t, p.direct.QueryRow(p.t.Context(), fmt.Sprintf(`SELECT format('%%s %%s by %%s from %%s to %%s cache %%s cycle %%s at %%s %%s',
		seqtypid::regtype, seqstart, seqincrement, seqmin, seqmax, seqcache, seqcycle, last_value, is_called)
		FROM pg_sequence, %s WHERE seqrelid = $1::regclass`, name), name).Scan(&text))
	return text
}

// stored is the item of a sequence that the store has.
func (p *process) stored(oid uint32) (sequencer.Entry, sequencer.Item) {
	e, found, err := p.entryOf(p.t.Context(), p.database, oid)
	require.NoError(p.t, err)
	require.True(p.t, found)
	item, err := p.registry.Item(p.t.Context(), e)
	require.NoError(p.t, err)
	return e, item
}

// next draws through the store.
func (p *process) next(oid uint32) int64 {
	s, err := p.registry.LookupOID(p.t.Context(), p.database, oid)
	require.NoError(p.t, err)
	v, err := s.Next(p.t.Context())
	require.NoError(p.t, err)
	return v
}

func TestAdoptAndRelease(t *testing.T) {
	s, database := testDatabase(t)
	p := newProcess(t, memstore.New(), s, database)
	for name, c := range map[string]struct {
		create, begin string
		// want is where it stands after one value through the store and a release; others is one of the fence's first values.
		first, others int64
		want          string
	}{
		"plain": {
			"", "", 1, 1001, "bigint 1 by 1 from 1 to 9223372036854775807 cache 1 cycle f at 1001 t",
		},
		"down": {
			"INCREMENT -2 MAXVALUE 100 START 50 CACHE 7", "", 50, -1950, // a session takes 7 values at once
			"bigint 50 by -2 from -9223372036854775808 to 100 cache 7 cycle f at -1962 t",
		},
		"cycle": {
			"AS integer MINVALUE 5 MAXVALUE 1000000 START 7 CYCLE", "setval(%, 999)", 1000, 2000,
			"integer 7 by 1 from 5 to 1000000 cache 1 cycle t at 2000 t",
		},
		"small":  {"MAXVALUE 2", "", 1, 0, "bigint 1 by 1 from 1 to 2 cache 1 cycle f at 1 t"},
		"used":   {"", "setval(%, 41)", 42, 1042, "bigint 1 by 1 from 1 to 9223372036854775807 cache 1 cycle f at 1042 t"},
		"moved":  {"", "setval(%, 41, false)", 41, 1041, "bigint 1 by 1 from 1 to 9223372036854775807 cache 1 cycle f at 1041 t"},
		`odd "N`: {"AS smallint", "", 1, 328, "smallint 1 by 1 from 1 to 32767 cache 1 cycle f at 328 t"},
	} {
		t.Run(name, func(t *testing.T) {
			quoted := pgx.Identifier{name}.Sanitize()
			s.run("CREATE SEQUENCE " + quoted + " " + c.create)
			oid := p.oid(quoted)
			if c.begin != "" {
				_, err := p.direct.Exec(t.Context(), "SELECT setval($1::regclass"+c.begin[len("setval(%"):], quoted)
				require.NoError(t, err)
			}
			before := p.declared(quoted)
			require.NoError(t, p.Adopt(t.Context(), database, oid))
			require.NoError(t, p.Adopt(t.Context(), database, oid), "again")
			_, item := p.stored(oid)
			require.Equal(t, []any{sequencer.FromStore, sequencer.Mirrored, oid}, []any{item.Source, item.Kind, item.OID})
			require.NoError(t, p.Release(t.Context(), database, oid))
			require.Equal(t, before, p.declared(quoted), "nobody called it")
			require.NoError(t, p.Release(t.Context(), database, oid), "again")

			require.NoError(t, p.Adopt(t.Context(), database, oid))
			require.Equal(t, c.first, p.next(oid))
			others, err := p.nextval(quoted)
			if c.others == 0 {
				require.ErrorContains(t, err, "2200H")
				require.Equal(t, c.first+1, p.next(oid), "all values are the store's")
				require.NoError(t, p.Release(t.Context(), database, oid))
				_, err = p.nextval(quoted)
				require.ErrorContains(t, err, "2200H")
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.others, others)
			require.NoError(t, p.Release(t.Context(), database, oid))
			require.Equal(t, c.want, p.declared(quoted))
		})
	}
}

// What Adopt leaves the upstream's.
func TestAdoptLeaves(t *testing.T) {
	s, database := testDatabase(t)
	p := newProcess(t, memstore.New(), s, database)
	s.run("CREATE TABLE t (a serial, b int GENERATED ALWAYS AS IDENTITY, c int)", "CREATE SEQUENCE d",
		"ALTER TABLE t ALTER c SET DEFAULT nextval('d')", "CREATE TABLE gone ()")
	gone := p.oid("gone")
	s.run("DROP TABLE gone")
	for _, oid := range []uint32{p.oid("t_a_seq"), p.oid("t_b_seq"), p.oid("d"), p.oid("t"), gone} {
		require.NoError(t, p.Adopt(t.Context(), database, oid))
		_, found, err := p.entryOf(t.Context(), database, oid)
		require.NoError(t, err)
		require.False(t, found)
	}
	_, err := p.direct.Exec(t.Context(), "CREATE TEMP SEQUENCE temporary")
	require.NoError(t, err)
	require.NoError(t, p.Adopt(t.Context(), database, p.oid("temporary")))

	role := "r" + database
	s.run("CREATE ROLE "+role+" LOGIN", "CREATE SEQUENCE e")
	defer s.run("DROP OWNED BY "+role, "DROP ROLE "+role)
	other := &testUpstream{t: t, url: "postgres://" + role + s.url[len("postgres://postgres"):]}
	q := newProcess(t, memstore.New(), other, database)
	require.ErrorIs(t, q.Adopt(t.Context(), database, p.oid("e")), proxy.ErrNotAllowed)
	require.Equal(t, "bigint 1 by 1 from 1 to 9223372036854775807 cache 1 cycle f at 1 f", p.declared("e"))
}

// A transaction that used the sequence holds its lock: the handover fails after a while, and nothing has changed.
func TestHandoverOfASequenceInUse(t *testing.T) {
	s, database := testDatabase(t)
	p := newProcess(t, memstore.New(), s, database)
	s.run("CREATE SEQUENCE a", "CREATE SEQUENCE b")
	a, b := p.oid("a"), p.oid("b")
	require.NoError(t, p.Adopt(t.Context(), database, b))
	_, err := p.direct.Exec(t.Context(), "BEGIN; SELECT nextval('a'), nextval('b')")
	require.NoError(t, err)
	require.True(t, busy(p.Adopt(t.Context(), database, a)))
	require.True(t, busy(p.Release(t.Context(), database, b)))
	_, err = p.direct.Exec(t.Context(), "COMMIT")
	require.NoError(t, err)
	_, found, err := p.entryOf(t.Context(), database, a)
	require.NoError(t, err)
	require.False(t, found)
	_, item := p.stored(b)
	require.Equal(t, sequencer.FromStore, item.Source)
	require.EqualValues(t, 1, p.next(b))
	require.NoError(t, p.Release(t.Context(), database, b))
	v, err := p.nextval("b")
	require.NoError(t, err)
	require.EqualValues(t, 1002, v)
}

// Callers whom nextvald does not see find values without end, and what they get nobody else does.
func TestFeed(t *testing.T) {
	s, database := testDatabase(t)
	p := newProcess(t, memstore.New(), s, database)
	p.Start()
	s.run("CREATE SEQUENCE a", "CREATE SEQUENCE small MAXVALUE 3", "CREATE TABLE t (i bigint)")
	a := p.oid("a")
	require.NoError(t, p.Adopt(t.Context(), database, a))
	seen := map[int64]bool{}
	take := func(v int64) {
		require.False(t, seen[v], "%d twice", v)
		seen[v] = true
	}
	for range 20 {
		for range 100 {
			take(p.next(a))
		}
		for range 600 {
			v, err := p.nextval("a")
			if err != nil {
				require.ErrorContains(t, err, "2200H")
				require.NoError(t, p.feedNow(t.Context(), database, a, 1, growth))
				continue
			}
			take(v)
		}
	}
	// The feeder finds a fence that is used up by itself.
	_, err := p.direct.Exec(t.Context(), "SELECT setval('a', (SELECT seqmax FROM pg_sequence WHERE seqrelid = 'a'::regclass))")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		v, err := p.nextval("a")
		if err == nil {
			take(v)
		}
		return err == nil
	}, 10*time.Second, 50*time.Millisecond)

	require.NoError(t, p.Adopt(t.Context(), database, p.oid("small")))
	require.ErrorIs(t, p.feedNow(t.Context(), database, p.oid("small"), 1, growth), errNoShare)
}

// After setval the fence follows.
func TestFenceFollowsSetval(t *testing.T) {
	s, database := testDatabase(t)
	p := newProcess(t, memstore.New(), s, database)
	p.Start()
	s.run("CREATE SEQUENCE a")
	a := p.oid("a")
	require.NoError(t, p.Adopt(t.Context(), database, a))
	sequence, err := p.registry.LookupOID(t.Context(), database, a)
	require.NoError(t, err)
	require.NoError(t, sequence.Set(t.Context(), 500_000, true))
	require.EqualValues(t, 500_001, p.next(a))
	require.Eventually(t, func() bool {
		v, err := p.nextval("a")
		require.NoError(t, err)
		return v > 500_001
	}, 10*time.Second, 50*time.Millisecond)
}

// Somebody removes the fence: the sequence stops rather than hand out what the upstream does, until it is released.
func TestFenceRemovedByHand(t *testing.T) {
	s, database := testDatabase(t)
	p := newProcess(t, memstore.New(), s, database)
	p.Start()
	s.run("CREATE SEQUENCE a")
	a := p.oid("a")
	require.NoError(t, p.Adopt(t.Context(), database, a))
	require.EqualValues(t, 1, p.next(a))
	s.run("ALTER SEQUENCE a NO MINVALUE NO MAXVALUE")
	v, err := p.nextval("a")
	require.NoError(t, err)
	require.EqualValues(t, 1001, v)
	sequence, err := p.registry.LookupOID(t.Context(), database, a)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := sequence.Next(t.Context())
		return err != nil
	}, 60*time.Second, 20*time.Millisecond)
	_, err = sequence.Next(t.Context())
	require.ErrorContains(t, err, "no longer confined")
}

// Names follow those of the upstream.
func TestNamesFollow(t *testing.T) {
	s, database := testDatabase(t)
	p := newProcess(t, memstore.New(), s, database)
	p.Start()
	s.run("CREATE SEQUENCE a")
	a := p.oid("a")
	require.NoError(t, p.Adopt(t.Context(), database, a))
	s.run("ALTER SEQUENCE a RENAME TO b")
	require.Eventually(t, func() bool {
		_, err := p.registry.Lookup(t.Context(), sequencer.Name{Database: database, Schema: "public", Name: "b"})
		return err == nil
	}, 60*time.Second, 50*time.Millisecond)
	require.EqualValues(t, 1, p.next(a))
	s.run("CREATE SCHEMA other", "ALTER SEQUENCE b SET SCHEMA other")
	require.NoError(t, p.Follow(t.Context(), database, a))
	_, err := p.registry.Lookup(t.Context(), sequencer.Name{Database: database, Schema: "other", Name: "b"})
	require.NoError(t, err)
	s.run("ALTER SEQUENCE other.b SET SCHEMA public")
	require.NoError(t, p.Follow(t.Context(), database, a))

	// A name whose sequence was dropped is free for the next one.
	s.run("DROP SEQUENCE b", "CREATE SEQUENCE b START 77")
	require.NoError(t, p.Adopt(t.Context(), database, p.oid("b")))
	require.EqualValues(t, 77, p.next(p.oid("b")))
}

// A database can be dropped whose sequences the store has: nobody connects to it once it is announced.
func TestHandoversLetGoOfADatabase(t *testing.T) {
	s, database := testDatabase(t)
	p := newProcess(t, memstore.New(), s, database)
	m := New(Config{Logger: p.log, Upstream: s, Members: p.registry})
	h := m.NewHandovers(p.registry, p.log)
	h.pace = pace{20 * time.Millisecond, 40 * time.Millisecond}
	defer h.Close()
	defer m.Close()
	s.run("CREATE SEQUENCE a")
	require.NoError(t, h.Adopt(t.Context(), database, p.oid("a")))
	h.Start()
	connected := func() (n int) {
		require.NoError(t, p.direct.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%last_value%'`).Scan(&n))
		return n
	}
	require.Eventually(t, func() bool { return connected() > 0 }, 10*time.Second, 5*time.Millisecond)
	done, err := m.Revoke(t.Context(), database, 0)
	require.NoError(t, err)
	defer done()
	require.Eventually(t, func() bool { return connected() == 0 }, 10*time.Second, 5*time.Millisecond)
	require.True(t, h.paused(database))
}
