package sequencer

import (
	"context"
	"errors"
	"maps"
	"math"
	"sync"
	"time"
)

// Stats are counts since Open, and what is held now.
type Stats struct {
	// Values is the number of values handed out, Leases that of blocks leased.
	Values, Leases uint64
	// Depth is the number of values leased and not handed out yet.
	Depth int64
	// Sequences is the number of sequences used so far that exist.
	Sequences int
	// Runway is how many seconds the values in hand last at the present rate, of the sequence for which that is the least,
	// and no longer than they may be handed out without word of the store. It is infinite when no cached sequence was used
	// in the last minute.
	Runway float64
	// LeaseP99 is the time that 99 of the last 100 leases did not exceed.
	LeaseP99 time.Duration
	// Requests counts requests to the store by operation and outcome.
	Requests map[Request]uint64
}

// Request is a kind of request to the store and its outcome.
type Request struct {
	Op      string // lease, give_back, get, put, delete, resolve, names, put_name, delete_name, feed, announce, next_oid
	Outcome Outcome
}

// Outcome says how a request to the store ended.
type Outcome string

// The outcomes of requests.
const (
	OutcomeOK      Outcome = "ok"
	OutcomeRefused Outcome = "refused" // a condition was not met, or there is no such thing
	OutcomeUnknown Outcome = "unknown" // the answer was lost
	OutcomeFailed  Outcome = "failed"  // it had no effect
)

// Stats returns the counts.
func (r *Registry) Stats() Stats {
	r.mu.Lock()
	total := r.former
	r.mu.Unlock()
	total.Runway = math.Inf(1)
	for _, s := range r.open() {
		s.mu.Lock()
		s.observe()
		if seconds, ok := s.runway(); ok {
			total.Runway = min(total.Runway, seconds, r.patience().Seconds())
		}
		total.Values += s.handedOut()
		total.Leases += s.leases
		total.Depth += s.left()
		if s.over == nil {
			total.Sequences++
		}
		s.mu.Unlock()
	}
	total.LeaseP99 = r.leasing.percentile99()
	total.Requests = r.store.counts()
	return total
}

// keepCounts keeps the counts of a sequence that is forgotten. r.mu is held.
func (r *Registry) keepCounts(s *Sequence) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r.former.Values += s.handedOut()
	r.former.Leases += s.leases
}

// countingStore counts the requests to a store.
type countingStore struct {
	Store
	mu       sync.Mutex
	requests map[Request]uint64
}

func newCountingStore(s Store) *countingStore {
	return &countingStore{Store: s, requests: map[Request]uint64{}}
}

func (c *countingStore) counts() map[Request]uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.requests)
}

func (c *countingStore) took(op string, err error) {
	outcome := OutcomeFailed
	var conflict *Conflict
	switch {
	case err == nil:
		outcome = OutcomeOK
	case errors.Is(err, ErrUnknownOutcome):
		outcome = OutcomeUnknown
	case errors.As(err, &conflict), errors.Is(err, ErrNotFound), errors.Is(err, ErrExists):
		outcome = OutcomeRefused
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests[Request{op, outcome}]++
}

func (c *countingStore) Lease(ctx context.Context, item Item, count int64) (Lease, error) {
	l, err := c.Store.Lease(ctx, item, count)
	c.took("lease", err)
	return l, err
}

func (c *countingStore) GiveBack(ctx context.Context, g GiveBack) error {
	err := c.Store.GiveBack(ctx, g)
	c.took("give_back", err)
	return err
}

func (c *countingStore) Get(ctx context.Context, incarnation string) (Item, error) {
	item, err := c.Store.Get(ctx, incarnation)
	c.took("get", err)
	return item, err
}

func (c *countingStore) GetAll(ctx context.Context, incarnations []string) (map[string]Item, error) {
	items, err := c.Store.GetAll(ctx, incarnations)
	c.took("get_all", err)
	return items, err
}

func (c *countingStore) Put(ctx context.Context, item Item, ifRev int64) error {
	err := c.Store.Put(ctx, item, ifRev)
	c.took("put", err)
	return err
}

func (c *countingStore) Delete(ctx context.Context, incarnation string, ifRev int64) error {
	err := c.Store.Delete(ctx, incarnation, ifRev)
	c.took("delete", err)
	return err
}

func (c *countingStore) Revoke(ctx context.Context, incarnation string, version int64, changed string) (Item, error) {
	item, err := c.Store.Revoke(ctx, incarnation, version, changed)
	c.took("revoke", err)
	return item, err
}

func (c *countingStore) Resolve(ctx context.Context, name Name) (Entry, error) {
	e, err := c.Store.Resolve(ctx, name)
	c.took("resolve", err)
	return e, err
}

func (c *countingStore) Names(ctx context.Context, database string) ([]Entry, error) {
	entries, err := c.Store.Names(ctx, database)
	c.took("names", err)
	return entries, err
}

func (c *countingStore) PutName(ctx context.Context, e Entry) error {
	err := c.Store.PutName(ctx, e)
	c.took("put_name", err)
	return err
}

func (c *countingStore) DeleteName(ctx context.Context, name Name, incarnation string) error {
	err := c.Store.DeleteName(ctx, name, incarnation)
	c.took("delete_name", err)
	return err
}

func (c *countingStore) Feed(ctx context.Context) (Feed, error) {
	feed, err := c.Store.Feed(ctx)
	c.took("feed", err)
	return feed, err
}

func (c *countingStore) Announce(ctx context.Context, a Announcement) (int64, error) {
	rev, err := c.Store.Announce(ctx, a)
	c.took("announce", err)
	return rev, err
}

func (c *countingStore) Members(ctx context.Context) ([]Member, error) {
	members, err := c.Store.Members(ctx)
	c.took("members", err)
	return members, err
}

func (c *countingStore) PutMember(ctx context.Context, m Member, ifToken string) error {
	err := c.Store.PutMember(ctx, m, ifToken)
	c.took("put_member", err)
	return err
}

func (c *countingStore) DeleteMember(ctx context.Context, id, token string) error {
	err := c.Store.DeleteMember(ctx, id, token)
	c.took("delete_member", err)
	return err
}

func (c *countingStore) NextOID(ctx context.Context) (uint32, error) {
	oid, err := c.Store.NextOID(ctx)
	c.took("next_oid", err)
	return oid, err
}
