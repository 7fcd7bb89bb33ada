package native

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/nextvald/nextvald/proxy"
	"github.com/nextvald/nextvald/sequencer"
)

const (
	// lockHeld bounds how long the lock of a sequence is held: what others of its callers wait at most.
	lockHeld = 3 * time.Second
	// handoverAbandoned is how old a handover under way is when its author is taken for dead.
	handoverAbandoned = 10 * time.Second
	lockNotAvailable  = "55P03"
)

// lockTries are the times for which the lock of a sequence is waited for, one after the other: while ALTER waits, so does
// every later caller of nextval.
var lockTries = []time.Duration{20 * time.Millisecond, 100 * time.Millisecond, time.Second}

// Handovers hands sequences over between the upstream and the store, and keeps the fences of those that the store has. All
// of it happens on control connections, in short transactions. All methods are safe for concurrent use.
type Handovers struct {
	registry *sequencer.Registry
	controls *controls
	log      *slog.Logger
	feeder   *feeder // nil until Start
	pace     pace

	// abandoned is how old a handover under way is when its author is taken for dead.
	abandoned time.Duration
	// paused says that no connection to a database should be opened by itself.
	paused func(database string) bool
	// between is called between any two steps of a handover; tests end there.
	between func(step string)
}

// NewHandovers returns what hands sequences over between an upstream and the store of a registry. Close it before the
// registry.
func NewHandovers(u Upstream, registry *sequencer.Registry, log *slog.Logger) *Handovers {
	return newHandovers(newControls(u), registry, log)
}

// NewHandovers returns what hands sequences over on the manager's control connections, which Revoke closes: while a database
// is announced as a whole, perhaps to be dropped, its fences are not looked at. Close it after the manager.
func (m *Manager) NewHandovers(registry *sequencer.Registry, log *slog.Logger) *Handovers {
	h := newHandovers(m.controls, registry, log)
	h.paused = func(database string) bool {
		d := m.database(database)
		return d.revoking.Load() > 0 || d.passed.Load() > m.elapsed(m.cfg.Clock.Now())
	}
	return h
}

func newHandovers(c *controls, registry *sequencer.Registry, log *slog.Logger) *Handovers {
	return &Handovers{
		registry: registry, controls: c, log: log, pace: usualPace, abandoned: handoverAbandoned,
		paused: func(string) bool { return false }, between: func(string) {},
	}
}

// Start keeps the fences of the registry's loaded databases ahead of their use, until Close.
func (h *Handovers) Start() { h.feeder = startFeeder(h) }

// Close ends what runs in the background, and the control connections.
func (h *Handovers) Close() {
	if h.feeder != nil {
		h.feeder.close()
	}
	h.controls.close()
}

// errCommit: the upstream did not say whether a transaction was committed.
var errCommit = errors.New("the outcome of the transaction is unknown")

// locked is a sequence whose lock (SHARE ROW EXCLUSIVE) a transaction holds: nobody else draws from it or alters it.
type locked struct {
	relation
	last   int64
	called bool
	conn   *pgx.Conn
	// declared is the definition that the store has, where f found it.
	declared sequencer.Definition
}

// exec runs a statement in the transaction.
func (l *locked) exec(ctx context.Context, sql string) error {
	_, err := l.conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
	return err
}

// lock runs f in a transaction that holds the lock of a sequence, and commits when f says so. Errors: errGone;
// proxy.ErrNotAllowed; 55P03 when the lock cannot be had; errCommit, when the transaction may have been committed; f's.
func (h *Handovers) lock(ctx context.Context, database string, oid uint32, f func(ctx context.Context, l *locked) (commit bool, err error)) error {
	return h.lockWithin(ctx, database, oid, lockTries, f)
}

// lockWithin is lock that waits for these times.
func (h *Handovers) lockWithin(
	ctx context.Context, database string, oid uint32, tries []time.Duration, f func(ctx context.Context, l *locked) (commit bool, err error),
) error {
	for i := 0; ; i++ {
		err := h.controls.use(ctx, database, func(ctx context.Context, conn *pgx.Conn) error {
			return h.lockOn(ctx, conn, oid, tries[i], f)
		})
		if !busy(err) || i == len(tries)-1 {
			return err
		}
		// Those who waited behind get their turn.
		select {
		case <-time.After(tries[i]/2 + rand.N(tries[i])):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// busy reports whether an error says that the lock could not be had in time.
func busy(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == lockNotAvailable
}

func (h *Handovers) lockOn(
	ctx context.Context, conn *pgx.Conn, oid uint32, within time.Duration, f func(context.Context, *locked) (bool, error),
) error {
	r, err := readRelation(ctx, conn, oid)
	switch {
	case err != nil:
		return err
	case !r.owned:
		return proxy.ErrNotAllowed
	}
	// ALTER is the only statement that takes the lock. This one changes nothing. Should this process be stopped with the lock
	// in hand, the server ends the transaction.
	_, err = conn.Exec(ctx, fmt.Sprintf(`BEGIN; SET LOCAL lock_timeout = %d; SET LOCAL statement_timeout = 0;
		SET LOCAL idle_in_transaction_session_timeout = %d; ALTER SEQUENCE %s CACHE %d`,
		within.Milliseconds(), 2*lockHeld.Milliseconds(), r.quoted, r.cache), pgx.QueryExecModeSimpleProtocol)
	if err == nil {
		err = h.whileLocked(ctx, conn, r, f)
	}
	if err != nil && !conn.IsClosed() && !errors.Is(err, errCommit) {
		rolling, cancel := context.WithTimeout(context.WithoutCancel(ctx), controlTimeout)
		defer cancel()
		_, _ = conn.Exec(rolling, "ROLLBACK", pgx.QueryExecModeSimpleProtocol) // else the connection is closed
	}
	if errors.Is(err, errNothing) {
		return nil
	}
	return err
}

// errNothing rolls a transaction back in which there was nothing to do.
var errNothing = errors.New("nothing to do")

func (h *Handovers) whileLocked(ctx context.Context, conn *pgx.Conn, before relation, f func(context.Context, *locked) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, lockHeld)
	defer cancel()
	h.between("locked")
	r, err := readRelation(ctx, conn, before.oid)
	if err == nil && r.quoted != before.quoted {
		err = fmt.Errorf("%s was renamed meanwhile", before.quoted)
	}
	if err != nil {
		return err
	}
	l := &locked{relation: r, conn: conn}
	if l.last, l.called, err = r.where(ctx, conn); err != nil {
		return err
	}
	commit, err := f(ctx, l)
	if err != nil {
		return err
	}
	if !commit {
		return errNothing
	}
	h.between("commit")
	tag, err := conn.Exec(ctx, "COMMIT", pgx.QueryExecModeSimpleProtocol)
	var refused *pgconn.PgError
	switch {
	case errors.As(err, &refused) && refused.Severity == "ERROR":
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", errCommit, err)
	case tag.String() != "COMMIT":
		return errors.New("the upstream rolled the transaction back")
	}
	h.between("committed")
	return nil
}

// here makes sure that an item is of the database that a relation was read in: another one of the same name may have a
// sequence of the same OID.
func (r relation) here(item sequencer.Item) error {
	if r.database != item.DBOID {
		return errElsewhere
	}
	return nil
}

var errElsewhere = errors.New("the store's sequence is of another database, which had this one's name")

// gone reports whether the database that an item is of does not have its sequence any more.
func (h *Handovers) gone(ctx context.Context, e sequencer.Entry, item sequencer.Item) (bool, error) {
	var gone bool
	err := h.controls.use(ctx, e.Name.Database, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT oid = $1 AND NOT EXISTS (SELECT FROM pg_catalog.pg_class WHERE oid = $2)
			FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()`, item.DBOID, item.RelOID).Scan(&gone)
	})
	return gone, err
}

// bury removes what the store has of a sequence that was dropped past nextvald.
func (h *Handovers) bury(ctx context.Context, e sequencer.Entry, item sequencer.Item) error {
	gone, err := h.gone(ctx, e, item)
	if err == nil && !gone {
		err = errElsewhere
	}
	if err != nil {
		return err
	}
	return h.registry.Remove(ctx, e, item)
}

// entryOf is the entry of a sequence that the store has, by its OID in the upstream. found is false when there is none.
func (h *Handovers) entryOf(ctx context.Context, database string, oid uint32) (e sequencer.Entry, found bool, err error) {
	s, err := h.registry.LookupOID(ctx, database, oid)
	if errors.Is(err, sequencer.ErrUndefined) {
		return e, false, nil
	}
	if err != nil {
		return e, false, err
	}
	return sequencer.Entry{Name: s.Name(), Incarnation: s.Incarnation(), OID: s.OID()}, true, nil
}
