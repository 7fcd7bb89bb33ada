package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// socketScheme begins an address that is a folder for a socket.
	socketScheme = "unix:"
	// socketPort is in the name of a socket where no TCP address gives another: that of the default address.
	socketPort = 6432
)

// tcpOptions tell how it is noticed that a peer is gone. They are for both sides, clients and upstream.
type tcpOptions struct {
	keepAlive   time.Duration // of silence, before the peer is asked whether it is still there; 0: it is never asked
	userTimeout time.Duration // for which what was sent may go unacknowledged; 0: what the system says
}

const (
	// A peer that does not answer is asked again so many times, so often, before it is taken for gone.
	keepAliveInterval = 10 * time.Second
	keepAliveCount    = 6
)

func (o tcpOptions) config() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: o.keepAlive > 0, Idle: o.keepAlive, Interval: keepAliveInterval, Count: keepAliveCount}
}

// control sets what package net does not. A listener's connections take it over.
func (o tcpOptions) control(network, _ string, c syscall.RawConn) error {
	if o.userTimeout == 0 || !strings.HasPrefix(network, "tcp") {
		return nil
	}
	var failure error
	err := c.Control(func(fd uintptr) {
		failure = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(o.userTimeout.Milliseconds()))
	})
	return errors.Join(err, failure)
}

func (o tcpOptions) dialer() *net.Dialer {
	d := &net.Dialer{KeepAliveConfig: o.config(), Control: o.control}
	if o.keepAlive == 0 {
		d.KeepAlive = -1
	}
	return d
}

// listen listens on a TCP address.
func (o tcpOptions) listen(address string) (net.Listener, error) {
	c := net.ListenConfig{KeepAliveConfig: o.config(), Control: o.control}
	if o.keepAlive == 0 {
		c.KeepAlive = -1
	}
	l, err := c.Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", address, listenCause(err))
	}
	return l, nil
}

// listenCause is what went wrong, without what package net puts before it.
func listenCause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// listenAll listens on every address of setting listen, in their order.
func (s *settings) listenAll() (all []net.Listener, err error) {
	defer func() {
		if err != nil {
			for _, l := range all {
				_ = l.Close()
			}
			err = s.fault("listen", err)
		}
	}()
	port := socketPort
	sockets := make(map[int]string) // folders, by their place
	for i, address := range s.listen {
		if folder, ok := strings.CutPrefix(address, socketScheme); ok {
			sockets[i] = folder
			all = append(all, nil)
			continue
		}
		l, err := s.tcp.listen(address)
		if err != nil {
			return compact(all), err
		}
		if tcp, ok := l.Addr().(*net.TCPAddr); ok && len(all) == len(sockets) {
			port = tcp.Port
		}
		all = append(all, l)
	}
	for i, folder := range sockets {
		l, err := listenSocket(folder, port)
		if err != nil {
			return compact(all), err
		}
		all[i] = l
	}
	return all, nil
}

// compact leaves out those that do not listen yet.
func compact(all []net.Listener) (open []net.Listener) {
	for _, l := range all {
		if l != nil {
			open = append(open, l)
		}
	}
	return open
}

// addresses are those of listeners, for people.
func addresses(all []net.Listener) string {
	var texts []string
	for _, l := range all {
		text := l.Addr().String()
		if l.Addr().Network() == "unix" {
			text = socketScheme + text
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ",")
}

// checkListen checks an address of setting listen.
func checkListen(v string) error {
	folder, ok := strings.CutPrefix(v, socketScheme)
	switch {
	case !ok:
		return checkAddress(v)
	case folder == "":
		return fmt.Errorf("%q needs a folder, such as unix:/run/nextvald", v)
	case len(socketPath(folder, 65535)) > maxSocketPath:
		return fmt.Errorf("%q: the path of a socket is %d bytes at most", v, maxSocketPath)
	}
	return nil
}

func socketPath(folder string, port int) string {
	return strings.TrimSuffix(folder, "/") + "/.s.PGSQL." + strconv.Itoa(port)
}

func warnUnlessLoopback(log *slog.Logger, what string, addr net.Addr) {
	if tcp, ok := addr.(*net.TCPAddr); !ok || tcp.IP.IsLoopback() {
		return
	}
	log.Warn("listening for "+what+" beyond this machine, without TLS: put it behind a network that you trust", "address", addr.String())
}
