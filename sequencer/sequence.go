package sequencer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Sequence hands out the values of one incarnation of a sequence. There is one per incarnation in a registry. All methods
// are safe for concurrent use.
type Sequence struct {
	// What a claim reads, and nothing that is written in its course.
	current   atomic.Pointer[stock] // never nil; empty until the first lease, and always for a strict sequence
	refilling atomic.Bool           // a goroutine runs refill

	r           *Registry
	incarnation string
	oid         atomic.Uint32
	name        atomic.Pointer[Name]
	gone        atomic.Bool // over is set

	mu sync.Mutex
	// over is set once the sequence can never give a value again: it was dropped, or the registry is closed.
	over error
	// stopped is set while the store contradicts what is known of the sequence; a change that is written clears it.
	stopped error
	// item is what is known of the stored item: read, or written, or brought forward by an own lease.
	item Item
	// policy is what holds by the item and the name.
	policy Policy
	// queue holds the stocks after current, in the order of their use.
	queue []*stock
	// spent counts the values claimed from stocks that are no longer current; leases counts blocks.
	spent, leases uint64
	// frozen: a change is under way; no lease is sent and no value handed out.
	frozen bool
	// flying counts the leases that are on their way to the store, flights those sent.
	flying  int
	flights uint64
	// verdict is what lease number verdictOf found to be final for those who waited for it: exhausted, and the like.
	verdict   error
	verdictOf uint64
	// dry: a lease that nobody waited for found the range used up; the next one is sent for a caller only.
	dry bool
	// failures counts leases failed in a row, failure is the last one's error.
	failures int
	failure  error
	// stuckRev is the rev at which a change was found under way, stuckSince when first.
	stuckRev   int64
	stuckSince time.Time
	// demand is the number of values that callers wait for, wake is closed and replaced when they should look again.
	demand int64
	wake   chan struct{}
	// callers wait for values of a strict sequence; combining: a goroutine runs combine.
	callers   []*caller
	combining bool
	// size is that of the last lease.
	size int64
	rate rate
}

func newSequence(r *Registry, e Entry, item Item) *Sequence {
	s := &Sequence{
		r:           r,
		incarnation: e.Incarnation,
		item:        item,
		wake:        make(chan struct{}),
		rate:        newRate(r.cfg.Window, r.cfg.ShortWindow),
	}
	s.name.Store(&e.Name)
	s.oid.Store(item.OID)
	s.policy = r.policy(e.Name, item.Definition)
	s.current.Store(newStock(Block{}, Position{}, 0))
	return s
}

// called gives the sequence its name, by which policies are chosen.
func (s *Sequence) called(n Name) {
	s.mu.Lock()
	s.name.Store(&n)
	s.policy = s.r.policy(n, s.item.Definition)
	s.arm()
	s.mu.Unlock()
	s.obey()
}

// Name returns the sequence's name, as this process knows it.
func (s *Sequence) Name() Name { return *s.name.Load() }

// OID returns the number by which nextval('12345'::regclass) names the sequence.
func (s *Sequence) OID() uint32 { return s.oid.Load() }

// Incarnation returns the unique id of this life of the sequence. A later life has a greater one.
func (s *Sequence) Incarnation() string { return s.incarnation }

// Kind says whether the sequence exists in the upstream too, as this process knows it.
func (s *Sequence) Kind() Kind {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.item.Kind
}

// Mirrors tells the OID of the upstream's database that a mirrored sequence is in; 0 for a virtual one. OID is that of the
// upstream's own sequence.
func (s *Sequence) Mirrors() (database uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.item.DBOID
}

// Definition returns the parameters that this process knows the sequence by.
func (s *Sequence) Definition() Definition {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.item.Definition
}

// Next returns the next value. No two calls get the same one, in this process or any other; in one process a later call
// gets a later value. A value that was returned is used up.
//
// It asks the store only when no leased value is left, and waits for it for the store timeout or until ctx is done,
// whichever is first. Errors: ErrExhausted, ErrUndefined, ErrStore, ErrShuttingDown, 57014 when ctx is done.
func (s *Sequence) Next(ctx context.Context) (int64, error) {
	if v, ok := s.TryNext(); ok {
		return v, nil
	}
	block, _, err := s.wait(ctx, 1)
	return block.First, err
}

// TryNext is Next for a value that is in hand. It never waits.
func (s *Sequence) TryNext() (value int64, ok bool) {
	b := s.current.Load()
	if i := b.claimed.Add(1) - 1; i < b.Count {
		if i >= b.refillAt.Load() {
			s.startRefill()
		}
		// After the claim: whoever is stopped in between and goes on much later must not use what it claimed.
		if !s.r.offline() {
			return b.First + i*b.Increment, true
		}
	}
	return 0, false
}

// NextN returns n values, as one block or more in the order of the sequence. It fails whole: a part that was reserved
// before an error is lost. Otherwise it is as n calls of Next.
func (s *Sequence) NextN(ctx context.Context, n int64) ([]Block, error) {
	if n < 1 || n > maxBlock {
		return nil, invalid("number of values (%d) must be between 1 and %d", n, int64(maxBlock))
	}
	var blocks []Block
	for n > 0 {
		block, _, err := s.claim(ctx, n)
		if err != nil {
			return nil, err
		}
		n -= block.Count
		// Blocks leased one after the other mostly continue each other.
		if k := len(blocks) - 1; k >= 0 && At(block.First) == At(blocks[k].Last()).Plus(At(block.Increment)) &&
			block.Increment == blocks[k].Increment {
			blocks[k].Count += block.Count
		} else {
			blocks = append(blocks, block)
		}
	}
	return blocks, nil
}

// claim takes from one value to n, and returns the stock that they were of.
func (s *Sequence) claim(ctx context.Context, n int64) (Block, *stock, error) {
	b := s.current.Load()
	block := b.claim(n)
	if block.Count == 0 || s.r.offline() {
		return s.wait(ctx, n)
	}
	if b.claimed.Load() > b.refillAt.Load() {
		s.startRefill()
	}
	return block, b, nil
}

// State is what SELECT reads of a sequence.
type State struct {
	LastValue int64
	LogCnt    int64 // LogCntCalled, or 0 where IsCalled is false
	IsCalled  bool
}

// LogCntCalled is PostgreSQL's log_cnt of a sequence that has just written to its log: the values that it logged ahead.
const LogCntCalled = 32

// Reads is what SELECT reads of the item: LastValue is the last value that any process leased.
func (it Item) Reads() State {
	at := it.cursor(it.Pos)
	if !at.called {
		return State{LastValue: at.last}
	}
	return State{LastValue: at.last, LogCnt: LogCntCalled, IsCalled: true}
}

// State reads the sequence's state in the store. While this process alone serves the sequence, LastValue is the last value
// that it handed out; otherwise it is the last value that any process leased.
func (s *Sequence) State(ctx context.Context) (State, error) {
	_, state, err := s.Read(ctx)
	return state, err
}

// Read is State with all that the store has of the sequence.
func (s *Sequence) Read(ctx context.Context) (Item, State, error) {
	ctx, cancel := context.WithTimeout(ctx, s.r.cfg.StoreTimeout)
	defer cancel()
	for {
		from, err := s.read(ctx)
		if err != nil {
			return Item{}, State{}, err
		}
		item, err := s.r.get(ctx, s.incarnation)
		if err != nil {
			return Item{}, State{}, s.failed("read the sequence", err)
		}
		if state, current, err := from.state(item); current || err != nil {
			return item, state, err
		}
	}
}

// landed waits until no lease of a cached sequence is on its way, and returns the number of those sent so far.
func (s *Sequence) landed(ctx context.Context) (flights uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.flying > 0 && s.item.Mode != Strict {
		wake := s.wake
		s.mu.Unlock()
		select {
		case <-wake:
		case <-ctx.Done():
		}
		s.mu.Lock()
		if err := ctx.Err(); err != nil {
			return 0, storeFailure("read the sequence", err)
		}
	}
	return s.flights, s.over
}

// wait is claim for a caller that found no value in the current stock.
func (s *Sequence) wait(ctx context.Context, n int64) (Block, *stock, error) {
	if err := ctx.Err(); err != nil {
		return Block{}, nil, canceled(err)
	}
	timeout, stop := s.r.cfg.Clock.After(s.r.cfg.StoreTimeout)
	defer stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	arrived := s.flights
	for {
		switch {
		case s.over != nil:
			return Block{}, nil, s.over
		case s.stopped != nil:
			return Block{}, nil, s.stopped
		case s.frozen:
		case s.item.Mode == Strict:
			return s.combined(ctx, n, timeout)
		case s.r.offline():
			s.park() // so that every call comes here
		default:
			if b, from := s.take(n); b.Count > 0 {
				return b, from, nil
			}
			// A verdict that was asked for before this caller came may be out of date.
			if s.verdict != nil && s.verdictOf > arrived {
				return Block{}, nil, s.verdict
			}
		}
		s.demand += n
		var wake <-chan struct{} = s.wake
		if s.r.offline() {
			wake = s.r.nextWord()
		} else if !s.frozen {
			s.startRefill()
		}
		s.mu.Unlock()
		err := s.sleep(ctx, wake, timeout)
		s.mu.Lock()
		s.demand -= n
		if err != nil {
			return Block{}, nil, err
		}
	}
}

// sleep waits for a wake-up, the caller's end or the timeout.
func (s *Sequence) sleep(ctx context.Context, wake <-chan struct{}, timeout <-chan time.Time) error {
	select {
	case <-wake:
		return nil
	case <-ctx.Done():
		return canceled(ctx.Err())
	case <-timeout:
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.timedOut()
	}
}

// timedOut is the error of a caller for whom no value came in time. s.mu is held.
func (s *Sequence) timedOut() error {
	cause := s.failure
	if s.r.offline() {
		cause = fmt.Errorf("nothing was heard of the store's feed for %v", s.r.cfg.MaxOffline)
	}
	if cause == nil {
		cause = errors.New("no answer within " + s.r.cfg.StoreTimeout.String())
	}
	return storeFailure("reserve values", cause)
}

// take claims up to n values, from the next stock when the current one is empty. s.mu is held.
func (s *Sequence) take(n int64) (Block, *stock) {
	for {
		cur := s.current.Load()
		if b := cur.claim(n); b.Count > 0 || len(s.queue) == 0 {
			if cur.claimed.Load() > cur.refillAt.Load() {
				s.startRefill()
			}
			return b, cur
		}
		// An empty stock stays so: whoever still holds it comes here. So all its values are older than any of the next.
		s.spent += uint64(cur.taken())
		s.current.Store(s.queue[0])
		s.queue = s.queue[1:]
		s.arm()
	}
}

// broadcast makes all who wait look again. s.mu is held.
func (s *Sequence) broadcast() {
	close(s.wake)
	s.wake = make(chan struct{})
}

// left is the number of values that can be handed out without the store. s.mu is held.
func (s *Sequence) left() int64 {
	n := s.current.Load().left()
	for _, q := range s.queue {
		n += q.Count
	}
	return n
}

// handedOut is the number of values handed out by this process. s.mu is held.
func (s *Sequence) handedOut() uint64 {
	return s.spent + uint64(s.current.Load().taken())
}

// remainder is what a process holds up to the end of its last block: all values from pos to before end, in which nobody
// else has any. count is how many they are, rev that of the last block's lease, version that of which it was leased.
type remainder struct {
	pos, end            Position
	count, rev, version int64
}

// reaches reports whether the position of an item is the end of the remainder because nobody leased since: then it may be
// put back to the beginning. It may get to the same place by another way in a later version, or round a CYCLE.
func (r remainder) reaches(item Item) bool {
	return r.end == item.Pos && r.version == item.Version && (!item.Definition.Cycle || r.rev == item.Rev)
}

// rest is the remainder; ok is false when nothing is held. s.mu is held.
func (s *Sequence) rest() (r remainder, ok bool) {
	stocks := append([]*stock{s.current.Load()}, s.queue...)
	last := stocks[len(stocks)-1]
	if last.rev == 0 {
		return remainder{}, false
	}
	r.end, r.rev, r.version = last.at(last.Count), last.rev, last.version
	for i := len(stocks) - 1; i >= 0; i-- {
		taken := stocks[i].taken()
		r.pos = stocks[i].at(taken)
		r.count += stocks[i].Count - taken
		// Only blocks that continue each other are one range.
		if taken > 0 || i == 0 || stocks[i-1].rev == 0 || stocks[i-1].at(stocks[i-1].Count) != stocks[i].before {
			break
		}
	}
	return r, true
}

// discard drops what is held: it is of an old version, or was given back. s.mu is held.
func (s *Sequence) discard() {
	s.spent += uint64(s.current.Load().close())
	s.current.Store(newStock(Block{Increment: s.item.Definition.Increment}, Position{}, 0))
	s.queue = nil
}

// park takes the current stock from the callers and puts it first in the queue. s.mu is held.
func (s *Sequence) park() {
	cur := s.current.Load()
	taken := cur.close()
	s.spent += uint64(taken)
	if cur.rev != 0 || taken < cur.Count { // else it is the one of the beginning
		s.queue = append([]*stock{cur.remainder(taken)}, s.queue...)
	}
	s.current.Store(newStock(Block{Increment: cur.Increment}, Position{}, 0))
}

// refresh reads what the store holds.
func (s *Sequence) refresh(ctx context.Context) error {
	known := s.revision()
	item, err := s.r.store.Get(ctx, s.incarnation)
	if errors.Is(err, ErrNotFound) {
		_ = s.dropped()
		return nil
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.forward(item.Rev, known) {
		s.know(item)
	}
	s.broadcast()
	return nil
}

// revision is the rev of the item as it is known.
func (s *Sequence) revision() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.item.Rev
}

// forward compares a rev that the store told with one that was known before it was asked. When it is lower the store was
// set back, by a backup that was restored or by hand: what was leased since would be leased again. The sequence stops.
// s.mu is held.
func (s *Sequence) forward(found, known int64) bool {
	if found >= known {
		return true
	}
	s.stop(fmt.Errorf("the store is at rev %d and was at %d", found, known))
	return false
}

// stop ends the service of a sequence that the store contradicts, until a change is written. s.mu is held.
func (s *Sequence) stop(cause error) {
	s.r.cfg.Logger.Error("a sequence stopped: the store was set back", "sequence", s.Name().String(), "error", cause)
	s.halt(setBack(s.Name(), cause))
}

// halt makes every call fail until a change is written. s.mu is held.
func (s *Sequence) halt(err error) {
	s.stopped = err
	s.discard()
	s.answer(s.callers, nil, s.stopped)
	s.callers = nil
	s.broadcast()
}

// know takes over what the store holds, unless something newer is known. Blocks of another version are dropped. s.mu is
// held.
func (s *Sequence) know(item Item) {
	if item.Rev < s.item.Rev {
		return // it was read before the last write
	}
	if item.Version != s.item.Version {
		s.discard()
		s.dry = false
		s.policy = s.r.policy(s.Name(), item.Definition)
	}
	s.item = item
	s.oid.Store(item.OID) // which changes when a virtual sequence gets one in the upstream
}

// end makes every call from now on fail. s.mu is held.
func (s *Sequence) end(err error) {
	if s.over == nil {
		s.over = err
		s.gone.Store(true)
		s.discard()
		s.answer(s.callers, nil, err)
		s.callers = nil
		s.broadcast()
	}
}

// arm sets the claim at which the current stock calls for the next block. s.mu is held.
func (s *Sequence) arm() {
	cur := s.current.Load()
	var queued int64
	for _, q := range s.queue {
		queued += q.Count
	}
	at := max(0, cur.Count+queued-s.threshold())
	if s.dry || at >= cur.Count {
		at = math.MaxInt64
	}
	cur.refillAt.Store(at)
}

// failed words an error of the store, and ends the sequence when it is gone.
func (s *Sequence) failed(op string, err error) error {
	if errors.Is(err, ErrNotFound) {
		return s.dropped()
	}
	return storeFailure(op, err)
}

// dropped ends the sequence, whose item is gone.
func (s *Sequence) dropped() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(undefined(s.Name()))
	return s.over
}
