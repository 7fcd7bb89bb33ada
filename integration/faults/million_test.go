package faults

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/nextvald/nextvald/integration/history"
	"github.com/nextvald/nextvald/integration/testenv"
)

// A million values of one sequence through 64 sessions on three processes, of which one is killed half way and started
// again: no value twice, and each process hands out increasing ones.
func TestMillionValuesAcrossACrash(t *testing.T) {
	const (
		processes = 3
		sessions  = 64
		want      = 1_000_000
		batch     = 50
		increment = 7
		sequence  = "s"
	)
	store := testenv.Table(t)
	database := testenv.Database(t)
	f := newFleet(t, processes, database, func(_ int, listen string) (*testenv.Process, error) {
		return testenv.Command{Args: []string{"--upstream", database, "--store", store, "--listen", listen}}.TryStart(t)
	})
	first, _ := f.at(0)
	testenv.Exec(t, first.URL(database), fmt.Sprintf("CREATE SEQUENCE s INCREMENT %d", increment))

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	r := record{}
	var drawn atomic.Int64
	half := make(chan struct{})
	var once sync.Once
	group, ctx := errgroup.WithContext(ctx)
	for n := range sessions {
		group.Go(func() error {
			// Every other session sends one call at a time, the rest send pipelines.
			way, size := extended, 1
			if n%2 == 0 {
				way, size = pipeline, batch
			}
			for drawn.Load() < want {
				err := func() error {
					conn, life, err := f.connect(ctx, n%processes)
					if err != nil {
						return err
					}
					defer func() { _ = conn.Close(context.Background()) }()
					for drawn.Load() < want {
						d := history.Draw{Begin: f.since()}
						d.Values, err = ask(ctx, conn, sequence, way, size)
						d.End = f.since()
						r.add(sequence, life, d)
						if drawn.Add(int64(len(d.Values))) >= want/2 {
							once.Do(func() { close(half) })
						}
						if err != nil {
							return err
						}
					}
					return nil
				}()
				// Only a crash ends a session, and only one process crashes.
				if err != nil && (n%processes != 1 || ctx.Err() != nil) {
					return err
				}
			}
			return nil
		})
	}
	leases := 0
	select {
	case <-half:
		killed, _ := f.at(1)
		leases += int(killed.Metric("nextvald_leases_total"))
		f.kill(1)
		_, err := f.revive(1)
		require.NoError(t, err)
	case <-ctx.Done():
	}
	require.NoError(t, group.Wait())

	for i := range processes {
		p, _ := f.at(i)
		leases += int(p.Metric("nextvald_leases_total"))
		p.Stop()
	}
	lives := r.lives(sequence)
	require.NotEmpty(t, lives[1], "the process was killed before it handed out anything")
	require.NotEmpty(t, lives[processes], "nobody used the process that was started again")
	for life, draws := range lives {
		require.NoError(t, history.Ordered(draws), "life %d", life)
	}
	draws := r.all(sequence)
	require.NoError(t, history.Unique(draws))
	values := history.Values(draws)
	span := (values[len(values)-1]-values[0])/increment + 1
	t.Logf("%d values of %d sessions in %v, %d leases, %d gaps", len(values), sessions, f.since().Round(time.Millisecond),
		leases, span-int64(len(values)))
}
