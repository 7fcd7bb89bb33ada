package main

import (
	"context"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// option is an option of a connection's socket, as the kernel tells it.
func option(t *testing.T, conn net.Conn, level, name int) int {
	t.Helper()
	raw, err := conn.(syscall.Conn).SyscallConn()
	require.NoError(t, err)
	var value int
	var failure error
	require.NoError(t, raw.Control(func(fd uintptr) { value, failure = unix.GetsockoptInt(int(fd), level, name) }))
	require.NoError(t, failure)
	return value
}

// Both ends of a connection have the options.
func TestTCPOptions(t *testing.T) {
	for name, c := range map[string]struct {
		options tcpOptions
		alive   int
		timeout int // ms
	}{
		"default": {tcpOptions{keepAlive: time.Minute}, 1, 0},
		"all":     {tcpOptions{keepAlive: 90 * time.Second, userTimeout: 70 * time.Second}, 1, 70_000},
		"none":    {tcpOptions{}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := c.options.listen("127.0.0.1:0")
			require.NoError(t, err)
			defer func() { require.NoError(t, l.Close()) }()
			dialled, err := c.options.dialer().DialContext(context.Background(), "tcp", l.Addr().String())
			require.NoError(t, err)
			defer func() { require.NoError(t, dialled.Close()) }()
			accepted, err := l.Accept()
			require.NoError(t, err)
			defer func() { require.NoError(t, accepted.Close()) }()
			for _, conn := range []net.Conn{dialled, accepted} {
				assert.Equal(t, c.alive, option(t, conn, unix.SOL_SOCKET, unix.SO_KEEPALIVE))
				assert.Equal(t, c.timeout, option(t, conn, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT))
				if c.alive == 1 {
					assert.Equal(t, int(c.options.keepAlive.Seconds()), option(t, conn, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE))
					assert.Equal(t, int(keepAliveInterval.Seconds()), option(t, conn, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL))
					assert.Equal(t, keepAliveCount, option(t, conn, unix.IPPROTO_TCP, unix.TCP_KEEPCNT))
				}
			}
		})
	}
}
