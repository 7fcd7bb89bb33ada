package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/singleflight"

	"github.com/nextvald/nextvald/proxy"
)

// lookAgain is how long a host is taken to be what it was when it was last looked at.
const lookAgain = time.Second

// host is one server of the upstream.
type host struct {
	network, address string
	encryption       encryption
	control          *pgconn.Config // logs in to this host alone
	dialer           *net.Dialer

	looks  singleflight.Group
	mu     sync.Mutex
	looked time.Time // when it was last found to be one for sessions
	spare  bool      // what was found then
}

// newHost is the host of a configuration that has several.
func newHost(cfg *pgconn.Config, f *pgconn.FallbackConfig) *host {
	h := &host{control: cfg.Copy(), dialer: new(net.Dialer)}
	h.network, h.address = pgconn.NetworkAddress(f.Host, f.Port)
	h.control.Host, h.control.Port = f.Host, f.Port
	h.control.TLSConfig, h.control.Fallbacks = f.TLSConfig, nil
	h.encryption = encryption{ways: []*tls.Config{f.TLSConfig}, direct: cfg.SSLNegotiation == "direct"}
	return h
}

// orElse adds a way to connect to the host, for when those before fail.
func (h *host) orElse(f *pgconn.FallbackConfig) {
	h.control.Fallbacks = append(h.control.Fallbacks, f)
	h.encryption.ways = append(h.encryption.ways, f.TLSConfig)
}

// choosy reports whether target_session_attrs asks for more than a server that answers.
func (h *host) choosy() bool { return h.control.ValidateConnect != nil }

// look logs in on a control connection and finds out whether target_session_attrs takes the server: spare is one that it
// takes for want of a better one (a primary, where it prefers a standby). Callers at the same time share a look.
func (h *host) look(ctx context.Context) (spare bool, err error) {
	found := h.looks.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.Background(), h.control.ConnectTimeout)
		defer cancel()
		var spare bool
		var unfit error
		cfg := h.control.Copy()
		if h.choosy() {
			cfg.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
				var notPreferred *pgconn.NotPreferredError
				unfit = h.control.ValidateConnect(ctx, conn)
				if spare = errors.As(unfit, &notPreferred); spare {
					unfit = nil
				}
				return unfit
			}
		}
		conn, err := pgconn.ConnectConfig(ctx, cfg)
		switch {
		case unfit != nil:
			return nil, unfit
		case err != nil:
			return nil, lookError(err)
		}
		_ = conn.Close(ctx) // it has said all that was asked
		h.mu.Lock()
		defer h.mu.Unlock()
		h.looked, h.spare = time.Now(), spare
		return spare, nil
	})
	select {
	case r := <-found:
		spare, _ := r.Val.(bool)
		return spare, r.Err
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// lookError is the server's own refusal of a login, or why there was no answer.
func lookError(err error) error {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return refused
	}
	return connectCause(err)
}

// seen is look, or what it found lately. What speaks against a host is looked at each time: it may have ended.
func (h *host) seen(ctx context.Context) (spare bool, err error) {
	h.mu.Lock()
	spare, recent := h.spare, time.Since(h.looked) < lookAgain
	h.mu.Unlock()
	if recent {
		return spare, nil
	}
	return h.look(ctx)
}

func (h *host) dial(ctx context.Context, address string) (net.Conn, error) {
	return h.encryption.dial(ctx, h.dialer, h.network, address)
}

// candidate is a host for one session.
type candidate struct {
	*host
	evenSpare bool // take it even when others are preferred
	spare     bool // it was not taken because others are preferred
}

var _ proxy.Host = (*candidate)(nil)

// Dial implements proxy.Host.
func (c *candidate) Dial(ctx context.Context) (net.Conn, error) {
	if c.choosy() {
		spare, err := c.seen(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.address, err)
		}
		if spare && !c.evenSpare {
			c.spare = true
			return nil, fmt.Errorf("%s: %w", c.address, pgconn.ErrPrimaryConnection)
		}
	}
	return c.dial(ctx, c.address)
}

// DialCancel implements proxy.Host. The name of a host may have several addresses: the session's is the right one. The
// address of a socket is what the server calls it, which need not lead there.
func (c *candidate) DialCancel(ctx context.Context, session net.Conn) (net.Conn, error) {
	if c.network == "unix" {
		return c.dial(ctx, c.address)
	}
	return c.dial(ctx, session.RemoteAddr().String())
}
