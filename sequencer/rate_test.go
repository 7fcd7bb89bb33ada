package sequencer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRate(t *testing.T) {
	start := time.Unix(1_800_000_000, 0)
	r := newRate(time.Minute, time.Second)
	require.Zero(t, r.perSecond())
	total := uint64(0)
	see := func(at time.Duration, n uint64) float64 {
		total += n
		r.observe(start.Add(at), total)
		return r.perSecond()
	}
	see(0, 0)
	require.InDelta(t, 1000, see(500*time.Millisecond, 1000), 32, "a burst is seen at once")
	require.InDelta(t, 1000, see(1500*time.Millisecond, 0), 32)
	require.InDelta(t, 1000./60, see(3*time.Second, 0), 1, "and is over when it is over")
	require.InDelta(t, 1000./60, see(59*time.Second, 0), 1)
	require.Zero(t, see(65*time.Second, 0), "after the window it never was")

	// A count that chance makes is no burst.
	at := 70 * time.Second
	see(at, 0)
	for range 60 {
		at += time.Second
		see(at, 1)
	}
	require.Less(t, see(at+500*time.Millisecond, 4), 2.5)

	// However it is looked at, an even rate is even.
	at += time.Minute
	busyFrom := at + 10*time.Second
	see(at, 0)
	for _, step := range []time.Duration{time.Second, 300 * time.Millisecond, 1700 * time.Millisecond, 10 * time.Millisecond} {
		for range 200 {
			at += step
			got := see(at, uint64(step/time.Millisecond)*2)
			if at > busyFrom {
				require.InDelta(t, 2000, got, 70, "%v %v", at, step)
			}
		}
	}
	// An hour of nothing, and a clock that is set back.
	require.Less(t, see(at+time.Hour, 10), 11.)
	require.Less(t, see(at, 10), 11.)
}
