package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
)

// A process that is stopped holds values. A sequence is not moved back until it may not hand them out any more, and it does
// not when it goes on: not even to a client that asked meanwhile.
func TestSuspendedProcess(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	table := testenv.Table(t)
	start := func() (*testenv.Process, *pgx.Conn) {
		p := testenv.Start(t, "--store", table, "--max-offline", maxOffline.String())
		conn, err := pgx.Connect(ctx, p.URL("postgres://me@host/shop?sslmode=disable"))
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		return p, conn
	}
	sleeper, held := start()
	_, mover := start()
	const old = 1000 // values from here on are of before the move
	_, err := held.Exec(ctx, "CREATE SEQUENCE s START 1000")
	require.NoError(t, err)
	values, err := ask(ctx, held, "s", pipeline, 10)
	require.NoError(t, err)
	require.EqualValues(t, old, values[0])

	sleeper.Signal(syscall.SIGSTOP)
	require.Eventually(t, func() bool { return stopped(t, sleeper.Pid()) }, 10*time.Second, time.Millisecond)
	answers := make(chan error, 1)
	go func() {
		var err error
		values, err = ask(ctx, held, "s", extended, 1)
		answers <- err
	}()
	refusals := 0
	for {
		_, err := mover.Exec(ctx, "SELECT setval('s', 1)")
		if err == nil {
			break
		}
		require.True(t, is(err, "58030"), err)
		refusals++
	}
	require.Positive(t, refusals, "nobody waited for the process that was stopped")
	moved, err := ask(ctx, mover, "s", pipeline, 5)
	require.NoError(t, err)
	require.Equal(t, []int64{2, 3, 4, 5, 6}, moved)

	sleeper.Signal(syscall.SIGCONT)
	require.NoError(t, <-answers)
	require.Less(t, values[0], int64(old), "it handed out what it held")
	require.Greater(t, values[0], moved[4])
}

// stopped reports whether all threads of a process are: one that the signal has not reached yet goes on.
func stopped(t *testing.T, pid int) bool {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	require.NoError(t, err)
	for _, file := range threads {
		stat, err := os.ReadFile(file)
		require.NoError(t, err)
		if _, state, ok := strings.Cut(string(stat), ") "); !ok || state[0] != 'T' {
			return false
		}
	}
	return len(threads) > 0
}
