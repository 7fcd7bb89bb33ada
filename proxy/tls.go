package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"

	"github.com/nextvald/nextvald/proxy/auth"
	"github.com/nextvald/nextvald/proxy/wire"
)

// alpn is the protocol that a client names in a handshake that no SSLRequest came before.
const alpn = "postgresql"

// TLSFiles names the files of a TLS, all in PEM.
type TLSFiles struct {
	Cert, Key string
	// ClientCA holds the authorities of client certificates. Where it is given every client needs one, whose common name
	// is the user. Empty: none is asked for.
	ClientCA string
}

// TLS is what connections of clients are encrypted with. It is safe for concurrent use.
type TLS struct {
	files   TLSFiles
	current atomic.Pointer[loadedTLS]
}

// loadedTLS is what the files held when they were read.
type loadedTLS struct {
	config  *tls.Config
	binding []byte // the channel binding of the certificate; nil when it has none
}

// LoadTLS reads the files.
func LoadTLS(files TLSFiles) (*TLS, error) {
	t := &TLS{files: files}
	return t, t.Reload()
}

// Reload reads the files again, for the handshakes from now on. When it fails what was read before stays.
func (t *TLS) Reload() error {
	cert, err := tls.LoadX509KeyPair(t.files.Cert, t.files.Key)
	if err != nil {
		return err
	}
	cfg := &tls.Config{
		Certificates: []tls.Certificate{cert},
		NextProtos:   []string{alpn},
		MinVersion:   tls.VersionTLS12,
		// A resumed session would outlive the files that it was made with. PostgreSQL has none either.
		SessionTicketsDisabled: true,
	}
	if t.files.ClientCA != "" {
		pem, err := os.ReadFile(t.files.ClientCA)
		if err != nil {
			return err
		}
		cfg.ClientCAs = x509.NewCertPool()
		if !cfg.ClientCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("%s: holds no certificate", t.files.ClientCA)
		}
		// A client without one is told in the protocol, and may still cancel.
		cfg.ClientAuth = tls.VerifyClientCertIfGiven
	}
	t.current.Store(&loadedTLS{config: cfg, binding: auth.Binding(cert.Leaf)})
	return nil
}

// demandsCertificate reports whether clients log in with certificates only.
func (t *TLS) demandsCertificate() bool { return t != nil && t.files.ClientCA != "" }

// peer is the connection of a client, from its first byte on.
type peer struct {
	conn    net.Conn // to read and write: encrypted once the client has asked for it
	in      *wire.Reader
	binding []byte // the channel binding of its encryption; nil when there is none
	// address is the client's, for the log: the one that a PROXY header tells, or that the connection comes from.
	address string
}

func newPeer(conn net.Conn) *peer {
	p := &peer{conn: conn, in: wire.NewReader(conn, nil), address: conn.RemoteAddr().String()}
	if conn.RemoteAddr().Network() == "unix" {
		p.address = "local" // the sockets of clients have no names
	}
	return p
}

// readHeader reads the PROXY header of a connection.
func (p *peer) readHeader() error {
	from, err := readHeader(p.conn)
	if from != nil {
		p.address = from.String()
	}
	return err
}

// encrypt carries out a handshake over what the client sent and sends next. The connection must have a deadline.
func (p *peer) encrypt(ctx context.Context, t *TLS) error {
	loaded := t.current.Load()
	secured := tls.Server(rest{p.conn, p.in.Rest()}, loaded.config)
	if err := secured.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("TLS handshake: %w", err)
	}
	p.conn, p.in, p.binding = secured, wire.NewReader(secured, nil), loaded.binding
	return nil
}

// encrypted returns the state of the client's TLS, nil when there is none.
func (p *peer) encrypted() *tls.ConnectionState {
	if c, ok := p.conn.(*tls.Conn); ok {
		state := c.ConnectionState()
		return &state
	}
	return nil
}

// checkCertificate refuses a client whose certificate is missing or is another user's.
func (p *peer) checkCertificate(user string) error {
	state := p.encrypted()
	switch {
	case state == nil || len(state.PeerCertificates) == 0:
		return refuse(p.conn, &wire.Error{Code: "28000", Message: "connection requires a valid client certificate"})
	case state.PeerCertificates[0].Subject.CommonName != user:
		return errors.Join(
			fmt.Errorf("the client certificate is that of %q", state.PeerCertificates[0].Subject.CommonName),
			refuse(p.conn, &wire.Error{Code: "28000", Message: fmt.Sprintf("certificate authentication failed for user \"%s\"", user)}))
	}
	return nil
}

// rest is a connection of which something has been read already.
type rest struct {
	net.Conn
	from io.Reader
}

func (r rest) Read(p []byte) (int, error) { return r.from.Read(p) }
