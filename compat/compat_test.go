package main

import (
	"context"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// Everything in testdata looks the same on a plain PostgreSQL and through nextvald, but for what is expected to differ. For the
// time that it takes, mostly for databases, where sequences are mirrored each script runs in one of its flows, and small ones of the
// corpus do not, over a store in memory: make compat ARGS='-mode mirrored' runs all, over DynamoDB. Arguments of the test are those of the command.
func TestComparedWithPostgreSQL(t *testing.T) {
	t.Parallel()
	if args := flag.Args(); len(args) > 0 {
		mode := "virtual"
		if i := slices.Index(args, "-mode"); i >= 0 && i+1 < len(args) {
			mode = args[i+1]
		}
		compareInMode(t, mode, testenv.Table(t), args...)
		return
	}
	// One after the other, since the scripts' roles are all databases'.
	t.Run("virtual", func(t *testing.T) { compareInMode(t, "virtual", testenv.Table(t)) })
	t.Run("mirrored", func(t *testing.T) { compareInMode(t, "mirrored", "memory:", "-flow", inTurn, "-least", "10") })
}

func compareInMode(t *testing.T, mode, store string, args ...string) {
	process := testenv.Start(t, "--upstream", testenv.Upstream(t), "--store", store, "--upstream-sequences", mode)
	var out strings.Builder
	args = append([]string{"-direct", testenv.Upstream(t), "-proxy", process.URL(testenv.Upstream(t)), "-mode", mode}, args...)
	different, err := compare(context.Background(), args, &out)
	require.NoError(t, err)
	require.Zero(t, different, "%s", out.String())
	t.Log("\n" + out.String())
}

// A server looks the same as itself: what it never answers twice alike is masked. It runs by itself, since the scripts' roles
// are all databases'.
func TestComparedWithItself(t *testing.T) {
	c := &comparison{direct: testenv.Upstream(t), proxy: testenv.Upstream(t), out: &strings.Builder{}}
	scripts, err := ours("mirrored")
	require.NoError(t, err)
	require.NoError(t, c.runAll(context.Background(), scripts, prepared, 4))
	require.Equal(t, c.counts.entries, c.counts.same, "%s", c.out)
	require.NotZero(t, c.counts.same)
}

func TestDifferencesAreFound(t *testing.T) {
	t.Parallel()
	entries, _, err := parseScript("x.sql", "SELECT 1; SELECT 2; SELECT 3; SELECT 4")
	require.NoError(t, err)
	expected, err := parseExpected("expected", "reason: it has to be\nx.sql: SELECT 2\nx.sql [simple]: SELECT  3\nx.sql: SELECT ...\nx.sql [flushed]: SELECT 1\ny.sql: SELECT 1")
	require.NoError(t, err)
	require.Len(t, expected, 5)
	var out strings.Builder
	c := &comparison{out: &out, expected: expected[:2]}
	c.judge(entries[0], simple, []string{"row 1", "ready I"}, []string{"row 1", "ready I"}, []string{"row 2", "ready I"})
	c.judge(entries[1], simple, []string{"row 1"}, []string{"row 1"}, []string{"row 2"})
	c.judge(entries[2], simple, []string{"row 1"}, []string{"row 1"}, []string{"row 1"})
	c.judge(entries[3], simple, nil, nil, nil)
	require.Equal(t, "x.sql:1 [simple] different\n    SELECT 1\n    - row 1\n    + row 2\n      ready I\n\n", out.String())
	require.Equal(t, []string{"expected difference of line 3 is none any more: x.sql: SELECT 3"}, c.unused())
	require.Equal(t, "entries 4, same 2, expected 1, different 2", c.counts.String())

	assert.True(t, expected[2].of(entries[0], extended))
	assert.False(t, expected[3].of(entries[0], extended))
	assert.False(t, expected[4].of(entries[0], extended))
	for _, wrong := range []string{"x.sql: SELECT 1", "reason: y\nSELECT 1"} {
		_, err = parseExpected("expected", wrong)
		require.Error(t, err)
	}
}

func TestRowsInAnyOrder(t *testing.T) {
	require.Equal(t, []string{"column a", "row 1", "row 2", "tag", "row 1", "row 3"}, sortedRows([]string{"column a", "row 2", "row 1", "tag", "row 3", "row 1"}))
	require.True(t, inAnyOrder("SELECT relname FROM PG_class"))
	require.False(t, inAnyOrder("SELECT relname FROM pg_class ORDER BY 1"))
	require.False(t, inAnyOrder("SELECT nextval('s') FROM t"))
}

func TestDiff(t *testing.T) {
	require.Equal(t, []string{"      a", "    - b", "      c", "    + d", "      e"}, diff([]string{"a", "b", "c", "e"}, []string{"a", "c", "d", "e"}))
	require.Equal(t, []string{"    - a"}, diff([]string{"a"}, nil))
	require.Equal(t, []string{"    + a"}, diff(nil, []string{"a"}))
}

// Every reason is explained in the docs, and every one there is still needed.
func TestDifferencesAreExplained(t *testing.T) {
	docs, err := os.ReadFile("../docs/differences.md")
	require.NoError(t, err)
	reasons := map[string]bool{}
	for _, mode := range []string{"virtual", "mirrored"} {
		expected, err := expectedIn(mode)
		require.NoError(t, err)
		for _, x := range expected {
			reasons[x.reason] = true
			assert.True(t, strings.Contains(string(docs), "\n| "+x.reason+" |"), "no row for: %s", x.reason)
		}
	}
	table, _, _ := strings.Cut(string(docs), "\n\n`log_cnt`")
	assert.Equal(t, len(reasons)+2, strings.Count(table, "\n|"), "a row for a reason that is not expected")
}
