package testenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Server is a PostgreSQL of one test, to be stopped and killed. Everybody may log in as the superuser postgres.
type Server struct {
	t    testing.TB
	data string // its folder
	port int

	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// Postgres starts a PostgreSQL, stopped when the test ends.
func Postgres(t testing.TB) *Server {
	t.Helper()
	s := newServer(t)
	s.asOwner("cp", "-a", template(t), s.data)
	s.Start()
	return s
}

// Standby starts a hot standby of the server.
func (s *Server) Standby() *Server {
	s.t.Helper()
	standby := newServer(s.t)
	standby.asOwner(postgresBin("pg_basebackup"), "-h", "127.0.0.1", "-p", strconv.Itoa(s.port), "-U", "postgres", "-D", standby.data,
		"-R", "-X", "stream", "-c", "fast")
	standby.Start()
	return standby
}

func newServer(t testing.TB) *Server {
	t.Helper()
	folder, err := ownedFolder(t)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	s := &Server{t: t, data: filepath.Join(folder, "data")}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.port = l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil { // somebody may take the port now, but hardly does
		t.Fatal(err)
	}
	return s
}

// Address is where it listens, host:port.
func (s *Server) Address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Folder is where its socket is.
func (s *Server) Folder() string { return filepath.Dir(s.data) }

// URL is that of its database postgres.
func (s *Server) URL() string {
	return "postgres://postgres@" + s.Address() + "/postgres?sslmode=disable"
}

// Start starts the server again and waits until it lets clients in.
func (s *Server) Start() {
	s.t.Helper()
	s.Launch()
	deadline := time.Now().Add(time.Minute)
	for {
		ctx, stop := context.WithDeadline(context.Background(), deadline)
		conn, err := pgx.Connect(ctx, s.URL())
		if err == nil {
			_ = conn.Close(ctx)
			stop()
			return
		}
		stop()
		select {
		case <-s.done:
			s.t.Fatalf("PostgreSQL does not start: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("PostgreSQL lets nobody in: %v", err)
		}
	}
}

// Launch starts the server again and does not wait.
func (s *Server) Launch() {
	s.t.Helper()
	log, err := os.OpenFile(filepath.Join(s.Folder(), "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	s.cmd = exec.Command(postgresBin("postgres"), "-D", s.data, "-p", strconv.Itoa(s.port), "-k", s.Folder())
	s.cmd.Dir, s.cmd.Stdout, s.cmd.Stderr = s.Folder(), log, log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT, Credential: credential(s.t)}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.done = make(chan struct{})
	cmd, done := s.cmd, s.done
	go func() {
		_ = cmd.Wait()
		_ = log.Close()
		close(done)
	}()
	s.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGQUIT)
		<-done
	})
}

// Stop stops the server: SIGINT is a fast shutdown, SIGQUIT an immediate one. It may be started again.
func (s *Server) Stop(signal syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(signal); err != nil {
		s.t.Fatal(err)
	}
	<-s.done
}

// Signal sends a signal to the server's main process, or to a backend.
func (s *Server) Signal(pid int, signal syscall.Signal) {
	s.t.Helper()
	if pid == 0 {
		pid = s.cmd.Process.Pid
	}
	if err := syscall.Kill(pid, signal); err != nil {
		s.t.Fatal(err)
	}
}

// Promote makes a standby a primary, and waits until it is one.
func (s *Server) Promote() {
	s.t.Helper()
	Exec(s.t, s.URL(), "SELECT pg_promote()")
}

// asOwner runs a program as the owner of the server.
func (s *Server) asOwner(name string, args ...string) {
	s.t.Helper()
	if err := asOwner(s.t, s.Folder(), name, args...); err != nil {
		s.t.Fatal(err)
	}
}

func asOwner(t testing.TB, folder, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir = folder
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential(t)}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, out)
	}
	return nil
}

// postgresBin is the path of one of PostgreSQL's programs, of the newest version that is installed.
func postgresBin(name string) string {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	version := func(path string) int {
		n, _ := strconv.Atoi(strings.Split(path, "/")[4])
		return n
	}
	if len(found) > 0 {
		return slices.MaxFunc(found, func(a, b string) int { return version(a) - version(b) })
	}
	return name
}

// owner is the user whom PostgreSQL runs as where the tests run as root, as whom it does not.
func owner(t testing.TB) (uid, gid uint32) {
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		id, err1 := strconv.ParseUint(u.Uid, 10, 32)
		group, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if errors.Join(err1, err2) == nil {
			return uint32(id), uint32(group)
		}
	}
	t.Fatal("there is no user that PostgreSQL may run as")
	return 0, 0
}

func credential(t testing.TB) *syscall.Credential {
	if os.Getuid() != 0 {
		return nil
	}
	uid, gid := owner(t)
	return &syscall.Credential{Uid: uid, Gid: gid}
}

// ownedFolder makes a folder for PostgreSQL.
func ownedFolder(t testing.TB) (string, error) {
	folder, err := os.MkdirTemp("", "nextvald-postgres-")
	if err != nil || os.Getuid() != 0 {
		return folder, err
	}
	uid, gid := owner(t)
	return folder, os.Chown(folder, int(uid), int(gid))
}

// templates holds a data folder to copy, made once per test program.
var templates struct {
	once   sync.Once
	folder string
	err    error
}

func template(t testing.TB) string {
	t.Helper()
	templates.once.Do(func() {
		if templates.folder, templates.err = ownedFolder(t); templates.err != nil {
			return
		}
		data := filepath.Join(templates.folder, "data")
		templates.err = asOwner(t, templates.folder, postgresBin("initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync")
		if templates.err != nil {
			return
		}
		const conf = "listen_addresses = '127.0.0.1'\nmax_connections = 50\nfsync = off\nwal_level = logical\nlc_messages = 'C'\n"
		f, err := os.OpenFile(filepath.Join(data, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			templates.err = err
			return
		}
		_, err = f.WriteString(conf)
		templates.err = errors.Join(err, f.Close())
	})
	if templates.err != nil {
		t.Fatal(templates.err)
	}
	return filepath.Join(templates.folder, "data")
}
