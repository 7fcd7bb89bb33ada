package event

import (
	"errors"
	"net"
)

// ErrAgain says that there is nothing to read now.
var ErrAgain = errors.New("nothing to read now")

// Adopts reports whether a Loop can take a connection over.
func Adopts(conn net.Conn) bool {
	switch conn.(type) {
	case *net.TCPConn, *net.UnixConn:
		return supported
	}
	return false
}
