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
	means     []*meaning            // per call: what its name means in the upstream; nil for a virtual sequence
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
		means:     make([]*meaning, len(st.Calls)),
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
			u.ours[i] = x.values.last != nil || len(x.drawing) > 0
			continue
		case x.mirrored():
			if err := x.resolveCall(u, i); err != nil {
				return nil, err
			}
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
		if x.mirrored() {
			break // the upstream knows all OIDs
		}
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
		if u.isOurs(i) {
			return true
		}
	}
	return slices.ContainsFunc(u.relations, isOurs) || slices.ContainsFunc(u.classes, isOurs)
}

// isOurs reports whether call i is answered here, with more than NULL.
func (u *use) isOurs(i int) bool {
	return u.ours[i] && (u.sequences[i] != nil || u.means[i] != nil || u.statement.Calls[i].Function == sqlrewrite.Lastval)
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
		if !u.isOurs(i) {
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
		case u.opaque(i):
			return notSupported("Compute the value first, and call setval with a constant or a parameter.",
				"setval of %s with an expression is not supported", name)
		}
	}
	return nil
}

// opaque reports whether call i is a setval whose value nobody can tell beforehand.
func (u *use) opaque(i int) bool {
	c := &u.statement.Calls[i]
	return c.Function == sqlrewrite.Setval &&
		(c.Value.Kind == sqlrewrite.Opaque && u.inner(i) < 0 && u.expression(i) == "" || c.IsCalled.Kind == sqlrewrite.Opaque)
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
	case !u.isOurs(i):
		return result{null: true}, nil
	}
	m := u.means[i]
	if m != nil && !m.allows(c.Function) {
		return result{}, errDenied(m.name)
	}
	switch c.Function {
	case sqlrewrite.Currval:
		oid, name, kind := uint32(0), "", sequencer.Virtual
		if m != nil {
			oid, name, kind = m.oid, m.name.Name, sequencer.Mirrored
		} else {
			oid, name = sequence.OID(), sequence.Name().Name
		}
		if !x.values.answered(oid) {
			return result{}, &wire.Error{Code: "55000", Message: fmt.Sprintf("currval of sequence \"%s\" is not yet defined in this session", name)}
		}
		return x.currval(oid, kind)
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
		stored := sequence.(*sequencer.Sequence) // the upstream's own are not ours to set
		if m != nil && stored.Hindered(value, called) && x.revoke([]moved{{oid: m.oid, name: m.name}}, false) == nil {
			return result{}, ErrPass // where that fails the fence is skipped
		}
		ctx := x.wait()
		defer x.waited()
		if err := stored.Set(ctx, value, called); err != nil {
			return result{}, x.stale(sequence, err)
		}
		if called {
			x.values.set(sequence, value)
		}
		return result{value: value}, nil
	default:
		if m != nil && u.native(i) && u.readOnly {
			return result{}, ErrPass
		}
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
				return result{}, x.stale(sequence, err)
			}
			x.waited()
		}
		if x.keeping && u.native(i) && len(u.ours)+len(u.plan.Statements) > 2 {
			x.keep(sequence, v)
		}
		x.values.drew(sequence, v)
		return result{value: v}, nil
	}
}

// stale makes the next use of a name look again when its sequence proved to be gone. One that the upstream has too is the
// upstream's then, or about to be: ErrPass.
func (x *session) stale(sequence Sequence, err error) error {
	gone := errors.Is(err, sequencer.ErrUndefined)
	if gone {
		clear(x.names.known)
	}
	if stored, ok := sequence.(*sequencer.Sequence); ok && x.mirrored() && stored.Kind() == sequencer.Mirrored &&
		(gone || errors.Is(err, sequencer.ErrMoving)) {
		return ErrPass
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
