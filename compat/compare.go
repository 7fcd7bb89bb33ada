package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"
)

// script is what runs on one connection.
type script struct {
	name    string
	flows   []string
	entries []entry
}

// counts are those of the report.
type counts struct{ entries, same, expected, different int }

func (c counts) String() string {
	return fmt.Sprintf("entries %d, same %d, expected %d, different %d", c.entries, c.same, c.expected, c.different)
}

// comparison runs scripts on both sides. Its scripts may run at the same time.
type comparison struct {
	direct, proxy string // URLs
	keep, verbose bool
	gaps          bool // those in the values of sequences are expected
	out           io.Writer

	mu       sync.Mutex
	expected []*expectation
	counts   counts
}

// run compares a script in one of its flows.
func (c *comparison) run(ctx context.Context, s script, flow string) error {
	want, err := c.side(ctx, c.direct, s, flow, nil)
	if err != nil {
		return fmt.Errorf("%s [%s] on PostgreSQL: %w", s.name, flow, err)
	}
	got, err := c.side(ctx, c.proxy, s, flow, nil)
	if err != nil {
		return fmt.Errorf("%s [%s] through nextvald: %w", s.name, flow, err)
	}
	after, gaps := want, []gap(nil)
	if c.gaps {
		if after, gaps, err = c.withGaps(ctx, s, flow, want, got); err != nil {
			return fmt.Errorf("%s [%s] on PostgreSQL, with gaps: %w", s.name, flow, err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, e := range s.entries {
		for _, g := range gaps {
			if g.entry == i {
				fmt.Fprintf(c.out, "%s:%d [%s] before it, %s\n%s\n\n", e.script, e.line, flow, g, indent(e.title()))
			}
		}
		c.judge(e, flow, want[i], after[i], got[i])
	}
	return nil
}

// judge compares what was seen of an entry. after is what PostgreSQL says with the gaps before it.
func (c *comparison) judge(e entry, flow string, want, after, got []string) {
	c.counts.entries++
	same := looksSame(e, after, got)
	for _, x := range c.expected {
		if x.of(e, flow) {
			x.ran = true
			x.differed = x.differed || !same
		}
	}
	verdict := "different"
	switch reason := c.reason(e, flow); {
	case same && looksSame(e, want, got):
		c.counts.same++
		verdict = "same"
	case same:
		c.counts.expected++
		verdict = "expected: after a gap"
	case reason != "":
		c.counts.expected++
		verdict = "expected: " + reason
	default:
		c.counts.different++
	}
	if verdict == "different" || c.verbose {
		fmt.Fprintf(c.out, "%s:%d [%s] %s\n%s\n", e.script, e.line, flow, verdict, indent(e.title()))
		for _, line := range diff(e.inOrder(after), e.inOrder(got)) {
			fmt.Fprintln(c.out, line)
		}
		fmt.Fprintln(c.out)
	}
}

// reason says why an entry is expected to differ; "" when it is not.
func (c *comparison) reason(e entry, flow string) (reason string) {
	for _, x := range c.expected {
		if x.of(e, flow) {
			reason = x.reason
		}
	}
	return reason
}

// looksSame reports whether two answers to an entry are the same.
func looksSame(e entry, want, got []string) bool {
	return slices.Equal(e.inOrder(want), e.inOrder(got))
}

// inOrder are the lines of an answer to the entry, with the rows in an order that does not matter.
func (e entry) inOrder(lines []string) []string {
	if inAnyOrder(e.sql) {
		return sortedRows(lines)
	}
	return lines
}

// inAnyOrder reports whether rows come in an order that two servers need not share: that of a catalog's pages.
func inAnyOrder(sql string) bool {
	sql = strings.ToLower(sql)
	return (strings.Contains(sql, "pg_") || strings.Contains(sql, "information_schema")) && !strings.Contains(sql, "order by")
}

// sortedRows are lines whose runs of rows are in order.
func sortedRows(lines []string) []string {
	lines = slices.Clone(lines)
	for i := 0; i < len(lines); i++ {
		from := i
		for i < len(lines) && strings.HasPrefix(lines[i], "row ") {
			i++
		}
		slices.Sort(lines[from:i])
	}
	return lines
}

// title is the statement, and what else names it.
func (e entry) title() string {
	text := e.sql
	if e.id != "" {
		text = e.id + ": " + text
	}
	for i, p := range e.params {
		text += fmt.Sprintf("\n$%d = %q type %d", i+1, p.value, p.oid)
	}
	return text
}

func indent(text string) string { return "    " + strings.ReplaceAll(text, "\n", "\n    ") }

// runAll compares all scripts, some at a time: in all their flows, or only in one, or inTurn.
func (c *comparison) runAll(ctx context.Context, scripts []script, only string, jobs int) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(jobs)
	for i, s := range scripts {
		if only == inTurn {
			s.flows = s.flows[i%len(s.flows):][:1]
		}
		g.Go(func() error {
			for _, flow := range s.flows {
				if slices.Contains(flows, only) && flow != only {
					continue
				}
				if err := c.run(ctx, s, flow); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// unused are the expectations that ran and did not differ. They count as different.
func (c *comparison) unused() (reports []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range c.expected {
		if x.ran && !x.differed {
			c.counts.different++
			reports = append(reports, fmt.Sprintf("expected difference of line %d is none any more: %s: %s", x.line, x.script, x.text))
		}
	}
	return reports
}

// diff shows two lists of lines: - for PostgreSQL's, + for nextvald's, a blank for both.
func diff(want, got []string) (lines []string) {
	// The longest common subsequence; answers are short.
	common := make([][]int, len(want)+1)
	for i := range common {
		common[i] = make([]int, len(got)+1)
	}
	for i := len(want) - 1; i >= 0; i-- {
		for j := len(got) - 1; j >= 0; j-- {
			if want[i] == got[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(want) || j < len(got) {
		switch {
		case i < len(want) && j < len(got) && want[i] == got[j]:
			lines = append(lines, "      "+want[i])
			i++
			j++
		case j == len(got) || i < len(want) && common[i+1][j] >= common[i][j+1]:
			lines = append(lines, "    - "+want[i])
			i++
		default:
			lines = append(lines, "    + "+got[j])
			j++
		}
	}
	return lines
}

// side runs a script on a fresh database of one server and returns what was seen of each entry. before, if any, is called before
// each.
func (c *comparison) side(
	ctx context.Context, url string, s script, flow string, before func(ctx context.Context, entry int, database string) error,
) (seen [][]string, err error) {
	database := "compat_" + strings.ToLower(rand.Text()[:12])
	if err := admin(ctx, url, "CREATE DATABASE "+database); err != nil {
		return nil, err
	}
	if c.keep {
		fmt.Fprintf(c.out, "%s [%s] uses the database %s\n", s.name, flow, database)
	} else {
		defer func() {
			if dropped := clean(context.WithoutCancel(ctx), url, database, s); err == nil {
				err = dropped
			}
		}()
	}
	session, err := connect(ctx, url, database)
	if err != nil {
		return nil, err
	}
	defer session.close()
	for i, e := range s.entries {
		if before != nil {
			if err := before(ctx, i, database); err != nil {
				return nil, err
			}
		}
		lines, err := session.run(ctx, e, flow)
		if err != nil {
			return nil, err
		}
		seen = append(seen, lines)
	}
	return seen, nil
}

// newRole finds the roles that a script makes, which are all databases'. Their names begin with compat_.
var newRole = regexp.MustCompile(`(?i)\bCREATE (?:ROLE|USER) (compat_\w+)`)

// clean drops what a script left: its database and roles.
func clean(ctx context.Context, url, database string, s script) error {
	if err := admin(ctx, url, "DROP DATABASE "+database+" WITH (FORCE)"); err != nil {
		return err
	}
	for _, e := range s.entries {
		for _, m := range newRole.FindAllStringSubmatch(e.sql, -1) {
			if err := admin(ctx, url, "DROP ROLE IF EXISTS "+m[1]); err != nil {
				return err
			}
		}
	}
	return nil
}

// admin runs a statement on a connection of its own.
func admin(ctx context.Context, url, sql string) error {
	conn, err := pgconn.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, sql).ReadAll()
	return err
}
