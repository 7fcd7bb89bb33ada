package proxy

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/nextvald/nextvald/proxy/answer"
	"github.com/nextvald/nextvald/proxy/wire"
	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sqlrewrite"
)

// Calls of sequences that the upstream has too (Config.Native): those of the store's are answered as virtual ones are. Those of
// the upstream's own pass, untouched and unresolved, unless they are frequent; then a statement of nothing but such calls is
// answered from what was drawn. currval and lastval are answered where the session's last value was.

// concerns reports whether a statement may have calls or reads that are ours. It counts the calls of nextval.
func (x *session) concerns(st *sqlrewrite.Statement, params []answer.Param) bool {
	return x.looksAt(st, params, true)
}

// looksAt is concerns, which may leave the calls of nextval uncounted.
func (x *session) looksAt(st *sqlrewrite.Statement, params []answer.Param, counts bool) bool {
	found := st.Peer != nil || (len(st.Catalogs) > 0 || st.Execute != nil) && x.srv.cfg.Sequences.Any(x.database)
	for i := range st.Reads {
		found = found || x.known(st.Reads[i].Name.Name)
	}
	for i := range st.Calls {
		c := &st.Calls[i]
		switch {
		case c.Function == sqlrewrite.Lastval:
			x.asksFor("")
			found = found || x.values.last != nil || len(x.drawing) > 0
			continue
		case c.Body:
			continue
		}
		name, ok := calledName(&c.Name, params)
		if !ok {
			continue
		}
		found = found || x.mayBeStored(name)
		switch c.Function {
		case sqlrewrite.Nextval:
			if counts && c.Evaluation == sqlrewrite.Once && x.srv.cfg.Native.Called(x.database, name.Name) {
				found = true
			}
		case sqlrewrite.Currval:
			x.asksFor(name.Name)
			found = found || len(x.values.current) > 0 || len(x.drawing) > 0
		}
	}
	return found
}

// calledName is the name, or the OID, that a call has for its sequence; ok is false where nothing tells it.
func calledName(a *sqlrewrite.Argument, params []answer.Param) (name sqlrewrite.Name, ok bool) {
	text := a.Value
	switch a.Kind {
	case sqlrewrite.Opaque:
		return name, false
	case sqlrewrite.Constant:
		if a.Null {
			return name, false
		}
	case sqlrewrite.Parameter:
		if a.Param > len(params) {
			return name, false
		}
		var null bool
		var err error
		if text, null, err = answer.Text(params[a.Param-1]); err != nil || null {
			return name, false
		}
	}
	if sqlrewrite.IsOID(text) {
		return oidName(text), true
	}
	name, err := sqlrewrite.ParseQualifiedName(text)
	return name, err == nil // else the upstream says what is wrong with it
}

func isOID(name sqlrewrite.Name) bool { return name.Schema == oidName("").Schema }

// mayBeStored reports whether a name may be that of a sequence of ours.
func (x *session) mayBeStored(name sqlrewrite.Name) bool {
	if !isOID(name) {
		// Others do not know yet what the open transaction calls it.
		return x.known(name.Name) || x.moving != nil && len(x.moving.renamed) > 0
	}
	oid, err := strconv.ParseUint(name.Name, 10, 32)
	if err != nil {
		return false
	}
	_, err = x.srv.cfg.Sequences.LookupOID(x.ctx, x.database, uint32(oid))
	return err == nil
}

// resolveCall finds out whether call i of u is ours. Its name is known.
func (x *session) resolveCall(u *use, i int) error {
	c := &u.statement.Calls[i]
	if c.Name.Kind == sqlrewrite.Constant && c.Name.Null {
		u.ours[i] = true
		return nil
	}
	name, ok := calledName(&c.Name, u.params)
	if !ok || c.Body || c.Evaluation == sqlrewrite.Later || u.statement.Explain {
		return nil
	}
	stored := x.mayBeStored(name)
	m, err := x.mean(name)
	if err != nil {
		return err
	}
	if m == nil {
		sequence, err := x.virtual(name, stored)
		if sequence != nil {
			u.sequences[i], u.ours[i] = sequence, true
		}
		return err
	}
	if stored {
		sequence, err := x.stored(m)
		if err != nil {
			return err
		}
		if sequence != nil {
			// What cannot be answered here is answered by the upstream, to which the sequence is handed over.
			if c.Evaluation == sqlrewrite.Once && !asWritten(u.statement) && !isNoInteger(&c.Value) && !isNoBool(&c.IsCalled) {
				u.sequences[i], u.means[i], u.ours[i] = sequence, m, true
				if c.Function == sqlrewrite.Nextval {
					x.draws(m.oid)
				}
				return nil
			}
			if c.Function != sqlrewrite.Currval {
				return nil
			}
		}
	}
	switch c.Function {
	case sqlrewrite.Nextval:
		if spare := x.spares[m.oid]; x.passing && spare != nil && c.Evaluation == sqlrewrite.Once {
			u.sequences[i], u.means[i], u.ours[i] = spare, m, true
			x.draws(m.oid)
			return nil
		}
		if c.Evaluation != sqlrewrite.Once || asWritten(u.statement) || m.temporary || m.told || !m.allows(c.Function) || x.passing || x.moving != nil {
			return nil
		}
		if ok, err := x.learn(m); !ok {
			return err
		}
		if sequence := x.srv.cfg.Native.Drawn(x.database, m.oid, m.name); sequence != nil {
			u.sequences[i], u.means[i], u.ours[i] = sequence, m, true
			x.draws(m.oid)
		}
	case sqlrewrite.Currval:
		if (x.values.answered(m.oid) || x.drawing[m.oid]) && c.Evaluation == sqlrewrite.Once {
			u.means[i], u.ours[i] = m, true
		}
	}
	return nil
}

// asWritten reports whether the calls of a statement that draw or move are the upstream's, as they are written: their order is
// its own, or its answer shows the text.
func asWritten(st *sqlrewrite.Statement) bool {
	return st.Sets || st.Analyze || st.Cursor
}

// isNoInteger reports whether the value of a setval is a constant that PostgreSQL refuses.
func isNoInteger(value *sqlrewrite.Argument) bool {
	if value.Kind != sqlrewrite.Constant || value.Null {
		return false
	}
	_, err := strconv.ParseInt(strings.TrimSpace(value.Value), 10, 64)
	return err != nil
}

// isNoBool is isNoInteger for its third argument.
func isNoBool(called *sqlrewrite.Argument) bool {
	if called.Kind != sqlrewrite.Constant || called.Null {
		return false
	}
	_, _, err := answer.Bool(answer.Param{Type: called.Type, Value: []byte(called.Value)})
	return err != nil
}

// virtual finds a sequence that the upstream does not have.
func (x *session) virtual(name sqlrewrite.Name, stored bool) (*sequencer.Sequence, error) {
	switch {
	case !stored:
		return nil, nil
	case isOID(name):
		sequence, err := x.lookupOID(name.Name)
		if sequence == nil || err != nil || sequence.Kind() != sequencer.Virtual {
			return nil, err
		}
		return sequence, nil
	}
	return x.resolve(name)
}

// evaluateOrLeave is evaluate for a statement that goes to the upstream: a call that the upstream has to answer is not ours any
// more, nor are currval and lastval where they follow one.
func (x *session) evaluateOrLeave(u *use, i int) (result, error) {
	c := &u.statement.Calls[i]
	if x.mirrored() && (c.Function == sqlrewrite.Currval || c.Function == sqlrewrite.Lastval) && u.follows(i) {
		u.disown(i)
		return result{}, nil
	}
	r, err := x.evaluate(u, i)
	if errors.Is(err, ErrPass) {
		u.disown(i)
		err = nil
	}
	return r, err
}

// answerable reports whether a statement is one that may be answered here, as far as its calls go.
func (u *use) answerable() bool {
	a := u.statement.Answer
	if a == nil || u.statement.Explain {
		return false
	}
	for _, ours := range u.ours {
		if !ours {
			return false
		}
	}
	for i := range u.ours {
		if u.native(i) && len(a.Rows) > 1 {
			return false // so that it can be left to the upstream at any time
		}
	}
	return true
}

// native reports whether call i is of a sequence that the upstream hands out.
func (u *use) native(i int) bool {
	if u.sequences[i] == nil {
		return false
	}
	_, stored := u.sequences[i].(*sequencer.Sequence)
	return !stored
}

// onlyNative reports whether what is ours of a statement are values drawn from the upstream alone.
func (u *use) onlyNative() bool {
	for i := range u.ours {
		if u.isOurs(i) && !u.native(i) {
			return false
		}
	}
	return !slices.ContainsFunc(u.relations, isOurs) && !u.isOverlaid() && u.executes == nil
}

func (u *use) disown(i int) { u.ours[i], u.sequences[i], u.means[i] = false, nil, nil }

// follows reports whether a call before call i, which tells the last value, goes to the upstream and changes it.
func (u *use) follows(i int) bool {
	last := &u.statement.Calls[i]
	name, known := calledName(&last.Name, u.params)
	for j := range i {
		c := &u.statement.Calls[j]
		if u.ours[j] || u.isLater(j) || c.Body || c.Function != sqlrewrite.Nextval && c.Function != sqlrewrite.Setval {
			continue
		}
		other, ok := calledName(&c.Name, u.params)
		if last.Function == sqlrewrite.Lastval && c.Function == sqlrewrite.Nextval || !ok || !known || other.Name == name.Name {
			return true
		}
	}
	return false
}

// allows reports whether the session's role may call a function of the sequence.
func (m *meaning) allows(f sqlrewrite.Function) bool {
	switch f {
	case sqlrewrite.Nextval:
		return m.usage || m.update
	case sqlrewrite.Setval:
		return m.update
	default:
		return m.usage || m.selects
	}
}

// stillDrawn reports whether what a name meant before is still what it means, and handed out here by the same Sequence.
func (x *session) stillDrawn(m *meaning, s Sequence) bool {
	if m.changes != x.srv.changes.Load() {
		return false
	}
	if _, stored := s.(*sequencer.Sequence); stored {
		return true // its life ends when it is handed over
	}
	return x.moving == nil && x.canTell(m) && x.srv.cfg.Native.Drawn(x.database, m.oid, m.name) == s
}

// leaveWhatFollows leaves currval and lastval of a statement to the upstream, where calls of nextval in the same text go
// before, which change them there. Of an INSERT it is taken that it draws a value.
func (q *textEdit) leaveWhatFollows(u *use) {
	for i := range u.statement.Calls {
		c := &u.statement.Calls[i]
		if c.Function != sqlrewrite.Currval && c.Function != sqlrewrite.Lastval {
			continue
		}
		name, _ := calledName(&c.Name, nil)
		for k := range q.plan.Statements {
			before := &q.plan.Statements[k]
			if before == u.statement {
				break
			}
			if c.Function == sqlrewrite.Lastval && isInsert(q.plan.Text[before.Start:before.End]) || drawsThere(before, q.ours[before], name.Name) {
				u.disown(i)
				break
			}
		}
	}
}

func isInsert(text string) bool { return len(text) > 6 && strings.EqualFold(text[:6], "insert") }

// drawsThere reports whether a statement has a call, not among ours, of nextval that the upstream answers; of a sequence of
// that bare name where one is given.
func drawsThere(st *sqlrewrite.Statement, ours []bool, name string) bool {
	for i := range st.Calls {
		c := &st.Calls[i]
		if ours != nil && ours[i] || c.Body || c.Function != sqlrewrite.Nextval && c.Function != sqlrewrite.Setval {
			continue
		}
		if called, ok := calledName(&c.Name, nil); !ok || name == "" || called.Name == name {
			return true
		}
	}
	return false
}

// notePassedCalls notes the calls of nextval and setval that go to the upstream with a statement.
func (x *session) notePassedCalls(st *sqlrewrite.Statement, ours []bool) {
	if !x.mirrored() || x.values.last == nil && len(x.values.current) == 0 {
		return
	}
	for i := range st.Calls {
		c := &st.Calls[i]
		if ours != nil && ours[i] || c.Body || c.Evaluation == sqlrewrite.Later {
			continue
		}
		name, _ := calledName(&c.Name, nil)
		switch c.Function {
		case sqlrewrite.Nextval:
			x.values.passedCall(name.Name)
		case sqlrewrite.Setval:
			if called, null, err := answer.Bool(answer.Param{Type: c.IsCalled.Type, Value: []byte(c.IsCalled.Value)}); c.IsCalled.Kind != sqlrewrite.Constant ||
				!c.IsCalled.Null && !null && err == nil && called {
				x.values.passedSet(name.Name)
			}
		}
	}
}

// bindPassed handles the Bind of a statement that the upstream has as the client wrote it. Where all of it can be answered here
// the portal is ours; where some of it is, the upstream gets the values in a statement of our own.
func (x *session) bindPassed(name string, st *statement, body int) error {
	frame, err := x.in.Frame(body)
	if err != nil {
		return err
	}
	m := &x.bound
	if err := m.Decode(frame[wire.HeaderLen:]); err != nil || len(m.Parameters) < st.plan.Params || byte(x.status.Load()) == failed {
		x.portals[name] = &portal{statement: st, upstream: true}
		return x.send(expectation{kind: wire.TypeBind}, frame) // the upstream says what is wrong with it
	}
	p := &portal{statement: st, upstream: true, params: copied(x.parameters(m, st))}
	concerned := x.looksAt(st.parsed, p.params, !st.counted)
	st.counted = false
	if concerned {
		x.resolveAnew()
		if p.use, err = x.resolveUse(st.plan, st.parsed, p.params, true); err != nil {
			return x.fail(err)
		}
	}
	x.portals[name] = p
	switch {
	case p.use == nil || !p.use.any(), !p.use.answerable() && p.use.onlyNative():
		p.use = nil
		x.notePassedCalls(st.parsed, nil)
		return x.send(expectation{kind: wire.TypeBind}, frame)
	case x.answersPassed(p, m):
		p.upstream = false
		return x.respondLocal(bindComplete)
	}
	return x.bindOwn(name, p, m, false)
}

// copied are parameters that outlive their message.
func copied(params []answer.Param) []answer.Param {
	for i := range params {
		if params[i].Value != nil {
			params[i].Value = append([]byte{}, params[i].Value...)
		}
	}
	return params
}

// answersPassed prepares a portal to be answered here, and reports whether it can be.
func (x *session) answersPassed(p *portal, m *wire.Bind) bool {
	st, u := p.statement, p.use
	if st.parsed.Answer == nil || !u.all() || !u.answerable() || len(m.Parameters) != max(st.plan.Params, len(st.declared)) {
		return false
	}
	if n := len(m.ParameterFormats); n > 1 && n != len(m.Parameters) {
		return false
	}
	if st.columns == nil {
		params, ok := finalParams(st.parsed, st.declared)
		if !ok {
			return false
		}
		columns, ok := answer.Columns(st.parsed.Answer, params)
		if !ok || answer.Constants(st.parsed.Answer, columns) != nil {
			return false
		}
		st.params, st.columns = params, columns
	}
	if n := len(m.ResultFormats); n > 1 && n != len(st.columns) {
		return false
	}
	for i := range p.params {
		p.params[i].Type = st.params[i]
	}
	if answer.Check(withoutNames(p.params), m.Portal) != nil || answer.Fold(st.parsed.Answer.Rows, st.columns, p.params) != nil {
		return false // the upstream says what is wrong
	}
	p.formats = append(p.formats[:0], m.ResultFormats...)
	return true
}

// spare are values that were drawn already. It gives no others.
type spare struct {
	Sequence
	values []int64
}

func (s *spare) TryNext() (value int64, ok bool) {
	if len(s.values) == 0 {
		return 0, false
	}
	value, s.values = s.values[0], s.values[1:]
	return value, true
}

func (s *spare) Next(context.Context) (int64, error) {
	if value, ok := s.TryNext(); ok {
		return value, nil
	}
	return 0, ErrPass
}

// keep notes a value that was drawn of the upstream for a statement that is being answered.
func (x *session) keep(sequence Sequence, value int64) {
	if s := x.spares[sequence.OID()]; s != nil {
		s.values = append(s.values, value)
		return
	}
	if x.spares == nil {
		x.spares = make(map[uint32]*spare)
	}
	x.spares[sequence.OID()] = &spare{sequence, []int64{value}}
}

// attempt begins to answer a statement here. What is drawn from here on is kept until it is certain whether that succeeds.
func (x *session) attempt() {
	clear(x.spares)
	x.keeping = true
}

// attempted ends an attempt. Only after ErrPass, when the client was told nothing, what was drawn is left for the upstream's
// answer; otherwise the client has it, or nobody.
func (x *session) attempted(err error) {
	x.keeping = false
	if !errors.Is(err, ErrPass) {
		clear(x.spares)
	}
}

// passAnswers begins to let the upstream answer what an attempt could not, and passedOn ends that.
func (x *session) passAnswers() { x.passing = true }

func (x *session) passedOn() {
	x.passing = false
	clear(x.spares)
}

// draws notes that what is being resolved draws of a sequence.
func (x *session) draws(oid uint32) {
	if x.drawing == nil {
		x.drawing = make(map[uint32]bool)
	}
	x.drawing[oid] = true
}

// resolveAnew begins to resolve another text.
func (x *session) resolveAnew() {
	clear(x.drawing)
}

// executeInstead lets the upstream execute a portal of ours whose values it has to tell.
func (x *session) executeInstead(name string, p *portal, limit int32) error {
	x.passAnswers()
	defer x.passedOn()
	var params []answer.Param
	m := &wire.Bind{Portal: name, ResultFormats: p.formats}
	if p.use != nil {
		params = p.use.params
	}
	for _, v := range params {
		m.Parameters, m.ParameterFormats = append(m.Parameters, v.Value), append(m.ParameterFormats, v.Format)
	}
	st := p.statement
	x.resolveAnew()
	u, err := x.resolveUse(st.plan, st.parsed, params, true)
	if err != nil {
		return x.fail(err)
	}
	up := &portal{statement: st, upstream: true, use: u, params: params}
	x.portals[name] = up
	if err := x.bindOwn(name, up, m, true); err != nil || x.batch.skipping {
		return err
	}
	if err := x.clearWay(st.parsed, params, up.ours); err != nil {
		return x.fail(err)
	}
	x.values.passed(st.parsed, up.ours)
	return x.send(expectation{kind: wire.TypeExecute}, wire.AppendExecute(nil, name, limit))
}

// bindOwn binds a portal at the upstream to a statement of our own: the client's with the values that are told here. quiet: the
// client was told already that it is bound.
func (x *session) bindOwn(name string, p *portal, m *wire.Bind, quiet bool) error {
	st, u := p.statement, p.use
	p.ours = u.ours
	if err := x.check(u); err != nil {
		return x.fail(err)
	}
	if err := x.clearWayAhead(u); err != nil {
		return x.fail(err)
	}
	if err := x.begun(u); err != nil {
		return x.fail(err)
	}
	types := make([]uint32, max(st.plan.Params, len(st.declared)))
	copy(types, st.declared)
	edits, err := x.readEdits(u)
	if err != nil {
		return x.fail(err)
	}
	for i := range st.parsed.Calls {
		c := &st.parsed.Calls[i]
		if !u.ours[i] || u.nested(i) {
			continue
		}
		r, err := x.evaluateOrLeave(u, i)
		if err != nil {
			return x.fail(err)
		}
		if !u.ours[i] {
			continue
		}
		declareArguments(types, c)
		edits = append(edits, sqlrewrite.Edit{Start: c.Start, End: c.End, Text: c.Replacement(literal(r))})
	}
	if err := x.clearWayOfReads(u); err != nil {
		return x.fail(err)
	}
	x.notePassedCalls(st.parsed, u.ours)
	text, positions := sqlrewrite.Apply(st.text, edits)
	parse := expectation{kind: wire.TypeParse, quiet: true, x: &special{positions: &positions}}
	if err := x.send(parse, wire.AppendParse(nil, wire.Parse{Name: reservedOwn, Query: text, ParameterOIDs: types})); err != nil {
		return err
	}
	m.Portal, m.Statement = name, reservedOwn
	if err := x.send(expectation{kind: wire.TypeBind, quiet: quiet, x: &special{positions: &positions}}, wire.AppendBind(nil, *m)); err != nil {
		return err
	}
	// The portal keeps what it needs of the statement.
	return x.send(expectation{kind: wire.TypeClose, quiet: true}, wire.AppendTarget(nil, wire.TypeClose, 'S', reservedOwn))
}
