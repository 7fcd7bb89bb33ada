// Package boltstore keeps sequences in a file on one machine: the embedded default, and what a single process needs. Over
// another store, a Tier keeps large blocks of that store's sequences in a file.
//
// The file belongs to one process at a time. Every write is on disk (fsync) before it is answered; writes that come at the
// same time share one fsync. The file holds one bucket of JSON values under the keys of the stored format, the two halves
// joined by a zero byte.
package boltstore

import (
	"bytes"
	"context"
	"errors"

	"go.etcd.io/bbolt"

	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/internal/layout"
)

var bucket = []byte("nextvald")

// Store is a sequencer.Store in a file.
type Store struct {
	*file
	namespace string
}

var _ sequencer.LocalStore = (*Store)(nil)

// Open opens the file at path, which is made if it does not exist (mode 0600, its folders 0700), for one namespace. It
// fails after 3 s when another process holds the file.
func Open(path, namespace string) (*Store, error) {
	f, err := openFile(path, bucket, func(b *bbolt.Bucket) error { return forgetMembers(b, namespace) })
	if err != nil {
		return nil, err
	}
	f.start()
	return &Store{file: f, namespace: namespace}, nil
}

// forgetMembers removes who is still a member: it died without signing off, as the file is in nobody else's hands, and
// nobody need wait for its word. Marks of durable tiers stay.
func forgetMembers(b *bbolt.Bucket, namespace string) error {
	prefix := key(layout.Members(namespace), "")
	var dead [][]byte
	c := b.Cursor()
	for k, v := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, v = c.Next() {
		if m, err := decodeMember("", v); err != nil || !m.Mark() {
			dead = append(dead, bytes.Clone(k))
		}
	}
	for _, k := range dead {
		if err := b.Delete(k); err != nil {
			return err
		}
	}
	return nil
}

func key(partition, sort string) []byte { return []byte(partition + "\x00" + sort) }

func (s *Store) itemKey(incarnation string) []byte {
	return key(layout.Item(s.namespace, incarnation), layout.Only)
}

func (s *Store) nameKey(n sequencer.Name) []byte {
	return key(layout.Names(s.namespace, n.Database), layout.Name(n))
}

func (s *Store) feedKey() []byte { return key(layout.Feed(s.namespace), layout.Only) }

// Local implements sequencer.LocalStore.
func (s *Store) Local() {}

// Lease implements sequencer.Leaser.
func (s *Store) Lease(ctx context.Context, known sequencer.Item, count int64) (lease sequencer.Lease, err error) {
	var l sequencer.Lease
	err = s.update(ctx, func(b *bbolt.Bucket) error {
		item, err := s.load(b, known.Incarnation)
		if err != nil {
			return err
		}
		if l, err = item.Grant(known.Version, count); err != nil {
			return err
		}
		item.Apply(l)
		return s.save(b, item)
	})
	if err != nil {
		return sequencer.Lease{}, err // and not l, which the transaction may still be writing
	}
	return l, nil
}

// GiveBack implements sequencer.Leaser.
func (s *Store) GiveBack(ctx context.Context, g sequencer.GiveBack) error {
	return s.update(ctx, func(b *bbolt.Bucket) error {
		item, err := s.load(b, g.Incarnation)
		if err != nil {
			return err
		}
		if err := item.Return(g); err != nil {
			return err
		}
		return s.save(b, item)
	})
}

// Get implements sequencer.Store.
func (s *Store) Get(ctx context.Context, incarnation string) (item sequencer.Item, err error) {
	err = s.view(ctx, func(b *bbolt.Bucket) (err error) {
		item, err = s.load(b, incarnation)
		return err
	})
	return item, err
}

// GetAll implements sequencer.Store.
func (s *Store) GetAll(ctx context.Context, incarnations []string) (map[string]sequencer.Item, error) {
	items := make(map[string]sequencer.Item, len(incarnations))
	err := s.view(ctx, func(b *bbolt.Bucket) error {
		for _, incarnation := range incarnations {
			item, err := s.load(b, incarnation)
			switch {
			case errors.Is(err, sequencer.ErrNotFound):
			case err != nil:
				return err
			default:
				items[incarnation] = item
			}
		}
		return nil
	})
	return items, err
}

// Put implements sequencer.Store.
func (s *Store) Put(ctx context.Context, item sequencer.Item, ifRev int64) error {
	item = item.Clone()
	item.Rev = ifRev + 1
	if err := item.Check(); err != nil {
		return err
	}
	return s.update(ctx, func(b *bbolt.Bucket) error {
		if err := s.check(b, item.Incarnation, ifRev); err != nil {
			return err
		}
		return s.save(b, item)
	})
}

// Delete implements sequencer.Store.
func (s *Store) Delete(ctx context.Context, incarnation string, ifRev int64) error {
	return s.update(ctx, func(b *bbolt.Bucket) error {
		if err := s.check(b, incarnation, ifRev); err != nil {
			return err
		}
		return broken(b.Delete(s.itemKey(incarnation)))
	})
}

// check compares an item's rev with the one expected; 0 expects that there is no item.
func (s *Store) check(b *bbolt.Bucket, incarnation string, ifRev int64) error {
	item, err := s.load(b, incarnation)
	switch {
	case errors.Is(err, sequencer.ErrNotFound) && ifRev == 0:
		return nil
	case err != nil:
		return err
	case item.Rev != ifRev:
		return &sequencer.Conflict{Item: item}
	}
	return nil
}

// load reads an item.
func (s *Store) load(b *bbolt.Bucket, incarnation string) (sequencer.Item, error) {
	value := b.Get(s.itemKey(incarnation))
	if value == nil {
		return sequencer.Item{}, sequencer.ErrNotFound
	}
	return decodeItem(incarnation, value)
}

// save writes an item.
func (s *Store) save(b *bbolt.Bucket, item sequencer.Item) error {
	value, err := encodeItem(item)
	if err != nil {
		return err
	}
	return broken(b.Put(s.itemKey(item.Incarnation), value))
}

// Revoke implements sequencer.Store.
func (s *Store) Revoke(ctx context.Context, incarnation string, version int64, changed string) (sequencer.Item, error) {
	var item sequencer.Item
	err := s.update(ctx, func(b *bbolt.Bucket) (err error) {
		if item, err = s.load(b, incarnation); err != nil {
			return err
		}
		if err := item.Revoke(version, changed); err != nil {
			return err
		}
		return s.save(b, item)
	})
	if err != nil {
		return sequencer.Item{}, err
	}
	return item, nil
}

// Resolve implements sequencer.Store.
func (s *Store) Resolve(ctx context.Context, name sequencer.Name) (e sequencer.Entry, err error) {
	err = s.view(ctx, func(b *bbolt.Bucket) (err error) {
		value := b.Get(s.nameKey(name))
		if value == nil {
			return sequencer.ErrNotFound
		}
		e, err = decodeEntry(name, value)
		return err
	})
	return e, err
}

// Names implements sequencer.Store.
func (s *Store) Names(ctx context.Context, database string) (entries []sequencer.Entry, err error) {
	prefix := key(layout.Names(s.namespace, database), "")
	err = s.view(ctx, func(b *bbolt.Bucket) error {
		c := b.Cursor()
		for k, v := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, v = c.Next() {
			name, err := layout.ParseName(database, string(k[len(prefix):]))
			if err != nil {
				return err
			}
			e, err := decodeEntry(name, v)
			if err != nil {
				return err
			}
			entries = append(entries, e)
		}
		return nil
	})
	return entries, err
}

// PutName implements sequencer.Store.
func (s *Store) PutName(ctx context.Context, e sequencer.Entry) error {
	return s.update(ctx, func(b *bbolt.Bucket) error {
		k := s.nameKey(e.Name)
		if b.Get(k) != nil {
			return sequencer.ErrExists
		}
		value, err := encodeEntry(e)
		if err != nil {
			return err
		}
		return broken(b.Put(k, value))
	})
}

// DeleteName implements sequencer.Store.
func (s *Store) DeleteName(ctx context.Context, name sequencer.Name, incarnation string) error {
	return s.update(ctx, func(b *bbolt.Bucket) error {
		k := s.nameKey(name)
		value := b.Get(k)
		if value == nil {
			return sequencer.ErrNotFound
		}
		e, err := decodeEntry(name, value)
		if err != nil {
			return err
		}
		if e.Incarnation != incarnation {
			return sequencer.ErrNotFound
		}
		return broken(b.Delete(k))
	})
}

// Feed implements sequencer.Store.
func (s *Store) Feed(ctx context.Context) (feed sequencer.Feed, err error) {
	err = s.view(ctx, func(b *bbolt.Bucket) error {
		f, err := decodeFeed(b.Get(s.feedKey()))
		feed = f.feed()
		return err
	})
	return feed, err
}

// Announce implements sequencer.Store.
func (s *Store) Announce(ctx context.Context, a sequencer.Announcement) (int64, error) {
	f, err := s.changeFeed(ctx, func(f *feedValue) error {
		if a.Names {
			f.Names++
		}
		if a.Incarnation != "" {
			topic := sequencer.Topic(a.Incarnation)
			f.Topics[layout.Topic(topic)]++
			f.Latest[layout.Latest(topic)] = a.Incarnation
		}
		return nil
	})
	return f.Rev, err
}

func (s *Store) memberKey(id string) []byte {
	return key(layout.Members(s.namespace), layout.Member(id))
}

// Members implements sequencer.Store.
func (s *Store) Members(ctx context.Context) (members []sequencer.Member, err error) {
	prefix := key(layout.Members(s.namespace), "")
	err = s.view(ctx, func(b *bbolt.Bucket) error {
		c := b.Cursor()
		for k, v := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, v = c.Next() {
			id, err := layout.ParseMember(string(k[len(prefix):]))
			if err != nil {
				return err
			}
			m, err := decodeMember(id, v)
			if err != nil {
				return err
			}
			members = append(members, m)
		}
		return nil
	})
	return members, err
}

// PutMember implements sequencer.Store.
func (s *Store) PutMember(ctx context.Context, m sequencer.Member, ifToken string) error {
	return s.update(ctx, func(b *bbolt.Bucket) error {
		stored, err := s.member(b, m.ID)
		switch {
		case errors.Is(err, sequencer.ErrNotFound) && ifToken == "":
		case err != nil:
			return err
		case ifToken != "" && stored.Token != ifToken, !m.Follows(stored):
			return sequencer.ErrNotFound
		}
		value, err := encodeMember(m)
		if err != nil {
			return err
		}
		return broken(b.Put(s.memberKey(m.ID), value))
	})
}

// DeleteMember implements sequencer.Store.
func (s *Store) DeleteMember(ctx context.Context, id, token string) error {
	return s.update(ctx, func(b *bbolt.Bucket) error {
		stored, err := s.member(b, id)
		if err == nil && stored.Token != token {
			err = sequencer.ErrNotFound
		}
		if err != nil {
			return err
		}
		return broken(b.Delete(s.memberKey(id)))
	})
}

// member reads a member.
func (s *Store) member(b *bbolt.Bucket, id string) (sequencer.Member, error) {
	value := b.Get(s.memberKey(id))
	if value == nil {
		return sequencer.Member{}, sequencer.ErrNotFound
	}
	return decodeMember(id, value)
}

// NextOID implements sequencer.Store.
func (s *Store) NextOID(ctx context.Context) (uint32, error) {
	f, err := s.changeFeed(ctx, func(f *feedValue) error {
		f.OID--
		_, err := sequencer.CheckOID(f.OID)
		return err
	})
	return uint32(f.OID), err
}

// changeFeed changes the feed and returns what it became.
func (s *Store) changeFeed(ctx context.Context, change func(*feedValue) error) (feedValue, error) {
	var f feedValue
	err := s.update(ctx, func(b *bbolt.Bucket) (err error) {
		if f, err = decodeFeed(b.Get(s.feedKey())); err != nil {
			return err
		}
		f.Rev++
		if err := change(&f); err != nil {
			return err
		}
		value, err := encodeFeed(f)
		if err != nil {
			return err
		}
		return broken(b.Put(s.feedKey(), value))
	})
	if err != nil {
		return feedValue{}, err
	}
	return f, nil
}
