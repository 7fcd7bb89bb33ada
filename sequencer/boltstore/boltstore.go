// Package boltstore keeps sequences in a file on one machine: the embedded default, and what a single process needs.
//
// The file belongs to one process at a time. Every write is on disk (fsync) before it is answered; writes that come at the
// same time share one fsync. The file holds one bucket of JSON values under the keys of the stored format, the two halves
// joined by a zero byte.
package boltstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/internal/layout"
)

const (
	// lockTimeout is how long Open waits for another process to let go of the file.
	lockTimeout = 3 * time.Second
	// maxGroup bounds the writes that share a transaction.
	maxGroup = 1000
)

var bucket = []byte("nextvald")

var errClosed = errors.New("boltstore: closed")

// Store is a sequencer.Store in a file.
type Store struct {
	db        *bbolt.DB
	namespace string

	// writes go to the one goroutine that commits them, until stop is closed; stopped is closed when it has ended.
	writes  chan *write
	stop    chan struct{}
	stopped chan struct{}
	once    sync.Once
}

var _ sequencer.Store = (*Store)(nil)

// write is one caller's part of a transaction.
type write struct {
	// apply reads and writes. An error of its own means that it wrote nothing.
	apply func(*bbolt.Bucket) error
	err   error
	done  chan struct{}
}

// Open opens the file at path, which is made if it does not exist (mode 0600, its folders 0700), for one namespace. It
// fails after 3 s when another process holds the file.
func Open(path, namespace string) (*Store, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("cannot create the folder of the bolt file: %w", err)
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockTimeout, FreelistType: bbolt.FreelistMapType})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("the bolt file %s is held by another process", path)
	}
	if err == nil {
		err = prepare(db, path, namespace)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open the bolt file %s: %w", path, err)
	}
	s := &Store{
		db:        db,
		namespace: namespace,
		writes:    make(chan *write, maxGroup),
		stop:      make(chan struct{}),
		stopped:   make(chan struct{}),
	}
	go s.commit()
	return s, nil
}

// prepare makes the bucket, and makes sure that a new file itself is on disk. Who is still a member died without signing
// off, as the file is in nobody else's hands: nobody need wait for its word.
func prepare(db *bbolt.DB, path, namespace string) error {
	err := db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists(bucket)
		if err != nil {
			return err
		}
		members := key(layout.Members(namespace), "")
		for {
			k, _ := b.Cursor().Seek(members)
			if !bytes.HasPrefix(k, members) {
				return nil
			}
			if err := b.Delete(k); err != nil {
				return err
			}
		}
	})
	if err == nil {
		var folder *os.File
		if folder, err = os.Open(filepath.Dir(path)); err == nil {
			err = errors.Join(folder.Sync(), folder.Close())
		}
	}
	if err != nil {
		return errors.Join(err, db.Close())
	}
	return nil
}

// Close waits for the writes under way and closes the file. Closing again does nothing.
func (s *Store) Close() (err error) {
	s.once.Do(func() {
		close(s.stop)
		<-s.stopped
		err = s.db.Close()
	})
	return err
}

// commit runs the writes: all that wait go into one transaction.
func (s *Store) commit() {
	defer close(s.stopped)
	for {
		var group []*write
		select {
		case w := <-s.writes:
			group = append(group, w)
		case <-s.stop:
			return
		}
		for more := true; more && len(group) < maxGroup; {
			select {
			case w := <-s.writes:
				group = append(group, w)
			default:
				more = false
			}
		}
		s.run(group)
	}
}

// run commits a group.
func (s *Store) run(group []*write) {
	applied := false
	err := s.db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucket)
		for _, w := range group {
			w.err = w.apply(b)
			var broken *brokenError
			if errors.As(w.err, &broken) {
				return w.err // it may have written something: nobody's part is kept
			}
		}
		applied = true
		return nil
	})
	for _, w := range group {
		switch {
		case err != nil && !applied:
			w.err = fmt.Errorf("boltstore: %w", err)
		case err != nil && w.err == nil:
			// What the disk kept of a failed commit shows when the file is read again.
			w.err = fmt.Errorf("%w: boltstore: %w", sequencer.ErrUnknownOutcome, err)
		}
		close(w.done)
	}
}

// brokenError is a failure of bbolt inside a transaction.
type brokenError struct{ err error }

func (e *brokenError) Error() string { return e.err.Error() }
func (e *brokenError) Unwrap() error { return e.err }

// update runs apply in a transaction, and returns when it is on disk.
func (s *Store) update(ctx context.Context, apply func(*bbolt.Bucket) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	w := &write{apply: apply, done: make(chan struct{})}
	select {
	case s.writes <- w:
	case <-ctx.Done():
		return ctx.Err()
	case <-s.stop:
		return errClosed
	}
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", sequencer.ErrUnknownOutcome, ctx.Err())
	case <-s.stopped:
	}
	select {
	case <-w.done:
		return w.err
	default:
		return errClosed // it was never taken up
	}
}

// view runs read in a transaction of its own.
func (s *Store) view(ctx context.Context, read func(*bbolt.Bucket) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.db.View(func(tx *bbolt.Tx) error { return read(tx.Bucket(bucket)) })
}

func key(partition, sort string) []byte { return []byte(partition + "\x00" + sort) }

func (s *Store) itemKey(incarnation string) []byte {
	return key(layout.Item(s.namespace, incarnation), layout.Only)
}

func (s *Store) nameKey(n sequencer.Name) []byte {
	return key(layout.Names(s.namespace, n.Database), layout.Name(n))
}

func (s *Store) feedKey() []byte { return key(layout.Feed(s.namespace), layout.Only) }

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
		if ifToken != "" {
			if err := s.checkMember(b, m.ID, ifToken); err != nil {
				return err
			}
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
		if err := s.checkMember(b, id, token); err != nil {
			return err
		}
		return broken(b.Delete(s.memberKey(id)))
	})
}

// checkMember compares a member's token with the one expected.
func (s *Store) checkMember(b *bbolt.Bucket, id, token string) error {
	value := b.Get(s.memberKey(id))
	if value == nil {
		return sequencer.ErrNotFound
	}
	m, err := decodeMember(id, value)
	if err == nil && m.Token != token {
		err = sequencer.ErrNotFound
	}
	return err
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

func broken(err error) error {
	if err == nil {
		return nil
	}
	return &brokenError{err}
}
