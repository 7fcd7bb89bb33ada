package standalone

import (
	"errors"
	"net"
	"time"
)

// conn is one end of a connection in memory. Its two directions are pipes of their own, so that one can be closed
// while the other still carries the rest of the answers.
type conn struct {
	net.Conn // incoming
	out      net.Conn
}

// newConns returns the two ends of a connection. They are not buffered: a Write waits for the peer's Read.
func newConns() (client, server *conn) {
	clientIn, serverOut := net.Pipe()
	serverIn, clientOut := net.Pipe()
	return &conn{Conn: clientIn, out: clientOut}, &conn{Conn: serverIn, out: serverOut}
}

func (c *conn) Write(p []byte) (int, error) { return c.out.Write(p) }

// CloseWrite tells the peer that nothing more will come.
func (c *conn) CloseWrite() error { return c.out.Close() }

func (c *conn) Close() error { return errors.Join(c.Conn.Close(), c.out.Close()) }

func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *conn) SetWriteDeadline(t time.Time) error { return c.out.SetWriteDeadline(t) }
