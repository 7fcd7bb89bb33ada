package faults

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/history"
	"github.com/nextvald/nextvald/integration/testenv"
)

var (
	seedFlag = flag.Uint64("seed", 0, "seed of the random faults (0: another one each time)")
	duration = flag.Duration("duration", 35*time.Second, "how long to run, in rounds of a minute at most")
)

const (
	processes    = 3
	clients      = 5 // of each process
	maxOffline   = 10 * time.Second
	storeTimeout = 2 * time.Second
	round        = time.Minute
	// patience is how long an answer may take: a process may be stopped for as long as nobody waits for its word any more.
	patience = 3*maxOffline + 15*time.Second
)

// Everything fails at random, and clients draw from a cached sequence, from a strict one and from one that is moved about:
// no value comes twice, every process hands out growing values, strict ones come in the order of the calls and leave out
// none without a reason, and no value of an old version comes after a change. Errors are those that a client expects, and
// when the faults end all is well without help.
func TestFaults(t *testing.T) {
	t.Parallel()
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	w := newWorld(t, rng)
	end := time.Now().Add(*duration)
	for n := 1; ; n++ {
		left := time.Until(end)
		w.round(t, n, min(left, round), rng)
		if time.Until(end) < round/4 || t.Failed() {
			break
		}
	}
	for i := range processes {
		p, _ := w.fleet.at(i)
		p.Stop()
	}
}

// world is what outlives a round: processes, their gates, and the store.
type world struct {
	fleet  *fleet
	gates  []*gate
	ledger *ledger
	store  *testenv.DynamoDB
	did    tally // what went wrong, on purpose
}

// tally counts by what.
type tally struct {
	mu     sync.Mutex
	counts map[string]int
}

func (c *tally) add(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[string]int{}
	}
	c.counts[what]++
}

func (c *tally) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []string
	for _, what := range slices.Sorted(maps.Keys(c.counts)) {
		all = append(all, fmt.Sprintf("%d %s", c.counts[what], what))
	}
	return strings.Join(all, ", ")
}

func newWorld(t *testing.T, rng *rand.Rand) *world {
	w := &world{ledger: &ledger{}, store: testenv.StartDynamoDB(t)}
	for range processes {
		w.gates = append(w.gates, newGate(t, w.store.URL, w.ledger, rand.New(rand.NewPCG(rng.Uint64(), 0))))
	}
	database := testenv.Database(t)
	w.fleet = newFleet(t, processes, database, func(i int, listen string) (*testenv.Process, error) {
		return testenv.Command{Args: []string{
			"--upstream", database, "--store", testenv.TableAt("faults", w.gates[i].server.URL), "--listen", listen,
			"--max-offline", maxOffline.String(), "--store-timeout", storeTimeout.String(),
		}}.TryStart(t)
	})
	for i := range processes {
		w.gates[i].lives(i)
	}
	return w
}

// round runs clients and faults for a while, and judges what the clients got.
func (w *world) round(t *testing.T, number int, d time.Duration, rng *rand.Rand) {
	began := time.Now()
	r := newWorkload(t, w, number)
	faulty, calm := context.WithTimeout(context.Background(), d)
	defer calm()
	ctx, finish := context.WithCancel(context.Background())
	defer finish()
	var clientsDone, faultsDone sync.WaitGroup
	for i := range processes * clients {
		own := rand.New(rand.NewPCG(rng.Uint64(), 0))
		sequences := []string{r.cached, r.cached, r.strict, r.moved}
		if i < 2*processes {
			sequences = sequences[:1] // whoever does not wait for the store much
		} else if i < 3*processes {
			sequences = sequences[2:3]
		}
		clientsDone.Go(func() { r.client(ctx, i%processes, sequences, own) })
	}
	authors := rand.New(rand.NewPCG(rng.Uint64(), 0))
	clientsDone.Go(func() { r.author(ctx, authors) })
	for i := range processes {
		own := rand.New(rand.NewPCG(rng.Uint64(), 0))
		// In turn a process is away for so long that nobody waits for it.
		suspended := i == number%processes
		faultsDone.Go(func() { w.trouble(t, faulty, i, suspended, own) })
	}
	outages := rand.New(rand.NewPCG(rng.Uint64(), 0))
	faultsDone.Go(func() { w.outages(t, faulty, outages) })
	faultsDone.Go(func() {
		for sleep(faulty, 10*time.Second) {
			t.Logf("round %d, %v: %s; clients: %v", number, time.Since(began).Round(time.Second), &w.did, &r.got)
		}
	})
	faultsDone.Wait()
	calmed := time.Now()
	r.recovers(t, "does not recover")
	before := r.changes.made()
	eventually(t, "no change succeeds", func() error {
		if r.changes.made() > before {
			return nil
		}
		return fmt.Errorf("none since: %w", r.changes.failure())
	})
	t.Logf("round %d: everything works again %v after the faults", number, time.Since(calmed).Round(time.Millisecond))
	finish()
	clientsDone.Wait()
	r.judge(t)
}

// trouble makes things go wrong for one process, one thing after the other.
func (w *world) trouble(t *testing.T, ctx context.Context, i int, suspended bool, rng *rand.Rand) {
	gate := w.gates[i]
	upTo := func(d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d))) }
	if suspended && sleep(ctx, upTo(5*time.Second)) {
		w.did.add("suspensions for longer than others wait")
		w.fleet.pause(ctx, i, 2*maxOffline+3*time.Second)
	}
	for sleep(ctx, upTo(8*time.Second)) {
		switch rng.IntN(10) {
		case 0:
			w.did.add("kills")
			w.fleet.kill(i)
			sleep(ctx, upTo(2*time.Second))
			w.revive(t, i)
		case 1:
			w.did.add("stops")
			w.fleet.pause(ctx, i, upTo(4*time.Second))
		case 2, 3:
			w.did.add("broken networks")
			gate.turn(broken)
			sleep(ctx, upTo(4*time.Second))
			gate.turn(open)
		case 4, 5:
			w.did.add("silent networks")
			gate.turn(silent)
			sleep(ctx, upTo(6*time.Second))
			gate.turn(open)
		default:
			w.did.add("bad networks")
			gate.spoil(5 + rng.IntN(40))
			sleep(ctx, upTo(6*time.Second))
			gate.spoil(0)
		}
	}
}

// revive starts a process again, which needs the store.
func (w *world) revive(t *testing.T, i int) {
	for range 20 {
		life, err := w.fleet.revive(i)
		w.gates[i].lives(life)
		if err == nil {
			return
		}
		time.Sleep(500 * time.Millisecond)
	}
	t.Errorf("process %d does not start any more", i)
}

// outages kills the store again and again, which comes back with what it had.
func (w *world) outages(t *testing.T, ctx context.Context, rng *rand.Rand) {
	for sleep(ctx, 4*time.Second+time.Duration(rng.Int64N(int64(8*time.Second)))) {
		w.did.add("kills of the store")
		w.store.Kill()
		sleep(ctx, time.Duration(rng.Int64N(int64(4*time.Second))))
		if err := w.store.Start(); err != nil {
			t.Error(err)
			return
		}
	}
}

// eventually tries until there is no error.
func eventually(t *testing.T, what string, try func() error) {
	t.Helper()
	end := time.Now().Add(2 * patience)
	for err := try(); err != nil; err = try() {
		if time.Now().After(end) {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// create runs statements before the faults begin. A store that has just started, on a disk that others use too, may be too
// slow at first.
func create(t *testing.T, url string, statements ...string) {
	t.Helper()
	ctx := t.Context()
	for _, sql := range statements {
		eventually(t, sql, func() error {
			conn, err := pgx.Connect(ctx, url)
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close(ctx) }()
			if _, err = conn.Exec(ctx, sql); is(err, "42P07") { // the answer of the last try was lost
				return nil
			}
			return err
		})
	}
}

// workload is what the clients of a round do, and what they got.
type workload struct {
	world                 *world
	cached, strict, moved string // sequences
	record                record
	got                   tally
	failed                atomic.Int64 // strict values that were asked for and did not come
	changes               changes

	mu    sync.Mutex
	wrong []string // what no client should see
}

func newWorkload(t *testing.T, w *world, number int) *workload {
	r := &workload{world: w}
	r.cached, r.strict, r.moved = fmt.Sprint("cached_", number), fmt.Sprint("strict_", number), fmt.Sprint("moved_", number)
	p, _ := w.fleet.at(0)
	create(t, p.URL(w.fleet.database),
		"CREATE SEQUENCE "+r.cached, "CREATE SEQUENCE "+r.strict+" CACHE 1", "CREATE SEQUENCE "+r.moved)
	r.recovers(t, "does not know the sequences")
	return r
}

// client draws values by sessions with one process.
func (r *workload) client(ctx context.Context, i int, sequences []string, rng *rand.Rand) {
	f := r.world.fleet
	for ctx.Err() == nil {
		conn, life, err := f.connect(ctx, i)
		if err != nil {
			r.refused(ctx, life, err)
			sleep(ctx, 50*time.Millisecond)
			continue
		}
		for !conn.IsClosed() && sleep(ctx, time.Duration(rng.IntN(25))*time.Millisecond) {
			sequence := sequences[rng.IntN(len(sequences))]
			way, n, limit := rng.IntN(ways), 1+rng.IntN(10), patience
			if rng.IntN(100) < 3 {
				limit = time.Duration(rng.IntN(30)) * time.Millisecond // who gives up
			}
			switch way {
			case extended, simple:
				n = 1
			case several:
				n = 2
			}
			asking, cancel := context.WithTimeout(ctx, limit)
			d := history.Draw{Begin: f.since()}
			d.Values, err = ask(asking, conn, sequence, way, n)
			d.End = f.since()
			cancel()
			r.record.add(sequence, life, d)
			if missing := n - len(d.Values); missing > 0 && sequence == r.strict {
				r.failed.Add(int64(missing))
			}
			r.note(ctx, life, sequence, limit, err)
		}
		_ = conn.Close(context.Background())
	}
}

// recovers waits until sessions with all processes get values of all sequences.
func (r *workload) recovers(t *testing.T, what string) {
	f := r.world.fleet
	works := func(i int) error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		conn, life, err := f.connect(ctx, i)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close(ctx) }()
		for _, sequence := range []string{r.cached, r.strict, r.moved} {
			d := history.Draw{Begin: f.since()}
			d.Values, err = ask(ctx, conn, sequence, extended, 1)
			d.End = f.since()
			r.record.add(sequence, life, d)
			if err != nil {
				if sequence == r.strict {
					r.failed.Add(1)
				}
				return fmt.Errorf("%s: %w (the last change that failed: %v)", sequence, err, r.changes.failure())
			}
		}
		return nil
	}
	for i := range processes {
		eventually(t, fmt.Sprintf("process %d %s", i, what), func() error { return works(i) })
	}
}

// judge checks what the clients got.
func (r *workload) judge(t *testing.T) {
	t.Logf("clients: %v", &r.got)
	for _, text := range r.wrong {
		t.Error(text)
	}
	for _, sequence := range []string{r.cached, r.strict, r.moved} {
		if err := history.Unique(r.record.all(sequence)); err != nil {
			t.Errorf("%s: %v", sequence, err)
		}
	}
	for life, draws := range r.record.lives(r.cached) {
		if err := history.Ordered(draws); err != nil {
			t.Errorf("%s, life %d: %v", r.cached, life, err)
		}
	}
	strict := r.record.all(r.strict)
	for _, check := range []func([]history.Draw) error{history.Ordered, history.Linearizable} {
		if err := check(strict); err != nil {
			t.Errorf("%s: %v", r.strict, err)
		}
	}
	r.judgeGaps(t)
	r.judgeChanges(t)
	cached := history.Values(r.record.all(r.cached))
	t.Logf("%s: %d values, %d lost", r.cached, len(cached), len(history.Missing(r.record.all(r.cached), 1)))
	require.Greater(t, len(cached), 200, "or the test shows nothing")
	require.Greater(t, len(strict), 30, "or the test shows nothing")
}

// judgeGaps looks for the reason of every value of the strict sequence that nobody got.
func (r *workload) judgeGaps(t *testing.T) {
	l, f := r.world.ledger, r.world.fleet
	var unknown int64 // values of leases of which nobody knows whether they took place
	var made []lease
	for _, lease := range l.of(l.itemOf(r.strict)) {
		if lease.pos == 0 && !lease.refused {
			unknown += lease.ahead
		} else if !lease.refused {
			made = append(made, lease)
		}
	}
	var lost, killed, unexplained, given int64
	missing := history.Missing(r.record.all(r.strict), 1)
	for _, v := range missing {
		at := slices.IndexFunc(made, func(l lease) bool { return l.pos-l.ahead <= v && v < l.pos })
		switch {
		case at < 0:
			unexplained++
		case !made[at].heard, made[at].ended.Sub(made[at].sent) > storeTimeout/2, !f.running(made[at].life, made[at].sent, made[at].ended):
			lost++
		case f.over(made[at].life):
			killed++
		default:
			given++
		}
	}
	t.Logf("%s: %d values, %d lost: %d in answers that were lost, %d in processes that were killed, %d whose callers gave up, %d in outages",
		r.strict, len(history.Values(r.record.all(r.strict))), len(missing), lost, killed, given, unexplained)
	if unexplained > unknown {
		t.Errorf("%s: %d values are missing that no answer was lost for, with %d at most lost in outages", r.strict, unexplained, unknown)
	}
	if failed := r.failed.Load(); given > failed {
		t.Errorf("%s: %d values are missing whose leases were answered, and %d callers did not get one", r.strict, given, failed)
	}
}
