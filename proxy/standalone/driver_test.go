package standalone

import (
	"context"
	"database/sql"
	"fmt"
	"os/exec"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/lib/pq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// address is the connection string of a new backend.
func address(t *testing.T) string {
	host, port := listen(t, newBackend(t))
	return fmt.Sprintf("host=%s port=%s user=me dbname=shop sslmode=disable", host, port)
}

func TestPgx(t *testing.T) {
	ctx := context.Background()
	modes := map[string]pgx.QueryExecMode{
		"cached statements":    pgx.QueryExecModeCacheStatement,
		"cached descriptions":  pgx.QueryExecModeCacheDescribe,
		"described every time": pgx.QueryExecModeDescribeExec,
		"exec":                 pgx.QueryExecModeExec,
		"simple protocol":      pgx.QueryExecModeSimpleProtocol,
	}
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			cfg, err := pgx.ParseConfig(address(t))
			require.NoError(t, err)
			cfg.DefaultQueryExecMode = mode
			c, err := pgx.ConnectConfig(ctx, cfg)
			require.NoError(t, err)
			defer func() { require.NoError(t, c.Close(ctx)) }()
			require.NoError(t, c.Ping(ctx))
			for range 2 {
				var n int64
				var s, schema string
				var on bool
				require.NoError(t, c.QueryRow(ctx, "select $1::int8, $2::text, true, current_schema()", 7, "ä").Scan(&n, &s, &on, &schema))
				assert.Equal(t, []any{int64(7), "ä", true, "public"}, []any{n, s, on, schema})
			}
			_, err = c.Exec(ctx, "insert into t values (1)")
			var refused *pgconn.PgError
			require.ErrorAs(t, err, &refused)
			assert.Equal(t, "0A000", refused.Code)
			assert.Equal(t, hintUpstream, refused.Hint)

			tx, err := c.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.Serializable, AccessMode: pgx.ReadOnly})
			require.NoError(t, err)
			var level string
			require.NoError(t, tx.QueryRow(ctx, "show transaction isolation level").Scan(&level))
			assert.Equal(t, "serializable", level)
			nested, err := tx.Begin(ctx)
			require.NoError(t, err)
			_, err = nested.Exec(ctx, "select 'x'::int")
			require.Error(t, err)
			require.NoError(t, nested.Rollback(ctx))
			require.NoError(t, tx.Commit(ctx))

			var at time.Time
			require.NoError(t, c.QueryRow(ctx, "select now()").Scan(&at))
			assert.WithinDuration(t, time.Now(), at, time.Hour)
		})
	}
}

func TestPgxPool(t *testing.T) {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, address(t)+" pool_max_conns=2")
	require.NoError(t, err)
	defer pool.Close()
	results := make(chan error, 20)
	for i := range cap(results) {
		go func() {
			batch := new(pgx.Batch)
			batch.Queue("select $1::int", i)
			batch.Queue("set application_name = 'x'")
			batch.Queue("select current_setting('application_name')")
			results <- pool.SendBatch(ctx, batch).Close()
		}()
	}
	for range cap(results) {
		require.NoError(t, <-results)
	}
}

func TestPq(t *testing.T) {
	for _, binaryParameters := range []string{"no", "yes"} {
		t.Run("binary_parameters="+binaryParameters, func(t *testing.T) {
			db, err := sql.Open("postgres", address(t)+" application_name=pq binary_parameters="+binaryParameters)
			require.NoError(t, err)
			defer func() { require.NoError(t, db.Close()) }()
			require.NoError(t, db.Ping())
			var n int64
			var s string
			require.NoError(t, db.QueryRow("select $1::int8, current_setting('application_name')", 7).Scan(&n, &s))
			assert.Equal(t, int64(7), n)
			assert.Equal(t, "pq", s)

			st, err := db.Prepare("select $1::int4 + 1")
			require.NoError(t, err)
			for i := range 3 {
				require.NoError(t, st.QueryRow(i).Scan(&n))
				assert.Equal(t, int64(i+1), n)
			}
			require.NoError(t, st.Close())

			tx, err := db.BeginTx(context.Background(), &sql.TxOptions{ReadOnly: true, Isolation: sql.LevelRepeatableRead})
			require.NoError(t, err)
			require.NoError(t, tx.QueryRow("show transaction_read_only").Scan(&s))
			assert.Equal(t, "on", s)
			_, err = tx.Exec("select nextval('nope')")
			var missing *pq.Error
			require.ErrorAs(t, err, &missing)
			assert.EqualValues(t, "42P01", missing.Code)
			require.Error(t, tx.Commit())

			_, err = db.Exec("discard all")
			require.NoError(t, err)
			_, err = db.Exec("select 1; set application_name = ''; ;")
			require.NoError(t, err)
		})
	}
}

func TestPsql(t *testing.T) {
	psql, err := exec.LookPath("psql")
	if err != nil {
		t.Fatal("psql is not installed: run make test, which installs it")
	}
	conninfo := address(t)
	cases := map[string]struct {
		commands []string
		want     string
	}{
		"conninfo":        {[]string{`\conninfo`}, "You are connected to database \"shop\" as user \"me\""},
		"several":         {[]string{"select 1 as one; select 2 as two"}, "one\n1\ntwo\n2\n"},
		"encoding":        {[]string{`\encoding`, `\encoding LATIN1`, "show client_encoding"}, "UTF8\nclient_encoding\nLATIN1\n"},
		"catalogs":        {[]string{`\d`}, "ERROR:  reading pg_catalog.pg_class is not supported without an upstream\nHINT:  " + hintUpstream},
		"variables":       {[]string{`\echo :SERVER_VERSION_NAME`}, "15.0 (nextvald)"},
		"block":           {[]string{"begin", "select 1/0", "select 1", "rollback"}, "BEGIN\nERROR:  division by zero\nERROR:  current transaction is aborted, commands ignored until end of transaction block\nROLLBACK\n"},
		"error's context": {[]string{"select\n  nextval('nope')"}, "ERROR:  relation \"nope\" does not exist\nLINE 2:   nextval('nope')\n                  ^\n"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			args := []string{"-X", "-A", "-P", "footer=off", conninfo}
			for _, command := range c.commands {
				args = append(args, "-c", command)
			}
			cmd := exec.Command(psql, args...)
			cmd.Env = append(cmd.Environ(), "LC_ALL=C.UTF-8", "PGCLIENTENCODING=UTF8")
			out, _ := cmd.CombinedOutput()
			assert.Contains(t, string(out), c.want)
		})
	}
}
