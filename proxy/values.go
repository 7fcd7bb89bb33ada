package proxy

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/nextvald/nextvald/proxy/answer"
	"github.com/nextvald/nextvald/proxy/wire"
	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sqlrewrite"
)

// values is what currval and lastval of a session tell.
type values struct {
	current map[string]int64 // by incarnation
	last    Sequence
	// upstream tells whose nextval was the later one.
	upstream lastUse
}

// lastUse says what is known of nextval calls that the upstream carried out for the session.
type lastUse struct {
	// before and after: statements that may have called nextval there, seen or unseen (a default, a trigger, a function),
	// went to the upstream before, and after, the last call of ours; since it was asked for its lastval.
	before, after bool
	// seen is what it answered then, and later says that its value was the later one.
	seen           int64
	defined, later bool
}

func (v *values) init() { v.current = make(map[string]int64) }

// forget does what DISCARD SEQUENCES does.
func (v *values) forget() {
	clear(v.current)
	v.last = nil
	v.upstream = lastUse{}
}

// drew notes a nextval of ours.
func (v *values) drew(sequence Sequence, value int64) {
	v.current[sequence.Incarnation()] = value
	v.last = sequence
	v.upstream.before = v.upstream.before || v.upstream.after
	v.upstream.after, v.upstream.later = false, false
}

// passed notes a statement that goes to the upstream and may draw values there.
func (v *values) passed() { v.upstream.after = true }

// result is the value of a call.
type result struct {
	value int64
	null  bool
}

// use is one execution of a statement's sequence calls.
type use struct {
	plan      *sqlrewrite.Plan
	statement *sqlrewrite.Statement
	bound     bool                  // parameters have values
	ours      []bool                // per call: answered here
	sequences []Sequence            // per call: nil for lastval and NULL names
	relations []*sequencer.Sequence // per read: nil when it is not ours
	classes   []*sequencer.Sequence // per constant of type regclass: nil when it is not ours
	catalogs  bool                  // what the catalogs tell has to be made true
	executes  *statement            // what EXECUTE runs, where it takes an overlay
	params    []answer.Param
	readOnly  bool           // the transaction is
	row       map[string]any // what a function of the schema nextvald returned

	// call and field evaluate a call and a column of a relation for a row of the answer.
	call  func(i int) (int64, bool, error)
	field func(e *sqlrewrite.Expr) (any, error)
}

// resolveUse finds out which calls and reads of a statement are ours. A call whose name is a parameter, and lastval, are
// decided when the statement is bound; until then they count as later.
func (x *session) resolveUse(plan *sqlrewrite.Plan, st *sqlrewrite.Statement, params []answer.Param, bound bool) (*use, error) {
	u := &use{
		plan: plan, statement: st, params: params, bound: bound,
		ours:      make([]bool, len(st.Calls)),
		sequences: make([]Sequence, len(st.Calls)),
		relations: make([]*sequencer.Sequence, len(st.Reads)),
		classes:   make([]*sequencer.Sequence, len(st.Classes)),
	}
	u.call = func(i int) (int64, bool, error) {
		r, err := x.evaluate(u, i)
		return r.value, r.null, err
	}
	u.field = func(e *sqlrewrite.Expr) (any, error) { return x.field(u, e) }
	for i := range st.Calls {
		c := &st.Calls[i]
		switch {
		case u.isLater(i):
			continue
		case c.Function == sqlrewrite.Lastval:
			u.ours[i] = x.values.last != nil
			continue
		}
		sequence, null, err := x.argument(&c.Name, params)
		if err != nil {
			return nil, err
		}
		u.ours[i] = null || sequence != nil
		if sequence != nil {
			u.sequences[i] = sequence
		}
	}
	for i := range st.Reads {
		if !x.known(st.Reads[i].Name.Name) {
			continue
		}
		sequence, err := x.resolve(st.Reads[i].Name)
		if err != nil {
			return nil, err
		}
		if !st.Reads[i].Prepared || isMirrored(sequence) {
			u.relations[i] = sequence
		}
	}
	for i := range st.Classes {
		sequence, err := x.class(&st.Classes[i])
		if err != nil {
			return nil, err
		}
		u.classes[i] = sequence
	}
	if e := st.Execute; e != nil {
		if prepared := x.named(e.Name); prepared != nil && prepared.overlaid && len(prepared.calls)+len(prepared.reads) == 0 {
			u.executes = prepared
		}
	}
	var err error
	u.catalogs, err = x.overlaps(st)
	return u, err
}

// isLater reports whether it is decided at Bind whether call i is ours; later whether there is such a call.
func (u *use) isLater(i int) bool {
	c := &u.statement.Calls[i]
	return !u.bound && (c.Function == sqlrewrite.Lastval || c.Name.Kind == sqlrewrite.Parameter)
}

func (u *use) later() bool {
	for i := range u.ours {
		if u.isLater(i) {
			return true
		}
	}
	return false
}

// editable reports whether such a call can be edited so that Bind decides.
func (u *use) editable() bool {
	for i := range u.ours {
		if u.isLater(i) && editable(&u.statement.Calls[i]) {
			return true
		}
	}
	return false
}

func editable(c *sqlrewrite.Call) bool {
	return c.Evaluation == sqlrewrite.Once && !c.Body && (c.Function == sqlrewrite.Lastval || c.Name.Sole)
}

// any reports whether anything of the statement is ours; all whether nothing of it is the upstream's.
func (u *use) any() bool {
	if u.statement.Peer != nil || u.isOverlaid() || u.executes != nil {
		return true
	}
	for i := range u.ours {
		if u.ours[i] && (u.sequences[i] != nil || u.statement.Calls[i].Function == sqlrewrite.Lastval) {
			return true
		}
	}
	return slices.ContainsFunc(u.relations, isOurs) || slices.ContainsFunc(u.classes, isOurs)
}

func isOurs(s *sequencer.Sequence) bool   { return s != nil }
func isNobody(s *sequencer.Sequence) bool { return s == nil }

func (u *use) all() bool {
	for i, ours := range u.ours {
		if !ours && !u.isLater(i) {
			return false
		}
	}
	return !u.isOverlaid() && !slices.ContainsFunc(u.relations, isNobody) && !slices.ContainsFunc(u.classes, isNobody)
}

// check refuses the shapes that cannot be answered rightly.
func (x *session) check(u *use) error {
	if p := u.statement.Peer; p != nil && p.Missing != "" {
		return x.errNoFunction(p.Missing, p.Start)
	}
	for i := range u.statement.Calls {
		c := &u.statement.Calls[i]
		if !u.ours[i] || u.sequences[i] == nil && c.Function != sqlrewrite.Lastval {
			continue
		}
		name := "a sequence of nextvald"
		if s := u.sequences[i]; s != nil {
			name = fmt.Sprintf("sequence \"%s\"", s.Name().Name)
		}
		switch {
		case c.Evaluation == sqlrewrite.Later:
			return notSupported("Call the function in the statements themselves: nextvald cannot see a call that the upstream server makes later.",
				"%s of %s in a definition (a column default, view, function, prepared statement) is not supported", functionName(c.Function), name)
		case c.Evaluation == sqlrewrite.PerRow && !x.numbered(u, i):
			return notSupported("Draw the values first, one SELECT with several calls or one statement each, and pass them in.",
				"%s of %s once for each row is not supported", functionName(c.Function), name)
		case c.Function == sqlrewrite.Setval && (c.Value.Kind == sqlrewrite.Opaque && u.inner(i) < 0 && u.expression(i) == "" || c.IsCalled.Kind == sqlrewrite.Opaque):
			return notSupported("Compute the value first, and call setval with a constant or a parameter.",
				"setval of %s with an expression is not supported", name)
		}
	}
	return nil
}

// inner is the index of the call that is the whole value argument of setval call i; -1 when there is none.
func (u *use) inner(i int) int {
	value := &u.statement.Calls[i].Value
	for j := range i {
		if c := &u.statement.Calls[j]; u.ours[j] && value.Kind == sqlrewrite.Opaque && c.Start == value.Start && c.End == value.End {
			return j
		}
	}
	return -1
}

// expression is the text of the value argument of setval call i, where the upstream can compute it by itself: it has
// no parameters. "" where it cannot.
func (u *use) expression(i int) string {
	value := &u.statement.Calls[i].Value
	if u.plan.Params > 0 || value.End <= value.Start {
		return ""
	}
	return u.plan.Text[value.Start:value.End]
}

// compute asks the upstream for the value argument of setval call i, after the calls of ours in it.
func (x *session) compute(u *use, i int) (value int64, null bool, err error) {
	argument := &u.statement.Calls[i].Value
	edits, err := x.readEdits(u)
	if err != nil {
		return 0, false, err
	}
	edits = slices.DeleteFunc(edits, func(e sqlrewrite.Edit) bool { return e.Start < argument.Start || e.End > argument.End })
	for j := range edits {
		edits[j].Start, edits[j].End = edits[j].Start-argument.Start, edits[j].End-argument.Start
	}
	for j := range i {
		c := &u.statement.Calls[j]
		if !u.ours[j] || c.Start < argument.Start || c.End > argument.End {
			continue
		}
		r, err := x.evaluate(u, j)
		if err != nil {
			return 0, false, err
		}
		edits = append(edits, sqlrewrite.Edit{Start: c.Start - argument.Start, End: c.End - argument.Start, Text: c.Replacement(literal(r))})
	}
	text, _ := sqlrewrite.Apply(u.expression(i), edits)
	rows, err := x.ask("SELECT v::pg_catalog.text, v IS NULL, pg_catalog.pg_typeof(v)::pg_catalog.text FROM (SELECT (" + text + ")) AS q(v)")
	switch {
	case err != nil:
		return 0, false, err
	case len(rows) != 1:
		return 0, false, notSupported("Compute the value first.", "setval of several values at once is not supported")
	}
	switch typ := rows[0][2]; typ {
	case "smallint", "integer", "bigint":
	default:
		return 0, false, x.errNoFunction("setval(unknown, "+typ+")", u.statement.Calls[i].Start)
	}
	if rows[0][1] == "t" {
		return 0, true, nil
	}
	value, err = strconv.ParseInt(rows[0][0], 10, 64)
	return value, false, err
}

// nested reports whether call i is inside the value argument of a setval of ours, which evaluates it.
func (u *use) nested(i int) bool {
	c := &u.statement.Calls[i]
	for k := i + 1; k < len(u.statement.Calls); k++ {
		outer := &u.statement.Calls[k]
		if u.ours[k] && outer.Function == sqlrewrite.Setval && outer.Value.Start <= c.Start && c.End <= outer.Value.End {
			return true
		}
	}
	return false
}

func functionName(f sqlrewrite.Function) string {
	switch f {
	case sqlrewrite.Nextval:
		return "nextval"
	case sqlrewrite.Currval:
		return "currval"
	case sqlrewrite.Lastval:
		return "lastval"
	default:
		return "setval"
	}
}

// begun notes that a statement begins to run: whether its transaction is read-only, where it would have to write. The call
// of a function of the schema nextvald is carried out.
func (x *session) begun(u *use) error {
	if u.statement.Peer != nil {
		return x.callPeer(u)
	}
	u.readOnly = false
	if u.statement.Explain {
		return nil
	}
	for i := range u.statement.Calls {
		switch u.statement.Calls[i].Function {
		case sqlrewrite.Nextval, sqlrewrite.Setval:
			if u.sequences[i] != nil {
				var err error
				u.readOnly, err = x.readOnly()
				return err
			}
		}
	}
	return nil
}

// field is a column of the relation or function that an answer reads, or a constant of type regclass.
func (x *session) field(u *use, e *sqlrewrite.Expr) (any, error) {
	name := e.Text
	if u.statement.Peer != nil {
		return u.row[name], nil
	}
	if e.Kind == sqlrewrite.ExprClass {
		return x.classValue(u.classes[e.Class])
	}
	state, err := x.state(u.relations[u.statement.Answer.Read])
	if err != nil {
		return nil, err
	}
	switch name {
	case "last_value":
		return state.LastValue, nil
	case "log_cnt":
		return state.LogCnt, nil
	default:
		return state.IsCalled, nil
	}
}

// evaluate carries out call i of u.
func (x *session) evaluate(u *use, i int) (result, error) {
	c := &u.statement.Calls[i]
	sequence := u.sequences[i]
	switch {
	case u.statement.Explain:
		return result{}, nil // EXPLAIN shows a plan and draws nothing
	case c.Function == sqlrewrite.Lastval:
		return x.lastval()
	case sequence == nil:
		return result{null: true}, nil
	}
	switch c.Function {
	case sqlrewrite.Currval:
		v, ok := x.values.current[sequence.Incarnation()]
		if !ok {
			return result{}, &wire.Error{Code: "55000",
				Message: fmt.Sprintf("currval of sequence \"%s\" is not yet defined in this session", sequence.Name().Name)}
		}
		return result{value: v}, nil
	case sqlrewrite.Setval:
		value, called, null, err := x.setvalArguments(u, i)
		if null || err != nil {
			return result{null: true}, err
		}
		if u.readOnly {
			return result{}, errReadOnly("setval()")
		}
		if err := x.checkPending(sequence); err != nil {
			return result{}, err
		}
		ctx := x.wait()
		defer x.waited()
		if err := sequence.(*sequencer.Sequence).Set(ctx, value, called); err != nil { // the upstream's own are not ours to set
			return result{}, x.stale(err)
		}
		if called {
			x.values.current[sequence.Incarnation()] = value
		}
		return result{value: value}, nil
	default:
		if u.readOnly {
			return result{}, errReadOnly("nextval()")
		}
		if err := x.checkPending(sequence); err != nil {
			return result{}, err
		}
		v, ok := sequence.TryNext()
		if !ok {
			var err error
			if v, err = sequence.Next(x.wait()); err != nil {
				x.waited()
				return result{}, x.stale(err)
			}
			x.waited()
		}
		x.values.drew(sequence, v)
		return result{value: v}, nil
	}
}

// stale makes the next use of a name look again when its sequence proved to be gone.
func (x *session) stale(err error) error {
	if errors.Is(err, sequencer.ErrUndefined) {
		clear(x.names.known)
	}
	return err
}

// setvalArguments takes the value and is_called of setval call i.
func (x *session) setvalArguments(u *use, i int) (value int64, called, null bool, err error) {
	c := &u.statement.Calls[i]
	if j := u.inner(i); j >= 0 {
		r, err := x.evaluate(u, j)
		if err != nil {
			return 0, false, false, err
		}
		value, null = r.value, r.null
	} else if c.Value.Kind == sqlrewrite.Opaque {
		if value, null, err = x.compute(u, i); err != nil || null {
			return 0, false, null, err
		}
	} else if value, null, err = answer.Int8(u.param(&c.Value)); err != nil || null {
		return 0, false, null, err
	}
	called, calledNull, err := answer.Bool(u.param(&c.IsCalled))
	return value, called, null || calledNull, err
}

// param is the value of an argument that is a constant or a parameter.
func (u *use) param(a *sqlrewrite.Argument) answer.Param {
	if a.Kind == sqlrewrite.Parameter {
		return u.params[a.Param-1]
	}
	p := answer.Param{Type: a.Type}
	if !a.Null {
		p.Value = []byte(a.Value)
	}
	return p
}

// lastval is the value of the session's last nextval, whoever answered it.
func (x *session) lastval() (result, error) {
	undefined := &wire.Error{Code: "55000", Message: "lastval is not yet defined in this session"}
	last := x.values.last
	if last == nil {
		return result{}, undefined
	}
	now, err := x.lookup(last.Name())
	if err != nil {
		return result{}, err
	}
	if now == nil || now.Incarnation() != last.Incarnation() {
		return result{}, undefined // it was dropped
	}
	ours := result{value: x.values.current[last.Incarnation()]}
	if !x.values.upstream.after {
		return ours, nil
	}
	return x.lastvalOfBoth(ours)
}

// lastvalOfBoth decides between our last value and the upstream's, when statements that went there after ours may
// have drawn one unseen.
func (x *session) lastvalOfBoth(ours result) (result, error) {
	if x.srv.cfg.Standalone {
		return ours, nil
	}
	theirs, defined, err := x.upstreamLastval()
	if err != nil {
		return result{}, err
	}
	use := &x.values.upstream
	if defined && (!use.defined || use.seen != theirs.value) { // it drew since it was asked before
		use.later = true
		if use.before {
			return result{}, errAmbiguousLastval()
		}
	}
	use.seen, use.defined, use.before = theirs.value, defined, false
	if use.later {
		return theirs, nil
	}
	return ours, nil
}

func errAmbiguousLastval() *wire.Error {
	return &wire.Error{Code: "55000", Message: "lastval is ambiguous in this session",
		Detail: "Both nextvald and the upstream server have answered nextval in this session, and it cannot be told which was last.",
		Hint:   "Use currval with the sequence's name, or RETURNING."}
}

// upstreamLastval asks for the upstream's own lastval. Where it is undefined the question fails, which an open
// transaction survives by a savepoint.
func (x *session) upstreamLastval() (result, bool, error) {
	if x.batch.forwarded {
		return result{}, false, notSupported("Use currval with the sequence's name, or RETURNING.",
			"lastval inside a pipeline is not supported after statements that may have drawn values in the upstream server")
	}
	open := byte(x.status.Load()) == inBlock
	if open {
		if _, err := x.ask("SAVEPOINT nextvald_reserved"); err != nil {
			return result{}, false, err
		}
	}
	rows, err := x.ask("SELECT pg_catalog.lastval()")
	var failure *wire.Error
	undefined := errors.As(err, &failure) && failure.Code == "55000"
	if err != nil && !undefined {
		return result{}, false, err
	}
	if open {
		if undefined {
			if _, err := x.ask("ROLLBACK TO SAVEPOINT nextvald_reserved"); err != nil {
				return result{}, false, err
			}
		}
		if _, err := x.ask("RELEASE SAVEPOINT nextvald_reserved"); err != nil {
			return result{}, false, err
		}
	}
	if undefined {
		return result{}, false, nil
	}
	v, err := strconv.ParseInt(rows[0][0], 10, 64)
	return result{value: v}, true, err
}
