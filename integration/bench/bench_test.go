// Package bench compares nextvald with PostgreSQL itself, with PgBouncer, and with a program that only answers.
package bench

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
)

var (
	rounds  = flag.Int("rounds", 1, "how often everything is measured, in turn; the median counts")
	length  = flag.Duration("length", time.Second, "how long each measurement takes")
	clients = flag.String("clients", "8", "numbers of clients, comma separated")
	idle    = flag.Int("idle", 100, "how many idle connections are held")
	bulk    = flag.Int("bulk", 1, "megabytes of COPY and of results")
)

// TestMain is also the ceiling, when it is started as that.
func TestMain(m *testing.M) {
	if os.Getenv("NEXTVALD_TEST_CEILING") != "" {
		c, err := newCeiling()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(c.Addr())
		_ = c.serve()
		return
	}
	testenv.Plain = true
	testenv.Main(m)
}

// server is one of those that are compared.
type server struct {
	name    string
	address string
	pids    func() []int // whose processor time counts
}

// hosts starts everybody.
type hosts struct {
	postgres, ceiling, nextvald, pgbouncer server
	database                               string
}

func start(t *testing.T) *hosts {
	t.Helper()
	h := &hosts{database: testenv.Database(t)}
	u, err := url.Parse(h.database)
	require.NoError(t, err)
	conn, err := pgx.Connect(t.Context(), h.database)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	var backend int
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&backend))
	postmaster := parentOf(t, backend)
	h.postgres = server{"PostgreSQL", u.Host, func() []int { return append(childrenOf(postmaster), postmaster) }}

	h.nextvald = startNextvald(t, h.database, "mirrored")
	h.ceiling = startCeiling(t)
	h.pgbouncer = startPgBouncer(t, u.Host)
	return h
}

func startNextvald(t *testing.T, upstream, mode string) server {
	t.Helper()
	p := testenv.Start(t, "--upstream", upstream, "--store", "memory:", "--admin", "", "--upstream-sequences", mode)
	return server{"nextvald", p.Address, only(p.Pid())}
}

func only(pid int) func() []int { return func() []int { return []int{pid} } }

func startCeiling(t *testing.T) server {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "NEXTVALD_TEST_CEILING=1")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line := make([]byte, 100)
	n, err := out.Read(line)
	require.NoError(t, err)
	return server{"ceiling", strings.TrimSpace(string(line[:n])), only(cmd.Process.Pid)}
}

// startPgBouncer starts one in session mode, when it is installed.
func startPgBouncer(t *testing.T, upstream string) server {
	t.Helper()
	path, err := exec.LookPath("pgbouncer")
	if err != nil {
		t.Log("PgBouncer is not installed (package pgbouncer): there is nothing to compare passed statements with")
		return server{}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	host, upstreamPort, err := net.SplitHostPort(upstream)
	require.NoError(t, err)
	folder := t.TempDir()
	file := filepath.Join(folder, "pgbouncer.ini")
	require.NoError(t, os.WriteFile(filepath.Join(folder, "users"), []byte("\"postgres\" \"\"\n"), 0o644))
	require.NoError(t, os.WriteFile(file, []byte(fmt.Sprintf(`[databases]
* = host=%s port=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %s
auth_type = trust
auth_file = %s/users
pool_mode = session
max_client_conn = 10000
default_pool_size = 6000
unix_socket_dir =
`, host, upstreamPort, port, folder)), 0o644))
	args := []string{"-q"}
	if os.Getuid() == 0 {
		args = append(args, "-u", "nobody")
		for f := folder; len(f) > len(os.TempDir()); f = filepath.Dir(f) {
			require.NoError(t, os.Chmod(f, 0o755))
		}
	}
	cmd := exec.Command(path, append(args, file)...)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}, 10*time.Second, 10*time.Millisecond)
	return server{"PgBouncer", address, only(cmd.Process.Pid)}
}

// work is what clients do.
type work struct {
	name    string
	options []string // of pgbench
	script  string
}

// figures are those of one measurement.
type figures struct{ tps, cpu, p99 float64 } // per second, microseconds of processor time a statement, milliseconds

// run has pgbench work for a while.
func (h *hosts) run(t *testing.T, s server, w work, clients int) figures {
	t.Helper()
	host, port, err := net.SplitHostPort(s.address)
	require.NoError(t, err)
	u, err := url.Parse(h.database)
	require.NoError(t, err)
	folder := t.TempDir()
	args := []string{
		"-n", "-h", host, "-p", port, "-U", "postgres", "-c", strconv.Itoa(clients), "-j", strconv.Itoa(min(clients, 2)),
		"-T", strconv.Itoa(max(1, int(length.Seconds()))), "-l", "--log-prefix", filepath.Join(folder, "log"),
	}
	args = append(args, w.options...)
	if w.script != "" {
		file := filepath.Join(folder, "script")
		require.NoError(t, os.WriteFile(file, []byte(w.script), 0o600))
		args = append(args, "-f", file)
	}
	before := processorTime(s.pids())
	out, err := exec.Command(program("pgbench"), append(args, strings.TrimPrefix(u.Path, "/"))...).CombinedOutput()
	require.NoError(t, err, "%s: %s", s.name, out)
	spent := processorTime(s.pids()) - before
	var f figures
	f.tps = number(t, `tps = ([0-9.]+)`, out)
	f.cpu = spent.Seconds() * 1e6 / number(t, `actually processed: ([0-9]+)`, out)
	var times []float64
	logs, err := filepath.Glob(filepath.Join(folder, "log.*"))
	require.NoError(t, err)
	for _, file := range logs {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			if fields := strings.Fields(line); len(fields) > 2 {
				micros, err := strconv.ParseFloat(fields[2], 64)
				require.NoError(t, err)
				times = append(times, micros/1000)
			}
		}
	}
	require.NotEmpty(t, times)
	slices.Sort(times)
	f.p99 = times[len(times)*99/100]
	return f
}

func number(t *testing.T, pattern string, in []byte) float64 {
	t.Helper()
	m := regexp.MustCompile(pattern).FindSubmatch(in)
	require.NotNil(t, m, "%s", in)
	f, err := strconv.ParseFloat(string(m[1]), 64)
	require.NoError(t, err)
	return f
}

// compare measures servers in turn and prints medians, and their ratio to those of the first server.
func (h *hosts) compare(t *testing.T, w work, servers ...server) {
	t.Helper()
	servers = slices.DeleteFunc(servers, func(s server) bool { return s.name == "" })
	for _, count := range strings.Split(*clients, ",") {
		n, err := strconv.Atoi(count)
		require.NoError(t, err)
		all := make([][]figures, len(servers))
		for range *rounds {
			for i, s := range servers {
				all[i] = append(all[i], h.run(t, s, w, n))
			}
		}
		var line strings.Builder
		var first figures
		for i, s := range servers {
			m := figures{
				median(all[i], func(f figures) float64 { return f.tps }), median(all[i], func(f figures) float64 { return f.cpu }),
				median(all[i], func(f figures) float64 { return f.p99 }),
			}
			if i == 0 {
				first = m
			}
			fmt.Fprintf(&line, " | %s %.0f/s (%.2f), %.1f us (%.2f), p99 %.2f ms (%.2f)", s.name, m.tps, m.tps/first.tps, m.cpu, m.cpu/first.cpu,
				m.p99, m.p99/first.p99)
		}
		t.Logf("%-28s %3d clients%s", w.name, n, line.String())
	}
}

func median[T any](list []T, of func(T) float64) float64 {
	values := make([]float64, 0, len(list))
	for _, v := range list {
		values = append(values, of(v))
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// TestSpeed prints how fast nextvald is beside others: statements a second, processor time of the server a statement, and
// the 99th percentile of latency, each with its ratio to the first server's. A native sequence with CACHE 50 is
// PostgreSQL's, so that it is not slowed by its log.
func TestSpeed(t *testing.T) {
	h := start(t)
	testenv.Exec(t, h.database, "CREATE SEQUENCE native CACHE 50")
	conn := h.connect(t, h.nextvald)
	_, err := conn.Exec(t.Context(), "CREATE SEQUENCE ours").ReadAll()
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))
	for _, mode := range []string{"simple", "extended", "prepared"} {
		options := []string{"-M", mode}
		h.compare(t, work{"nextval, " + mode, options, "SELECT nextval('ours');\n"}, h.ceiling, h.nextvald)
		h.compare(t, work{"nextval, native, " + mode, options, "SELECT nextval('native');\n"}, h.postgres)
	}
	u, err := url.Parse(h.database)
	require.NoError(t, err)
	out, err := exec.Command(program("pgbench"), "-i", "-q", "-s", "10", "-h", u.Hostname(), "-p", u.Port(), "-U", "postgres", u.Path[1:]).CombinedOutput()
	require.NoError(t, err, string(out))
	h.compare(t, work{"SELECT 1", nil, "SELECT 1;\n"}, h.pgbouncer, h.nextvald, h.postgres)
	h.compare(t, work{"SELECT 1, prepared", []string{"-M", "prepared"}, "SELECT 1;\n"}, h.pgbouncer, h.nextvald, h.postgres)
	h.compare(t, work{"pgbench -S", []string{"-S"}, ""}, h.pgbouncer, h.nextvald, h.postgres)
	h.compare(t, work{"pgbench TPC-B", nil, ""}, h.pgbouncer, h.nextvald, h.postgres)
}

// TestBulk prints how long large transfers take, and how much memory they need beyond that of an idle server.
func TestBulk(t *testing.T) {
	h := start(t)
	testenv.Exec(t, h.database, "CREATE UNLOGGED TABLE bulk (line text)")
	size := *bulk << 20
	line := strings.Repeat("x", 1023) + "\n"
	rows := size / len(line)
	for name, transfer := range map[string]func(*pgconn.PgConn) error{
		"COPY in": func(c *pgconn.PgConn) error {
			_, err := c.CopyFrom(t.Context(), strings.NewReader(strings.Repeat(line, rows)), "COPY bulk FROM STDIN")
			return err
		},
		"COPY out": func(c *pgconn.PgConn) error {
			_, err := c.CopyTo(t.Context(), &discard{}, fmt.Sprintf("COPY (SELECT repeat('x', 1023) FROM generate_series(1, %d)) TO STDOUT", rows))
			return err
		},
		"result": func(c *pgconn.PgConn) error {
			r := c.Exec(t.Context(), fmt.Sprintf("SELECT repeat('x', 1023) FROM generate_series(1, %d)", rows))
			for r.NextResult() {
				for rr := r.ResultReader(); rr.NextRow(); {
					continue
				}
			}
			return r.Close()
		},
	} {
		took := map[string][]time.Duration{}
		var memory string
		for range *rounds {
			for _, s := range []server{h.pgbouncer, h.nextvald} {
				if s.name == "" {
					continue
				}
				conn := h.connect(t, s)
				before := resident(t, s.pids()[0])
				began := time.Now()
				require.NoError(t, transfer(conn))
				took[s.name] = append(took[s.name], time.Since(began))
				if s.name == "nextvald" {
					memory = fmt.Sprintf("%+d MB", (resident(t, s.pids()[0])-before)>>20)
				}
				require.NoError(t, conn.Close(t.Context()))
				testenv.Exec(t, h.database, "TRUNCATE bulk")
			}
		}
		var text strings.Builder
		seconds := func(d time.Duration) float64 { return d.Seconds() }
		ours, theirs := median(took["nextvald"], seconds), 0.0
		if list := took["PgBouncer"]; len(list) > 0 {
			theirs = median(list, seconds)
		}
		fmt.Fprintf(&text, "nextvald %.3f s, PgBouncer %.3f s (%.2f)", ours, theirs, ours/theirs)
		t.Logf("%-9s %d MB: %s, memory of nextvald %s", name, *bulk, text.String(), memory)
	}
}

type discard struct{}

func (*discard) Write(p []byte) (int, error) { return len(p), nil }

func (h *hosts) connect(t *testing.T, s server) *pgconn.PgConn {
	t.Helper()
	conn, err := pgconn.Connect(t.Context(), "postgres://postgres@"+s.address+h.database[strings.LastIndex(h.database, "/"):])
	require.NoError(t, err)
	return conn
}

// TestIdle prints what idle connections cost after a nextval each, in the proxy.
func TestIdle(t *testing.T) {
	upstream := testenv.Postgres(t)
	testenv.Exec(t, upstream.URL(), fmt.Sprintf("ALTER SYSTEM SET max_connections = %d", *idle+50), "CREATE SEQUENCE native")
	upstream.Stop(syscall.SIGINT)
	upstream.Start()
	p := testenv.Start(t, "--upstream", upstream.URL(), "--store", "memory:", "--admin", "")
	h := &hosts{database: "/postgres?sslmode=disable"}
	bouncer := startPgBouncer(t, upstream.Address())
	for _, s := range []server{{"nextvald", p.Address, only(p.Pid())}, bouncer} {
		if s.name == "" {
			continue
		}
		first, sequence := h.connect(t, s), "native"
		if s.name == "nextvald" {
			sequence = "ours"
			_, err := first.Exec(t.Context(), "CREATE SEQUENCE ours").ReadAll()
			require.NoError(t, err)
		}
		before := resident(t, s.pids()[0])
		conns := make([]*pgconn.PgConn, *idle)
		for i := range conns {
			conns[i] = h.connect(t, s)
			_, err := conns[i].Exec(t.Context(), fmt.Sprintf("SELECT nextval('%s')", sequence)).ReadAll()
			require.NoError(t, err)
		}
		t.Logf("%-9s %.1f KiB a connection, of %d", s.name, float64(resident(t, s.pids()[0])-before)/1024/float64(*idle), *idle)
		for _, c := range append(conns, first) {
			require.NoError(t, c.Close(t.Context()))
		}
	}
}

// program finds one of PostgreSQL's.
func program(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	paths, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name) // no pattern of ours is malformed
	slices.Sort(paths)
	return cmp.Or(append(paths, name)[max(0, len(paths)-1)], name)
}

// stat returns the fields of /proc/PID/stat behind the name.
func stat(pid int) []string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	return strings.Fields(rest)
}

func parentOf(t *testing.T, pid int) int {
	t.Helper()
	fields := stat(pid)
	require.NotNil(t, fields)
	parent, err := strconv.Atoi(fields[1])
	require.NoError(t, err)
	return parent
}

func childrenOf(pid int) (children []int) {
	files, _ := filepath.Glob("/proc/[0-9]*")
	for _, f := range files {
		child, err := strconv.Atoi(filepath.Base(f))
		if fields := stat(child); err == nil && fields != nil && fields[1] == strconv.Itoa(pid) {
			children = append(children, child)
		}
	}
	return children
}

// processorTime is what the processes and their former children have used.
func processorTime(pids []int) time.Duration {
	const tick = 10 * time.Millisecond // USER_HZ is 100 wherever Linux runs
	var ticks int
	for _, pid := range pids {
		if fields := stat(pid); fields != nil {
			for _, f := range fields[11:15] {
				n, _ := strconv.Atoi(f)
				ticks += n
			}
		}
	}
	return time.Duration(ticks) * tick
}

// resident is the memory of a process in bytes.
func resident(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	require.NoError(t, err)
	pages, err := strconv.Atoi(strings.Fields(string(text))[1])
	require.NoError(t, err)
	return pages * os.Getpagesize()
}
