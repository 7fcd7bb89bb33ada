package history_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/history"
)

// drew is a draw of values between two moments.
func drew(begin, end int, values ...int64) history.Draw {
	return history.Draw{Begin: time.Duration(begin), End: time.Duration(end), Values: values}
}

func TestVerdicts(t *testing.T) {
	for title, c := range map[string]struct {
		draws                         []history.Draw
		unique, ordered, linearizable bool
	}{
		"nothing":                     {nil, true, true, true},
		"one after the other":         {[]history.Draw{drew(1, 2, 1), drew(3, 4, 2)}, true, true, true},
		"gaps":                        {[]history.Draw{drew(1, 2, 5), drew(3, 4, 90)}, true, true, true},
		"at the same time":            {[]history.Draw{drew(1, 4, 2), drew(2, 3, 1)}, true, true, true},
		"both ends touch":             {[]history.Draw{drew(1, 2, 2), drew(2, 3, 1)}, true, true, true},
		"twice":                       {[]history.Draw{drew(1, 2, 7), drew(3, 4, 7)}, false, true, false},
		"an old value":                {[]history.Draw{drew(1, 2, 2), drew(3, 4, 1)}, true, false, false},
		"an old value among others":   {[]history.Draw{drew(1, 9, 1, 3), drew(2, 3, 4), drew(4, 5, 2)}, true, false, false},
		"two between which time goes": {[]history.Draw{drew(1, 9, 1, 4), drew(2, 3, 2), drew(4, 5, 3)}, true, true, true},
		"without values":              {[]history.Draw{drew(1, 2), drew(3, 4, 1), drew(5, 6)}, true, true, true},
		"a session's own order":       {[]history.Draw{drew(1, 2, 2, 1)}, true, false, true},
	} {
		t.Run(title, func(t *testing.T) {
			assert.Equal(t, c.unique, history.Unique(c.draws) == nil)
			assert.Equal(t, c.ordered, history.Ordered(c.draws) == nil)
			assert.Equal(t, c.linearizable, history.Linearizable(c.draws) == nil)
		})
	}
	require.Equal(t, []int64{1, 2, 4}, history.Missing([]history.Draw{drew(1, 2, 5), drew(1, 2, 3)}, 1))
}

// A long history of many callers is judged in time, and one value in it that is out of order is found.
func TestLongHistory(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	var draws []history.Draw
	for i := range 20_000 {
		at := 10 * i // the moment at which the value is made
		draws = append(draws, drew(at-rng.IntN(600), at+1+rng.IntN(600), int64(2*i)))
	}
	require.NoError(t, history.Ordered(draws))
	require.NoError(t, history.Linearizable(draws))
	i := rng.IntN(10_000)
	late := drew(10*i+10_000, 10*i+10_001, int64(2*i+1))
	draws = append(draws, late)
	require.Error(t, history.Ordered(draws))
	require.Error(t, history.Linearizable(draws))
}
