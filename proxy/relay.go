package proxy

import (
	"bytes"
	"strconv"
	"time"

	"github.com/nextvald/nextvald/proxy/wire"
)

// upstreamSide reads messages of the upstream and brings each to whom it belongs, until the upstream closes.
func (x *session) upstreamSide() error {
	for {
		if err := x.upstreamMessage(); err != nil {
			return err
		}
	}
}

// upstreamMessage handles the next message of the upstream.
func (x *session) upstreamMessage() error {
	typ, body, err := x.from.Next()
	if err != nil {
		return err
	}
	head, owed, repeats := x.flight.head()
	if repeats && !x.told && typ == wire.TypeRowDescription {
		return x.holdColumns(body)
	}
	quiet := owed && head.quiet
	if typ != wire.TypeErrorResponse && !quiet {
		if err := x.tell(); err != nil {
			return err
		}
	}
	if owed && !quiet && (head.x == nil || head.x.origins == nil) {
		if run := x.from.Run(passing(head.kind)); len(run) > 0 {
			return x.relayRun(run)
		}
	}
	switch typ {
	case wire.TypeDataRow:
		if quiet {
			return x.collect(head, body)
		}
		return x.relayFrame(typ, body)
	case wire.TypeErrorResponse:
		return x.relayError(head, owed, body)
	case wire.TypeReadyForQuery:
		return x.relayReady(head, owed, body)
	case wire.TypeParameterStatus:
		frame, err := x.from.Peek(body, wire.HeaderLen+body)
		if err != nil {
			return err
		}
		if name, value, err := wire.DecodeParameterStatus(frame[wire.HeaderLen:]); err == nil {
			x.reported(name, value)
		}
		return x.relayFrame(typ, body)
	case wire.TypeAuthentication:
		return x.relayAuthentication(body)
	case wire.TypeNoticeResponse, wire.TypeNotification:
		if quiet && head.kind == wire.TypeParse && typ == wire.TypeNoticeResponse {
			return x.from.Discard(body) // the client's own text gives it too
		}
		return x.relayFrame(typ, body)
	case wire.TypeBackendKeyData:
		frame, err := x.from.Peek(body, wire.HeaderLen+body)
		if err != nil {
			return err
		}
		x.srv.remember(x, string(frame[wire.HeaderLen:]))
		return x.relayFrame(typ, body)
	case wire.TypeCopyInResponse, wire.TypeCopyBothResponse:
		if owed && typ == wire.TypeCopyInResponse {
			x.flight.enterCopy()
		}
		return x.relayFrame(typ, body)
	case wire.TypeParameterDescription:
		if quiet && head.x != nil && head.x.reply != nil {
			frame, err := x.from.Frame(body)
			if err == nil {
				head.x.reply.types, err = wire.DecodeParameterDescription(frame[wire.HeaderLen:])
			}
			return err
		}
		if owed && head.x != nil && head.x.trim {
			frame, err := x.from.Frame(body)
			if err != nil {
				return err
			}
			return x.writeOut(wire.TrimParameterDescription(frame, head.x.keep))
		}
	case wire.TypeRowDescription:
		if owed && head.x != nil && (head.x.origins != nil || quiet && head.x.reply != nil) {
			if err := x.describeRows(head, quiet, body); err != nil || !completes(typ, head.kind) {
				return err
			}
			x.told = false
			return x.flight.done(x.write)
		}
	}

	if quiet {
		if err := x.from.Discard(body); err != nil {
			return err
		}
	} else if err := x.relayFrame(typ, body); err != nil {
		return err
	}
	if owed && completes(typ, head.kind) {
		x.told = false
		return x.flight.done(x.write)
	}
	return nil
}

var (
	nothing = wire.TypesOf()
	ofQuery = wire.TypesOf(wire.TypeRowDescription, wire.TypeDataRow, wire.TypeCommandComplete, wire.TypeEmptyQueryResponse,
		wire.TypeCopyOutResponse, wire.TypeCopyData, wire.TypeCopyDone)
	ofExecute = wire.TypesOf(wire.TypeDataRow, wire.TypeCopyOutResponse, wire.TypeCopyData, wire.TypeCopyDone)
)

// passing are the responses to a message of that kind that nothing has to be done for but to forward them.
func passing(kind byte) *wire.Types {
	switch kind {
	case wire.TypeQuery:
		return ofQuery
	case wire.TypeExecute:
		return ofExecute
	}
	return nothing
}

// relayRun forwards whole messages to the client.
func (x *session) relayRun(run []byte) error {
	x.outMu.Lock()
	defer x.outMu.Unlock()
	_, err := x.out.Write(run)
	x.torn = err != nil
	return err
}

// completes reports whether a response of that type is the last one to a message of that kind.
func completes(typ, kind byte) bool {
	switch kind {
	case wire.TypeParse:
		return typ == wire.TypeParseComplete
	case wire.TypeBind:
		return typ == wire.TypeBindComplete
	case wire.TypeClose:
		return typ == wire.TypeCloseComplete
	case wire.TypeDescribe:
		return typ == wire.TypeRowDescription || typ == wire.TypeNoData
	case wire.TypeExecute:
		return typ == wire.TypeCommandComplete || typ == wire.TypePortalSuspended || typ == wire.TypeEmptyQueryResponse
	}
	return false
}

// relayFrame forwards a frame to the client. Nobody else writes until it is whole: of data, which may be large, because it
// belongs to a response that others wait behind.
func (x *session) relayFrame(typ byte, body int) error {
	if x.turns != nil && typ != wire.TypeDataRow && typ != wire.TypeCopyData {
		frame, err := x.from.Frame(body)
		if err != nil {
			return err
		}
		return x.writeOut(frame)
	}
	if err := x.from.Await(body); err != nil {
		return err
	}
	x.outMu.Lock()
	defer x.outMu.Unlock()
	err := x.from.Forward(x.out, body)
	x.torn = err != nil || x.from.Pending()
	return err
}

// relayError brings an error to the client, or to who asked; then, in the extended protocol, the rest of the batch is
// dropped.
func (x *session) relayError(head expectation, owed bool, body int) error {
	frame, err := x.from.Frame(body)
	if err != nil {
		return err
	}
	fields := frame[wire.HeaderLen:]
	severity := wire.ErrorField(fields, 'V')
	if severity == "" {
		severity = wire.ErrorField(fields, 'S')
	}
	fatal := severity == wire.SeverityFatal || severity == "PANIC"
	if fatal {
		x.fatal.Store(true)
	}
	if owed && isMoreRows(fields) {
		frame = wire.AppendError(nil, errMoreRows())
	} else if owed && head.x != nil {
		ours := failureOf(head.x.failures, fields)
		switch {
		case fatal:
		case head.x.reply != nil:
			head.x.reply.err = &wire.Error{Code: wire.ErrorField(fields, 'C'), Message: wire.ErrorField(fields, 'M'),
				Detail: wire.ErrorField(fields, 'D'), Hint: wire.ErrorField(fields, 'H'), Where: wire.ErrorField(fields, 'W')}
			head.x.reply.err.Position, _ = strconv.Atoi(wire.ErrorField(fields, 'P')) // 0 when there is none
			if !head.x.reply.heard {
				frame = nil
			}
		case head.endsReady() && head.x.origins != nil && head.x.origins.err != nil:
			frame = wire.AppendError(nil, head.x.origins.err) // of the client's own text
		case ours != nil:
			frame = wire.AppendError(nil, ours)
		case head.x.positions != nil:
			frame = wire.MapErrorPosition(frame, head.x.positions.Original)
		}
	}
	if x.stripped && !x.loggedIn.Load() {
		frame = explainBinding(frame)
	}
	if r, ok := x.refusedBy(fields); owed && ok {
		if !x.told && x.flight.repeats() {
			x.unheard = &unheard{columns: x.columns, failure: bytes.Clone(frame), refusal: r}
			x.columns, frame = nil, nil
		} else {
			frame = x.relieveSoon(frame, r)
		}
	}
	if len(frame) > 0 {
		if err := x.tell(); err != nil {
			return err
		}
		x.failures.Add(1)
	}
	if err := x.writeOut(frame); err != nil {
		return err
	}
	switch {
	case !owed:
	case head.endsReady():
		x.flight.failCopy()
		head.skip()
	default:
		x.flight.fail()
	}
	return nil
}

// relayReady ends a batch.
func (x *session) relayReady(head expectation, owed bool, body int) error {
	frame, err := x.from.Frame(body)
	if err != nil {
		return err
	}
	if body == 1 {
		x.status.Store(uint32(frame[wire.HeaderLen]))
	}
	if x.flight.answersDoubtful(x.told || x.unheard != nil) {
		head, owed = expectation{}, false
	}
	x.told = false
	if x.unheard != nil {
		again, err := x.runAgain()
		if again || err != nil {
			return err
		}
	}
	if !x.loggedIn.Load() {
		if err := x.client.SetReadDeadline(time.Time{}); err != nil {
			return err
		}
		x.loggedIn.Store(true)
	}
	if x.changed.Load() && byte(x.status.Load()) == idle && x.changed.Swap(false) {
		x.srv.changes.Add(1)
	}
	silent := owed && (head.quiet || head.x != nil && head.x.mute)
	if owed && head.x != nil && head.x.held != nil {
		silent = x.flight.holds(head.x.held)
	}
	if !silent {
		if err := x.writeOut(frame); err != nil {
			return err
		}
	}
	if owed {
		if err := x.flight.ready(x.write); err != nil {
			return err
		}
	}
	return x.settled()
}

// describeRows brings a RowDescription to who asked, or to the client with the tables of columns that a subquery hides.
func (x *session) describeRows(head expectation, quiet bool, body int) error {
	frame, err := x.from.Frame(body)
	if err != nil {
		return err
	}
	if quiet {
		head.x.reply.description = bytes.Clone(frame)
		return nil
	}
	return x.writeOut(wire.CopyOrigins(frame, head.x.origins.description))
}

// collect puts a row that answers a question of ours into its reply.
func (x *session) collect(head expectation, body int) error {
	frame, err := x.from.Frame(body)
	if err != nil {
		return err
	}
	if head.x == nil || head.x.reply == nil {
		return nil
	}
	values, err := wire.DecodeDataRow(frame[wire.HeaderLen:])
	if err != nil {
		return err
	}
	row := make([]string, len(values))
	for i, v := range values {
		row[i] = string(v)
	}
	head.x.reply.rows = append(head.x.reply.rows, row)
	return nil
}

// reported follows the settings that the upstream reports.
func (x *session) reported(name, value string) {
	switch name {
	case "default_transaction_read_only":
		x.access.reported(&x.access.byDefault, value == "on")
	case "in_hot_standby":
		x.access.reported(&x.access.standby, value == "on")
	case "standard_conforming_strings":
		x.access.backslashes.Store(value != "on")
	}
}
