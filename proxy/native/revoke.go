package native

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nextvald/nextvald/sequencer"
)

// What goes back, is altered or dropped through any nextvald of a namespace is announced first. Each process that hears of
// it drops what it has drawn, gives its word, and passes calls for Config.Hold; the author sends the statement when all
// have given their word, and announces it again every announceEvery until its transaction has ended.
//
// A process draws only while it hears of announcements: it has become a member, has read the feed since, has read it within
// the last lateReading, and has done so without a longer pause for Config.Hold. So whoever comes in after the first
// announcement has heard one of the others before it draws.
//
// An author that is killed, or cut off from the store, while its statement waits for a lock in the upstream cannot announce
// it again: then that counts as a change past nextvald once the others' hold is over.

const (
	announceEvery = time.Second
	// lateReading is how old the last reading of the feed may be. It and announceEvery together are less than Config.Hold,
	// by what an announcement may take.
	lateReading = 1500 * time.Millisecond
)

// incarnation is what a sequence of the upstream, or with OID 0 all of a database, is announced as.
func incarnation(database string, oid uint32) string {
	return fmt.Sprintf("upstream/%s/%d", database, oid)
}

// feed is what the process has heard of announcements.
type feed struct {
	joining atomic.Bool
	// mu guards writes of joined; expelled counts how often the process was no member any more.
	mu       sync.Mutex
	expelled int
	// joined is Manager.elapsed when the process had become a member, 0 while it is none.
	joined atomic.Int64
	// read is the last reading, since is Manager.elapsed of the first one since which there was no pause.
	read  atomic.Pointer[reading]
	since atomic.Int64
	// held is until when calls pass of what has a topic, by Manager.elapsed.
	held [sequencer.Topics]atomic.Int64
}

// reading is when the feed was asked for.
type reading struct {
	era
	elapsed int64
}

// follows reports whether values may be drawn, as for announcements.
func (f *feed) follows(now time.Time, elapsed int64) bool {
	joined, read := f.joined.Load(), f.read.Load()
	return joined > 0 && read != nil && read.elapsed >= joined && read.age(now) <= lateReading && elapsed >= f.since.Load()
}

// holds is until when calls pass of what may have been announced as an incarnation.
func (f *feed) holds(incarnation string) int64 { return f.held[sequencer.Topic(incarnation)].Load() }

// join makes the process a member, in the background.
func (m *Manager) join() {
	f := &m.feed
	if f.joined.Load() > 0 || !f.joining.CompareAndSwap(false, true) {
		return
	}
	m.spawn(func() {
		defer f.joining.Store(false)
		ctx, cancel := context.WithTimeout(m.ctx, controlTimeout)
		defer cancel()
		f.mu.Lock()
		expelled := f.expelled
		f.mu.Unlock()
		if err := m.cfg.Members.Join(ctx); err != nil {
			if m.ctx.Err() == nil {
				m.cfg.Logger.Warn("cannot draw values of the upstream's sequences", "error", err)
			}
			m.rest(time.Second)
			return
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.expelled == expelled {
			f.joined.Store(max(1, m.elapsed(m.cfg.Clock.Now())))
		}
	})
}

// Followed implements sequencer.Holder.
func (m *Manager) Followed(asked time.Time, before, now sequencer.Feed) {
	f := &m.feed
	at := reading{era: era{asked: asked}, elapsed: m.elapsed(asked)}
	if last := f.read.Load(); last == nil || last.age(asked) > lateReading {
		f.since.Store(at.elapsed + int64(m.cfg.Hold))
	}
	if before.Topics != now.Topics {
		until := m.elapsed(m.cfg.Clock.Now()) + int64(m.cfg.Hold)
		for t := range now.Topics {
			if before.Topics[t] != now.Topics[t] {
				raise(&f.held[t], until) // before those that are known are looked at: others begin with it
			}
		}
		for _, d := range *m.databases.Load() {
			all := sequencer.Announced(before, now, d.incarnation)
			if all {
				raise(&d.passed, until)
				d.leave()
				m.spawn(func() { m.controls.forget(d.name) }) // which may wait for the network
			}
			for _, s := range d.all() {
				if all || sequencer.Announced(before, now, s.incarnation) {
					raise(&s.passed, until)
					d.discard.Store(true)
					s.revoked()
				}
			}
		}
	}
	f.read.Store(&at)
}

// Expelled implements sequencer.Holder.
func (m *Manager) Expelled() {
	m.feed.mu.Lock()
	m.feed.expelled++
	m.feed.joined.Store(0)
	m.feed.mu.Unlock()
	for _, d := range *m.databases.Load() {
		for _, s := range d.all() {
			s.gate.shut()
			s.broadcast()
		}
	}
}

// Revoke implements proxy.Native.
func (m *Manager) Revoke(ctx context.Context, database string, oid uint32) (done func(), err error) {
	d := m.database(database)
	d.revoke(oid, 1)
	name := incarnation(database, oid)
	if oid == 0 {
		// The database itself may be dropped, which nobody who is connected lets happen.
		m.controls.forget(database)
		select {
		case <-d.leave():
		case <-ctx.Done():
		case <-m.ctx.Done():
		}
	}
	if err := m.cfg.Members.Revoke(ctx, name); err != nil {
		d.revoke(oid, -1)
		return nil, err
	}
	ctx, cancel := context.WithCancel(m.ctx)
	m.spawn(func() { m.repeat(ctx, name) })
	var once sync.Once
	return func() {
		once.Do(func() {
			cancel()
			d.revoke(oid, -1)
		})
	}, nil
}

// repeat announces a change again and again until ctx is done.
func (m *Manager) repeat(ctx context.Context, name string) {
	for {
		again, stop := m.cfg.Clock.After(announceEvery)
		select {
		case <-again:
		case <-ctx.Done():
		}
		stop()
		if ctx.Err() != nil {
			return
		}
		if err := m.cfg.Members.Announce(ctx, name); err != nil && ctx.Err() == nil {
			m.cfg.Logger.Warn("cannot announce again that a sequence is being changed", "sequence", name, "error", err)
		}
	}
}

// revoke makes calls of a sequence, or with OID 0 of all, pass (by 1) or not any more (by -1).
func (d *database) revoke(oid uint32, by int32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.discard.Store(true)
	if oid == 0 {
		d.revoking.Add(by)
		for _, s := range d.all() {
			s.revoked()
		}
		return
	}
	d.changes[oid] += by
	if d.changes[oid] == 0 {
		delete(d.changes, oid)
	}
	if s := d.find(oid); s != nil {
		s.revoking.Add(by)
		s.revoked()
	}
}
