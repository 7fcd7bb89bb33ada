package native

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/nextvald/nextvald/proxy"
	"github.com/nextvald/nextvald/sequencer"
)

const (
	// leastFeed and mostFeed bound the values that a fence is given at once, feedSeconds is how long they should last at the
	// rate of the last block. The range's size may bound them further.
	leastFeed   = 1000
	mostFeed    = 1 << 20
	feedSeconds = 120
	// feedAt is the part of a block, one in feedAt, that is left when the next one is wanted.
	feedAt = 2
	// looksAtOnce bounds the fences that are read by one statement.
	looksAtOnce = 500
	feedTimeout = 20 * time.Second
)

// pace is how long it takes until a fence is looked at again: the least while somebody uses it.
type pace struct{ least, most time.Duration }

var usualPace = pace{least: time.Second, most: 30 * time.Second}

// errFree: the upstream's sequence is not confined any more.
var errFree = errors.New("the sequence is not confined in the upstream")

// errNoShare: the range is too small to give the upstream's sequence any of it.
var errNoShare = errors.New("too little is left of the sequence's range to share it")

// feed confines the upstream's sequence to the next block, of about size values, unless more than one value in feedAt is left
// of the one that it has.
//
// In the order of the steps: values are leased; with the lock in hand, the item says that they are the next fence; that is
// committed; the item says that they are the fence. Whoever finds a next fence sees by the bounds whether it is the fence.
func (h *Handovers) feed(ctx context.Context, e sequencer.Entry, size int64, tries []time.Duration, feedAt int64) error {
	s, err := h.registry.Lookup(ctx, e.Name)
	if err != nil {
		return err
	}
	claim, err := claimBlock(ctx, s, size)
	if err != nil {
		return err
	}
	h.between("leased")
	block := sequencer.Range{First: claim.First, Last: claim.Last()}
	planned := false
	err = h.lockWithin(ctx, e.Name.Database, e.OID, tries, func(ctx context.Context, l *locked) (_ bool, err error) {
		planned, err = false, againstLeases(func() error { return h.plan(ctx, e, l, claim, block, feedAt) })
		if errors.Is(err, errNothing) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		planned = true
		h.between("item written")
		return true, l.confine(ctx, fenceOf(l.declared, &block))
	})
	if err != nil || !planned {
		return err
	}
	return againstLeases(func() error {
		// While it is the store's, nobody but who feeds it writes the next fence. During a change it stays so, and the next
		// one who feeds it says that it is the fence.
		item, err := h.registry.Item(ctx, e)
		if err != nil || item.Source != sequencer.FromStore || item.State != sequencer.Active ||
			item.NextFence == nil || *item.NextFence != block {
			return err
		}
		_, err = h.registry.Fenced(ctx, e, item, true)
		return err
	})
}

// plan writes the next fence of a locked sequence, unless it needs none: errNothing.
func (h *Handovers) plan(
	ctx context.Context, e sequencer.Entry, l *locked, claim sequencer.Claim, block sequencer.Range, feedAt int64,
) error {
	item, err := h.registry.Item(ctx, e)
	if err == nil {
		err = l.here(item)
	}
	if err != nil {
		return err
	}
	if item.Source != sequencer.FromStore || item.State != sequencer.Active || item.Version != claim.Version {
		return errNothing // it is being changed, or was: what was leased is a gap
	}
	has, fenced := confined(item, l.definition)
	if !fenced {
		return errFree
	}
	if item.NextFence != nil {
		if item, err = h.registry.Fenced(ctx, e, item, has != nil && *has == *item.NextFence); err != nil {
			return err
		}
	}
	if !hungry(item, has, l.last, l.called, feedAt) {
		return errNothing // another process was faster
	}
	l.declared = item.Definition
	_, err = h.registry.PlanFence(ctx, e, item, block)
	return err
}

// againstLeases repeats a write of an item that is refused because somebody leased meanwhile.
func againstLeases(write func() error) error {
	const tries = 10
	for n := 1; ; n++ {
		if err := write(); n == tries || !conflict(err) {
			return err
		}
	}
}

// claimBlock leases values for a fence, at least two that follow each other.
func claimBlock(ctx context.Context, s *sequencer.Sequence, size int64) (sequencer.Claim, error) {
	const tries = 3 // since what is in hand may end anywhere
	var best sequencer.Claim
	n := s.Item().Share(size)
	if n == 0 {
		return best, errNoShare
	}
	for range tries {
		c, err := s.Claim(ctx, n)
		if err != nil {
			return best, err
		}
		if c.Version != best.Version || c.Count > best.Count {
			best = c
		}
		if best.Count >= n/2 && best.Count > 1 {
			return best, nil
		}
	}
	if best.Count < 2 {
		return best, errNoShare
	}
	return best, nil
}

// magnitude is the distance of two values.
func magnitude(a, b int64) uint64 {
	if a < b {
		a, b = b, a
	}
	return uint64(a) - uint64(b)
}

// usedOf is how many values were drawn from a block, and how many it has.
func usedOf(item sequencer.Item, block sequencer.Range, last int64, called bool) (used, all uint64) {
	step := magnitude(item.Definition.Increment, 0)
	used, all = magnitude(last, block.First)/step, magnitude(block.Last, block.First)/step+1
	if called {
		used++
	}
	return min(used, all), all
}

// hungry reports whether the upstream's sequence needs a block: no more than one value in feedAt is left of what it has, or
// that is of before the sequence was moved.
func hungry(item sequencer.Item, has *sequencer.Range, last int64, called bool, feedAt int64) bool {
	if has == nil {
		return true
	}
	for _, r := range item.Holes {
		if r == *has {
			return true
		}
	}
	used, all := usedOf(item, *has, last, called)
	return feedAt == 1 || (all-used) <= all/uint64(feedAt)
}

// feeder looks at the fences of the loaded databases, in one goroutine.
type feeder struct {
	h      *Handovers
	pace   pace
	cancel context.CancelFunc
	done   sync.WaitGroup
	looks  map[string]*look // by incarnation

	mu      sync.Mutex
	refused map[proxy.Refusal]time.Time // until when they are to be relieved
}

// look is what is known of one fence.
type look struct {
	entry    sequencer.Entry
	next     time.Time
	interval time.Duration
	// last is what was seen last: the block, and how much of it was used, at a time.
	block sequencer.Range
	used  uint64
	at    time.Time
	began time.Time // when the block was first seen
	free  bool      // it was not confined when it was last looked at
}

func startFeeder(h *Handovers) *feeder {
	ctx, cancel := context.WithCancel(context.Background())
	f := &feeder{h: h, pace: h.pace, cancel: cancel, looks: map[string]*look{}, refused: map[proxy.Refusal]time.Time{}}
	f.done.Go(func() { f.run(ctx) })
	return f
}

func (f *feeder) close() {
	f.cancel()
	f.done.Wait()
}

func (f *feeder) run(ctx context.Context) {
	tick := time.NewTicker(f.pace.least)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		f.relieve(ctx)
		for _, database := range f.h.registry.Databases() {
			if !f.h.paused(database) {
				f.lookAt(ctx, database)
			}
		}
	}
}

// lookAt looks at the fences of a database that are due.
func (f *feeder) lookAt(ctx context.Context, database string) {
	now := time.Now()
	var due []*look
	for _, name := range f.h.registry.Mirrored(database) {
		s, err := f.h.registry.Lookup(ctx, name)
		if err != nil {
			continue
		}
		l := f.looks[s.Incarnation()]
		if l == nil {
			l = &look{interval: f.pace.least}
			f.looks[s.Incarnation()] = l
		}
		l.entry = sequencer.Entry{Name: s.Name(), Incarnation: s.Incarnation(), OID: s.OID()}
		if !now.Before(l.next) {
			due = append(due, l)
		}
	}
	for len(due) > 0 {
		n := min(len(due), looksAtOnce)
		f.read(ctx, database, due[:n])
		due = due[n:]
	}
	for incarnation, l := range f.looks { // of sequences that are gone
		if l.entry.Name.Database == database && now.Sub(l.next) > 2*f.pace.most {
			delete(f.looks, incarnation)
		}
	}
}

// found is what a look finds in the upstream.
type found struct {
	relation
	last   int64
	called bool
}

// read looks at some fences, and does what has to be done.
func (f *feeder) read(ctx context.Context, database string, looks []*look) {
	bounded, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	var all map[uint32]found
	err := f.h.controls.use(bounded, database, func(ctx context.Context, conn *pgx.Conn) (err error) {
		all, err = readFound(ctx, conn, looks)
		return err
	})
	for _, l := range looks {
		if err != nil {
			l.next = time.Now().Add(l.interval) // the upstream may be away for a while
			continue
		}
		there, ok := all[l.entry.OID]
		f.tend(ctx, l, there, ok)
		l.next = time.Now().Add(l.interval + rand.N(l.interval/4))
	}
}

// readFound reads what the upstream has of some sequences. It takes no lock that anybody waits for.
func readFound(ctx context.Context, conn *pgx.Conn, looks []*look) (map[uint32]found, error) {
	var oids []uint32
	for _, l := range looks {
		oids = append(oids, l.entry.OID)
	}
	relations, err := readRelations(ctx, conn, "c.oid = ANY($1)", oids)
	if err != nil || len(relations) == 0 {
		return nil, err
	}
	var sql []string
	all := map[uint32]found{}
	for _, r := range relations {
		all[r.oid] = found{relation: r}
		sql = append(sql, fmt.Sprintf("SELECT %d::pg_catalog.int8, last_value, is_called FROM %s", r.oid, r.quoted))
	}
	rows, err := conn.Query(ctx, strings.Join(sql, " UNION ALL "))
	if err != nil {
		return nil, err
	}
	var oid, last int64
	var called bool
	_, err = pgx.ForEachRow(rows, []any{&oid, &last, &called}, func() error {
		r := all[uint32(oid)]
		r.last, r.called = last, called
		all[uint32(oid)] = r
		return nil
	})
	return all, err
}

// tend does what has to be done for a sequence, and says when to look again.
func (f *feeder) tend(ctx context.Context, l *look, there found, exists bool) {
	ctx, cancel := context.WithTimeout(ctx, feedTimeout)
	defer cancel()
	h := f.h
	s, err := h.registry.Lookup(ctx, l.entry.Name)
	if err != nil {
		return
	}
	item := s.Item()
	if item.Source == sequencer.Moving {
		if item, err = h.registry.Item(ctx, l.entry); err == nil && h.isAbandoned(item) {
			err = h.recover(ctx, l.entry)
		}
		l.interval = f.pace.least
		f.note(l, "could not end a handover", err)
		return
	}
	if item.Kind != sequencer.Mirrored || !exists || there.here(item) != nil {
		// A sequence that was dropped past nextvald, or a database: its entry is dead. It goes when its name is adopted, or
		// when nextvald check says so; somebody may need it to repair a restored database.
		l.interval = f.pace.most
		return
	}
	if there.name != l.entry.Name {
		f.note(l, "could not follow a name", h.registry.Rename(ctx, l.entry.Name, there.name))
	}
	has, fenced := confined(item, there.definition)
	if !fenced {
		// It may have been fed since the item was read.
		if item, err = h.registry.Item(ctx, l.entry); err == nil && item.Source == sequencer.FromStore {
			_, fenced = confined(item, there.definition)
			if !fenced && l.free {
				h.registry.Halt(l.entry)
				h.log.Error("a sequence stopped: its bounds in the upstream were changed past nextvald", "sequence", l.entry.Name.String())
			}
			l.free = !fenced // the next look may still find the bounds of before
		}
		l.interval = f.pace.least
		return
	}
	l.free = false
	rate := l.saw(f.pace, item, has, there)
	if !hungry(item, has, there.last, there.called, feedAt) {
		return
	}
	size, tries := int64(leastFeed), lockTries
	if has != nil {
		used, all := usedOf(item, *has, there.last, there.called)
		size = int64(min(max(leastFeed, rate*feedSeconds), mostFeed))
		runway := float64(all-used) / max(rate, 0.001)
		switch {
		case runway > 30:
			tries = lockTries[:1]
		case runway > 10:
			tries = lockTries[:2]
		}
	}
	l.interval = f.pace.least
	switch err := h.feed(ctx, l.entry, size, tries, feedAt); {
	case errors.Is(err, errNoShare), errors.Is(err, sequencer.ErrExhausted):
		l.interval = f.pace.most
	case errors.Is(err, sequencer.ErrMoving), errors.Is(err, sequencer.ErrUndefined), busy(err):
	default:
		f.note(l, "could not give the upstream's sequence values", err)
	}
}

// saw notes how much of a block was used, and returns the values drawn a second. It looks again soon while there are any.
func (l *look) saw(pace pace, item sequencer.Item, has *sequencer.Range, there found) (rate float64) {
	now := time.Now()
	if has == nil {
		l.interval = pace.most
		return 0
	}
	used, _ := usedOf(item, *has, there.last, there.called)
	if *has != l.block {
		l.block, l.used, l.began, l.at = *has, 0, now.Add(-l.interval), now
	}
	rate = float64(used) / max(now.Sub(l.began).Seconds(), 1)
	if used != l.used {
		l.interval = pace.least
	} else {
		l.interval = min(2*l.interval, pace.most)
	}
	l.used, l.at = used, now
	return rate
}

func (f *feeder) note(l *look, what string, err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		f.h.log.Warn(what, "sequence", l.entry.Name.String(), "error", err)
	}
}
