package auth

import (
	"crypto"
	"crypto/x509"
)

// Binding is the channel binding tls-server-end-point of a server's certificate: its hash by the function of its signature, by
// SHA-256 where that is MD5 or SHA-1. It is nil for a certificate that is signed without a hash function (Ed25519).
func Binding(cert *x509.Certificate) []byte {
	var hash crypto.Hash
	switch cert.SignatureAlgorithm {
	case x509.MD5WithRSA, x509.SHA1WithRSA, x509.DSAWithSHA1, x509.ECDSAWithSHA1,
		x509.SHA256WithRSA, x509.DSAWithSHA256, x509.ECDSAWithSHA256, x509.SHA256WithRSAPSS:
		hash = crypto.SHA256
	case x509.SHA384WithRSA, x509.ECDSAWithSHA384, x509.SHA384WithRSAPSS:
		hash = crypto.SHA384
	case x509.SHA512WithRSA, x509.ECDSAWithSHA512, x509.SHA512WithRSAPSS:
		hash = crypto.SHA512
	default:
		return nil
	}
	h := hash.New()
	h.Write(cert.Raw)
	return h.Sum(nil)
}
