package integration

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/proxy"
	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/memstore"
)

// fenced is a proxy in the test's process whose store the test fills, before the first session begins, with sequences that
// the upstream has too.
type fenced struct {
	store    sequencer.Store
	registry *sequencer.Registry
	addr     string
}

func newFenced(t testing.TB) *fenced {
	t.Helper()
	f := &fenced{store: memstore.New()}
	var log failures
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError}))
	var err error
	f.registry, err = sequencer.Open(context.Background(), f.store, sequencer.Config{Logger: logger})
	require.NoError(t, err)
	upstream, err := url.Parse(environment(t, "NEXTVALD_TEST_UPSTREAM"))
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f.addr = l.Addr().String()
	server := proxy.New(proxy.Config{Logger: logger, Upstream: tcp(upstream.Host), Sequences: f.registry, DialTimeout: 5 * time.Second})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		<-done
		require.NoError(t, f.registry.Close(context.Background()))
		require.Empty(t, log.String())
	})
	return f
}

// through is the URL by which the proxy leads to a database.
func (f *fenced) through(t testing.TB, direct string) string {
	t.Helper()
	u, err := url.Parse(direct)
	require.NoError(t, err)
	u.Host = f.addr
	return u.String()
}

// fence puts sequences of a database into the store as they are, and confines them in the database to a few values far
// from where they stand.
func (f *fenced) fence(t testing.TB, direct string, names ...string) {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, direct)
	require.NoError(t, err)
	defer func() { _ = conn.Close(ctx) }()
	for _, name := range names {
		it := sequencer.Item{
			Incarnation: rand.Text(), Version: 1, State: sequencer.Active, Source: sequencer.FromStore, Kind: sequencer.Mirrored,
			Mode: sequencer.Cached, Created: "2026-01-02T03:04:05Z", Changed: "2026-01-02T03:04:05Z/0",
		}
		entry := sequencer.Entry{Incarnation: it.Incarnation}
		var typ string
		var last int64
		var called bool
		d := &it.Definition
		require.NoError(t, conn.QueryRow(ctx, `SELECT s.seqrelid, d.oid, d.datname, n.nspname, c.relname, format_type(seqtypid, NULL),
			seqstart, seqincrement, seqmin, seqmax, seqcache, seqcycle
			FROM pg_sequence s, pg_class c, pg_namespace n, pg_database d
			WHERE seqrelid = $1::text::regclass AND c.oid = seqrelid AND n.oid = c.relnamespace AND d.datname = current_database()`, name).
			Scan(&it.RelOID, &it.DBOID, &entry.Name.Database, &entry.Name.Schema, &entry.Name.Name, &typ,
				&d.Start, &d.Increment, &d.Min, &d.Max, &d.Cache, &d.Cycle))
		require.NoError(t, conn.QueryRow(ctx, "SELECT last_value, is_called FROM "+name).Scan(&last, &called))
		d.Type, err = sequencer.ParseDataType(typ)
		require.NoError(t, err)
		it.OID, entry.OID = it.RelOID, it.RelOID
		if it.Pos = sequencer.At(last); called {
			it.Pos = it.Pos.Plus(sequencer.At(d.Increment))
		} else {
			it.Fresh = &last
		}
		low, high := d.Max-3, d.Max-1
		_, err = conn.Exec(ctx, fmt.Sprintf("ALTER SEQUENCE %s MINVALUE %d MAXVALUE %d START %d RESTART %d NO CYCLE CACHE 1",
			name, low, high, high, low))
		require.NoError(t, err)
		it.Fence = &sequencer.Range{First: low, Last: high}
		require.NoError(t, f.store.Put(ctx, it, 0))
		require.NoError(t, f.store.PutName(ctx, entry))
	}
}

// ofEveryKind makes sequences of every kind that PostgreSQL has.
var ofEveryKind = []string{
	"CREATE SCHEMA other",
	"CREATE SEQUENCE fresh",
	"CREATE SEQUENCE s INCREMENT 10 START 100 MINVALUE 5 MAXVALUE 5000 CACHE 7 CYCLE",
	"SELECT setval('s', 300)",
	`CREATE SEQUENCE other."it's ""Ü\" AS smallint INCREMENT -3 MAXVALUE 30 MINVALUE -100 START 17`,
	`SELECT nextval('other."it''s ""Ü\"')`,
	"CREATE SEQUENCE other.s AS integer MINVALUE 0 START 5",
	"CREATE SEQUENCE theirs START 70",
	"SELECT nextval('theirs')",
	"CREATE TABLE t (id serial, n bigint GENERATED ALWAYS AS IDENTITY (START 40), v text)",
	"INSERT INTO t (v) VALUES ('a'), ('b')",
	"CREATE UNLOGGED SEQUENCE unlogged MAXVALUE 1000",
	"CREATE SEQUENCE owned OWNED BY t.v",
	"COMMENT ON SEQUENCE fresh IS 'of the store'",
	"GRANT SELECT ON SEQUENCE fresh TO PUBLIC",
}

// theStores are those that the tests put into the store.
var theStores = []string{"fresh", "s", `other."it's ""Ü\"`, "other.s", "unlogged"}

// catalogTexts read what the catalogs tell of sequences.
var catalogTexts = []string{
	"SELECT * FROM pg_sequences ORDER BY schemaname, sequencename",
	"SELECT * FROM pg_catalog.pg_sequences AS q(a, b) WHERE b LIKE 's%' ORDER BY 1, 2",
	"TABLE pg_sequences ORDER BY 1, 2",
	"TABLE pg_catalog.pg_sequences ORDER BY 1, 2",
	`SELECT "pg_sequences".last_value, pg_sequences.sequencename FROM "pg_sequences" ORDER BY 2, 1`,
	"SELECT pg_catalog.pg_sequences.max_value FROM pg_catalog.pg_sequences ORDER BY 1",
	"SELECT seqrelid::regclass, seqtypid, seqstart, seqincrement, seqmax, seqmin, seqcache, seqcycle FROM pg_sequence ORDER BY seqrelid::regclass::text",
	"SELECT * FROM (SELECT seqmax m FROM ONLY pg_catalog.pg_sequence s WHERE s.seqrelid = 's'::regclass) x",
	"SELECT tableoid::regclass, seqmax FROM pg_sequence * WHERE seqrelid = 'other.s'::regclass",
	"SELECT pg_catalog.format_type(seqtypid, NULL) AS \"Type\", seqstart FROM pg_catalog.pg_sequence WHERE seqrelid = 's'::regclass::oid AND seqcycle",
	"SELECT c.relname, s.seqmax FROM pg_class c JOIN pg_sequence s ON s.seqrelid = c.oid LEFT JOIN pg_sequences q ON q.sequencename = c.relname AND q.max_value = s.seqmax ORDER BY 1, 2",
	"SELECT * FROM information_schema.sequences WHERE sequence_catalog = current_database() ORDER BY sequence_schema, sequence_name",
	"SELECT information_schema.sequences.maximum_value FROM information_schema.sequences ORDER BY 1",
	"SELECT pg_sequence_last_value('s')",
	"SELECT pg_sequence_last_value('fresh'), pg_catalog.pg_sequence_last_value('other.s'::regclass) AS o, pg_sequence_last_value(NULL)",
	"SELECT c.relname, pg_sequence_last_value(c.oid) FROM pg_class c WHERE relkind = 'S' ORDER BY 1, 2",
	"SELECT relname, coalesce(pg_sequence_last_value(oid), -1) + 1 FROM pg_class WHERE relkind = 'S' AND pg_sequence_last_value(oid) > 10 ORDER BY 1",
	"SELECT * FROM pg_sequence_last_value('s')",
	"SELECT * FROM pg_sequence_last_value('s') AS v",
	"SELECT * FROM pg_sequence_parameters('s'::regclass)",
	"SELECT p.*, c.relname FROM pg_class c, LATERAL pg_sequence_parameters(c.oid) p WHERE relkind = 'S' ORDER BY relname, 1",
	"SELECT pg_sequence_parameters.maximum_value, relname FROM pg_class c, pg_sequence_parameters(c.oid) WHERE relkind = 'S' ORDER BY relname, 1",
	"SELECT (pg_sequence_parameters('s'::regclass)).maximum_value",
	"SELECT relname, (pg_catalog.pg_sequence_parameters(oid)).* FROM pg_class WHERE relkind = 'S' ORDER BY 1, 2",
	"SELECT pg_sequence_parameters('s'::regclass)",
	"SELECT (pg_sequence_parameters('s'::regclass)).nosuch",
	"SELECT last_value, is_called FROM s",
	"SELECT s.*, 1 AS one FROM s",
	"SELECT public.s.last_value FROM public.s",
	"TABLE other.s",
	"SELECT ctid, s.tableoid::regclass, last_value FROM s",
	"SELECT x.last_value FROM ONLY s x",
	`SELECT last_value, is_called FROM other."it's ""Ü\"`,
	"WITH q AS (SELECT last_value FROM s) SELECT max(q.last_value), (SELECT last_value FROM fresh) FROM q",
	"WITH s AS (SELECT 1 AS last_value) SELECT last_value FROM s",
	"SELECT last_value FROM s UNION ALL SELECT last_value FROM other.s UNION ALL SELECT last_value FROM theirs ORDER BY 1",
	"SELECT pg_get_serial_sequence('t', 'id'), pg_get_serial_sequence('t', 'n'), 's'::regclass, to_regclass('other.s')",
	"SELECT nosuch FROM pg_sequences WHERE true",
	"SELECT max_value, nosuch FROM pg_sequences, s",
	"SELECT pg_sequence_last_value('nosuch')",
	"SELECT pg_sequence_last_value('t')",
	"SELECT 1 FROM pg_sequences WHERE schemaname = 'pub' || nosuch('x')",
	"EXPLAIN (COSTS OFF) SELECT 1 FROM s WHERE false",
	"PREPARE a AS SELECT last_value FROM s; EXECUTE a; DEALLOCATE a",
	"PREPARE b(text, int) AS SELECT $1, $2, sequencename, last_value FROM pg_sequences WHERE sequencename = $1 ORDER BY 1, 2, 3, 4",
	"BEGIN; DECLARE c CURSOR FOR SELECT last_value FROM s; FETCH c; COMMIT",
	"COPY (SELECT sequencename, last_value FROM pg_sequences ORDER BY 1, 2) TO STDOUT",
	"SELECT seqmax INTO TEMP kept FROM pg_sequence WHERE seqrelid = 's'::regclass; SELECT * FROM kept; DROP TABLE kept",
	"SELECT setval('theirs', (SELECT last_value FROM s)), 1; SELECT setval('theirs', 70)",
	"SELECT 'pg_sequences' AS pg_sequences -- of sequences",
	"SELECT max_value AS " + strings.Repeat("long", 20) + " FROM pg_sequences WHERE sequencename = 'fresh'", // a notice, once
	"CREATE VIEW w AS SELECT sequencename FROM pg_sequences; SELECT count(*) FROM w; DROP VIEW w",
}

// withoutTables leaves out of descriptions which table a column is of: FETCH, EXECUTE and Queries of several statements tell
// none where there is an overlay, which is the known difference.
func withoutTables(lines []string) []string {
	for i, line := range lines {
		if !strings.HasPrefix(line, "RowDescription ") {
			continue
		}
		for n := range 32 {
			line = strings.ReplaceAll(line, fmt.Sprintf("(1.%d type", n), "(0.0 type")
		}
		lines[i] = line
	}
	return lines
}

// fencedTwins are two databases of the same sequences. The first is reached directly; in the second, reached through a
// proxy, theStores are fenced.
func fencedTwins(t testing.TB) (direct, through string, f *fenced) {
	t.Helper()
	direct, behind := freshDatabase(t), freshDatabase(t)
	exec(t, direct, ofEveryKind...)
	exec(t, behind, ofEveryKind...)
	f = newFenced(t)
	f.fence(t, behind, theStores...)
	return direct, f.through(t, behind), f
}

func TestCatalogsTellTheTruth(t *testing.T) {
	t.Parallel()
	direct, through, _ := fencedTwins(t)
	for _, text := range catalogTexts {
		t.Run(text, func(t *testing.T) {
			mask := func(url string, lines []string) []string {
				lines = masked(url, lines)
				for i := range lines { // log_cnt of s may be any number
					lines[i] = strings.Replace(lines[i], `DataRow "300", "32"`, `DataRow "300", "0"`, 1)
				}
				if strings.Contains(text, ";") {
					return withoutTables(lines)
				}
				return lines
			}
			simple := conversation{send(query(text))}
			assert.Equal(t, mask(direct, converse(t, direct, simple)), mask(through, converse(t, through, simple)), "simple")
			extended := conversation{send(parse("", text), describeS(""), bind("", ""), describeP(""), execute("", 0), sync)}
			assert.Equal(t, mask(direct, converse(t, direct, extended)), mask(through, converse(t, through, extended)), "extended")
		})
	}
}

// TestPreparedTextsSeeCurrentValues: what PREPARE prepared and what Parse did, at each execution.
func TestPreparedTextsSeeCurrentValues(t *testing.T) {
	t.Parallel()
	direct, through, f := fencedTwins(t)
	c := conversation{}
	for _, text := range []string{
		"PREPARE b(text, int) AS SELECT $1, $2, sequencename, last_value FROM pg_sequences WHERE sequencename = $1 ORDER BY 1, 2, 3, 4",
		"PREPARE a AS SELECT last_value, pg_sequence_last_value('other.s') FROM s",
		"PREPARE a AS SELECT 1 FROM s", // exists
		"PREPARE n AS SELECT nosuch FROM s",
		"EXECUTE b('s', 1 + 1)", "EXECUTE a", "EXECUTE n",
		"SELECT setval('s', 350), setval('other.s', 8)",
		"EXECUTE b('s', (2))", "EXECUTE b('s')",
		"CREATE TEMP TABLE ctas AS EXECUTE a", "TABLE ctas", "EXECUTE a(1)",
		"PREPARE m AS SELECT last_value FROM s; EXECUTE m; DEALLOCATE m",
		"SELECT setval('s', 360, false)",
		"EXECUTE a",
	} {
		c = append(c, send(query(text)))
		if strings.HasPrefix(text, "EXECUTE") && text != "EXECUTE b('s')" {
			c = append(c, send(parse("", text), bind("", ""), execute("", 0), sync))
		}
	}
	c = append(c,
		send(bind("", "a"), describeP(""), execute("", 0), sync), // what SQL prepared, by the protocol
		send(bind("", "b", "s", "7"), execute("", 0), sync),
		send(query("DEALLOCATE a")),
		send(query("EXECUTE a")),
		send(parse("a", "SELECT last_value FROM pg_sequences WHERE sequencename = 'fresh'"), describeS("a"), sync),
		send(bind("", "a"), execute("", 0), sync),
		send(query("SELECT setval('fresh', 17)")),
		send(bind("", "a"), execute("", 0), sync),
		send(query("EXECUTE a")),
		send(parse("key", "SELECT seqmax FROM pg_sequence WHERE seqrelid = $1"), describeS("key"), sync),
		send(bind("", "key", "0"), execute("", 0), sync),
		send(parse("p", "PREPARE o AS SELECT last_value FROM other.s"), bind("", "p"), execute("", 0), sync),
		send(query("EXECUTE o")),
		send(bind("", "p"), execute("", 0), sync), // exists
		send(query("EXECUTE o"), query("DEALLOCATE ALL"), query("EXECUTE o")),
	)
	assert.Equal(t, withoutTables(converse(t, direct, c)), withoutTables(converse(t, through, c)))
	_ = f
}

// TestCatalogsCheckPrivileges: what a role may not see it does not see.
func TestCatalogsCheckPrivileges(t *testing.T) {
	t.Parallel()
	role, admin := "role_"+strings.ToLower(rand.Text()[:12]), environment(t, "NEXTVALD_TEST_UPSTREAM")
	exec(t, admin, "CREATE ROLE "+role)
	t.Cleanup(func() { exec(t, admin, "DROP ROLE "+role) })
	direct, through, _ := fencedTwins(t)
	texts := []string{
		"SELECT * FROM pg_sequences ORDER BY 1, 2",
		"SELECT * FROM information_schema.sequences ORDER BY 2, 3, sequence_catalog IS NULL",
		"SELECT pg_sequence_last_value('s')", "SELECT pg_sequence_last_value('fresh')", "SELECT pg_sequence_last_value('unlogged')",
		"SELECT pg_sequence_last_value(oid), relname FROM pg_class WHERE relname = 'unlogged'",
		"SELECT * FROM pg_sequence_parameters('s'::regclass)", "SELECT * FROM pg_sequence_parameters('unlogged'::regclass)",
		"SELECT last_value FROM s", "SELECT last_value FROM unlogged", "SELECT last_value FROM fresh", "TABLE other.s",
		"SELECT seqmax FROM pg_sequence WHERE seqrelid = (SELECT oid FROM pg_class WHERE relname = 'unlogged')",
		"BEGIN", "SELECT last_value FROM unlogged", "SELECT last_value FROM s", "ROLLBACK",
		"BEGIN READ ONLY; SAVEPOINT a", "SELECT nosuch FROM pg_sequences", "SELECT 1 FROM pg_sequences", "ROLLBACK TO a", "SELECT max_value FROM pg_sequences WHERE sequencename = 's' ORDER BY 1", "COMMIT",
	}
	for _, url := range []string{direct, through} {
		exec(t, url, "GRANT USAGE ON SEQUENCE s TO "+role)
	}
	simple, extended := conversation{send(query("SET ROLE " + role))}, conversation{send(query("SET ROLE " + role))}
	for _, text := range texts {
		simple = append(simple, send(query(text)))
		if strings.Contains(text, ";") {
			extended = append(extended, send(query(text)))
			continue
		}
		extended = append(extended, send(parse("", text), bind("", ""), describeP(""), execute("", 0), sync))
	}
	for _, c := range []conversation{simple, extended} {
		assert.Equal(t, masked(direct, converse(t, direct, c)), masked(through, converse(t, through, c)))
	}
}

// TestDump: what pg_dump writes through nextvald is what it writes of a database without nextvald, and restores elsewhere.
func TestDump(t *testing.T) {
	t.Parallel()
	direct, through, _ := fencedTwins(t)
	wanted := tool(t, "pg_dump", direct)
	require.Contains(t, wanted, "pg_catalog.setval('public.s', 300, true)")
	require.Equal(t, wanted, tool(t, "pg_dump", through))
	require.Equal(t, tool(t, "pg_dump", direct, "--schema-only", "--no-owner"), tool(t, "pg_dump", through, "--schema-only", "--no-owner"))

	elsewhere := freshDatabase(t)
	restore := osexec.Command("psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", elsewhere)
	restore.Stdin = strings.NewReader(tool(t, "pg_dump", through))
	out, err := restore.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, wanted, tool(t, "pg_dump", elsewhere))

	elsewhere = freshDatabase(t)
	file := filepath.Join(t.TempDir(), "dump")
	tool(t, "pg_dump", through, "-Fc", "-f", file)
	tool(t, "pg_restore", elsewhere, "--exit-on-error", file)
	require.Equal(t, wanted, tool(t, "pg_dump", elsewhere))
}

// tool runs a program of PostgreSQL on a database and returns its output, without what differs every time.
func tool(t *testing.T, program, url string, args ...string) string {
	t.Helper()
	out, err := osexec.Command(program, append([]string{"-d", url}, args...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	lines := slices.DeleteFunc(strings.Split(string(out), "\n"), func(line string) bool {
		return strings.HasPrefix(line, `\restrict`) || strings.HasPrefix(line, `\unrestrict`)
	})
	return strings.Join(lines, "\n")
}

// masked is a conversation without the name of the database.
func masked(url string, lines []string) []string {
	name := url[strings.LastIndex(url, "/")+1:]
	name, _, _ = strings.Cut(name, "?")
	for i := range lines {
		lines[i] = strings.ReplaceAll(lines[i], name, "database")
	}
	return lines
}

// TestPsqlShowsSequences: \d, \ds and \d+ of psql.
func TestPsqlShowsSequences(t *testing.T) {
	t.Parallel()
	direct, through, _ := fencedTwins(t)
	for _, command := range []string{`\d s`, `\d+ other.s`, `\ds`, `\ds+ other.*`, `\d t`, `\d`, `\dp s`, "SELECT last_value FROM s", `SELECT * FROM pg_sequences \gdesc`} {
		file := filepath.Join(t.TempDir(), "commands")
		require.NoError(t, os.WriteFile(file, []byte(command+"\n"), 0o600))
		require.Equal(t, tool(t, "psql", direct, "-X", "-f", file), tool(t, "psql", through, "-X", "-f", file), command)
	}
}

// TestVirtualInCatalogs: a sequence that the upstream does not have is in the catalogs that tell of sequences alone.
func TestVirtualInCatalogs(t *testing.T) {
	t.Parallel()
	direct, through := twins(t)
	setup := []string{
		"CREATE SEQUENCE s INCREMENT 10 START 100 MINVALUE 5 MAXVALUE 5000 CYCLE", "CREATE SCHEMA other", `CREATE SEQUENCE other."Ü""'\" AS smallint`,
		"CREATE TABLE t (id serial)", "SELECT nextval('s'), nextval('s')", "CREATE SEQUENCE gone", "DROP SEQUENCE gone",
	}
	c := conversation{}
	for _, text := range setup {
		c = append(c, send(query(text)))
	}
	for _, text := range []string{
		"SELECT * FROM pg_sequences ORDER BY 1, 2",
		"SELECT * FROM information_schema.sequences ORDER BY 2, 3",
		"SELECT seqtypid, seqstart, seqincrement, seqmax, seqmin, seqcache, seqcycle FROM pg_sequence WHERE seqrelid = 's'::regclass",
		"SELECT seqtypid, seqstart FROM pg_sequence ORDER BY 1, 2",
		"SELECT count(*), count(seqrelid) FROM pg_sequence",
		"SELECT pg_sequence_last_value('s')", "SELECT pg_sequence_last_value('other.\"Ü\"\"''\\\"')",
		"SELECT * FROM pg_sequence_parameters('s'::regclass)",
		"BEGIN", "SELECT last_value FROM pg_sequences WHERE sequencename = 's'", "ROLLBACK",
		"SELECT public.s.last_value FROM public.s",
		"SELECT setval('s', (SELECT last_value + 5 FROM s))", "SELECT setval('s', (SELECT last_value + 5 FROM pg_sequences WHERE sequencename = 's'))",
	} {
		c = append(c, send(query(text)))
		if !strings.HasPrefix(text, "SELECT setval") {
			c = append(c, send(parse("", text), bind("", ""), execute("", 0), sync))
		}
	}
	assert.Equal(t, masked(direct, withoutTables(converse(t, direct, c))), masked(through, withoutTables(converse(t, through, c))))
}

// TestSequenceData: the function by which pg_dump reads positions since PostgreSQL 18, here one of the same name.
func TestSequenceData(t *testing.T) {
	t.Parallel()
	direct, through, _ := fencedTwins(t)
	c := conversation{
		send(query(`CREATE FUNCTION pg_catalog.pg_get_sequence_data(sequence_oid regclass, OUT last_value bigint, OUT is_called bool)
			LANGUAGE plpgsql STRICT AS $$BEGIN EXECUTE 'SELECT last_value, is_called FROM ' || sequence_oid INTO last_value, is_called; END$$`)),
	}
	for _, text := range []string{
		`SELECT seqrelid::regclass, format_type(seqtypid, NULL), seqstart, seqincrement, seqmax, seqmin, seqcache, seqcycle, last_value, is_called
			FROM pg_catalog.pg_sequence, pg_get_sequence_data(seqrelid) ORDER BY seqrelid`,
		"SELECT * FROM pg_get_sequence_data('s') AS d(a, b)",
	} {
		c = append(c, send(query(text)), send(parse("", text), bind("", ""), describeP(""), execute("", 0), sync))
	}
	assert.Equal(t, converse(t, direct, c), converse(t, through, c))
}
