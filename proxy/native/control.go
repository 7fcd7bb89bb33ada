package native

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// Upstream is the PostgreSQL behind, as far as nextvald speaks with it on its own account.
type Upstream interface {
	// Control opens a connection to a database as the role of nextvald's own.
	Control(ctx context.Context, database string) (*pgx.Conn, error)
}

const (
	// mostControls is how many control connections to one database are used at once; further users wait.
	mostControls = 4
	// idleControls is how many of them are kept.
	idleControls = 1
	// keepControl is how long. DROP DATABASE, which may come past nextvald, waits 5 s for other connections to go.
	keepControl = 2 * time.Second
	// controlTimeout bounds what a control connection does that nobody waits for.
	controlTimeout = 5 * time.Second
)

// prepareControl makes sure of what statements of a control connection rely on, whatever role and database say: names are
// PostgreSQL's own, statements see what was committed before them, and what was committed is on disk.
const prepareControl = `SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false),
	pg_catalog.set_config('default_transaction_isolation', 'read committed', false),
	pg_catalog.set_config('default_transaction_deferrable', 'off', false),
	CASE WHEN pg_catalog.current_setting('synchronous_commit') = 'off'
		THEN pg_catalog.set_config('synchronous_commit', 'on', false) END`

// openControl opens a control connection that is ready for use.
func openControl(ctx context.Context, u Upstream, database string) (*pgx.Conn, error) {
	conn, err := u.Control(ctx, database)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, prepareControl, pgx.QueryExecModeSimpleProtocol); err != nil {
		closeControl(conn)
		return nil, err
	}
	return conn, nil
}

// closeControl ends a control connection, whatever is under way in it.
func closeControl(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), controlTimeout)
	defer cancel()
	_ = conn.Close(ctx)
}

// controls are the control connections of a process but for those that draw, so that a handover that waits for a lock makes
// no caller of another sequence wait. The zero value is not ready for use. It is safe for concurrent use.
type controls struct {
	upstream Upstream
	keep     time.Duration // keepControl, but in tests

	mu        sync.Mutex
	closed    bool
	databases map[string]*controlPool
	using     sync.WaitGroup
}

// controlPool is the control connections to one database.
type controlPool struct {
	turns chan struct{} // a token for each connection that may be used
	idle  []idleControl // controls.mu guards it
}

// idleControl is a connection that nobody uses, and what closes it.
type idleControl struct {
	*pgx.Conn
	expiry *time.Timer
}

var errClosed = errors.New("nextvald stops")

func newControls(u Upstream) *controls {
	return &controls{upstream: u, keep: keepControl, databases: map[string]*controlPool{}}
}

// use runs f with a control connection to a database, which it opens when none is idle. f gets a connection outside of a
// transaction; one that it leaves in a transaction, or that broke, is closed. f's error is returned as it is. The statements
// of f are sent without being prepared.
func (c *controls) use(ctx context.Context, database string, f func(ctx context.Context, conn *pgx.Conn) error) error {
	p, err := c.pool(database)
	if err != nil {
		return err
	}
	defer c.using.Done()
	select {
	case <-p.turns:
		defer func() { p.turns <- struct{}{} }()
	case <-ctx.Done():
		return ctx.Err()
	}
	conn := c.take(ctx, p)
	if conn == nil {
		if conn, err = openControl(ctx, c.upstream, database); err != nil {
			return err
		}
	}
	err = f(ctx, conn)
	c.put(p, conn)
	return err
}

// pool returns the connections of a database. The caller is one of using, unless there is an error.
func (c *controls) pool(database string) (*controlPool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errClosed
	}
	c.using.Add(1)
	p := c.databases[database]
	if p == nil {
		p = &controlPool{turns: make(chan struct{}, mostControls)}
		for range mostControls {
			p.turns <- struct{}{}
		}
		c.databases[database] = p
	}
	return p, nil
}

// take returns an idle connection that its server has not closed, nil when there is none.
func (c *controls) take(ctx context.Context, p *controlPool) *pgx.Conn {
	for {
		c.mu.Lock()
		n := len(p.idle)
		if n == 0 {
			c.mu.Unlock()
			return nil
		}
		idle := p.idle[n-1]
		p.idle = p.idle[:n-1]
		c.mu.Unlock()
		idle.expiry.Stop()
		if idle.Ping(ctx) == nil {
			return idle.Conn
		}
		closeControl(idle.Conn)
	}
}

// put keeps a connection for the next user, or closes it.
func (c *controls) put(p *controlPool, conn *pgx.Conn) {
	const outside = 'I' // of a transaction
	keep := !conn.IsClosed() && !conn.PgConn().IsBusy() && conn.PgConn().TxStatus() == outside
	c.mu.Lock()
	if keep = keep && !c.closed && len(p.idle) < idleControls; keep {
		p.idle = append(p.idle, idleControl{conn, time.AfterFunc(c.keep, func() { c.expire(p, conn) })})
	}
	c.mu.Unlock()
	if !keep {
		closeControl(conn)
	}
}

// expire closes a connection that is idle still.
func (c *controls) expire(p *controlPool, conn *pgx.Conn) {
	c.mu.Lock()
	i := slices.IndexFunc(p.idle, func(idle idleControl) bool { return idle.Conn == conn })
	if i < 0 || c.closed { // then close does it
		c.mu.Unlock()
		return
	}
	p.idle = slices.Delete(p.idle, i, i+1)
	c.using.Add(1)
	c.mu.Unlock()
	defer c.using.Done()
	closeControl(conn)
}

// forget closes the idle connections to a database.
func (c *controls) forget(database string) {
	c.mu.Lock()
	var idle []idleControl
	if p := c.databases[database]; p != nil {
		idle, p.idle = p.idle, nil
	}
	c.mu.Unlock()
	for _, i := range idle {
		i.expiry.Stop()
		closeControl(i.Conn)
	}
}

// close ends all connections, when their users have done with them. Those who come later get an error.
func (c *controls) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.using.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.databases {
		for _, i := range p.idle {
			i.expiry.Stop()
			closeControl(i.Conn)
		}
		p.idle = nil
	}
}
