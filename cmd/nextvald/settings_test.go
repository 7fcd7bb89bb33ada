package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/proxy"
	"github.com/nextvald/nextvald/sequencer"
)

// read reads settings as serve does.
func read(t *testing.T, file string, environ []string, args ...string) (*settings, error) {
	t.Helper()
	if file != "" {
		path := filepath.Join(t.TempDir(), "nextvald.yaml")
		require.NoError(t, os.WriteFile(path, []byte(file), 0o600))
		environ = append(environ, "NEXTVALD_CONFIG="+path)
	}
	var s *settings
	cmd := &cobra.Command{RunE: func(cmd *cobra.Command, _ []string) (err error) {
		s, err = readSettings(cmd, environ)
		return err
	}, SilenceErrors: true, SilenceUsage: true}
	addFlags(cmd)
	cmd.SetArgs(append([]string{}, args...))
	err := cmd.Execute()
	return s, err
}

func TestDefaults(t *testing.T) {
	s, err := read(t, "", nil)
	require.NoError(t, err)
	assert.Equal(t, []string{"127.0.0.1:6432"}, s.listen)
	assert.Equal(t, "127.0.0.1:6480", s.admin)
	assert.Equal(t, "bolt:./nextvald-data/nextvald.db", s.store.text)
	assert.Equal(t, "default", s.namespace)
	assert.Equal(t, slog.LevelInfo, s.logLevel)
	assert.Equal(t, "text", s.logFormat)
	assert.Equal(t, 5*time.Second, s.storeTimeout)
	assert.Equal(t, 5*time.Minute, s.maxOffline)
	assert.Nil(t, s.upstream)
}

func TestFlagsWinThenEnvironmentThenFile(t *testing.T) {
	const file = "namespace: file\n"
	env := []string{"NEXTVALD_NAMESPACE=environment"}
	for name, c := range map[string]struct {
		file string
		env  []string
		args []string
		want string
	}{
		"nothing":                  {"", nil, nil, "default"},
		"file":                     {file, nil, nil, "file"},
		"environment":              {"", env, nil, "environment"},
		"environment over file":    {file, env, nil, "environment"},
		"flag over file":           {file, nil, []string{"--namespace=flag"}, "flag"},
		"flag over all":            {file, env, []string{"--namespace", "flag"}, "flag"},
		"flag that is the default": {file, env, []string{"--namespace", "default"}, "default"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := read(t, c.file, c.env, c.args...)
			require.NoError(t, err)
			assert.Equal(t, c.want, s.namespace)
		})
	}
}

func TestTheFileOfTheFlagWins(t *testing.T) {
	path := filepath.Join(t.TempDir(), "flag.yaml")
	require.NoError(t, os.WriteFile(path, []byte("namespace: flag\n"), 0o600))
	s, err := read(t, "namespace: environment\n", nil, "--config", path)
	require.NoError(t, err)
	assert.Equal(t, "flag", s.namespace)
}

func TestEverySettingInEveryPlace(t *testing.T) {
	values := map[string]string{
		"listen": "localhost:1", "upstream": "postgres://u:p@h/d?sslmode=disable", "store": "memory:", "namespace": "n", "admin": "",
		"log_level": "warn", "log_format": "json", "store_timeout": "90s", "max_offline": "24h", "upstream_sequences": "virtual", "peer_role": "sidecar",
		"drain_timeout": "1m", "client_idle_timeout": "2h", "login_timeout": "20s", "max_connections": "77", "proxy_protocol": "true", "tcp_keepalive": "3m", "tcp_user_timeout": "4m",
		"sequences.cache_one": "cached", "sequences.hot_calls": "7", "sequences.default_source": "upstream", "sequences.mode": "strict", "sequences.buffer_seconds": "2.5",
		"sequences.min_threshold": "7", "sequences.min_lease": "11", "sequences.max_lease": "1300", "sequences.lease_seconds": "17",
		"tls_cert": "c.pem", "tls_key": "k.pem", "tls_client_ca": "ca.pem", "tls_required": "true",
		"auth": "scram", "users": "users.txt", "auth_query": "SELECT $1",
	}
	require.Len(t, table, len(values))
	file := "# all\n"
	var env, args []string
	for key, v := range values {
		file += key + ": \"" + v + "\" # comment\n"
		env = append(env, envName(key)+"="+v)
		args = append(args, "--"+flagName(key), v)
	}
	check := func(t *testing.T, s *settings, err error) {
		require.NoError(t, err)
		assert.Equal(t, []string{"localhost:1"}, s.listen)
		require.NotNil(t, s.upstream)
		assert.Equal(t, "h:5432", s.upstream.address)
		assert.Equal(t, "memory:", s.store.text)
		assert.Equal(t, "n", s.namespace)
		assert.Empty(t, s.admin)
		assert.Equal(t, proxy.TLSFiles{Cert: "c.pem", Key: "k.pem", ClientCA: "ca.pem"}, s.tls)
		assert.Equal(t, []string{"scram", "users.txt", "SELECT $1"}, []string{s.auth, s.users, s.authQuery})
		assert.Equal(t, slog.LevelWarn, s.logLevel)
		assert.Equal(t, "json", s.logFormat)
		assert.Equal(t, 90*time.Second, s.storeTimeout)
		assert.Equal(t, 24*time.Hour, s.maxOffline)
		assert.Equal(t, "sidecar", s.peerRole)
		assert.Equal(t, time.Minute, s.drainTimeout)
		assert.True(t, s.proxyProtocol && s.tlsRequired)
		assert.Equal(t, tcpOptions{3 * time.Minute, 4 * time.Minute}, s.tcp)
		assert.Equal(t, proxy.Limits{MaxConnections: 77, ClientIdle: 2 * time.Hour, Login: 20 * time.Second}, s.limits)
	}
	t.Run("file", func(t *testing.T) { s, err := read(t, file, nil); check(t, s, err) })
	t.Run("environment", func(t *testing.T) { s, err := read(t, "", env); check(t, s, err) })
	t.Run("flags", func(t *testing.T) { s, err := read(t, "", nil, args...); check(t, s, err) })
}

func TestNamesOfASetting(t *testing.T) {
	assert.Equal(t, "sequences-cache-one", flagName("sequences.cache_one"))
	assert.Equal(t, "NEXTVALD_SEQUENCES_CACHE_ONE", envName("sequences.cache_one"))
}

func TestTheDocsListEverySetting(t *testing.T) {
	docs, err := os.ReadFile("../../docs/configuration.md")
	require.NoError(t, err)
	for _, row := range table {
		value := " "
		if row.value != "" {
			value = " `" + row.value + "` "
		}
		assert.Contains(t, string(docs), fmt.Sprintf("| `%s` | `%s` | `--%s` |%s|", row.key, envName(row.key), flagName(row.key), value))
	}
	assert.Equal(t, len(table)+1, strings.Count(string(docs), "| `--"), "a row for a setting that does not exist")
}

func TestVariablesOfOthersAreLeftAlone(t *testing.T) {
	_, err := read(t, "", []string{
		"NEXTVALD_TEST_UPSTREAM=x", "NEXTVALD_PORT=tcp://10.0.0.1:6432", "NEXTVALD_PORT_6432_TCP_ADDR=10.0.0.1", "NEXTVALD_SERVICE_HOST=10.0.0.1", "OTHER=1",
	})
	require.NoError(t, err)
	_, err = read(t, "", []string{"NEXTVALD_PORTS=1"})
	require.EqualError(t, err, "NEXTVALD_PORTS: there is no such setting")
}

func TestValuesOfAFile(t *testing.T) {
	for name, c := range map[string]struct{ file, want string }{
		"plain":         {"namespace: a b", "a b"},
		"number":        {"namespace: 007", "007"},
		"exponent":      {"namespace: 1e3", "1e3"},
		"boolean":       {"namespace: yes", "yes"},
		"truth":         {"namespace: true", "true"},
		"single quotes": {"namespace: 'it''s'", "it's"},
		"double quotes": {`namespace: "\u00e4"`, "ä"},
		"folded":        {"namespace: >-\n  a\n  b\n", "a b"},
		"flow":          {"{namespace: x}", "x"},
		"with a header": {"---\nnamespace: x\n...\n", "x"},
		"quoted key":    {`"namespace": x`, "x"},
		"empty":         {"", "default"},
		"comments only": {"# nothing\n", "default"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := read(t, "\n"+c.file, nil)
			require.NoError(t, err)
			assert.Equal(t, c.want, s.namespace)
		})
	}
}

func TestNestedKeysJoin(t *testing.T) {
	values, err := parseFile([]byte("sequences:\n  cache_one: strict\n  deep: {er: 1}\nlisten: x\n"))
	require.NoError(t, err)
	assert.Equal(t, []fileValue{
		{key: "sequences.cache_one", value: "strict", line: 2}, {key: "sequences.deep.er", value: "1", line: 3}, {key: "listen", value: "x", line: 4},
	}, values)
}

func TestListsOfPlainValues(t *testing.T) {
	want := []string{"127.0.0.1:1", "unix:/run/nextvald", "[::1]:2"}
	for name, read := range map[string]func() (*settings, error){
		"flags": func() (*settings, error) {
			return read(t, "", []string{"NEXTVALD_LISTEN=h:9"}, "--listen", want[0], "--listen", want[1], "--listen", want[2])
		},
		"variable": func() (*settings, error) {
			return read(t, "listen: h:9", []string{"NEXTVALD_LISTEN=" + strings.Join(want, ",")})
		},
		"file": func() (*settings, error) {
			return read(t, "listen:\n  - 127.0.0.1:1\n  - unix:/run/nextvald\n  - '[::1]:2'\n", nil)
		},
		"flow": func() (*settings, error) {
			return read(t, "listen: ['127.0.0.1:1', 'unix:/run/nextvald', '[::1]:2']", nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := read()
			require.NoError(t, err)
			assert.Equal(t, want, s.listen)
		})
	}
	for file, says := range map[string]string{
		"namespace: [a, b]":    "namespace is not a plain value",
		"listen: []":           `"" is not an address`,
		"listen: [a, {b: c}]":  "a list of this and that",
		"listen: [{b: c}, a]":  "a list of this and that",
		"listen: [[a]]":        "a list of this and that",
		"listen: [a:1, unix:]": "needs a folder",
		"listen: ['unix:/" + strings.Repeat("x", 100) + "']": "107 bytes at most",
	} {
		_, err := read(t, file, nil)
		assert.ErrorContains(t, err, says, file)
	}
}

func TestPolicies(t *testing.T) {
	s, err := read(t, `
sequences:
  mode: cached
  policies:
    - match: 'shop.public.orders*'
      mode: strict
    - {match: 'own*', cache_one: cached, default_source: store}
    - {match: "*", buffer_seconds: 30, min_lease: 5, max_lease: 5000, lease_seconds: 0.5, min_threshold: 2}
`, nil)
	require.NoError(t, err)
	assert.Equal(t, []sequencer.PolicyRule{
		{Match: "shop.public.orders*", Policy: sequencer.Policy{Mode: sequencer.Strict}},
		{Match: "own*", CacheOne: sequencer.Cached, DefaultSource: sequencer.FromStore},
		{Match: "*", Policy: sequencer.Policy{BufferSeconds: 30, MinLease: 5, MaxLease: 5000, LeaseSeconds: 0.5, MinThreshold: 2}},
	}, s.sequencerConfig().Policies)
}

func TestPoliciesThatAreRefused(t *testing.T) {
	for name, c := range map[string]struct{ file, want string }{
		"not a list":     {"sequences: {policies: strict}", "line 1: sequences.policies is not a list"},
		"a map":          {"sequences:\n  policies:\n    match: x", `line 3: there is no setting "sequences.policies.match"`},
		"a plain item":   {"sequences:\n  policies:\n    - x", "line 3: sequences.policies is not a list of maps"},
		"without match":  {"sequences: {policies: [{mode: strict}]}", "a policy has no match"},
		"bad pattern":    {"sequences: {policies: [{match: '[a'}]}", `line 1: the pattern "[a" is malformed`},
		"unknown key":    {"sequences:\n  policies:\n    - match: a\n      speed: 1", `line 4: unrecognized parameter "nextvald.speed"`},
		"bad value":      {"sequences: {policies: [{match: a, mode: lazy}]}", `invalid value for parameter "nextvald.mode": "lazy"`},
		"other list":     {"namespace: [{a: b}]", "namespace is not a plain value"},
		"bad default":    {"sequences: {mode: lazy}", `sequences.mode: invalid value for parameter "nextvald.mode": "lazy"`},
		"contradiction":  {"sequences: {min_lease: 20000000}", "nextvald.min_lease (20000000) must not be greater than nextvald.max_lease (10000000)"},
		"bad cache_one":  {"sequences: {cache_one: maybe}", `sequences.cache_one: "maybe" is not one of strict, cached`},
		"bad source":     {"sequences: {policies: [{match: a, default_source: moving}]}", `invalid value for parameter "nextvald.default_source": "moving"`},
		"no upstream":    {"sequences: {default_source: upstream}", "sequences.default_source: default_source upstream needs an upstream"},
		"no upstream 2":  {"sequences: {policies: [{match: a, default_source: upstream}]}", "default_source upstream needs an upstream"},
		"nested too far": {"sequences: {policies: [{match: {a: b}}]}", `unrecognized parameter "nextvald.match.a"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := read(t, c.file, nil)
			require.ErrorContains(t, err, c.want)
		})
	}
}

// A password must not reach a terminal or a log, whatever is wrong with its URL.
func TestRefusedURLsKeepTheirPassword(t *testing.T) {
	for _, url := range []string{
		"hunter2", "mysql://u:hunter2@h/d", "postgres://u:hunter2@h:abc/d", "postgres://u:hunter2@h:99999/d", "postgres://u:hunter2@[::1/d",
		"postgres://u:%zzhunter2@h/d", "postgres://u:1/hunter2@h/d%zz", "postgres://h/d?password=hunter2&sslmode=x", "postgres://h/d?password=hunter2%zz",
		"postgres://u:hunter2@h/d?connect_timeout=x", "postgres://u:hunter2@h/d?sslrootcert=/nonexistent/ca.pem",
		"postgres://u:a hunter2@h/d",
	} {
		t.Run(url, func(t *testing.T) {
			_, err := parseUpstream(url)
			require.Error(t, err)
			assert.NotContains(t, err.Error(), "hunter2")
			peer, err := parseStore("peer:" + url)
			assert.NotContains(t, fmt.Sprint(peer.text, err), "hunter2")
		})
	}
}

func TestOneLine(t *testing.T) {
	err := assert.AnError
	for name, c := range map[string]struct{ text, want string }{
		"lines":         {"a\n\tb", "a b"},
		"password":      {"at postgres://u:p@ss@h/d now", "at postgres://u:***@h/d now"},
		"empty user":    {"http://:p@h", "http://:***@h"},
		"no password":   {"postgres://u@h:1/d", "postgres://u@h:1/d"},
		"just an error": {err.Error(), err.Error()},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, c.want, oneLine(testError(c.text))) })
	}
}

type testError string

func (e testError) Error() string { return string(e) }

func TestAnAuthorityIsNotNamedInVain(t *testing.T) {
	t.Setenv("PGSSLMODE", "")
	t.Setenv("PGSSLROOTCERT", "")
	for in, want := range map[string]string{
		"postgres://u@h/d":                                 "",
		"postgres://u@h/d?sslrootcert=ca.pem":              "&sslmode=verify-full",
		"postgres://u@h1:1,h2:2/d?sslrootcert=ca.pem":      "&sslmode=verify-full",
		"postgres://u@h/d?sslmode=require&sslrootcert=ca":  "",
		"postgres://u@h/d?sslrootcert=ca.pem&sslmode=":     "",
		"postgres://u@h/d?sslrootcert=ca.pem&ssl=true":     "",
		"postgres://u@h/d?connect_timeout=3&sslmode=allow": "",
	} {
		assert.Equal(t, in+want, verified(in))
	}
	t.Setenv("PGSSLROOTCERT", "ca.pem")
	assert.Equal(t, "postgres://u@h/d?sslmode=verify-full", verified("postgres://u@h/d"))
	assert.Equal(t, "postgres://u@h/d?sslmode=verify-full", verified("postgres://u@h/d?"))
	t.Setenv("PGSSLMODE", "prefer")
	assert.Equal(t, "postgres://u@h/d", verified("postgres://u@h/d"))
}
