package native

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// leastDrawn is the fewest values of a draw. A call of nextval writes for 32 further ones what a crash would need, and those
// write nothing: what tells of them may be another transaction's, which is not on disk yet. So only a transaction that
// draws more is sure to write itself, and then to be on disk when it has ended. (An id of its own is not enough: without
// a record beside that of its end, PostgreSQL does not wait for the disk.)
const leastDrawn = 33

// drawValues calls nextval $2 times, or fewer: a call beyond the limit would fail, and what was drawn up to there would be
// lost for everybody, so that a draw takes no more than a small part of what is left, as others may draw at the same time.
// Near the limit, and so near where a CYCLE begins again, and before the first call, after which it is known what is left,
// it draws nothing. With a CACHE it draws what is cached anyway, unless that is far more than is wanted: then it draws
// nothing either. The result is the values' ranges: the difference of a value and its place in the draw times the increment
// is the same for all of one. It is written so that it does not overflow.
var drawValues = fmt.Sprintf(`WITH known AS (
	SELECT seqrelid, seqincrement AS step, seqcache AS cache, trunc((
		(CASE WHEN seqincrement > 0 THEN seqmax ELSE seqmin END)::numeric - pg_sequence_last_value(seqrelid)) / seqincrement / 64) AS most
	FROM pg_sequence WHERE seqrelid = $1::bigint::oid
), bound AS MATERIALIZED (
	SELECT step, least(ceil($2::numeric / cache) * cache, most)::bigint AS n FROM known
	JOIN pg_class AS c ON c.oid = seqrelid AND c.relpersistence = 'p'
	WHERE cache <= greatest(64, 4 * $2::bigint) AND most >= %d
)
SELECT min(v), max(v), count(*) FROM (
	SELECT step, n, i, nextval($1::bigint::oid::regclass) AS v FROM bound, generate_series(1, n) AS i OFFSET 0) AS drawn
GROUP BY v < 0, CASE WHEN (v < 0) = (step < 0) THEN v - i * step ELSE v + (n - i) * step END`, leastDrawn)

// lookAtSequence tells what was drawn from. Until the end of the transaction nobody can alter the sequence, as it was drawn
// from in it.
const lookAtSequence = `SELECT n.nspname::text, c.relname::text, c.relfilenode, c.relpersistence::text, s.seqincrement, s.seqcache
	FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace JOIN pg_sequence AS s ON s.seqrelid = c.oid
	WHERE c.oid = $1::bigint::oid`

// looks is what a sequence looks like in the catalog.
type looks struct {
	schema, name string
	filenode     uint32
	persistence  string
	increment    int64
	cache        int64
}

var (
	errNoSequence = errors.New("there is no such sequence")
	errNearLimit  = errors.New("it is near its limit, was never called, or has a large CACHE")
	errTransient  = errors.New("it is not permanent")
	errOtherName  = errors.New("it has another name")
	errMoved      = errors.New("somebody moved or altered it")
	errOdd        = errors.New("the values drawn make no sense")
)

// draw draws values of a sequence, unless calls are to be passed. Those who wait look again when it is done.
func (d *database) draw(s *drawn) {
	ctx, cancel := context.WithTimeout(d.m.ctx, drawTimeout)
	defer cancel()
	if s.verifying.Swap(false) {
		if err := d.verify(ctx, s); err != nil {
			d.judge(s, err)
		}
	}
	if !s.wanted.Load() {
		return
	}
	if s.doubted.Load() || s.passes(d.m.cfg.Clock.Now()) {
		s.giveUp()
		return
	}
	if err := d.connect(ctx); err != nil {
		s.wanted.Store(false)
		d.judge(s, err)
		return
	}
	now := d.m.cfg.Clock.Now()
	e := era{asked: now, sequence: s.gate.count.Load(), name: s.slot.gate.count.Load()}
	// What makes calls pass, or puts what was drawn into doubt, from here on ends the era.
	if s.doubted.Load() || s.passes(now) {
		s.giveUp()
		return
	}
	if passed := max(s.gate.passedAt.Load(), s.slot.gate.passedAt.Load()); passed > 0 {
		if wait := passed + int64(settleTime) - d.m.elapsed(now); wait > 0 {
			d.m.spawn(func() {
				if d.m.rest(time.Duration(wait)) {
					d.want(s)
				}
			})
			return
		}
	}
	b, err := d.drawBlock(ctx, s, e)
	s.wanted.Store(false) // before those who wait look again: they may want another
	if err != nil {
		d.judge(s, err)
		return
	}
	s.install(b)
}

// verify looks at the sequence's name.
func (d *database) verify(ctx context.Context, s *drawn) error {
	if err := d.connect(ctx); err != nil {
		return err
	}
	found, err := readLooks(d.conn.QueryRow(ctx, lookAtSequence, int64(s.oid)))
	if err != nil {
		return err
	}
	return s.named(found)
}

// named notes when the upstream calls the sequence by another name.
func (s *drawn) named(found looks) error {
	if found.schema == s.name.Schema && found.name == s.name.Name {
		return nil
	}
	s.misnamed.Store(true)
	return errOtherName
}

// giveUp ends a draw that is not to be made now.
func (s *drawn) giveUp() {
	s.wanted.Store(false)
	s.broadcast()
}

// drawBlock draws values of a sequence on the connection.
func (d *database) drawBlock(ctx context.Context, s *drawn, e era) (*block, error) {
	if d.discard.Swap(false) {
		if _, err := d.conn.Exec(ctx, "DISCARD SEQUENCES"); err != nil {
			d.discard.Store(true)
			return nil, err
		}
	}
	ranges, found, err := drawRanges(ctx, d.conn, s.oid, s.nextSize(e.asked))
	d.usedAt = d.m.cfg.Clock.Now()
	if found.cache > 1 {
		d.discard.Store(true) // what the connection has cached would be older than a block may be
	}
	if err == nil {
		err = s.named(found)
	}
	switch {
	case err != nil:
		return nil, err
	case found.persistence != "p":
		return nil, errTransient
	case len(ranges) == 0:
		return nil, errNearLimit
	}
	b := newBlock(ranges, found.increment, e)
	if !s.follows(b, found) {
		return nil, errMoved
	}
	return b, nil
}

// follows notes the furthest value drawn, and reports whether all values of a block are further than those drawn before.
func (s *drawn) follows(b *block, found looks) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gate.count.Load() != b.era.sequence {
		return true // none of it is handed out
	}
	before, first, last := s.furthest, b.ranges[0].first, b.last()
	same := before == nil || found.filenode == s.filenode && further(first, *before, found.increment)
	s.furthest, s.filenode = &last, found.filenode
	return same
}

// further reports whether a value comes after another one in a sequence of some increment.
func further(value, than, increment int64) bool {
	if increment < 0 {
		return value < than
	}
	return value > than
}

// drawRanges draws about n values, leastDrawn or more, in a transaction of its own that is on disk when it returns. The ranges are in the
// sequence's order; there are none when the sequence is near its limit.
func drawRanges(ctx context.Context, conn *pgx.Conn, oid uint32, n int64) ([]valueRange, looks, error) {
	batch := &pgx.Batch{}
	batch.Queue(drawValues, int64(oid), n)
	batch.Queue(lookAtSequence, int64(oid))
	results := conn.SendBatch(ctx, batch)
	ranges, found, err := readDraw(results)
	// The transaction ends with the batch, so that is what tells whether it was committed.
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	return ranges, found, err
}

func readDraw(results pgx.BatchResults) (ranges []valueRange, found looks, err error) {
	type span struct{ least, greatest, count int64 }
	rows, err := results.Query()
	if err != nil {
		return nil, found, err
	}
	spans, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s span, err error) {
		err = row.Scan(&s.least, &s.greatest, &s.count)
		return s, err
	})
	if err != nil {
		return nil, found, err
	}
	if found, err = readLooks(results.QueryRow()); err != nil {
		return nil, found, err
	}
	for _, s := range spans {
		first, last := s.least, s.greatest
		if found.increment < 0 {
			first, last = last, first
		}
		if first+(s.count-1)*found.increment != last {
			return nil, found, errOdd // a CYCLE began again in between, or the like
		}
		ranges = append(ranges, valueRange{first: first, count: s.count})
	}
	slices.SortFunc(ranges, func(a, b valueRange) int {
		if found.increment < 0 {
			a, b = b, a
		}
		return cmp.Compare(a.first, b.first)
	})
	return ranges, found, nil
}

// readLooks reads the row of lookAtSequence.
func readLooks(row pgx.Row) (found looks, err error) {
	err = row.Scan(&found.schema, &found.name, &found.filenode, &found.persistence, &found.increment, &found.cache)
	if errors.Is(err, pgx.ErrNoRows) {
		err = errNoSequence
	}
	return found, err
}

// judge makes calls pass after a draw that failed, for how long depends on why.
func (d *database) judge(s *drawn, err error) {
	var refused *pgconn.PgError
	isRefused := errors.As(err, &refused)
	pause := 5 * time.Second
	switch {
	case d.m.ctx.Err() != nil:
	case d.conn != nil && d.conn.IsClosed():
		d.m.cfg.Logger.Warn("the control connection that draws values was lost", "database", d.name, "error", err)
		d.lost()
		pause = time.Second
	case errors.Is(err, errNearLimit):
		pause = time.Second
	case errors.Is(err, errMoved), errors.Is(err, errOdd):
		pause = d.m.cfg.Hold
		d.discard.Store(true)
	case errors.Is(err, errNoSequence), errors.Is(err, errTransient), errors.Is(err, errOtherName), d.conn == nil:
	case isRefused:
		pause = d.pauseAfter(s, refused)
	default:
		// Whatever it is, the connection is not in a state that is known.
		d.m.cfg.Logger.Warn("cannot draw values of a sequence of the upstream", "sequence", s.name.String(), "error", err)
		d.lost()
	}
	s.passFor(pause)
}

// pauseAfter is how long calls pass after the upstream refused a draw.
func (d *database) pauseAfter(s *drawn, refused *pgconn.PgError) time.Duration {
	switch refused.Code {
	case "42501": // insufficient_privilege
		return time.Minute
	case "2200H", "55P03", "57014": // its limit, or somebody alters it, which took too long
		return time.Second
	case "25006": // read_only_sql_transaction: it is no primary, or the role may only read
		d.lost()
	case "42P01": // it was dropped
	default:
		d.m.cfg.Logger.Warn("the upstream refuses to draw values of a sequence", "sequence", s.name.String(), "error",
			fmt.Sprintf("%s (%s)", refused.Message, refused.Code))
	}
	return 5 * time.Second
}
