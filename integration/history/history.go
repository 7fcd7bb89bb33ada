// Package history judges what callers got of a sequence whose values grow: from the record of their calls alone, without
// knowing how the values were made.
package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// Draw is one exchange with a process: the values that came, in the order of their answers, between two moments of one
// clock. Values that were asked for and did not come are not in it.
type Draw struct {
	Begin, End time.Duration
	Values     []int64
}

// Values returns the values of all draws in ascending order.
func Values(draws []Draw) []int64 {
	var all []int64
	for _, d := range draws {
		all = append(all, d.Values...)
	}
	slices.Sort(all)
	return all
}

// Unique returns an error when a value was handed out twice.
func Unique(draws []Draw) error {
	all := Values(draws)
	for i := 1; i < len(all); i++ {
		if all[i] == all[i-1] {
			return fmt.Errorf("%d was handed out twice: %s", all[i], where(draws, all[i]))
		}
	}
	return nil
}

// where says which draws got a value.
func where(draws []Draw, value int64) (text string) {
	for _, d := range draws {
		if slices.Contains(d.Values, value) {
			text += fmt.Sprintf(" between %v and %v;", d.Begin, d.End)
		}
	}
	return text
}

// Ordered returns an error when a draw that began after another one had ended got a smaller value than it, or when the
// values of one draw do not grow.
func Ordered(draws []Draw) error {
	byBegin := slices.SortedFunc(slices.Values(draws), func(a, b Draw) int { return cmp.Compare(a.Begin, b.Begin) })
	byEnd := slices.SortedFunc(slices.Values(draws), func(a, b Draw) int { return cmp.Compare(a.End, b.End) })
	var largest Draw // of those that have ended the one with the largest value
	ended := 0
	for _, d := range byBegin {
		if !slices.IsSorted(d.Values) {
			return fmt.Errorf("values of one session out of order, between %v and %v: %v", d.Begin, d.End, d.Values)
		}
		for ; ended < len(byEnd) && byEnd[ended].End < d.Begin; ended++ {
			if len(byEnd[ended].Values) > 0 && (len(largest.Values) == 0 || last(byEnd[ended]) > last(largest)) {
				largest = byEnd[ended]
			}
		}
		if len(d.Values) > 0 && len(largest.Values) > 0 && d.Values[0] < last(largest) {
			return fmt.Errorf("%d was handed out between %v and %v, after %d between %v and %v",
				d.Values[0], d.Begin, d.End, last(largest), largest.Begin, largest.End)
		}
	}
	return nil
}

func last(d Draw) int64 { return d.Values[len(d.Values)-1] }

// linearized is the number of values that are judged at a time by Linearizable: the effort grows with its square.
const linearized = 8192

// Linearizable asks porcupine whether the draws can be ordered as calls of one counter that only grows, each value at a
// moment between the begin and the end of its draw. The counter may leave out values, as it does when an answer is lost or
// a process dies: the values that were handed out are known, so that it goes from one of them to the next. It judges
// stretches of the values that overlap by half.
func Linearizable(draws []Draw) error {
	var calls []porcupine.Operation
	for _, d := range draws {
		for _, v := range d.Values {
			calls = append(calls, porcupine.Operation{Output: v, Call: int64(d.Begin), Return: int64(d.End)})
		}
	}
	slices.SortFunc(calls, func(a, b porcupine.Operation) int { return cmp.Compare(a.Output.(int64), b.Output.(int64)) })
	for from := 0; from == 0 || from+linearized/2 < len(calls); from += linearized / 2 {
		stretch := calls[from:min(from+linearized, len(calls))]
		var values []int64 // each one once: a second call that got it fits nowhere
		for _, c := range stretch {
			values = append(values, c.Output.(int64))
		}
		values = slices.Compact(values)
		counter := porcupine.Model{
			Init: func() any { return 0 }, // how many values were handed out
			Step: func(state, _, output any) (bool, any) {
				n := state.(int)
				return n < len(values) && values[n] == output, n + 1
			},
		}
		if len(stretch) > 0 && !porcupine.CheckOperations(counter, slices.Clone(stretch)) {
			return fmt.Errorf("the values from %v to %v were not handed out in the order of the calls",
				stretch[0].Output, stretch[len(stretch)-1].Output)
		}
	}
	return nil
}

// Missing returns the values from first to the largest one handed out that nobody got, for an increment of 1.
func Missing(draws []Draw, first int64) (missing []int64) {
	want := first
	for _, v := range Values(draws) {
		for ; want < v; want++ {
			missing = append(missing, want)
		}
		want = v + 1
	}
	return missing
}
