package testenv

import (
	"os"
	"path/filepath"
	"syscall"
)

// Secure gives the server a certificate of an authority, of which it takes clients' certificates too, and another pg_hba.conf,
// and starts it again. The superuser postgres must be let in without TLS. It returns the files of its certificate and key.
// The certificate is for the given names, as that of Issue is.
func (s *Server) Secure(a *Authority, hba string, hosts ...string) (cert, key string) {
	s.t.Helper()
	cert, key = a.Issue("upstream", hosts...)
	for name, from := range map[string]string{"server.crt": cert, "server.key": key, "root.crt": a.File} {
		content, err := os.ReadFile(from)
		if err != nil {
			s.t.Fatal(err)
		}
		s.write(name, string(content))
	}
	conf, err := os.ReadFile(filepath.Join(s.data, "postgresql.conf"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.write("postgresql.conf", string(conf)+"\nssl = on\nssl_ca_file = 'root.crt'\n")
	s.write("pg_hba.conf", hba+"\n")
	s.Stop(syscall.SIGINT)
	s.Start()
	return cert, key
}

// write makes a file of the server's.
func (s *Server) write(name, content string) {
	s.t.Helper()
	path := filepath.Join(s.data, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		s.t.Fatal(err)
	}
	if os.Getuid() == 0 {
		uid, gid := owner(s.t)
		if err := os.Chown(path, int(uid), int(gid)); err != nil {
			s.t.Fatal(err)
		}
	}
}
