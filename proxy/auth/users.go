package auth

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
)

// Users finds what is stored of users. Its methods are safe for concurrent use.
type Users interface {
	// Secret returns nil for a user that it does not know, and for one without a password. An error says that it could not
	// look.
	Secret(ctx context.Context, user string) (*Secret, error)
}

// File is a list of users in a file of PgBouncer's form: a line is
//
//	"name" "secret"
//
// where a quote within is written twice, and what follows the secret is left alone. A line that begins with a semicolon is a
// comment.
type File struct {
	path    string
	current atomic.Pointer[map[string]entry]
}

// entry is one line.
type entry struct {
	stored string
	line   int
	secret *Secret
}

var _ Users = (*File)(nil)

// LoadFile reads a list of users.
func LoadFile(path string) (*File, error) {
	f := &File{path: path}
	return f, f.Reload()
}

// Secret implements Users.
func (f *File) Secret(_ context.Context, user string) (*Secret, error) {
	return (*f.current.Load())[user].secret, nil
}

// Reload reads the file again, for the logins from now on. When it fails the users stay as they were.
func (f *File) Reload() error {
	data, err := os.ReadFile(f.path)
	if err != nil {
		return err
	}
	users, err := parseUsers(data)
	if err != nil {
		return fmt.Errorf("%s: %w", f.path, err)
	}
	// To derive keys takes a millisecond, so what has not changed is kept, and no login waits for it.
	var before map[string]entry
	if p := f.current.Load(); p != nil {
		before = *p
	}
	for name, e := range users {
		if old, ok := before[name]; ok && old.stored == e.stored {
			e.secret = old.secret
		} else if e.secret, err = ParseSecret(name, e.stored); err != nil {
			return fmt.Errorf("%s: line %d: %w", f.path, e.line, err)
		}
		users[name] = e
	}
	f.current.Store(&users)
	return nil
}

// parseUsers reads the lines of a list. Its errors name a line and nothing of what it holds but the user.
func parseUsers(data []byte) (map[string]entry, error) {
	users := make(map[string]entry)
	number := 0
	for line := range bytes.Lines(data) {
		number++
		text := strings.TrimSpace(string(line))
		if text == "" || text[0] == ';' {
			continue
		}
		name, rest, ok := quoted(text)
		if !ok || name == "" {
			return nil, fmt.Errorf("line %d: does not begin with a user's name in double quotes", number)
		}
		blanks := len(rest) - len(strings.TrimLeft(rest, " \t"))
		stored, _, ok := quoted(rest[blanks:])
		if !ok || blanks == 0 {
			return nil, fmt.Errorf("line %d: has no secret in double quotes after the user's name", number)
		}
		if strings.IndexByte(name+stored, 0) >= 0 {
			return nil, fmt.Errorf("line %d: holds a zero byte", number)
		}
		if other, ok := users[name]; ok {
			return nil, fmt.Errorf("line %d: user %q is in line %d already", number, name, other.line)
		}
		users[name] = entry{stored: stored, line: number}
	}
	return users, nil
}

// quoted takes a text in double quotes off the front of a line.
func quoted(text string) (value, rest string, ok bool) {
	if !strings.HasPrefix(text, `"`) {
		return "", "", false
	}
	for i := 1; i < len(text); i++ {
		if text[i] != '"' {
			continue
		}
		if i+1 < len(text) && text[i+1] == '"' {
			i++
			continue
		}
		return strings.ReplaceAll(text[1:i], `""`, `"`), text[i+1:], true
	}
	return "", "", false
}
