package sequencer

import (
	"math"
	"time"
)

// rate measures how many values a second a sequence hands out, over a sliding window of one-second counts. It is not safe
// for concurrent use.
type rate struct {
	counts []float64 // by second modulo the length; one more than the window, for the current second
	short  int       // seconds of the short window
	at     time.Time // of the last observation
	total  uint64    // as observed last
	// What was handed out in the window and in the short window, and in the current second, which is in neither.
	inWindow, inShort, current float64
}

func newRate(window, short time.Duration) rate {
	return rate{counts: make([]float64, int(window/time.Second)+1), short: int(short / time.Second)}
}

// slot is the count of a second since 1970.
func (r *rate) slot(second int64) *float64 { return &r.counts[second%int64(len(r.counts))] }

// observe takes down how many values were handed out in all until now. Those since the last observation are spread evenly
// over the time between.
func (r *rate) observe(now time.Time, total uint64) {
	added, from, to := float64(total-r.total), r.at.Unix(), now.Unix()
	switch {
	case to == from && !now.Before(r.at):
		*r.slot(to) += added
	case to < from || to-from >= int64(len(r.counts)):
		// The clock was set back, or everything is older than the window.
		clear(r.counts)
		*r.slot(to) = added
	default:
		perSecond := added / now.Sub(r.at).Seconds()
		*r.slot(from) += perSecond * time.Unix(from+1, 0).Sub(r.at).Seconds()
		for s := from + 1; s < to; s++ {
			*r.slot(s) = perSecond
		}
		*r.slot(to) = perSecond * now.Sub(time.Unix(to, 0)).Seconds()
	}
	r.at, r.total = now, total
	r.count()
}

// count adds up the counts.
func (r *rate) count() {
	second := r.at.Unix()
	r.inWindow, r.inShort, r.current = 0, 0, *r.slot(second)
	for i := range len(r.counts) - 1 {
		c := *r.slot(second - 1 - int64(i))
		r.inWindow += c
		if i < r.short {
			r.inShort += c
		}
	}
}

// perSecond is the larger of the rates over the window and over the short window, as of the last observation. The current
// second counts as if it were over, so that a burst is seen before its first second ends. A burst is what goes beyond
// chance, which makes a small count larger by about its square root.
func (r *rate) perSecond() float64 {
	burst := max(r.inShort, r.current)
	return max(r.mean(), (burst-math.Sqrt(burst))/float64(r.short))
}

// mean is the rate over the window.
func (r *rate) mean() float64 { return (r.inWindow + r.current) / float64(len(r.counts)-1) }
