package proxy

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nextvald/nextvald/proxy/answer"
	"github.com/nextvald/nextvald/proxy/wire"
	"github.com/nextvald/nextvald/sqlrewrite"
)

const (
	// namesLimit is how much of a Bind, Describe, Execute or Close is looked at for its names.
	namesLimit = 4096
	// maxParameters is what the 16-bit count of a Bind holds.
	maxParameters = 65535
)

// Answers without a body.
var (
	parseComplete = wire.AppendEmpty(nil, wire.TypeParseComplete)
	bindComplete  = wire.AppendEmpty(nil, wire.TypeBindComplete)
	closeComplete = wire.AppendEmpty(nil, wire.TypeCloseComplete)
)

// parse handles a Parse message.
func (x *session) parse(body int) error {
	frame, err := x.in.Frame(body)
	if err != nil {
		return err
	}
	x.parsed = true
	name, query, declared, err := wire.PeekParse(frame[wire.HeaderLen:])
	if err != nil {
		return x.send(expectation{kind: wire.TypeParse}, frame) // the upstream says what is wrong with it
	}
	traits := sqlrewrite.Scan(query, x.known)
	if name == "" && traits&followed == 0 && !x.interests(traits) {
		return x.passUnnamed(query, frame)
	}
	if name == "" && declared == 0 && x.interests(traits) {
		if st := x.keptStatement(query); st != nil {
			x.prepared[""] = st
			return x.respondSpecial(parseComplete, st)
		}
	}
	m, err := wire.DecodeParse(frame[wire.HeaderLen:])
	if err != nil {
		return err
	}
	st := &statement{name: m.Name, text: m.Query, declared: m.ParameterOIDs, traits: traits}
	if !x.interests(st.traits) {
		return x.parsePassed(st, frame)
	}
	status, open := x.transaction()
	if !open {
		return errOver
	}
	plan, err := x.plan(m.Query, st.traits, voidParameters(st.declared)...)
	if err != nil {
		return x.fail(err)
	}
	if plan == nil || len(plan.Statements) != 1 {
		return x.parsePassed(st, frame)
	}
	st.plan, st.parsed, x.text = plan, &plan.Statements[0], m.Query
	if status == failed {
		return x.parsePassed(st, frame)
	}
	switch st.parsed.Kind {
	case sqlrewrite.KindUse:
		if err := x.checkCreates(st.parsed); err != nil {
			return x.fail(err)
		}
		if x.mirrored() {
			st.counted = !slices.ContainsFunc(st.parsed.Calls, func(c sqlrewrite.Call) bool { return c.Name.Kind == sqlrewrite.Parameter })
			if !x.concerns(st.parsed, nil) {
				return x.parsePassed(st, frame)
			}
		}
		return x.parseUse(st, frame)
	case sqlrewrite.KindDDL:
		ours, err := x.ownsDDL(st.parsed)
		if err != nil {
			return x.fail(err)
		}
		if ours {
			return x.parseLocal(st)
		}
	case sqlrewrite.KindDeallocate:
		if p := x.named(st.parsed.Deallocate); st.parsed.Deallocate != "" && p != nil && p.onlyHere() {
			return x.parseLocal(st)
		}
	}
	if err := x.checkCreates(st.parsed); err != nil {
		return x.fail(err)
	}
	return x.parsePassed(st, frame)
}

// parseUse prepares a statement with sequence calls or reads.
func (x *session) parseUse(st *statement, frame []byte) error {
	x.resolveAnew()
	u, err := x.resolveUse(st.plan, st.parsed, nil, false)
	if err != nil {
		return x.fail(err)
	}
	later := u.later()
	if !u.any() && !later {
		return x.parsePassed(st, frame)
	}
	if err := x.check(u); err != nil {
		return x.fail(err)
	}
	if a := st.parsed.Answer; a != nil && u.all() && !(x.mirrored() && (later || !u.answerable())) {
		if params, ok := finalParams(st.parsed, st.declared); ok {
			if columns, ok := answer.Columns(a, params); ok {
				st.params, st.columns = params, columns
				if len(params) == 0 {
					x.makeReady(u, columns)
				}
				return x.parseLocal(st)
			}
		}
	}
	if !u.any() && (!u.editable() || x.mirrored()) {
		st.watched = later
		return x.parsePassed(st, frame)
	}
	return x.parseEdited(st, u)
}

// passUnnamed sends on a Parse of an unnamed statement of which nothing need be known.
func (x *session) passUnnamed(query string, frame []byte) error {
	delete(x.prepared, "")
	x.rows = x.mirrored() && sqlrewrite.IsRowStatement(query)
	return x.send(expectation{kind: wire.TypeParse}, frame)
}

// parsePassed sends a Parse on as it is.
func (x *session) parsePassed(st *statement, frame []byte) error {
	before := x.named(st.name)
	if st.name != "" && before != nil {
		if before.onlyHere() {
			return x.fail(errStatementExists(st.name))
		}
		st.before = before // the upstream refuses the name
	}
	e := expectation{kind: wire.TypeParse}
	switch {
	case st.name != "" || st.effects():
		x.prepared[st.name] = st
		e.x = &special{statement: st}
	default:
		return x.passUnnamed(st.text, frame)
	}
	x.noteTraits(st.traits)
	return x.send(e, frame)
}

// parseLocal prepares a statement that is answered here.
func (x *session) parseLocal(st *statement) error {
	if x.taken(st.name) {
		return x.fail(errStatementExists(st.name))
	}
	if a := st.parsed.Answer; a != nil {
		if err := answer.Constants(a, st.columns); err != nil {
			return x.fail(err)
		}
	}
	st.mode = local
	x.prepared[st.name] = st
	if r := x.answers[st.parsed]; r != nil && st.name == "" && len(st.declared) == 0 {
		r.statement = st
	}
	return x.respondSpecial(parseComplete, st)
}

// parseEdited sends a Parse with parameters of ours in the place of calls and reads. Their values are drawn at Bind.
func (x *session) parseEdited(st *statement, u *use) error {
	if st.parsed.Peer != nil {
		return x.fail(errPeerShape())
	}
	if st.parsed.Utility {
		return x.parseUtility(st, u)
	}
	st.mode = edited
	st.base = max(st.plan.Params, len(st.declared))
	types := make([]uint32, st.base)
	copy(types, st.declared)
	edits := append(classEdits(u), u.prefixEdits()...)
	parameter := func(oid uint32, typ string) string {
		types = append(types, oid)
		return "$" + strconv.Itoa(len(types)) + "::pg_catalog." + typ
	}
	for i := range st.parsed.Calls {
		c := &st.parsed.Calls[i]
		if u.nested(i) || !u.ours[i] && !(u.isLater(i) && editable(c)) || u.byRow(i) || x.mirrored() && c.Evaluation != sqlrewrite.Once {
			continue
		}
		value := parameter(oidInt8, "int8")
		if u.isLater(i) || x.mirrored() { // it may be the upstream's by then
			value = "COALESCE(" + value + ", " + st.text[c.Start:c.End] + ")"
		}
		if !u.isLater(i) {
			declareArguments(types[:st.base], c)
		}
		st.calls = append(st.calls, i)
		edits = append(edits, sqlrewrite.Edit{Start: c.Start, End: c.End, Text: u.replacement(c, value)})
	}
	for i := range st.parsed.Calls {
		if c := &st.parsed.Calls[i]; u.byRow(i) {
			st.rows = append(st.rows, i)
			edits = append(edits, c.RowEdits(rowValue(
				parameter(oidInt8s, "int8[]"), parameter(oidInt8s, "int8[]"), parameter(oidInt8, "int8"), st.parsed.Rows.Window))...)
		}
	}
	for i, sequence := range u.relations {
		if sequence == nil || isMirrored(sequence) {
			continue
		}
		r := &st.parsed.Reads[i]
		st.reads = append(st.reads, i)
		edits = append(edits, sqlrewrite.Edit{Start: r.Start, End: r.End, Text: r.Replacement(
			parameter(oidInt8, "int8"), parameter(oidInt8, "int8"), parameter(oidBool, "bool"))})
	}
	if u.isOverlaid() {
		st.overlaid = true
		edits = append(edits, u.overlayEdits(parameter(oidJSONB, "jsonb"))...)
	}
	if len(types) > maxParameters {
		return x.fail(&wire.Error{Code: "54000", Message: fmt.Sprintf("too many parameters and sequence calls: %d", len(types)),
			Hint: "Split the statement."})
	}
	if x.taken(st.name) {
		return x.fail(errStatementExists(st.name))
	}
	var ahead []byte
	if u.describable() {
		st.origins, ahead = x.describeAhead(st.text, st.declared, true)
	}
	text, positions := sqlrewrite.Apply(st.text, edits)
	x.prepared[st.name] = st
	x.noteTraits(st.traits)
	return x.send(expectation{kind: wire.TypeParse, x: &special{statement: st, positions: &positions}},
		wire.AppendParse(ahead, wire.Parse{Name: st.name, Query: text, ParameterOIDs: types}))
}

// parseUtility sends on a Parse of a statement that takes no parameters: what it reads is put into its text now.
func (x *session) parseUtility(st *statement, u *use) error {
	for i := range u.ours {
		if !x.mirrored() && (u.ours[i] || u.isLater(i)) {
			return x.fail(notSupported("Send it by the simple query protocol.",
				"a sequence call of nextvald in COPY or EXECUTE is not supported in the extended query protocol"))
		}
	}
	edits, err := x.readEdits(u)
	if err != nil {
		return x.fail(err)
	}
	if x.taken(st.name) {
		return x.fail(errStatementExists(st.name))
	}
	text, positions := sqlrewrite.Apply(st.text, edits)
	st.prepares = u.statement.Prepare != nil && u.isOverlaid()
	x.prepared[st.name] = st
	x.noteTraits(st.traits)
	return x.send(expectation{kind: wire.TypeParse, x: &special{statement: st, positions: &positions}},
		wire.AppendParse(nil, wire.Parse{Name: st.name, Query: text, ParameterOIDs: st.declared}))
}

// declareArguments gives the parameters of a call that leaves the text the types that the call would have given them.
func declareArguments(types []uint32, c *sqlrewrite.Call) {
	for _, a := range []struct {
		argument *sqlrewrite.Argument
		oid      uint32
	}{{&c.Name, answer.RegclassOID}, {&c.Value, oidInt8}, {&c.IsCalled, oidBool}} {
		if a.argument.Kind != sqlrewrite.Parameter {
			continue
		}
		if t := &types[a.argument.Param-1]; *t == 0 {
			*t = a.oid
			if a.argument.Type != 0 {
				*t = a.argument.Type
			}
		}
	}
}

// taken reports whether a named statement exists already.
func (x *session) taken(name string) bool {
	return name != "" && x.named(name) != nil
}

func errStatementExists(name string) *wire.Error {
	return &wire.Error{Code: "42P05", Message: fmt.Sprintf("prepared statement \"%s\" already exists", name)}
}

// bind handles a Bind message.
func (x *session) bind(body int) error {
	head, err := x.in.Peek(body, namesLimit)
	if err != nil {
		return err
	}
	name, statementName, err := wire.PeekBind(head[wire.HeaderLen:])
	if err != nil {
		return x.forward(expectation{kind: wire.TypeBind}, body)
	}
	st := x.named(statementName)
	if x.bindsRows = x.rows; st != nil || statementName != "" {
		x.bindsRows = x.mirrored() && st != nil && st != gone && sqlrewrite.IsRowStatement(st.text)
	}
	if name != "" && x.portals[name] != nil && !x.portals[name].upstream {
		return x.discardAndFail(body, &wire.Error{Code: "42P03", Message: fmt.Sprintf("cursor \"%s\" already exists", name)})
	}
	switch {
	case st == gone:
		return x.discardAndFail(body, errNoStatement(statementName))
	case st == nil || st.mode == passed:
		delete(x.portals, name)
		if st != nil && x.mirrored() && st.parsed != nil && st.parsed.Kind == sqlrewrite.KindUse {
			return x.bindPassed(strings.Clone(name), st, body)
		}
		if st != nil && st.watched {
			return x.bindWatched(st, body)
		}
		if st != nil && st.effects() {
			x.portals[strings.Clone(name)] = &portal{statement: st, upstream: true}
		}
		return x.forward(expectation{kind: wire.TypeBind}, body)
	}

	frame, err := x.in.Frame(body)
	if err != nil {
		return err
	}
	m := &x.bound
	if err := m.Decode(frame[wire.HeaderLen:]); err != nil {
		return x.fail(&wire.Error{Code: "08P01", Message: "invalid message format"})
	}
	if err := x.aborted(); err != nil {
		return x.fail(err)
	}
	if err := checkBind(m, st); err != nil {
		return x.fail(err)
	}
	if st.mode == edited {
		return x.bindEdited(m, st)
	}
	return x.bindLocal(m, st, frame)
}

// bindWatched sends on the Bind of a statement that passed because its names are in parameters, unless they name
// sequences of ours after all.
func (x *session) bindWatched(st *statement, body int) error {
	frame, err := x.in.Frame(body)
	if err != nil {
		return err
	}
	if m, err := wire.DecodeBind(frame[wire.HeaderLen:]); err == nil && len(m.Parameters) >= st.plan.Params {
		u, err := x.resolveUse(st.plan, st.parsed, x.parameters(&m, st), true)
		if err != nil {
			return x.fail(err)
		}
		if err := x.check(u); err != nil {
			return x.fail(err)
		}
		if u.any() {
			return x.fail(notSupported("Write the name into the statement, or use a parameter of its own for it.",
				"a sequence of nextvald that a parameter of this statement names is not supported"))
		}
	}
	return x.send(expectation{kind: wire.TypeBind}, frame)
}

// parameters are the values of a Bind with the types that the statement's calls give them.
func (x *session) parameters(m *wire.Bind, st *statement) []answer.Param {
	types := make([]uint32, max(len(m.Parameters), st.plan.Params, len(st.declared)))
	copy(types, st.declared)
	for i := range st.parsed.Calls {
		declareArguments(types, &st.parsed.Calls[i])
	}
	params := make([]answer.Param, len(m.Parameters))
	for i, v := range m.Parameters {
		params[i] = answer.Param{Value: v, Format: answer.FormatOf(m.ParameterFormats, i), Type: types[i]}
	}
	return params
}

// checkBind checks the counts of a Bind as PostgreSQL does.
func checkBind(m *wire.Bind, st *statement) error {
	wanted := len(st.params)
	if st.mode == edited {
		wanted = st.base
	}
	if n := len(m.ParameterFormats); n > 1 && n != len(m.Parameters) {
		return &wire.Error{Code: "08P01", Message: fmt.Sprintf("bind message has %d parameter formats but %d parameters", n, len(m.Parameters))}
	}
	if n := len(m.Parameters); n != wanted {
		return &wire.Error{Code: "08P01",
			Message: fmt.Sprintf("bind message supplies %d parameters, but prepared statement \"%s\" requires %d", n, st.name, wanted)}
	}
	return nil
}

// bindLocal makes a portal that is answered here, or hands the statement to the upstream when the names in its parameters
// are the upstream's.
func (x *session) bindLocal(m *wire.Bind, st *statement, frame []byte) error {
	p := x.newPortal(m.Portal)
	*p = portal{statement: st, formats: append(p.formats[:0], m.ResultFormats...)}
	if st.parsed.Kind == sqlrewrite.KindUse {
		if r := x.kept(st.parsed); r != nil && len(m.Parameters) == 0 {
			p.use = r.use
		} else if handed, err := x.bindUse(p, m); handed || err != nil {
			if errors.Is(err, ErrPass) {
				own := &portal{statement: st, upstream: true, use: p.use, params: p.params}
				x.portals[m.Portal] = own
				return x.bindOwn(strings.Clone(m.Portal), own, m, false)
			}
			if err != nil {
				return x.fail(err)
			}
			return x.bindUpstream(m.Portal, st, frame)
		}
	}
	if n := len(m.ResultFormats); n > 1 && n != len(st.columns) {
		return x.fail(&wire.Error{Code: "08P01", Message: fmt.Sprintf("bind message has %d result formats but query has %d columns", n, len(st.columns))})
	}
	x.portals[m.Portal] = p
	return x.respondLocal(bindComplete)
}

// newPortal returns the memory of a new portal. There is only one unnamed portal at a time.
func (x *session) newPortal(name string) *portal {
	if name == "" {
		return &x.unnamed
	}
	return new(portal)
}

// bindUse resolves what a portal uses, given its parameters. handed says that all of it is the upstream's.
func (x *session) bindUse(p *portal, m *wire.Bind) (handed bool, err error) {
	st := p.statement
	params := make([]answer.Param, len(m.Parameters))
	for i, v := range m.Parameters {
		params[i] = answer.Param{Format: answer.FormatOf(m.ParameterFormats, i), Type: st.params[i]}
		if v != nil {
			params[i].Value = append([]byte{}, v...)
		}
	}
	x.resolveAnew()
	u, err := x.resolveUse(st.plan, st.parsed, params, true)
	switch {
	case err != nil:
		return false, err
	case !u.any() && !u.all():
		return true, nil
	case x.mirrored() && !(u.all() && u.answerable()):
		p.use, p.params = u, params
		return false, ErrPass
	case !u.all():
		return false, notSupported("Use one statement for each.", "a statement that calls sequences of nextvald and of the upstream server by parameters is not supported")
	}
	if err := x.check(u); err != nil {
		return false, err
	}
	if err := answer.Check(withoutNames(params), m.Portal); err != nil {
		return false, err
	}
	p.use = u
	return false, answer.Fold(st.parsed.Answer.Rows, st.columns, params)
}

// withoutNames are the parameters with those of type regclass as texts: their names were resolved already.
func withoutNames(params []answer.Param) []answer.Param {
	list := slices.Clone(params)
	for i := range list {
		if list[i].Type == answer.RegclassOID || list[i].Type == answer.VoidOID {
			list[i].Type, list[i].Format = oidText, 0
			list[i].Value = list[i].Value[:0] // which need not be a text
		}
	}
	return list
}

// bindUpstream lets the upstream have a statement that was local so far, and binds it there.
func (x *session) bindUpstream(name string, st *statement, frame []byte) error {
	if !st.upstream() {
		st.handed = true
		st.refused.Store(false)
		parse := wire.AppendParse(nil, wire.Parse{Name: st.name, Query: st.text, ParameterOIDs: st.declared})
		if err := x.send(expectation{kind: wire.TypeParse, quiet: true, x: &special{handed: st}}, parse); err != nil {
			return err
		}
	}
	x.portals[name] = &portal{statement: st, upstream: true}
	return x.send(expectation{kind: wire.TypeBind}, frame)
}

// bindEdited draws the values of an edited statement and sends its Bind with them. What fails is raised at Execute, where
// PostgreSQL would call the functions.
func (x *session) bindEdited(m *wire.Bind, st *statement) error {
	p := &portal{statement: st, upstream: true}
	values, nulled, failure := x.drawEdited(m, p)
	if errors.Is(failure, errOver) || errors.Is(failure, errDiscarding) || x.undone(failure) {
		return x.fail(failure)
	}
	for _, i := range nulled {
		m.Parameters[i] = nil
	}
	switch n := len(m.ParameterFormats); {
	case n == 1 && m.ParameterFormats[0] != 0:
		formats := make([]int16, st.base, st.base+len(values))
		for i := range formats {
			formats[i] = m.ParameterFormats[0]
		}
		m.ParameterFormats = append(formats, make([]int16, len(values))...)
	case n > 1 || n == 1 && st.base == 1:
		m.ParameterFormats = append(m.ParameterFormats, make([]int16, len(values))...)
	}
	m.Parameters = append(m.Parameters, values...)
	p.failure = failure
	x.portals[m.Portal] = p
	return x.send(expectation{kind: wire.TypeBind}, wire.AppendBind(nil, *m))
}

// drawEdited evaluates the calls and reads of an edited statement: the values of our parameters in text form, and the
// client's parameters that must be NULL because they name sequences of ours.
func (x *session) drawEdited(m *wire.Bind, p *portal) (values [][]byte, nulled []int, failure error) {
	st := p.statement
	rows := len(st.calls)
	reads := rows + 3*len(st.rows)
	n := reads + 3*len(st.reads)
	values = make([][]byte, n, n+1)
	if st.overlaid {
		values = values[:n+1]
	}
	x.resolveAnew()
	params := x.parameters(m, st)
	if x.mirrored() {
		params = copied(params)
	}
	u, err := x.resolveUse(st.plan, st.parsed, params, true)
	if err != nil {
		return values, nil, err
	}
	p.params, p.ours = params, u.ours
	if err := x.check(u); err != nil {
		return values, nil, err
	}
	if err := x.clearWayAhead(u); err != nil {
		return values, nil, err
	}
	if err := x.begun(u); err != nil {
		return values, nil, err
	}
	for k, i := range st.calls {
		c := &st.parsed.Calls[i]
		if !u.ours[i] {
			if c.Name.Kind == sqlrewrite.Constant && !x.mirrored() {
				return values, nulled, errUndefined(c.Name.Value) // it was ours when the statement was prepared
			}
			continue
		}
		r, err := x.evaluateOrLeave(u, i)
		if err != nil {
			return values, nulled, err
		}
		if !u.ours[i] {
			continue
		}
		if c.Name.Kind == sqlrewrite.Parameter && u.sequences[i] != nil {
			nulled = append(nulled, c.Name.Param-1)
		}
		if !r.null {
			values[k] = strconv.AppendInt(nil, r.value, 10)
		}
	}
	if err := x.bindRows(u, st, params, values[rows:reads]); err != nil {
		return values, nulled, err
	}
	x.notePassedCalls(st.parsed, u.ours)
	for k, i := range st.reads {
		if u.relations[i] == nil {
			return values, nulled, errUndefined(st.parsed.Reads[i].Name.Name)
		}
		state, err := x.state(u.relations[i])
		if err != nil {
			return values, nulled, err
		}
		copy(values[reads+3*k:], [][]byte{
			strconv.AppendInt(nil, state.LastValue, 10), strconv.AppendInt(nil, state.LogCnt, 10), strconv.AppendBool(nil, state.IsCalled)})
	}
	if st.overlaid {
		overlay, err := x.overlay(u)
		if err != nil {
			return values, nulled, err
		}
		values[n] = []byte(overlay)
	}
	return values, nulled, x.clearWayOfReads(u)
}

// describe handles a Describe message.
func (x *session) describe(body int) error {
	kind, name, ok, err := x.target(body)
	if err != nil {
		return err
	}
	e := expectation{kind: wire.TypeDescribe}
	if !ok {
		return x.forward(e, body)
	}
	var (
		st      *statement
		use     *use
		formats []int16
		frames  []byte
	)
	if kind == 'S' {
		st = x.named(name)
		switch {
		case st == gone:
			return x.discardAndFail(body, errNoStatement(name))
		case st == nil || st.mode == passed:
			return x.forward(e, body)
		case st.mode == edited:
			e.x = &special{trim: true, keep: st.base, origins: st.origins}
			return x.forward(e, body)
		}
		frames = wire.AppendParameterDescription(nil, st.params)
	} else {
		p := x.portals[name]
		if p == nil || p.upstream {
			if p != nil && p.statement.origins != nil {
				e.x = &special{origins: p.statement.origins}
			}
			return x.forward(e, body)
		}
		st, use, formats = p.statement, p.use, p.formats
	}
	if err := x.aborted(); err != nil {
		return x.discardAndFail(body, err)
	}
	if err := x.in.Discard(body); err != nil {
		return err
	}
	if st.parsed.Kind != sqlrewrite.KindUse {
		return x.respondLocal(wire.AppendEmpty(frames, wire.TypeNoData))
	}
	if use == nil {
		if use, err = x.resolveUse(st.plan, st.parsed, nil, false); err != nil {
			return x.fail(err)
		}
	}
	if r := x.answers[st.parsed]; r != nil && r.use == use && frames == nil {
		return x.respondLocal(r.describe(formats))
	}
	return x.respondLocal(wire.AppendRowDescription(frames, fields(use, st.columns, formats)))
}

// target reads the kind and name of a Describe or Close without consuming it; ok is false when the upstream has to judge
// the message.
func (x *session) target(body int) (kind byte, name string, ok bool, err error) {
	head, err := x.in.Peek(body, namesLimit)
	if err != nil {
		return 0, "", false, err
	}
	kind, name, err = wire.DecodeTarget(head[wire.HeaderLen:])
	return kind, name, err == nil && (kind == 'S' || kind == 'P'), nil
}

// execute handles an Execute message.
func (x *session) execute(body int) error {
	head, err := x.in.Peek(body, namesLimit)
	if err != nil {
		return err
	}
	e := expectation{kind: wire.TypeExecute}
	name, limit, err := wire.DecodeExecute(head[wire.HeaderLen:])
	p := x.portals[name]
	switch {
	case err != nil || p == nil:
		x.values.passed(nil, nil)
		return x.forward(e, body)
	case p.failure != nil:
		return x.discardAndFail(body, p.failure)
	case p.upstream:
		if parsed := p.statement.parsed; parsed != nil && byte(x.status.Load()) != failed {
			if err := x.clearWay(parsed, p.params, p.ours); err != nil {
				return x.discardAndFail(body, err)
			}
		} else if err := x.clearWayUnseen(p.statement.traits); err != nil {
			return x.discardAndFail(body, err)
		}
		x.noteTraits(p.statement.traits)
		if parsed := p.statement.parsed; parsed != nil {
			if parsed.Kind == sqlrewrite.KindTransaction && (x.pending != nil || x.srv.cfg.Standalone) {
				if _, open := x.transaction(); !open {
					return errOver
				}
				if err := x.transactionPending(parsed.Transaction); err != nil {
					return x.discardAndFail(body, err)
				}
			}
			if len(parsed.DropSchemas) > 0 {
				status, open := x.transaction()
				if !open {
					return errOver
				}
				if err := x.checkDropSchemas(parsed, status); err != nil {
					return x.discardAndFail(body, err)
				}
			}
			x.noteStatement(parsed)
		}
		if p.statement.prepares {
			u, err := x.resolveUse(p.statement.plan, p.statement.parsed, nil, false)
			if err != nil {
				return x.discardAndFail(body, err)
			}
			e.x = &special{statement: x.prepareOverlaid(u)}
		}
		x.values.passed(p.statement.parsed, p.ours)
		return x.forward(e, body)
	}
	if err := x.in.Discard(body); err != nil {
		return err
	}
	if err := x.aborted(); err != nil {
		return x.fail(err)
	}
	switch p.statement.parsed.Kind {
	case sqlrewrite.KindDDL:
		return x.executeDDL(p)
	case sqlrewrite.KindDeallocate:
		x.deallocate(p.statement.parsed.Deallocate)
		return x.respondLocal(wire.AppendCommandComplete(nil, "DEALLOCATE"))
	}
	before := p.row
	x.attempt()
	err = x.executeLocal(p, int(limit))
	x.attempted(err)
	if errors.Is(err, ErrPass) && before > 0 {
		return x.fail(&wire.Error{Code: "55000", Message: "a sequence was handed over to the upstream server between two rows",
			Hint: "Run the statement again."})
	}
	if errors.Is(err, ErrPass) {
		return x.executeInstead(strings.Clone(name), p, limit)
	}
	return err
}

// executeLocal answers an Execute: as many rows as are asked for and left.
func (x *session) executeLocal(p *portal, limit int) error {
	rows := p.statement.parsed.Answer.Rows[p.row:]
	suspended := limit > 0 && limit <= len(rows)
	if suspended {
		rows = rows[:limit]
	}
	if len(rows) > 0 {
		if err := x.begun(p.use); err != nil {
			return x.fail(err)
		}
	}
	frames := x.frames[:0]
	for _, row := range rows {
		var err error
		if frames, err = answer.Row(frames, row, p.statement.columns, p.formats, p.use.params, p.use.call, p.use.field); err != nil {
			if errors.Is(err, ErrPass) {
				return err // none of these rows is answered
			}
			if len(frames) > 0 {
				if err := x.respondLocal(frames); err != nil {
					return err
				}
			}
			return x.fail(err)
		}
		p.row++
	}
	if suspended {
		frames = wire.AppendEmpty(frames, wire.TypePortalSuspended)
	} else {
		frames = appendSelected(frames, len(rows))
	}
	x.frames = frames
	return x.respondLocal(frames)
}

// executeDDL carries out sequence DDL. It cannot be undone with an implicit transaction, so it has to be alone in its.
func (x *session) executeDDL(p *portal) error {
	tag := p.statement.parsed.DDL.Tag
	alone := !x.batch.implicit && p.row == 0
	if alone && byte(x.status.Load()) == idle {
		// Nothing may follow in the batch that could fail. The client expects no answer before its Sync or Flush.
		next, _, err := x.in.Next()
		if err != nil {
			return err
		}
		alone = next == wire.TypeSync || next == wire.TypeFlush || next == wire.TypeClose
	}
	if !alone {
		return x.fail(notSupported("End the batch with a Sync right after the statement.", "%s of nextvald in a pipeline with other statements is not supported", tag))
	}
	x.text = p.statement.text
	frames, err := x.runDDL(nil, p.statement.parsed)
	if err != nil {
		return x.fail(err)
	}
	p.row = 1
	return x.respondLocal(frames)
}

// closeTarget handles a Close message.
func (x *session) closeTarget(body int) error {
	kind, name, ok, err := x.target(body)
	if err != nil {
		return err
	}
	e := expectation{kind: wire.TypeClose}
	if !ok {
		return x.forward(e, body)
	}
	here := false
	if kind == 'S' {
		st := x.named(name)
		here = st != nil && st.onlyHere()
		if st == gone {
			return x.forward(e, body)
		}
		delete(x.prepared, name)
	} else {
		p := x.portals[name]
		here = p != nil && !p.upstream
		delete(x.portals, name)
	}
	if !here {
		return x.forward(e, body)
	}
	if err := x.in.Discard(body); err != nil {
		return err
	}
	return x.respondLocal(closeComplete)
}

// sync handles a Sync message. A batch that was answered here alone ends here.
func (x *session) sync(body int) error {
	here := !x.batch.forwarded && (x.batch.local || x.batch.skipping)
	x.batch = batch{}
	if !here && x.moving != nil {
		held := &hold{}
		if err := x.forward(expectation{kind: wire.TypeSync, x: &special{held: held}}, body); err != nil {
			return err
		}
		return x.conclude(held)
	}
	if !here {
		return x.forward(expectation{kind: wire.TypeSync}, body)
	}
	if byte(x.status.Load()) == idle {
		clear(x.portals)
	}
	if err := x.in.Discard(body); err != nil {
		return err
	}
	x.frames = wire.AppendReadyForQuery(x.frames[:0], byte(x.status.Load()))
	return x.respond(x.frames)
}

// flush handles a Flush message: the upstream has to be asked only when it may hold something back.
func (x *session) flush(body int) error {
	if body > 0 {
		return x.forward(expectation{kind: wire.TypeFlush}, body) // which the upstream refuses, and what follows up to a Sync
	}
	if x.batch.forwarded || !x.batch.local {
		return x.in.Forward(x.up, body)
	}
	return x.in.Discard(body)
}

// expirePortals drops the portals of a transaction that has ended.
func (x *session) expirePortals() error {
	if len(x.portals) == 0 {
		return nil
	}
	status, open := x.transaction()
	if !open {
		return errOver
	}
	if status == idle {
		clear(x.portals)
	}
	return nil
}

// fail raises an error of ours in the place of the message that was read last. Where a transaction may be open in the
// upstream the error is raised there.
func (x *session) fail(err error) error {
	if errors.Is(err, errOver) {
		return err
	}
	x.batch.skipping = true
	if errors.Is(err, errDiscarding) {
		return nil
	}
	status, open := x.transaction()
	if !open {
		return errOver
	}
	failure := clientError(err)
	switch {
	case isAsked(err) && x.flight.discarding():
		x.failures.Add(1)
		return x.writeOut(wire.AppendError(nil, failure))
	case status == failed && !x.batch.forwarded, status == idle && !x.batch.implicit:
		x.failures.Add(1)
		return x.respond(wire.AppendError(nil, failure))
	}
	return x.send(expectation{kind: wire.TypeParse, x: &special{failures: []*wire.Error{failure}}},
		wire.AppendParse(nil, wire.Parse{Name: reserved, Query: failingStatement(0)}))
}

// discardAndFail fails in the place of the message whose header was read.
func (x *session) discardAndFail(body int, err error) error {
	if err := x.in.Discard(body); err != nil {
		return err
	}
	return x.fail(err)
}

// respondLocal answers a message of the extended protocol here.
func (x *session) respondLocal(frames []byte) error {
	x.batch.local = true
	return x.respond(frames)
}

// respondSpecial answers a Parse here; the statement dies when the answer is never given.
func (x *session) respondSpecial(frames []byte, st *statement) error {
	x.batch.local = true
	return x.flight.respondFor(frames, st, x.write)
}

func errNoStatement(name string) *wire.Error {
	if name == "" {
		return &wire.Error{Code: "26000", Message: "unnamed prepared statement does not exist"}
	}
	return &wire.Error{Code: "26000", Message: fmt.Sprintf("prepared statement \"%s\" does not exist", name)}
}

// aborted is the error for a message that is answered here while the transaction block has failed; nil while it has not.
func (x *session) aborted() error {
	status, open := x.transaction()
	switch {
	case !open:
		return errOver
	case status == failed:
		return errAborted()
	}
	return nil
}

func errAborted() *wire.Error {
	return &wire.Error{Code: "25P02", Message: "current transaction is aborted, commands ignored until end of transaction block"}
}
