package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/nextvald/nextvald/proxy"
	"github.com/nextvald/nextvald/proxy/native"
)

// upstreamTimeout bounds a connection to one host of the upstream with its login, unless the URL's connect_timeout does.
const upstreamTimeout = 5 * time.Second

// upstream is the PostgreSQL behind, on one host or several. It makes the connections of sessions, and control connections
// of its own.
type upstream struct {
	address string // of all hosts, for people
	hosts   []*host
	timeout time.Duration
}

var (
	_ proxy.Upstream  = (*upstream)(nil)
	_ native.Upstream = (*upstream)(nil)
)

// parseUpstream checks an upstream URL. It does not connect. Its errors never hold the URL, which may have a password.
func parseUpstream(v string) (*upstream, error) {
	if !strings.HasPrefix(v, "postgres://") && !strings.HasPrefix(v, "postgresql://") {
		return nil, errors.New("is not a URL such as postgres://user@host:5432/database")
	}
	cfg, err := pgconn.ParseConfig(verified(v))
	if err != nil {
		return nil, fmt.Errorf("is not a PostgreSQL URL: %w", parseCause(err))
	}
	u := &upstream{timeout: cmp.Or(cfg.ConnectTimeout, upstreamTimeout)}
	cfg.ConnectTimeout = u.timeout
	if cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = "nextvald"
	}
	var addresses []string
	// A host comes twice in a row where TLS is optional.
	for _, f := range append([]*pgconn.FallbackConfig{{Host: cfg.Host, Port: cfg.Port, TLSConfig: cfg.TLSConfig}}, cfg.Fallbacks...) {
		h := newHost(cfg, f)
		if n := len(u.hosts); n > 0 && u.hosts[n-1].address == h.address {
			u.hosts[n-1].orElse(f)
			continue
		}
		u.hosts, addresses = append(u.hosts, h), append(addresses, h.address)
	}
	u.address = strings.Join(addresses, ",")
	return u, nil
}

var quoted = regexp.MustCompile(`"[^"]*"`)

// parseCause is the reason that a URL was refused, without any part of it: what is quoted may be the password.
func parseCause(err error) error {
	var malformed *url.Error
	var parse *pgconn.ParseConfigError
	if errors.As(err, &parse) && !errors.As(err, &malformed) && parse.Unwrap() != nil {
		return errors.New(quoted.ReplaceAllString(parse.Unwrap().Error(), `"..."`))
	}
	return errors.New("it is malformed (special characters in a password are percent-encoded)")
}

// use sets how connections notice that their server is gone.
func (u *upstream) use(o tcpOptions) {
	for _, h := range u.hosts {
		h.dialer = o.dialer()
	}
}

// Hosts implements proxy.Upstream: the hosts as the URL has them; then those that its target_session_attrs takes only for
// want of better ones.
func (u *upstream) Hosts() iter.Seq[proxy.Host] {
	return func(yield func(proxy.Host) bool) {
		var spare []*host
		for _, h := range u.hosts {
			c := &candidate{host: h}
			if !yield(c) {
				return
			}
			if c.spare {
				spare = append(spare, h)
			}
		}
		for _, h := range spare {
			if !yield(&candidate{host: h, evenSpare: true}) {
				return
			}
		}
	}
}

// check logs in on a control connection. reached says that a PostgreSQL answered, one for sessions; err may still tell that
// it refused the login.
func (u *upstream) check(ctx context.Context) (reached bool, err error) {
	var errs []error
	for _, h := range u.hosts {
		_, err := h.look(ctx)
		var refused *pgconn.PgError
		switch {
		case err == nil:
			return true, nil
		case errors.As(err, &refused) && !h.choosy():
			return true, refused
		}
		errs = append(errs, fmt.Errorf("no PostgreSQL answers at %s: %w", h.address, err))
	}
	return false, errors.Join(errs...)
}

// connect opens a control connection to the first host that lets nextvald in and is one for sessions.
func (u *upstream) connect(ctx context.Context) (*pgconn.PgConn, error) {
	return firstHost(u, func(h *host) (*pgconn.PgConn, error) { return pgconn.ConnectConfig(ctx, h.control) })
}

// Control implements native.Upstream.
func (u *upstream) Control(ctx context.Context, database string) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig("sslmode=disable") // replaced below, but for what is not of the connection itself
	if err != nil {
		return nil, err
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec // a pooler in between need not know prepared statements
	return firstHost(u, func(h *host) (*pgx.Conn, error) {
		cfg := cfg.Copy()
		cfg.Config = *h.control.Copy()
		cfg.Database, cfg.DialFunc = database, h.dialer.DialContext
		return pgx.ConnectConfig(ctx, cfg)
	})
}

// firstHost connects to the first host that lets nextvald in.
func firstHost[C any](u *upstream, connect func(*host) (C, error)) (none C, err error) {
	var errs []error
	for _, h := range u.hosts {
		conn, err := connect(h)
		if err == nil {
			return conn, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", h.address, lookError(err)))
	}
	return none, errors.Join(errs...)
}

// ready says why sessions would not be let in, nil when nothing speaks against it.
func (u *upstream) ready(ctx context.Context) error {
	const startingUp = "57P03" // cannot_connect_now
	reached, err := u.check(ctx)
	var refused *pgconn.PgError
	if reached && !(errors.As(err, &refused) && refused.Code == startingUp) {
		return nil
	}
	return err
}

// connectCause is what went wrong, without the user, database and address that pgconn puts before it.
func connectCause(err error) error {
	var op *net.OpError
	var name *net.DNSError
	switch {
	case pgconn.Timeout(err) || errors.Is(err, context.DeadlineExceeded):
		return errors.New("timeout")
	case errors.As(err, &name):
		return name
	case errors.As(err, &op):
		return op.Err
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("it closed the connection")
	}
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}
