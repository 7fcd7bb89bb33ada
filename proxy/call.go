package proxy

import (
	"encoding/binary"
	"errors"
	"strconv"

	"github.com/nextvald/nextvald/proxy/answer"
	"github.com/nextvald/nextvald/proxy/wire"
	"github.com/nextvald/nextvald/sqlrewrite"
)

// sequenceFunctions are those that a FunctionCall message may name, by their OIDs in pg_proc.
var sequenceFunctions = map[uint32]struct {
	function  sqlrewrite.Function
	arguments []uint32 // types
}{
	1574: {sqlrewrite.Nextval, []uint32{answer.RegclassOID}},
	1575: {sqlrewrite.Currval, []uint32{answer.RegclassOID}},
	1576: {sqlrewrite.Setval, []uint32{answer.RegclassOID, oidInt8}},
	1765: {sqlrewrite.Setval, []uint32{answer.RegclassOID, oidInt8, oidBool}},
	2559: {sqlrewrite.Lastval, nil},
}

// functionCall handles a FunctionCall message.
func (x *session) functionCall(body int) error {
	frame, err := x.in.Frame(body)
	if err != nil {
		return err
	}
	pass := func() error {
		x.values.passed(nil, nil)
		return x.send(expectation{kind: wire.TypeFunctionCall}, frame)
	}
	m, err := wire.DecodeFunctionCall(frame[wire.HeaderLen:])
	f, ours := sequenceFunctions[m.Function]
	if err != nil || !ours || len(m.Arguments) != len(f.arguments) || m.ResultFormat != 0 && m.ResultFormat != 1 {
		return pass() // the upstream says what is wrong with it
	}
	if n := len(m.ArgumentFormats); n > 1 && n != len(m.Arguments) {
		return pass()
	}
	status, open := x.transaction()
	if !open {
		return errOver
	}
	if status == failed {
		return pass()
	}
	st := &sqlrewrite.Statement{Kind: sqlrewrite.KindUse, Calls: []sqlrewrite.Call{{Function: f.function}}}
	c, params := &st.Calls[0], make([]answer.Param, len(m.Arguments))
	c.IsCalled = sqlrewrite.Argument{Kind: sqlrewrite.Constant, Value: "t", Type: oidBool}
	for i, argument := range []*sqlrewrite.Argument{&c.Name, &c.Value, &c.IsCalled}[:len(params)] {
		*argument = sqlrewrite.Argument{Kind: sqlrewrite.Parameter, Param: i + 1, Type: f.arguments[i]}
		params[i] = answer.Param{Value: m.Arguments[i], Format: answer.FormatOf(m.ArgumentFormats, i), Type: f.arguments[i]}
	}
	if x.mirrored() && !x.concerns(st, params) {
		if err := x.clearWay(st, params, nil); err != nil {
			return x.failQuery(nil, err)
		}
		return pass()
	}
	x.resolveAnew()
	u, err := x.resolveUse(&sqlrewrite.Plan{Params: len(params)}, st, params, true)
	switch {
	case err != nil:
		return x.failQuery(nil, err)
	case !u.any() && !x.srv.cfg.Standalone:
		if err := x.clearWay(st, params, u.ours); err != nil {
			return x.failQuery(nil, err)
		}
		return pass()
	case !u.any() && len(params) > 0 && !u.ours[0]:
		name, _, err := answer.Text(params[0])
		if err == nil {
			err = errUndefined(name)
		}
		return x.failQuery(nil, err)
	case x.batch.forwarded:
		return x.failQuery(nil, notSupported("Send a Sync before it.", "a FunctionCall of a sequence of nextvald inside a pipeline is not supported"))
	}
	if err := x.begun(u); err != nil {
		return x.failQuery(nil, err)
	}
	r, err := x.evaluate(u, 0)
	if errors.Is(err, ErrPass) {
		return pass()
	}
	if err != nil {
		return x.failQuery(nil, err)
	}
	var value []byte
	switch {
	case r.null:
	case m.ResultFormat == 1:
		value = binary.BigEndian.AppendUint64(nil, uint64(r.value))
	default:
		value = strconv.AppendInt(nil, r.value, 10)
	}
	if err := x.respond(wire.AppendFunctionCallResponse(nil, value)); err != nil {
		return err
	}
	return x.ready()
}
