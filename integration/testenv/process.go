package testenv

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	// startTimeout is how long a nextvald may take to serve or to say why it does not.
	startTimeout = 15 * time.Second
	// stopTimeout is how long it may take to end after SIGTERM.
	stopTimeout = 30 * time.Second
)

// Plain builds nextvald as its users do, without the race detector, for those who measure. It is set before the first use.
var Plain bool

// Binary builds nextvald, once per test program, with the race detector, and returns its path.
func Binary(t testing.TB) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var build = sync.OnceValues(func() (string, error) {
	folder, err := os.MkdirTemp("", "nextvald-bin-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(folder, "nextvald")
	args := []string{"build", "-o", path}
	if !Plain {
		args = append(args, "-race")
	}
	out, err := exec.Command("go", append(args, "github.com/nextvald/nextvald/cmd/nextvald")...).CombinedOutput()
	if err != nil {
		return "", errors.Join(errors.New("cannot build nextvald: "+string(out)), os.RemoveAll(folder))
	}
	built = folder
	return path, nil
})

var built string // the folder that build made

// Main is for TestMain: it runs the tests and removes what Binary and Postgres made.
func Main(m *testing.M) {
	code := m.Run()
	for _, folder := range []string{built, templates.folder} {
		if folder != "" {
			_ = os.RemoveAll(folder)
		}
	}
	os.Exit(code)
}

// upstreamSequences is the mode of tests that do not name one by a flag.
const upstreamSequences = "virtual"

// environment is that of a nextvald process: free ports unless flags say otherwise, the mode of the tests, and credentials,
// of which DynamoDB Local takes any.
func environment(extra []string) []string {
	return append(append(os.Environ(),
		"NEXTVALD_LISTEN=127.0.0.1:0", "NEXTVALD_ADMIN=127.0.0.1:0", "NEXTVALD_UPSTREAM_SEQUENCES="+upstreamSequences,
		"AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test", "AWS_EC2_METADATA_DISABLED=true",
		"AWS_CONFIG_FILE=/dev/null", "AWS_SHARED_CREDENTIALS_FILE=/dev/null"), extra...)
}

// Result is how a command ended.
type Result struct {
	Stdout, Stderr string
	Code           int
	Took           time.Duration
}

// Command is a nextvald command to run to its end.
type Command struct {
	Args []string
	Env  []string // NAME=value, over the test's own
	Dir  string   // empty: the test's own
}

// Run runs the command, and kills it after 30 s: Code is then -1.
func (c Command) Run(t testing.TB) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*startTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, Binary(t), c.Args...)
	cmd.Env, cmd.Dir = environment(c.Env), c.Dir
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	begin := time.Now()
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return Result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode(), time.Since(begin)}
}

// Process is a `nextvald serve` that serves.
type Process struct {
	Address string // of clients, the first, host:port
	Admin   string // of health checks, host:port; empty when there is none

	t    testing.TB
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended

	mu  sync.Mutex
	log bytes.Buffer
}

var (
	readyLine    = regexp.MustCompile(`nextvald is ready`)
	addressField = regexp.MustCompile(`"?address"?[=:]"?([^" ]+)`)
	adminField   = regexp.MustCompile(`"?admin"?[=:]"?([^" ]+)`)
)

// Start starts `nextvald serve` on free ports and returns once it serves. The process is killed when the test ends, which
// fails when the race detector found something in it.
func Start(t testing.TB, args ...string) *Process {
	t.Helper()
	return Command{Args: args}.Start(t)
}

// Start is as the function Start. Args come after serve.
func (c Command) Start(t testing.TB) *Process {
	t.Helper()
	p, err := c.TryStart(t)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TryStart is Start where the start may fail, since something that nextvald needs is down.
func (c Command) TryStart(t testing.TB) (*Process, error) {
	t.Helper()
	p := &Process{t: t, done: make(chan struct{})}
	p.cmd = exec.Command(Binary(t), append([]string{"serve"}, c.Args...)...)
	p.cmd.Env, p.cmd.Dir = environment(c.Env), c.Dir
	// A test program that is killed does not leave processes behind.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	ready := make(chan string, 1)
	go func() {
		defer close(p.done)
		p.read(stderr, ready)
		_ = p.cmd.Wait() // its ProcessState tells
	}()
	t.Cleanup(func() {
		p.Kill()
		if strings.Contains(p.Log(), "DATA RACE") {
			t.Errorf("nextvald has a data race:\n%s", p.Log())
		}
		if t.Failed() {
			t.Logf("log of nextvald on %s:\n%s", p.Address, p.Log())
		}
	})
	select {
	case line := <-ready:
		p.Address, _, _ = strings.Cut(addressField.FindStringSubmatch(line)[1], ",")
		if m := adminField.FindStringSubmatch(line); m != nil {
			p.Admin = m[1]
		}
	case <-p.done:
		return nil, fmt.Errorf("nextvald ended at once: %v\n%s", p.cmd.ProcessState, p.Log())
	case <-time.After(startTimeout):
		p.Kill()
		return nil, fmt.Errorf("nextvald does not serve after %v\n%s", startTimeout, p.Log())
	}
	return p, nil
}

// read keeps the log, and sends the line that says that the process serves.
func (p *Process) read(from io.Reader, ready chan<- string) {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadString('\n')
		p.mu.Lock()
		p.log.WriteString(line)
		p.mu.Unlock()
		if readyLine.MatchString(line) {
			ready <- line
		}
		if err != nil {
			return
		}
	}
}

// Log is what the process wrote so far.
func (p *Process) Log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// Kill ends the process by SIGKILL and waits for its end. It may be called more than once.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Signal sends a signal.
func (p *Process) Signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// Pid is the id of the process.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Stop ends the process by SIGTERM. The test fails unless it exits with code 0 in time.
func (p *Process) Stop() {
	p.t.Helper()
	p.StopBy(syscall.SIGTERM)
}

// StopBy is Stop with another signal.
func (p *Process) StopBy(s syscall.Signal) {
	p.t.Helper()
	p.Signal(s)
	p.Ends()
}

// Ends waits for the end of a process that was told to. The test fails unless it exits with code 0 in time.
func (p *Process) Ends() {
	p.t.Helper()
	if state := p.Wait(); state.ExitCode() != 0 {
		p.t.Fatalf("nextvald failed: %v\n%s", state, p.Log())
	}
}

// Wait waits for the end of the process, and tells how it ended. The test fails unless it does in time.
func (p *Process) Wait() *os.ProcessState {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(stopTimeout):
		p.t.Fatalf("nextvald still runs after %v\n%s", stopTimeout, p.Log())
	}
	return p.cmd.ProcessState
}

// URL is that of a database behind the process: another URL, which must be well-formed, with the address replaced.
func (p *Process) URL(of string) string {
	u, err := url.Parse(of)
	if err != nil {
		panic(err)
	}
	u.Host = p.Address
	return u.String()
}

// Psql runs psql with the given arguments after those that make it scriptable (-X -A -q -v ON_ERROR_STOP=1).
func Psql(t testing.TB, url string, args ...string) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "psql", append([]string{"-X", "-A", "-q", "-v", "ON_ERROR_STOP=1", "-d", url}, args...)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "PGOPTIONS=")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	begin := time.Now()
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return Result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode(), time.Since(begin)}
}

// Metric reads a metric without labels.
func (p *Process) Metric(name string) float64 {
	p.t.Helper()
	client := http.Client{Timeout: 20 * time.Second}
	r, err := client.Get("http://" + p.Admin + "/metrics")
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	for line := range strings.Lines(string(body)) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
			v, err := strconv.ParseFloat(text, 64)
			if err != nil {
				p.t.Fatal(err)
			}
			return v
		}
	}
	p.t.Fatalf("there is no metric %s", name)
	return 0
}
