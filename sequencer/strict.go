package sequencer

import (
	"context"
	"runtime"
	"slices"
	"time"
)

// caller waits for values of a strict sequence.
type caller struct {
	n     int64
	done  chan struct{} // closed when block, with the stock that it is of, or err is set
	block Block
	from  *stock
	err   error
}

// combined is wait for a strict sequence. Callers who wait when a lease is sent share it; whoever comes later waits for
// the next one, since another process may have handed out a later value meanwhile. s.mu is held on entry and on return.
func (s *Sequence) combined(ctx context.Context, n int64, timeout <-chan time.Time) (Block, *stock, error) {
	c := &caller{n: n, done: make(chan struct{})}
	s.callers = append(s.callers, c)
	s.startCombine()
	s.mu.Unlock()
	err := s.sleep(ctx, c.done, timeout)
	s.mu.Lock()
	select {
	case <-c.done: // perhaps at the last moment: a value is not thrown away
		return c.block, c.from, c.err
	default:
	}
	for i := range s.callers {
		if s.callers[i] == c {
			s.callers = append(s.callers[:i:i], s.callers[i+1:]...)
			break
		}
	}
	c.n = 0 // where a lease is on its way for it: the values are a gap
	return Block{}, nil, err
}

// startCombine makes sure that a goroutine serves the callers. s.mu is held.
func (s *Sequence) startCombine() {
	if !s.combining && !s.frozen {
		s.combining = s.r.spawn(s.combine)
		if !s.combining {
			s.answer(s.callers, nil, errShuttingDown)
			s.callers = nil
		}
	}
}

// combine serves the callers of a strict sequence, one lease at a time.
func (s *Sequence) combine() {
	for {
		s.mu.Lock()
		s.callers = slices.DeleteFunc(s.callers, func(c *caller) bool { return c.n == 0 }) // who gave up meanwhile
		if len(s.callers) == 0 || s.frozen || s.over != nil {
			s.combining = false
			s.mu.Unlock()
			return
		}
		batch := s.callers
		s.callers = nil
		var count int64
		for _, c := range batch {
			count = min(count+c.n, maxBlock)
		}
		item, _ := s.takeOff()
		s.mu.Unlock()

		block, after, err := s.lease(item, count)

		s.mu.Lock()
		s.flying--
		if err == nil {
			s.leases++
			if s.usable(block, after) {
				batch = s.answer(batch, block, nil)
			}
		}
		pause, verdict := s.judge(item.Rev, err)
		if verdict != nil {
			batch = s.answer(batch, nil, verdict)
		}
		if s.over != nil {
			s.answer(batch, nil, s.over)
			batch = nil
		}
		// Those not served yet came first.
		s.callers = append(batch, s.callers...)
		s.broadcast()
		s.mu.Unlock()
		s.gather()
		if !s.r.rest(pause) {
			s.mu.Lock()
			s.answer(s.callers, nil, errShuttingDown)
			s.callers, s.combining = nil, false
			s.mu.Unlock()
			return
		}
	}
}

// gather lets those who were just answered come again before the next lease is sent, so that they share it: otherwise they
// would take turns with those who waited meanwhile, half of them at a time. It goes on for as long as somebody comes.
func (s *Sequence) gather() {
	for before := -1; ; {
		s.mu.Lock()
		waiting := len(s.callers)
		s.mu.Unlock()
		if waiting == before {
			return
		}
		before = waiting
		runtime.Gosched()
	}
}

// answer gives the values of a block to callers in their order, or an error to all of them, and returns those who got
// neither. s.mu is held.
func (s *Sequence) answer(callers []*caller, block *stock, err error) (rest []*caller) {
	for _, c := range callers {
		if c.n == 0 {
			continue
		}
		if err == nil {
			b := block.claim(c.n)
			if b.Count == 0 {
				rest = append(rest, c)
				continue
			}
			c.block, c.from = b, block
			s.spent += uint64(b.Count)
		}
		c.err = err
		close(c.done)
	}
	return rest
}
