package native

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/memstore"
)

func (p *process) batch(dry bool) *Batch {
	return &Batch{Handovers: p.Handovers, Database: p.database, DryRun: dry}
}

// done is what a batch said of each sequence: what it did, and where it stands.
func done(t testing.TB, outcomes []Outcome, err error) map[string]string {
	require.NoError(t, err)
	said := map[string]string{}
	for _, o := range outcomes {
		require.NoError(t, o.Err, o.Name.Name)
		said[o.Name.Name] = o.Done
	}
	return said
}

// unsafe is what a check says that is not safe, by the sequence.
func unsafe(t testing.TB, p *process, names ...string) map[string]string {
	r, err := p.batch(false).Check(t.Context(), names)
	require.NoError(t, err)
	said := map[string]string{}
	for _, f := range r.Findings {
		if f.Unsafe != "" {
			said[f.Name.Name] = f.Unsafe
		}
	}
	require.Equal(t, len(said) == 0, r.Unsafe() == 0)
	return said
}

// A database is handed over as a whole and comes back as it was, past what was handed out.
func TestBatch(t *testing.T) {
	s, database := testDatabase(t)
	p := newProcess(t, memstore.New(), s, database)
	progress := 0
	all := p.batch(false)
	all.Progress = func(done, of int) { progress = max(progress, done); require.Equal(t, 4, of) }
	s.run("CREATE TABLE t (a bigserial, b int GENERATED ALWAYS AS IDENTITY (INCREMENT -2 MAXVALUE 0 MINVALUE -100000 START 0), c int)",
		"INSERT INTO t SELECT FROM generate_series(1, 5)", "INSERT INTO t (a) VALUES (700)", "CREATE SEQUENCE plain", `CREATE SEQUENCE "Odd" CYCLE MAXVALUE 100000`)
	require.Len(t, unsafe(t, p), 1)
	require.Contains(t, unsafe(t, p, "T_a_seq")["t_a_seq"], "public.t.a has 700")

	outcomes, err := p.batch(true).Adopt(t.Context(), nil)
	said := done(t, outcomes, err)
	require.Equal(t, map[string]string{
		"t_a_seq": "would be adopted", "t_b_seq": "would be adopted", "plain": "would be adopted", "Odd": "would be adopted",
	}, said)
	entries, err := p.registry.List(t.Context(), database)
	require.NoError(t, err)
	require.Empty(t, entries)

	outcomes, err = all.Adopt(t.Context(), nil)
	require.Equal(t, "adopted", done(t, outcomes, err)["plain"])
	require.Equal(t, 4, progress)
	require.Empty(t, unsafe(t, p))
	outcomes, err = all.Adopt(t.Context(), nil)
	require.Equal(t, map[string]string{"t_a_seq": "", "t_b_seq": "", "plain": "", "Odd": ""}, done(t, outcomes, err), "again")

	require.EqualValues(t, 701, p.next(p.oid("t_a_seq")))
	require.EqualValues(t, -12, p.next(p.oid("t_b_seq")))
	s.run("INSERT INTO t (c) VALUES (1)")
	require.Empty(t, unsafe(t, p), "what came from a fence")

	_, err = all.Release(t.Context(), []string{"nobody"})
	require.ErrorIs(t, err, ErrNoSequence)
	outcomes, err = p.batch(false).Release(t.Context(), []string{`"Odd"`, "public.t_a_seq"})
	require.Equal(t, map[string]string{"Odd": "released", "t_a_seq": "released"}, done(t, outcomes, err))
	outcomes, err = all.Release(t.Context(), nil)
	require.Equal(t, map[string]string{"Odd": "", "t_a_seq": "", "plain": "released", "t_b_seq": "released"}, done(t, outcomes, err))
	require.Equal(t, "bigint 1 by 1 from 1 to 100000 cache 1 cycle t at 1 f", p.declared(`"Odd"`))
	require.Equal(t, "bigint 1 by 1 from 1 to 9223372036854775807 cache 1 cycle f at 1 f", p.declared("plain"))
	require.Equal(t, "bigint 1 by 1 from 1 to 9223372036854775807 cache 1 cycle f at 1701 t", p.declared("t_a_seq"))
	require.Empty(t, unsafe(t, p))
}

// What a check must find of sequences that the store has.
func TestCheckFindsWhatIsUnsafe(t *testing.T) {
	s, database := testDatabase(t)
	p := newProcess(t, memstore.New(), s, database)
	p.abandoned = time.Hour
	s.run("CREATE SEQUENCE free", "CREATE SEQUENCE dropped", "CREATE SEQUENCE made_again", "CREATE TABLE t (a bigserial)", "CREATE SEQUENCE fine",
		"CREATE FUNCTION f() RETURNS bigint LANGUAGE sql AS 'SELECT lastval()'")
	outcomes, err := p.batch(false).Adopt(t.Context(), nil)
	require.Equal(t, "adopted", done(t, outcomes, err)["free"])
	s.run("ALTER SEQUENCE free NO MAXVALUE", "DROP SEQUENCE dropped", "DROP SEQUENCE made_again", "CREATE SEQUENCE made_again",
		"INSERT INTO t VALUES (900000)")
	said := unsafe(t, p)
	require.Len(t, said, 4)
	require.Contains(t, said["free"], "not confined")
	require.Contains(t, said["dropped"], "does not have it any more")
	require.Contains(t, said["made_again"], "another one than was adopted")
	require.Contains(t, said["t_a_seq"], "has 900000")
	r, err := p.batch(false).Check(t.Context(), nil)
	require.NoError(t, err)
	require.Len(t, r.Warnings(), 2)
	require.Contains(t, r.Warnings()[1], "f()")

	// Each can be set right.
	outcomes, err = p.batch(false).Release(t.Context(), []string{"free"})
	require.Equal(t, "released", done(t, outcomes, err)["free"])
	outcomes, err = p.batch(false).Adopt(t.Context(), []string{"made_again"})
	require.Equal(t, "adopted", done(t, outcomes, err)["made_again"])
	require.Len(t, unsafe(t, p), 2)
}

// A database that was restored from a dump shows fences, and has other OIDs: the store knows what was declared.
func TestRestored(t *testing.T) {
	s, database := testDatabase(t)
	store := memstore.New()
	p := newProcess(t, store, s, database)
	s.run("CREATE SEQUENCE a CYCLE MAXVALUE 5000000", "CREATE SEQUENCE b START 7")
	outcomes, err := p.batch(false).Adopt(t.Context(), nil)
	require.Equal(t, "adopted", done(t, outcomes, err)["a"])
	last := p.next(p.oid("a"))
	others, err := p.nextval("a")
	require.NoError(t, err)
	var dump []string
	for _, name := range []string{"a", "b"} {
		var sql string
		require.NoError(t, p.direct.QueryRow(t.Context(), `SELECT format('CREATE SEQUENCE %I START %s MINVALUE %s MAXVALUE %s; SELECT setval(''%I'', %s, %L)',
			relname, seqstart, seqmin, seqmax, relname, `+map[string]string{"a": "1002", "b": "1007"}[name]+`, true)
			FROM pg_class JOIN pg_sequence ON seqrelid = oid WHERE relname = $1`, name).Scan(&sql))
		dump = append(dump, "DROP SEQUENCE "+name, sql)
	}
	s.run(dump...)
	outcomes, err = p.batch(false).Release(t.Context(), nil)
	require.NoError(t, err)
	for _, o := range outcomes {
		require.ErrorContains(t, o.Err, "--restored")
	}
	outcomes, err = p.batch(false).Restored(t.Context(), nil)
	require.Equal(t, map[string]string{"a": "released", "b": "released"}, done(t, outcomes, err))
	require.Contains(t, p.declared("a"), "bigint 1 by 1 from 1 to 5000000 cache 1 cycle t at 2000 t")
	require.Contains(t, p.declared("b"), "bigint 7 by 1 from 1 to 9223372036854775807 cache 1 cycle f at 2006 t")
	v, err := p.nextval("a")
	require.NoError(t, err)
	require.Greater(t, v, max(last, others))
	entries, err := p.registry.List(t.Context(), database)
	require.NoError(t, err)
	require.Empty(t, entries)
}

// A virtual sequence gets its like in the upstream, also when that is cut off at any step.
func TestVirtualSequenceIsCreatedInTheUpstream(t *testing.T) {
	for _, step := range []string{"", "reserved", "created"} {
		t.Run("cut after "+step, func(t *testing.T) {
			s, database := testDatabase(t)
			p := newProcess(t, memstore.New(), s, database)
			seen := map[int64]bool{}
			take := func(v int64, err error) {
				require.NoError(t, err)
				require.False(t, seen[v], "%d twice", v)
				seen[v] = true
			}
			d, err := sequencer.Define(sequencer.Options{Start: ptr[int64](5), Cache: ptr[int64](10)})
			require.NoError(t, err)
			virtual, err := p.registry.Create(t.Context(), sequencer.Name{Database: database, Schema: "public", Name: "v"}, d)
			require.NoError(t, err)
			take(virtual.Next(t.Context()))
			outcomes, err := p.batch(false).Adopt(t.Context(), nil)
			require.Empty(t, done(t, outcomes, err)["v"], "only by its name")
			s.run("CREATE TABLE v ()")
			outcomes, err = p.batch(false).Adopt(t.Context(), []string{"v"})
			require.NoError(t, err)
			require.ErrorIs(t, outcomes[0].Err, sequencer.ErrDuplicate)
			s.run("DROP TABLE v")

			if step != "" {
				p.between = func(at string) {
					if at == step {
						panic(step)
					}
				}
				require.PanicsWithValue(t, step, func() {
					e, item, err := p.registry.Find(t.Context(), virtual.Name())
					require.NoError(t, err)
					_, _ = p.materialize(t.Context(), e, item)
				})
				p.between = func(string) {}
				take(virtual.Next(t.Context()))
			}
			outcomes, err = p.batch(false).Adopt(t.Context(), []string{"v"})
			require.Equal(t, "created in the upstream", done(t, outcomes, err)["v"])
			require.Empty(t, unsafe(t, p))
			oid := p.oid("v")
			require.Equal(t, oid, virtual.OID())
			for range 20 {
				take(p.next(oid), nil)
				take(p.nextval("v"))
			}
			entries, err := p.registry.List(t.Context(), database)
			require.NoError(t, err)
			require.Len(t, entries, 1)
			require.Equal(t, []any{"v", oid}, []any{entries[0].Name.Name, entries[0].OID})
			require.NoError(t, p.Release(t.Context(), database, oid))
			take(p.nextval("v"))
			require.Contains(t, p.declared("v"), "bigint 5 by 1 from 1 to 9223372036854775807 cache 10 cycle f")
		})
	}
}

func ptr[T any](v T) *T { return &v }

// Another process hears of what was adopted and released without being told.
func TestOtherProcessesHear(t *testing.T) {
	s, database := testDatabase(t)
	store := memstore.New()
	p, q := newProcess(t, store, s, database), newProcess(t, store, s, database)
	s.run("CREATE SEQUENCE a")
	oid := p.oid("a")
	require.NoError(t, p.Adopt(t.Context(), database, oid))
	has := func() bool {
		_, err := q.registry.LookupOID(t.Context(), database, oid)
		return err == nil
	}
	require.Eventually(t, has, 10*time.Second, time.Millisecond)
	first := q.next(oid)
	require.NoError(t, p.Release(t.Context(), database, oid))
	require.Eventually(t, func() bool { return !has() }, 10*time.Second, time.Millisecond)
	v, err := p.nextval("a")
	require.NoError(t, err)
	require.Greater(t, v, first)
}

// Two processes hand a sequence to and fro and feed it, while both call it, and others by triggers and defaults, in short and
// long transactions, and connections break: no value comes twice.
func TestHandoversUnderLoad(t *testing.T) {
	s, database := testDatabase(t)
	store := memstore.New()
	s.run("CREATE SEQUENCE a", "CREATE TABLE t (v bigint PRIMARY KEY DEFAULT nextval('a'), n int)",
		"CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.v := nextval('a'); RETURN NEW; END $$",
		"CREATE TABLE u (v bigint PRIMARY KEY)", "CREATE TRIGGER fill BEFORE INSERT ON u FOR EACH ROW EXECUTE FUNCTION fill()")
	processes := []*process{newProcess(t, store, s, database), newProcess(t, store, s, database)}
	oid := processes[0].oid("a")
	var mu sync.Mutex
	seen, counts := map[int64]string{}, map[string]int{}
	take := func(v int64, by string) {
		mu.Lock()
		defer mu.Unlock()
		if before, ok := seen[v]; ok {
			t.Errorf("%d twice: %s and %s", v, before, by)
		}
		seen[v] = by
		counts[by]++
	}
	count := func(what string, err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			what += " failed"
		}
		counts[what]++
	}
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	connect := func() *pgx.Conn {
		conn, err := pgx.Connect(context.Background(), s.url)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		return conn
	}
	for _, p := range processes {
		p.Start()
		conn := connect()
		wg.Go(func() { // through nextvald
			for ctx.Err() == nil {
				sequence, err := p.registry.LookupOID(ctx, database, oid)
				var v int64
				if err == nil {
					v, err = sequence.Next(ctx)
				}
				switch {
				case err == nil:
					take(v, "nextvald")
				case errors.Is(err, sequencer.ErrUndefined), errors.Is(err, sequencer.ErrMoving):
					if conn.QueryRow(context.Background(), "SELECT nextval('a')").Scan(&v) == nil {
						take(v, "passed")
					}
				}
				time.Sleep(200 * time.Microsecond)
			}
		})
		for _, f := range []func() error{
			func() error { return adoptForced(ctx, p, oid) },
			func() error { return p.Release(ctx, database, oid) },
		} {
			what := "handover"
			wg.Go(func() {
				for ctx.Err() == nil {
					count(what, f())
					time.Sleep(100 * time.Millisecond)
				}
			})
		}
	}
	for _, sql := range []string{
		"INSERT INTO t DEFAULT VALUES RETURNING v", "INSERT INTO u VALUES (NULL) RETURNING v", "SELECT nextval('a') FROM generate_series(1, 3)",
	} {
		conn := connect()
		wg.Go(func() {
			for ctx.Err() == nil {
				rows, err := conn.Query(context.Background(), sql)
				if err == nil {
					var values []int64
					if values, err = pgx.CollectRows(rows, pgx.RowTo[int64]); err == nil {
						for _, v := range values {
							take(v, strings.Fields(sql)[0])
						}
					}
				}
				var refused *pgconn.PgError
				if err != nil && (!errors.As(err, &refused) || refused.Code != "2200H") {
					t.Errorf("%s: %v", sql, err)
				}
				time.Sleep(2 * time.Millisecond)
			}
		})
	}
	long := connect()
	wg.Go(func() { // holds the sequence's lock for a while
		for ctx.Err() == nil {
			var v int64
			_, _ = long.Exec(context.Background(), "BEGIN")
			if long.QueryRow(context.Background(), "SELECT nextval('a')").Scan(&v) == nil {
				take(v, "long")
			}
			time.Sleep(150 * time.Millisecond)
			_, _ = long.Exec(context.Background(), "ROLLBACK")
			time.Sleep(50 * time.Millisecond)
		}
	})
	breaker := connect()
	wg.Go(func() { // breaks control connections
		for ctx.Err() == nil {
			time.Sleep(300 * time.Millisecond)
			_, err := breaker.Exec(context.Background(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
				WHERE datname = current_database() AND query ~ 'ALTER SEQUENCE|COMMIT|last_value' AND pid <> pg_backend_pid()`)
			count("break", err)
		}
	})
	wg.Wait()
	t.Log(counts)
	for _, what := range []string{"nextvald", "passed", "INSERT", "SELECT", "long", "handover"} {
		require.NotZero(t, counts[what], what)
	}
	// And it goes on.
	p := processes[0]
	works := func(what func() error) {
		var err error
		require.Eventually(t, func() bool {
			if err = what(); err != nil {
				t.Log(err)
			}
			return err == nil
		}, time.Minute, 100*time.Millisecond)
	}
	works(func() error { return adoptForced(t.Context(), p, oid) })
	take(p.next(oid), "nextvald")
	works(func() error { return p.Release(t.Context(), database, oid) })
	v, err := p.nextval("a")
	require.NoError(t, err)
	take(v, "passed")
}

// adoptForced adopts a sequence although a default refers to it, as the command does.
func adoptForced(ctx context.Context, p *process, oid uint32) error {
	var r relation
	err := p.controls.use(ctx, p.database, func(ctx context.Context, conn *pgx.Conn) (err error) {
		r, err = readRelation(ctx, conn, oid)
		return err
	})
	if err == nil {
		_, err = p.adopt(ctx, r, nil)
	}
	return err
}
