// Package faultstore wraps a store to make it fail: before a request or after it, late, or by losing the answer. It is for
// tests of what must hold when that happens.
package faultstore

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nextvald/nextvald/sequencer"
)

// Fault is what happens to one request. The zero Fault lets it pass.
type Fault struct {
	// Delay passes before the request is made. When the caller's time is up first, the request is made nevertheless if
	// Late is set, without the caller learning of it; else not.
	Delay time.Duration
	Late  bool
	// Before is returned instead of making the request.
	Before error
	// After is returned instead of the answer; the request is made.
	After error
}

// ErrLost is what a caller sees of an answer that got lost.
var ErrLost = fmt.Errorf("%w: the answer was lost", sequencer.ErrUnknownOutcome)

// ErrRefused is what a caller sees of a store that throttles it.
var ErrRefused = fmt.Errorf("the store is overloaded")

// Store is a sequencer.Store that fails as it is told.
type Store struct {
	inner sequencer.Store
	wg    sync.WaitGroup

	mu   sync.Mutex
	plan func(op string) Fault
}

var _ sequencer.Store = (*Store)(nil)

// New wraps a store. plan is asked for the fault of each request, by the operation's name as sequencer.Request has it; it
// must be safe for concurrent use. A nil plan lets everything pass.
func New(inner sequencer.Store, plan func(op string) Fault) *Store {
	return &Store{inner: inner, plan: plan}
}

// Plan replaces the plan.
func (s *Store) Plan(plan func(op string) Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plan = plan
}

// Wait waits until requests that come late have been made.
func (s *Store) Wait() { s.wg.Wait() }

func (s *Store) fault(op string) Fault {
	s.mu.Lock()
	plan := s.plan
	s.mu.Unlock()
	if plan == nil {
		return Fault{}
	}
	return plan(op)
}

// do makes a request with its fault.
func do[T any](ctx context.Context, s *Store, op string, request func(context.Context) (T, error)) (T, error) {
	var none T
	f := s.fault(op)
	if f.Delay > 0 {
		timer := time.NewTimer(f.Delay)
		select {
		case <-timer.C:
		case <-ctx.Done():
			if !f.Late {
				timer.Stop()
				return none, fmt.Errorf("%w: %w", sequencer.ErrUnknownOutcome, ctx.Err())
			}
			s.wg.Go(func() {
				<-timer.C
				_, _ = request(context.WithoutCancel(ctx)) // nobody is there to learn of it
			})
			return none, fmt.Errorf("%w: %w", sequencer.ErrUnknownOutcome, ctx.Err())
		}
	}
	if f.Before != nil {
		return none, f.Before
	}
	answer, err := request(ctx)
	if f.After != nil {
		return none, f.After
	}
	return answer, err
}

// act is do for a request without an answer.
func act(ctx context.Context, s *Store, op string, request func(context.Context) error) error {
	_, err := do(ctx, s, op, func(ctx context.Context) (struct{}, error) { return struct{}{}, request(ctx) })
	return err
}

// Lease implements sequencer.Leaser.
func (s *Store) Lease(ctx context.Context, item sequencer.Item, count int64) (sequencer.Lease, error) {
	return do(ctx, s, "lease", func(ctx context.Context) (sequencer.Lease, error) { return s.inner.Lease(ctx, item, count) })
}

// GiveBack implements sequencer.Leaser.
func (s *Store) GiveBack(ctx context.Context, g sequencer.GiveBack) error {
	return act(ctx, s, "give_back", func(ctx context.Context) error { return s.inner.GiveBack(ctx, g) })
}

// Get implements sequencer.Store.
func (s *Store) Get(ctx context.Context, incarnation string) (sequencer.Item, error) {
	return do(ctx, s, "get", func(ctx context.Context) (sequencer.Item, error) { return s.inner.Get(ctx, incarnation) })
}

// GetAll implements sequencer.Store.
func (s *Store) GetAll(ctx context.Context, incarnations []string) (map[string]sequencer.Item, error) {
	return do(ctx, s, "get_all", func(ctx context.Context) (map[string]sequencer.Item, error) {
		return s.inner.GetAll(ctx, incarnations)
	})
}

// Put implements sequencer.Store.
func (s *Store) Put(ctx context.Context, item sequencer.Item, ifRev int64) error {
	return act(ctx, s, "put", func(ctx context.Context) error { return s.inner.Put(ctx, item, ifRev) })
}

// Delete implements sequencer.Store.
func (s *Store) Delete(ctx context.Context, incarnation string, ifRev int64) error {
	return act(ctx, s, "delete", func(ctx context.Context) error { return s.inner.Delete(ctx, incarnation, ifRev) })
}

// Revoke implements sequencer.Store.
func (s *Store) Revoke(ctx context.Context, incarnation string, version int64, changed string) (sequencer.Item, error) {
	return do(ctx, s, "revoke", func(ctx context.Context) (sequencer.Item, error) {
		return s.inner.Revoke(ctx, incarnation, version, changed)
	})
}

// Resolve implements sequencer.Store.
func (s *Store) Resolve(ctx context.Context, name sequencer.Name) (sequencer.Entry, error) {
	return do(ctx, s, "resolve", func(ctx context.Context) (sequencer.Entry, error) { return s.inner.Resolve(ctx, name) })
}

// Names implements sequencer.Store.
func (s *Store) Names(ctx context.Context, database string) ([]sequencer.Entry, error) {
	return do(ctx, s, "names", func(ctx context.Context) ([]sequencer.Entry, error) { return s.inner.Names(ctx, database) })
}

// PutName implements sequencer.Store.
func (s *Store) PutName(ctx context.Context, e sequencer.Entry) error {
	return act(ctx, s, "put_name", func(ctx context.Context) error { return s.inner.PutName(ctx, e) })
}

// DeleteName implements sequencer.Store.
func (s *Store) DeleteName(ctx context.Context, name sequencer.Name, incarnation string) error {
	return act(ctx, s, "delete_name", func(ctx context.Context) error { return s.inner.DeleteName(ctx, name, incarnation) })
}

// Feed implements sequencer.Store.
func (s *Store) Feed(ctx context.Context) (sequencer.Feed, error) {
	return do(ctx, s, "feed", s.inner.Feed)
}

// Announce implements sequencer.Store.
func (s *Store) Announce(ctx context.Context, a sequencer.Announcement) (int64, error) {
	return do(ctx, s, "announce", func(ctx context.Context) (int64, error) { return s.inner.Announce(ctx, a) })
}

// Members implements sequencer.Store.
func (s *Store) Members(ctx context.Context) ([]sequencer.Member, error) {
	return do(ctx, s, "members", s.inner.Members)
}

// PutMember implements sequencer.Store.
func (s *Store) PutMember(ctx context.Context, m sequencer.Member, ifToken string) error {
	return act(ctx, s, "put_member", func(ctx context.Context) error { return s.inner.PutMember(ctx, m, ifToken) })
}

// DeleteMember implements sequencer.Store.
func (s *Store) DeleteMember(ctx context.Context, id, token string) error {
	return act(ctx, s, "delete_member", func(ctx context.Context) error { return s.inner.DeleteMember(ctx, id, token) })
}

// NextOID implements sequencer.Store.
func (s *Store) NextOID(ctx context.Context) (uint32, error) {
	return do(ctx, s, "next_oid", s.inner.NextOID)
}

// Close waits for late requests, and closes the store.
func (s *Store) Close() error {
	s.wg.Wait()
	return s.inner.Close()
}
