package boltstore

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// witness is a small file in memory that counts the writes of a tier's file. It survives a process that is killed, and
// neither a restart of the machine nor a copy of the tier's file to another one. Whoever opens a tier's file that was not
// closed knows by it that the file is as the dead process left it: an older copy counts less, and beside a process that
// lives it is locked.
type witness struct {
	f *os.File
	// token is that of the tier's present opening.
	token string
}

// errWitnessed: another process lives that works with a copy of the file.
var errWitnessed = errors.New("a process that runs holds a copy of the file")

// openWitness opens and locks the witness of a tier, which is made if it does not exist. found is what an earlier process
// left in it.
func openWitness(folder, id string) (w *witness, found testimony, err error) {
	path := filepath.Join(folder, "nextvald-tier-"+id)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, found, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = errWitnessed
		}
		return nil, found, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, found, err
	}
	if sys, ok := info.Sys().(*syscall.Stat_t); !ok || int(sys.Uid) != os.Geteuid() || !info.Mode().IsRegular() {
		return nil, found, fmt.Errorf("%s is not ours", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, 1024))
	if err != nil {
		return nil, found, err
	}
	if _, err := fmt.Sscanf(string(text), testimonyFormat, &found.writes, &found.token); err != nil {
		found = testimony{} // a new one, or one that was not written to its end
	}
	return &witness{f: f}, found, nil
}

// testimony is what a witness says.
type testimony struct {
	writes uint64
	token  string
}

const testimonyFormat = "%020d %s\n"

// vouches reports whether a file with so many writes, last opened under that token, is what the process left that wrote the
// witness. That process may have died between its last write and the witness', which nobody saw.
func (t testimony) vouches(writes uint64, token string) bool {
	return token != "" && t.token == token && writes >= t.writes
}

// saw notes the number of writes.
func (w *witness) saw(writes uint64) error {
	_, err := w.f.WriteAt(fmt.Appendf(nil, testimonyFormat, writes, w.token), 0)
	return err
}

// remove takes the witness away: there is nothing to vouch for.
func (w *witness) remove() error {
	err := os.Remove(w.f.Name())
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, w.f.Close())
}
