package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
)

// nativeSequences are the sequences of TestNativeSequences: one of the upstream, one of the store, one that is handed over
// between them all the time, and one that only a column default and long transactions draw from.
const (
	theirs = "theirs"
	ours   = "ours"
	given  = "given"
	owned  = "orders_id_seq"
)

// A draw is a way to get a value of a sequence.
type draw struct {
	name string
	sql  string // $s is the sequence
	of   []string
	// hold: inside a transaction that stays open for a while after.
	hold bool
	// direct: by a connection past nextvald too.
	direct bool
}

// What the upstream draws by itself comes with a row, so that it is on disk before the answer: in a crash PostgreSQL may forget
// values that it drew within what an open transaction had logged.
var draws = []draw{
	{name: "nextval", sql: "SELECT nextval('$s')", of: []string{theirs, ours, given, theirs, ours}},
	{name: "nextval twice", sql: "SELECT unnest(ARRAY[nextval('$s'), nextval('$s')])", of: []string{theirs, ours, given}},
	{name: "function", sql: "INSERT INTO $s_kept SELECT drawn('$s') RETURNING id", of: []string{theirs, ours, given}, direct: true},
	{name: "rows", sql: "INSERT INTO $s_kept SELECT nextval('$s') FROM generate_series(1, 7) RETURNING id", of: []string{theirs, given}, direct: true},
	{name: "trigger", sql: "INSERT INTO $s_log DEFAULT VALUES RETURNING id", of: []string{theirs, ours, given}, direct: true},
	{name: "default", sql: "INSERT INTO orders DEFAULT VALUES RETURNING id", of: []string{owned}, direct: true},
	{name: "long transaction", sql: "INSERT INTO $s_log DEFAULT VALUES RETURNING id", of: []string{theirs, ours, given}, hold: true, direct: true},
	{name: "insert", sql: "INSERT INTO orders VALUES (nextval('$s')) RETURNING id", of: []string{owned}},
}

// Two processes, connections past them, triggers, functions, column defaults, calls for each row and long transactions draw
// from the same sequences, while processes are killed, the upstream crashes, and sequences are handed over between the
// upstream and the store: no value comes twice, and all goes on by itself.
func TestNativeSequences(t *testing.T) {
	t.Parallel()
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	server := testenv.Postgres(t)
	store := testenv.Table(t)
	n := &natives{server: server, seen: map[string]map[int64]string{}}
	testenv.Exec(t, server.URL(),
		"CREATE FUNCTION drawn(regclass) RETURNS bigint LANGUAGE plpgsql AS 'BEGIN RETURN nextval($1); END'",
		"CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.id := nextval(TG_ARGV[0]::regclass); RETURN NEW; END'",
		"CREATE SEQUENCE "+theirs, "CREATE TABLE orders (id bigserial PRIMARY KEY)")
	n.fleet = newFleet(t, 2, server.URL(), func(_ int, listen string) (*testenv.Process, error) {
		return testenv.Command{Args: []string{
			"--upstream", server.URL(), "--store", store, "--listen", listen, "--upstream-sequences", "mirrored",
			"--max-offline", maxOffline.String(), "--store-timeout", storeTimeout.String(),
		}}.TryStart(t)
	})
	p, _ := n.fleet.at(0)
	create(t, p.URL(server.URL()), "CREATE SEQUENCE "+ours, "CREATE SEQUENCE "+given)
	for _, s := range []string{theirs, ours, given} {
		testenv.Exec(t, server.URL(), "CREATE TABLE "+s+"_log (id bigint)", "CREATE TABLE "+s+"_kept (id bigint)",
			"CREATE TRIGGER fill BEFORE INSERT ON "+s+"_log FOR EACH ROW EXECUTE FUNCTION fill('"+s+"')")
	}

	ctx, finish := context.WithTimeout(context.Background(), min(*duration, round))
	defer finish()
	var running sync.WaitGroup
	for place := range 3 {
		for range clients {
			own := rand.New(rand.NewPCG(rng.Uint64(), 0))
			running.Go(func() { n.client(ctx, place, own) })
		}
	}
	hot := rand.New(rand.NewPCG(rng.Uint64(), 0))
	running.Go(func() { n.hot(ctx, hot) })
	handing := rand.New(rand.NewPCG(rng.Uint64(), 0))
	running.Go(func() { n.handOver(ctx, handing) })
	for sleep(ctx, time.Duration(1000+rng.IntN(3000))*time.Millisecond) {
		switch rng.IntN(3) {
		case 0, 1:
			i := rng.IntN(2)
			n.fleet.kill(i)
			n.did.add("kills")
			sleep(ctx, time.Duration(rng.IntN(500))*time.Millisecond)
			eventually(t, "start again", func() error { _, err := n.fleet.revive(i); return err })
		case 2:
			server.Stop(syscall.SIGQUIT)
			n.did.add("crashes of the upstream")
			sleep(ctx, time.Duration(rng.IntN(500))*time.Millisecond)
			server.Start()
		}
	}
	running.Wait()
	n.recovers(t)
	t.Logf("trouble: %s", &n.did)
	t.Logf("answers: %s", &n.got)
	for _, wrong := range n.wrong {
		t.Error(wrong)
	}
	for _, s := range []string{theirs, ours, given, owned} {
		require.Greater(t, len(n.seen[s]), 100, "too few values of %s to tell", s)
	}
}

// natives is what the clients of TestNativeSequences got.
type natives struct {
	fleet    *fleet
	server   *testenv.Server
	did, got tally

	mu    sync.Mutex
	seen  map[string]map[int64]string // by sequence and value: how it came
	wrong []string
}

// came notes a value.
func (n *natives) came(sequence, how string, values ...int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.seen[sequence] == nil {
		n.seen[sequence] = map[int64]string{}
	}
	for _, v := range values {
		if before, twice := n.seen[sequence][v]; twice && len(n.wrong) < 20 {
			n.wrong = append(n.wrong, fmt.Sprintf("%s gave %d twice: by %s, then by %s", sequence, v, before, how))
		}
		n.seen[sequence][v] = how
	}
}

// connect opens a session at a place: with a process, or past them.
func (n *natives) connect(ctx context.Context, place int) (*pgx.Conn, error) {
	if place < len(n.fleet.members) {
		conn, _, err := n.fleet.connect(ctx, place)
		return conn, err
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	return pgx.Connect(ctx, n.server.URL())
}

// hangUp closes a session whose other end may be gone.
func hangUp(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	_ = conn.Close(ctx)
}

// client draws in every way.
func (n *natives) client(ctx context.Context, place int, rng *rand.Rand) {
	for ctx.Err() == nil {
		conn, err := n.connect(ctx, place)
		if err != nil {
			sleep(ctx, 50*time.Millisecond)
			continue
		}
		for !conn.IsClosed() && sleep(ctx, time.Duration(rng.IntN(15))*time.Millisecond) {
			d := draws[rng.IntN(len(draws))]
			if place == len(n.fleet.members) && !d.direct {
				continue
			}
			sequence := d.of[rng.IntN(len(d.of))]
			var held time.Duration
			if d.hold {
				held = time.Duration(rng.IntN(200)) * time.Millisecond
			}
			values, err := n.draw(conn, strings.ReplaceAll(d.sql, "$s", sequence), held, rng.IntN(2) == 0)
			n.note(sequence, d.name, err)
			if err == nil {
				n.came(sequence, fmt.Sprintf("%s at %d", d.name, place), values...)
			}
		}
		hangUp(conn)
	}
}

// draw runs a statement, in a transaction of its own that it holds open for a while where that is asked for.
func (n *natives) draw(conn *pgx.Conn, sql string, held time.Duration, simple bool) (values []int64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	mode := pgx.QueryExecModeCacheStatement
	if simple {
		mode = pgx.QueryExecModeSimpleProtocol
	}
	if held > 0 {
		if _, err := conn.Exec(ctx, "BEGIN"); err != nil {
			return nil, err
		}
	}
	rows, err := conn.Query(ctx, sql, mode)
	if err == nil {
		values, err = pgx.CollectRows(rows, pgx.RowTo[int64])
	}
	if held > 0 && !conn.IsClosed() {
		sleep(ctx, held)
		_, end := conn.Exec(ctx, "COMMIT")
		err = errors.Join(err, end)
	}
	return values, err
}

// note counts how a statement ended, and keeps what no client should see.
func (n *natives) note(sequence, how string, err error) {
	code := ""
	if err == nil {
		n.got.add("answers by " + how)
		return
	}
	for _, expected := range []string{
		"57P01", "57P02", "57P03", "08006", "58030", // servers and stores that come and go
		"40P01", "55P03", // locks of a hand-over
		"55000", // one hand-over after the other
		"2200H", // a fence is used up before it is fed
		"25P02",
	} {
		if is(err, expected) {
			code = expected
		}
	}
	var answer *pgconn.PgError
	switch {
	case code == "2200H" && sequence != ours && sequence != given, code == "55000" && sequence != given,
		code == "" && errors.As(err, &answer):
		n.mu.Lock()
		defer n.mu.Unlock()
		if len(n.wrong) < 20 {
			n.wrong = append(n.wrong, fmt.Sprintf("%s by %s: %v", sequence, how, err))
		}
	case code == "":
		n.got.add("connections cut off")
	default:
		n.got.add(code)
	}
}

// hot makes a sequence of the upstream worth caching, by one session after the other.
func (n *natives) hot(ctx context.Context, rng *rand.Rand) {
	for ctx.Err() == nil {
		conn, err := n.connect(ctx, rng.IntN(2))
		if err != nil {
			sleep(ctx, 50*time.Millisecond)
			continue
		}
		until := time.Now().Add(time.Duration(rng.IntN(3000)) * time.Millisecond)
		for !conn.IsClosed() && ctx.Err() == nil && time.Now().Before(until) {
			values, err := n.draw(conn, "SELECT nextval('"+theirs+"')", 0, true)
			n.note(theirs, "hot nextval", err)
			if err == nil {
				n.came(theirs, "hot nextval", values...)
			}
		}
		hangUp(conn)
	}
}

// handOver moves a sequence between the upstream and the store.
func (n *natives) handOver(ctx context.Context, rng *rand.Rand) {
	for i := 0; sleep(ctx, time.Duration(rng.IntN(1500))*time.Millisecond); i++ {
		conn, err := n.connect(ctx, rng.IntN(2))
		if err != nil {
			continue
		}
		source := []string{"store", "upstream"}[i%2]
		_, err = n.draw(conn, "ALTER SEQUENCE "+given+" SET (nextvald.source = "+source+")", 0, true)
		n.note(given, "hand-over to the "+source, err)
		hangUp(conn)
	}
}

// recovers waits until every way works at every place.
func (n *natives) recovers(t *testing.T) {
	ctx := t.Context()
	for place := range 3 {
		for _, d := range draws {
			if place == len(n.fleet.members) && !d.direct {
				continue
			}
			for _, sequence := range d.of {
				eventually(t, fmt.Sprintf("%s of %s at %d", d.name, sequence, place), func() error {
					conn, err := n.connect(ctx, place)
					if err != nil {
						return err
					}
					defer func() { _ = conn.Close(ctx) }()
					values, err := n.draw(conn, strings.ReplaceAll(d.sql, "$s", sequence), 0, true)
					if err == nil {
						n.came(sequence, d.name+" at the end", values...)
					}
					return err
				})
			}
		}
	}
}
