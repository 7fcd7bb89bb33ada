package proxy

import (
	"sync"

	"github.com/nextvald/nextvald/proxy/wire"
	"github.com/nextvald/nextvald/sqlrewrite"
)

// Kinds of expectation beside the client's message types.
const (
	kindLocal   = 'l' // frames of ours that wait their turn
	kindCopyEnd = 'c' // where the client ended COPY data; nothing answers it
)

// expectation is one thing that a client is owed, or that we asked for ourselves.
type expectation struct {
	kind byte // the message's type, or one of the kinds above
	// quiet: a success is ours alone and not forwarded. An error is, unless there is a reply to put it in.
	quiet bool
	x     *special
}

// special is what few expectations carry.
type special struct {
	frames    []byte                // of kindLocal
	statement *statement            // Parse: dies when the message fails or is skipped
	handed    *statement            // Parse: the upstream lacks it when the message fails or is skipped
	reply     *reply                // our own question: rows and error go here
	failures  []*wire.Error         // replace the errors of failing expressions, by number
	positions *sqlrewrite.Positions // maps the error's position back to the client's text
	keep      int                   // Describe: parameters that are the client's
	trim      bool                  // Describe: keep is set
	origins   *reply                // its description tells the tables of the columns, and its error takes the place of another
	mute      bool                  // Query: its ReadyForQuery is not the client's
	held      *hold                 // Query, Sync: its ReadyForQuery waits
}

// reply gathers the answer to a question of ours. It is complete when its last expectation has left the flight.
type reply struct {
	rows        [][]string // NULL is ""
	types       []uint32   // of parameters
	description []byte     // the frame of a RowDescription
	err         *wire.Error
	// heard: an error is the client's too.
	heard bool
}

// flight is the ordered queue of expectations.
type flight struct {
	mu      sync.Mutex
	changed sync.Cond
	queue   []expectation
	first   int // queue[first:] is in flight
	syncs   int // how many of them a ReadyForQuery ends
	// failed: the upstream discards messages up to the next Sync, which has been sent when there is something in the queue.
	failed bool
	// copying: the upstream reads COPY data, and ignores Sync until its end. The kind of the message that it belongs to, or 0.
	copying byte
	// doubtful is how many Syncs that copying left out the upstream may answer all the same: where it gave the COPY up before it
	// read them. The answers come before any other to what was sent after them.
	doubtful int
	closed   bool
	again    repetition
	// beforeWait runs before the client side waits. repeat sends what is due again.
	beforeWait, repeat func()
}

func (f *flight) init(beforeWait, repeat func()) {
	f.changed.L, f.beforeWait, f.repeat = &f.mu, beforeWait, repeat
}

// wait waits for a change, in the client side. f.mu is held.
func (f *flight) wait() {
	if f.again.due.Load() {
		f.mu.Unlock()
		f.repeat()
		f.mu.Lock()
		return
	}
	f.beforeWait()
	f.changed.Wait()
}

func (e expectation) endsReady() bool {
	return e.kind == wire.TypeSync || e.kind == wire.TypeQuery || e.kind == wire.TypeFunctionCall
}

// push appends an expectation, before its message is sent.
func (f *flight) push(e expectation) { f.pushKept(e, nil) }

// pushKept is push for a message that may have to be sent again: the frame, or nil.
func (f *flight) pushKept(e expectation, frame []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.again.due.Load() && !f.closed {
		f.wait()
	}
	f.keepLocked(e, frame)
	f.pushLocked(e)
}

func (f *flight) pushLocked(e expectation) {
	if f.discardsLocked() && e.kind != wire.TypeSync {
		e.skip()
		return
	}
	if f.copiesOver(e) {
		return
	}
	if e.kind == kindCopyEnd && f.first == len(f.queue) {
		return // of data that the upstream has given up already
	}
	if f.first > 0 && len(f.queue) == cap(f.queue) {
		n := copy(f.queue, f.queue[f.first:])
		clear(f.queue[n:])
		f.queue, f.first = f.queue[:n], 0
	}
	f.queue = append(f.queue, e)
	if e.endsReady() {
		f.syncs++
	}
}

// discardsLocked reports whether the upstream will discard what is sent now, unless it is a Sync.
func (f *flight) discardsLocked() bool { return f.failed && f.first == len(f.queue) }

// head returns the expectation that the next response belongs to, and whether it may be run again.
func (f *flight) head() (e expectation, owed, repeats bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.first == len(f.queue) {
		return expectation{}, false, false
	}
	return f.queue[f.first], true, f.repeatsLocked()
}

// popLocked removes the head.
func (f *flight) popLocked() expectation {
	e := f.queue[f.first]
	f.queue[f.first] = expectation{}
	f.first++
	if f.first == len(f.queue) {
		f.queue, f.first = f.queue[:0], 0
	}
	if e.endsReady() {
		f.syncs--
	}
	return e
}

// done removes the head once it is answered, writes the local answers that follow it, and wakes who waits.
func (f *flight) done(write func([]byte) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.popLocked()
	f.doubtful = 0
	return f.advanceLocked(write)
}

func (f *flight) advanceLocked(write func([]byte) error) error {
	for f.first < len(f.queue) {
		e := f.queue[f.first]
		if e.kind == kindLocal {
			if err := write(e.x.frames); err != nil {
				return err
			}
		} else if e.kind != kindCopyEnd {
			break
		}
		f.popLocked()
	}
	f.changed.Broadcast()
	return nil
}

// fail handles an error in the extended protocol: everything up to the next Sync is dropped, a Query too, as the
// upstream does.
func (f *flight) fail() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.first < len(f.queue) && f.queue[f.first].kind != wire.TypeExecute {
		f.doubtful = 0
	}
	f.copying = 0
	f.failed = true
	for f.first < len(f.queue) && f.queue[f.first].kind != wire.TypeSync {
		f.skipLocked()
	}
	f.changed.Broadcast()
}

func (f *flight) skipLocked() {
	e := f.popLocked()
	e.skip()
}

// skip notes that the message will never be carried out.
func (e *expectation) skip() {
	switch {
	case e.x == nil:
	case e.x.statement != nil:
		e.x.statement.dead.Store(true)
	case e.x.handed != nil:
		e.x.handed.refused.Store(true)
	}
}

// answersDoubtful reports whether a ReadyForQuery answers a Sync that copying left out. heard: something was heard before it of
// what is answered now.
func (f *flight) answersDoubtful(heard bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.doubtful == 0 {
		return false
	}
	if f.first < len(f.queue) {
		if head := f.queue[f.first]; head.endsReady() && (heard || head.kind == wire.TypeSync) {
			return false // whichever Sync it is for: one more answer is still doubtful
		}
	}
	f.doubtful--
	f.failed, f.copying = false, 0
	f.changed.Broadcast()
	return true
}

// ready handles a ReadyForQuery: the batch is over, whatever of it was still expected.
func (f *flight) ready(write func([]byte) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failed, f.copying = false, 0
	for f.first < len(f.queue) && !f.queue[f.first].endsReady() {
		f.skipLocked()
	}
	if f.first < len(f.queue) {
		f.popLocked()
	}
	return f.advanceLocked(write)
}

// enterCopy handles a CopyInResponse: the upstream ignores Sync from here to the end of the data. Syncs that were sent
// already, before that end, will never be answered.
func (f *flight) enterCopy() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.first == len(f.queue) {
		return
	}
	head := f.queue[f.first]
	f.copying = head.kind
	if head.x != nil && head.x.held != nil {
		head.x.held.copying = true
	}
	kept := f.queue[:f.first+1]
	for _, e := range f.queue[len(kept):] {
		switch {
		case !f.copiesOver(e):
			kept = append(kept, e)
		case e.kind == wire.TypeSync:
			f.syncs--
		}
	}
	clear(f.queue[len(kept):])
	f.queue = kept
	f.changed.Broadcast()
}

// copiesOver reports whether the upstream, reading the data of a Query's COPY, gives a message no answer: it ignores Sync, and
// the end of the data is no message of its own. f.mu is held.
func (f *flight) copiesOver(e expectation) bool {
	if f.copying == 0 {
		return false
	}
	switch e.kind {
	case wire.TypeSync:
		if e.x != nil && e.x.held != nil {
			e.x.held.copying = true
		}
		if f.copying == wire.TypeExecute {
			f.doubtful++
		}
		return true
	case kindCopyEnd:
		f.copying = 0
		return true
	}
	return false
}

// failCopy handles an error of a Query: the upstream reads no more data for it.
func (f *flight) failCopy() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.copying = 0
}

// holds reports whether the ReadyForQuery that the upstream says next is kept from the client.
func (f *flight) holds(h *hold) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	h.answered = true
	return !h.copying
}

// awaitHold waits until a ReadyForQuery is held, or cannot be. It reports false when the session is over.
func (f *flight) awaitHold(h *hold) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for !(h.answered && f.syncs == 0) && !h.copying && !f.closed {
		f.wait()
	}
	return !f.closed
}

// respond writes frames of ours in their turn: at once when nothing is in flight.
func (f *flight) respond(frames []byte, write func([]byte) error) error {
	return f.respondFor(frames, nil, write)
}

// respondFor is respond for a statement, which dies when a message before it fails.
func (f *flight) respondFor(frames []byte, st *statement, write func([]byte) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.first < len(f.queue) || f.failed {
		f.pushLocked(expectation{kind: kindLocal, x: &special{frames: append([]byte(nil), frames...), statement: st}})
		return nil
	}
	return write(frames)
}

// awaitReady waits until every batch that was ended is answered. It reports false when the session is over: also where the
// upstream waits for COPY data, since it ends a session that sends anything else.
func (f *flight) awaitReady() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.syncs > 0 && !f.closed && f.copying == 0 {
		f.wait()
	}
	return !f.closed && f.copying == 0
}

// awaitEmpty waits until nothing is in flight, and reports whether the upstream discards messages up to the next Sync. open is
// what awaitReady reports.
func (f *flight) awaitEmpty() (failed, open bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.first < len(f.queue) && !f.closed && f.copying == 0 {
		f.wait()
	}
	return f.failed, !f.closed && f.copying == 0
}

// discarding reports whether the upstream will discard what is sent now, unless it is a Sync.
func (f *flight) discarding() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.discardsLocked()
}

// quiet reports whether everything that was sent is answered.
func (f *flight) quiet() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.first == len(f.queue)
}

// busyReady reports whether a ReadyForQuery is owed.
func (f *flight) busyReady() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.syncs > 0
}

// copyIn tells the kind of the message for which the upstream reads COPY data, or 0.
func (f *flight) copyIn() byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.copying
}

// over reports whether nothing more will come.
func (f *flight) over() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closed
}

// close wakes everybody who waits: nothing more will come.
func (f *flight) close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.changed.Broadcast()
}
