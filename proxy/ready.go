package proxy

import (
	"errors"
	"slices"

	"github.com/nextvald/nextvald/proxy/answer"
	"github.com/nextvald/nextvald/proxy/wire"
	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sqlrewrite"
)

// maxReady bounds how many statements a session keeps ready.
const maxReady = 256

// ready is a statement without parameters that was answered here before: what its names mean, and what its result looks
// like. It serves until the meaning of names may have changed.
type ready struct {
	use     *use
	columns []answer.Column
	// descriptions are its RowDescriptions: for results as text, and all in binary.
	descriptions [2][]byte
	// statement is the unnamed prepared statement of the text.
	statement *statement
	// sequences are those that it uses, and names what they were called when it was made. means are those of the upstream
	// among them.
	sequences []Sequence
	names     []sequencer.Name
	means     []*meaning // nil for one that the upstream does not have
}

// makeReady keeps a statement for its next time. lastval is left out: whose it is changes with every call.
func (x *session) makeReady(u *use, columns []answer.Column) {
	for i := range u.statement.Calls {
		if u.statement.Calls[i].Function == sqlrewrite.Lastval {
			return
		}
	}
	if x.answers == nil || len(x.answers) >= maxReady {
		x.answers = make(map[*sqlrewrite.Statement]*ready)
	}
	r := &ready{use: u, columns: columns}
	for format := range r.descriptions {
		r.descriptions[format] = wire.AppendRowDescription(nil, fields(u, columns, []int16{int16(format)}))
	}
	for i, s := range u.sequences {
		switch {
		case s != nil:
			r.sequences, r.means = append(r.sequences, s), append(r.means, u.means[i])
		case u.means[i] != nil:
			return // its currval: whose it is changes
		}
	}
	for _, s := range slices.Concat(u.relations, u.classes) {
		if s != nil {
			r.sequences, r.means = append(r.sequences, s), append(r.means, nil)
		}
	}
	for _, s := range r.sequences {
		r.names = append(r.names, s.Name())
	}
	x.answers[u.statement] = r
}

// kept returns a statement that was kept, when its sequences are still what its names mean.
func (x *session) kept(st *sqlrewrite.Statement) *ready {
	r := x.answers[st]
	if r == nil || x.pending != nil || x.passing {
		return nil
	}
	for i, s := range r.sequences {
		if m := r.means[i]; m != nil && !x.stillDrawn(m, s) {
			delete(x.answers, st)
			return nil
		}
		if _, stored := s.(*sequencer.Sequence); !stored {
			continue
		}
		if now, err := x.lookup(r.names[i]); err != nil || now == nil || Sequence(now) != s {
			delete(x.answers, st)
			return nil
		}
	}
	return r
}

// keptStatement returns an unnamed statement of the text that was kept, where it may be prepared again.
func (x *session) keptStatement(text string) *statement {
	plan := x.srv.plans.Cached(text)
	if plan == nil || len(plan.Statements) != 1 {
		return nil
	}
	r := x.kept(&plan.Statements[0])
	if r == nil || r.statement == nil || r.statement.dead.Load() {
		return nil
	}
	if status, open := x.transaction(); !open || status == failed {
		return nil
	}
	return r.statement
}

// describe returns the RowDescription for result formats.
func (r *ready) describe(formats []int16) []byte {
	switch {
	case len(formats) == 0:
		return r.descriptions[0]
	case len(formats) == 1 && (formats[0] == 0 || formats[0] == 1):
		return r.descriptions[formats[0]]
	}
	return wire.AppendRowDescription(nil, fields(r.use, r.columns, formats))
}

// answerReady answers a Query.
func (x *session) answerReady(r *ready) error {
	x.attempt()
	frames, err := x.answerRows(append(x.frames[:0], r.descriptions[0]...), r.use, r.columns)
	x.attempted(err)
	x.frames = frames
	if errors.Is(err, ErrPass) {
		return err // nothing is answered
	}
	if err != nil {
		return x.failQuery(frames, err)
	}
	if !x.muted {
		x.frames = wire.AppendReadyForQuery(frames, byte(x.status.Load()))
	}
	return x.respond(x.frames)
}
