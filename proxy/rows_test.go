package proxy

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/sequencer"
)

// TestDeal gives out blocks and compares with calls one after the other.
func TestDeal(t *testing.T) {
	for name, c := range map[string]struct {
		blocks []sequencer.Block
		calls  int
	}{
		"one":          {[]sequencer.Block{{First: 5, Count: 4, Increment: 1}}, 1},
		"interleaved":  {[]sequencer.Block{{First: 5, Count: 6, Increment: 2}}, 3},
		"two blocks":   {[]sequencer.Block{{First: 5, Count: 5, Increment: -1}, {First: 100, Count: 3, Increment: -1}}, 2},
		"small blocks": {[]sequencer.Block{{First: 1, Count: 1, Increment: 1}, {First: 10, Count: 1, Increment: 1}, {First: 20, Count: 2, Increment: 1}, {First: 30, Count: 2, Increment: 1}}, 3},
		"cycle":        {[]sequencer.Block{{First: 2, Count: 2, Increment: 1}, {First: 1, Count: 3, Increment: 1}, {First: 1, Count: 1, Increment: 1}}, 2},
		"far apart":    {[]sequencer.Block{{First: math.MinInt64, Count: 3, Increment: math.MaxInt64}}, 1},
		"further":      {[]sequencer.Block{{First: math.MinInt64, Count: 4, Increment: math.MaxInt64/2 + 1}}, 2},
		"wide":         {[]sequencer.Block{{First: math.MinInt64, Count: 1 << 32, Increment: 1 << 32}}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			total := int64(0)
			for _, b := range c.blocks {
				total += b.Count
			}
			dealt := deal(c.blocks, c.calls)
			require.Len(t, dealt, c.calls)
			// valueAt is the value of a call in a row, as PostgreSQL computes it: without an overflow.
			valueAt := func(v rowValues, row int64) int64 {
				i := 0
				for i+1 < len(v.start) && v.start[i+1] <= row {
					i++
				}
				n := row - v.start[i]
				if v.step != 0 {
					require.LessOrEqual(t, n, math.MaxInt64/max(v.step, -v.step))
				} else {
					require.Zero(t, n)
				}
				return v.first[i] + n*v.step
			}
			blockAt := func(i int64) int64 {
				for _, b := range c.blocks {
					if i < b.Count {
						return b.First + i*b.Increment
					}
					i -= b.Count
				}
				panic("beyond")
			}
			rows := total / int64(c.calls)
			for _, row := range []int64{1, 2, 3, rows / 2, rows - 1, rows} {
				if row < 1 || row > rows {
					continue
				}
				for k, v := range dealt {
					require.Equal(t, rows, v.rows)
					require.Equal(t, blockAt((row-1)*int64(c.calls)+int64(k)), valueAt(v, row), "call %d of row %d", k, row)
				}
			}
			for k, v := range dealt {
				require.Equal(t, blockAt((rows-1)*int64(c.calls)+int64(k)), v.last())
			}
		})
	}
}

func TestTextsOfRowValues(t *testing.T) {
	v := deal([]sequencer.Block{{First: 7, Count: 2, Increment: 3}, {First: 40, Count: 1, Increment: 3}}, 1)[0]
	require.Equal(t, [3]string{"{7,40,NULL}", "{1,3,4}", "3"}, v.texts())
	require.Equal(t, [3]string{"{NULL}", "{1}", "0"}, rowValues{}.texts())
	require.Equal(t, `{"a","b\"c","d\\"}`, string(arrayOf([]string{"a", `b"c`, `d\`})))
}
