package integration

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/url"
	"regexp"
	"strings"
	gosync "sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
	"github.com/nextvald/nextvald/proxy"
	"github.com/nextvald/nextvald/proxy/native"
	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/dynamostore"
)

// control opens the control connections of an in-process proxy.
type control string

func (c control) Control(ctx context.Context, database string) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(string(c))
	if err != nil {
		return nil, err
	}
	cfg.Database, cfg.DefaultQueryExecMode = database, pgx.QueryExecModeExec
	return pgx.ConnectConfig(ctx, cfg)
}

// source says who hands out the values of the sequences in a test of mirrored mode.
type source struct {
	proxy    inProcess
	hotCalls int
	from     sequencer.Source // of what is created
	// gaps: values are drawn ahead, so not all of them are seen.
	gaps bool
}

var sources = map[string]*source{
	"passed": {hotCalls: math.MaxInt, from: sequencer.FromUpstream},
	"drawn":  {hotCalls: 1, from: sequencer.FromUpstream, gaps: true},
	"store":  {hotCalls: math.MaxInt, from: sequencer.FromStore},
}

// behind is the URL of a database behind a proxy in mirrored mode, in the test's process.
func (s *source) behind(t testing.TB, upstream string) string {
	t.Helper()
	u, err := url.Parse(upstream)
	require.NoError(t, err)
	endpoint := environment(t, "NEXTVALD_TEST_DYNAMODB")
	mirror := func(r *sequencer.Registry, cfg *proxy.Config) {
		handovers := native.NewHandovers(control(upstream), r, cfg.Logger)
		handovers.Start()
		cfg.Native = struct {
			*native.Manager
			*native.Handovers
		}{native.New(native.Config{
			Logger: cfg.Logger, Upstream: control(upstream), Members: r, HotCalls: s.hotCalls,
			Hold: 50 * time.Millisecond, // there is one process
		}), handovers}
	}
	u.Host = s.proxy.startWith(t, proxy.Config{Upstream: tcp(u.Host)}, func() (sequencer.Store, error) {
		return dynamostore.Open(context.Background(), dynamostore.Config{
			Table: "mirrored-" + rand.Text(), Region: "us-east-1", Endpoint: endpoint, Namespace: "test",
			Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
		})
	}, sequencer.Config{DefaultSource: s.from}, mirror)
	return u.String()
}

var numbers = regexp.MustCompile(`\d+`)

// withoutValues are lines without the values in their rows.
func withoutValues(lines []string) []string {
	for i, l := range lines {
		if strings.HasPrefix(l, "DataRow") {
			lines[i] = numbers.ReplaceAllString(l, "N")
		}
	}
	return lines
}

// handovers are conversations about sequences that change hands.
var handovers = map[string]conversation{
	"read beside a call":        {send(query("CREATE SEQUENCE n")), flush(1, parse("", "SELECT nextval('n'), last_value FROM n")), flush(1, bind("", "")), send(execute("", 0), sync), send(query("SELECT nextval('n')")), send(query("CREATE SEQUENCE m")), send(query("BEGIN")), flush(2, parse("", "SELECT nextval('m') FROM m, n"), bind("", "")), send(execute("", 0), sync), send(query("ROLLBACK")), send(query("SELECT nextval('m') > 1, last_value FROM n"))},
	"created, altered, dropped": {send(query("CREATE SEQUENCE n START 5"), query("SELECT nextval('n'), currval('n')"), query("ALTER SEQUENCE n INCREMENT 10"), query("SELECT nextval('n'), lastval()"), query("ALTER SEQUENCE n RESTART"), query("SELECT nextval('n')"), query("DROP SEQUENCE n"), query("SELECT nextval('n')"))},
	"created in a block":        {send(query("BEGIN"), query("CREATE SEQUENCE n"), query("SELECT nextval('n')"), query("COMMIT"), query("SELECT nextval('n')"), query("BEGIN"), query("CREATE SEQUENCE m"), query("SELECT nextval('m')"), query("ROLLBACK"), query("SELECT nextval('m')"))},
	"created in one string":     {send(query("CREATE SEQUENCE n; SELECT nextval('n')"), query("SELECT nextval('n')"), query("CREATE SEQUENCE m; SELECT 1/0"), query("SELECT nextval('m')"))},
	"created, extended":         {send(parse("", "CREATE SEQUENCE n"), bind("", ""), describeP(""), execute("", 0), parse("", "SELECT nextval('n')"), bind("", ""), execute("", 0), sync), send(parse("", "SELECT nextval('n')"), bind("", ""), execute("", 0), sync), send(query("BEGIN")), send(parse("", "ALTER SEQUENCE n RESTART WITH 7"), bind("", ""), execute("", 0), sync), send(parse("", "COMMIT"), bind("", ""), execute("", 0), sync), send(query("SELECT nextval('n')"))},
	"altered and rolled back":   {send(query("SELECT nextval('s')"), query("BEGIN"), query("ALTER SEQUENCE s RESTART WITH 500"), query("SELECT nextval('s')"), query("ROLLBACK"), query("SELECT nextval('s')"), query("BEGIN"), query("SAVEPOINT a"), query("ALTER SEQUENCE s RESTART WITH 700"), query("ROLLBACK TO a"), query("COMMIT"), query("SELECT nextval('s')"))},
	"dropped and rolled back":   {send(query("BEGIN"), query("DROP SEQUENCE s"), query("SAVEPOINT a"), query("SELECT nextval('s')"), query("ROLLBACK"), query("SELECT nextval('s')"))},
	"renamed":                   {send(query("SELECT nextval('s')"), query("ALTER SEQUENCE s RENAME TO n"), query("SELECT nextval('s')"), query("SELECT nextval('n')"), query("BEGIN"), query("ALTER TABLE n RENAME TO m"), query("SELECT nextval('m')"), query("ROLLBACK"), query("SELECT nextval('n')"), query("CREATE SCHEMA other"), query("ALTER SEQUENCE n SET SCHEMA other"), query("SELECT nextval('other.n')"), query("DROP SCHEMA other CASCADE"), query("SELECT nextval('other.n')"))},
	"in a default":              {send(query("CREATE TABLE d (id bigint DEFAULT nextval('s'), v text)"), query("INSERT INTO d VALUES (DEFAULT, 'a') RETURNING id"), query("SELECT nextval('s'), currval('s')"), query("INSERT INTO d VALUES (DEFAULT, 'a')"), query("SELECT lastval() = (SELECT max(id) FROM d)"), query("ALTER TABLE d ALTER id DROP DEFAULT"), query("SELECT nextval('s')"))},
	"owned":                     {send(query("ALTER SEQUENCE s OWNED BY t.id"), query("SELECT nextval('s')"), query("TRUNCATE t RESTART IDENTITY"), query("SELECT nextval('s')"), query("DROP TABLE t"), query("SELECT nextval('s')"))},
	"serial and identity":       {send(query("CREATE TABLE d (a serial, b bigint GENERATED ALWAYS AS IDENTITY)"), query("INSERT INTO d DEFAULT VALUES RETURNING a, b"), query("SELECT nextval('d_a_seq'), nextval('d_b_seq')"), query("ALTER TABLE d ALTER b RESTART WITH 50"), query("SELECT nextval('d_b_seq')"), query("TRUNCATE d RESTART IDENTITY"), query("INSERT INTO d DEFAULT VALUES RETURNING a, b"))},
	"once for each row":         {send(query("INSERT INTO t SELECT nextval('s'), 'x' FROM generate_series(1, 3) RETURNING id > 0"), query("UPDATE t SET id = nextval('s')"), query("SELECT nextval('s') > 0 FROM t"), query("SELECT setval('s', id) FROM t"), query("SELECT count(DISTINCT id) FROM t"), query("SELECT nextval('s') > 0"))},
	"a function":                {send(query("CREATE FUNCTION f() RETURNS bigint LANGUAGE sql AS $$SELECT nextval('s')$$"), query("SELECT f() > 0, nextval('s') > 0"), query("CREATE FUNCTION g() RETURNS bigint LANGUAGE plpgsql AS $$BEGIN RETURN currval('s'); END$$"), query("SELECT nextval('s') > 0"), query("DO $$BEGIN PERFORM nextval('s'); END$$"))},
	"set":                       {send(query("SELECT nextval('s'), setval('s', 2000), nextval('s')"), query("SELECT setval('s', 3000, false)"), query("SELECT nextval('s')"), query("SELECT setval('s', (SELECT 4000 + count(*) FROM t))"), query("SELECT nextval('s')"), query("SELECT setval('nosuch', 1)"), query("SELECT setval('s', 0)"), query("PREPARE p (bigint) AS SELECT setval('s', $1)"), query("EXECUTE p (5000)"), query("SELECT nextval('s')"))},
	"set, extended":             {send(parse("a", "SELECT setval($1, $2)"), describeS("a"), sync), send(bind("", "a", "s", "70"), execute("", 0), sync), send(query("SELECT nextval('s')")), send(bind("", "a", "nosuch", "70"), execute("", 0), sync)},
	"limit":                     {send(query("CREATE SEQUENCE n MAXVALUE 2"), query("SELECT nextval('n')"), query("SELECT nextval('n')"), query("SELECT nextval('n')"), query("CREATE SEQUENCE c MAXVALUE 2 CYCLE"), query("SELECT nextval('c'), nextval('c'), nextval('c')"), query("CREATE SEQUENCE d INCREMENT -1"), query("SELECT nextval('d'), nextval('d')"))},
	"rights":                    {send(query("SET ROLE pg_monitor"), query("SELECT nextval('s')"), query("SELECT currval('s')"), query("SELECT setval('s', 1)"), query("RESET ROLE"), query("SELECT nextval('s')"), query("GRANT USAGE ON SEQUENCE s TO pg_monitor"), query("SET ROLE pg_monitor"), query("SELECT nextval('s')"), query("SELECT setval('s', 1)"), query("RESET ROLE"), query("REVOKE USAGE ON SEQUENCE s FROM pg_monitor"))},
	"prepared before":           {send(parse("a", "SELECT nextval('s')"), describeS("a"), parse("b", "INSERT INTO t VALUES (nextval('s'), $1) RETURNING id, v"), describeS("b"), sync), send(bind("", "a"), execute("", 0), bind("", "b", "x"), execute("", 0), sync), send(query("ALTER SEQUENCE s INCREMENT 7")), send(bind("", "a"), describeP(""), execute("", 0), bind("", "b", "y"), execute("", 0), sync), send(bind("", "a"), execute("", 0), sync), send(query("DROP SEQUENCE s")), send(bind("", "a"), execute("", 0), sync)},
	"two-phase":                 {send(query("BEGIN"), query("INSERT INTO t VALUES (nextval('s'))"), query("ROLLBACK"))},
	"copy after a creation":     {flush(2, query("CREATE SEQUENCE n; COPY t (id) FROM STDIN")), send(&pgproto3.CopyData{Data: []byte("1\n")}, &pgproto3.CopyDone{}), send(query("SELECT nextval('n')"))},
}

// TestMirroredFrames compares what a client receives, message by message, with a plain PostgreSQL, whoever hands the
// values out.
func TestMirroredFrames(t *testing.T) {
	t.Parallel()
	for kind, s := range sources {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			for _, group := range []map[string]conversation{alone, withTable, handovers} {
				for name, c := range group {
					t.Run(name, func(t *testing.T) {
						t.Parallel()
						direct, upstream := freshDatabase(t), freshDatabase(t)
						through := s.behind(t, upstream)
						for _, url := range []string{direct, through} {
							exec(t, url, "CREATE TABLE t (id bigint, v text)")
							exec(t, url, sequences...)
						}
						want, got := converse(t, direct, c), converse(t, through, c)
						if s.gaps {
							want, got = withoutValues(want), withoutValues(got)
						}
						require.Equal(t, strings.Join(want, "\n"), strings.Join(got, "\n"))
					})
				}
			}
		})
	}
}

// TestMirroredValuesAreUnique has two processes, sessions, defaults, triggers, functions and direct connections use the same
// sequences at once, while their sources change.
func TestMirroredValuesAreUnique(t *testing.T) {
	t.Parallel()
	database, store := testenv.Database(t), testenv.Table(t)
	start := func() string {
		return testenv.Start(t, "--upstream", database, "--store", store, "--upstream-sequences", "mirrored", "--sequences-hot-calls", "5").URL(database)
	}
	urls := []string{start(), start()}
	exec(t, urls[0], "CREATE SEQUENCE s", "CREATE TABLE d (id serial, n bigint)",
		"CREATE FUNCTION f() RETURNS bigint LANGUAGE plpgsql AS $$BEGIN RETURN nextval('s'); END$$",
		"CREATE FUNCTION g() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN NEW.n := nextval('s'); RETURN NEW; END$$",
		"CREATE TRIGGER g BEFORE INSERT ON d FOR EACH ROW EXECUTE FUNCTION g()")

	var (
		mu   gosync.Mutex
		seen = map[string]map[int64]string{"s": {}, "d_id_seq": {}}
	)
	note := func(sequence string, value int64, by string) {
		mu.Lock()
		defer mu.Unlock()
		if first, again := seen[sequence][value]; again {
			t.Errorf("%s gave %d to %s and to %s", sequence, value, first, by)
		}
		seen[sequence][value] = by
	}
	ctx, stop := context.WithTimeout(context.Background(), 12*time.Second)
	defer stop()
	var all gosync.WaitGroup
	use := func(url, by, sql string, names ...string) {
		all.Go(func() {
			conn := connect(t, url)
			for ctx.Err() == nil {
				values := make([]int64, len(names))
				targets := make([]any, len(names))
				for i := range values {
					targets[i] = &values[i]
				}
				if err := conn.QueryRow(context.Background(), sql).Scan(targets...); err != nil {
					if c := code(err); c == "2200H" || c == "55P03" || c == "40P01" || c == "58030" { // the fence of unseen callers is used up, or a handover takes long
						continue
					}
					t.Errorf("%s: %v", by, err)
					return
				}
				for i, v := range values {
					note(names[i], v, by)
				}
			}
		})
	}
	for i, url := range append(urls, database) {
		by := fmt.Sprintf("connection %d ", i)
		use(url, by+"calls", "SELECT nextval('s'), nextval('d_id_seq')", "s", "d_id_seq")
		use(url, by+"calls of one", "SELECT nextval('d_id_seq')", "d_id_seq")
		use(url, by+"calls of another", "SELECT nextval('s')", "s")
		use(url, by+"inserts", "INSERT INTO d DEFAULT VALUES RETURNING id, n", "d_id_seq", "s")
		use(url, by+"functions", "SELECT f()", "s")
		use(url, by+"rows", "INSERT INTO d SELECT nextval('d_id_seq') RETURNING id, n", "d_id_seq", "s")
	}
	all.Go(func() {
		conn := connect(t, urls[1])
		for i := 0; ctx.Err() == nil; i++ {
			source := []string{"upstream", "store"}[i%2]
			if _, err := conn.Exec(context.Background(), "ALTER SEQUENCE s SET (nextvald.source = "+source+")", pgx.QueryExecModeSimpleProtocol); err != nil {
				if c := code(err); c != "55P03" && c != "58030" {
					t.Errorf("handover: %v", err)
					return
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(700 * time.Millisecond):
			}
		}
	})
	all.Wait()
	t.Logf("%d and %d values", len(seen["s"]), len(seen["d_id_seq"]))
	require.Greater(t, len(seen["s"]), 1000)
}

// calling returns what sends messages and waits until they are answered, without an allocation.
func calling(b *testing.B, conn net.Conn, messages ...pgproto3.FrontendMessage) func() {
	var ask []byte
	for _, m := range messages {
		var err error
		ask, err = m.Encode(ask)
		require.NoError(b, err)
	}
	answer := make([]byte, 1<<10)
	return func() {
		_, err := conn.Write(ask)
		require.NoError(b, err)
		for n := 0; n < 6 || answer[n-6] != 'Z' || answer[n-1] != 'I'; {
			k, err := conn.Read(answer[n:])
			require.NoError(b, err)
			n += k
		}
	}
}

// BenchmarkMirrored measures one nextval of a sequence that the upstream has too, from the client's bytes to the answer's. The
// allocations are the proxy's: the client makes none.
func BenchmarkMirrored(b *testing.B) {
	for _, kind := range []string{"drawn", "store"} {
		b.Run(kind, func(b *testing.B) {
			through := sources[kind].behind(b, freshDatabase(b))
			exec(b, through, "CREATE SEQUENCE s")
			conn := dialRaw(b, through)
			call := calling(b, conn, query("SELECT nextval('s')"))
			for begin := time.Now(); time.Since(begin) < time.Second; { // until values are drawn ahead
				call()
			}
			b.ReportAllocs()
			for b.Loop() {
				call()
			}
		})
	}
}

// CACHE 1 makes a sequence strict also where the upstream creates it, whose catalogs do not tell it from no CACHE.
func TestMirroredCacheOne(t *testing.T) {
	t.Parallel()
	database, store := testenv.Database(t), testenv.Table(t)
	p := testenv.Start(t, "--upstream", database, "--store", store, "--upstream-sequences", "mirrored")
	conn := connect(t, p.URL(database))
	for _, sql := range []string{
		"CREATE SEQUENCE created CACHE 1", "CREATE SEQUENCE altered", "CREATE SEQUENCE eased CACHE 1", "CREATE SEQUENCE plain",
		"BEGIN", "CREATE SEQUENCE block", "ALTER SEQUENCE block CACHE 1", "COMMIT",
		"ALTER SEQUENCE altered CACHE 1", "ALTER SEQUENCE eased CACHE 5", "ALTER SEQUENCE created INCREMENT 2",
	} {
		require.Empty(t, run(t, conn, sql), sql)
	}
	require.Equal(t, "22023", run(t, conn, "ALTER SEQUENCE plain CACHE 0"))
	u, err := url.Parse(database)
	require.NoError(t, err)
	r := testenv.Command{Args: []string{"export", "--store", store, u.Path[1:]}}.Run(t)
	require.Equal(t, 0, r.Code, r.Stderr)
	modes := map[string]string{}
	for line := range strings.Lines(r.Stdout) {
		var s struct{ Name, Mode string }
		require.NoError(t, json.Unmarshal([]byte(line), &s))
		modes[s.Name] = s.Mode
	}
	require.Equal(t, map[string]string{
		"created": "strict", "altered": "strict", "eased": "cached", "plain": "cached", "block": "strict",
	}, modes)
}

// BenchmarkPassed measures a statement that passes in a database with sequences of the store, from the client's bytes to the
// answer's. The allocations are the proxy's: the client makes none.
func BenchmarkPassed(b *testing.B) {
	const read = "SELECT id, v FROM t WHERE id = $1"
	for kind, messages := range map[string][]pgproto3.FrontendMessage{
		"simple":   {query("SELECT id, v FROM t WHERE id = 7")},
		"extended": {parse("", read), bind("", "", "7"), describeP(""), execute("", 0), sync},
		"prepared": {bind("", "p", "7"), describeP(""), execute("", 0), sync},
	} {
		b.Run(kind, func(b *testing.B) {
			upstream := freshDatabase(b)
			exec(b, upstream, "CREATE TABLE t (id bigint PRIMARY KEY, v text)", "INSERT INTO t SELECT g, 'value' FROM generate_series(1, 10) g")
			conn := dialRaw(b, sources["store"].behind(b, upstream))
			conn.exchange(b, send(query("CREATE SEQUENCE s")))
			conn.exchange(b, send(parse("p", read), sync))
			call := calling(b, conn, messages...)
			b.ReportAllocs()
			for b.Loop() {
				call()
			}
		})
	}
}
