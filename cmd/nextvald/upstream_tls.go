package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"time"
)

// sslRequest asks a server for TLS, which answers with one byte.
var sslRequest = []byte{0, 0, 0, 8, 0x04, 0xD2, 0x16, 0x2F}

// alpn is the protocol that is named in a handshake that no sslRequest came before.
const alpn = "postgresql"

// errNoTLS says that a server has no TLS. The connection may be used without.
var errNoTLS = errors.New("the server does not offer TLS")

// verified makes an upstream URL that names an authority, and does not say how far the server's certificate is looked at, ask
// for verify-full: libpq would not look at it at all.
func verified(v string) string {
	before, query, asks := strings.Cut(v, "?")
	options, err := url.ParseQuery(query)
	if err != nil || options.Has("sslmode") || options.Has("ssl") || os.Getenv("PGSSLMODE") != "" ||
		!options.Has("sslrootcert") && os.Getenv("PGSSLROOTCERT") == "" {
		return v
	}
	if asks && query != "" {
		query += "&"
	}
	return before + "?" + query + "sslmode=verify-full"
}

// encryption is how connections to a host are encrypted.
type encryption struct {
	// ways are tried in this order, as sslmode has them. Nil is without TLS.
	ways []*tls.Config
	// direct is a handshake without an sslRequest.
	direct bool
}

// dial opens a connection in the first way that leads to one. Where that is without TLS since the server has none, an attempt
// with TLS goes on.
func (e encryption) dial(ctx context.Context, dialer *net.Dialer, network, address string) (net.Conn, error) {
	var errs []error
	for i, way := range e.ways {
		conn, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, errors.Join(append(errs, err)...)
		}
		if way == nil {
			return conn, nil
		}
		secured, err := e.secure(ctx, conn, way)
		switch {
		case err == nil:
			return secured, nil
		case errors.Is(err, errNoTLS) && i+1 < len(e.ways) && e.ways[i+1] == nil:
			return conn, nil
		}
		_ = conn.Close()
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// secure encrypts a connection.
func (e encryption) secure(ctx context.Context, conn net.Conn, way *tls.Config) (*tls.Conn, error) {
	inTime := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer inTime()
	if !e.direct {
		if _, err := conn.Write(sslRequest); err != nil {
			return nil, err
		}
		// Nothing is read ahead: what came with the answer, unencrypted, breaks the handshake.
		var answer [1]byte
		if _, err := io.ReadFull(conn, answer[:]); err != nil {
			return nil, err
		}
		if answer[0] != 'S' {
			return nil, errNoTLS
		}
	}
	secured := tls.Client(conn, way)
	if err := secured.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("TLS: %w", err)
	}
	if e.direct && secured.ConnectionState().NegotiatedProtocol != alpn {
		return nil, errors.New("TLS: the server does not confirm that it is a PostgreSQL")
	}
	return secured, nil
}
