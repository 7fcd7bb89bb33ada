package faults

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
)

// A cached sequence serves through an outage of the store that is shorter than its runway, and nobody notices. In a longer
// one callers get what is in memory, then an error, and then values again when the store is back.
func TestOutage(t *testing.T) {
	t.Parallel()
	const runwayMetric, perSecond = "nextvald_runway_seconds", 100
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	store := testenv.StartDynamoDB(t)
	p := testenv.Start(t, "--store", testenv.TableAt("outage", store.URL), "--store-timeout", storeTimeout.String(),
		"--sequences-lease-seconds", "6")
	url := p.URL("postgres://me@host/shop?sslmode=disable")
	create(t, url, "CREATE SEQUENCE s", "CREATE SEQUENCE strict CACHE 1", "SELECT nextval('strict')")
	require.Equal(t, math.Inf(1), p.Metric(runwayMetric), "no cached sequence is in use")

	connect := func() *pgx.Conn {
		conn, err := pgx.Connect(ctx, url)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		return conn
	}
	conn := connect()
	var last int64
	draw := func(sequence string) error {
		values, err := ask(ctx, conn, sequence, extended, 1)
		if err == nil && sequence == "s" {
			require.Greater(t, values[0], last)
			last = values[0]
		}
		return err
	}
	// steadily draws at a steady rate for as long as it is told to, or until there is an error.
	steadily := func(on func() bool) (err error) {
		tick := time.NewTicker(time.Second / perSecond)
		defer tick.Stop()
		for on() && err == nil {
			err = draw("s")
			<-tick.C
		}
		return err
	}
	steady := func(on func() bool) {
		t.Helper()
		require.NoError(t, steadily(on))
	}
	seconds := func(d time.Duration) func() bool {
		end := time.Now().Add(d)
		return func() bool { return time.Now().Before(end) }
	}
	// warm goes on until there is enough in memory: ten seconds, by a rate that is counted in whole values. It is measured
	// again all the time, and a machine that is busy does not keep a steady one.
	warm := func() {
		steady(seconds(3 * time.Second))
		steady(func() bool { return p.Metric(runwayMetric) < 9.5 })
	}

	warm()
	runway, lost := p.Metric(runwayMetric), time.Now()
	store.Kill()
	var back atomic.Bool
	restarted := make(chan error, 1)
	go func() {
		time.Sleep(2 * time.Second) // the outage
		err := store.Start()
		back.Store(true)
		restarted <- err
	}()
	err := steadily(func() bool { return !back.Load() })
	outage := time.Since(lost).Seconds()
	if err != nil { // the store takes its time to start
		require.Greater(t, outage, runway-1, "it failed before the end of the runway: %v", err)
	}
	t.Logf("an outage of %.1f s, with a runway of %.1f s: %v", outage, runway, err)
	require.NoError(t, <-restarted)

	warm()
	held := int64(p.Metric("nextvald_cache_depth"))
	store.Kill()
	refused := func(err error) {
		t.Helper()
		var answer *pgconn.PgError
		require.ErrorAs(t, err, &answer)
		require.Equal(t, "58030", answer.Code, answer)
		require.NotEmpty(t, answer.Hint)
	}
	refused(draw("strict"))
	var drawn int64
	err = draw("s")
	for ; err == nil; err = draw("s") {
		drawn++
	}
	refused(err)
	require.GreaterOrEqual(t, drawn, held, "what was in memory was not handed out")
	require.Zero(t, p.Metric("nextvald_cache_depth"))
	require.Zero(t, p.Metric(runwayMetric))
	refused(draw("s"))
	refused(draw("strict"))

	require.NoError(t, store.Start())
	for _, sequence := range []string{"s", "strict"} {
		for err := errors.New("not yet"); err != nil; err = draw(sequence) {
			require.NoError(t, ctx.Err(), "it does not recover")
		}
	}
	steady(seconds(time.Second))
	p.Stop()
}
