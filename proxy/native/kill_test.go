package native

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/boltstore"
	"github.com/nextvald/nextvald/sequencer/memstore"
)

// The steps after which a handover may be cut off.
var steps = map[string][]string{
	"adopt":   {"locked", "item written", "commit", "committed"},
	"release": {"frozen", "locked", "item written", "commit", "committed"},
	"feed":    {"leased", "locked", "item written", "commit", "committed"},
}

// do carries out an operation on a sequence. Its error may be that it was cut off.
func (p *process) do(operation string, oid uint32) error {
	ctx := context.Background()
	switch operation {
	case "adopt":
		return p.Adopt(ctx, p.database, oid)
	case "release":
		return p.Release(ctx, p.database, oid)
	}
	e, _ := p.stored(oid)
	return p.feed(ctx, e, leastFeed, lockTries, 1)
}

// draws is what was handed out of a sequence.
type draws struct {
	t    testing.TB
	seen map[int64]string
}

func (d *draws) take(v int64, by string) {
	require.Empty(d.t, d.seen[v], "%d: now by %s", v, by)
	d.seen[v] = by
}

// draw calls a sequence through whoever has it, and past nextvald.
func (d *draws) draw(p *process, oid uint32, n int) {
	for range n {
		if _, found, err := p.entryOf(p.t.Context(), p.database, oid); err == nil && found {
			d.take(p.next(oid), "nextvald")
		}
		v, err := p.nextval("s")
		require.NoError(d.t, err)
		d.take(v, "others")
	}
}

// works requires that a sequence goes on after a handover that was cut off, and can be handed over.
func (d *draws) works(p *process, oid uint32) {
	if e, found, err := p.entryOf(d.t.Context(), p.database, oid); err == nil && found {
		_, err := p.settled(d.t.Context(), e)
		if err != nil {
			require.ErrorIs(d.t, err, sequencer.ErrUndefined)
		}
	}
	d.draw(p, oid, 5)
	require.NoError(d.t, p.Adopt(d.t.Context(), p.database, oid))
	d.draw(p, oid, 5)
	require.NoError(d.t, p.feedNow(d.t.Context(), p.database, oid, 1, growth))
	d.draw(p, oid, 5)
	require.NoError(d.t, p.Release(d.t.Context(), p.database, oid))
	d.draw(p, oid, 5)
	require.Contains(d.t, p.declared("s"), "bigint 1 by 1 from 1 to 9223372036854775807 cache 1 cycle f at")
}

// A process is killed between every two steps: no value comes twice, and the sequence works after.
func TestKilledHandover(t *testing.T) {
	for operation, at := range steps {
		for _, step := range at {
			t.Run(operation+"/"+step, func(t *testing.T) {
				s, database := testDatabase(t)
				s.run("CREATE SEQUENCE s")
				file := filepath.Join(t.TempDir(), "store.db")
				d := &draws{t: t, seen: map[int64]string{}}
				oid := onStore(t, file, s, database, func(p *process) uint32 {
					oid := p.oid("s")
					if operation != "adopt" {
						require.NoError(t, p.Adopt(t.Context(), database, oid))
					}
					d.draw(p, oid, 5)
					return oid
				})
				child := exec.Command(os.Args[0], "-test.run=^TestDyingProcess$")
				child.Env = append(os.Environ(), "NEXTVALD_TEST_DYING="+strings.Join([]string{operation, step, file, s.url, database, fmt.Sprint(oid)}, "\n"))
				out, err := child.CombinedOutput()
				require.Equal(t, syscall.SIGKILL, child.ProcessState.Sys().(syscall.WaitStatus).Signal(), "%v: %s", err, out)
				onStore(t, file, s, database, func(p *process) uint32 {
					d.works(p, oid)
					return oid
				})
			})
		}
	}
}

// onStore runs f in a process on a file, and ends it without giving back what it holds, as if it were killed.
func onStore(t testing.TB, file string, s *testUpstream, database string, f func(*process) uint32) uint32 {
	store, err := boltstore.Open(file, "default")
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close()) }()
	p := newProcess(t, store, s, database)
	defer func() {
		p.Close()
		_ = p.registry.Close(context.Background())
	}()
	return f(p)
}

// TestDyingProcess is what is killed.
func TestDyingProcess(t *testing.T) {
	order := os.Getenv("NEXTVALD_TEST_DYING")
	if order == "" {
		t.Skip("for TestKilledHandover alone")
	}
	parts := strings.Split(order, "\n")
	var oid uint32
	_, err := fmt.Sscan(parts[5], &oid)
	require.NoError(t, err)
	onStore(t, parts[2], &testUpstream{t: t, url: parts[3]}, parts[4], func(p *process) uint32 {
		p.between = func(step string) {
			if step == parts[1] {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		}
		t.Log(p.do(parts[0], oid))
		return 0
	})
}

// interrupted interrupts every operation once after each of its steps, in a database of its own: no value comes twice, and the
// sequence works after.
func interrupted(t *testing.T, database func(t *testing.T, name string) (*testUpstream, string), interrupt func(p *process)) {
	for operation, at := range steps {
		for _, step := range at {
			t.Run(operation+"/"+step, func(t *testing.T) {
				s, database := database(t, strings.ReplaceAll(operation+"_"+step, " ", "_"))
				s.run("CREATE SEQUENCE s")
				p := newProcess(t, memstore.New(), s, database)
				oid := p.oid("s")
				d := &draws{t: t, seen: map[int64]string{}}
				if operation != "adopt" {
					require.NoError(t, p.Adopt(t.Context(), database, oid))
				}
				d.draw(p, oid, 5)
				done := false
				p.between = func(at string) {
					if at == step && !done {
						done = true
						interrupt(p)
					}
				}
				t.Log(p.do(operation, oid))
				require.True(t, done)
				p.between = func(string) {}
				d.works(p, oid)
			})
		}
	}
}

// The control connection is cut between every two steps, and the process lives on.
func TestCutHandover(t *testing.T) {
	interrupted(t, func(t *testing.T, _ string) (*testUpstream, string) { return testDatabase(t) }, func(p *process) {
		_, err := p.direct.Exec(context.Background(), `SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid()`)
		require.NoError(p.t, err)
	})
}

// The upstream crashes between every two steps, and comes back.
func TestCrashDuringHandover(t *testing.T) {
	server := testenv.Postgres(t)
	interrupted(t, func(t *testing.T, name string) (*testUpstream, string) {
		testenv.Exec(t, server.URL(), "CREATE DATABASE "+name)
		u, err := url.Parse(server.URL())
		require.NoError(t, err)
		u.Path = "/" + name
		return &testUpstream{t: t, url: u.String()}, name
	}, func(p *process) {
		server.Stop(syscall.SIGQUIT)
		server.Start()
		direct, err := pgx.Connect(context.Background(), p.server.url)
		require.NoError(p.t, err)
		p.t.Cleanup(func() { _ = direct.Close(context.Background()) })
		p.direct = direct
	})
}
