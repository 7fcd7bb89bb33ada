package sequencer

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
)

// Errors that a store returns, wrapped; anything else that it returns means that a request had no effect.
var (
	// ErrNotFound: there is no such name or item.
	ErrNotFound = errors.New("not found")
	// ErrExists: there is such a name already.
	ErrExists = errors.New("already exists")
	// ErrUnknownOutcome: the store did not say whether the write took place (a timeout, a lost connection, an internal
	// error). A block whose lease ended so is never used; any other write is settled by reading back.
	ErrUnknownOutcome = errors.New("outcome unknown")
	// ErrSetBack: the store knows less than it confirmed before. The sequence stops.
	ErrSetBack = errors.New("the store was set back")
)

// Conflict is a refused conditional write: nothing was changed, and Item is what the condition met.
type Conflict struct{ Item Item }

func (c *Conflict) Error() string {
	return fmt.Sprintf("incarnation %s is at rev %d, version %d, %s, position %v",
		c.Item.Incarnation, c.Item.Rev, c.Item.Version, c.Item.State, c.Item.Pos)
}

// Leaser hands out ranges of sequences. Blocks come from a store, and may come from whatever else keeps these promises.
type Leaser interface {
	// Lease reserves at least one and at most count consecutive values of the item's incarnation and version for the
	// caller alone, by one atomic step that adds 1 to rev. It gives fewer than asked for where the range ends, or where a
	// stretch ends that was leased before, or that leases do not skip (Item.Skips). The rest of item is as the caller knows it and may be out of date.
	// *Conflict: the stored item has another version, is not active, is not handed out by the store or has no value left,
	// or its position is in a range that leases skip.
	// ErrNotFound: the sequence was dropped. ErrUnknownOutcome: the values must be taken for lost.
	Lease(ctx context.Context, item Item, count int64) (Lease, error)
	// GiveBack moves the position back over values that were leased and not handed out. It is conditional on the version
	// and on the rev of the caller's own last lease, so that it cannot take place after anybody else's write. It is sent
	// once; whatever error it returns, the values must be taken for lost.
	GiveBack(ctx context.Context, g GiveBack) error
}

// Store keeps the sequences of one namespace. Every method is safe for concurrent use and is one conditional write of one
// item, or one strongly consistent read; a write that succeeds is durable and is seen by every later read.
type Store interface {
	Leaser

	// Get reads an item. ErrNotFound.
	Get(ctx context.Context, incarnation string) (Item, error)
	// GetAll reads items, each as Get does, at more or less the same time. Those that there are not are left out.
	GetAll(ctx context.Context, incarnations []string) (map[string]Item, error)
	// Put writes a whole item. ifRev is the rev that the stored item must have, 0 for a new one; the written item gets
	// ifRev + 1, whatever item.Rev says. *Conflict: it has another. ErrNotFound: ifRev is not 0 and there is none. An item
	// that Item.Check refuses is not written.
	Put(ctx context.Context, item Item, ifRev int64) error
	// Delete removes an item that has the given rev. *Conflict; ErrNotFound.
	Delete(ctx context.Context, incarnation string, ifRev int64) error

	// Revoke begins a change: it sets state to revoking, adds 1 to version and writes changed, on the condition that the
	// item is active and has the given version, and returns the item as it is then. From then on every lease is refused,
	// so that Put meets nobody else's write. *Conflict; ErrNotFound.
	Revoke(ctx context.Context, incarnation string, version int64, changed string) (Item, error)

	// Resolve reads a name. ErrNotFound.
	Resolve(ctx context.Context, name Name) (Entry, error)
	// Names reads all names of a database, in no order.
	Names(ctx context.Context, database string) ([]Entry, error)
	// PutName adds a name. ErrExists.
	PutName(ctx context.Context, e Entry) error
	// DeleteName removes a name that points to the given incarnation. ErrNotFound: it does not exist or points elsewhere.
	DeleteName(ctx context.Context, name Name, incarnation string) error

	// Feed reads the feed.
	Feed(ctx context.Context) (Feed, error)
	// Announce adds 1 to the feed's rev, and to what else a says, and returns the new rev. It may be repeated.
	Announce(ctx context.Context, a Announcement) (rev int64, err error)
	// Members reads all members, in no order.
	Members(ctx context.Context) ([]Member, error)
	// PutMember writes a member. ifToken is the token that the stored one must have; empty writes it whatever there is.
	// ErrNotFound: there is none of that id and token, or one that Member.Follows says m does not follow.
	PutMember(ctx context.Context, m Member, ifToken string) error
	// DeleteMember removes the member of that id and token. ErrNotFound.
	DeleteMember(ctx context.Context, id, token string) error
	// NextOID returns an OID that this namespace never gave before, counting down from MaxOID.
	NextOID(ctx context.Context) (uint32, error)

	// Close releases what the store holds. The store must not be used after.
	Close() error
}

// LocalStore is a store whose leases do not leave the machine. They cost so little that a registry over it makes them small,
// unless it is told otherwise, so that a process that is killed loses few values.
type LocalStore interface {
	Store
	Local() // does nothing
}

// Name identifies a sequence to its users.
type Name struct {
	Database, Schema, Name string
}

// String returns the name in the form database.schema.name, unquoted, for messages to operators.
func (n Name) String() string { return n.Database + "." + n.Schema + "." + n.Name }

// Entry is a name and what it points to. While a sequence is renamed two names point to one incarnation.
type Entry struct {
	Name        Name
	Incarnation string
	OID         uint32
}

// ItemState says whether an item may be leased from.
type ItemState string

// The states of an item.
const (
	Active   ItemState = "active"
	Revoking ItemState = "revoking" // a change is under way: every lease is refused
)

// Source says who hands out a sequence's ranges.
type Source string

// The sources of a sequence.
const (
	FromStore    Source = "store"
	FromUpstream Source = "upstream"
	Moving       Source = "moving" // from one to the other
)

// Kind says whether a sequence exists in the upstream too.
type Kind string

// The kinds of sequences.
const (
	Virtual  Kind = "virtual"  // only nextvald knows it
	Mirrored Kind = "mirrored" // the upstream has a sequence of that name
)

// Mode says in what order values are handed out.
type Mode string

// The modes of a sequence.
const (
	Cached Mode = "cached" // increasing for the callers of one process
	Strict Mode = "strict" // increasing for all callers, in real time
)

// Range is a range of values, both ends included, First before Last in the sequence's direction.
type Range struct {
	First, Last int64
}

// Item is one life of a sequence as it is stored. A store returns copies: the caller owns them.
type Item struct {
	Incarnation string
	Rev         int64 // counts writes
	Version     int64 // counts changes of definition or position by anything but a lease or a give-back
	State       ItemState
	Source      Source
	Kind        Kind
	Mode        Mode
	// Pos is the next value to lease. It is one increment past the bound when the sequence is exhausted.
	Pos Position
	// High is the furthest value ever leased in this incarnation, nil when none was. After a change of the increment's
	// sign it is the end of int8, since values further on may have been leased.
	High *int64
	// Fresh is the position at which the sequence counts as not yet called (is_called is false), nil when there is none:
	// at CREATE, after RESTART and after setval(.., false), until the position moves on. A wrap of CYCLE clears it.
	Fresh      *int64
	Definition Definition
	OID        uint32
	// DBOID and RelOID are those of the upstream's database and sequence, 0 for a virtual one. Fence is the block that
	// the upstream's own sequence is confined to, nil when it has no value to give, NextFence the one that it is about to be
	// confined to, and Holes are blocks that it was confined to. Leases skip all of them.
	DBOID, RelOID    uint32
	Fence, NextFence *Range
	Holes            []Range
	// Created and Changed are the times of creation and of the last Put, in RFC 3339, for people. After a slash, Changed
	// has a token that tells one Put from another when its outcome has to be settled.
	Created, Changed string
}

// Clone returns a copy that shares nothing with the item.
func (it Item) Clone() Item {
	it.High, it.Fresh, it.Fence, it.NextFence = clone(it.High), clone(it.Fresh), clone(it.Fence), clone(it.NextFence)
	it.Holes = slices.Clone(it.Holes)
	return it
}

// cursor is where the sequence stands when the next value to hand out is at pos.
func (it Item) cursor(pos Position) cursor {
	if it.Fresh != nil && pos == At(*it.Fresh) {
		return cursor{last: *it.Fresh}
	}
	last, _ := pos.Minus(At(it.Definition.Increment)).Value()
	return cursor{last: last, called: true}
}

// place sets the position and is_called.
func (it *Item) place(at cursor) {
	it.Pos, it.Fresh = At(at.last), nil
	if at.called {
		it.Pos = it.Pos.Plus(At(it.Definition.Increment))
	} else {
		it.Fresh = &at.last
	}
}

// Lease is a reserved block: Count values from First on, Increment apart.
type Lease struct {
	First int64
	Count int64
	// Rev, Pos and High are the item's after the lease.
	Rev  int64
	Pos  Position
	High *int64
	// Held: the block is part of a larger one that was leased for this process alone, now or before. Then Rev is that
	// lease's, which other blocks may have too, and Pos and High say nothing.
	Held bool
}

// GiveBack returns the values from Pos on.
type GiveBack struct {
	Incarnation string
	Version     int64
	// Rev is that of the caller's own last lease.
	Rev int64
	// Pos is the first value that was not handed out, and End the position after the caller's last one: the Count values
	// between are all the caller's.
	Pos, End Position
	Count    int64
}

// Grant works out the lease of at most count values that an item gives to a caller who knows a version of it: how a store
// that holds the item decides. It does not change the item. It returns a *Conflict where Leaser.Lease does.
func (it Item) Grant(version, count int64) (Lease, error) {
	d := it.Definition
	count = min(count, it.room(it.Pos))
	if it.Version != version || it.State != Active || it.Source != FromStore || count < 1 {
		return Lease{}, &Conflict{Item: it.Clone()}
	}
	first, _ := it.Pos.Value() // there is room, so it is a value
	pos := it.Pos.Plus(Product(count, d.Increment))
	high, _ := pos.Minus(At(d.Increment)).Value()
	if it.High != nil && !d.beyond(At(high), At(*it.High)) {
		high = *it.High
	}
	return Lease{First: first, Count: count, Rev: it.Rev + 1, Pos: pos, High: &high}, nil
}

// Apply moves the item on by a lease of it.
func (it *Item) Apply(l Lease) { it.Rev, it.Pos, it.High = l.Rev, l.Pos, clone(l.High) }

// Return moves the item back by g, or returns a *Conflict.
func (it *Item) Return(g GiveBack) error {
	if it.Version != g.Version || it.Rev != g.Rev || it.State != Active || it.Source != FromStore {
		return &Conflict{Item: it.Clone()}
	}
	it.Rev, it.Pos = it.Rev+1, g.Pos
	return nil
}

// Revoke begins a change of the item, or returns a *Conflict.
func (it *Item) Revoke(version int64, changed string) error {
	if it.Version != version || it.State != Active || it.Source != FromStore {
		return &Conflict{Item: it.Clone()}
	}
	it.Rev, it.Version, it.State, it.Changed = it.Rev+1, it.Version+1, Revoking, changed
	return nil
}

// Topics is the number of counters in the feed over which incarnations are spread.
const Topics = 64

// Feed tells what changed. Every process reads it several times a second.
type Feed struct {
	Rev   int64 // counts writes of the feed
	Names int64 // counts changes of names
	// Topics count changes of sequences, by Topic(incarnation), and Latest are the incarnations that counted last.
	Topics [Topics]int64
	Latest [Topics]string
}

// Member is a process that may hold blocks.
type Member struct {
	ID string
	// Token tells a process from another one of the same id, which it replaced.
	Token string
	// Seen is the feed's rev up to which the process has dropped every block of an old version.
	Seen int64
	// Expires is when the process no longer counts unless it writes again, in milliseconds since 1970. It stops handing out
	// values long before. 0: this is no process but the mark of a durable tier, which never counts and does not go by itself.
	Expires int64
}

// Mark reports whether a member is the mark of a durable tier rather than a process: by its token the tier knows that the
// blocks in its file are its own.
func (m Member) Mark() bool { return m.Expires == 0 }

// Follows reports whether a member may be written over the one that is stored: not when the same process would expire
// earlier. Such a write comes late, after others, and its sender does not know of it.
func (m Member) Follows(stored Member) bool {
	return m.Token != stored.Token || m.Expires >= stored.Expires
}

// Announcement is what changed.
type Announcement struct {
	Names       bool   // a name was added or removed
	Incarnation string // of the sequence that was changed or dropped, or empty
}

// Topic is the index of the feed's counter for an incarnation. It is part of the stored format.
func Topic(incarnation string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(incarnation)) // never fails
	return int(h.Sum32() % Topics)
}

// MaxOID is the first OID that a namespace gives; further ones count down, away from those that PostgreSQL gives.
const MaxOID = 4294967294

// minOID is the first OID that PostgreSQL gives to what users create; those below are its own.
const minOID = 16384

// CheckOID refuses a number of the OID counter that is no OID for a sequence.
func CheckOID(n int64) (uint32, error) {
	if n < minOID || n > MaxOID {
		return 0, &Error{
			Code:    codeLimit,
			Message: fmt.Sprintf("the counter of sequence OIDs is used up (%d)", n),
			Hint:    "Use another namespace.",
		}
	}
	return uint32(n), nil
}

// Check refuses an item that no version of this package would have written: what a store decoded may come from anywhere.
func (it Item) Check() error {
	d := it.Definition
	least, greatest := At(d.Min).Plus(At(min(d.Increment, 0))), At(d.Max).Plus(At(max(d.Increment, 0)))
	switch {
	case it.Incarnation == "":
		return errors.New("the incarnation is empty")
	case it.Rev < 1 || it.Version < 1:
		return fmt.Errorf("rev %d or version %d is less than 1", it.Rev, it.Version)
	case it.State != Active && it.State != Revoking:
		return fmt.Errorf("state %q is unknown", it.State)
	case it.Source != FromStore && it.Source != FromUpstream && it.Source != Moving:
		return fmt.Errorf("source %q is unknown", it.Source)
	case it.Kind != Virtual && it.Kind != Mirrored:
		return fmt.Errorf("kind %q is unknown", it.Kind)
	case it.Mode != Cached && it.Mode != Strict:
		return fmt.Errorf("mode %q is unknown", it.Mode)
	}
	if err := d.validate(); err != nil {
		return err
	}
	if it.Pos.Compare(least) < 0 || it.Pos.Compare(greatest) > 0 {
		return fmt.Errorf("pos %v is not between %v and %v", it.Pos, least, greatest)
	}
	return nil
}

func clone[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}
