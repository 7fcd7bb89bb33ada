package testenv

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority issues certificates for a test. Its files are readable by their owner alone.
type Authority struct {
	File string // its certificate

	t      testing.TB
	folder string
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
}

// NewAuthority makes an authority whose files end with the test.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{t: t, folder: t.TempDir()}
	template := certificate("authority of a test")
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign
	a.key = newKey(t)
	a.cert = a.sign(template, template, a.key)
	a.File = a.write("ca.pem", "CERTIFICATE", a.cert.Raw)
	return a
}

// Issue makes a certificate with a common name, for clients and for servers of the given names (localhost and 127.0.0.1 when
// there are none), and its key.
func (a *Authority) Issue(commonName string, hosts ...string) (certFile, keyFile string) {
	a.t.Helper()
	template := certificate(commonName)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	if template.DNSNames = hosts; len(hosts) == 0 {
		template.DNSNames, template.IPAddresses = []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	key := newKey(a.t)
	cert := a.sign(template, a.cert, key)
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	return a.write(commonName+".pem", "CERTIFICATE", cert.Raw), a.write(commonName+".key", "PRIVATE KEY", encoded)
}

func certificate(commonName string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: commonName},
		NotBefore:    time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// sign has the authority sign the certificate of a key.
func (a *Authority) sign(template, parent *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	a.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert
}

func (a *Authority) write(name, kind string, der []byte) string {
	a.t.Helper()
	path := filepath.Join(a.folder, name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}
