package proxy

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/nextvald/nextvald/proxy/answer"
	"github.com/nextvald/nextvald/proxy/wire"
	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sqlrewrite"
)

// A nextval that is evaluated once for each row of a query gets a range of values before the query runs: the upstream counts
// the rows, as many values are drawn, and the call becomes an expression that takes the one of its row's number:
//
//	SELECT nextval('s'), v FROM t ORDER BY v
//	SELECT COALESCE(first[i] + (row_number() OVER (ORDER BY v) - start[i]) * step, failure), v FROM t ORDER BY v
//
// where i is the piece of the range that the row's number lies in. The pieces end with one without values. A row that came
// between the count and the query falls into it, and fails: no value is used twice.

// manyValues is a Sequence that hands out several values at once: *sequencer.Sequence.
type manyValues interface {
	Sequence
	NextN(ctx context.Context, n int64) ([]sequencer.Block, error)
}

// maxRows bounds the rows of one statement, as NextN bounds its values.
const maxRows = 1 << 40

// byRow reports whether call i takes its values by the number of the row. EXPLAIN shows the plan of a constant.
func (u *use) byRow(i int) bool {
	return u.ours[i] && u.sequences[i] != nil && u.statement.Calls[i].Rows && !u.statement.Explain
}

// numbered reports whether call i, which is evaluated once for each row, can be answered: the rows can be counted, and the
// other calls of the statement leave its sequence alone.
func (x *session) numbered(u *use, i int) bool {
	st := u.statement
	if x.srv.cfg.Standalone || !st.Calls[i].Rows {
		return false
	}
	if _, ok := u.sequences[i].(manyValues); !ok {
		return false
	}
	for k := range st.Calls {
		c := &st.Calls[k]
		if k != i && !c.Rows && u.sequences[k] != nil && u.sequences[k].Incarnation() == u.sequences[i].Incarnation() {
			return false
		}
	}
	for k := range st.Reads {
		if u.relations[k] != nil && st.Rows.Touches(st.Reads[k].Start, st.Reads[k].End) {
			return false
		}
	}
	for k := range st.Catalogs {
		if st.Rows.Touches(st.Catalogs[k].Start, st.Catalogs[k].End) {
			return false
		}
	}
	for k := range st.Classes {
		if u.classes[k] != nil && st.Rows.Touches(st.Classes[k].Start, st.Classes[k].End) {
			return false
		}
	}
	return true
}

// rowValues are the values of one call, for the rows from 1 to rows: piece i begins with first[i] at row start[i].
type rowValues struct {
	first, start []int64
	step, rows   int64
}

// last is the value of the last row, of which there is one.
func (v rowValues) last() int64 {
	i := len(v.first) - 1
	return v.first[i] + (v.rows-v.start[i])*v.step
}

// texts are the first values and rows of the pieces as arrays, with a piece that has no values at the end, and the step.
func (v rowValues) texts() [3]string {
	array := func(list []int64, end string) string {
		b := []byte{'{'}
		for _, n := range list {
			b = append(strconv.AppendInt(b, n, 10), ',')
		}
		return string(b) + end + "}"
	}
	return [...]string{array(v.first, "NULL"), array(v.start, strconv.FormatInt(v.rows+1, 10)), strconv.FormatInt(v.step, 10)}
}

// rowNumber is the number of a row, from 1.
func rowNumber(window string) string { return "pg_catalog.row_number() OVER (" + window + ")" }

// noValue is what a row fails with that has no value.
const noValue = "pg_catalog.int8in(pg_catalog.textout(pg_catalog.concat('" + moreRows + "')))"

// rowValue is the expression for a call's value, over arrays and a step of type int8.
func rowValue(first, start, step, window string) string {
	piece := "pg_catalog.width_bucket(" + rowNumber(window) + ", " + start + ")"
	return "COALESCE(pg_catalog.int8pl((" + first + ")[" + piece + "], pg_catalog.int8mul(pg_catalog.int8mi(" + rowNumber(window) +
		", (" + start + ")[" + piece + "]), " + step + ")), " + noValue + ")"
}

// literals is the expression for values that are known. One piece, as most are, takes the upstream a fifth less time.
func (v rowValues) literals(window string) string {
	int8 := func(n int64) string { return literal(result{value: n}) }
	const far = math.MaxInt64 / 2 // what is nearer to 0 is added without an overflow
	if len(v.first) == 1 && max(v.first[0], -v.first[0]) < far && v.first[0] > -far && max(v.step, -v.step) < far/v.rows {
		number := rowNumber(window)
		return "CASE WHEN pg_catalog.int8le(" + number + ", " + int8(v.rows) + ") THEN pg_catalog.int8pl(" + int8(v.first[0]-v.step) +
			", pg_catalog.int8mul(" + number + ", " + int8(v.step) + ")) ELSE " + noValue + " END"
	}
	t := v.texts()
	return rowValue("'"+t[0]+"'::pg_catalog.int8[]", "'"+t[1]+"'::pg_catalog.int8[]", int8(v.step), window)
}

// deal gives the values of blocks, in order, to calls of which each row makes one after the other.
func deal(blocks []sequencer.Block, calls int) []rowValues {
	dealt := make([]rowValues, calls)
	n := int64(calls)
	var at int64 // values before the block
	for _, b := range blocks {
		for k := range dealt {
			i := (int64(k) - at%n + n) % n // the first value of the block that is this call's
			if i >= b.Count {
				continue
			}
			v, count := &dealt[k], (b.Count-1-i)/n+1
			v.rows = (at+i)/n + count
			// PostgreSQL's arithmetic has 64 bits too, with which some ranges are no single piece.
			perPiece := int64(1)
			if step := b.Increment * n; step/n == b.Increment && step != math.MinInt64 {
				v.step, perPiece = step, math.MaxInt64/max(step, -step)+1
				if perPiece < 1 {
					perPiece = math.MaxInt64
				}
			}
			for done := int64(0); done < count; done += min(perPiece, count-done) {
				v.first = append(v.first, b.First+(i+done*n)*b.Increment)
				v.start = append(v.start, (at+i)/n+1+done)
			}
		}
		at += b.Count
	}
	return dealt
}

// drawRows draws what the calls need that take their values by the row's number, and returns it by call; nil where there is
// none. typed returns the client's parameters with their types.
func (x *session) drawRows(u *use, typed func() ([]answer.Param, error)) (map[int]rowValues, error) {
	var calls []int
	for i := range u.statement.Calls {
		if u.byRow(i) {
			calls = append(calls, i)
		}
	}
	if len(calls) == 0 {
		return nil, nil
	}
	rows, err := x.countRows(u, typed)
	if err != nil || rows == 0 {
		return make(map[int]rowValues), err
	}
	if u.readOnly {
		return nil, errReadOnly("nextval()")
	}
	drawn := make(map[int]rowValues)
	for _, first := range calls {
		if _, done := drawn[first]; done {
			continue
		}
		var same []int
		for _, i := range calls {
			if u.sequences[i].Incarnation() == u.sequences[first].Incarnation() {
				same = append(same, i)
			}
		}
		blocks, err := x.drawMany(u, first, rows, len(same))
		if err != nil {
			return nil, err
		}
		for k, v := range deal(blocks, len(same)) {
			drawn[same[k]] = v
		}
	}
	for _, i := range calls {
		x.values.drew(u.sequences[i], drawn[i].last())
	}
	return drawn, nil
}

// drawMany draws the values of rows that call the sequence of call i so many times each.
func (x *session) drawMany(u *use, i int, rows int64, calls int) ([]sequencer.Block, error) {
	sequence := u.sequences[i].(manyValues)
	if rows > maxRows/int64(calls) {
		return nil, &wire.Error{Code: "54000", Message: fmt.Sprintf("too many rows for nextval: %d", rows), Hint: "Split the statement."}
	}
	if err := x.checkPending(sequence); err != nil {
		return nil, err
	}
	ctx := x.wait()
	defer x.waited()
	blocks, err := sequence.NextN(ctx, rows*int64(calls))
	if err != nil {
		return nil, x.stale(sequence, err)
	}
	for _, b := range blocks {
		if b.Increment != blocks[0].Increment {
			return nil, &wire.Error{Code: "40001", Message: fmt.Sprintf("sequence \"%s\" was altered meanwhile", sequence.Name().Name),
				Hint: "Repeat the transaction."}
		}
	}
	return blocks, nil
}

// What a server refuses to count.
const (
	isVolatile = -1
	makesRows  = -2
)

// countRows counts the rows of the statement's query, in the session's transaction, unless its functions forbid it.
func (x *session) countRows(u *use, typed func() ([]answer.Param, error)) (int64, error) {
	r := u.statement.Rows
	count, numbers, positions := r.Count()
	length, known := u.lengthOfSeries()
	if known {
		count, numbers = strconv.FormatInt(length, 10), nil
	}
	var arguments []answer.Param
	if len(numbers) > 0 {
		params, err := typed()
		if err != nil {
			return 0, err
		}
		for _, n := range numbers {
			arguments = append(arguments, params[n-1])
		}
	}
	const functions = "pg_catalog.pg_proc p WHERE p.proname"
	const operators = "pg_catalog.pg_operator o JOIN pg_catalog.pg_proc p ON p.oid = o.oprcode WHERE o.oprname"
	guards := ""
	for _, g := range []struct {
		names       []string
		of, illegal string
		answer      int
	}{
		{r.Repeated, functions, "p.provolatile = 'v'", isVolatile},
		{r.Functions, functions, "(p.proretset OR p.prokind = 'a')", makesRows},
		{r.Attributes, functions, "p.proretset", makesRows},
		{r.Operators, operators, "p.proretset", makesRows},
	} {
		if len(g.names) > 0 {
			arguments = append(arguments, answer.Param{Type: oidNames, Value: arrayOf(g.names)})
			guards += fmt.Sprintf(" WHEN EXISTS (SELECT FROM %s = ANY ($%d) AND %s) THEN %d", g.of, len(arguments), g.illegal, g.answer)
		}
	}
	if known && guards == "" {
		return length, nil
	}
	before := ""
	if guards != "" {
		before = "SELECT CASE" + guards + " ELSE ("
		count = before + count + ") END"
	}
	rows, err := x.askWith(count, arguments)
	if err != nil {
		return 0, x.inPlace(err, len(before), positions)
	}
	if len(rows) != 1 {
		return 0, fmt.Errorf("the count of rows has %d rows", len(rows))
	}
	n, err := strconv.ParseInt(rows[0][0], 10, 64)
	switch {
	case err != nil:
		return 0, err
	case n == isVolatile:
		return 0, notSupported("Declare the function STABLE where it is, or draw the values first and pass them in.",
			"nextval once for each row of what a volatile function selects is not supported")
	case n == makesRows:
		return 0, notSupported("Call the function in FROM or in a subquery.",
			"nextval once for each row beside a function that returns a set, or an aggregate, is not supported")
	}
	return n, nil
}

// inPlace gives the upstream's error for a count the position in the client's text.
func (x *session) inPlace(err error, before int, positions sqlrewrite.Positions) error {
	var asked *askError
	if !errors.As(err, &asked) {
		return err
	}
	e := *asked.cause
	e.Where = "" // it may name a portal of ours
	if e.Position > before {
		e.Position = x.base + positions.Original(e.Position-before)
	}
	return &askError{cause: &e}
}

// lengthOfSeries is the number of rows where they are those of generate_series with known arguments.
func (u *use) lengthOfSeries() (n int64, known bool) {
	var limits [3]int64
	limits[2] = 1
	for i := range u.statement.Rows.Series {
		p := u.param(&u.statement.Rows.Series[i])
		if p.Type != oidInt2 && p.Type != oidInt4 && p.Type != oidInt8 {
			return 0, false
		}
		v, null, err := answer.Int8(p)
		if err != nil || null {
			return 0, false
		}
		limits[i], known = v, true
	}
	start, stop, step := limits[0], limits[1], limits[2]
	if step < 0 {
		start, stop = stop, start
	}
	switch {
	case !known || step == 0:
		return 0, false
	case start > stop:
		return 0, true
	}
	steps := (uint64(stop) - uint64(start)) / uint64(max(step, -step))
	return int64(min(steps, maxRows)) + 1, true
}

// arrayOf is the text of an array of names.
func arrayOf(names []string) []byte {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(name) + `"`
	}
	return []byte("{" + strings.Join(quoted, ",") + "}")
}

// checkRows refuses a call by row in a Query whose statements before it may change what it reads: the rows are counted before
// any of them runs.
func (q *textEdit) checkRows(u *use) error {
	for i := range u.statement.Calls {
		if !u.byRow(i) {
			continue
		}
		for k := range q.plan.Statements {
			st := &q.plan.Statements[k]
			if st == u.statement {
				return nil
			}
			if st.Transaction.Verb != sqlrewrite.Begin && (st.Kind != sqlrewrite.KindUse || st.Answer == nil) {
				return notSupported("Send the statement by itself.", "nextval once for each row behind other statements of one query string is not supported")
			}
		}
	}
	return nil
}

// editRows puts values in the places of the calls that take them by the row's number.
func (q *textEdit) editRows(u *use) error {
	x := q.session
	drawn, err := x.drawRows(u, nil)
	for i := range u.statement.Calls {
		c := &u.statement.Calls[i]
		switch {
		case !u.byRow(i):
		case err == nil:
			q.edits = append(q.edits, c.RowEdits(drawn[i].literals(u.statement.Rows.Window))...)
		case x.undone(err) || errors.Is(err, errOver) || errors.Is(err, errDiscarding) || clientError(err).Code == "0A000":
			return err
		default: // at the first row, if the query itself has no error before
			q.edits = append(q.edits, c.RowEdits(q.fails(err, failingExpression))...)
		}
	}
	return nil
}

// bindRows draws the values of an edited statement's calls by row, as three parameters each.
func (x *session) bindRows(u *use, st *statement, params []answer.Param, values [][]byte) error {
	for _, i := range st.rows {
		if !u.byRow(i) { // it was ours when the statement was prepared
			return errUndefined(st.parsed.Calls[i].Name.Value)
		}
	}
	drawn, err := x.drawRows(u, func() ([]answer.Param, error) { return x.typed(st, params) })
	if err != nil {
		return err
	}
	for k, i := range st.rows {
		for j, text := range drawn[i].texts() {
			values[3*k+j] = []byte(text)
		}
	}
	return nil
}

// typed gives parameters the types that the upstream has given those of a statement.
func (x *session) typed(st *statement, params []answer.Param) ([]answer.Param, error) {
	if st.types == nil {
		if st.types = st.declared; len(st.declared) < len(params) || slices.Contains(st.declared, 0) {
			types, err := x.describeParameters(st.name)
			if err != nil {
				return nil, err
			}
			st.types = types
		}
	}
	if len(st.types) < len(params) {
		return nil, fmt.Errorf("the upstream has %d parameters of a statement with %d", len(st.types), len(params))
	}
	list := slices.Clone(params)
	for i := range list {
		list[i].Type = st.types[i]
	}
	return list, nil
}
