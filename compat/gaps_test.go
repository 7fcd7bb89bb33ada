package main

import (
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
)

const gapsScript = `CREATE SEQUENCE s;
CREATE SEQUENCE "D'" INCREMENT -5;
SELECT nextval('s'), nextval('"D''"');
SELECT 'number ' || nextval('s'), currval('s'), nextval('s') * 2;
SELECT nextval('"D''"'), abs(nextval('"D''"')), lastval();
SELECT setval('s', 20);
SELECT nextval('s'), last_value FROM s;
CREATE SEQUENCE e MAXVALUE 5;
SELECT nextval('e'), nextval('e');
SELECT nextval('e'), seqmax FROM pg_sequence WHERE seqrelid = 'e'::regclass;
SELECT last_value FROM e;`

// TestGapsAreFound has another session do something before an entry of a script on a plain PostgreSQL, and compares that with
// the script without: only values that it draws are a gap.
func TestGapsAreFound(t *testing.T) {
	t.Parallel()
	url := testenv.Upstream(t)
	entries, _, err := parseScript("gaps.sql", gapsScript)
	require.NoError(t, err)
	for name, test := range map[string]struct {
		gaps  []gap
		entry int
		sql   string
	}{
		"several":           {gaps: []gap{{2, "public.s", 3}, {3, "public.s", 1}, {4, `public."D'"`, 1}, {6, "public.s", 77}, {9, "public.e", 2}}},
		"a value twice":     {entry: 3, sql: "SELECT setval('s', 1, false)"},
		"off the increment": {entry: 4, sql: `SELECT setval('"D''"', -8)`},
		"another maximum":   {entry: 9, sql: "ALTER SEQUENCE e MAXVALUE 6"},
		"another increment": {entry: 6, sql: "ALTER SEQUENCE s INCREMENT 3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			c := &comparison{direct: url, out: io.Discard}
			s := script{name: "gaps.sql", flows: flows, entries: entries}
			want, err := c.side(ctx, url, s, extended, nil)
			require.NoError(t, err)
			before := drawing(url, test.gaps)
			if test.sql != "" {
				before = func(ctx context.Context, entry int, database string) error {
					if entry != test.entry {
						return nil
					}
					conn, err := connectTo(ctx, url, database)
					if err != nil {
						return err
					}
					defer func() { _ = conn.Close(ctx) }()
					_, err = conn.PgConn().Exec(ctx, test.sql).ReadAll()
					return err
				}
			}
			got, err := c.side(ctx, url, s, extended, before)
			require.NoError(t, err)
			after, gaps, err := c.withGaps(ctx, s, extended, want, got)
			require.NoError(t, err)
			assert.Equal(t, test.gaps, gaps)
			different := c.firstDifferent(s, extended, 0, after, got)
			assert.Equal(t, test.sql == "", different < 0, "entry %d", different)
		})
	}
}
