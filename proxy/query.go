package proxy

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
	"unsafe"

	"github.com/nextvald/nextvald/proxy/answer"
	"github.com/nextvald/nextvald/proxy/wire"
	"github.com/nextvald/nextvald/sqlrewrite"
)

// longText is how long a text is in bytes for whose parsing, a millisecond or so, other sessions should not wait.
const longText = 8 << 10

// query handles a Query message.
func (x *session) query(body int) error {
	frame, err := x.in.Frame(body)
	if err != nil {
		return err
	}
	// PostgreSQL drops the unnamed statement and portal at every Query.
	if x.parsed {
		x.prepared[""] = gone
		delete(x.portals, "")
	}

	text, ok := peekText(frame[wire.HeaderLen:])
	if !ok {
		return x.passQuery(frame, 0, nil)
	}
	traits := sqlrewrite.Scan(text, x.known)
	if !x.interests(traits) {
		return x.passQuery(frame, traits, nil)
	}
	plan, err := x.plan(text, traits)
	if err != nil {
		return x.failQuery(nil, err)
	}
	if plan == nil {
		if err := x.clearWayUnseen(traits); err != nil {
			return x.failQuery(nil, err)
		}
	}
	if plan == nil || len(plan.Statements) == 0 {
		return x.passQuery(frame, traits, nil)
	}
	if x.oneByOne(plan) {
		return x.queryEach(plan)
	}
	return x.runQuery(plan, traits, frame)
}

// oneByOne reports whether the statements of a Query run one after the other: a later one may depend on DDL of ours
// before it. With an upstream that is right only where nothing of the text is the upstream's to undo.
func (x *session) oneByOne(plan *sqlrewrite.Plan) bool {
	if len(plan.Statements) < 2 || x.srv.cfg.Standalone {
		return len(plan.Statements) > 1
	}
	if x.mirrored() {
		return false // DDL is the upstream's
	}
	ddl := false
	for i := range plan.Statements {
		st := &plan.Statements[i]
		ddl = ddl || st.Kind == sqlrewrite.KindDDL
		if st.Kind != sqlrewrite.KindDDL && (st.Kind != sqlrewrite.KindUse || st.Answer == nil) {
			return false
		}
	}
	return ddl && !x.batch.forwarded
}

// peekText views the text of a Query body without copying it.
func peekText(body []byte) (string, bool) {
	n := len(body) - 1
	if n < 0 || body[n] != 0 || strings.IndexByte(unsafe.String(unsafe.SliceData(body), n), 0) >= 0 {
		return "", false
	}
	return unsafe.String(unsafe.SliceData(body), n), true
}

func (x *session) parseText(text string, void []int) (*sqlrewrite.Plan, error) {
	if len(void) > 0 {
		return sqlrewrite.ParseVoid(text, void)
	}
	return x.srv.plans.Parse(text)
}

// plan parses a text that may concern sequences; void are the numbers of parameters declared so. The text is
// not kept. It returns no plan for a text that the upstream should judge.
func (x *session) plan(text string, traits sqlrewrite.Traits, void ...int) (*sqlrewrite.Plan, error) {
	if x.access.backslashes.Load() && strings.Contains(text, `\`) {
		if traits&(sqlrewrite.HasCall|sqlrewrite.HasSequenceDDL|sqlrewrite.HasKnownName) == 0 {
			return nil, nil
		}
		return nil, notSupported("Set standard_conforming_strings to on, or write the text without backslashes.",
			"a sequence statement with a backslash is not supported while standard_conforming_strings is off")
	}
	if len(void) == 0 {
		if plan := x.srv.plans.Cached(text); plan != nil {
			return plan, nil
		}
	}
	if len(text) > longText {
		x.detach()
	}
	plan, err := x.parseText(strings.Clone(text), void)
	if errors.Is(err, sqlrewrite.ErrTooComplex) && traits&(sqlrewrite.HasCall|sqlrewrite.HasSequenceDDL|sqlrewrite.HasKnownName) != 0 {
		return nil, &wire.Error{Code: "54001", Message: "statement is too complex for nextvald to find its sequence calls",
			Hint: "Split the statement, or draw the values first and pass them in."}
	}
	if err != nil {
		return nil, nil
	}
	return plan, nil
}

// passQuery sends a Query on as it is.
func (x *session) passQuery(frame []byte, traits sqlrewrite.Traits, plan *sqlrewrite.Plan) error {
	return x.sendQuery(expectation{kind: wire.TypeQuery}, frame, traits, plan, nil)
}

// sendQuery sends a Query, and follows what comes of it. ours says which calls of its statements were answered here.
func (x *session) sendQuery(e expectation, frame []byte, traits sqlrewrite.Traits, plan *sqlrewrite.Plan, ours map[*sqlrewrite.Statement][]bool) error {
	var held *hold
	if plan != nil && x.concludes(plan.Statements) {
		held = &hold{}
	}
	x.noteTraits(traits)
	if plan == nil {
		x.values.passed(nil, nil)
	} else {
		for i := range plan.Statements {
			st := &plan.Statements[i]
			x.noteStatement(st)
			if st.Kind != sqlrewrite.KindTransaction {
				x.values.passed(st, ours[st])
			}
		}
	}
	if (x.muted || held != nil) && e.x == nil {
		e.x = &special{}
	}
	if e.x != nil {
		e.x.mute, e.x.held = x.muted, held
	}
	if err := x.send(e, frame); err != nil || held == nil {
		return err
	}
	return x.conclude(held)
}

// noteTraits follows what a passed text may change of the session.
func (x *session) noteTraits(traits sqlrewrite.Traits) {
	if traits&(sqlrewrite.HasSession|sqlrewrite.HasCreate) != 0 {
		x.changeNames()
	}
	if traits&sqlrewrite.HasReadOnly != 0 && x.access.inBlock {
		x.access.block = unknown
	}
}

// noteStatement follows what a statement changes of the session when the upstream runs it.
func (x *session) noteStatement(st *sqlrewrite.Statement) {
	switch st.Kind {
	case sqlrewrite.KindTransaction:
		x.access.transaction(st.Transaction)
		switch st.Transaction.Verb {
		case sqlrewrite.Commit, sqlrewrite.Rollback, sqlrewrite.RollbackTo, sqlrewrite.PrepareTransaction:
			if x.names.touched {
				x.changeNames()
			}
			x.names.touched = st.Transaction.Verb == sqlrewrite.RollbackTo && x.names.touched
		}
	case sqlrewrite.KindDeallocate:
		x.deallocate(st.Deallocate)
	case sqlrewrite.KindDiscard:
		switch {
		case st.Discard == "SEQUENCES":
			x.values.forget()
		case st.Discard == "ALL" && byte(x.status.Load()) == idle:
			x.values.forget()
			x.deallocate("")
		}
	}
}

// queryEach runs the statements of a Query one after the other, as if each were a Query of its own, and tells the client
// one ReadyForQuery at the end. An error undoes our own DDL of the Query; nothing else in it can be undone.
func (x *session) queryEach(plan *sqlrewrite.Plan) error {
	status, open := x.transaction()
	if !open {
		return errOver
	}
	if status == idle {
		x.beginImplicit()
		defer x.rollbackImplicit() // unless it was committed
	}
	for i := range plan.Statements {
		before := x.failures.Load()
		if err := x.queryOne(plan, &plan.Statements[i]); err != nil {
			return err
		}
		if _, open := x.transaction(); !open {
			return errOver
		}
		if x.failures.Load() != before {
			return x.ready()
		}
	}
	if err := x.commitImplicit(); err != nil {
		return x.failQuery(nil, err)
	}
	return x.ready()
}

// queryOne runs one statement of a Query by itself.
func (x *session) queryOne(whole *sqlrewrite.Plan, st *sqlrewrite.Statement) error {
	text := whole.Text[st.Start:st.End]
	x.muted, x.base = true, utf8.RuneCountInString(whole.Text[:st.Start])
	defer func() { x.muted, x.base = false, 0 }()
	traits := sqlrewrite.Scan(text, x.known)
	plan, err := x.plan(text, traits)
	if err != nil {
		return x.failQuery(nil, err)
	}
	frame := wire.AppendQuery(nil, text)
	if plan == nil || len(plan.Statements) != 1 {
		return x.passQuery(frame, traits, nil)
	}
	return x.runQuery(plan, traits, frame)
}

// ready tells the client that a Query answered here is over.
func (x *session) ready() error {
	if x.muted {
		return nil
	}
	return x.respond(wire.AppendReadyForQuery(nil, byte(x.status.Load())))
}

// failQuery answers a Query by frames and then an error of ours, raised in the upstream when a transaction is open there.
func (x *session) failQuery(frames []byte, err error) error {
	failure := clientError(err)
	if errors.Is(err, errOver) {
		return err
	}
	if errors.Is(err, errDiscarding) {
		return nil // as PostgreSQL does with a Query before the Sync
	}
	status, open := x.transaction()
	if !open {
		return errOver
	}
	if isAsked(err) && x.flight.discarding() {
		x.failures.Add(1)
		if err := x.writeOut(wire.AppendError(frames, failure)); err != nil {
			return err
		}
		return x.send(expectation{kind: wire.TypeSync, x: &special{mute: x.muted}}, wire.AppendEmpty(nil, wire.TypeSync))
	}
	if status != inBlock && !x.batch.forwarded {
		x.failures.Add(1)
		if err := x.respond(wire.AppendError(frames, failure)); err != nil {
			return err
		}
		return x.ready()
	}
	if len(frames) > 0 {
		if err := x.respond(frames); err != nil {
			return err
		}
	}
	return x.send(expectation{kind: wire.TypeQuery, x: &special{failures: []*wire.Error{failure}, mute: x.muted}},
		wire.AppendQuery(nil, failingStatement(0)))
}

// runQuery answers, edits, refuses or passes a parsed Query.
func (x *session) runQuery(plan *sqlrewrite.Plan, traits sqlrewrite.Traits, frame []byte) error {
	status, open := x.transaction()
	if !open {
		return errOver
	}
	if status == failed && len(plan.Statements) == 1 {
		if err := x.transactionPending(plan.Statements[0].Transaction); err != nil {
			return x.failQuery(nil, err)
		}
		return x.passQuery(frame, traits, plan)
	}
	if len(plan.Statements) == 1 && !x.batch.forwarded {
		if r := x.kept(&plan.Statements[0]); r != nil {
			if err := x.answerReady(r); !errors.Is(err, ErrPass) {
				return err
			}
			x.passAnswers()
			defer x.passedOn()
		}
	}
	x.text = plan.Text
	x.resolveAnew()
	q := textEdit{session: x, plan: plan}
	for i := range plan.Statements {
		if err := q.add(&plan.Statements[i]); err != nil {
			if errors.Is(err, errOver) || errors.Is(err, errDiscarding) {
				return x.failQuery(nil, err)
			}
			return x.finishQuery(&q, traits, frame, err)
		}
	}
	return x.finishQuery(&q, traits, frame, nil)
}

// textEdit is a Query on its way: statement by statement it finds out whether everything can be answered here, and
// what to edit otherwise.
type textEdit struct {
	session *session
	plan    *sqlrewrite.Plan
	local   []localStatement // statements that can be answered here, while all so far can
	passed  int              // statements that cannot
	edits   []sqlrewrite.Edit
	// failures are raised by the upstream where it comes to them.
	failures []*wire.Error
	describe bool       // the tables of columns have to be asked for
	prepared *statement // by a PREPARE that was edited
	// ours says, of the statements that go to the upstream, which calls are answered here.
	ours map[*sqlrewrite.Statement][]bool
	at   *sqlrewrite.Statement // the statement being added
}

// localStatement is a statement of a Query that can be answered here.
type localStatement struct {
	statement *sqlrewrite.Statement
	use       *use
	columns   []answer.Column
}

func (q *textEdit) add(st *sqlrewrite.Statement) error {
	x := q.session
	q.at = st
	switch st.Kind {
	case sqlrewrite.KindTransaction:
		if err := x.transactionPending(st.Transaction); err != nil {
			return err
		}
	case sqlrewrite.KindUse:
		if q.plan.Params > 0 && st.Prepare == nil {
			return q.pass() // there are no parameters in a Query: the upstream says so
		}
		if x.mirrored() && !x.concerns(st, nil) {
			break
		}
		u, err := x.resolveUse(q.plan, st, nil, true)
		if err != nil {
			return err
		}
		if !u.any() {
			break
		}
		if err := x.checkCreates(st); err != nil {
			return err
		}
		if err := x.check(u); err != nil {
			return err
		}
		if err := q.checkRows(u); err != nil {
			return err
		}
		if st.Answer != nil && u.all() && q.passed == 0 && !(x.mirrored() && (x.passing || !u.answerable())) {
			if columns, ok := answer.Columns(st.Answer, nil); ok {
				q.local = append(q.local, localStatement{statement: st, use: u, columns: columns})
				x.makeReady(u, columns)
				return nil
			}
		}
		if err := q.pass(); err != nil {
			return err
		}
		return q.edit(u)
	case sqlrewrite.KindDDL:
		ours, err := x.ownsDDL(st)
		if err != nil {
			return err
		}
		if ours {
			if q.passed > 0 {
				return errMixedDDL(st.DDL)
			}
			q.local = append(q.local, localStatement{statement: st})
			return nil
		}
	case sqlrewrite.KindDeallocate:
		if p := x.named(st.Deallocate); st.Deallocate != "" && p != nil && p.onlyHere() && q.passed == 0 {
			q.local = append(q.local, localStatement{statement: st})
			return nil
		}
	}
	if err := x.checkCreates(st); err != nil {
		return err
	}
	if err := x.checkDropSchemas(st, byte(x.status.Load())); err != nil {
		return err
	}
	return q.pass()
}

// pass notes that the current statement goes to the upstream. Then all do: what could have been answered here before
// it is edited instead, so that the upstream keeps the order.
func (q *textEdit) pass() error {
	q.passed++
	local := q.local
	q.local = nil
	for i := range local {
		if local[i].use == nil {
			q.at = local[i].statement
			return errMixedDDL(q.at.DDL)
		}
		if err := q.edit(local[i].use); err != nil {
			return err
		}
	}
	return nil
}

func errMixedDDL(d *sqlrewrite.DDL) error {
	tag := "DEALLOCATE"
	if d != nil {
		tag = d.Tag
	}
	return notSupported("Send the statement by itself.", "%s of nextvald together with other statements in one query string is not supported", tag)
}

// edit evaluates the calls and reads of one statement and replaces them in the text.
func (q *textEdit) edit(u *use) error {
	x := q.session
	if u.statement.Peer != nil {
		return errPeerShape()
	}
	if x.mirrored() {
		q.leaveWhatFollows(u)
	}
	if err := x.clearWayAhead(u); err != nil {
		return err
	}
	if err := x.begun(u); err != nil {
		return err
	}
	if q.ours == nil {
		q.ours = make(map[*sqlrewrite.Statement][]bool)
	}
	q.ours[u.statement] = u.ours
	for i := range u.statement.Calls {
		if !u.ours[i] || u.nested(i) || u.byRow(i) {
			continue
		}
		c := &u.statement.Calls[i]
		r, err := x.evaluateOrLeave(u, i)
		value := literal(r)
		switch {
		case err == nil && !u.ours[i]:
			continue
		case err == nil:
		case x.srv.cfg.Standalone || isAsked(err) || errors.Is(err, errOver) || errors.Is(err, errDiscarding):
			return err
		default:
			value = q.fails(err, failingExpression)
		}
		q.edits = append(q.edits, sqlrewrite.Edit{Start: c.Start, End: c.End, Text: u.replacement(c, value)})
	}
	if err := q.editRows(u); err != nil {
		return err
	}
	edits, err := x.readEdits(u)
	q.edits = append(q.edits, edits...)
	q.describe = len(q.plan.Statements) == 1 && u.describable()
	if u.statement.Prepare != nil {
		q.prepared = x.prepareOverlaid(u)
	}
	return err
}

// readEdits put what a statement reads of sequences of ours into its text.
func (x *session) readEdits(u *use) ([]sqlrewrite.Edit, error) {
	edits := append(classEdits(u), u.prefixEdits()...)
	for i, sequence := range u.relations {
		if sequence == nil || isMirrored(sequence) {
			continue
		}
		state, err := x.state(sequence)
		if err != nil {
			return nil, err
		}
		r := &u.statement.Reads[i]
		edits = append(edits, sqlrewrite.Edit{Start: r.Start, End: r.End, Text: r.Replacement(
			literal(result{value: state.LastValue}), literal(result{value: state.LogCnt}), fmt.Sprint(state.IsCalled))})
	}
	overlays, err := x.overlayLiterals(u)
	return append(edits, overlays...), err
}

// replacement is what to put in the place of a call.
func (u *use) replacement(c *sqlrewrite.Call, value string) string {
	if !u.statement.Explain && !u.statement.Analyze {
		return c.Replacement(value)
	}
	shown := *c
	shown.Place = sqlrewrite.PlaceExpression // names show nowhere, and a subquery would show in the plan
	return shown.Replacement(value)
}

// fails notes a failure and returns what raises it in the upstream.
func (q *textEdit) fails(err error, text func(n int) string) string {
	q.failures = append(q.failures, clientError(err))
	return text(len(q.failures) - 1)
}

func literal(r result) string {
	if r.null {
		return "NULL::pg_catalog.int8"
	}
	return fmt.Sprintf("'%d'::pg_catalog.int8", r.value)
}

// finishQuery sends or answers what was gathered. A failure of the statement being added takes that statement's place.
func (x *session) finishQuery(q *textEdit, traits sqlrewrite.Traits, frame []byte, failure error) error {
	if isAsked(failure) {
		return x.failQuery(nil, failure) // the transaction has failed already
	}
	if q.passed == 0 {
		if !x.batch.forwarded {
			err := x.answerQuery(q, failure)
			if errors.Is(err, ErrPass) { // nothing was answered yet
				x.passAnswers()
				defer x.passedOn()
				return x.runQuery(q.plan, traits, frame)
			}
			return err
		}
		// The upstream has an implicit transaction open, which this Query ends.
		if err := q.pass(); err != nil {
			return x.failQuery(nil, err)
		}
	}
	if failure == nil {
		for i := range q.plan.Statements {
			st := &q.plan.Statements[i]
			if err := x.clearWay(st, nil, q.ours[st]); err != nil {
				return x.failQuery(nil, err)
			}
			x.notePassedCalls(st, q.ours[st])
		}
		if len(q.edits) == 0 {
			return x.passQuery(frame, traits, q.plan)
		}
	}
	text, e := q.plan.Text, expectation{kind: wire.TypeQuery, x: &special{}}
	if failure != nil {
		text = text[:q.at.End]
		q.edits = append(outside(q.edits, q.at), sqlrewrite.Edit{Start: q.at.Start, End: q.at.End, Text: q.fails(failure, failingStatement)})
	}
	var ahead []byte
	if failure == nil && q.describe && !x.batch.forwarded {
		e.x.origins, ahead = x.describeAhead(text, nil, false)
		x.flight.push(expectation{kind: wire.TypeSync, quiet: true})
		ahead = wire.AppendEmpty(ahead, wire.TypeSync)
	}
	e.x.failures, e.x.statement = q.failures, q.prepared
	text, positions := sqlrewrite.Apply(text, q.edits)
	e.x.positions = &positions
	return x.sendQuery(e, wire.AppendQuery(ahead, text), traits, q.plan, q.ours)
}

// outside keeps the edits of the statements before st.
func outside(edits []sqlrewrite.Edit, st *sqlrewrite.Statement) []sqlrewrite.Edit {
	kept := edits[:0]
	for _, e := range edits {
		if e.Start < st.Start {
			kept = append(kept, e)
		}
	}
	return kept
}

// answerQuery answers a Query whose statements are all ours, up to the one that failed.
func (x *session) answerQuery(q *textEdit, failure error) (err error) {
	x.attempt()
	defer func() { x.attempted(err) }()
	var frames []byte
	for i := range q.local {
		var err error
		frames, err = x.answerStatement(frames, &q.local[i])
		if errors.Is(err, ErrPass) {
			return err
		}
		if err != nil {
			failure = err
			break
		}
	}
	if failure != nil {
		return x.failQuery(frames, failure)
	}
	if err := x.respond(frames); err != nil {
		return err
	}
	return x.ready()
}

// answerStatement appends the response to one statement of ours.
func (x *session) answerStatement(frames []byte, l *localStatement) ([]byte, error) {
	st := l.statement
	switch st.Kind {
	case sqlrewrite.KindDDL:
		return x.runDDL(frames, st)
	case sqlrewrite.KindDeallocate:
		x.deallocate(st.Deallocate)
		return wire.AppendCommandComplete(frames, "DEALLOCATE"), nil
	}
	return x.answerRows(wire.AppendRowDescription(frames, fields(l.use, l.columns, nil)), l.use, l.columns)
}

// answerRows appends the rows of a statement and its CommandComplete.
func (x *session) answerRows(frames []byte, u *use, columns []answer.Column) ([]byte, error) {
	if err := x.begun(u); err != nil {
		return frames, err
	}
	rows := u.statement.Answer.Rows
	for _, row := range rows {
		var err error
		if frames, err = answer.Row(frames, row, columns, nil, u.params, u.call, u.field); err != nil {
			return frames, err
		}
	}
	return appendSelected(frames, len(rows)), nil
}

// appendSelected appends the CommandComplete of a SELECT.
func appendSelected(frames []byte, rows int) []byte {
	if rows == 1 {
		return append(frames, 'C', 0, 0, 0, 13, 'S', 'E', 'L', 'E', 'C', 'T', ' ', '1', 0)
	}
	return wire.AppendCommandComplete(frames, "SELECT "+strconv.Itoa(rows))
}

// fields describes the columns of an answer.
func fields(u *use, columns []answer.Column, formats []int16) []wire.Field {
	list := make([]wire.Field, len(columns))
	for i, c := range columns {
		list[i] = wire.Field{Name: c.Name, Type: c.Type, Size: c.Size, Typmod: c.Typmod, Format: answer.FormatOf(formats, i)}
		if a := u.statement.Answer; a.Read >= 0 && a.Rows[0][i].Kind == sqlrewrite.ExprField && u.relations[a.Read] != nil {
			list[i].Table = u.relations[a.Read].OID()
			list[i].Attribute = map[string]int16{"last_value": 1, "log_cnt": 2, "is_called": 3}[a.Rows[0][i].Text]
		}
	}
	return list
}
