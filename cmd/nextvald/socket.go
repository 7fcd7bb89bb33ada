package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// maxSocketPath is what fits into a sockaddr_un, without its end.
const maxSocketPath = 107

// socket listens on a Unix socket named as PostgreSQL names its own, so that libpq finds it by folder and port. Beside it is
// a lock file as PostgreSQL's, whose first line is the process id: another nextvald, or a PostgreSQL, keeps away as long as
// it is locked or the process lives.
type socket struct {
	net.Listener
	lock *os.File
}

// listenSocket makes the socket of a port in a folder, which must exist. One that a dead process left is replaced.
func listenSocket(folder string, port int) (net.Listener, error) {
	path := socketPath(folder, port)
	failed := func(err error) (net.Listener, error) {
		return nil, fmt.Errorf("cannot listen on %s: %w", path, listenCause(err))
	}
	lock, err := lockSocket(path + ".lock")
	if err != nil {
		return failed(err)
	}
	if err := removeStale(path); err != nil {
		_ = lock.Close()
		return failed(err)
	}
	if err := sign(lock); err != nil {
		return failed(errors.Join(err, lock.Close()))
	}
	l, err := net.Listen("unix", path)
	if err == nil {
		err = os.Chmod(path, 0o777) // PostgreSQL's default: the folder says who may connect
		if err != nil {
			_ = l.Close()
		}
	}
	if err != nil {
		return failed(errors.Join(err, os.Remove(lock.Name()), lock.Close()))
	}
	return &socket{Listener: l, lock: lock}, nil
}

// Close ends the listener and removes its files. It may be called more than once.
func (s *socket) Close() error {
	err := s.Listener.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	// The file goes before the lock: whoever has opened it meanwhile finds another in its place.
	return errors.Join(err, os.Remove(s.lock.Name()), s.lock.Close())
}

// lockSocket takes the lock file.
func lockSocket(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, pathCause(err)
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			return nil, errors.Join(errors.New("address already in use: another process holds its lock file"), f.Close())
		}
		mine, err := f.Stat()
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		if there, err := os.Stat(path); err == nil && os.SameFile(mine, there) {
			return f, nil
		}
		_ = f.Close() // it was removed by who held it
	}
}

// sign writes this process into its lock file.
func sign(lock *os.File) error {
	if err := lock.Truncate(0); err != nil {
		return err
	}
	_, err := lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// removeStale removes a socket that nobody listens on.
func removeStale(path string) error {
	conn, err := net.Dial("unix", path)
	switch {
	case err == nil:
		_ = conn.Close()
		return errors.New("address already in use")
	case errors.Is(err, os.ErrNotExist):
		return nil
	case errors.Is(err, syscall.ECONNREFUSED):
		return pathCause(os.Remove(path))
	}
	return errors.New("address already in use: " + strings.TrimPrefix(listenCause(err).Error(), "connect: "))
}

// pathCause is what went wrong, without the path.
func pathCause(err error) error {
	var e *os.PathError
	if errors.As(err, &e) {
		return e.Err
	}
	return err
}
