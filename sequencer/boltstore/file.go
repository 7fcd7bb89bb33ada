package boltstore

import (
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
)

const (
	// lockTimeout is how long opening waits for another process to let go of the file.
	lockTimeout = 3 * time.Second
	// maxGroup bounds the writes that share a transaction.
	maxGroup = 1000
)

var errClosed = errors.New("boltstore: closed")

// file is a bbolt file of which one bucket is used. Writes that come at the same time share a transaction.
type file struct {
	db     *bbolt.DB
	bucket []byte

	// also, when it is set, runs at the end of every transaction, and committed after it, before anybody is answered. They
	// are set before start.
	also      func(*bbolt.Bucket) error
	committed func() error

	// writes go to the one goroutine that commits them, until stop is closed; stopped is closed when it has ended.
	writes  chan *write
	stop    chan struct{}
	stopped chan struct{}
	once    sync.Once
}

// write is one caller's part of a transaction.
type write struct {
	// apply reads and writes. An error of its own means that it wrote nothing.
	apply func(*bbolt.Bucket) error
	err   error
	done  chan struct{}
}

// openFile opens the file at path, which is made if it does not exist (mode 0600, its folders 0700), and makes sure that a
// new one is on disk. prepare gets the bucket.
func openFile(path string, bucket []byte, prepare func(*bbolt.Bucket) error) (*file, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("cannot create the folder of the bolt file: %w", err)
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockTimeout, FreelistType: bbolt.FreelistMapType})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("the bolt file %s is held by another process", path)
	}
	if err == nil {
		err = db.Update(func(tx *bbolt.Tx) error {
			if err := checkUse(tx, bucket); err != nil {
				return err
			}
			b, err := tx.CreateBucketIfNotExists(bucket)
			if err != nil {
				return err
			}
			return prepare(b)
		})
		if err == nil {
			err = syncFolder(filepath.Dir(path))
		}
		if err != nil {
			err = errors.Join(err, db.Close())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open the bolt file %s: %w", path, err)
	}
	return &file{
		db:      db,
		bucket:  bucket,
		writes:  make(chan *write, maxGroup),
		stop:    make(chan struct{}),
		stopped: make(chan struct{}),
	}, nil
}

// checkUse refuses a file that is a store as a tier, and the other way round: what it holds would go unseen.
func checkUse(tx *bbolt.Tx, use []byte) error {
	return tx.ForEach(func(name []byte, _ *bbolt.Bucket) error {
		switch {
		case string(name) == string(use):
			return nil
		case string(name) == string(bucket):
			return errors.New("it holds sequences of its own: it is no tier over another store")
		case string(name) == string(tierBucket):
			return errors.New("it is a tier over another store")
		}
		return errors.New("it is no file of nextvald")
	})
}

func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// start starts the goroutine that commits.
func (f *file) start() { go f.commit() }

// Close waits for the writes under way and closes the file. Closing again does nothing.
func (f *file) Close() (err error) {
	f.once.Do(func() {
		close(f.stop)
		<-f.stopped
		err = f.db.Close()
	})
	return err
}

// commit runs the writes: all that wait go into one transaction.
func (f *file) commit() {
	defer close(f.stopped)
	for {
		var group []*write
		select {
		case w := <-f.writes:
			group = append(group, w)
		case <-f.stop:
			return
		}
		for more := true; more && len(group) < maxGroup; {
			select {
			case w := <-f.writes:
				group = append(group, w)
			default:
				more = false
			}
		}
		f.run(group)
	}
}

// run commits a group.
func (f *file) run(group []*write) {
	applied := false
	err := f.db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(f.bucket)
		for _, w := range group {
			w.err = w.apply(b)
			var broken *brokenError
			if errors.As(w.err, &broken) {
				return w.err // it may have written something: nobody's part is kept
			}
		}
		applied = true
		if f.also != nil {
			return f.also(b)
		}
		return nil
	})
	if err == nil && f.committed != nil {
		err = f.committed()
	}
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
func (f *file) update(ctx context.Context, apply func(*bbolt.Bucket) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	w := &write{apply: apply, done: make(chan struct{})}
	select {
	case f.writes <- w:
	case <-ctx.Done():
		return ctx.Err()
	case <-f.stop:
		return errClosed
	}
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", sequencer.ErrUnknownOutcome, ctx.Err())
	case <-f.stopped:
	}
	select {
	case <-w.done:
		return w.err
	default:
		return errClosed // it was never taken up
	}
}

// view runs read in a transaction of its own.
func (f *file) view(ctx context.Context, read func(*bbolt.Bucket) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return f.db.View(func(tx *bbolt.Tx) error { return read(tx.Bucket(f.bucket)) })
}

func broken(err error) error {
	if err == nil {
		return nil
	}
	return &brokenError{err}
}
