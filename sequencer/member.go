package sequencer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A process that holds blocks is a member: it says so in the store before its first lease, and others who move a sequence
// back wait for its word that it dropped its blocks. It follows the feed to hear of such changes. When it has not been able
// to for Config.MaxOffline it stops handing out values from its blocks, and after twice that time nobody waits for it any
// more: what lies between makes up for clocks that differ.
type membership struct {
	// heard is when the feed was asked that was followed last: nil before the process is a member.
	heard atomic.Pointer[time.Time]
	// followed is the feed's rev up to which it was followed.
	followed atomic.Int64
	// term counts the times that the process became a member. A block that was leased in another term is not used.
	term atomic.Uint64

	// turn holds a token while nobody tells the store about the member. Who has it owns what follows: the name to join by,
	// and when the store was told last. The name stays the same when joining is tried again: a write that comes late must
	// not look like another process's.
	turn      chan struct{}
	id, token string
	renewed   time.Time

	mu   sync.Mutex
	self Member        // as the store was told last; Token is empty while the process is no member
	wake chan struct{} // closed and replaced when the feed was followed
}

func (m *membership) init(id string) {
	m.id, m.token = id, token(8)
	m.turn = make(chan struct{}, 1)
	m.turn <- struct{}{}
	m.wake = make(chan struct{})
}

// take waits for the turn, until ctx is done.
func (m *membership) take(ctx context.Context) error {
	select {
	case <-m.turn:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *membership) give() { m.turn <- struct{}{} }

// was returns what the store was told last.
func (m *membership) was() Member {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.self
}

// told notes what the store was told.
func (m *membership) told(self Member) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.self = self
}

// renewals is how often a member renews its item within Config.MaxOffline.
const renewals = 5

// joined reports whether the process is a member.
func (m *membership) joined() bool { return m.heard.Load() != nil }

// offline reports whether the process has heard nothing for so long that it must not hand out values from its blocks.
func (r *Registry) offline() bool {
	heard := r.member.heard.Load()
	if heard == nil {
		return false // nothing is held
	}
	now := r.cfg.Clock.Now() // as since does, within fewer calls: this is asked for every value
	return now.Sub(*heard) > r.cfg.MaxOffline || now.UnixNano()-heard.UnixNano() > int64(r.cfg.MaxOffline)
}

// since is how long ago a moment was. The wall clock counts the time for which the machine was suspended, the monotonic
// clock is not set: the longer one is right.
func (r *Registry) since(moment time.Time) time.Duration {
	now := r.cfg.Clock.Now()
	return max(now.Sub(moment), time.Duration(now.UnixNano()-moment.UnixNano()))
}

// patience is how long the process would go on handing out values from its blocks if it heard nothing from now on.
func (r *Registry) patience() time.Duration {
	heard := r.member.heard.Load()
	if heard == nil {
		return r.cfg.MaxOffline
	}
	return max(0, r.cfg.MaxOffline-r.since(*heard))
}

// hears notes that the feed as it was asked for at that time has been followed.
func (r *Registry) hears(asked time.Time) {
	r.member.heard.Store(&asked)
	r.member.call()
}

// call wakes those who wait for word of the feed.
func (m *membership) call() {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.wake)
	m.wake = make(chan struct{})
}

// nextWord is closed when the feed is followed the next time.
func (r *Registry) nextWord() <-chan struct{} {
	r.member.mu.Lock()
	defer r.member.mu.Unlock()
	return r.member.wake
}

// join makes the process a member, if it is none, and returns the term.
func (r *Registry) join(ctx context.Context) (term uint64, err error) {
	m := &r.member
	if m.joined() {
		return m.term.Load(), nil
	}
	if err := m.take(ctx); err != nil {
		return 0, err
	}
	defer m.give()
	if m.joined() {
		return m.term.Load(), nil
	}
	asked := r.cfg.Clock.Now()
	// What was announced so far means nothing to a process that holds nothing.
	self := Member{ID: m.id, Token: m.token, Seen: m.followed.Load(), Expires: r.expiry(asked)}
	_, err = again(ctx, r, func() (struct{}, error) { return struct{}{}, r.store.PutMember(ctx, self, "") })
	if err != nil {
		// If it was written all the same, it is of a member that holds nothing, and expires.
		return 0, fmt.Errorf("cannot register as a member: %w", err)
	}
	m.told(self)
	m.renewed = asked
	r.hears(asked)
	r.spawn(func() { r.prune(asked) })
	return m.term.Load(), nil
}

// succeed takes the place of a process of the same id that did not sign off, which holds nothing any more: nobody need wait
// for its word.
func (r *Registry) succeed() {
	ctx, cancel := context.WithTimeout(r.ctx, r.cfg.StoreTimeout)
	defer cancel()
	members, err := again(ctx, r, func() ([]Member, error) { return r.store.Members(ctx) })
	if err == nil && slices.ContainsFunc(members, func(m Member) bool { return m.ID == r.cfg.MemberID }) {
		_, err = r.join(ctx)
	}
	if err != nil {
		r.cfg.Logger.Warn("cannot take the place of a former process of this id; the first lease will", "member", r.cfg.MemberID, "error", err)
	}
}

// prune removes members that expired, as far as the store lets it: nobody waits for them any more.
func (r *Registry) prune(now time.Time) {
	ctx, cancel := context.WithTimeout(r.ctx, r.cfg.StoreTimeout)
	defer cancel()
	members, err := r.store.Members(ctx)
	if err != nil {
		return
	}
	for _, m := range members {
		if !m.Mark() && m.Expires < now.UnixMilli() {
			_ = r.store.DeleteMember(ctx, m.ID, m.Token)
		}
	}
}

// expiry is Member.Expires for an item written after that time.
func (r *Registry) expiry(written time.Time) int64 {
	return written.Add(2 * r.cfg.MaxOffline).UnixMilli()
}

// renew notes that the feed was followed, and confirms it in the store when others may wait for it (changed) or the item
// gets old.
func (r *Registry) renew(ctx context.Context, feed Feed, changed bool, asked time.Time) error {
	m := &r.member
	if !m.joined() {
		return nil
	}
	if err := m.take(ctx); err != nil {
		return err
	}
	defer m.give()
	if !m.joined() {
		return nil
	}
	if changed || r.since(m.renewed) > r.cfg.MaxOffline/renewals || asked.Before(m.renewed) {
		self := m.was()
		self.Seen, self.Expires = max(self.Seen, feed.Rev), max(self.Expires, r.expiry(asked))
		err := r.store.PutMember(ctx, self, self.Token)
		if errors.Is(err, ErrNotFound) {
			r.expelled(ctx)
		}
		if err != nil {
			return fmt.Errorf("cannot renew the membership of %s: %w", self.ID, err)
		}
		m.told(self)
		lapsed := r.since(m.renewed) > r.cfg.MaxOffline
		m.renewed = asked
		if lapsed {
			// Until now others may not have waited for this member's word. What they changed after the feed was read shows
			// when it is read again.
			return nil
		}
	}
	r.hears(asked)
	return nil
}

// expelled drops everything that is held: somebody evicted this member, or another process took its id. The
// caller has the turn.
func (r *Registry) expelled(ctx context.Context) {
	m := &r.member
	lost := m.was()
	m.term.Add(1)
	m.told(Member{})
	m.heard.Store(nil)
	for _, s := range r.open() {
		s.mu.Lock()
		s.discard()
		s.broadcast()
		s.mu.Unlock()
	}
	r.expel()
	m.call()
	members, err := r.store.Members(ctx)
	taken := err == nil && slices.ContainsFunc(members, func(other Member) bool { return other.ID == lost.ID && other.Token != lost.Token })
	if taken {
		// Two processes that took the id from each other in turn would lease and drop blocks without end.
		m.id, m.token = r.cfg.MemberID+"~"+token(4), token(8)
	}
	r.cfg.Logger.Warn("this process is no member any more; blocks are dropped", "member", lost.ID, "id_taken", taken,
		"next_id", m.id)
}

// leave takes the process off the members, when it holds nothing any more.
func (r *Registry) leave(ctx context.Context) error {
	m := &r.member
	if err := m.take(ctx); err != nil {
		return err
	}
	defer m.give()
	if !m.joined() {
		return nil
	}
	m.heard.Store(nil)
	self := m.was()
	err := r.store.DeleteMember(ctx, self.ID, self.Token)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// Members returns the processes that may hold blocks, and those that may have held some and did not sign off.
func (r *Registry) Members(ctx context.Context) ([]Member, error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.StoreTimeout)
	defer cancel()
	members, err := again(ctx, r, func() ([]Member, error) { return r.store.Members(ctx) })
	if err != nil {
		return nil, storeFailure("list the members", err)
	}
	slices.SortFunc(members, func(a, b Member) int { return strings.Compare(a.ID, b.ID) })
	return members, nil
}

// Evict removes a member whose process is known to be dead, so that nobody waits for its word. A process that is evicted
// and lives drops its blocks when it notices, within Config.MaxOffline/5. ErrNotFound: there is no such member.
func (r *Registry) Evict(ctx context.Context, id string) error {
	members, err := r.Members(ctx)
	if err != nil {
		return err
	}
	for _, m := range members {
		if m.ID == id {
			err := r.store.DeleteMember(ctx, m.ID, m.Token)
			if err != nil && !errors.Is(err, ErrNotFound) {
				return storeFailure("remove the member", err)
			}
			return nil
		}
	}
	return fmt.Errorf("member %q: %w", id, ErrNotFound)
}

// Pauses between two looks at the members.
const confirmPoll = 50 * time.Millisecond

// confirmed waits until every other member has followed the feed up to rev. It returns the ids of those that have not when
// the time is up.
func (r *Registry) confirmed(ctx context.Context, rev int64, limit time.Duration) (missing []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	own := r.member.was().Token
	for {
		asking, stop := context.WithTimeout(ctx, r.followTimeout())
		members, err := r.store.Members(asking)
		stop()
		if err == nil {
			missing = nil
			now := r.cfg.Clock.Now().UnixMilli()
			for _, m := range members {
				if m.Token != own && m.Expires > now && m.Seen < rev {
					missing = append(missing, m.ID)
				}
			}
			if len(missing) == 0 {
				return nil, nil
			}
		}
		next, stop := r.cfg.Clock.After(confirmPoll)
		select {
		case <-next:
		case <-ctx.Done():
			stop()
			if err == nil {
				err = ctx.Err()
			}
			return missing, err
		}
	}
}

// unconfirmed is the error of a change that members did not confirm.
func unconfirmed(missing []string, cause error) *Error {
	if len(missing) == 0 {
		return storeFailure("read the members", cause)
	}
	return &Error{
		Code:    codeStore,
		Message: fmt.Sprintf("member %q did not confirm that it dropped its values", missing[0]),
		Detail:  fmt.Sprintf("Not confirmed: %s. Nothing was changed.", strings.Join(missing, ", ")),
		Hint:    fmt.Sprintf("Try again. If its process is known to be dead, remove it with: nextvald evict %s", missing[0]),
		Err:     cause,
	}
}
