package sequencer

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
)

// reloadEvery is the least time between two reads of all names.
const reloadEvery = 500 * time.Millisecond

// follower follows the feed, in one goroutine.
type follower struct {
	r *Registry
	// seen is the feed up to which everything was done.
	seen Feed
	// stale are the databases whose names must be read again, readAt the time of the last such read.
	stale  map[*database]bool
	readAt time.Time
	// deaf: the last reading failed.
	deaf bool
}

// watch follows the feed until the registry is closed.
func (r *Registry) watch(seen Feed) {
	f := &follower{r: r, seen: seen, stale: map[*database]bool{}}
	for r.rest(r.cfg.PollInterval) {
		r.sayAgain()
		if databases := r.loadedDatabases(); len(databases) > 0 || r.member.joined() || r.peers.asking() {
			f.note(f.poll(databases))
		}
	}
}

// followTimeout bounds the requests by which members hear of a change: one that hangs must not take the time in which the
// next one could succeed.
func (r *Registry) followTimeout() time.Duration { return min(time.Second, r.cfg.StoreTimeout) }

// poll reads the feed once and does what it says.
func (f *follower) poll(databases []*database) error {
	r := f.r
	ctx, cancel := context.WithTimeout(r.ctx, r.followTimeout())
	defer cancel()
	turn := r.peers.begin()
	asked := r.cfg.Clock.Now()
	feed, err := r.store.Feed(ctx)
	if err != nil {
		return err
	}
	if feed.Names != f.seen.Names {
		for _, d := range databases {
			f.stale[d] = true
		}
		f.seen.Names = feed.Names
	}
	if err := f.refresh(ctx, feed); err != nil {
		return err
	}
	r.heard(asked, f.seen, feed)
	if err := r.renew(ctx, feed, f.seen.Topics != feed.Topics, asked); err != nil {
		return err
	}
	f.seen = feed
	r.member.followed.Store(feed.Rev)
	r.peers.tell(turn, feed)
	reading, cancel := context.WithTimeout(r.ctx, r.cfg.StoreTimeout)
	defer cancel()
	return f.reload(reading)
}

// refresh reads the sequences that have changed, and drops their blocks.
func (f *follower) refresh(ctx context.Context, feed Feed) error {
	const atOnce = 16
	var g errgroup.Group
	g.SetLimit(atOnce)
	if f.seen.Topics != feed.Topics {
		for _, s := range f.r.open() {
			if !Announced(f.seen, feed, s.incarnation) {
				continue
			}
			g.Go(func() error { return s.refresh(ctx) })
		}
	}
	return g.Wait()
}

// reload reads the names that have changed.
func (f *follower) reload(ctx context.Context) error {
	now := f.r.cfg.Clock.Now()
	if len(f.stale) == 0 || now.Sub(f.readAt) < reloadEvery {
		return nil
	}
	f.readAt = now
	for d := range f.stale {
		if err := f.r.read(ctx, d); err != nil {
			return err
		}
		delete(f.stale, d)
	}
	return nil
}

// note logs when the feed is lost and when it is back, not every failure between.
func (f *follower) note(err error) {
	switch {
	case err != nil && !f.deaf && f.r.ctx.Err() == nil:
		f.deaf = true
		f.r.cfg.Logger.Warn("the sequence store's feed cannot be followed", "error", err)
	case err == nil && f.deaf:
		f.deaf = false
		f.r.cfg.Logger.Info("the sequence store's feed is followed again")
	}
}

// announce tells the other processes of a change that was made. What the store does not take now is said again by watch:
// the change itself stands. It returns the feed's rev, or 0.
func (r *Registry) announce(ctx context.Context, a Announcement) (rev int64) {
	rev, err := r.store.Announce(ctx, a)
	if err != nil {
		r.mu.Lock()
		r.unsaid = append(r.unsaid, a)
		r.mu.Unlock()
	}
	return rev
}

// sayAgain makes up for announcements that failed.
func (r *Registry) sayAgain() {
	r.mu.Lock()
	unsaid := r.unsaid
	r.unsaid = nil
	r.mu.Unlock()
	for _, a := range unsaid {
		ctx, cancel := context.WithTimeout(r.ctx, r.cfg.StoreTimeout)
		r.announce(ctx, a)
		cancel()
	}
}
