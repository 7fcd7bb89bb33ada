package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nextvald/nextvald/proxy/wire"
	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sqlrewrite"
)

// values is what currval and lastval of a session tell.
type values struct {
	current map[uint32]*drawn // by OID
	last    Sequence
	// passes counts the statements that went to the upstream and may have called nextval there, seen or unseen: a default, a
	// trigger, a function.
	passes uint64
	// plain: the last of them had nothing but calls that were seen.
	plain bool
	// forgotten is passes when the session's values were last forgotten.
	forgotten uint64
	// whose tells whose nextval was the last one of all.
	whose whose
}

// drawn is the last value of a sequence that was answered here.
type drawn struct {
	value    int64
	answered bool   // else there is none yet
	name     string // without the schema
	whose    whose
	sequence Sequence
	// order is the sign of the step between the last two values; 0 while it is unknown.
	order int
}

// direction is the sign of the sequence's steps, 0 where nothing tells it.
func (d *drawn) direction() int {
	if stored, ok := d.sequence.(*sequencer.Sequence); ok {
		return cmp.Compare(stored.Definition().Increment, 0)
	}
	return d.order
}

// whose says what is known of nextval calls that the upstream carried out for the session, beside those answered here.
type whose struct {
	at    uint64 // values.passes at the last call answered here
	known uint64 // values.passes when the upstream was last asked, or could have no value yet
	// seen is what it answered then, and later says that its value was the later one.
	seen           int64
	defined, later bool
	// visible: a call that was seen went to the upstream since the last one answered here.
	visible bool
}

func (v *values) init() { v.current = make(map[uint32]*drawn) }

// forget does what DISCARD SEQUENCES does.
func (v *values) forget() {
	clear(v.current)
	v.last = nil
	v.forgotten = v.passes
	v.whose = whose{at: v.passes, known: v.passes}
}

// drew notes a nextval that was answered here.
func (v *values) drew(sequence Sequence, value int64) {
	d := v.set(sequence, value)
	d.whose.drew(v.passes)
	v.last = sequence
	v.whose.drew(v.passes)
}

// set notes the value of a sequence for currval.
func (v *values) set(sequence Sequence, value int64) *drawn {
	d := v.current[sequence.OID()]
	switch {
	case d == nil:
		d = &drawn{name: sequence.Name().Name, whose: whose{known: v.forgotten}}
		v.current[sequence.OID()] = d
	case !d.answered:
	case value > d.value:
		d.order = 1
	case value < d.value:
		d.order = -1
	}
	d.value, d.answered, d.sequence = value, true, sequence
	d.whose.drew(v.passes)
	return d
}

// passed notes a statement that goes to the upstream and may draw values there; nil: nothing is known of it. ours says which of
// its calls were answered here, nil for none.
func (v *values) passed(st *sqlrewrite.Statement, ours []bool) {
	plain := st != nil && st.Kind == sqlrewrite.KindUse && st.Answer != nil
	if plain && !drawsThere(st, ours, "") {
		return // it has nothing else that could
	}
	v.passes++
	v.plain = plain
}

// passedCall notes a call of nextval that goes to the upstream, of a sequence of that bare name; empty for any.
func (v *values) passedCall(name string) {
	v.whose.visible = true
	v.passedSet(name)
}

// passedSet notes a call of setval that goes to the upstream and tells currval there.
func (v *values) passedSet(name string) {
	for _, d := range v.current {
		if name == "" || d.name == name {
			d.whose.visible = true
		}
	}
}

func (w *whose) drew(passes uint64) { w.at, w.later, w.visible = passes, false, false }

// heard takes the upstream's answer. It reports false when it cannot be told which call was the later one; earlier says that
// the upstream's value certainly is of an earlier one.
func (w *whose) heard(passes uint64, value int64, defined, earlier bool) bool {
	if defined && !(w.defined && w.seen == value) { // it drew since it was asked before
		switch {
		case w.visible || w.known >= w.at:
			w.later = true
		case !earlier:
			return false
		}
	}
	w.seen, w.defined, w.known = value, defined, passes
	return true
}

// asked remembers what clients of a database have asked for since the start: lastval, and currval of sequences by their bare
// names.
type asked struct {
	lastval atomic.Bool
	any     atomic.Bool // there are names
	mu      sync.RWMutex
	names   map[string]bool
}

// maxAsked bounds the names; beyond it every currval counts as one of lastval.
const maxAsked = 10_000

// askedOf returns what is remembered of a database.
func (s *Server) askedOf(database string) *asked {
	a, _ := s.asked.LoadOrStore(database, &asked{names: make(map[string]bool)})
	return a.(*asked)
}

// asksFor notes that the client asks for currval of a sequence, or without a name for lastval.
func (x *session) asksFor(name string) {
	a := x.asked
	if name == "" {
		a.lastval.Store(true)
		return
	}
	if a.has(name) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.names) >= maxAsked {
		a.lastval.Store(true)
		return
	}
	a.names[strings.Clone(name)] = true
	a.any.Store(true)
}

func (a *asked) has(name string) bool {
	if !a.any.Load() {
		return false
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.names[name]
}

// canTell reports whether it could be told later whose nextval was the last one, if one of a sequence of the upstream's was
// answered here now. Where clients ask for that, it has to be known what the upstream has drawn before.
func (x *session) canTell(m *meaning) bool {
	v := &x.values
	if x.asked.lastval.Load() && v.whose.known != v.passes {
		return false
	}
	return !x.asked.has(m.name.Name) || v.of(m).whose.known == v.passes
}

// learn makes canTell true by asking the upstream, where that is worth it: what it was sent last were plain calls of nextval,
// so more may follow.
func (x *session) learn(m *meaning) (bool, error) {
	v := &x.values
	if x.canTell(m) {
		return true, nil
	}
	if !v.plain || x.batch.forwarded {
		return false, nil
	}
	ask := func(w *whose, question string) (bool, error) {
		if w.known == v.passes {
			return true, nil
		}
		value, defined, err := x.upstreamValue(question)
		return err == nil && w.heard(v.passes, value.value, defined, false), err
	}
	if x.asked.lastval.Load() {
		if ok, err := ask(&v.whose, askLastval); !ok {
			return false, err
		}
	}
	if x.asked.has(m.name.Name) {
		d := v.of(m)
		v.current[m.oid] = d
		return ask(&d.whose, askCurrval(m.oid))
	}
	return true, nil
}

const askLastval = "pg_catalog.lastval()"

func askCurrval(oid uint32) string { return fmt.Sprintf("pg_catalog.currval(%d::pg_catalog.oid)", oid) }

// of is what is known of a sequence's last value, which need not be one that was answered here.
func (v *values) of(m *meaning) *drawn {
	if d := v.current[m.oid]; d != nil {
		return d
	}
	return &drawn{name: m.name.Name, whose: whose{at: v.forgotten, known: v.forgotten}}
}

// lastval is the value of the session's last nextval, whoever answered it.
func (x *session) lastval() (result, error) {
	v := &x.values
	undefined := &wire.Error{Code: "55000", Message: "lastval is not yet defined in this session"}
	if v.last == nil {
		return result{}, undefined
	}
	last := v.current[v.last.OID()]
	r, err := x.laterOf(&v.whose, drawn{value: last.value}, askLastval)
	if err != nil || v.whose.later {
		return r, err
	}
	exists, err := x.lastExists()
	switch {
	case err != nil:
		return result{}, err
	case !exists:
		return result{}, undefined
	case last.whose.visible: // a setval that the upstream carried out moves it
		return x.laterOf(&last.whose, *last, askCurrval(v.last.OID()))
	}
	return r, nil
}

// lastExists reports whether the sequence that lastval is of exists, and fails where the session may not read it.
func (x *session) lastExists() (bool, error) {
	last := x.values.last
	stored, ok := last.(*sequencer.Sequence)
	if x.mirrored() && !(ok && stored.Kind() == sequencer.Virtual) {
		m, err := x.mean(oidName(strconv.FormatUint(uint64(last.OID()), 10)))
		if m != nil && !m.usage && !m.selects {
			err = errDenied(m.name)
		}
		return m != nil, err
	}
	now, err := x.lookup(last.Name())
	return now != nil && now.Incarnation() == last.Incarnation(), err
}

// answered reports whether a nextval of a sequence was answered here.
func (v *values) answered(oid uint32) bool {
	d := v.current[oid]
	return d != nil && d.answered
}

// currval is the value of the session's last nextval of a sequence that was answered here at least once, whoever answered
// the last one.
func (x *session) currval(oid uint32, kind sequencer.Kind) (result, error) {
	d := x.values.current[oid]
	if kind == sequencer.Virtual { // the upstream knows nothing of it
		return result{value: d.value}, nil
	}
	return x.laterOf(&d.whose, *d, askCurrval(oid))
}

// laterOf decides between our value and the upstream's, when statements that went there after ours may have drawn one
// unseen.
func (x *session) laterOf(w *whose, ours drawn, question string) (result, error) {
	passes := x.values.passes
	if w.at == passes || x.srv.cfg.Standalone {
		return result{value: ours.value}, nil
	}
	if w.known != passes {
		theirs, defined, err := x.upstreamValue(question)
		if err != nil {
			return result{}, err
		}
		// Where values are drawn in order, an earlier one was drawn earlier, by whomever.
		order := ours.direction()
		earlier := order > 0 && theirs.value < ours.value || order < 0 && theirs.value > ours.value
		if !w.heard(passes, theirs.value, defined, earlier) {
			return result{}, errAmbiguous(question)
		}
	}
	if w.later {
		return result{value: w.seen}, nil
	}
	return result{value: ours.value}, nil
}

func errAmbiguous(question string) *wire.Error {
	e := &wire.Error{Code: "55000", Message: "lastval is ambiguous in this session",
		Detail: "Both nextvald and the upstream server have answered nextval in this session, and it cannot be told which was last.",
		Hint:   "Use currval with the sequence's name, or RETURNING."}
	if question != askLastval {
		e.Message, e.Hint = "currval is ambiguous in this session", "Use RETURNING."
	}
	return e
}

// upstreamValue asks for the upstream's own lastval or currval. Where it is undefined the question fails, which an open
// transaction survives by a savepoint.
func (x *session) upstreamValue(question string) (result, bool, error) {
	if x.batch.forwarded {
		return x.upstreamValueInside(question)
	}
	open := byte(x.status.Load()) == inBlock
	if open {
		if _, err := x.ask("SAVEPOINT nextvald_reserved"); err != nil {
			return result{}, false, err
		}
	}
	rows, err := x.ask("SELECT " + question)
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

// upstreamValueInside is upstreamValue inside a pipeline, whose transaction a question must not fail, and which has no
// savepoints: PL/pgSQL catches the error. Its answer comes in a parameter that ends with the transaction.
func (x *session) upstreamValueInside(question string) (result, bool, error) {
	const parameter = "nextvald.reserved"
	_, err := x.ask(`DO LANGUAGE plpgsql $nextvald$BEGIN PERFORM pg_catalog.set_config('` + parameter + `', (` + question + `)::pg_catalog.text, true);
		EXCEPTION WHEN object_not_in_prerequisite_state THEN PERFORM pg_catalog.set_config('` + parameter + `', '', true); END$nextvald$`)
	if failure := (*wire.Error)(nil); errors.As(err, &failure) {
		failure.Where = "" // the text is ours
	}
	if err != nil {
		return result{}, false, err
	}
	rows, err := x.ask("SELECT pg_catalog.current_setting('" + parameter + "', true)")
	if err != nil || rows[0][0] == "" {
		return result{}, false, err
	}
	v, err := strconv.ParseInt(rows[0][0], 10, 64)
	return result{value: v}, true, err
}
