package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/nextvald/nextvald/proxy"
)

// upstreamTimeout bounds a connection to the upstream with its login.
const upstreamTimeout = 5 * time.Second

// upstream is the PostgreSQL behind. It makes the connections of sessions, and control connections of its own.
type upstream struct {
	network, address string
	control          *pgconn.Config
}

var _ proxy.Upstream = (*upstream)(nil)

// parseUpstream checks an upstream URL. It does not connect. Its errors never hold the URL, which may have a password.
func parseUpstream(v string) (*upstream, error) {
	if !strings.HasPrefix(v, "postgres://") && !strings.HasPrefix(v, "postgresql://") {
		return nil, errors.New("is not a URL such as postgres://user@host:5432/database")
	}
	cfg, err := pgconn.ParseConfig(v)
	if err != nil {
		return nil, fmt.Errorf("is not a PostgreSQL URL: %w", parseCause(err))
	}
	u := &upstream{control: cfg}
	u.network, u.address = pgconn.NetworkAddress(cfg.Host, cfg.Port)
	plain := cfg.TLSConfig == nil
	for _, f := range cfg.Fallbacks {
		if network, address := pgconn.NetworkAddress(f.Host, f.Port); network != u.network || address != u.address {
			return nil, errors.New("names more than one host, which is not supported yet")
		}
		plain = plain || f.TLSConfig == nil
	}
	if !plain {
		return nil, errors.New("asks for TLS to the upstream, which is not supported yet: use sslmode=disable or prefer")
	}
	// Sessions go to the upstream without TLS; the control connection is as they are.
	cfg.TLSConfig, cfg.Fallbacks = nil, nil
	cfg.ConnectTimeout = upstreamTimeout
	if cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = "nextvald"
	}
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

// Dial opens the connection of a session.
func (u *upstream) Dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, u.network, u.address)
}

// check logs in on a control connection. reached says that a PostgreSQL answered; err may still tell that it refused the
// login.
func (u *upstream) check(ctx context.Context) (reached bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, upstreamTimeout)
	defer cancel()
	conn, err := pgconn.ConnectConfig(ctx, u.control)
	if err == nil {
		_ = conn.Close(ctx) // it has said all that was asked
		return true, nil
	}
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return true, refused
	}
	return false, fmt.Errorf("no PostgreSQL answers at %s: %w", u.address, connectCause(err))
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
		return fmt.Errorf("timeout after %v", upstreamTimeout)
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
