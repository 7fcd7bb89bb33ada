package sequencer

import (
	"context"
	"time"
)

// Holder is somebody else in this process who hands out values that he holds: of sequences that have no item in the store.
// The process is a member for him as well, and gives its word for what he holds. Changes of such sequences are announced
// under names that are no incarnation's.
type Holder interface {
	// Followed tells that the feed was read, as it was asked for at that time, and how it was when it was read before.
	// When it returns, nothing is handed out any more of what was announced between, and the process says so to others.
	Followed(asked time.Time, before, now Feed)
	// Expelled tells that the process is no member any more. When it returns, nothing that is held is handed out any more.
	Expelled()
}

// Hold makes h hear what the process hears as a member. It is called once, before anything is held.
func (r *Registry) Hold(h Holder) { r.holder.Store(&h) }

// Join makes the process a member, if it is none. Who holds nothing by the time of the call, and holds something only after
// it heard of a reading of the feed that began after Join returned, hears of all announcements before others rely on it.
func (r *Registry) Join(ctx context.Context) error {
	_, err := r.join(ctx)
	return err
}

// Announced reports whether something may have been announced between two readings of the feed. It errs to true.
func Announced(before, now Feed, incarnation string) bool {
	t := Topic(incarnation)
	// With fewer changes than before the store was set back, and everything may have been.
	changes := now.Topics[t] - before.Topics[t]
	return changes != 0 && (changes != 1 || now.Latest[t] == incarnation)
}

// Announce tells all members that what goes by a name is changed. It does not wait for their word.
func (r *Registry) Announce(ctx context.Context, incarnation string) error {
	_, err := r.store.Announce(ctx, Announcement{Incarnation: incarnation})
	return err
}

// Revoke announces a change of what goes by a name, and waits until all members but this one have given their word that
// they hand out nothing of it that they held. The error names a member that did not, within 5 s.
func (r *Registry) Revoke(ctx context.Context, incarnation string) error {
	if err := r.running(); err != nil {
		return err
	}
	return r.confirm(ctx, incarnation, false)
}

// expel tells the holder that the process is no member any more.
func (r *Registry) expel() {
	if h := r.holder.Load(); h != nil {
		(*h).Expelled()
	}
}

// heard tells the holder what was read of the feed.
func (r *Registry) heard(asked time.Time, before, now Feed) {
	if h := r.holder.Load(); h != nil {
		(*h).Followed(asked, before, now)
	}
}
