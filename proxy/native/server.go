package native

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/nextvald/nextvald/sequencer"
)

// server tells a server from another one, and from itself after a start: then it may have been put back to an older state.
// What nextvald's role may not ask is empty.
type server struct {
	system, timeline string
	started          string
	database         uint32
}

// Questions about a server, each for when the one before it is refused.
var identities = []string{
	`SELECT (SELECT system_identifier FROM pg_control_system())::text, substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8),
		pg_postmaster_start_time()::text, oid FROM pg_database WHERE datname = current_database()`,
	`SELECT (SELECT system_identifier FROM pg_control_system())::text, '',
		pg_postmaster_start_time()::text, oid FROM pg_database WHERE datname = current_database()`,
	`SELECT '', '', pg_postmaster_start_time()::text, oid FROM pg_database WHERE datname = current_database()`,
}

var errStandby = errors.New("it is a standby")

// identify finds out which server answers. A standby gives no values, and becomes another server when it is promoted: it is
// an error.
func identify(ctx context.Context, conn *pgx.Conn) (s server, err error) {
	var standby bool
	if err := conn.QueryRow(ctx, "SELECT pg_is_in_recovery()").Scan(&standby); err != nil {
		return s, err
	}
	if standby {
		return s, errStandby
	}
	for _, question := range identities {
		err = conn.QueryRow(ctx, question).Scan(&s.system, &s.timeline, &s.started, &s.database)
		var refused *pgconn.PgError
		if err == nil || !errors.As(err, &refused) {
			break
		}
	}
	return s, err
}

// settleTimeout bounds the time in which sequences are brought forward that are in doubt, all of a database.
const settleTimeout = 30 * time.Second

// mostForward bounds the values that are drawn, and lost, to bring a server past what was drawn before. It takes a second.
const mostForward = 1_000_000

// howFar tells how many values a sequence is before $2, NULL when it was never called; whether $2 is beyond its limit; and
// whether it repeats its values anyway.
const howFar = `SELECT ceil(($2::bigint::numeric - last) / seqincrement)::text,
	$2::bigint > seqmax OR $2::bigint < seqmin, seqcycle, has_sequence_privilege(seqrelid, 'UPDATE')
	FROM (SELECT *, pg_sequence_last_value(seqrelid) AS last FROM pg_sequence WHERE seqrelid = $1::bigint::oid) AS known`

// forwardKey is that of the advisory lock that those who move sequences forward take, of all processes.
const forwardKey = 0x6e657874 // "next"

// settle brings the sequences in doubt past what was drawn of them, on the server that answers now. Those for which that
// fails stay in doubt.
func (d *database) settle() {
	ctx, cancel := context.WithTimeout(d.m.ctx, settleTimeout)
	defer cancel()
	for _, s := range d.all() {
		s.mu.Lock()
		doubted, furthest, failed := s.doubted.Load(), s.furthest, s.failed
		s.mu.Unlock()
		if !doubted {
			continue
		}
		if furthest == nil {
			s.trust()
			continue
		}
		oid, behind := s.oid, false
		var err error
		if d.moved {
			oid, err = namesake(ctx, d.conn, s.name)
		}
		if err == nil {
			behind, err = bringForward(ctx, d.conn, oid, *furthest)
		}
		switch {
		case err == nil:
			s.trust()
		case d.conn.IsClosed():
			d.lost()
			return
		case behind && failed == nil:
			d.m.cfg.Logger.Error("the upstream was set back: it does not know values of a sequence that were handed out",
				"sequence", s.name.String(), "furthest", *furthest, "error", err)
			s.doubt(s.setBack(*furthest, err))
		case failed == nil:
			d.m.cfg.Logger.Warn("cannot tell whether the upstream knows all values of a sequence", "sequence", s.name.String(), "error", err)
			s.doubt(s.unknown("The upstream is another server than before, or started again.", err))
		}
	}
}

// reread finds out where sequences stand that somebody may have put back, so that a server that answers later is not brought
// past what they were before.
func (d *database) reread(ctx context.Context) {
	const whereIsIt = "SELECT pg_sequence_last_value(seqrelid), seqincrement FROM pg_sequence WHERE seqrelid = $1::bigint::oid"
	for _, s := range d.all() {
		if d.conn == nil || !s.changed.Load() || s.doubted.Load() || s.passes(d.m.cfg.Clock.Now()) {
			continue
		}
		era := s.gate.count.Load()
		var last *int64
		var increment int64
		switch err := d.conn.QueryRow(ctx, whereIsIt, int64(s.oid)).Scan(&last, &increment); {
		case d.conn.IsClosed():
			d.lost()
		case err != nil && !errors.Is(err, pgx.ErrNoRows):
			// Next time.
		default:
			s.mu.Lock()
			if last == nil {
				s.furthest = nil
			} else if s.furthest != nil && further(*s.furthest, *last, increment) {
				s.furthest = last
			}
			s.mu.Unlock()
			if s.gate.count.Load() == era { // else it may have been put back since
				s.changed.Store(false)
			}
		}
	}
}

// setBack is the error of a sequence of which the server knows less than was drawn, too much less to draw it again.
func (s *drawn) setBack(furthest int64, cause error) error {
	return &sequencer.Error{
		Code:    "55000",
		Message: fmt.Sprintf("the upstream was set back for sequence %q", s.name.Name),
		Detail:  fmt.Sprintf("Values up to %d were handed out before, and would be handed out again.", furthest),
		Hint:    fmt.Sprintf("Move it past every value in use: SELECT setval('%s.%s', %d).", s.name.Schema, s.name.Name, furthest),
		Err:     cause,
	}
}

// namesake is the OID of the sequence of a name, 0 when there is none.
func namesake(ctx context.Context, conn *pgx.Conn, name sequencer.Name) (oid uint32, err error) {
	err = conn.QueryRow(ctx, "SELECT coalesce(to_regclass(format('%I.%I', $1::text, $2::text)), 0)::oid", name.Schema, name.Name).Scan(&oid)
	return oid, err
}

// bringForward makes sure that a sequence gives no value up to furthest any more. behind: it is, and cannot be moved.
func bringForward(ctx context.Context, conn *pgx.Conn, oid uint32, furthest int64) (behind bool, err error) {
	for {
		var distance *string
		var beyond, cycle, update bool
		err := conn.QueryRow(ctx, howFar, int64(oid), furthest).Scan(&distance, &beyond, &cycle, &update)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return false, nil // it is another one that had this OID
		case err != nil:
			return false, err
		case cycle:
			return false, nil
		}
		steps := int64(1) // one that was not called yet tells where it is when it is
		if distance != nil {
			if _, err := fmt.Sscan(*distance, &steps); err != nil {
				steps = mostForward + 1 // more than an int8
			}
		}
		switch {
		case steps <= 0:
			return false, nil
		case beyond:
			return true, errors.New("what was handed out is beyond its limit")
		case steps > mostForward && !update:
			return true, fmt.Errorf("it is %s values behind, and nextvald's role has no UPDATE privilege to move it", *distance)
		case steps > mostForward:
			return false, setForward(ctx, conn, oid, furthest)
		}
		var drawn int64
		if err := conn.QueryRow(ctx, "SELECT count(nextval($1::bigint::oid::regclass)) FROM generate_series(1, $2::bigint)",
			int64(oid), max(leastDrawn, min(steps, mostDrawn))).Scan(&drawn); err != nil {
			return false, err
		}
	}
}

// setForward moves a sequence to a value that is far ahead. Whoever else does the same waits; all others would have to call
// it a million times between looking and moving.
func setForward(ctx context.Context, conn *pgx.Conn, oid uint32, furthest int64) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1::bigint)", int64(forwardKey)); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `SELECT setval(seqrelid::regclass, $2::bigint) FROM pg_sequence WHERE seqrelid = $1::bigint::oid
			AND ($2::bigint::numeric - pg_sequence_last_value(seqrelid)) / seqincrement > 0`, int64(oid), furthest)
		return err
	})
}
