// Package memstore keeps sequences in the memory of one process: for tests, and for trying things out. Nothing survives
// the process.
package memstore

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/nextvald/nextvald/sequencer"
)

// Store is a sequencer.Store in memory. Several registries may share one, as several processes share a table.
type Store struct {
	mu      sync.Mutex
	items   map[string]sequencer.Item
	names   map[sequencer.Name]sequencer.Entry
	members map[string]sequencer.Member
	feed    sequencer.Feed
	oid     int64 // the last one given
}

var _ sequencer.LocalStore = (*Store)(nil)

// New returns an empty store.
func New() *Store {
	return &Store{
		items:   map[string]sequencer.Item{},
		names:   map[sequencer.Name]sequencer.Entry{},
		members: map[string]sequencer.Member{},
		oid:     sequencer.MaxOID + 1,
	}
}

// lock begins a request, unless its caller's time is up.
func (s *Store) lock(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		s.mu.Lock()
	}
	return err
}

// Lease implements sequencer.Leaser.
func (s *Store) Lease(ctx context.Context, known sequencer.Item, count int64) (sequencer.Lease, error) {
	if err := s.lock(ctx); err != nil {
		return sequencer.Lease{}, err
	}
	defer s.mu.Unlock()
	item, ok := s.items[known.Incarnation]
	if !ok {
		return sequencer.Lease{}, sequencer.ErrNotFound
	}
	lease, err := item.Grant(known.Version, count)
	if err == nil {
		item.Apply(lease)
		s.items[item.Incarnation] = item
	}
	return lease, err
}

// GiveBack implements sequencer.Leaser.
func (s *Store) GiveBack(ctx context.Context, g sequencer.GiveBack) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	item, ok := s.items[g.Incarnation]
	if !ok {
		return sequencer.ErrNotFound
	}
	if err := item.Return(g); err != nil {
		return err
	}
	s.items[g.Incarnation] = item
	return nil
}

// Get implements sequencer.Store.
func (s *Store) Get(ctx context.Context, incarnation string) (sequencer.Item, error) {
	if err := s.lock(ctx); err != nil {
		return sequencer.Item{}, err
	}
	defer s.mu.Unlock()
	item, ok := s.items[incarnation]
	if !ok {
		return sequencer.Item{}, sequencer.ErrNotFound
	}
	return item.Clone(), nil
}

// GetAll implements sequencer.Store.
func (s *Store) GetAll(ctx context.Context, incarnations []string) (map[string]sequencer.Item, error) {
	return sequencer.GetEach(ctx, incarnations, s.Get)
}

// Put implements sequencer.Store.
func (s *Store) Put(ctx context.Context, item sequencer.Item, ifRev int64) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if err := s.check(item.Incarnation, ifRev); err != nil {
		return err
	}
	item = item.Clone()
	item.Rev = ifRev + 1
	if err := item.Check(); err != nil {
		return err
	}
	s.items[item.Incarnation] = item
	return nil
}

// Delete implements sequencer.Store.
func (s *Store) Delete(ctx context.Context, incarnation string, ifRev int64) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if err := s.check(incarnation, ifRev); err != nil {
		return err
	}
	delete(s.items, incarnation)
	return nil
}

// check compares an item's rev with the one expected; 0 expects that there is no item.
func (s *Store) check(incarnation string, ifRev int64) error {
	item, ok := s.items[incarnation]
	switch {
	case !ok && ifRev != 0:
		return sequencer.ErrNotFound
	case ok && item.Rev != ifRev:
		return &sequencer.Conflict{Item: item.Clone()}
	}
	return nil
}

// Revoke implements sequencer.Store.
func (s *Store) Revoke(ctx context.Context, incarnation string, version int64, changed string) (sequencer.Item, error) {
	if err := s.lock(ctx); err != nil {
		return sequencer.Item{}, err
	}
	defer s.mu.Unlock()
	item, ok := s.items[incarnation]
	if !ok {
		return sequencer.Item{}, sequencer.ErrNotFound
	}
	if err := item.Revoke(version, changed); err != nil {
		return sequencer.Item{}, err
	}
	s.items[incarnation] = item
	return item.Clone(), nil
}

// Resolve implements sequencer.Store.
func (s *Store) Resolve(ctx context.Context, name sequencer.Name) (sequencer.Entry, error) {
	if err := s.lock(ctx); err != nil {
		return sequencer.Entry{}, err
	}
	defer s.mu.Unlock()
	e, ok := s.names[name]
	if !ok {
		return sequencer.Entry{}, sequencer.ErrNotFound
	}
	return e, nil
}

// Names implements sequencer.Store.
func (s *Store) Names(ctx context.Context, database string) ([]sequencer.Entry, error) {
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	var entries []sequencer.Entry
	for n, e := range s.names {
		if n.Database == database {
			entries = append(entries, e)
		}
	}
	return entries, nil
}

// PutName implements sequencer.Store.
func (s *Store) PutName(ctx context.Context, e sequencer.Entry) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if _, ok := s.names[e.Name]; ok {
		return sequencer.ErrExists
	}
	s.names[e.Name] = e
	return nil
}

// DeleteName implements sequencer.Store.
func (s *Store) DeleteName(ctx context.Context, name sequencer.Name, incarnation string) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if s.names[name].Incarnation != incarnation {
		return sequencer.ErrNotFound
	}
	delete(s.names, name)
	return nil
}

// Feed implements sequencer.Store.
func (s *Store) Feed(ctx context.Context) (sequencer.Feed, error) {
	if err := s.lock(ctx); err != nil {
		return sequencer.Feed{}, err
	}
	defer s.mu.Unlock()
	return s.feed, nil
}

// Announce implements sequencer.Store.
func (s *Store) Announce(ctx context.Context, a sequencer.Announcement) (int64, error) {
	if err := s.lock(ctx); err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	s.feed.Rev++
	if a.Names {
		s.feed.Names++
	}
	if a.Incarnation != "" {
		topic := sequencer.Topic(a.Incarnation)
		s.feed.Topics[topic]++
		s.feed.Latest[topic] = a.Incarnation
	}
	return s.feed.Rev, nil
}

// Members implements sequencer.Store.
func (s *Store) Members(ctx context.Context) ([]sequencer.Member, error) {
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.members)), nil
}

// PutMember implements sequencer.Store.
func (s *Store) PutMember(ctx context.Context, m sequencer.Member, ifToken string) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	stored, ok := s.members[m.ID]
	if ifToken != "" && stored.Token != ifToken || ok && !m.Follows(stored) {
		return sequencer.ErrNotFound
	}
	s.members[m.ID] = m
	return nil
}

// DeleteMember implements sequencer.Store.
func (s *Store) DeleteMember(ctx context.Context, id, token string) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if m, ok := s.members[id]; !ok || m.Token != token {
		return sequencer.ErrNotFound
	}
	delete(s.members, id)
	return nil
}

// NextOID implements sequencer.Store.
func (s *Store) NextOID(ctx context.Context) (uint32, error) {
	if err := s.lock(ctx); err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	s.oid--
	s.feed.Rev++
	return sequencer.CheckOID(s.oid)
}

// Local implements sequencer.LocalStore.
func (s *Store) Local() {}

// Close implements sequencer.Store. The contents stay for others who share the store.
func (s *Store) Close() error { return nil }
