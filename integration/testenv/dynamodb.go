package testenv

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// DynamoDB is a DynamoDB Local of the test's own. It may be killed, and comes back with its data where it was.
type DynamoDB struct {
	URL string

	lib  string // the folder of its jars and libraries
	dir  string // of its data
	port int

	cmd   *exec.Cmd     // nil while it is down
	ended chan struct{} // closed when cmd has ended
}

// dynamoTimeout is how long a DynamoDB Local may take to answer.
const dynamoTimeout = time.Minute

// StartDynamoDB starts a DynamoDB Local on a free port, with its data in a temporary folder. It ends with the test.
func StartDynamoDB(t testing.TB) *DynamoDB {
	t.Helper()
	d := &DynamoDB{lib: variable(t, "NEXTVALD_TEST_DYNAMODB_LIB"), dir: t.TempDir()}
	t.Cleanup(d.Kill)
	// A port may be taken before the server listens on it.
	var err error
	for range 5 {
		d.port = freePort(t)
		d.URL = fmt.Sprintf("http://127.0.0.1:%d", d.port)
		if err = d.Start(); err == nil {
			return d
		}
	}
	t.Fatal(err)
	return nil
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

// Start starts the server, first or again, and returns once it answers.
func (d *DynamoDB) Start() error {
	log, err := os.OpenFile(filepath.Join(d.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command("java", "-Xmx256m", "-Djava.library.path="+d.lib, "-cp", filepath.Join(d.lib, "*"),
		"software.amazon.dynamodb.services.local.main.ServerRunner",
		"-dbPath", d.dir, "-sharedDb", "-disableTelemetry", "-port", strconv.Itoa(d.port))
	cmd.Dir, cmd.Stdout, cmd.Stderr = d.dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	d.cmd, d.ended = cmd, ended
	go func() {
		_ = cmd.Wait() // it never ends well
		close(ended)
	}()
	for deadline := time.Now().Add(dynamoTimeout); time.Now().Before(deadline); {
		select {
		case <-ended:
			text, _ := os.ReadFile(log.Name())
			return fmt.Errorf("DynamoDB Local ended: %s", text)
		case <-time.After(50 * time.Millisecond):
		}
		// Any answer will do: it refuses what is not signed.
		if r, err := http.Get(d.URL); err == nil {
			_ = r.Body.Close()
			return nil
		}
	}
	d.Kill()
	return fmt.Errorf("DynamoDB Local does not answer after %v", dynamoTimeout)
}

// Kill ends the server by SIGKILL. It may be called more than once.
func (d *DynamoDB) Kill() {
	if d.cmd != nil {
		_ = d.cmd.Process.Kill()
		<-d.ended
		d.cmd = nil
	}
}
