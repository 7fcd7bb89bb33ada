package proxy

import (
	"context"
	"errors"

	"github.com/nextvald/nextvald/sequencer"
)

var (
	// ErrPass is what Next of a Sequence whose values the upstream hands out may return: nothing was drawn, and the call
	// is to be passed to the upstream.
	ErrPass = errors.New("the upstream has to answer this call")
	// ErrNotAllowed is what Native.Adopt returns where nextvald's own role may not alter the sequence.
	ErrNotAllowed = errors.New("nextvald's role in the upstream may not alter the sequence")
)

// Native is what sessions need of the upstream's own sequences. Its methods are safe for concurrent use. A sequence is
// named by its OID in its database.
type Native interface {
	// Called counts a call of nextval by the bare name that was written, and reports whether calls of it are frequent
	// enough to be answered here. It is cheap and never waits.
	Called(database, name string) (hot bool)
	// Drawn returns the sequence when its values are handed out here at present; nil when calls are to be passed. name
	// is what the session takes the OID to be called: a sequence of another name is passed too. It never waits.
	Drawn(database string, oid uint32, name sequencer.Name) Sequence
	// Revoke takes back what any process of the namespace has drawn of a sequence, or with OID 0 of all sequences of the
	// database, and makes their calls pass until done is called: when the transaction that changes them has ended. After
	// an error nothing is to be called. done does not wait.
	Revoke(ctx context.Context, database string, oid uint32) (done func(), err error)
	// Adopt hands a sequence over to the store, and returns once that is done. It is no error when the sequence has to
	// stay the upstream's, or does not exist any more. ErrNotAllowed.
	Adopt(ctx context.Context, database string, oid uint32) error
	// Release hands a sequence back to the upstream, and returns once that is done. It is no error when it is the
	// upstream's already.
	Release(ctx context.Context, database string, oid uint32) error
	// Refuses reports whether a refusal is known to be a fence's, rather than that of the declared bounds. It never waits.
	Refuses(r Refusal) bool
	// Relieve does what lets a call succeed that a fence refused. nil: what failed may be run again. ErrPass: the refusal is
	// right. It waits for the sequence's lock for about a second.
	Relieve(ctx context.Context, r Refusal) error
	// RelieveSoon is Relieve in the background, tried for a minute.
	RelieveSoon(r Refusal)
	// Follow gives a sequence of the store the name that the upstream has for it now. It is no error when there is nothing
	// to follow.
	Follow(ctx context.Context, database string, oid uint32) error
}

// Refusal is the error of a call that nextvald does not see, of a sequence that may be one of the store's.
type Refusal struct {
	Database, Sequence string // the bare name
	// Set: it is a call of setval, with a value that is not between Low and High. Otherwise one of nextval, which has reached
	// both.
	Set       bool
	Low, High int64
}

// Sequence is one whose values are handed out here: *sequencer.Sequence, or one whose values were drawn from the upstream.
type Sequence interface {
	Name() sequencer.Name
	// OID is that by which clients name it.
	OID() uint32
	// Incarnation is the unique id of this life of the sequence.
	Incarnation() string
	// TryNext returns the next value when it is in hand; it never waits. Next waits for it. ErrPass.
	TryNext() (value int64, ok bool)
	Next(ctx context.Context) (int64, error)
}

var _ Sequence = (*sequencer.Sequence)(nil)
