package main

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
)

// refusedRow is a row of the table of what is refused: the protocol, the statement and the SQLSTATE.
var refusedRow = regexp.MustCompile("(?m)^\\| (extended: )?`([^`]+)` \\| ([0-9A-Z]{5}) \\| (.+) \\|$")

// TestRefused sends every statement that the docs say is refused: it fails as they say, with a hint, draws nothing and
// leaves nothing behind.
func TestRefused(t *testing.T) {
	t.Parallel()
	docs, err := os.ReadFile("../docs/differences.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(docs), "## Refused")
	require.True(t, found)
	rows := refusedRow.FindAllStringSubmatch(table, -1)
	require.Equal(t, strings.Count(table, "\n| ")-1, len(rows), "a row that the test cannot read")

	process := testenv.Start(t, "--upstream", testenv.Upstream(t), "--store", testenv.Table(t))
	url := process.URL(testenv.Database(t))
	testenv.Exec(t, url, "CREATE SEQUENCE s", "CREATE TABLE t (id serial, v text)", "INSERT INTO t (v) VALUES ('a'), ('b')")
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	require.NoError(t, err)
	defer func() { _ = conn.Close(ctx) }()
	for _, row := range rows {
		inExtended, sql, code := row[1] != "", row[2], row[3]
		t.Run(sql, func(t *testing.T) {
			var err error
			if inExtended {
				_, err = conn.PgConn().ExecParams(ctx, sql, nil, nil, nil, nil).Close()
			} else {
				_, err = conn.PgConn().Exec(ctx, sql).ReadAll()
			}
			var said *pgconn.PgError
			require.True(t, errors.As(err, &said), "%v", err)
			require.Equal(t, code, said.Code, "%s", said.Message)
			require.NotEmpty(t, said.Hint)

			var last, first int64
			var called bool
			var v string
			require.NoError(t, conn.QueryRow(ctx, "SELECT last_value, is_called FROM s").Scan(&last, &called))
			require.Equal(t, []any{int64(1), false}, []any{last, called}, "it moved the sequence")
			require.NoError(t, conn.QueryRow(ctx, "SELECT min(id), string_agg(v, ',' ORDER BY id) FROM t").Scan(&first, &v))
			require.Equal(t, []any{int64(1), "a,b"}, []any{first, v}, "it changed the table")
		})
	}
}
