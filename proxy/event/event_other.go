//go:build !linux

package event

import (
	"errors"
	"net"
)

const supported = false

// Loop is for Linux only.
type Loop struct{}

// Conn is for Linux only.
type Conn struct{ net.Conn }

// Stream is for Linux only.
type Stream struct{ Conn *Conn }

// NewLoop fails: it is for Linux only.
func NewLoop() (*Loop, error) { return nil, errors.ErrUnsupported }

// Close does nothing.
func (*Loop) Close() {}

// Adopt fails.
func (*Loop) Adopt(net.Conn) (*Conn, error) { return nil, errors.ErrUnsupported }

// Start does nothing.
func (*Conn) Start(func(), *Conn) error { return errors.ErrUnsupported }

// Detach does nothing.
func (*Conn) Detach() {}

// Kick does nothing.
func (*Conn) Kick() {}

// Led is false.
func (*Conn) Led() bool { return false }

// Again does nothing.
func (*Conn) Again() {}

// Queued is 0.
func (*Conn) Queued() int64 { return 0 }

// Drain does nothing.
func (*Conn) Drain(int) error { return nil }

// TryRead fails.
func (Stream) TryRead([]byte) (int, error) { return 0, errors.ErrUnsupported }

// Read fails.
func (Stream) Read([]byte) (int, error) { return 0, errors.ErrUnsupported }
