package sequencer

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"
)

// Registry serves the sequences of one store. All methods are safe for concurrent use.
type Registry struct {
	cfg   Config
	tuned atomic.Pointer[Config] // cfg, with what Tune has changed of it
	store *countingStore

	// ctx ends when the registry is closed, after the remainders were given back; what runs in the background uses it.
	ctx    context.Context
	cancel context.CancelFunc
	tasks  tasks
	member membership
	peers  peers
	holder atomic.Pointer[Holder]
	// leasing is how long leases take.
	leasing latency

	// bindings are the names known to exist.
	bindings overlay[Name, binding]
	lookups  singleflight.Group

	mu     sync.Mutex
	closed bool
	// epoch counts own changes of names and reads of all names, so that what was read before one is not taken for newer.
	epoch     uint64
	unboundAt uint64               // the epoch of the last own DROP or RENAME
	sequences map[string]*Sequence // by incarnation
	absent    map[Name]time.Time   // names that do not exist, and until when to believe it
	databases map[string]*database
	// dead are incarnations known to have ended, which never come back but from a backup.
	dead map[string]bool
	// unsaid are announcements that the store did not take yet.
	unsaid []Announcement
	// former are the counts of sequences that are gone.
	former Stats
}

// tasks are the goroutines that Close waits for. They have a lock of their own, as they are started under others.
type tasks struct {
	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup
}

// binding is a name that exists.
type binding struct {
	seq   *Sequence
	epoch uint64 // at the start of the read or write that found it
}

var errShuttingDown = &Error{
	Code:    codeShuttingDown,
	Message: "the sequence service is shutting down",
	Hint:    "Connect again.",
}

// Open starts a registry on a store. The store stays the caller's, to be closed after the registry.
func Open(ctx context.Context, store Store, cfg Config) (*Registry, error) {
	_, cfg.local = store.(LocalStore)
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	r := &Registry{
		cfg:       cfg,
		store:     newCountingStore(store),
		sequences: map[string]*Sequence{},
		absent:    map[Name]time.Time{},
		databases: map[string]*database{},
		dead:      map[string]bool{},
	}
	r.tuned.Store(&r.cfg)
	r.member.init(cfg.MemberID)
	r.peers.init()
	check, stop := context.WithTimeout(ctx, cfg.StoreTimeout)
	defer stop()
	feed, err := r.store.Feed(check)
	if err != nil {
		return nil, fmt.Errorf("sequencer: cannot read the store's feed: %w", err)
	}
	r.ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	r.member.followed.Store(feed.Rev)
	r.spawn(r.succeed)
	r.spawn(func() { r.watch(feed) })
	r.spawn(r.tick)
	return r, nil
}

// Close stops serving: every call fails with ErrShuttingDown, and what is left of the blocks is given back to the store,
// so that the next process goes on without a gap. It waits until all goroutines have ended; ctx bounds the time for giving
// back. Closing again does nothing.
func (r *Registry) Close(ctx context.Context) error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		r.tasks.wg.Wait()
		return nil
	}
	r.closed = true
	r.tasks.mu.Lock()
	r.tasks.closed = true
	r.tasks.mu.Unlock()
	var open []*Sequence
	for _, s := range r.sequences {
		open = append(open, s)
	}
	r.mu.Unlock()

	const atOnce = 16
	var g errgroup.Group
	g.SetLimit(atOnce)
	for _, s := range open {
		g.Go(func() error {
			err := s.freeze(ctx)
			if err == nil {
				err = s.giveBack(ctx)
			}
			s.mu.Lock()
			s.end(errShuttingDown)
			s.mu.Unlock()
			if errors.Is(err, ErrUndefined) {
				return nil
			}
			return err
		})
	}
	err := g.Wait()
	// Whatever was not given back is a gap, and nobody need wait for this process any more.
	if leaveErr := r.leave(ctx); err == nil {
		err = leaveErr
	}
	r.cancel()
	r.tasks.wg.Wait()
	if err != nil {
		return fmt.Errorf("sequencer: what was not given back to the store is a gap: %w", err)
	}
	return nil
}

// spawn runs f in a goroutine that Close waits for. It reports whether it did: not when the registry is closed.
func (r *Registry) spawn(f func()) bool {
	r.tasks.mu.Lock()
	defer r.tasks.mu.Unlock()
	if r.tasks.closed {
		return false
	}
	r.tasks.wg.Go(f)
	return true
}

// running returns ErrShuttingDown when the registry is closed.
func (r *Registry) running() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errShuttingDown
	}
	return nil
}

// rest waits, and reports whether to go on after.
func (r *Registry) rest(d time.Duration) bool {
	if d > 0 {
		elapsed, stop := r.cfg.Clock.After(d)
		defer stop()
		select {
		case <-elapsed:
		case <-r.ctx.Done():
		}
	}
	return r.ctx.Err() == nil
}

// tick keeps the rates current.
func (r *Registry) tick() {
	for r.rest(lookEvery) {
		for _, s := range r.open() {
			if s.gone.Load() {
				r.forget(s)
				continue
			}
			s.tick()
		}
	}
}

// open returns the sequences that this process has used.
func (r *Registry) open() []*Sequence {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*Sequence, 0, len(r.sequences))
	for _, s := range r.sequences {
		all = append(all, s)
	}
	return all
}

// Lookup finds a sequence by name. ErrUndefined: it does not exist, as of at most Config.AbsentFor ago. A name that exists
// is remembered until it is known to have gone.
func (r *Registry) Lookup(ctx context.Context, name Name) (*Sequence, error) {
	if s := r.Bound(name); s != nil {
		return s, nil
	}
	if err := r.running(); err != nil {
		return nil, err
	}
	r.mu.Lock()
	until, absent := r.absent[name]
	r.mu.Unlock()
	if absent && r.cfg.Clock.Now().Before(until) {
		return nil, undefined(name)
	}
	// Callers who miss a name at the same time share one read. It is nobody's own, so it does not end with one of them.
	found := r.lookups.DoChan(name.Database+"\x00"+name.Schema+"\x00"+name.Name, func() (any, error) {
		return r.find(name)
	})
	select {
	case result := <-found:
		if result.Err != nil {
			return nil, result.Err
		}
		return result.Val.(*Sequence), nil
	case <-ctx.Done():
		return nil, canceled(ctx.Err())
	}
}

// Bound is Lookup for a name that is remembered, nil for any other. It never waits.
func (r *Registry) Bound(name Name) *Sequence {
	if b := r.bindings.get(name); b.seq != nil && !b.seq.gone.Load() {
		return b.seq
	}
	return nil
}

// find reads a name and the item it points to.
func (r *Registry) find(name Name) (*Sequence, error) {
	ctx, cancel := context.WithTimeout(r.ctx, r.cfg.StoreTimeout)
	defer cancel()
	epoch := r.now()
	entry, item, err := r.resolve(ctx, name)
	if errors.Is(err, ErrNotFound) {
		r.remember(name)
		return nil, undefined(name)
	}
	if err != nil {
		if err := r.running(); err != nil {
			return nil, err
		}
		return nil, storeFailure("look up the sequence", err)
	}
	if r.ended(entry.Incarnation) {
		// What was read may be older than the end; what is read now is not.
		if _, err := r.get(ctx, entry.Incarnation); err == nil {
			return nil, setBack(name, fmt.Errorf("incarnation %s was dropped and is back", entry.Incarnation))
		}
		return nil, undefined(name)
	}
	return r.bind(entry, item, epoch)
}

// resolve reads a name and its item. A name without an item, which a DROP or a RENAME that died may leave, is ErrNotFound.
func (r *Registry) resolve(ctx context.Context, name Name) (Entry, Item, error) {
	entry, err := again(ctx, r, func() (Entry, error) { return r.store.Resolve(ctx, name) })
	if err != nil {
		return Entry{}, Item{}, err
	}
	item, err := r.get(ctx, entry.Incarnation)
	return entry, item, err
}

// now returns the epoch.
func (r *Registry) now() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.epoch
}

// maxAbsent bounds the names remembered not to exist.
const maxAbsent = 10_000

// remember notes that a name does not exist.
func (r *Registry) remember(name Name) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.absent) >= maxAbsent {
		clear(r.absent)
	}
	r.absent[name] = r.cfg.Clock.Now().Add(r.cfg.AbsentFor)
}

// bind returns the sequence of an entry, the same one for the same incarnation, and remembers the name.
func (r *Registry) bind(e Entry, item Item, epoch uint64) (*Sequence, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, errShuttingDown
	}
	s := r.sequences[e.Incarnation]
	if s == nil || s.gone.Load() {
		r.keepCounts(s)
		s = newSequence(r, e, item)
		r.sequences[e.Incarnation] = s
	}
	d := r.databases[e.Name.Database]
	if epoch >= r.unboundAt && (d == nil || epoch >= d.readAt) {
		s.called(e.Name)
		r.bindings.set(e.Name, binding{seq: s, epoch: epoch})
		delete(r.absent, e.Name)
		if d != nil {
			d.add(e)
		}
	}
	return s, nil
}

// maxDead bounds the incarnations remembered to have ended.
const maxDead = 100_000

// ended reports whether an incarnation is known to have ended.
func (r *Registry) ended(incarnation string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sequences[incarnation]
	return r.dead[incarnation] || s != nil && s.gone.Load()
}

// forget removes a sequence that has ended, and its name.
func (r *Registry) forget(s *Sequence) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.dead) >= maxDead {
		clear(r.dead)
	}
	if !r.closed {
		r.dead[s.incarnation] = true
	}
	if r.sequences[s.incarnation] == s {
		r.keepCounts(s)
		delete(r.sequences, s.incarnation)
	}
	if n := s.Name(); r.bindings.get(n).seq == s {
		r.bindings.set(n, binding{})
	}
}

// LookupOID finds a sequence of a database by its OID: the one that the upstream gave for a mirrored one. ErrUndefined.
func (r *Registry) LookupOID(ctx context.Context, database string, oid uint32) (*Sequence, error) {
	r.mu.Lock()
	d := r.databases[database]
	r.mu.Unlock()
	if d != nil {
		if name := d.oids.get(oid); name != (Name{}) {
			if s, err := r.Lookup(ctx, name); err == nil && s.OID() == oid {
				return s, nil
			}
		}
	}
	if d != nil && oid < MaxOID/2 {
		// It is far below any that a namespace gave: the upstream's own, of a sequence that another process may have adopted
		// within the last second.
		return nil, undefined(Name{Name: fmt.Sprint(oid)})
	}
	entries, err := r.List(ctx, database)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.OID == oid {
			return r.Lookup(ctx, e.Name)
		}
	}
	return nil, undefined(Name{Name: fmt.Sprint(oid)})
}

// List returns the names of a database's sequences as the store has them, in no order.
func (r *Registry) List(ctx context.Context, database string) ([]Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.StoreTimeout)
	defer cancel()
	entries, err := again(ctx, r, func() ([]Entry, error) { return r.store.Names(ctx, database) })
	if err != nil {
		return nil, storeFailure("list the sequences", err)
	}
	return entries, nil
}

// Create adds a sequence. ErrDuplicate: the name is taken. The definition is one that Define made.
func (r *Registry) Create(ctx context.Context, name Name, d Definition) (*Sequence, error) {
	if err := d.validate(); err != nil {
		return nil, err
	}
	if err := r.running(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.StoreTimeout)
	defer cancel()
	if _, _, err := r.resolve(ctx, name); err == nil {
		return nil, duplicate(name)
	} else if !errors.Is(err, ErrNotFound) {
		return nil, storeFailure("create the sequence", err)
	}
	oid, err := r.nextOID(ctx)
	if err != nil {
		return nil, storeFailure("create the sequence", err)
	}
	// The item comes first, so that there is no name without one. An item without a name is litter, and harmless.
	now := r.stamp()
	item := Item{
		Incarnation: r.incarnation(), Version: 1, State: Active, Source: FromStore, Kind: Virtual,
		Mode: r.policy(name, d).Mode, Definition: d.stored(), OID: oid, Created: timeOf(now), Changed: now,
	}
	item.place(cursor{last: d.begin()})
	if err := r.put(ctx, item, 0); err != nil {
		return nil, storeFailure("create the sequence", err)
	}
	item.Rev = 1
	entry := Entry{Name: name, Incarnation: item.Incarnation, OID: oid}
	switch err := r.putName(ctx, entry); {
	case errors.Is(err, ErrExists):
		if err := r.store.Delete(ctx, item.Incarnation, item.Rev); err != nil {
			r.cfg.Logger.Warn("an item without a name stays in the store", "incarnation", item.Incarnation, "error", err)
		}
		return nil, duplicate(name)
	case err != nil:
		return nil, storeFailure("create the sequence", err)
	}
	s, err := r.bind(entry, item, r.advance())
	r.announce(ctx, Announcement{Names: true})
	return s, err
}

// Alter changes a sequence's parameters or position: ALTER SEQUENCE name options. Errors are PostgreSQL's.
func (r *Registry) Alter(ctx context.Context, name Name, o Options) error {
	s, err := r.Lookup(ctx, name)
	if err != nil {
		return err
	}
	return s.alter(ctx, o)
}

// Rename gives a sequence another name, schema or both. ErrUndefined; ErrDuplicate: the new name is taken.
func (r *Registry) Rename(ctx context.Context, from, to Name) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.StoreTimeout)
	defer cancel()
	if err := r.running(); err != nil {
		return err
	}
	entry, item, err := r.resolve(ctx, from)
	switch {
	case errors.Is(err, ErrNotFound):
		return undefined(from)
	case err != nil:
		return storeFailure("rename the sequence", err)
	case from == to:
		return duplicate(to)
	}
	renamed := entry
	renamed.Name = to
	switch err := r.putName(ctx, renamed); {
	case errors.Is(err, ErrExists):
		return duplicate(to)
	case err != nil:
		return storeFailure("rename the sequence", err)
	}
	if err := r.deleteName(ctx, entry); err != nil {
		return storeFailure("rename the sequence", err)
	}
	r.unbind(from)
	_, err = r.bind(renamed, item, r.now())
	r.announce(ctx, Announcement{Names: true})
	return err
}

// Drop removes a sequence. ErrUndefined. From then on every call fails with ErrUndefined, in every process that reaches the
// store. A member that does not confirm makes it fail, as Sequence.Set.
func (r *Registry) Drop(ctx context.Context, name Name) error {
	s, err := r.Lookup(ctx, name)
	if err != nil {
		return err
	}
	if err := s.drop(ctx); err != nil {
		return err
	}
	r.unbind(name)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.StoreTimeout)
	defer cancel()
	// The sequence is gone already; a name of nothing, should this fail, is as good as none.
	err = r.deleteName(ctx, Entry{Name: name, Incarnation: s.incarnation})
	r.announce(ctx, Announcement{Names: true, Incarnation: s.incarnation})
	if err != nil {
		r.cfg.Logger.Warn("the name of a dropped sequence stays in the store", "sequence", name.String(), "error", err)
	}
	return nil
}

// advance starts a new epoch and returns it.
func (r *Registry) advance() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.epoch++
	return r.epoch
}

// unbind forgets a name that exists no more.
func (r *Registry) unbind(name Name) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.epoch++
	r.unboundAt = r.epoch
	r.bindings.set(name, binding{})
}

// stamp is the text of Item.Changed.
func (r *Registry) stamp() string {
	return r.cfg.Clock.Now().UTC().Format(time.RFC3339Nano) + "/" + token(8)
}

// timeOf is the time of a stamp, for Item.Created.
func timeOf(stamp string) string {
	t, _, _ := strings.Cut(stamp, "/")
	return t
}

// incarnation makes the id of a new life of a sequence: the time in nanoseconds and 64 random bits, so that ids sort by age.
func (r *Registry) incarnation() string {
	return fmt.Sprintf("%016x", r.cfg.Clock.Now().UnixNano()) + token(8)
}

// token is n random bytes in hexadecimal.
func token(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
