package integration

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/pires/go-proxyproto"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
)

// port is that of an address.
func port(t *testing.T, address string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	return port
}

func TestSockets(t *testing.T) {
	t.Parallel()
	folder, other := t.TempDir(), t.TempDir()
	p := testenv.Start(t, "--store", "memory:", "--listen", "unix:"+folder, "--listen", "127.0.0.1:0", "--listen", "unix:"+other+"/", "--listen", "[::1]:0")
	addresses := strings.Split(strings.Fields(strings.Split(p.Log(), "address=")[1])[0], ",")
	require.Len(t, addresses, 4)
	path := filepath.Join(folder, ".s.PGSQL."+port(t, addresses[1]))
	require.Equal(t, "unix:"+path, addresses[0])
	require.Equal(t, filepath.Join(other, ".s.PGSQL."+port(t, addresses[1])), strings.TrimPrefix(addresses[2], "unix:"))
	url := fmt.Sprintf("postgres://me@/shop?host=%s&port=%s", folder, port(t, addresses[1]))
	for i, c := range []string{url, "postgres://me@" + addresses[1] + "/shop?sslmode=disable", "postgres://me@" + addresses[3] + "/shop?sslmode=disable"} {
		if i == 0 {
			testenv.Exec(t, c, "CREATE SEQUENCE s")
		}
		require.EqualValues(t, i+1, number(t, connect(t, c), "SELECT nextval('s')"))
	}
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.ModeSocket|0o777, info.Mode())
	lock, err := os.ReadFile(path + ".lock")
	require.NoError(t, err)
	require.Regexp(t, `^\d+\n`, string(lock))

	// It is in use.
	r := testenv.Command{Args: []string{"serve", "--store", "memory:", "--listen", "unix:" + folder, "--listen", "127.0.0.1:" + port(t, addresses[1])}}.Run(t)
	require.Contains(t, r.Stderr, "--listen: cannot listen on 127.0.0.1")
	r = testenv.Command{Args: []string{"serve", "--store", "memory:", "--listen", "unix:" + folder, "--listen", "127.0.0.2:" + port(t, addresses[1])}}.Run(t)
	require.Contains(t, r.Stderr, "--listen: cannot listen on "+path+": address already in use: another process holds its lock file\n")
	r = testenv.Psql(t, url, "-c", "SELECT 1") // and still there
	require.Equal(t, 0, r.Code, r.Stderr)

	p.Stop()
	for _, folder := range []string{folder, other} {
		left, err := os.ReadDir(folder)
		require.NoError(t, err)
		require.Empty(t, left)
	}
}

// Alone it has the default port; what a killed process left is replaced, but not the socket of somebody else.
func TestSocketsLeftBehind(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	command := testenv.Command{Args: []string{"--store", "memory:"}, Env: []string{"NEXTVALD_LISTEN=unix:" + folder}}
	p := command.Start(t)
	url := "postgres://me@/shop?host=" + folder + "&port=6432"
	require.EqualValues(t, 1, number(t, connect(t, url), "SELECT 1"))
	p.Kill()
	require.FileExists(t, filepath.Join(folder, ".s.PGSQL.6432.lock"))
	p = command.Start(t)
	require.EqualValues(t, 1, number(t, connect(t, url), "SELECT 1"))
	p.Stop()

	l, err := net.Listen("unix", filepath.Join(folder, ".s.PGSQL.6432"))
	require.NoError(t, err)
	r := testenv.Command{Args: []string{"serve", "--store", "memory:"}, Env: command.Env}.Run(t)
	require.Regexp(t, "NEXTVALD_LISTEN: cannot listen on .*: address already in use\n", r.Stderr)
	require.NoError(t, l.Close())
	r = testenv.Command{Args: []string{"serve", "--store", "memory:", "--listen", "unix:/nonexistent/folder"}}.Run(t)
	require.Equal(t, "nextvald: --listen: cannot listen on /nonexistent/folder/.s.PGSQL.6432: no such file or directory\n", r.Stderr)
}

// A PostgreSQL keeps away from our socket, and we from its.
func TestSocketsBesidePostgreSQL(t *testing.T) {
	t.Parallel()
	server := testenv.Postgres(t)
	r := testenv.Command{Args: []string{"serve", "--store", "memory:", "--listen", "127.0.0.2:" + port(t, server.Address()), "--listen", "unix:" + server.Folder()}}.Run(t)
	require.Contains(t, r.Stderr, "address already in use")
	require.EqualValues(t, 1, number(t, connect(t, "postgres://postgres@/postgres?host="+server.Folder()+"&port="+port(t, server.Address())), "SELECT 1"))
	server.Stop(syscall.SIGINT)
	require.NoFileExists(t, filepath.Join(server.Folder(), ".s.PGSQL."+port(t, server.Address())+".lock"))
}

// behindBalancer sends bytes behind a PROXY header of an address, and returns what comes until the end.
func behindBalancer(t *testing.T, p *testenv.Process, header []byte, rest ...byte) string {
	t.Helper()
	c, err := net.Dial("tcp", p.Address)
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	_, err = c.Write(append(header, rest...))
	require.NoError(t, err)
	_ = c.(*net.TCPConn).CloseWrite()
	answer, _ := io.ReadAll(c) // it may be reset
	return string(answer)
}

func TestProxyProtocol(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	p := testenv.Start(t, "--store", "memory:", "--listen", "127.0.0.1:0", "--listen", "unix:"+folder, "--proxy-protocol", "true", "--log-level", "debug")
	login, err := (&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "me", "database": "shop"}}).Encode(nil)
	require.NoError(t, err)
	login, err = (&pgproto3.Query{String: "SELECT 'here'"}).Encode(login)
	require.NoError(t, err)
	to := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 5432}
	v2 := func(command proxyproto.ProtocolVersionAndCommand, from net.Addr) []byte {
		h := proxyproto.HeaderProxyFromAddrs(2, from, to)
		h.Command = command
		text, err := h.Format()
		require.NoError(t, err)
		return text
	}
	good := v2(proxyproto.PROXY, &net.TCPAddr{IP: net.IPv4(198, 51, 100, 7), Port: 4711})
	require.Contains(t, behindBalancer(t, p, good, login...), "here")
	require.Eventually(t, func() bool {
		return strings.Contains(p.Log(), "session begins\" client=198.51.100.7:4711 user=me database=shop")
	}, patience, 10*time.Millisecond)
	require.Contains(t, behindBalancer(t, p, v2(proxyproto.LOCAL, &net.TCPAddr{IP: net.IPv4(198, 51, 100, 8), Port: 1}), login...), "here")
	require.NotContains(t, p.Log(), "198.51.100.8")
	for name, bad := range map[string][]byte{
		"none":      nil,
		"version 1": []byte("PROXY TCP4 198.51.100.7 192.0.2.1 4711 5432\r\n"),
		"too long":  append(append([]byte(nil), good[:14]...), 0xff, 0xff),
		"too short": append(append([]byte(nil), good[:14]...), 0, 3),
		"torn":      good[:20],
	} {
		answer := behindBalancer(t, p, bad, login...)
		if name != "torn" {
			require.Empty(t, answer, name)
		}
	}
	// The socket has no headers.
	require.EqualValues(t, 1, number(t, connect(t, "postgres://me@/shop?host="+folder+"&port="+port(t, p.Address)), "SELECT 1"))
	// One that sends nothing does not hold up the end.
	silent, err := net.Dial("tcp", p.Address)
	require.NoError(t, err)
	defer func() { _ = silent.Close() }()
	p.Stop()
}
