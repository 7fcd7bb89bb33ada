package integration

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	gosync "sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/nextvald/nextvald/integration/history"
	"github.com/nextvald/nextvald/integration/testenv"
)

// fleet is some processes on one store, any of which may be killed and started again while clients draw from it.
type fleet struct {
	start func(listen string) *testenv.Process
	begin time.Time

	// Held while a process is killed and started again.
	change    gosync.RWMutex
	processes []*testenv.Process
	current   []int // the life that each process is in
	leases    int   // of lives that ended

	mu    gosync.Mutex
	lives [][]history.Draw // of each life of a process
}

func newFleet(n int, start func(listen string) *testenv.Process) *fleet {
	f := &fleet{start: start, begin: time.Now()}
	for i := range n {
		f.processes = append(f.processes, start("127.0.0.1:0"))
		f.lives = append(f.lives, nil)
		f.current = append(f.current, i)
	}
	return f
}

// at returns a process and the life that it is in.
func (f *fleet) at(i int) (*testenv.Process, int) {
	f.change.RLock()
	defer f.change.RUnlock()
	return f.processes[i], f.current[i]
}

func (f *fleet) record(life int, d history.Draw) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lives[life] = append(f.lives[life], d)
}

var errRestarted = errors.New("the process was started again meanwhile")

var leasesMetric = regexp.MustCompile(`(?m)^nextvald_leases_total (\d+)$`)

func leases(t *testing.T, p *testenv.Process) int {
	t.Helper()
	_, body := get(t, p, "/metrics")
	n, err := strconv.Atoi(leasesMetric.FindStringSubmatch(body)[1])
	require.NoError(t, err)
	return n
}

// crash kills a process in the midst of its work and starts it again where clients know it.
func (f *fleet) crash(t *testing.T, i int) {
	f.change.Lock()
	defer f.change.Unlock()
	p := f.processes[i]
	f.leases += leases(t, p)
	p.Kill()
	f.processes[i] = f.start(p.Address)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.current[i] = len(f.lives)
	f.lives = append(f.lives, nil)
}

// A million values of one sequence through 64 sessions on three processes, of which one is killed half way and started
// again: no value twice, and each process hands out increasing ones.
func TestMillionValuesAcrossACrash(t *testing.T) {
	const (
		processes = 3
		sessions  = 64
		want      = 1_000_000
		batch     = 50
		increment = 7
	)
	store := testenv.Table(t)
	database := testenv.Database(t)
	f := newFleet(processes, func(listen string) *testenv.Process {
		return testenv.Start(t, "--upstream", database, "--store", store, "--listen", listen)
	})
	first, _ := f.at(0)
	testenv.Exec(t, first.URL(database), fmt.Sprintf("CREATE SEQUENCE s INCREMENT %d", increment))

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	var drawn atomic.Int64
	half := make(chan struct{})
	var once gosync.Once
	group, ctx := errgroup.WithContext(ctx)
	for n := range sessions {
		group.Go(func() error {
			// Every other session sends one call at a time, the rest send pipelines.
			size := 1
			if n%2 == 0 {
				size = batch
			}
			for drawn.Load() < want {
				err := f.session(ctx, n%processes, database, size, func(got int) bool {
					if drawn.Add(int64(got)) >= want/2 {
						once.Do(func() { close(half) })
					}
					return drawn.Load() < want
				})
				if err == nil || ctx.Err() != nil {
					return ctx.Err()
				}
				// Only a crash ends a session, and only one process crashes.
				if n%processes != 1 {
					return err
				}
			}
			return nil
		})
	}
	select {
	case <-half:
		f.crash(t, 1)
	case <-ctx.Done():
	}
	require.NoError(t, group.Wait())

	total := f.leases
	for i := range processes {
		p, _ := f.at(i)
		total += leases(t, p)
		p.Stop()
	}
	require.NotEmpty(t, f.lives[1], "the process was killed before it handed out anything")
	require.NotEmpty(t, f.lives[processes], "nobody used the process that was started again")
	for life, draws := range f.lives {
		require.NoError(t, history.Ordered(draws), "life %d", life)
	}
	draws := slices.Concat(f.lives...)
	require.NoError(t, history.Unique(draws))
	all := history.Values(draws)
	span := (all[len(all)-1]-all[0])/increment + 1
	t.Logf("%d values of %d sessions in %v, %d leases, %d gaps", len(all), sessions, time.Since(f.begin).Round(time.Millisecond),
		total, span-int64(len(all)))
}

// session draws values on one connection until more says that it is enough. What was received before an error counts.
func (f *fleet) session(ctx context.Context, process int, database string, size int, more func(got int) bool) error {
	p, life := f.at(process)
	conn, err := pgx.Connect(ctx, p.URL(database))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if _, now := f.at(process); now != life {
		return errRestarted // which of its lives the session is in is not known
	}
	for {
		d := history.Draw{Begin: time.Since(f.begin)}
		batch := &pgx.Batch{}
		for range size {
			batch.Queue("SELECT nextval('s')")
		}
		results := conn.SendBatch(ctx, batch)
		for range size {
			var v int64
			if err = results.QueryRow().Scan(&v); err != nil {
				break
			}
			d.Values = append(d.Values, v)
		}
		err = errors.Join(err, results.Close())
		d.End = time.Since(f.begin)
		f.record(life, d)
		if err != nil {
			more(len(d.Values))
			return err
		}
		if !more(len(d.Values)) {
			return nil
		}
	}
}
