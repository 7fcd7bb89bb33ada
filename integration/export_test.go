package integration

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
)

// TestExport moves the sequences of one store to another, where they go on with their definitions, modes and policies.
func TestExport(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	command := func(code int, args ...string) testenv.Result {
		t.Helper()
		r := testenv.Command{Args: args}.Run(t)
		require.Equal(t, code, r.Code, "%s%s", r.Stdout, r.Stderr)
		return r
	}
	from, to := testenv.Table(t), testenv.Table(t)
	statements := []string{
		`CREATE SEQUENCE fresh START 7 INCREMENT 3 MAXVALUE 100 CYCLE`,
		`CREATE SEQUENCE "Used" AS integer`, `SELECT nextval('"Used"')`, `SELECT setval('"Used"', 41)`,
		`CREATE SEQUENCE down INCREMENT -1`, `SELECT setval('down', -9223372036854775808)`,
		`CREATE SEQUENCE one CACHE 1`,
		`CREATE SEQUENCE tuned`, `ALTER SEQUENCE tuned SET (nextvald.max_lease = 77, nextvald.mode = strict)`,
	}
	first := testenv.Start(t, "--store", from)
	conn := connect(t, first.URL("postgres://me@host/shop?sslmode=disable"))
	for _, sql := range statements {
		require.Empty(t, run(t, conn, sql), sql)
	}
	file := filepath.Join(t.TempDir(), "shop.jsonl")
	lines := command(0, "export", "--store", from, "shop").Stdout
	require.Len(t, strings.Split(strings.TrimSpace(lines), "\n"), 5)
	require.NoError(t, os.WriteFile(file, []byte(lines), 0o600))
	require.Empty(t, command(0, "export", "--store", from, "other").Stdout)

	require.Equal(t, "5 created, 0 changed\n", command(0, "import", "--store", to, "copy", file).Stdout)
	require.Equal(t, "0 created, 5 changed\n", command(0, "import", "--store", to, "copy", file).Stdout, "again")
	require.Equal(t, lines, command(0, "export", "--store", to, "copy").Stdout)

	second := testenv.Start(t, "--store", to)
	conn = connect(t, second.URL("postgres://me@host/copy?sslmode=disable"))
	for sql, want := range map[string]int64{
		`SELECT nextval('fresh')`: 7, `SELECT nextval('"Used"')`: 42, `SELECT nextval('one')`: 1, `SELECT nextval('tuned')`: 1,
	} {
		var v int64
		require.NoError(t, conn.QueryRow(ctx, sql).Scan(&v))
		require.Equal(t, want, v, sql)
	}
	require.Equal(t, "2200H", run(t, conn, "SELECT nextval('down')"))

	// The upstream's own sequences are not made by an import.
	mirrored := strings.Replace(strings.Split(lines, "\n")[1], `"kind":"virtual"`, `"kind":"mirrored"`, 1)
	require.NoError(t, os.WriteFile(file, []byte(mirrored), 0o600))
	require.Contains(t, command(1, "import", "--store", to, "third", file).Stdout, "third.public.down is not the store's")
	require.NoError(t, os.WriteFile(file, []byte(`{"schema":"public","speed":1}`), 0o600))
	require.Contains(t, command(1, "import", "--store", to, "third", file).Stderr, "sequence 1 of the input")
}
