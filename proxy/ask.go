package proxy

import (
	"errors"

	"github.com/nextvald/nextvald/proxy/answer"
	"github.com/nextvald/nextvald/proxy/wire"
)

// errDiscarding says that the upstream discards messages up to the next Sync: a message before failed. Whatever was
// to be done need not be done any more.
var errDiscarding = errors.New("the upstream discards messages until the next Sync")

// askError is the upstream's error for a question of ours, which the client was not told. It failed the transaction that
// the question ran in: the client's, if one was open.
type askError struct{ cause *wire.Error }

func (e *askError) Error() string { return e.cause.Error() }
func (e *askError) Unwrap() error { return e.cause }

func isAsked(err error) bool {
	var e *askError
	return errors.As(err, &e)
}

// undone reports whether err is that of a question, and failed what the client has done in its transaction.
func (x *session) undone(err error) bool {
	return isAsked(err) && (x.batch.forwarded || byte(x.status.Load()) != idle)
}

// ask runs a query of ours on the session's upstream connection and returns its rows, with "" for NULL; arguments are
// passed as text. It runs where the client's next statement would run: inside the open transaction or pipeline, after
// everything sent before. It leaves the client's unnamed statement and portal alone, and adds no Sync to a batch that
// the client has not ended.
func (x *session) ask(query string, arguments ...string) ([][]string, error) {
	var texts []answer.Param
	for _, a := range arguments {
		texts = append(texts, answer.Param{Type: oidText, Value: []byte(a)})
	}
	return x.askWith(query, texts)
}

// askWith is ask with arguments of any type.
func (x *session) askWith(query string, arguments []answer.Param) ([][]string, error) {
	bind, parse := wire.Bind{Portal: reserved, Statement: reserved}, wire.Parse{Name: reserved, Query: query}
	for _, a := range arguments {
		bind.Parameters = append(bind.Parameters, a.Value)
		bind.ParameterFormats = append(bind.ParameterFormats, a.Format)
		parse.ParameterOIDs = append(parse.ParameterOIDs, a.Type)
	}
	told, err := x.question([]question{
		{wire.TypeParse, wire.AppendParse(nil, parse)},
		{wire.TypeBind, wire.AppendBind(nil, bind)},
		{wire.TypeExecute, wire.AppendExecute(nil, reserved, 0)},
	})
	return told.rows, err
}

// describeAhead expects the answers to messages that ask the upstream what a text returns, and returns the frames, to be sent
// before the text's own. The reply is there when that is answered; with heard, an error of it is the client's.
func (x *session) describeAhead(text string, declared []uint32, heard bool) (*reply, []byte) {
	answer := &reply{heard: heard}
	return answer, x.pose(answer, []question{
		{wire.TypeParse, wire.AppendParse(nil, wire.Parse{Name: reserved, Query: text, ParameterOIDs: declared})},
		{wire.TypeDescribe, wire.AppendTarget(nil, wire.TypeDescribe, 'S', reserved)},
	})
}

// describeParameters asks the upstream for the types of the parameters of a statement that it has.
func (x *session) describeParameters(name string) ([]uint32, error) {
	told, err := x.question([]question{{wire.TypeDescribe, wire.AppendTarget(nil, wire.TypeDescribe, 'S', name)}})
	return told.types, err
}

// question is a message of ours.
type question struct {
	kind  byte
	frame []byte
}

// question sends messages that use the reserved names, once nothing is in flight, and returns the answer.
func (x *session) question(messages []question) (*reply, error) {
	told := new(reply)
	switch failed, open := x.settle(); {
	case !open:
		return told, errOver
	case failed:
		return told, errDiscarding
	}
	frames := x.pose(told, messages)
	if x.batch.forwarded {
		frames = wire.AppendEmpty(frames, wire.TypeFlush)
	} else {
		x.flight.push(expectation{kind: wire.TypeSync, quiet: true, x: &special{reply: told}})
		frames = wire.AppendEmpty(frames, wire.TypeSync)
	}
	if _, err := x.up.Write(frames); err != nil {
		return told, err
	}
	if err := x.up.Flush(); err != nil {
		return told, err
	}
	if _, open := x.flight.awaitEmpty(); !open {
		return told, errOver
	}
	x.untidy = told.err != nil
	if told.err != nil {
		return told, &askError{told.err}
	}
	return told, nil
}

// pose expects the answers to messages that use the reserved names, and returns the frames to send.
func (x *session) pose(answer *reply, messages []question) (frames []byte) {
	tidy := []question{
		{wire.TypeClose, wire.AppendTarget(nil, wire.TypeClose, 'P', reserved)},
		{wire.TypeClose, wire.AppendTarget(nil, wire.TypeClose, 'S', reserved)},
	}
	messages = append(messages, tidy...)
	if x.untidy { // the last question failed before its end
		messages = append(tidy, messages...)
		x.untidy = false
	}
	for _, m := range messages {
		x.flight.push(expectation{kind: m.kind, quiet: true, x: &special{reply: answer}})
		frames = append(frames, m.frame...)
	}
	return frames
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
