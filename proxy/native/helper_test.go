package native

import (
	"context"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nextvald/nextvald/integration/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testUpstream is the Upstream of tests: a PostgreSQL by its URL, whose connections are counted.
type testUpstream struct {
	t      testing.TB
	url    string
	opened atomic.Int64
}

// Control implements Upstream.
func (s *testUpstream) Control(ctx context.Context, database string) (*pgx.Conn, error) {
	u, err := url.Parse(s.url)
	if err != nil {
		return nil, err
	}
	u.Path = "/" + database
	cfg, err := pgx.ParseConfig(u.String())
	if err != nil {
		return nil, err
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec
	s.opened.Add(1)
	return pgx.ConnectConfig(ctx, cfg)
}

// testDatabase makes a database of the test's own.
func testDatabase(t testing.TB) (s *testUpstream, database string) {
	at := testenv.Database(t)
	u, err := url.Parse(at)
	require.NoError(t, err)
	return &testUpstream{t: t, url: at}, u.Path[1:]
}

// run runs statements on a connection of their own, as somebody whom nextvald does not see.
func (s *testUpstream) run(statements ...string) {
	s.t.Helper()
	testenv.Exec(s.t, s.url, statements...)
}
