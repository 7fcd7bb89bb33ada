package sequencer_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/memstore"
)

// holder is a Holder that notes what it hears, slowly.
type holder struct {
	mu    sync.Mutex
	slow  time.Duration
	heard map[string]int // readings of the feed that tell of a name
	names []string

	expelled atomic.Bool
}

func (h *holder) Followed(_ time.Time, before, now sequencer.Feed) {
	for _, name := range h.names {
		if sequencer.Announced(before, now, name) {
			time.Sleep(h.slow)
			h.mu.Lock()
			h.heard[name]++
			h.mu.Unlock()
		}
	}
}

func (h *holder) Expelled() { h.expelled.Store(true) }

func (h *holder) count(name string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.heard[name]
}

func TestRevokeReturnsWhenHoldersHaveHeard(t *testing.T) {
	ctx := context.Background()
	store := memstore.New()
	author := open(t, store, sequencer.Config{PollInterval: 5 * time.Millisecond})
	member := open(t, store, sequencer.Config{PollInterval: 5 * time.Millisecond, MemberID: "holder"})
	h := &holder{slow: 30 * time.Millisecond, heard: map[string]int{}, names: []string{"upstream/shop/1", "upstream/shop/2"}}
	member.Hold(h)
	require.NoError(t, author.Revoke(ctx, "upstream/shop/1"), "nobody holds anything yet")
	require.NoError(t, member.Join(ctx))
	for n := range 5 {
		before := h.count("upstream/shop/1")
		require.NoError(t, author.Revoke(ctx, "upstream/shop/1"))
		require.Greater(t, h.count("upstream/shop/1"), before, n)
	}
	require.Zero(t, h.count("upstream/shop/2"))
	require.NoError(t, author.Announce(ctx, "upstream/shop/2"))
	require.Eventually(t, func() bool { return h.count("upstream/shop/2") > 0 }, 10*time.Second, time.Millisecond)

	require.NoError(t, author.Evict(ctx, "holder"))
	require.NoError(t, author.Announce(ctx, "upstream/shop/2")) // so that it writes, and finds out
	require.Eventually(t, h.expelled.Load, 10*time.Second, time.Millisecond)
}
