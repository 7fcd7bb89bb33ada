package bench

import (
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
)

var perRow = flag.String("rows", "1000", "numbers of rows for which nextval is called by one statement, comma separated")

// TestRows prints how long statements take that call nextval once for each row: through nextvald, of a sequence that was created
// there and of a virtual one, and directly.
func TestRows(t *testing.T) {
	h := start(t)
	testenv.Exec(t, h.database, "CREATE SEQUENCE native", "CREATE TABLE target (id bigint, v text)", "CREATE UNLOGGED TABLE source (n bigint, v text)")
	conns := map[string]*pgconn.PgConn{
		"native": h.connect(t, h.postgres), "mirrored": h.connect(t, h.nextvald), "virtual": h.connect(t, startNextvald(t, h.database, "virtual")),
	}
	for _, mode := range []string{"mirrored", "virtual"} {
		_, err := conns[mode].Exec(t.Context(), "CREATE SEQUENCE "+mode).ReadAll()
		require.NoError(t, err)
	}
	for _, text := range strings.Split(*perRow, ",") {
		n, err := strconv.Atoi(text)
		require.NoError(t, err)
		testenv.Exec(t, h.database, "TRUNCATE source", fmt.Sprintf("INSERT INTO source SELECT g, 'value ' || g FROM generate_series(1, %d) g", n), "VACUUM ANALYZE source")
		repeat := max(1, 20_000/n) // what takes a millisecond is measured many times
		for _, sql := range []string{
			"INSERT INTO target SELECT nextval('%s'), v FROM source",
			"INSERT INTO target SELECT nextval('%s'), v FROM source ORDER BY n DESC",
			fmt.Sprintf("INSERT INTO target SELECT nextval('%%s'), 'value' FROM generate_series(1, %d)", n),
			"SELECT nextval('%s'), v FROM source",
			"COPY (SELECT nextval('%s') FROM source) TO STDOUT",
		} {
			took := map[string][]time.Duration{}
			for range *rounds {
				for sequence, conn := range conns {
					began := time.Now()
					for range repeat {
						require.NoError(t, carryOut(t, conn, fmt.Sprintf(sql, sequence)))
					}
					took[sequence] = append(took[sequence], time.Since(began)/time.Duration(repeat))
					testenv.Exec(t, h.database, "TRUNCATE target")
				}
			}
			milliseconds := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
			native, mirrored, virtual := median(took["native"], milliseconds), median(took["mirrored"], milliseconds), median(took["virtual"], milliseconds)
			t.Logf("%8d rows: PostgreSQL %8.2f ms, mirrored %8.2f ms (%.2f), virtual %8.2f ms (%.2f)  %s",
				n, native, mirrored, mirrored/native, virtual, virtual/native, fmt.Sprintf(sql, "s"))
		}
	}
}

// carryOut runs a statement and reads what it returns.
func carryOut(t *testing.T, conn *pgconn.PgConn, sql string) error {
	if strings.HasPrefix(sql, "COPY") {
		_, err := conn.CopyTo(t.Context(), io.Discard, sql)
		return err
	}
	r := conn.Exec(t.Context(), sql)
	for r.NextResult() {
		for rr := r.ResultReader(); rr.NextRow(); {
			continue
		}
	}
	return r.Close()
}
