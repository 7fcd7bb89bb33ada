package sequencer

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"time"
)

// Policy tunes how a sequence's values are leased. The zero value of a field leaves it to what comes after: the sequence's
// own policy (ALTER SEQUENCE .. SET) comes first, then the first of Config.Policies that matches its name, then Config.
type Policy struct {
	Mode          Mode
	BufferSeconds float64
	MinThreshold  int64
	MinLease      int64
	MaxLease      int64
	LeaseSeconds  float64
}

// PolicyRule is a policy for the sequences whose name matches.
type PolicyRule struct {
	// Match is compared with database.schema.name: * stands for any characters but a slash, ? for one, [a-z] for one of
	// a range.
	Match string
	Policy
	// CacheOne and DefaultSource are Config's for these sequences, empty where Config's hold.
	CacheOne      Mode
	DefaultSource Source
}

// Set gives a key of the policy a value, or "cache_one" or "default_source". The error is an *Error (22023).
func (rule *PolicyRule) Set(s Setting) error {
	switch s.Key {
	case "cache_one":
		return parseWord(&rule.CacheOne, s, Mode.known)
	case "default_source":
		return parseWord(&rule.DefaultSource, s, Source.creatable)
	}
	return rule.Policy.Set(s)
}

// parseWord reads a value that is one of a few words.
func parseWord[T ~string](field *T, s Setting, known func(T) bool) error {
	if !known(T(s.Value)) {
		return errSettingValue(s)
	}
	*field = T(s.Value)
	return nil
}

func (m Mode) known() bool { return m == Cached || m == Strict }

// creatable reports whether a sequence may be created with this source.
func (s Source) creatable() bool { return s == FromStore || s == FromUpstream }

func errSettingValue(s Setting) *Error {
	return invalid("invalid value for parameter \"nextvald.%s\": \"%s\"", s.Key, s.Value)
}

// Setting is a key of a policy and its value: SET (nextvald.<key> = <value>).
type Setting struct {
	Key, Value string
}

// policyKeys are the keys of a policy, each with how it is read and written.
var policyKeys = map[string]struct {
	parse func(*Policy, string) bool // reports whether the value is good
	print func(Policy) string        // empty when it is not set
}{
	"mode": {
		func(p *Policy, v string) bool { p.Mode = Mode(v); return p.Mode.known() },
		func(p Policy) string { return string(p.Mode) },
	},
	"buffer_seconds": seconds(func(p *Policy) *float64 { return &p.BufferSeconds }),
	"lease_seconds":  seconds(func(p *Policy) *float64 { return &p.LeaseSeconds }),
	"min_threshold":  count(func(p *Policy) *int64 { return &p.MinThreshold }),
	"min_lease":      count(func(p *Policy) *int64 { return &p.MinLease }),
	"max_lease":      count(func(p *Policy) *int64 { return &p.MaxLease }),
}

// maxSeconds bounds the times of a policy.
const maxSeconds = 86400

func seconds(field func(*Policy) *float64) (k struct {
	parse func(*Policy, string) bool
	print func(Policy) string
}) {
	k.parse = func(p *Policy, v string) (ok bool) {
		n, err := strconv.ParseFloat(v, 64)
		*field(p) = n
		return err == nil && n > 0 && n <= maxSeconds
	}
	k.print = func(p Policy) string {
		if *field(&p) == 0 {
			return ""
		}
		return strconv.FormatFloat(*field(&p), 'g', -1, 64)
	}
	return k
}

func count(field func(*Policy) *int64) (k struct {
	parse func(*Policy, string) bool
	print func(Policy) string
}) {
	k.parse = func(p *Policy, v string) (ok bool) {
		n, err := strconv.ParseInt(v, 10, 64)
		*field(p) = n
		return err == nil && n >= 1 && n <= maxBlock
	}
	k.print = func(p Policy) string {
		if *field(&p) == 0 {
			return ""
		}
		return strconv.FormatInt(*field(&p), 10)
	}
	return k
}

// Set gives a key a value. The error is an *Error (22023).
func (p *Policy) Set(s Setting) error {
	k, ok := policyKeys[s.Key]
	if !ok {
		return unknownSetting(s.Key)
	}
	changed := *p
	if !k.parse(&changed, s.Value) {
		return errSettingValue(s)
	}
	if changed.MaxLease != 0 && changed.MinLease > changed.MaxLease {
		return invalid("nextvald.min_lease (%d) must not be greater than nextvald.max_lease (%d)", changed.MinLease, changed.MaxLease)
	}
	*p = changed
	return nil
}

// Reset takes a key's value away. The error is an *Error (22023).
func (p *Policy) Reset(key string) error {
	var none Policy
	switch key {
	case "mode":
		p.Mode = none.Mode
	case "buffer_seconds":
		p.BufferSeconds = none.BufferSeconds
	case "lease_seconds":
		p.LeaseSeconds = none.LeaseSeconds
	case "min_threshold":
		p.MinThreshold = none.MinThreshold
	case "min_lease":
		p.MinLease = none.MinLease
	case "max_lease":
		p.MaxLease = none.MaxLease
	default:
		return unknownSetting(key)
	}
	return nil
}

func unknownSetting(key string) *Error {
	e := invalid("unrecognized parameter \"nextvald.%s\"", key)
	e.Hint = "The parameters are nextvald.mode, buffer_seconds, lease_seconds, min_threshold, min_lease and max_lease."
	return e
}

// Settings returns what is set, ordered by key.
func (p Policy) Settings() []Setting {
	var all []Setting
	for key, k := range policyKeys {
		if v := k.print(p); v != "" {
			all = append(all, Setting{key, v})
		}
	}
	slices.SortFunc(all, func(a, b Setting) int {
		if a.Key < b.Key {
			return -1
		}
		return 1
	})
	return all
}

// over returns p with what it leaves open taken from q.
func (p Policy) over(q Policy) Policy {
	orDefault(&p.Mode, q.Mode)
	orDefault(&p.BufferSeconds, q.BufferSeconds)
	orDefault(&p.MinThreshold, q.MinThreshold)
	orDefault(&p.MinLease, q.MinLease)
	orDefault(&p.MaxLease, q.MaxLease)
	orDefault(&p.LeaseSeconds, q.LeaseSeconds)
	// Set in different places, they may contradict each other.
	p.MinLease = min(p.MinLease, p.MaxLease)
	return p
}

// policy is what holds for a sequence of that name and definition.
func (c *Config) policy(n Name, d Definition) Policy {
	return c.said(n, d).over(c.common())
}

// common is the policy of sequences about which nothing else is said.
func (c *Config) common() Policy {
	return Policy{
		Mode: c.Mode, BufferSeconds: c.BufferSeconds, MinThreshold: c.MinThreshold, MinLease: c.MinLease, MaxLease: c.MaxLease,
		LeaseSeconds: c.LeaseTarget.Seconds(),
	}
}

// DefaultPolicy is what holds where a Config says nothing. LeaseSeconds is left open: it depends on the store.
func DefaultPolicy() Policy {
	var c Config
	c.setDefaults()
	p := c.common()
	p.LeaseSeconds = 0
	return p
}

// Use makes p the policy of sequences about which nothing else is said. What p leaves open is the default.
func (c *Config) Use(p Policy) {
	c.Mode, c.BufferSeconds, c.MinThreshold, c.MinLease, c.MaxLease = p.Mode, p.BufferSeconds, p.MinThreshold, p.MinLease, p.MaxLease
	c.LeaseTarget = time.Duration(p.LeaseSeconds * float64(time.Second))
}

// said is the part of the policy that was said about this very sequence, in its statements or by a rule.
func (c *Config) said(n Name, d Definition) Policy {
	p, rule := d.Policy, c.rule(n)
	orDefault(&rule.CacheOne, c.CacheOne)
	if p.Mode == "" && d.Cache == 1 && rule.CacheOne == Strict {
		p.Mode = Strict
	}
	if rule.Match == "" {
		return p
	}
	if d.Cache > 1 {
		rule.Mode = "" // a lease of that size was asked for
	}
	return p.over(rule.Policy)
}

// rule is the first rule that matches a name; the zero rule, without a pattern, when there is none.
func (c *Config) rule(n Name) PolicyRule {
	for _, rule := range c.Policies {
		if ok, _ := path.Match(rule.Match, n.String()); ok { // validate refused bad patterns
			return rule
		}
	}
	return PolicyRule{}
}

// DefaultSource says whose a sequence is that is created with that name.
func (r *Registry) DefaultSource(n Name) Source {
	c := r.tuned.Load()
	source := c.rule(n).DefaultSource
	orDefault(&source, c.DefaultSource)
	return source
}

// Tune takes over the fields of c by which values are leased: BufferSeconds, MinThreshold, MinLease, MaxLease, LeaseTarget,
// Mode, CacheOne, DefaultSource and Policies. Mode, CacheOne and DefaultSource concern the sequences that are created or
// altered from now on, the rest all of them. An error changes nothing.
func (r *Registry) Tune(c Config) error {
	tuned := r.cfg
	tuned.BufferSeconds, tuned.MinThreshold, tuned.LeaseTarget = c.BufferSeconds, c.MinThreshold, c.LeaseTarget
	tuned.MinLease, tuned.MaxLease = c.MinLease, c.MaxLease
	tuned.Mode, tuned.CacheOne, tuned.DefaultSource, tuned.Policies = c.Mode, c.CacheOne, c.DefaultSource, slices.Clone(c.Policies)
	tuned.setDefaults()
	if err := tuned.validate(); err != nil {
		return err
	}
	r.tuned.Store(&tuned)
	for _, s := range r.open() {
		s.called(s.Name())
	}
	return nil
}

// policy is what holds for a sequence at present.
func (r *Registry) policy(n Name, d Definition) Policy { return r.tuned.Load().policy(n, d) }

// obey gives the sequence the mode that a rule says, where nothing else does and it has another.
func (s *Sequence) obey() {
	s.mu.Lock()
	item, name := s.item, s.Name()
	s.mu.Unlock()
	if mode := s.r.tuned.Load().said(name, item.Definition).Mode; mode == "" || mode == item.Mode {
		return
	}
	s.r.spawn(func() {
		if err := s.alter(s.r.ctx, Options{}); err != nil {
			s.r.cfg.Logger.Warn("a sequence keeps its mode although a policy says another", "sequence", name.String(), "error", err)
		}
	})
}

// checkPolicies refuses rules that cannot be meant.
func (c *Config) checkPolicies() error {
	for i, rule := range c.Policies {
		if _, err := path.Match(rule.Match, ""); err != nil || rule.Match == "" {
			return fmt.Errorf("sequencer: Policies[%d]: the pattern %q is malformed", i, rule.Match)
		}
		settings := rule.Settings()
		if rule.CacheOne != "" {
			settings = append(settings, Setting{"cache_one", string(rule.CacheOne)})
		}
		if rule.DefaultSource != "" {
			settings = append(settings, Setting{"default_source", string(rule.DefaultSource)})
		}
		var good PolicyRule
		for _, s := range settings {
			if err := good.Set(s); err != nil {
				return fmt.Errorf("sequencer: Policies[%d]: %w", i, err)
			}
		}
	}
	return nil
}
