package sequencer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Other processes may lease from this one rather than from the store: its peers. They are members like any other, so that a
// change waits for their word, and what they are given is out of this process's own blocks. What keeps a block of an old
// version out of their hands:
//
//   - A peer hears of changes from this process, and only after this process has done what the feed says: whoever confirmed
//     a change was told by a process that holds nothing older.
//   - It tells how far it was told when it asks for values, and is given none before this process has come as far. So the
//     same holds for a peer that speaks with several processes in turn.
//   - It tells the version that it knows, and uses a block only while that is what it knows.

// Claim is a block that was taken out of what this process has of a sequence. Its values are the caller's alone.
type Claim struct {
	Block
	Incarnation string
	// Version is that of the item of which the block was leased, and Rev the item's after that lease, 0 for a block that
	// was leased from a peer.
	Version, Rev int64
	// Strict: the values were leased for this call, in real-time order, rather than held.
	Strict bool
}

// Claim takes at least one value and at most n. Otherwise it is as Next.
func (s *Sequence) Claim(ctx context.Context, n int64) (Claim, error) {
	if n < 1 || n > maxBlock {
		return Claim{}, invalid("number of values (%d) must be between 1 and %d", n, int64(maxBlock))
	}
	block, from, err := s.claim(ctx, n)
	if err != nil {
		return Claim{}, err
	}
	return Claim{
		Block: block, Incarnation: s.incarnation, Version: from.version, Rev: from.rev, Strict: from.mode == Strict,
	}, nil
}

// PeerLease is what a peer asks for.
type PeerLease struct {
	Name Name
	// Count is how many values are wanted at most. The peer gets fewer where it suits, and never more than the sequence's
	// max_lease.
	Count int64
	// Member is the peer's id among the members. It may be empty for a strict sequence alone, whose values nobody holds.
	Member string
	// Incarnation and Version are those that the peer knows, and Told is the feed's rev up to which it was told of changes.
	// Zero values stand for whatever there is.
	Incarnation   string
	Version, Told int64
}

// ErrPeerBehind: the peer and this process do not know the sequence by the same incarnation and version (55000). Nothing
// was leased; the store knows.
var ErrPeerBehind = &Error{Code: codeState}

// LeaseToPeer gives values out of this process's blocks to a peer. Errors: ErrUndefined, ErrExhausted, ErrPeerBehind,
// ErrStore; 42704 when the peer is no member.
func (r *Registry) LeaseToPeer(ctx context.Context, q PeerLease) (Claim, error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.StoreTimeout)
	defer cancel()
	if q.Count < 1 {
		return Claim{}, invalid("number of values (%d) must be positive", q.Count)
	}
	if err := r.catchUp(ctx, q.Told); err != nil {
		return Claim{}, err
	}
	s, err := r.Lookup(ctx, q.Name)
	if err != nil {
		return Claim{}, err
	}
	if q.Incarnation != "" && q.Incarnation != s.incarnation {
		return Claim{}, peerBehind(q.Name)
	}
	version, strict, most := s.terms()
	if q.Version > version {
		// The peer has read the item since this process did.
		if err := s.refresh(ctx); err != nil {
			return Claim{}, storeFailure("read the sequence", err)
		}
		version, strict, most = s.terms()
	}
	if q.Version != 0 && q.Version != version {
		return Claim{}, peerBehind(q.Name)
	}
	if !strict {
		if err := r.peers.check(ctx, r, q.Member); err != nil {
			return Claim{}, err
		}
	}
	c, err := s.Claim(ctx, min(q.Count, most))
	if err != nil {
		return Claim{}, err
	}
	// It was changed meanwhile: what was claimed is a gap.
	if q.Version != 0 && c.Version != q.Version || strict && !c.Strict {
		return Claim{}, peerBehind(q.Name)
	}
	return c, nil
}

func peerBehind(n Name) *Error {
	return &Error{
		Code:    codeState,
		Message: fmt.Sprintf("sequence %q was changed", bare(n.Name)),
		Hint:    "Read it again, and try again.",
	}
}

// terms are the version and the mode by which the sequence is known, and how much of it a peer may have at once.
func (s *Sequence) terms() (version int64, strict bool, most int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.item.Version, s.item.Mode == Strict, s.policy.MaxLease
}

// ConfirmFor writes the word of a member that keeps no token of its own: that it dropped everything older than the feed's
// rev. It makes it a member when it is none, and lets it count for as long as a process that this one has the clock of.
func (r *Registry) ConfirmFor(ctx context.Context, id string, seen int64) error {
	if id == "" {
		return invalid("the id of a member must not be empty")
	}
	members, err := r.Members(ctx)
	if err != nil {
		return err
	}
	self, known := Member{ID: id, Token: token(8), Seen: seen}, ""
	for _, m := range members {
		if m.ID == id {
			self.Token, known, self.Seen, self.Expires = m.Token, m.Token, max(m.Seen, seen), m.Expires
		}
	}
	self.Expires = max(self.Expires, r.expiry(r.cfg.Clock.Now()))
	ctx, cancel := context.WithTimeout(ctx, r.cfg.StoreTimeout)
	defer cancel()
	if err := r.store.PutMember(ctx, self, known); err != nil {
		return storeFailure("write the member", err)
	}
	return nil
}

// Followed returns the feed as it was read after the call, when this process has done what it says. It costs no read of
// its own: all who ask share the next one that the process makes anyway.
func (r *Registry) Followed(ctx context.Context) (Feed, error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.StoreTimeout)
	defer cancel()
	p := &r.peers
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting++
	defer func() { p.waiting-- }()
	for turn := p.begun + 1; p.told < turn; {
		wake := p.wake
		p.mu.Unlock()
		var err error = errShuttingDown
		select {
		case <-wake:
			err = nil
		case <-ctx.Done():
			err = storeFailure("follow the feed", ctx.Err())
		case <-r.ctx.Done():
		}
		p.mu.Lock()
		if err != nil {
			return Feed{}, err
		}
	}
	return p.feed, nil
}

// catchUp waits until the feed was followed up to rev.
func (r *Registry) catchUp(ctx context.Context, rev int64) error {
	for r.member.followed.Load() < rev {
		feed, err := r.Followed(ctx)
		if err != nil {
			return err
		}
		if feed.Rev < rev {
			return setBackFeed(feed.Rev, rev)
		}
	}
	return nil
}

// setBackFeed is the error for a peer that was told more than the store knows.
func setBackFeed(found, told int64) *Error {
	return &Error{
		Code:    codeStore,
		Message: "the sequence store was set back",
		Detail:  fmt.Sprintf("Its feed is at rev %d, and was at %d. It may have been restored from a backup.", found, told),
		Hint:    "Move the sequences past every value in use with setval, then restart every nextvald of the namespace.",
		Err:     errors.New("the feed fell behind"),
	}
}

// peers is what a process knows of those who lease from it.
type peers struct {
	mu sync.Mutex
	// begun counts the times that the feed was asked for; feed is what was read and done in turn told; wake is closed and
	// replaced then. waiting counts those who wait for it.
	begun, told uint64
	feed        Feed
	wake        chan struct{}
	waiting     int
	// members are ids that the store had, and until when to believe it.
	members map[string]time.Time
}

func (p *peers) init() {
	p.wake = make(chan struct{})
	p.members = map[string]time.Time{}
}

// asking reports whether somebody waits for the feed.
func (p *peers) asking() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting > 0
}

// begin notes that the feed is about to be asked for, and returns the turn.
func (p *peers) begin() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun++
	return p.begun
}

// tell gives those who wait the feed that was followed in a turn.
func (p *peers) tell(turn uint64, feed Feed) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told, p.feed = turn, feed
	close(p.wake)
	p.wake = make(chan struct{})
}

// check refuses an id that is no member's. It asks the store once in a while: a member that was removed since would find
// that out by itself no sooner.
func (p *peers) check(ctx context.Context, r *Registry, id string) error {
	now := r.cfg.Clock.Now()
	p.mu.Lock()
	until := p.members[id]
	p.mu.Unlock()
	if now.Before(until) {
		return nil
	}
	members, err := r.Members(ctx)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.members)
	for _, m := range members {
		expires := time.UnixMilli(m.Expires)
		if again := now.Add(r.cfg.MaxOffline / renewals); again.Before(expires) {
			expires = again
		}
		if now.Before(expires) {
			p.members[m.ID] = expires
		}
	}
	if _, ok := p.members[id]; ok {
		return nil
	}
	return &Error{
		Code:    codeNoObject,
		Message: fmt.Sprintf("member %q does not exist", bare(id)),
		Hint:    "Only a member of the store is given values to hold: nextvald.confirm makes one.",
	}
}
