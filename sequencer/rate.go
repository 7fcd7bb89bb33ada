package sequencer

import "time"

// rate measures how many values a second a sequence hands out, over a sliding window of one-second counts. It is not safe
// for concurrent use.
type rate struct {
	counts []int64 // by second modulo the length; one more than the window, for the current second
	short  int     // seconds of the short window
	second int64   // of the last observation, in seconds since 1970
	total  uint64  // as observed last
}

func newRate(window, short time.Duration) rate {
	return rate{counts: make([]int64, int(window/time.Second)+1), short: int(short / time.Second)}
}

// observe takes down how many values were handed out in all until now.
func (r *rate) observe(now time.Time, total uint64) {
	second := now.Unix()
	if gap := second - r.second; gap < 0 || gap >= int64(len(r.counts)) {
		// The clock was set back, or everything is older than the window.
		clear(r.counts)
	} else {
		for s := r.second + 1; s <= second; s++ {
			r.counts[s%int64(len(r.counts))] = 0
		}
	}
	r.second = second
	r.counts[second%int64(len(r.counts))] += int64(total - r.total)
	r.total = total
}

// perSecond is the larger of the rates over the window and over the short window, as of the last observation. The current
// second counts as if it were over, so that a burst is seen before its first second ends.
func (r *rate) perSecond() float64 {
	var long, short int64
	n := int64(len(r.counts))
	for i := range n - 1 {
		c := r.counts[(r.second-1-i+n)%n]
		long += c
		if i < int64(r.short) {
			short += c
		}
	}
	current := r.counts[r.second%n]
	return max(float64(long+current)/float64(n-1), float64(max(short, current))/float64(r.short))
}
