package integration

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	gosync "sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
)

// Others that lease from a process on a tier change sequences beside it: ALTER keeps the position while everybody draws.
func TestPeersOfATier(t *testing.T) {
	t.Parallel()
	centre := testenv.Start(t, "--store", "bolt:"+filepath.Join(t.TempDir(), "tier.db")+"?"+
		url.Values{"over": {testenv.Table(t)}, "witness": {t.TempDir()}}.Encode(), "--peer-role", "sidecar")
	peer := testenv.Start(t, "--store", "peer:postgres://sidecar@"+centre.Address+"/?sslmode=disable")
	at := func(p *testenv.Process) string { return p.URL("postgres://me@host/shop?sslmode=disable") }
	testenv.Exec(t, at(centre), "CREATE SEQUENCE s")
	var mu gosync.Mutex
	taken := map[int64]bool{}
	var wg gosync.WaitGroup
	done := make(chan struct{})
	for _, p := range []*testenv.Process{centre, peer, centre} {
		conn := connect(t, at(p))
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				var v int64
				if !assert.NoError(t, conn.QueryRow(context.Background(), "SELECT nextval('s')").Scan(&v)) {
					return
				}
				mu.Lock()
				assert.False(t, taken[v], "%d twice", v)
				taken[v] = true
				mu.Unlock()
			}
		})
	}
	for i := range 30 {
		testenv.Exec(t, at([]*testenv.Process{peer, centre}[i%2]), fmt.Sprintf("ALTER SEQUENCE s START %d", 1+i))
	}
	close(done)
	wg.Wait()
	require.Greater(t, len(taken), 300)
}

// A process on a durable tier over DynamoDB: a kill costs what it had in memory, an orderly end nothing, and an older copy of
// the file, made while it ran, brings no value back.
func TestTierOverDynamoDB(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tier.db")
	memory := t.TempDir()
	table := testenv.Table(t)
	start := func() (*testenv.Process, string) {
		p := testenv.Start(t, "--store", "bolt:"+path+"?"+url.Values{"over": {table}, "witness": {memory}}.Encode())
		return p, p.URL("postgres://me@host/shop?sslmode=disable")
	}
	taken := map[int64]bool{}
	draw := func(url string, n int) (first, last int64) {
		values := drawn(t, url, n)
		for i, v := range values {
			require.False(t, taken[v], "%d twice", v)
			require.True(t, i == 0 || v > values[i-1])
			taken[v] = true
		}
		return values[0], values[n-1]
	}
	p, at := start()
	testenv.Exec(t, at, "CREATE SEQUENCE s")
	_, last := draw(at, 250)

	for range 3 {
		p.Kill()
		p, at = start()
		first, end := draw(at, 250)
		require.Greater(t, first, last)
		require.Less(t, first, last+5_000, "the block went on")
		last = end
	}
	p.Stop()
	p, at = start()
	first, _ := draw(at, 10)
	require.Equal(t, last+1, first, "an orderly end leaves no gap")

	copied, err := os.ReadFile(path)
	require.NoError(t, err)
	_, last = draw(at, 1000)
	p.Kill()
	require.NoError(t, os.WriteFile(path, copied, 0o600))
	p, at = start()
	assert.Contains(t, p.Log(), "the blocks in the tier's file are discarded")
	first, _ = draw(at, 100)
	require.Greater(t, first, last, "what the copy has was used since")

	// A process on another machine, with a file of its own, takes turns with this one.
	other := testenv.Start(t, "--store", "bolt:"+path+".other?"+url.Values{"over": {table}, "witness": {"-"}}.Encode())
	elsewhere := other.URL("postgres://me@host/shop?sslmode=disable")
	draw(elsewhere, 100)
	draw(at, 100)

	// What is said of the members is said by the store, though the file is in use.
	members := testenv.Command{Args: []string{"members", "--store", "bolt:" + path + "?over=" + url.QueryEscape(table)}}.Run(t)
	require.Zero(t, members.Code, members.Stderr)
	require.Contains(t, members.Stdout, "- (the file of a durable tier)")

	// A setval of one moves the other.
	testenv.Exec(t, at, "SELECT setval('s', 5000000, false)")
	first, _ = draw(elsewhere, 1)
	require.GreaterOrEqual(t, first, int64(5_000_000))
	p.Stop()
	testenv.Exec(t, elsewhere, "SELECT setval('s', 9000000, false)")
	other.Stop()
	_, at = start()
	first, _ = draw(at, 1)
	require.GreaterOrEqual(t, first, int64(9_000_000), "the file's blocks are of an old version")
}

func TestTierURLs(t *testing.T) {
	testenv.Binary(t) // whose building is not the commands' time
	for store, message := range map[string]string{
		"bolt:x?over=nowhere":                    "--store: the store that the bolt file is over: is not a store URL: use memory:, bolt:PATH, dynamodb:TABLE or peer:URL",
		"bolt:x?over=bolt%3Ay%3Fover%3Dmemory:":  "--store: a bolt file over a bolt file over a store: one of them is enough",
		"bolt:x?over=peer:postgres%3A%2F%2Fh%2F": "--store: a bolt file over a peer is not supported: give the peer one",
		"bolt:x?witness=/tmp":                    "--store: option witness is of a bolt file over another store",
		"bolt:x?over=":                           "--store: option over needs one value",
		"memory:?over=bolt:x":                    `--store: a memory store has no option "over"`,
	} {
		r := testenv.Command{Args: []string{"serve", "--store", store}}.Run(t)
		require.Equal(t, 1, r.Code, store)
		require.Equal(t, "nextvald: "+message+"\n", r.Stderr)
	}
}
