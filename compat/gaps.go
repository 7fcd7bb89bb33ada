package main

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A gap in the values of a sequence that nextvald hands out is no difference: in PostgreSQL another session may have drawn
// them. Where answers differ it is looked for by having another session draw them: the script runs on the plain PostgreSQL
// once more, with values drawn right before the first entry that differs. The gap is one when everything up to that entry is
// the same then, to the letter. So no duplicate, order or bound can pass for one.

const (
	// mostGaps bounds the gaps of one run of a script, and mostValues the values of each.
	mostGaps, mostValues = 20, 1_000_000
	// mostTries bounds the runs that look for one gap.
	mostTries = 30
)

// gap are values of a sequence that nobody gets.
type gap struct {
	entry    int    // the first after it, by its place in the script
	sequence string // schema and name, quoted
	values   int64
}

func (g gap) String() string { return fmt.Sprintf("%d values of %s are a gap", g.values, g.sequence) }

// withGaps returns what PostgreSQL says to a script with the gaps that got shows, and these. want is what it said without.
func (c *comparison) withGaps(ctx context.Context, s script, flow string, want, got [][]string) ([][]string, []gap, error) {
	var gaps []gap
	for from := 0; len(gaps) < mostGaps; {
		i := c.firstDifferent(s, flow, from, want, got)
		if i < 0 {
			return want, gaps, nil
		}
		tries, err := c.possibleGaps(ctx, s, flow, gaps, i, want[i], got[i])
		if err != nil {
			return nil, nil, err
		}
		from = i + 1
		for _, g := range tries {
			more := append(gaps[:len(gaps):len(gaps)], g)
			again, err := c.side(ctx, c.direct, s, flow, drawing(c.direct, more))
			if err != nil {
				return nil, nil, err
			}
			if next := c.firstDifferent(s, flow, 0, again, got); next < 0 || next > i {
				want, gaps, from = again, more, next
				break
			}
		}
		if from < 0 {
			return want, gaps, nil
		}
	}
	return want, gaps, nil
}

// firstDifferent is the first entry from one on that differs though it is not expected to; -1 when there is none.
func (c *comparison) firstDifferent(s script, flow string, from int, want, got [][]string) int {
	for i := from; i < len(s.entries); i++ {
		e := s.entries[i]
		if !looksSame(e, want[i], got[i]) && c.reason(e, flow) == "" {
			return i
		}
	}
	return -1
}

// possibleGaps are those right before an entry that the numbers of its answers suggest.
func (c *comparison) possibleGaps(ctx context.Context, s script, flow string, gaps []gap, at int, want, got []string) (tries []gap, err error) {
	distances := distances(want, got)
	if len(distances) == 0 {
		return nil, nil
	}
	s.entries = s.entries[:at+1]
	draw := drawing(c.direct, gaps)
	_, err = c.side(ctx, c.direct, s, flow, func(ctx context.Context, entry int, database string) error {
		if entry == at {
			sequences, err := sequencesOf(ctx, c.direct, database)
			if err != nil {
				return err
			}
			for _, d := range distances {
				for _, q := range sequences {
					if n, rest := new(big.Int).QuoRem(d, big.NewInt(q.increment), new(big.Int)); rest.Sign() == 0 &&
						n.CmpAbs(big.NewInt(mostValues)) <= 0 && len(tries) < mostTries {
						tries = append(tries, gap{at, q.name, n.Abs(n).Int64()})
					}
				}
			}
		}
		return draw(ctx, entry, database)
	})
	return tries, err
}

var numbers = regexp.MustCompile(`\d+`)

// distances are those between the numbers of two answers, other than 0, each once.
func distances(want, got []string) (all []*big.Int) {
	known := map[string]bool{"0": true}
	for i := range min(len(want), len(got)) {
		there := numbers.FindAllString(got[i], -1)
		for j, text := range numbers.FindAllString(want[i], -1) {
			if j == len(there) {
				break
			}
			a, _ := new(big.Int).SetString(text, 10)
			b, _ := new(big.Int).SetString(there[j], 10)
			if d := b.Sub(b, a); !known[d.String()] {
				known[d.String()] = true
				all = append(all, d)
			}
		}
	}
	return all
}

// ownSequence is one that a script made.
type ownSequence struct {
	name      string // schema and name, quoted
	increment int64
}

func sequencesOf(ctx context.Context, url, database string) ([]ownSequence, error) {
	conn, err := connectTo(ctx, url, database)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(ctx) }()
	rows, err := conn.Query(ctx, `SELECT format('%I.%I', n.nspname, c.relname), s.seqincrement FROM pg_sequence s
		JOIN pg_class c ON c.oid = s.seqrelid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relpersistence <> 't' ORDER BY 1`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (q ownSequence, err error) {
		return q, row.Scan(&q.name, &q.increment)
	})
}

// drawing draws the values of gaps before the entries that they come before.
func drawing(url string, gaps []gap) func(ctx context.Context, entry int, database string) error {
	return func(ctx context.Context, entry int, database string) error {
		for _, g := range gaps {
			if g.entry != entry {
				continue
			}
			conn, err := connectTo(ctx, url, database)
			if err != nil {
				return err
			}
			// The script may have locked it, or its end may be nearer: then this is no gap.
			_, err = conn.Exec(ctx, fmt.Sprintf("SET lock_timeout = '1s'; SELECT count(nextval('%s')) FROM generate_series(1, %d)",
				strings.ReplaceAll(g.sequence, "'", "''"), g.values), pgx.QueryExecModeSimpleProtocol)
			_ = conn.Close(ctx)
			var refused *pgconn.PgError
			if err != nil && !errors.As(err, &refused) {
				return err
			}
		}
		return nil
	}
}

func connectTo(ctx context.Context, url, database string) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	cfg.Database = database
	return pgx.ConnectConfig(ctx, cfg)
}
