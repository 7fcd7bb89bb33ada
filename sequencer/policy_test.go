package sequencer_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/memstore"
)

func TestPolicySettings(t *testing.T) {
	var p sequencer.Policy
	all := []sequencer.Setting{
		{"buffer_seconds", "2.5"}, {"lease_seconds", "90"}, {"max_lease", "5000"}, {"min_lease", "10"}, {"min_threshold", "7"}, {"mode", "strict"},
	}
	for _, s := range all {
		require.NoError(t, p.Set(s))
	}
	require.Equal(t, all, p.Settings())
	for _, bad := range []struct {
		setting sequencer.Setting
		message string
	}{
		{sequencer.Setting{Key: "mode", Value: "lazy"}, `invalid value for parameter "nextvald.mode": "lazy"`},
		{sequencer.Setting{Key: "max_lease", Value: "0"}, `invalid value for parameter "nextvald.max_lease": "0"`},
		{sequencer.Setting{Key: "max_lease", Value: "many"}, `invalid value for parameter "nextvald.max_lease": "many"`},
		{sequencer.Setting{Key: "max_lease", Value: "5"}, `nextvald.min_lease (10) must not be greater than nextvald.max_lease (5)`},
		{sequencer.Setting{Key: "buffer_seconds", Value: "NaN"}, `invalid value for parameter "nextvald.buffer_seconds": "NaN"`},
		{sequencer.Setting{Key: "buffer_seconds", Value: "-1"}, `invalid value for parameter "nextvald.buffer_seconds": "-1"`},
		{sequencer.Setting{Key: "speed", Value: "1"}, `unrecognized parameter "nextvald.speed"`},
	} {
		fails(t, p.Set(bad.setting), "22023", bad.message)
	}
	require.Equal(t, all, p.Settings(), "a bad setting changes nothing")
	for _, s := range all {
		require.NoError(t, p.Reset(s.Key))
	}
	require.Empty(t, p.Settings())
	fails(t, p.Reset("speed"), "22023", `unrecognized parameter "nextvald.speed"`)
}

// SET wins over CACHE 1, that over a rule of the configuration, the first rule over the next, rules over the default.
func TestMode(t *testing.T) {
	rules := []sequencer.PolicyRule{
		{Match: "shop.public.a*", Policy: sequencer.Policy{Mode: sequencer.Strict}},
		{Match: "shop.*", Policy: sequencer.Policy{Mode: sequencer.Cached}},
	}
	caching := []sequencer.PolicyRule{{Match: "shop.public.a*", CacheOne: sequencer.Cached}}
	one, ten := ptr[int64](1), ptr[int64](10)
	strict := []sequencer.Setting{{"mode", "strict"}}
	cached := []sequencer.Setting{{"mode", "cached"}}
	for title, c := range map[string]struct {
		cfg     sequencer.Config
		name    string
		options sequencer.Options
		want    sequencer.Mode
	}{
		"default":                {sequencer.Config{}, "s", sequencer.Options{}, sequencer.Cached},
		"default is strict":      {sequencer.Config{Mode: sequencer.Strict}, "s", sequencer.Options{}, sequencer.Strict},
		"cache 1":                {sequencer.Config{}, "s", sequencer.Options{Cache: one}, sequencer.Strict},
		"cache 10":               {sequencer.Config{}, "s", sequencer.Options{Cache: ten}, sequencer.Cached},
		"cache 1 is cached":      {sequencer.Config{CacheOne: sequencer.Cached}, "s", sequencer.Options{Cache: one}, sequencer.Cached},
		"cache 1 by a rule":      {sequencer.Config{Policies: caching}, "a1", sequencer.Options{Cache: one}, sequencer.Cached},
		"cache 1 by no rule":     {sequencer.Config{Policies: caching}, "b1", sequencer.Options{Cache: one}, sequencer.Strict},
		"set":                    {sequencer.Config{}, "s", sequencer.Options{Set: strict}, sequencer.Strict},
		"set over cache 1":       {sequencer.Config{}, "s", sequencer.Options{Cache: one, Set: cached}, sequencer.Cached},
		"rule":                   {sequencer.Config{Policies: rules}, "a1", sequencer.Options{}, sequencer.Strict},
		"the next rule":          {sequencer.Config{Policies: rules, Mode: sequencer.Strict}, "b1", sequencer.Options{}, sequencer.Cached},
		"set over rule":          {sequencer.Config{Policies: rules}, "a1", sequencer.Options{Set: cached}, sequencer.Cached},
		"cache 1 over rule":      {sequencer.Config{Policies: rules}, "b1", sequencer.Options{Cache: one}, sequencer.Strict},
		"cache 10 and a rule":    {sequencer.Config{Policies: rules}, "a1", sequencer.Options{Cache: ten}, sequencer.Cached},
		"set and reset, at once": {sequencer.Config{}, "s", sequencer.Options{Reset: []string{"mode"}, Set: strict}, sequencer.Strict},
	} {
		t.Run(title, func(t *testing.T) {
			store := memstore.New()
			r := open(t, store, c.cfg)
			s := create(t, r, c.name, c.options)
			require.Equal(t, c.want, must(store.Get(context.Background(), s.Incarnation())).Mode)
			draw(t, s, 3)
			require.Equal(t, c.want == sequencer.Strict, r.Stats().Depth == 0)
		})
	}
}

func TestDefaultSource(t *testing.T) {
	rules := []sequencer.PolicyRule{
		{Match: "shop.public.a*", DefaultSource: sequencer.FromUpstream},
		{Match: "shop.public.b*", DefaultSource: sequencer.FromStore},
		{Match: "shop.public.c*"},
	}
	r := open(t, memstore.New(), sequencer.Config{Policies: rules})
	sources := func() (all []sequencer.Source) {
		for _, n := range []string{"a1", "b1", "c1", "d1"} {
			all = append(all, r.DefaultSource(name(n)))
		}
		return all
	}
	const store, upstream = sequencer.FromStore, sequencer.FromUpstream
	require.Equal(t, []sequencer.Source{upstream, store, store, store}, sources())
	require.NoError(t, r.Tune(sequencer.Config{Policies: rules, DefaultSource: upstream}))
	require.Equal(t, []sequencer.Source{upstream, store, upstream, upstream}, sources())
	require.ErrorContains(t, r.Tune(sequencer.Config{DefaultSource: sequencer.Moving}), "DefaultSource")
	require.ErrorContains(t, r.Tune(sequencer.Config{Policies: []sequencer.PolicyRule{{Match: "*", CacheOne: "x"}}}), "cache_one")
}

func TestPolicyOnline(t *testing.T) {
	ctx := context.Background()
	r := open(t, memstore.New(), sequencer.Config{
		Policies: []sequencer.PolicyRule{{Match: "*.small*", Policy: sequencer.Policy{MinLease: 5, MaxLease: 5, MinThreshold: 1}}},
	})
	leases := func(s *sequencer.Sequence, n int) uint64 {
		before := r.Stats().Leases
		draw(t, s, n)
		return r.Stats().Leases - before
	}
	small := create(t, r, "small_seq", sequencer.Options{})
	require.InDelta(t, 20, leases(small, 100), 2)
	s := create(t, r, "s", sequencer.Options{})
	require.Less(t, leases(s, 1000), uint64(10))
	alter := func(o sequencer.Options) { require.NoError(t, r.Alter(ctx, name("s"), o)) }
	alter(sequencer.Options{Set: []sequencer.Setting{{"min_lease", "10"}, {"max_lease", "10"}, {"min_threshold", "1"}}})
	require.InDelta(t, 100, leases(s, 1000), 5)
	alter(sequencer.Options{Set: []sequencer.Setting{{"mode", "strict"}}})
	require.InDelta(t, 50, leases(s, 50), 1, "and perhaps the one that was under way")
	alter(sequencer.Options{Reset: []string{"mode", "min_lease", "max_lease", "min_threshold"}})
	require.Less(t, leases(s, 1000), uint64(20))
	require.EqualValues(t, 3051, next(t, s), "and no value is skipped")
	fails(t, r.Alter(ctx, name("s"), sequencer.Options{Set: []sequencer.Setting{{"speed", "1"}}}), "22023", `unrecognized parameter "nextvald.speed"`)

	// A name that a rule matches counts from then on.
	require.NoError(t, r.Rename(ctx, name("s"), name("smaller_seq")))
	draw(t, s, int(r.Stats().Depth))
	require.InDelta(t, 20, leases(s, 100), 5)

	_, err := sequencer.Open(ctx, memstore.New(), sequencer.Config{Policies: []sequencer.PolicyRule{{Match: "[a"}}})
	require.ErrorContains(t, err, `the pattern "[a" is malformed`)
	_, err = sequencer.Open(ctx, memstore.New(), sequencer.Config{Policies: []sequencer.PolicyRule{{Match: "a", Policy: sequencer.Policy{MinLease: -1}}}})
	require.ErrorContains(t, err, "min_lease")
}

// A rule's mode holds for sequences that exist already too; what was said of the sequence itself wins.
func TestRulesComeToHold(t *testing.T) {
	ctx := context.Background()
	store := memstore.New()
	mode := func(s *sequencer.Sequence) sequencer.Mode { return must(store.Get(ctx, s.Incarnation())).Mode }
	first := open(t, store, sequencer.Config{})
	ruled, own, fixed := create(t, first, "ruled", sequencer.Options{}),
		create(t, first, "own", sequencer.Options{Set: []sequencer.Setting{{"mode", "cached"}}}),
		create(t, first, "fixed", sequencer.Options{Cache: ptr[int64](20)})
	draw(t, ruled, 3)
	strict := sequencer.Config{Policies: []sequencer.PolicyRule{{Match: "*", Policy: sequencer.Policy{Mode: sequencer.Strict}}}}

	second := open(t, store, strict)
	for _, s := range []*sequencer.Sequence{ruled, own, fixed} {
		_, err := second.Lookup(ctx, s.Name())
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return mode(ruled) == sequencer.Strict }, 10*time.Second, time.Millisecond)
	require.Equal(t, sequencer.Cached, mode(own))
	require.Equal(t, sequencer.Cached, mode(fixed))

	cached := sequencer.Config{Policies: []sequencer.PolicyRule{{Match: "*", Policy: sequencer.Policy{Mode: sequencer.Cached, MinLease: 7}}}}
	require.NoError(t, second.Tune(cached))
	require.Eventually(t, func() bool { return mode(ruled) == sequencer.Cached }, 10*time.Second, time.Millisecond)
	require.ErrorContains(t, second.Tune(sequencer.Config{MinLease: 10, MaxLease: 5}), "MinLease")
	require.Greater(t, next(t, ruled), int64(3))
}
