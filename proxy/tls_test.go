package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
	"github.com/nextvald/nextvald/proxy/auth"
)

// shown has a client handshake with a peer over one connection, and returns the certificate that it is shown.
func shown(t *testing.T, loaded *TLS) *x509.Certificate {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	client, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer func() { _ = client.Close() }()
	server, err := l.Accept()
	require.NoError(t, err)
	defer func() { _ = server.Close() }()
	for _, c := range []net.Conn{client, server} {
		require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
	}
	p := newPeer(server)
	done := make(chan error, 1)
	go func() { done <- p.encrypt(context.Background(), loaded) }()
	secured := tls.Client(client, &tls.Config{InsecureSkipVerify: true})
	require.NoError(t, secured.Handshake())
	require.NoError(t, <-done)
	cert := secured.ConnectionState().PeerCertificates[0]
	require.Equal(t, auth.Binding(cert), p.binding)
	return cert
}

func TestReloadTLS(t *testing.T) {
	ca := testenv.NewAuthority(t)
	cert, key := ca.Issue("first")
	files := TLSFiles{Cert: cert, Key: key, ClientCA: ca.File}
	loaded, err := LoadTLS(files)
	require.NoError(t, err)
	require.True(t, loaded.demandsCertificate())
	require.Equal(t, "first", shown(t, loaded).Subject.CommonName)

	replace := func(path, by string) {
		content, err := os.ReadFile(by)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, content, 0o600))
	}
	otherCert, otherKey := ca.Issue("second")
	replace(cert, otherCert)
	require.ErrorContains(t, loaded.Reload(), "private key does not match")
	require.Equal(t, "first", shown(t, loaded).Subject.CommonName, "what was read before stays")

	replace(key, otherKey)
	require.Equal(t, "first", shown(t, loaded).Subject.CommonName, "nothing is read unasked")
	require.NoError(t, loaded.Reload())
	require.Equal(t, "second", shown(t, loaded).Subject.CommonName)

	replace(ca.File, otherKey)
	require.ErrorContains(t, loaded.Reload(), "holds no certificate")
	require.Equal(t, "second", shown(t, loaded).Subject.CommonName)
}
