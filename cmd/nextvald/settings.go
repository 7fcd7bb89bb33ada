package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/nextvald/nextvald/proxy"
	"github.com/nextvald/nextvald/sequencer"
)

// settings is how serve is told to run.
type settings struct {
	listen        []string
	tcp           tcpOptions
	proxyProtocol bool
	tlsRequired   bool
	upstream      *upstream // nil: standalone
	store         storeURL
	namespace     string
	admin         string // empty: none
	tls           proxy.TLSFiles
	auth          string // relay or scram
	users         string // file; empty: none
	authQuery     string // empty: none
	logLevel      slog.Level
	logFormat     string
	storeTimeout  time.Duration
	maxOffline    time.Duration
	peerRole      string
	drainTimeout  time.Duration
	limits        proxy.Limits
	// How values are leased: by the first of policies that matches, else by policy.
	policy        sequencer.Policy
	policies      []sequencer.PolicyRule
	cacheOne      sequencer.Mode
	defaultSource sequencer.Source
	// mirrored: sequences exist in the upstream too. Its own are drawn of from hotCalls calls a second on.
	mirrored bool
	hotCalls int

	// origins says, by key, where a value was written, as an error about it names it.
	origins map[string]string
	// texts are the values as they were written, by key. That of policiesKey is for comparisons only.
	texts map[string]string
}

// setting is one row of the table that flags, environment and file are read by. Its key is that of the file, nested keys
// joined by full stops. As a variable it is upper case after NEXTVALD_ and as a flag it is in dashes: store_timeout,
// NEXTVALD_STORE_TIMEOUT, --store-timeout.
type setting struct {
	key   string
	value string // the default
	usage string // for the help, with what the value is in back quotes
	// set checks a value and keeps it. Its errors do not repeat a value that may hold a password.
	set func(*settings, string) error
}

// The order is that of the help.
var table = []setting{
	{"listen", "127.0.0.1:6432", "`ADDRESS` to serve clients on, or unix:FOLDER for a socket there; may be given more than once", func(s *settings, v string) error {
		s.listen = strings.Split(v, listSeparator)
		for _, address := range s.listen {
			if err := checkListen(address); err != nil {
				return err
			}
		}
		return nil
	}},
	{"proxy_protocol", "false", "`BOOLEAN`: connections by TCP begin with a PROXY header, version 2 (true, false)", func(s *settings, v string) error {
		s.proxyProtocol = v == "true"
		return oneOf(v, "true", "false")
	}},
	{"upstream", "", "`URL` of the PostgreSQL behind, postgres://USER:PASSWORD@HOST:PORT/DATABASE (none: a sequence server)",
		func(s *settings, v string) (err error) {
			if v != "" {
				s.upstream, err = parseUpstream(v)
			}
			return err
		}},
	{"store", "bolt:./nextvald-data/nextvald.db", "`URL` of the store: bolt:PATH[?over=URL], dynamodb:TABLE[?region=R&endpoint=U], peer:URL of another nextvald, or memory:",
		func(s *settings, v string) (err error) {
			s.store, err = parseStore(v)
			return err
		}},
	{"namespace", "default", "`NAME` that separates deployments that share a store", func(s *settings, v string) error {
		s.namespace = v
		return checkNamespace(v)
	}},
	{"admin", "127.0.0.1:6480", "`ADDRESS` of health checks and metrics (empty: none)", func(s *settings, v string) error {
		s.admin = v
		if v == "" {
			return nil
		}
		return checkAddress(v)
	}},
	{"tls_cert", "", "`FILE` of the certificate that clients are shown, with those above it (none: no TLS)", func(s *settings, v string) error {
		s.tls.Cert = v
		return nil
	}},
	{"tls_key", "", "`FILE` of the private key of that certificate", func(s *settings, v string) error {
		s.tls.Key = v
		return nil
	}},
	{"tls_client_ca", "", "`FILE` of authorities; every client then needs a certificate of theirs that names its user", func(s *settings, v string) error {
		s.tls.ClientCA = v
		return nil
	}},
	{"tls_required", "false", "`BOOLEAN`: clients by TCP are refused without TLS (true, false)", func(s *settings, v string) error {
		s.tlsRequired = v == "true"
		return oneOf(v, "true", "false")
	}},
	{"auth", "relay", "`WHO` asks clients for their passwords: relay, the upstream; scram, nextvald itself", func(s *settings, v string) error {
		s.auth = v
		return oneOf(v, "relay", "scram")
	}},
	{"users", "", "`FILE` of users and their secrets for auth scram, as PgBouncer's auth_file", func(s *settings, v string) error {
		s.users = v
		return nil
	}},
	{"auth_query", "", "`SQL` that returns name and secret of the user $1, for auth scram; asked of the upstream", func(s *settings, v string) error {
		s.authQuery = v
		return nil
	}},
	{"log_level", "info", "`LEVEL` of what is logged: debug, info, warn or error", func(s *settings, v string) error {
		if err := oneOf(v, "debug", "info", "warn", "error"); err != nil {
			return err
		}
		return s.logLevel.UnmarshalText([]byte(v))
	}},
	{"log_format", "text", "`FORMAT` of the log: text or json", func(s *settings, v string) error {
		s.logFormat = v
		return oneOf(v, "text", "json")
	}},
	durationSetting("store_timeout", "5s", time.Millisecond, "`DURATION` that bounds each request to the store, and a caller's wait for one",
		func(s *settings) *time.Duration { return &s.storeTimeout }),
	durationSetting("max_offline", "5m", 10*time.Second, "`DURATION` for which values in memory are handed out while the store cannot be followed",
		func(s *settings) *time.Duration { return &s.maxOffline }),
	durationSetting("drain_timeout", "30s", 0, "`DURATION` that sessions have to end their transactions after SIGTERM",
		func(s *settings) *time.Duration { return &s.drainTimeout }),
	durationSetting("login_timeout", "1m", 10*time.Millisecond, "`DURATION` that a client may take to log in",
		func(s *settings) *time.Duration { return &s.limits.Login }),
	durationSetting("client_idle_timeout", "0s", 0, "`DURATION` that a session may wait for its client outside of a transaction (0s: for ever)",
		func(s *settings) *time.Duration { return &s.limits.ClientIdle }),
	durationSetting("tcp_keepalive", "1m", 0, "`DURATION` of silence before a peer by TCP is asked whether it is still there (0s: never)",
		func(s *settings) *time.Duration { return &s.tcp.keepAlive }),
	durationSetting("tcp_user_timeout", "0s", 0, "`DURATION` for which a peer by TCP may leave data unacknowledged (0s: what the system says)",
		func(s *settings) *time.Duration { return &s.tcp.userTimeout }),
	{"max_connections", "0", "`NUMBER` of clients at once (0: any)", func(s *settings, v string) (err error) {
		s.limits.MaxConnections, err = strconv.Atoi(v)
		if err != nil || s.limits.MaxConnections < 0 {
			return fmt.Errorf("%q is not a number of clients", v)
		}
		return nil
	}},
	{"peer_role", "", "`USER` as which other nextvalds may lease from this one (empty: none may)", func(s *settings, v string) error {
		s.peerRole = v
		return nil
	}},
	{"upstream_sequences", "mirrored", "`MODE` of the sequences: mirrored, which exist in the upstream too, or virtual, unknown to it", func(s *settings, v string) error {
		s.mirrored = v == "mirrored"
		return oneOf(v, "virtual", "mirrored")
	}},
	{"sequences.hot_calls", "50", "`NUMBER` of calls in a second from which on values of one of the upstream's own sequences are drawn ahead", func(s *settings, v string) (err error) {
		s.hotCalls, err = strconv.Atoi(v)
		if err != nil || s.hotCalls < 1 {
			return fmt.Errorf("%q is not a number of calls", v)
		}
		return nil
	}},
	{"sequences.cache_one", "strict", "`MODE` that CACHE 1 in a statement means: strict, or cached as no CACHE clause does", func(s *settings, v string) error {
		s.cacheOne = sequencer.Mode(v)
		return oneOf(v, "strict", "cached")
	}},
	{"sequences.default_source", "store", "`SOURCE` of the sequences that are created: store, or upstream, which then creates them", func(s *settings, v string) error {
		s.defaultSource = sequencer.Source(v)
		return oneOf(v, "store", "upstream")
	}},
	policySetting("mode", "`MODE` of sequences without a CACHE clause: cached, or strict (in real-time order across processes, a store write a call)"),
	policySetting("buffer_seconds", "`SECONDS` of supply that an outage of the store should find"),
	policySetting("min_threshold", "`VALUES` in hand below which more are leased, whatever the rate"),
	policySetting("min_lease", "`VALUES` that are leased at least"),
	policySetting("max_lease", "`VALUES` that are leased at most"),
	policySetting("lease_seconds", "`SECONDS` that the values in hand should last after a lease (by the store)"),
}

// maxDuration bounds the settings that are durations.
const maxDuration = 24 * time.Hour

// durationSetting is a setting of at least least.
func durationSetting(key, value string, least time.Duration, usage string, field func(*settings) *time.Duration) setting {
	return setting{key, value, usage, func(s *settings, v string) error {
		d, err := time.ParseDuration(v)
		if err != nil || d < least || d > maxDuration {
			return fmt.Errorf("%q is not a duration between %v and %v, such as 5s", v, least, maxDuration)
		}
		*field(s) = d
		return nil
	}}
}

// policySetting is the setting of a key of the sequences' common policy.
func policySetting(key, usage string) setting {
	var value string
	for _, d := range sequencer.DefaultPolicy().Settings() {
		if d.Key == key {
			value = d.Value
		}
	}
	return setting{"sequences." + key, value, usage, func(s *settings, v string) error {
		if v == "" && value == "" {
			return nil // it depends on the store
		}
		return s.policy.Set(sequencer.Setting{Key: key, Value: v})
	}}
}

// oneOf refuses a value that is none of those.
func oneOf(v string, values ...string) error {
	if !slices.Contains(values, v) {
		return fmt.Errorf("%q is not one of %s", v, strings.Join(values, ", "))
	}
	return nil
}

// listKeys are the settings that may be given more than once: as flags, and as lists in the file. In a variable, and in the
// value that set gets, their values are joined by listSeparator.
var listKeys = []string{"listen"}

const listSeparator = ","

// policiesKey names the policies by patterns of names. They are a list, so they are a key of the file only.
const policiesKey = "sequences.policies"

// configKey names the file itself, so it is a flag and a variable only.
const configKey = "config"

const envPrefix = "NEXTVALD_"

// otherVariables are not settings: those of the tests, and those that container platforms set for a service that is named
// nextvald.
var otherVariables = []string{"NEXTVALD_TEST_", "NEXTVALD_SERVICE_", "NEXTVALD_PORT_", "NEXTVALD_PORT="}

func flagName(key string) string { return strings.NewReplacer(".", "-", "_", "-").Replace(key) }

func envName(key string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// addFlags adds flags for the settings of the given keys, all of them when none is given. All are plain strings: they are
// checked later, as those from elsewhere are.
func addFlags(cmd *cobra.Command, keys ...string) {
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.String(configKey, "", "YAML `FILE` of settings")
	for _, s := range table {
		switch {
		case len(keys) > 0 && !slices.Contains(keys, s.key):
		case slices.Contains(listKeys, s.key):
			flags.StringArray(flagName(s.key), strings.Split(s.value, listSeparator), s.usage)
		default:
			flags.String(flagName(s.key), s.value, s.usage)
		}
	}
}

// written is a value and where it was written.
type written struct{ value, origin string }

// readSettings reads the settings of a command: flags win, then the environment, then the file, then the defaults.
func readSettings(cmd *cobra.Command, environ []string) (*settings, error) {
	env, err := readEnvironment(environ)
	if err != nil {
		return nil, err
	}
	flagged := func(key string) (written, bool) {
		f := cmd.Flags().Lookup(flagName(key))
		if f == nil || !f.Changed {
			return written{}, false
		}
		value := f.Value.String()
		if slices.Contains(listKeys, key) {
			values, err := cmd.Flags().GetStringArray(f.Name)
			if err != nil {
				return written{}, false // it is one
			}
			value = strings.Join(values, listSeparator)
		}
		return written{value, "--" + f.Name}, true
	}
	s := &settings{origins: map[string]string{}, texts: map[string]string{}}
	values := map[string]written{}
	if file, ok := first(configKey, flagged, env.get); ok {
		if values, s.policies, err = readFile(file); err != nil {
			return nil, err
		}
	}
	for _, row := range table {
		w, ok := first(row.key, flagged, env.get, func(key string) (written, bool) { w, ok := values[key]; return w, ok })
		if !ok {
			w = written{row.value, "--" + flagName(row.key)}
		}
		if err := row.set(s, w.value); err != nil {
			return nil, fmt.Errorf("%s: %w", w.origin, err)
		}
		s.origins[row.key], s.texts[row.key] = w.origin, w.value
	}
	s.texts[policiesKey] = fmt.Sprint(s.policies)
	return s, s.checkTogether()
}

// checkTogether checks settings that need each other.
func (s *settings) checkTogether() error {
	switch {
	case s.tls.Cert != "" && s.tls.Key == "":
		return s.fault("tls_cert", errors.New("needs tls_key beside it"))
	case s.tls.Key != "" && s.tls.Cert == "":
		return s.fault("tls_key", errors.New("needs tls_cert beside it"))
	case s.tls.ClientCA != "" && s.tls.Cert == "":
		return s.fault("tls_client_ca", errors.New("needs tls_cert and tls_key beside it"))
	case s.tlsRequired && s.tls.Cert == "":
		return s.fault("tls_required", errors.New("needs tls_cert and tls_key beside it"))
	case s.auth == "scram" && s.users == "" && s.authQuery == "":
		return s.fault("auth", errors.New("scram needs users or auth_query beside it"))
	case s.auth == "relay" && s.users != "":
		return s.fault("users", errors.New("is for auth scram: with relay the upstream knows the users"))
	case s.auth == "relay" && s.authQuery != "":
		return s.fault("auth_query", errors.New("is for auth scram: with relay the upstream knows the users"))
	case s.upstream == nil && s.defaultSource == sequencer.FromUpstream:
		return s.fault("sequences.default_source", errNoSource)
	case s.upstream == nil && slices.ContainsFunc(s.policies, func(p sequencer.PolicyRule) bool { return p.DefaultSource == sequencer.FromUpstream }):
		return s.fault(policiesKey, errNoSource)
	case s.authQuery != "" && s.upstream == nil:
		return s.fault("auth_query", errors.New("needs an upstream to ask"))
	}
	return nil
}

var errNoSource = errors.New("default_source upstream needs an upstream")

// tunable are the keys that sequencerConfig takes.
func tunable() []string {
	keys := []string{policiesKey, "sequences.cache_one", "sequences.default_source"}
	for _, d := range sequencer.DefaultPolicy().Settings() {
		keys = append(keys, "sequences."+d.Key)
	}
	return keys
}

// sequencerConfig is how values are leased.
func (s *settings) sequencerConfig() sequencer.Config {
	c := sequencer.Config{CacheOne: s.cacheOne, DefaultSource: s.defaultSource, Policies: s.policies}
	c.Use(s.policy)
	return c
}

// first returns the value of key from the first source that has one.
func first(key string, sources ...func(string) (written, bool)) (written, bool) {
	for _, source := range sources {
		if w, ok := source(key); ok {
			return w, true
		}
	}
	return written{}, false
}

// environment holds the program's variables by name.
type environment map[string]string

func (e environment) get(key string) (written, bool) {
	name := envName(key)
	value, ok := e[name]
	return written{value, name}, ok
}

// readEnvironment picks the variables of nextvald, and refuses one that is none: a slip would pass unseen.
func readEnvironment(environ []string) (environment, error) {
	known := map[string]bool{envName(configKey): true}
	for _, s := range table {
		known[envName(s.key)] = true
	}
	env := environment{}
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		if !strings.HasPrefix(name, envPrefix) {
			continue
		}
		other := slices.ContainsFunc(otherVariables, func(p string) bool { return strings.HasPrefix(pair, p) })
		switch {
		case known[name]:
			env[name] = value
		case !other:
			return nil, fmt.Errorf("%s: there is no such setting", name)
		}
	}
	return env, nil
}

// readFile reads the settings of a YAML file, and the policies.
func readFile(file written) (found map[string]written, policies []sequencer.PolicyRule, err error) {
	data, err := os.ReadFile(file.value)
	if err != nil {
		var pathError *fs.PathError
		if errors.As(err, &pathError) {
			err = pathError.Err
		}
		return nil, nil, fmt.Errorf("%s: cannot read %q: %w", file.origin, file.value, err)
	}
	values, err := parseFile(data)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", file.value, err)
	}
	found = map[string]written{}
	for _, v := range values {
		switch known := slices.ContainsFunc(table, func(s setting) bool { return s.key == v.key }); {
		case v.key == policiesKey && (v.items != nil || v.list && v.value == ""):
			if policies, err = readPolicies(v.items); err != nil {
				return nil, nil, fmt.Errorf("%s: %s: %w", file.value, v.key, err)
			}
		case v.key == policiesKey:
			return nil, nil, fmt.Errorf("%s: line %d: %s is not a list of maps, each as `- key: value`", file.value, v.line, v.key)
		case !known:
			return nil, nil, fmt.Errorf("%s: line %d: there is no setting %q", file.value, v.line, v.key)
		case v.items != nil:
			return nil, nil, fmt.Errorf("%s: line %d: %s is not a plain value", file.value, v.line, v.key)
		}
		found[v.key] = written{v.value, file.value + ": " + v.key}
	}
	return found, policies, nil
}

// readPolicies reads the items of policiesKey.
func readPolicies(items [][]fileValue) ([]sequencer.PolicyRule, error) {
	rules := make([]sequencer.PolicyRule, 0, len(items))
	for _, item := range items {
		var rule sequencer.PolicyRule
		for _, v := range item {
			if v.key == "match" {
				if _, err := path.Match(v.value, ""); err != nil || v.value == "" {
					return nil, fmt.Errorf("line %d: the pattern %q is malformed", v.line, v.value)
				}
				rule.Match = v.value
			} else if err := rule.Set(sequencer.Setting{Key: v.key, Value: v.value}); err != nil {
				return nil, fmt.Errorf("line %d: %w", v.line, err)
			}
		}
		if rule.Match == "" {
			return nil, errors.New("a policy has no match, the pattern of the names that it is for: database.schema.name")
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

func checkAddress(v string) error {
	_, port, err := net.SplitHostPort(v)
	if err != nil {
		return fmt.Errorf("%q is not an address such as 127.0.0.1:6432", v)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%q: the port is not a number between 0 and 65535", v)
	}
	return nil
}

// maxNamespace keeps the keys of the store well within their bounds (DynamoDB's partition keys hold 2,048 bytes).
const maxNamespace = 128

func checkNamespace(v string) error {
	switch {
	case v == "":
		return errors.New("must not be empty")
	case len(v) > maxNamespace:
		return fmt.Errorf("is longer than %d bytes", maxNamespace)
	case !utf8.ValidString(v) || strings.ContainsFunc(v, unicode.IsControl):
		return fmt.Errorf("%q is not printable text", v)
	}
	return nil
}
