package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
)

// psqlCommands need more of the server than the statement that a user types: \gdesc prepares it and asks for the names of
// its types, \copy takes it apart and puts it together in words of its own, \gexec runs its answers.
const psqlCommands = `
CREATE SEQUENCE s START 10;
CREATE TABLE t (id serial, v text);
SELECT nextval('s') AS id, 'x' AS v \gdesc
SELECT nextval('s')
\gdesc
SELECT nextval('s') AS drawn \gset
\echo :drawn
SELECT nextval('s') \gx
SELECT :drawn, currval('s'), lastval();
\copy t (v) FROM stdin
a
b
\.
\copy (SELECT id, v FROM t ORDER BY id) TO stdout
\copy (SELECT nextval('s'), 'it''s') TO stdout
\copy t TO stdout (FORMAT csv)
SELECT v, 'id' AS k, id FROM t \crosstabview
SELECT 'a' AS r, 'c' AS c, nextval('s') AS n \crosstabview r c n
SELECT 'SELECT nextval(''s'')' FROM generate_series(1, 2) \gexec
\set name s
SELECT nextval(:'name');
SELECT nextval('s') \; SELECT nextval('s'), nextval('s');
\set FETCH_COUNT 1
SELECT id FROM t ORDER BY id;
SELECT nextval('s');
\set FETCH_COUNT 0
\set ON_ERROR_ROLLBACK on
BEGIN;
SELECT nextval('s');
SELECT nextval('nosuch');
SELECT nosuch;
SELECT nextval('s');
COMMIT;
\set AUTOCOMMIT off
SELECT nextval('s');
ROLLBACK;
\set AUTOCOMMIT on
\errverbose
\dt
`

func TestPsqlCommands(t *testing.T) {
	t.Parallel()
	process := testenv.Start(t, "--upstream", testenv.Upstream(t), "--store", testenv.Table(t))
	path := filepath.Join(t.TempDir(), "script.sql")
	require.NoError(t, os.WriteFile(path, []byte(psqlCommands), 0o600))
	run := func(url string) testenv.Result {
		return testenv.Psql(t, url, "-v", "ON_ERROR_STOP=0", "-v", "QUIET=off", "-f", path)
	}
	want, got := run(testenv.Database(t)), run(process.URL(testenv.Database(t)))
	assert.Equal(t, 0, want.Code)
	assert.Contains(t, want.Stdout, "12\tit's\n", "the script does something")
	assert.Equal(t, want.Stdout, got.Stdout)
	assert.Equal(t, want.Stderr, got.Stderr)
	assert.Equal(t, want.Code, got.Code)
}

// TestPgbench runs PostgreSQL's own benchmark, and one of nextval, in every protocol that it speaks.
func TestPgbench(t *testing.T) {
	t.Parallel()
	process := testenv.Start(t, "--upstream", testenv.Upstream(t), "--store", testenv.Table(t))
	url := process.URL(testenv.Database(t))
	pgbench := func(args ...string) string {
		ctx, stop := context.WithTimeout(context.Background(), 2*time.Minute)
		defer stop()
		out, err := exec.CommandContext(ctx, "pgbench", append(args, url)...).CombinedOutput()
		require.NoError(t, err, "pgbench %s\n%s", args, out)
		return string(out)
	}
	pgbench("-i", "-s", "1", "-q")
	testenv.Exec(t, url, "CREATE SEQUENCE s", "CREATE TABLE drawn (id bigint PRIMARY KEY)")
	script := filepath.Join(t.TempDir(), "nextval.sql")
	require.NoError(t, os.WriteFile(script, []byte("SELECT nextval('s') AS id \\gset\nINSERT INTO drawn VALUES (:id);\nINSERT INTO drawn VALUES (nextval('s'));\n"), 0o600))
	for _, protocol := range []string{"simple", "extended", "prepared"} {
		out := pgbench("-n", "-M", protocol, "-c", "4", "-t", "25")
		require.Contains(t, out, "number of failed transactions: 0")
		out = pgbench("-n", "-M", protocol, "-c", "4", "-t", "25", "-f", script)
		require.Contains(t, out, "number of failed transactions: 0")
	}
	r := testenv.Psql(t, url, "-At", "-c", "SELECT count(*) = 300 FROM pgbench_history", "-c", "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history)",
		"-c", "SELECT count(*) FROM drawn")
	require.Equal(t, "t\nt\n600\n", r.Stdout)
}
