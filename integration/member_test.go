package integration

import (
	"regexp"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
)

// A process that was killed holds values that it may hand out for all that others know, so that moving the sequence back
// waits for it, until it runs again at the same address, or is evicted.
func TestKilledMember(t *testing.T) {
	t.Parallel()
	store, database := testenv.Table(t), testenv.Database(t)
	start := func(listen string) *testenv.Process {
		return testenv.Start(t, "--upstream", database, "--store", store, "--listen", listen)
	}
	psql := func(p *testenv.Process, statement string) testenv.Result {
		return testenv.Psql(t, p.URL(database), "-t", "-v", "VERBOSITY=verbose", "-c", statement)
	}
	members := func() string {
		r := testenv.Command{Args: []string{"members", "--store", store}}.Run(t)
		require.Equal(t, 0, r.Code, r.Stderr)
		return r.Stdout
	}
	staying, dying := start("127.0.0.1:0"), start("127.0.0.1:0")
	for _, statement := range []string{"CREATE SEQUENCE s", "SELECT nextval('s')"} {
		r := psql(dying, statement)
		require.Equal(t, 0, r.Code, r.Stderr)
	}
	refused := func() {
		t.Helper()
		r := psql(staying, "SELECT setval('s', 1)")
		assert.Equal(t, 1, r.Code, r.Stdout)
		assert.Contains(t, r.Stderr, "58030")
		assert.Contains(t, r.Stderr, dying.Address)
	}
	dying.Kill()
	refused()

	dying = start(dying.Address)
	r := psql(staying, "SELECT setval('s', 1)")
	require.Equal(t, 0, r.Code, r.Stderr)
	r = psql(dying, "SELECT nextval('s')")
	require.Equal(t, "2\n", r.Stdout, r.Stderr)

	dying.Kill()
	refused()
	id := regexp.MustCompile(`(?m)^\S+/` + regexp.QuoteMeta(dying.Address)).FindString(members())
	require.NotEmpty(t, id)
	r = testenv.Command{Args: []string{"evict", "--store", store, id}}.Run(t)
	require.Equal(t, 0, r.Code, r.Stderr)
	require.NotContains(t, members(), id)
	r = psql(staying, "SELECT setval('s', 1)")
	require.Equal(t, 0, r.Code, r.Stderr)
	failsToStart(t, testenv.Command{Args: []string{"evict", "--store", store, id}}, id)
	failsToStart(t, testenv.Command{Args: []string{"evict"}})
	failsToStart(t, testenv.Command{Args: []string{"members", "--listen", "x"}}, "--listen")
}

// The mode is changed online, and for all processes.
func TestModeOfAllProcesses(t *testing.T) {
	t.Parallel()
	store, database := testenv.Table(t), testenv.Database(t)
	conns := make([]*pgx.Conn, 2)
	for i := range conns {
		conns[i] = connect(t, testenv.Start(t, "--upstream", database, "--store", store).URL(database))
	}
	exec := func(sql string) {
		_, err := conns[0].Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	draw := func() (values []int64) {
		for i := range 6 {
			var v int64
			require.NoError(t, conns[i%2].QueryRow(t.Context(), "SELECT nextval('s')").Scan(&v))
			values = append(values, v)
		}
		return values
	}
	exec("CREATE SEQUENCE s")
	require.NotEqual(t, []int64{1, 2, 3, 4, 5, 6}, draw(), "each process has values of its own")
	exec("ALTER SEQUENCE s SET (nextvald.mode = strict)")
	exec("ALTER SEQUENCE s RESTART WITH 101")
	require.Equal(t, []int64{101, 102, 103, 104, 105, 106}, draw())
	exec("ALTER SEQUENCE s SET (nextvald.mode = cached)")
	last := draw()
	require.NotEqual(t, []int64{107, 108, 109, 110, 111, 112}, last)
	exec("ALTER SEQUENCE s RESET (nextvald.mode)")
	exec("ALTER SEQUENCE s RESTART WITH 101 CACHE 1")
	require.Equal(t, []int64{101, 102, 103, 104, 105, 106}, draw())
}
