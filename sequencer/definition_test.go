package sequencer

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func p[T any](v T) *T { return &v }

// The texts and results of the tables are PostgreSQL 15's.

func TestDefine(t *testing.T) {
	at := func(v int64) *Bound { return &Bound{Value: v} }
	no := &Bound{No: true}
	for name, c := range map[string]struct {
		options Options
		want    Definition
		err     string
	}{
		"nothing":               {Options{}, Definition{Start: 1, Increment: 1, Min: 1, Max: math.MaxInt64}, ""},
		"descending":            {Options{Increment: p[int64](-1)}, Definition{Start: -1, Increment: -1, Min: math.MinInt64, Max: -1}, ""},
		"smallint":              {Options{As: p(Smallint)}, Definition{Type: Smallint, Start: 1, Increment: 1, Min: 1, Max: 32767}, ""},
		"integer":               {Options{As: p(Integer)}, Definition{Type: Integer, Start: 1, Increment: 1, Min: 1, Max: 2147483647}, ""},
		"smallint down":         {Options{As: p(Smallint), Increment: p[int64](-3)}, Definition{Type: Smallint, Start: -1, Increment: -3, Min: -32768, Max: -1}, ""},
		"no bounds":             {Options{Min: no, Max: no}, Definition{Start: 1, Increment: 1, Min: 1, Max: math.MaxInt64}, ""},
		"start is the minimum":  {Options{Min: at(5)}, Definition{Start: 5, Increment: 1, Min: 5, Max: math.MaxInt64}, ""},
		"start is the maximum":  {Options{Max: at(5), Increment: p[int64](-1)}, Definition{Start: 5, Increment: -1, Min: math.MinInt64, Max: 5}, ""},
		"negative minimum":      {Options{Min: at(-5), Cycle: p(true)}, Definition{Start: -5, Increment: 1, Min: -5, Max: math.MaxInt64, Cycle: true}, ""},
		"cache and owner":       {Options{Cache: p[int64](7), OwnedBy: p("t.c"), Owner: p("me")}, Definition{Start: 1, Increment: 1, Min: 1, Max: math.MaxInt64, Cache: 7, OwnedBy: "t.c", Owner: "me"}, ""},
		"increment past type":   {Options{As: p(Smallint), Increment: p[int64](40000)}, Definition{Type: Smallint, Start: 1, Increment: 40000, Min: 1, Max: 32767}, ""},
		"greatest":              {Options{Start: p[int64](math.MaxInt64)}, Definition{Start: math.MaxInt64, Increment: 1, Min: 1, Max: math.MaxInt64}, ""},
		"least increment":       {Options{Increment: p[int64](math.MinInt64)}, Definition{Start: -1, Increment: math.MinInt64, Min: math.MinInt64, Max: -1}, ""},
		"restart":               {Options{Restart: &Restart{Value: 5}}, Definition{Start: 1, Increment: 1, Min: 1, Max: math.MaxInt64, first: 5, restarted: true}, ""},
		"restart, bare":         {Options{Start: p[int64](3), Restart: &Restart{Bare: true}}, Definition{Start: 3, Increment: 1, Min: 1, Max: math.MaxInt64, first: 3, restarted: true}, ""},
		"increment 0":           {Options{Increment: p[int64](0)}, Definition{}, "INCREMENT must not be zero"},
		"cache 0":               {Options{Cache: p[int64](0)}, Definition{}, "CACHE (0) must be greater than zero"},
		"cache -1":              {Options{Cache: p[int64](-1)}, Definition{}, "CACHE (-1) must be greater than zero"},
		"minimum above maximum": {Options{Min: at(10), Max: at(5)}, Definition{}, "MINVALUE (10) must be less than MAXVALUE (5)"},
		"minimum is maximum":    {Options{Min: at(10), Max: at(10)}, Definition{}, "MINVALUE (10) must be less than MAXVALUE (10)"},
		"start below":           {Options{Start: p[int64](0)}, Definition{}, "START value (0) cannot be less than MINVALUE (1)"},
		"start above":           {Options{Max: at(5), Start: p[int64](6)}, Definition{}, "START value (6) cannot be greater than MAXVALUE (5)"},
		"maximum past smallint": {Options{As: p(Smallint), Max: at(40000)}, Definition{}, "MAXVALUE (40000) is out of range for sequence data type smallint"},
		"minimum past integer":  {Options{As: p(Integer), Min: at(-3000000000)}, Definition{}, "MINVALUE (-3000000000) is out of range for sequence data type integer"},
		"restart below":         {Options{Restart: &Restart{Value: 0}}, Definition{}, "RESTART value (0) cannot be less than MINVALUE (1)"},
		"increment comes first": {Options{Increment: p[int64](0), Cache: p[int64](0), Max: at(-1)}, Definition{}, "INCREMENT must not be zero"},
		"maximum before cache":  {Options{Cache: p[int64](0), Max: at(-1)}, Definition{}, "MINVALUE (1) must be less than MAXVALUE (-1)"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Define(c.options)
			if c.err != "" {
				require.Equal(t, invalid("%s", c.err), err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
			require.NoError(t, got.validate())
		})
	}
}

func TestAlter(t *testing.T) {
	at := func(v int64) *Bound { return &Bound{Value: v} }
	no := &Bound{No: true}
	up := Definition{Start: 1, Increment: 1, Min: 1, Max: math.MaxInt64}
	small := Definition{Type: Smallint, Start: 1, Increment: 1, Min: 1, Max: 32767}
	smallDown := Definition{Type: Smallint, Start: -1, Increment: -1, Min: -32768, Max: -1}
	integer := Definition{Type: Integer, Start: 1, Increment: 1, Min: 1, Max: 2147483647}
	for name, c := range map[string]struct {
		definition Definition
		at         cursor
		options    Options
		want       Definition
		wantAt     cursor
		err        string
	}{
		"nothing":                   {up, cursor{3, true}, Options{}, up, cursor{3, true}, ""},
		"increment":                 {up, cursor{3, true}, Options{Increment: p[int64](5)}, Definition{Start: 1, Increment: 5, Min: 1, Max: math.MaxInt64}, cursor{3, true}, ""},
		"wider type":                {small, cursor{3, true}, Options{As: p(Integer)}, integer, cursor{3, true}, ""},
		"wider type, down":          {smallDown, cursor{-3, true}, Options{As: p(Integer)}, Definition{Type: Integer, Start: -1, Increment: -1, Min: -2147483648, Max: -1}, cursor{-3, true}, ""},
		"narrower type, turned":     {integer, cursor{1, false}, Options{As: p(Smallint), Increment: p[int64](-1)}, Definition{Type: Smallint, Start: 1, Increment: -1, Min: 1, Max: 32767}, cursor{1, false}, ""},
		"chosen bound stays":        {Definition{Type: Smallint, Start: 1, Increment: 1, Min: 1, Max: 100}, cursor{1, false}, Options{As: p(Bigint)}, Definition{Start: 1, Increment: 1, Min: 1, Max: 100}, cursor{1, false}, ""},
		"turned keeps its bounds":   {up, cursor{1, false}, Options{Increment: p[int64](-1)}, Definition{Start: 1, Increment: -1, Min: 1, Max: math.MaxInt64}, cursor{1, false}, ""},
		"no bounds, reset by type":  {Definition{Type: Smallint, Start: 1, Increment: -1, Min: 1, Max: 32767}, cursor{1, false}, Options{As: p(Bigint), Min: no, Max: no}, Definition{Start: 1, Increment: -1, Min: math.MinInt64, Max: math.MaxInt64}, cursor{1, false}, ""},
		"restart":                   {up, cursor{8, true}, Options{Restart: &Restart{Bare: true}}, up, cursor{1, false}, ""},
		"restart with, new start":   {up, cursor{8, true}, Options{Restart: &Restart{Value: 7}, Start: p[int64](6)}, Definition{Start: 6, Increment: 1, Min: 1, Max: math.MaxInt64}, cursor{7, false}, ""},
		"restart at a new start":    {up, cursor{8, true}, Options{Restart: &Restart{Bare: true}, Start: p[int64](6)}, Definition{Start: 6, Increment: 1, Min: 1, Max: math.MaxInt64}, cursor{6, false}, ""},
		"not owned any more":        {Definition{Start: 1, Increment: 1, Min: 1, Max: 9, OwnedBy: "t.c"}, cursor{1, false}, Options{OwnedBy: p("")}, Definition{Start: 1, Increment: 1, Min: 1, Max: 9}, cursor{1, false}, ""},
		"maximum below minimum":     {up, cursor{1, false}, Options{Max: at(0)}, Definition{}, cursor{}, "MINVALUE (1) must be less than MAXVALUE (0)"},
		"maximum below the value":   {integer, cursor{3, true}, Options{Max: at(2)}, Definition{}, cursor{}, "RESTART value (3) cannot be greater than MAXVALUE (2)"},
		"minimum above start":       {integer, cursor{3, true}, Options{Min: at(4)}, Definition{}, cursor{}, "START value (1) cannot be less than MINVALUE (4)"},
		"minimum above the value":   {integer, cursor{3, true}, Options{Min: at(4), Start: p[int64](5)}, Definition{}, cursor{}, "RESTART value (3) cannot be less than MINVALUE (4)"},
		"restart above":             {integer, cursor{3, true}, Options{Restart: &Restart{Value: 9999999999}}, Definition{}, cursor{}, "RESTART value (9999999999) cannot be greater than MAXVALUE (2147483647)"},
		"narrower type, value past": {up, cursor{40000, true}, Options{As: p(Smallint)}, Definition{}, cursor{}, "RESTART value (40000) cannot be greater than MAXVALUE (32767)"},
	} {
		t.Run(name, func(t *testing.T) {
			got, gotAt, err := merge(c.definition, c.at, c.options, false)
			if c.err != "" {
				require.Equal(t, invalid("%s", c.err), err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
			require.Equal(t, c.wantAt, gotAt)
		})
	}
}

func TestRoom(t *testing.T) {
	for name, c := range map[string]struct {
		increment, from, to int64
		pos                 Position
		want                int64
	}{
		"one left":        {1, 1, 10, At(10), 1},
		"none left":       {1, 1, 10, At(11), 0},
		"below":           {1, 1, 10, At(0), 0},
		"uneven":          {4, 1, 10, At(1), 3},
		"down":            {-4, 1, 10, At(10), 3},
		"down, none left": {-4, 1, 10, At(-2), 0},
		"past int8":       {1, 1, math.MaxInt64, At(math.MaxInt64).Plus(At(1)), 0},
		"all but one":     {1, math.MinInt64, math.MaxInt64, At(1), math.MaxInt64},
		"more than int8":  {1, math.MinInt64, math.MaxInt64, At(math.MinInt64), math.MaxInt64},
		"down, more":      {-1, math.MinInt64, math.MaxInt64, At(math.MaxInt64), math.MaxInt64},
		"greatest step":   {math.MaxInt64, math.MinInt64, math.MaxInt64, At(math.MinInt64), 3},
		"least step":      {math.MinInt64, math.MinInt64, math.MaxInt64, At(math.MaxInt64), 2},
	} {
		d := Definition{Increment: c.increment, Min: c.from, Max: c.to}
		require.Equal(t, c.want, d.room(c.pos), name)
	}
}
