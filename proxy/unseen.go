package proxy

import (
	"context"
	"errors"
	"regexp"
	"strconv"
	"sync/atomic"

	"github.com/nextvald/nextvald/proxy/wire"
	"github.com/nextvald/nextvald/sqlrewrite"
)

// A call that nextvald does not see (in a trigger, a default or a function) draws from the fence of a sequence of the store, and
// fails where that is used up, or where setval is to leave it. The fence is then fed, or the sequence handed back to the upstream.
// A batch of one statement that reads or writes rows, outside of a transaction block, left nothing behind when it failed: it is sent
// once more, and the client hears of its last run alone. Otherwise, or when that does not help, the client gets the error with a hint.

const (
	// limitReached is sequence_generator_limit_exceeded, outOfRange numeric_value_out_of_range.
	limitReached, outOfRange = "2200H", "22003"
	// maxRuns is how often a batch is sent. Each time its fence is fed ten times what was not enough.
	maxRuns = 6
	// keepLimit bounds what is kept of a batch, in bytes, and keepBuffer the memory that stays with a session for it.
	keepLimit, keepBuffer = 16 << 10, 2 << 10

	hintLent = "Calls of nextval in triggers, defaults and functions draw from values that nextvald lends to PostgreSQL. It lends more of them now: run the transaction again. ALTER SEQUENCE ... SET (nextvald.source = upstream) makes it PostgreSQL's own."
	hintSet  = "Calls of setval in functions reach only the values that nextvald lends to PostgreSQL. It hands the sequence back to PostgreSQL now: run the transaction again."
)

// repetition is what a flight knows of a batch that may be sent once more.
type repetition struct {
	stage  stage
	frames []byte // the Query; or Bind, Execute and Sync
	runs   int    // how often it was sent
	// due: a fence refused a call of it, and the client side has to send it again before anything else.
	due     atomic.Bool
	unheard *unheard
}

// unheard is what the client is told only when its statement is not run again: a RowDescription, or nothing, and the error.
type unheard struct {
	columns, failure []byte
	refusal          Refusal
}

// stage is how much of a batch is kept. A batch of another form is not.
type stage int

const (
	notKept stage = iota
	parsed        // a Parse, of which nothing need be kept: the upstream keeps it when what follows fails
	bound
	executed
	complete
)

// keepLocked notes a message of a batch before it is pushed. Without a frame the batch is not kept.
func (f *flight) keepLocked(e expectation, frame []byte) {
	r := &f.again
	before := r.stage
	r.stage = notKept
	if frame == nil {
		return
	}
	first := f.first == len(f.queue) && !f.failed
	switch e.kind {
	case wire.TypeQuery:
		if first {
			r.start(frame, complete)
		}
	case wire.TypeParse:
		if first {
			r.stage = parsed
		}
	case wire.TypeBind:
		if first || before == parsed {
			r.start(frame, bound)
		}
	case wire.TypeDescribe:
		if before == parsed || before == bound {
			r.stage = before
		}
	case wire.TypeExecute:
		if before == bound {
			r.frames, r.stage = append(r.frames, frame...), executed
		}
	case wire.TypeSync:
		if before == executed {
			r.frames, r.stage = append(r.frames, frame...), complete
		}
	}
}

func (r *repetition) start(frame []byte, s stage) {
	if cap(r.frames) > keepBuffer {
		r.frames = nil
	}
	r.frames, r.stage, r.runs = append(r.frames[:0], frame...), s, 1
}

// repeatsLocked reports whether the expectation at the head belongs to a statement that may be run again, with nothing behind it.
func (f *flight) repeatsLocked() bool {
	if f.again.stage != complete || f.again.runs == maxRuns || f.closed {
		return false
	}
	switch waiting := f.queue[f.first:]; len(waiting) {
	case 1:
		return waiting[0].kind == wire.TypeQuery
	case 2:
		return waiting[0].kind == wire.TypeExecute && waiting[1].kind == wire.TypeSync
	}
	return false
}

// repeats reports whether what is answered now may be run again.
func (f *flight) repeats() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.repeatsLocked()
}

// repeatLater makes the client side send the batch again whose ReadyForQuery has come. It reports false when that cannot be:
// more was sent meanwhile.
func (f *flight) repeatLater(u *unheard) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &f.again
	if r.stage != complete || f.closed || len(f.queue)-f.first != 1 {
		return false
	}
	if e := f.queue[f.first]; e.kind == wire.TypeSync {
		f.queue = append(f.queue[:f.first], expectation{kind: wire.TypeBind, quiet: true}, expectation{kind: wire.TypeExecute}, e)
	}
	f.failed, f.copying = false, 0
	r.unheard = u
	r.runs++
	r.due.Store(true)
	f.changed.Broadcast()
	return true
}

// giveUp answers the batch that was to be sent again.
func (f *flight) giveUp(failure []byte, write func([]byte) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.again.stage = notKept
	f.again.due.Store(false)
	for over := f.first == len(f.queue); !over; {
		over = f.popLocked().endsReady()
	}
	if err := write(failure); err != nil {
		return err
	}
	return f.advanceLocked(write)
}

// toKeep is the frame of a message that may have to be sent again; nil when that must not be.
func (x *session) toKeep(e expectation, frame []byte) []byte {
	if !x.mirrored() || e.quiet || len(frame) > keepLimit || byte(x.status.Load()) != idle {
		return nil
	}
	alone := !x.batch.forwarded // nothing else is undone with it
	switch e.kind {
	case wire.TypeQuery:
		if text, ok := peekText(frame[wire.HeaderLen:]); !ok || !alone || !sqlrewrite.IsRowStatement(text) {
			return nil
		}
		if e.x != nil && (e.x.held != nil || e.x.mute || e.x.origins != nil || e.x.statement != nil) {
			return nil
		}
	case wire.TypeBind:
		if !x.bindsRows || e.x != nil || !alone && x.flight.again.stage != parsed {
			return nil
		}
	case wire.TypeParse:
		if !alone {
			return nil
		}
	case wire.TypeDescribe, wire.TypeExecute, wire.TypeSync:
		if e.x != nil {
			return nil
		}
	default:
		return nil
	}
	if !x.srv.cfg.Sequences.Any(x.database) {
		return nil
	}
	return frame
}

// repeat relieves a batch that a fence refused, and sends it again. It belongs to the client side.
func (x *session) repeat() {
	r := &x.flight.again
	u := r.unheard
	err := x.srv.cfg.Native.Relieve(x.wait(), u.refusal)
	x.waited()
	if err == nil {
		r.due.Store(false)
		_, _ = x.up.Write(r.frames) // an error comes back with the next Flush
		return
	}
	failure := u.failure
	switch {
	case errors.Is(err, ErrPass):
	case errors.Is(err, context.Canceled):
		failure = wire.AppendError(nil, clientError(err))
	default:
		failure = x.relieveSoon(failure, u.refusal)
	}
	x.failures.Add(1)
	_ = x.flight.giveUp(wire.AppendReadyForQuery(append(u.columns, failure...), idle), x.write) // likewise
}

// runAgain has the statement run again whose error the client has not heard of, or else tells the error.
func (x *session) runAgain() (bool, error) {
	u := x.unheard
	x.unheard = nil
	if byte(x.status.Load()) == idle && x.flight.repeatLater(u) {
		x.wake()
		return true, nil
	}
	x.failures.Add(1)
	return false, x.writeOut(append(u.columns, x.relieveSoon(u.failure, u.refusal)...))
}

// tell notes that the client hears of a run of its statement. What was held back goes first.
func (x *session) tell() error {
	x.told = true
	if len(x.columns) == 0 {
		return nil
	}
	err := x.writeOut(x.columns)
	if x.columns = x.columns[:0]; cap(x.columns) > keepBuffer {
		x.columns = nil
	}
	return err
}

// holdColumns holds a RowDescription back until the statement is known not to be run again.
func (x *session) holdColumns(body int) error {
	frame, err := x.from.Frame(body)
	x.columns = append(x.columns[:0], frame...)
	return err
}

// refusedBy reads an ErrorResponse body that may be the refusal of a fence.
func (x *session) refusedBy(fields []byte) (r Refusal, ok bool) {
	code := wire.ErrorField(fields, 'C')
	if code != limitReached && code != outOfRange || !x.mirrored() {
		return r, false
	}
	message := wire.ErrorField(fields, 'M')
	match := quotedName.FindStringSubmatch(message)
	if match == nil || !x.srv.cfg.Sequences.Known(x.database)(match[1]) {
		return r, false
	}
	r = Refusal{Database: x.database, Sequence: match[1], Set: code == outOfRange}
	if match = bounds.FindStringSubmatch(message); match == nil || r.Set && wire.ErrorField(fields, 'R') != "do_setval" {
		return r, false
	}
	low, errLow := strconv.ParseInt(match[1], 10, 64)
	high, errHigh := low, error(nil)
	if match[2] != "" {
		high, errHigh = strconv.ParseInt(match[2], 10, 64)
	}
	r.Low, r.High = low, high
	return r, errLow == nil && errHigh == nil
}

// The message is in the server's language.
var (
	quotedName = regexp.MustCompile(`["'«»„“「][\s\x{a0}]*(.+?)[\s\x{a0}]*["'»«“”」]`)
	bounds     = regexp.MustCompile(`\((-?\d+)(?:\.\.(-?\d+))?\)`)
)

// relieveSoon has a statement relieved that is not run again by itself, and tells so in its error.
func (x *session) relieveSoon(frame []byte, r Refusal) []byte {
	x.srv.cfg.Native.RelieveSoon(r)
	switch {
	case !x.srv.cfg.Native.Refuses(r):
		return frame
	case r.Set:
		return wire.AppendHint(frame, hintSet)
	}
	return wire.AppendHint(frame, hintLent)
}
