package integration

import (
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
)

// failsToStart runs nextvald and expects exit code 1 within 15 s, and one line on stderr that holds what is said.
func failsToStart(t *testing.T, c testenv.Command, says ...string) {
	t.Helper()
	r := c.Run(t)
	assert.Equal(t, 1, r.Code)
	assert.Empty(t, r.Stdout)
	assert.Less(t, r.Took, 15*time.Second)
	line, rest, _ := strings.Cut(r.Stderr, "\n")
	assert.Empty(t, rest, "more than one line: %s", r.Stderr)
	assert.True(t, strings.HasPrefix(line, "nextvald: "), line)
	for _, s := range says {
		assert.Contains(t, line, s)
	}
	assert.NotContains(t, line, "hunter2")
}

func TestCommandLineErrors(t *testing.T) {
	t.Parallel()
	type errorCase struct {
		args []string
		env  []string
		file string // of NEXTVALD_CONFIG
		says []string
	}
	serve := func(args ...string) []string { return append([]string{"serve"}, args...) }
	for name, c := range map[string]errorCase{
		"unknown command":              {args: []string{"server"}, says: []string{`"server"`}},
		"unknown flag":                 {args: serve("--lisen", "x"), says: []string{"--lisen"}},
		"unknown short flag":           {args: serve("-z"), says: []string{"-z"}},
		"unknown flag of version":      {args: []string{"version", "--short"}, says: []string{"--short"}},
		"argument":                     {args: serve("now"), says: []string{`"now"`}},
		"flag without value":           {args: serve("--store"), says: []string{"--store"}},
		"unknown variable":             {args: serve(), env: []string{"NEXTVALD_LISEN=x"}, says: []string{"NEXTVALD_LISEN"}},
		"unknown key":                  {args: serve(), file: "namespace: n\nlisen: x\n", says: []string{"line 2", `"lisen"`}},
		"unknown nested key":           {args: serve(), file: "store:\n  timeout: 5s\n", says: []string{`"store.timeout"`}},
		"key in the file only by flag": {args: serve(), file: "config: other.yaml\n", says: []string{`"config"`}},
		"key twice":                    {args: serve(), file: "namespace: a\nnamespace: b\n", says: []string{"line 2", `"namespace"`}},
		"key without value":            {args: serve(), file: "upstream:\n", says: []string{"upstream", "no value"}},
		"list":                         {args: serve(), file: "namespace: [a, b]\n", says: []string{"namespace", "plain value"}},
		"not YAML":                     {args: serve(), file: "namespace: \"a\n", says: []string{"line 1"}},
		"not settings":                 {args: serve(), file: "- namespace\n", says: []string{"line 1"}},
		"missing file":                 {args: serve("--config", "/nonexistent/n.yaml"), says: []string{"--config", "/nonexistent/n.yaml", "no such file"}},
		"file is a folder":             {args: serve("--config", "/"), says: []string{"--config", `"/"`, "is a directory"}},

		"listen without port":   {args: serve("--listen", "localhost"), says: []string{"--listen", "localhost"}},
		"listen with bad port":  {args: serve("--listen", "127.0.0.1:70000"), says: []string{"--listen", "70000"}},
		"listen nowhere":        {args: serve("--listen", ""), says: []string{"--listen"}},
		"foreign address":       {args: serve("--listen", "192.0.2.1:6432"), says: []string{"--listen", "192.0.2.1:6432"}},
		"bad admin address":     {args: serve("--admin", "6480"), says: []string{"--admin", "6480"}},
		"bad level":             {args: serve("--log-level", "loud"), says: []string{"--log-level", "loud", "debug"}},
		"bad level in variable": {args: serve(), env: []string{"NEXTVALD_LOG_LEVEL=loud"}, says: []string{"NEXTVALD_LOG_LEVEL", "loud"}},
		"bad level in file":     {args: serve(), file: "log_level: loud\n", says: []string{"log_level", "loud"}},
		"bad format":            {args: serve("--log-format", "xml"), says: []string{"--log-format", "xml", "json"}},
		"bad duration":          {args: serve("--store-timeout", "5"), says: []string{"--store-timeout", `"5"`}},
		"negative duration":     {args: serve("--store-timeout", "-5s"), says: []string{"--store-timeout", "-5s"}},
		"empty namespace":       {args: serve("--namespace", ""), says: []string{"--namespace", "empty"}},
		"bad sequence mode":     {args: serve("--upstream-sequences", "real"), says: []string{"--upstream-sequences", "real"}},

		"store without scheme":  {args: serve("--store", "nextvald.db"), says: []string{"--store", "bolt:PATH"}},
		"unknown store":         {args: serve("--store", "redis:x"), says: []string{"--store", "redis"}},
		"empty store":           {args: serve("--store", ""), says: []string{"--store"}},
		"bolt without path":     {args: serve("--store", "bolt:"), says: []string{"--store", "path"}},
		"bolt on a folder":      {args: serve("--store", "bolt:/"), says: []string{"--store", "directory"}},
		"memory with something": {args: serve("--store", "memory:x"), says: []string{"--store", "memory"}},
		"no table":              {args: serve("--store", "dynamodb:?region=r"), says: []string{"--store", "table"}},
		"short table":           {args: serve("--store", "dynamodb:ab"), says: []string{"--store", `"ab"`}},
		"table with a slash":    {args: serve("--store", "dynamodb:a/bc"), says: []string{"--store", `"a/bc"`}},
		"unknown store option":  {args: serve("--store", "dynamodb:abc?zone=x"), says: []string{"--store", `"zone"`}},
		"bad endpoint":          {args: serve("--store", "dynamodb:abc?endpoint=localhost:8000"), says: []string{"--store", "endpoint"}},
		"no region":             {args: serve("--store", "dynamodb:abc"), says: []string{"--store", "region"}},

		"upstream of another kind":  {args: serve("--upstream", "mysql://u:hunter2@h/d"), says: []string{"--upstream", "postgres://"}},
		"malformed upstream":        {args: serve("--upstream", "postgres://u:hunter2@h:x/d"), says: []string{"--upstream"}},
		"bad upstream option":       {args: serve("--upstream", "postgres://u:hunter2@h/d?sslmode=maybe"), says: []string{"--upstream", "sslmode"}},
		"no such authority":         {args: serve("--upstream", "postgres://u:hunter2@h/d?sslrootcert=/nonexistent/ca.pem"), says: []string{"--upstream", "CA file"}},
		"bad session attribute":     {args: serve("--upstream", "postgres://u:hunter2@h,i/d?target_session_attrs=good"), says: []string{"--upstream", "malformed"}},
		"ports of fewer hosts":      {args: serve("--upstream", "postgres://u:hunter2@/d?host=h,i,j&port=1,2"), says: []string{"--upstream", "malformed"}},
		"malformed upstream in env": {args: serve(), env: []string{"NEXTVALD_UPSTREAM=hunter2"}, says: []string{"NEXTVALD_UPSTREAM"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.file != "" {
				path := filepath.Join(t.TempDir(), "nextvald.yaml")
				require.NoError(t, os.WriteFile(path, []byte(c.file), 0o600))
				c.env = append(c.env, "NEXTVALD_CONFIG="+path)
				c.says = append(c.says, path)
			}
			failsToStart(t, testenv.Command{Args: c.args, Env: c.env, Dir: t.TempDir()}, c.says...)
		})
	}
}

// closed is an address that nobody listens on.
func closed(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

// mute is an address where connections are accepted and nothing is ever said.
func mute(t *testing.T) string {
	return listening(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
}

// chatty is an address where another protocol is spoken.
func chatty(t *testing.T) string {
	return listening(t, func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n") })
}

// listening is an address where every connection is handled and then closed.
func listening(t *testing.T, handle func(net.Conn)) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				handle(c)
				_ = c.Close()
			}()
		}
	}()
	return l.Addr().String()
}

func TestUnreachableUpstream(t *testing.T) {
	t.Parallel()
	for name, address := range map[string]func(*testing.T) string{"closed port": closed, "says nothing": mute, "says something else": chatty} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := address(t)
			failsToStart(t, testenv.Command{Args: []string{"serve", "--store", "memory:", "--upstream", "postgres://u:hunter2@" + a + "/d"}}, "--upstream", a)
		})
	}
	t.Run("missing socket", func(t *testing.T) {
		t.Parallel()
		failsToStart(t, testenv.Command{Args: []string{"serve", "--store", "memory:", "--upstream", "postgres://u:hunter2@/d?host=/nonexistent"}},
			"--upstream", "/nonexistent/.s.PGSQL.5432")
	})
	t.Run("unknown host", func(t *testing.T) {
		t.Parallel()
		failsToStart(t, testenv.Command{Args: []string{"serve", "--store", "memory:", "--upstream", "postgres://u:hunter2@nowhere.invalid/d"}},
			"--upstream", "nowhere.invalid")
	})
}

func TestUnreachableStore(t *testing.T) {
	t.Parallel()
	for name, address := range map[string]func(*testing.T) string{"closed port": closed, "says nothing": mute, "says something else": chatty} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := address(t)
			failsToStart(t, testenv.Command{Args: []string{"serve", "--store", "dynamodb:abc?region=us-east-1&endpoint=http://" + a}}, "--store", a)
		})
	}
}

func TestPortInUse(t *testing.T) {
	t.Parallel()
	a := mute(t)
	serve := []string{"serve", "--store", "memory:"}
	failsToStart(t, testenv.Command{Args: append(serve, "--listen", a)}, "--listen", a, "address already in use")
	failsToStart(t, testenv.Command{Args: append(serve, "--admin", a)}, "--admin", a, "address already in use")
}

func TestBoltFileOfAnotherProcess(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "nextvald.db")
	testenv.Start(t, "--store", "bolt:"+path)
	failsToStart(t, testenv.Command{Args: []string{"serve", "--store", "bolt:" + path}}, "--store", path, "held by another process")
}

func TestVersion(t *testing.T) {
	t.Parallel()
	r := testenv.Command{Args: []string{"version"}}.Run(t)
	assert.Equal(t, 0, r.Code)
	assert.Empty(t, r.Stderr)
	assert.Regexp(t, `^nextvald \S+ go1\.\S+ \S+/\S+\n$`, r.Stdout)
}

func TestDefaultStore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := testenv.Command{Dir: dir}.Start(t)
	assert.FileExists(t, filepath.Join(dir, "nextvald-data", "nextvald.db"))
	p.Stop()
}

func TestRefusedControlLoginIsAWarning(t *testing.T) {
	t.Parallel()
	u, err := url.Parse(testenv.Upstream(t))
	require.NoError(t, err)
	u.User = url.UserPassword("nobody_at_all", "hunter2")
	p := testenv.Start(t, "--store", "memory:", "--upstream", u.String())
	assert.Contains(t, p.Log(), "level=WARN")
	assert.Contains(t, p.Log(), `role \"nobody_at_all\" does not exist`)
	assert.NotContains(t, p.Log(), "hunter2")
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	const warning = "beyond this machine"
	quiet := testenv.Start(t, "--store", "memory:")
	assert.NotContains(t, quiet.Log(), warning)
	loud := testenv.Start(t, "--store", "memory:", "--listen", "0.0.0.0:0", "--admin", "[::]:0")
	assert.Equal(t, 2, strings.Count(loud.Log(), warning), loud.Log())
}

func TestLogFormats(t *testing.T) {
	t.Parallel()
	assert.Regexp(t, `^time=`, testenv.Start(t, "--store", "memory:").Log())
	assert.Regexp(t, `^\{"time":`, testenv.Start(t, "--store", "memory:", "--log-format", "json").Log())
	assert.Contains(t, testenv.Start(t, "--store", "memory:").Log(), "nextvald is ready")
}

func TestStopSignals(t *testing.T) {
	t.Parallel()
	for name, signal := range map[string]syscall.Signal{"SIGTERM": syscall.SIGTERM, "SIGINT": syscall.SIGINT} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := testenv.Start(t, "--store", "memory:")
			// A client that is connected, and one that has said nothing yet, do not hold the program up.
			r := testenv.Psql(t, "postgres://me@"+p.Address+"/d?sslmode=disable", "-c", "SELECT 1")
			require.Equal(t, 0, r.Code, r.Stderr)
			c, err := net.Dial("tcp", p.Address)
			require.NoError(t, err)
			defer func() { _ = c.Close() }()
			p.StopBy(signal)
			_, err = net.Dial("tcp", p.Address)
			require.ErrorIs(t, err, syscall.ECONNREFUSED)
		})
	}
}

// get fetches a page of the admin address.
func get(t *testing.T, p *testenv.Process, path string) (int, string) {
	t.Helper()
	client := http.Client{Timeout: 20 * time.Second}
	r, err := client.Get("http://" + p.Admin + path)
	require.NoError(t, err)
	defer func() { _ = r.Body.Close() }()
	body, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return r.StatusCode, string(body)
}

func TestReadiness(t *testing.T) {
	t.Parallel()
	behind := func(t *testing.T, target string) (string, func()) {
		u, err := url.Parse(target)
		require.NoError(t, err)
		address, cut := testenv.Relay(t, u.Host)
		u.Host = address
		return u.String(), cut
	}
	upstream, cutUpstream := behind(t, testenv.Upstream(t))
	store, err := url.Parse(testenv.Table(t))
	require.NoError(t, err)
	options := store.Query()
	endpoint, cutStore := behind(t, options.Get("endpoint"))
	options.Set("endpoint", endpoint)
	store.RawQuery = options.Encode()
	p := testenv.Start(t, "--upstream", upstream, "--store", store.String(), "--store-timeout", "1s")

	status, body := get(t, p, "/readyz")
	require.Equal(t, http.StatusOK, status, body)
	require.Equal(t, "ready\n", body)

	cutUpstream()
	status, body = get(t, p, "/readyz")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Regexp(t, `^upstream: no PostgreSQL answers at .*\n$`, body)

	cutStore()
	status, body = get(t, p, "/readyz")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Regexp(t, `^store: .*\nupstream: .*\n$`, body)

	status, _ = get(t, p, "/healthz")
	require.Equal(t, http.StatusOK, status)
}

func TestAdmin(t *testing.T) {
	t.Parallel()
	p := testenv.Start(t, "--upstream", testenv.Upstream(t), "--store", testenv.Table(t))
	status, body := get(t, p, "/healthz")
	assert.Equal(t, http.StatusOK, status, body)
	status, body = get(t, p, "/readyz")
	assert.Equal(t, http.StatusOK, status, body)
	r := testenv.Psql(t, p.URL(testenv.Database(t)), "-c", "CREATE SEQUENCE s", "-c", "SELECT nextval('s')", "-c", "SELECT nextval('s')")
	require.Equal(t, 0, r.Code, r.Stderr)
	_, body = get(t, p, "/metrics")
	assert.Regexp(t, `(?m)^nextvald_values_total 2$`, body)
	assert.Regexp(t, `(?m)^nextvald_leases_total 1$`, body)
	assert.Regexp(t, `(?m)^nextvald_store_requests_total\{op="lease",outcome="ok"\} 1$`, body)
	assert.Regexp(t, `(?m)^nextvald_cache_depth \d+$`, body)
	assert.Regexp(t, `(?m)^nextvald_connections \d+$`, body)
	assert.Regexp(t, `(?m)^go_goroutines \d+$`, body)

	off := testenv.Start(t, "--store", "memory:", "--admin", "")
	assert.Empty(t, off.Admin)
}

func TestMain(m *testing.M) { testenv.Main(m) }
