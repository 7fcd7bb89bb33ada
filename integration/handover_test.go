package integration

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
)

// TestHandoverCommands takes a database to the store and back by the commands.
func TestHandoverCommands(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	upstream, store := testenv.Database(t), testenv.Table(t)
	command := func(code int, args ...string) testenv.Result {
		t.Helper()
		args = append(args, "--store", store)
		if !strings.Contains(strings.Join(args, " "), "--upstream") {
			args = append(args, "--upstream", upstream)
		}
		r := testenv.Command{Args: args}.Run(t)
		require.Equal(t, code, r.Code, "%s%s", r.Stdout, r.Stderr)
		return r
	}
	testenv.Exec(t, upstream, "CREATE TABLE orders (id bigserial)", "INSERT INTO orders VALUES (40)", "CREATE SEQUENCE plain")
	conn, err := pgx.Connect(ctx, upstream)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(ctx) })
	nextval := func(name string) (v int64) {
		require.NoError(t, conn.QueryRow(ctx, "SELECT nextval($1::text::regclass)", name).Scan(&v))
		return v
	}

	r := command(1, "check")
	require.Regexp(t, `public\.orders_id_seq +upstream +1 \(not called\) +NO +public\.orders\.id has 40`, r.Stdout)
	require.Contains(t, r.Stderr, "1 of 2 sequences are not safe")
	require.Regexp(t, `public\.plain +would be adopted`, command(0, "adopt", "--dry-run", "--all").Stdout)
	require.EqualValues(t, 1, nextval("plain"))
	require.Regexp(t, `public\.orders_id_seq +adopted +40`, command(0, "adopt", "--all").Stdout)
	require.Regexp(t, `public\.plain +unchanged +1 +the store's already`, command(0, "adopt", "plain").Stdout)
	require.EqualValues(t, 1002, nextval("plain"), "of the fence")
	r = command(0, "check")
	require.Contains(t, r.Stdout, "a column default draws from it")
	require.Contains(t, r.Stdout, "2 sequences are fenced")
	require.Regexp(t, `public\.plain +released +1002`, command(0, "release", "plain").Stdout)
	require.EqualValues(t, 1003, nextval("plain"))
	command(0, "release", "--all")
	require.EqualValues(t, 41, nextval("orders_id_seq"))
	command(0, "check", "--all")

	for _, args := range [][]string{{"adopt"}, {"release"}, {"release", "--all", "plain"}, {"adopt", "nobody"}, {"adopt", "a.b.c"}} {
		require.Equal(t, 1, strings.Count(command(1, args...).Stderr, "\n"), args)
	}
	require.Contains(t, command(1, "check", "--upstream", "").Stderr, "--upstream is needed")
}
