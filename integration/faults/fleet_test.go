package faults

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/nextvald/nextvald/integration/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// fleet is some processes on one store, any of which may be killed and started again while clients use it.
type fleet struct {
	start    func(member int, listen string) (*testenv.Process, error)
	database string // the URL behind
	begin    time.Time

	mu      sync.RWMutex
	members []member
	lives   int            // begun so far
	ended   map[int]bool   // lives
	stops   map[int][]stop // by life
}

// member is a place in the fleet, with an address of its own.
type member struct {
	process *testenv.Process
	life    int
}

// stop is a time for which a process did not run.
type stop struct{ from, to time.Time }

func newFleet(t testing.TB, n int, database string, start func(member int, listen string) (*testenv.Process, error)) *fleet {
	f := &fleet{start: start, database: database, begin: time.Now(), ended: map[int]bool{}, stops: map[int][]stop{}}
	for i := range n {
		p, err := start(i, "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		f.members = append(f.members, member{p, i})
		f.lives++
	}
	return f
}

// at returns a process and the life that it is in.
func (f *fleet) at(i int) (*testenv.Process, int) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.members[i].process, f.members[i].life
}

// over reports whether a life has ended.
func (f *fleet) over(life int) bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.ended[life]
}

// since is the moment on the fleet's clock.
func (f *fleet) since() time.Duration { return time.Since(f.begin) }

// kill ends a life.
func (f *fleet) kill(i int) {
	f.mu.Lock()
	p := f.members[i].process
	f.ended[f.members[i].life] = true
	f.mu.Unlock()
	p.Kill()
}

// revive starts a process that was killed where clients know it, and returns its new life.
func (f *fleet) revive(i int) (life int, err error) {
	f.mu.Lock()
	life = f.lives
	f.lives++
	old := f.members[i].process
	f.mu.Unlock()
	p, err := f.start(i, old.Address)
	if err != nil {
		return life, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.members[i] = member{p, life}
	return life, nil
}

// pause stops a process for a while, as a machine that is suspended does.
func (f *fleet) pause(ctx context.Context, i int, d time.Duration) {
	p, life := f.at(i)
	from := time.Now()
	p.Signal(syscall.SIGSTOP)
	sleep(ctx, d)
	p.Signal(syscall.SIGCONT)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stops[life] = append(f.stops[life], stop{from, time.Now()})
}

// running reports whether a life was not stopped at any moment between two.
func (f *fleet) running(life int, from, to time.Time) bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	for _, s := range f.stops[life] {
		if s.from.Before(to) && s.to.After(from) {
			return false
		}
	}
	return true
}

var errRestarted = errors.New("the process was started again meanwhile")

// connectTimeout is how long a client waits for a session.
const connectTimeout = 5 * time.Second

// connect opens a session, and says which life of the process it is in.
func (f *fleet) connect(ctx context.Context, i int) (conn *pgx.Conn, life int, err error) {
	p, life := f.at(i)
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err = pgx.Connect(ctx, p.URL(f.database))
	if err != nil {
		return nil, life, err
	}
	if _, now := f.at(i); now != life {
		_ = conn.Close(ctx)
		return nil, life, errRestarted // which of its lives the session is in is not known
	}
	return conn, life, nil
}

// Ways to ask for values of a sequence.
const (
	extended = iota // one value by the extended protocol
	simple          // one by the simple protocol
	several         // some in one statement
	pipeline        // some statements at once
	ways
)

// ask asks for n values of a sequence, and returns those that came, also when there is an error.
func ask(ctx context.Context, conn *pgx.Conn, sequence string, way, n int) (values []int64, err error) {
	call := fmt.Sprintf("nextval('%s')", sequence)
	var v int64
	switch way {
	case extended:
		err = conn.QueryRow(ctx, "SELECT "+call).Scan(&v)
	case simple:
		err = conn.QueryRow(ctx, "SELECT "+call, pgx.QueryExecModeSimpleProtocol).Scan(&v)
	case several:
		var w int64
		if err = conn.QueryRow(ctx, "SELECT "+call+", "+call).Scan(&v, &w); err == nil {
			return []int64{v, w}, nil
		}
		return nil, err
	case pipeline:
		batch := &pgx.Batch{}
		for range n {
			batch.Queue("SELECT " + call)
		}
		results := conn.SendBatch(ctx, batch)
		for range n {
			if err = results.QueryRow().Scan(&v); err != nil {
				break
			}
			values = append(values, v)
		}
		return values, errors.Join(err, results.Close())
	}
	if err != nil {
		return nil, err
	}
	return []int64{v}, nil
}

// sleep waits, and reports whether ctx goes on.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
