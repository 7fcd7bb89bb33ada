package sequencer

import (
	"math"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"
)

func FuzzPosition(f *testing.F) {
	edges := []int64{0, 1, -1, 2, math.MaxInt64, math.MinInt64, math.MinInt64 + 1, 1 << 32}
	for _, a := range edges {
		for _, b := range edges {
			f.Add(a, b, int64(7))
		}
	}
	f.Fuzz(func(t *testing.T, a, b, c int64) {
		x, y, z := big.NewInt(a), big.NewInt(b), big.NewInt(c)
		same := func(want *big.Int, got Position) {
			t.Helper()
			require.Equal(t, want.String(), got.String())
			read, err := ParsePosition(got.String())
			require.NoError(t, err)
			require.Equal(t, got, read)
			v, ok := got.Value()
			require.Equal(t, want.IsInt64(), ok)
			if ok {
				require.Equal(t, want.Int64(), v)
			}
		}
		same(x, At(a))
		same(new(big.Int).Mul(x, y), Product(a, b))
		same(new(big.Int).Add(x, y), At(a).Plus(At(b)))
		same(new(big.Int).Sub(x, y), At(a).Minus(At(b)))
		same(new(big.Int).Add(new(big.Int).Mul(x, y), z), Product(a, b).Plus(At(c)))
		same(new(big.Int).Sub(z, new(big.Int).Mul(x, y)), At(c).Minus(Product(a, b)))
		require.Equal(t, x.Cmp(y), At(a).Compare(At(b)))
		require.Equal(t, new(big.Int).Mul(x, y).Cmp(z), Product(a, b).Compare(At(c)))
	})
}

func FuzzParsePosition(f *testing.F) {
	for _, s := range []string{
		"", "-", "0", "-0", "+1", "01", "1_0", "0x1", " 1", "9223372036854775808", "-9223372036854775809",
		"170141183460469231731687303715884105727", "170141183460469231731687303715884105728",
		"-170141183460469231731687303715884105728", "-170141183460469231731687303715884105729", "1e3",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParsePosition(s)
		if err == nil {
			require.Equal(t, s, p.String())
		}
	})
}
