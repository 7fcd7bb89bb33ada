package proxy

import (
	"errors"

	"github.com/nextvald/nextvald/proxy/wire"
)

// errDiscarding says that the upstream discards messages up to the next Sync: a message before failed. Whatever was
// to be done need not be done any more.
var errDiscarding = errors.New("the upstream discards messages until the next Sync")

// askError is the upstream's error for a question of ours, which the client was not told. It failed the transaction that
// the question ran in.
type askError struct{ cause *wire.Error }

func (e *askError) Error() string { return e.cause.Error() }
func (e *askError) Unwrap() error { return e.cause }

func isAsked(err error) bool {
	var e *askError
	return errors.As(err, &e)
}

// ask runs a query of ours on the session's upstream connection and returns its rows, with "" for NULL; arguments are
// passed as text. It runs where the client's next statement would run: inside the open transaction or pipeline, after
// everything sent before. It leaves the client's unnamed statement and portal alone, and adds no Sync to a batch that
// the client has not ended.
func (x *session) ask(query string, arguments ...string) ([][]string, error) {
	failed, open := x.settle()
	switch {
	case !open:
		return nil, errOver
	case failed:
		return nil, errDiscarding
	}
	var (
		answer = new(reply)
		bind   = wire.Bind{Portal: reserved, Statement: reserved}
		parse  = wire.Parse{Name: reserved, Query: query}
		quiet  = func(kind byte) expectation {
			return expectation{kind: kind, quiet: true, x: &special{reply: answer}}
		}
	)
	for _, a := range arguments {
		bind.Parameters = append(bind.Parameters, []byte(a))
		parse.ParameterOIDs = append(parse.ParameterOIDs, 25)
	}
	var frames []byte
	add := func(kind byte, frame []byte) {
		x.flight.push(quiet(kind))
		frames = append(frames, frame...)
	}
	tidy := func() {
		add(wire.TypeClose, wire.AppendTarget(nil, wire.TypeClose, 'P', reserved))
		add(wire.TypeClose, wire.AppendTarget(nil, wire.TypeClose, 'S', reserved))
	}
	if x.untidy { // the last question failed before its end
		tidy()
	}
	add(wire.TypeParse, wire.AppendParse(nil, parse))
	add(wire.TypeBind, wire.AppendBind(nil, bind))
	add(wire.TypeExecute, wire.AppendExecute(nil, reserved, 0))
	tidy()
	if x.batch.forwarded {
		frames = wire.AppendEmpty(frames, wire.TypeFlush)
	} else {
		x.flight.push(quiet(wire.TypeSync))
		frames = wire.AppendEmpty(frames, wire.TypeSync)
	}
	if _, err := x.up.Write(frames); err != nil {
		return nil, err
	}
	if err := x.up.Flush(); err != nil {
		return nil, err
	}
	if _, open := x.flight.awaitEmpty(); !open {
		return nil, errOver
	}
	x.untidy = answer.err != nil
	if answer.err != nil {
		return nil, &askError{answer.err}
	}
	return answer.rows, nil
}

// settle waits until nothing is in flight. Responses that the upstream may still hold back are asked for by a Flush.
func (x *session) settle() (failed, open bool) {
	if x.batch.forwarded {
		if _, err := x.up.Write(wire.AppendEmpty(nil, wire.TypeFlush)); err != nil {
			return false, false
		}
	}
	if x.flushAll() != nil {
		return false, false
	}
	return x.flight.awaitEmpty()
}
