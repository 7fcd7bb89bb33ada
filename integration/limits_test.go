package integration

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
)

func TestMaxConnections(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	database := testenv.Database(t)
	watcher := connect(t, database)
	p := testenv.Start(t, "--upstream", database, "--store", "memory:", "--max-connections", "2")
	url := p.URL(database)
	first, second := connect(t, url), connect(t, url)
	refusal := refused(t, url)
	require.Equal(t, "53300", refusal.Code)
	require.Equal(t, "FATAL", refusal.Severity)
	require.Equal(t, "sorry, too many clients already", refusal.Message)

	// A cancel request takes no place.
	asleep := start(first, "SELECT pg_sleep(300)")
	sleeps(t, watcher, first)
	require.NoError(t, first.PgConn().CancelRequest(ctx))
	require.Equal(t, "57014", code(<-asleep))

	require.NoError(t, second.Close(ctx))
	require.Eventually(t, func() bool {
		conn, err := pgx.Connect(ctx, url)
		return err == nil && conn.Close(ctx) == nil
	}, patience, patience/1000)
}

func TestClientIdleTimeout(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	database := testenv.Database(t)
	p := testenv.Start(t, "--upstream", database, "--store", "memory:", "--client-idle-timeout", "4s")
	alone := testenv.Start(t, "--store", "memory:", "--client-idle-timeout", "4s")
	for name, url := range map[string]string{"upstream": p.URL(database), "alone": alone.URL("postgres://me@host/shop?sslmode=disable")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testenv.Exec(t, url, "CREATE SEQUENCE s")
			// This one waits longer than those after it, but inside of a transaction.
			block := connect(t, url)
			_, err := block.Exec(ctx, "BEGIN; SELECT nextval('s')")
			require.NoError(t, err)
			pipeline := dialRaw(t, url)
			pipeline.exchange(t, flush(4, parse("", "SELECT nextval('s')"), bind("", ""), execute("", 0)))

			idle := dialRaw(t, url)
			require.Equal(t, idleWord, idle.next(t))
			require.Equal(t, theEnd, idle.next(t))
			used := dialRaw(t, url)
			used.exchange(t, send(query("SELECT nextval('s')")))
			require.Equal(t, idleWord, used.next(t))

			require.NoError(t, block.QueryRow(ctx, "SELECT nextval('s')").Scan(new(int64)))
			_, err = block.Exec(ctx, "COMMIT")
			require.NoError(t, err)
			require.Equal(t, "57P05", ends(t, block))
			require.Equal(t, []string{"ReadyForQuery I"}, pipeline.exchange(t, send(sync)))
			require.Equal(t, idleWord, pipeline.next(t))
		})
	}

	// A query may take longer.
	conn := dialRaw(t, p.URL(database))
	conn.exchange(t, send(query("SELECT pg_sleep(5)"), query("SELECT 1")))
	require.Equal(t, idleWord, conn.next(t))
}

const idleWord = `ErrorResponse FATAL/FATAL 57P05 "terminating connection due to idle-session timeout" detail="" position=0 where=""`
