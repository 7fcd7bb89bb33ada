package boltstore

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"go.etcd.io/bbolt"

	"github.com/nextvald/nextvald/sequencer"
)

var tierBucket = []byte("nextvald-tier")

// identity is what a tier's file says of itself.
type identity struct {
	ID string `json:"id"`
	// Token is that of the mark in the store, by the last opening. Tried are those that openings tried to give it since, and
	// of which any may be there.
	Token string   `json:"token"`
	Tried []string `json:"tried,omitempty"`
	// Open: the file was not closed since. Its blocks are good only with a witness.
	Open bool `json:"open"`
}

// mark is the id of the tier's mark among the members of the store beneath.
func (i identity) mark() string { return "tier~" + i.ID }

// openAttempts is how often the store is asked to take the mark while it fails.
const openAttempts = 3

// OpenTier opens the file at path, which is made if it does not exist (mode 0600, its folders 0700), over a store, which
// Close closes; when OpenTier fails it stays open. It fails after 3 s when another process holds the file, and when the
// store cannot be reached.
func OpenTier(ctx context.Context, path string, over sequencer.Store, cfg TierConfig) (*Tier, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Multiple == 0 {
		cfg.Multiple = defaultMultiple
	}
	if cfg.Multiple < 1 || cfg.Multiple > maxLease {
		return nil, fmt.Errorf("a tier cannot lease %d times what is asked for", cfg.Multiple)
	}
	t := &Tier{Store: over, log: cfg.Logger, multiple: cfg.Multiple, holdings: map[string]*holding{}}
	t.term.Store(1)
	file, err := openFile(path, tierBucket, t.load)
	if err != nil {
		return nil, err
	}
	t.file = file
	file.also, file.committed = t.count, t.testify
	file.start()
	if err := t.begin(ctx, cfg.WitnessFolder); err != nil {
		if t.witness != nil {
			err = errors.Join(err, t.witness.f.Close())
		}
		return nil, errors.Join(fmt.Errorf("cannot open the tier %s: %w", path, err), file.Close())
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return t, nil
}

// load reads the file.
func (t *Tier) load(b *bbolt.Bucket) error {
	if text := b.Get(identityKey); text != nil {
		if err := json.Unmarshal(text, &t.self); err != nil {
			return fmt.Errorf("tier: identity: %w", err)
		}
	}
	t.writes = decodeWrites(b.Get(writesKey))
	c := b.Cursor()
	for k, v := c.Seek([]byte(recordPrefix)); bytes.HasPrefix(k, []byte(recordPrefix)); k, v = c.Next() {
		incarnation, _ := parseRecordKey(k)
		r, err := decodeRecord(incarnation, v)
		if err != nil {
			return err
		}
		t.holdings[incarnation] = newHolding(r)
	}
	return nil
}

// count counts a transaction, in its course, and testify has the witness note it.
func (t *Tier) count(b *bbolt.Bucket) error {
	t.writes = decodeWrites(b.Get(writesKey)) + 1
	return b.Put(writesKey, binary.BigEndian.AppendUint64(nil, t.writes))
}

func (t *Tier) testify() error {
	if t.witness == nil {
		return nil
	}
	err := t.witness.saw(t.writes)
	if err != nil && t.witness.remove() == nil {
		t.log.Error("the tier goes on without its witness: the blocks of a process that is killed are lost", "error", err)
		t.witness, err = nil, nil
	}
	return err // and nothing is served, lest it vouch for an older copy
}

func decodeWrites(value []byte) uint64 {
	if len(value) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(value)
}

// begin makes the file this process's own: it is the one that was used last, or its blocks are discarded.
func (t *Tier) begin(ctx context.Context, folder string) error {
	if folder == "" {
		folder = "/dev/shm"
		if info, err := os.Stat(folder); err != nil || !info.IsDir() {
			t.log.Warn("no folder for a witness: the blocks of a process that is killed are lost", "folder", folder)
			folder = "-"
		}
	}
	if t.self.ID != "" {
		fault, err := t.resume(ctx, folder)
		if err != nil || fault == "" {
			return err
		}
		if len(t.holdings) > 0 {
			t.log.Warn("the blocks in the tier's file are discarded", "because", fault, "sequences", len(t.holdings))
		}
	}
	return t.anew(ctx, folder)
}

// resume goes on with what the file holds. fault says why it may not.
func (t *Tier) resume(ctx context.Context, folder string) (fault string, err error) {
	var found testimony
	if folder != "-" {
		t.witness, found, err = openWitness(folder, t.self.ID)
		if errors.Is(err, errWitnessed) {
			return err.Error(), nil
		}
		if err != nil {
			return "", fmt.Errorf("the witness of the tier: %w", err)
		}
		t.witness.token = t.self.Token
	}
	if t.self.Open && !found.vouches(t.writes, t.self.Token) {
		return "it was not closed, and nothing vouches that it is the one that was used last", t.dismiss(ctx)
	}
	// Whoever opens a copy of the file from here on finds that it was not closed.
	next := t.self
	token := newToken()
	next.Open, next.Tried = true, append(slices.Clone(t.self.Tried), token)
	if err := t.rename(ctx, next); err != nil {
		return "", err
	}
	raised := false
	for _, old := range append([]string{t.self.Token}, t.self.Tried[:len(t.self.Tried)-1]...) {
		if old == "" {
			continue // which would raise any
		}
		if raised, err = t.raise(ctx, token, old); raised || err != nil {
			break
		}
	}
	if err != nil {
		return "", err
	}
	if !raised {
		return "the store's mark says that another copy of it was used since", t.dismiss(ctx)
	}
	return "", t.settle(ctx, token)
}

// anew begins with an empty file under a new name.
func (t *Tier) anew(ctx context.Context, folder string) (err error) {
	self := identity{ID: newToken(), Open: true}
	if folder != "-" {
		if t.witness, _, err = openWitness(folder, self.ID); err != nil {
			return fmt.Errorf("the witness of the tier: %w", err)
		}
	}
	discarded := t.holdings
	t.holdings = map[string]*holding{}
	err = t.file.update(ctx, func(b *bbolt.Bucket) error {
		for incarnation := range discarded {
			if err := b.Delete(recordKey(incarnation)); err != nil {
				return broken(err)
			}
		}
		return nil
	})
	if err == nil {
		err = t.rename(ctx, self)
	}
	if err != nil {
		return err
	}
	token := newToken()
	if _, err := t.raise(ctx, token, ""); err != nil {
		return err
	}
	return t.settle(ctx, token)
}

// raise gives the mark in the store a new token, on the condition that it has the old one; empty stands for any. It reports
// whether it did.
func (t *Tier) raise(ctx context.Context, token, old string) (bool, error) {
	var lost error
	for n := 1; ; n++ {
		err := t.Store.PutMember(ctx, sequencer.Member{ID: t.self.mark(), Token: token}, old)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, sequencer.ErrNotFound) && lost == nil:
			return false, nil
		case errors.Is(err, sequencer.ErrUnknownOutcome):
			lost = err
		}
		if lost != nil {
			// A refusal may be the work of the write before it.
			members, readErr := t.Store.Members(ctx)
			has := func(m sequencer.Member) bool { return m.ID == t.self.mark() && m.Token == token }
			switch {
			case readErr == nil && slices.ContainsFunc(members, has):
				return true, nil
			case readErr == nil && errors.Is(err, sequencer.ErrNotFound):
				return false, nil
			}
		}
		if n == openAttempts || ctx.Err() != nil {
			return false, fmt.Errorf("the store does not take the tier's mark: %w", err)
		}
		select {
		case <-time.After(firstPause << n):
		case <-ctx.Done():
		}
	}
}

// dismiss lets go of the witness, and of the mark as far as it is this file's, before the file gets a new name.
func (t *Tier) dismiss(ctx context.Context) error {
	for _, token := range append([]string{t.self.Token}, t.self.Tried...) {
		_ = t.Store.DeleteMember(ctx, t.self.mark(), token) // else it stays, and does no harm
	}
	if t.witness == nil {
		return nil
	}
	w := t.witness
	t.witness = nil
	return w.remove()
}

// settle notes the token by which the store knows the file, and has the witness begin.
func (t *Tier) settle(ctx context.Context, token string) error {
	next := t.self
	next.Token, next.Tried = token, nil
	if t.witness != nil {
		t.witness.token = token
	}
	return t.rename(ctx, next)
}

// rename writes what the file says of itself.
func (t *Tier) rename(ctx context.Context, self identity) error {
	text, err := json.Marshal(self)
	if err != nil {
		return err
	}
	err = t.file.update(ctx, func(b *bbolt.Bucket) error { return broken(b.Put(identityKey, text)) })
	if err == nil {
		t.self = self
	}
	return err
}

// shut notes that the file was closed, so that whoever opens it next needs no witness.
func (t *Tier) shut() error {
	next := t.self
	next.Open = false
	if err := t.rename(context.Background(), next); err != nil {
		if t.witness != nil {
			err = errors.Join(err, t.witness.f.Close()) // and let it vouch
		}
		return err
	}
	if t.witness == nil {
		return nil
	}
	return t.witness.remove()
}

func newToken() string {
	b := make([]byte, 12)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
