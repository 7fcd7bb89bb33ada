package integration

import (
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"flag"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strconv"
	gosync "sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
	"github.com/nextvald/nextvald/proxy"
	"github.com/nextvald/nextvald/proxy/auth"
	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/memstore"
)

var (
	hostileSessions = flag.Int("hostile-sessions", 7000, "mutated sessions to run against each proxy")
	hostileSeed     = flag.Uint64("hostile-seed", 0, "seed of the mutations; 0 takes a random one")
)

// victim is a proxy that gets mutated sessions.
type victim struct {
	url string
	of  *inProcess
	// open connects, and returns what to send from there on.
	open func(t *testing.T, r *rand.Rand) (net.Conn, []byte, error)
}

// TestHostileSessions sends sessions whose bytes were changed at random. None may hurt another session, or end in a
// panic; all must end, and leave nothing behind.
func TestHostileSessions(t *testing.T) {
	seed := *hostileSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-hostile-seed %d", seed)
	mirroring := &source{hotCalls: 1, from: sequencer.FromStore}
	for name, v := range map[string]*victim{
		"upstream":   plainVictim(t, through(t), &before),
		"mirrored":   plainVictim(t, mirroring.behind(t, freshDatabase(t)), &mirroring.proxy),
		"standalone": plainVictim(t, withoutUpstream(t), &standing),
		"encrypted":  encryptedVictim(t, freshDatabase(t)),
	} {
		t.Run(name, func(t *testing.T) {
			exec(t, v.url, append(sequences, "CREATE SEQUENCE untouched")...)
			good := connect(t, v.url)
			_, err := good.Prepare(context.Background(), "draw", "SELECT nextval('untouched')")
			require.NoError(t, err)
			goroutines, files := runtime.NumGoroutine(), openFiles(t)
			jobs := make(chan uint64)
			var workers gosync.WaitGroup
			for range 16 {
				workers.Go(func() {
					for n := range jobs {
						v.hostile(t, rand.New(rand.NewPCG(seed, n)))
					}
				})
			}
			var last int64
			for n := range *hostileSessions {
				jobs <- uint64(n)
				if n%50 == 0 {
					var v int64
					require.NoError(t, good.QueryRow(context.Background(), "draw").Scan(&v))
					require.Greater(t, v, last)
					last = v
				}
				if n%50_000 == 0 {
					t.Logf("%d of %d sessions", n, *hostileSessions)
				}
			}
			close(jobs)
			workers.Wait()
			require.Empty(t, v.of.log.String())
			exec(t, v.url, "SELECT nextval('untouched')")
			// A few more there may be: of the sequencer, and of what closes later.
			require.Eventually(t, func() bool {
				return v.of.server.Connections() == 1 && runtime.NumGoroutine() < goroutines+20 && openFiles(t) < files+20
			}, patience, 100*time.Millisecond, "something is left behind")
		})
	}
}

func openFiles(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

// plainVictim gets sessions from their first packet on. Three in four keep that as it is.
func plainVictim(t *testing.T, url string, of *inProcess) *victim {
	sessions := sessionBytes(t, startOf(t, url))
	return &victim{url: url, of: of, open: func(t *testing.T, r *rand.Rand) (net.Conn, []byte, error) {
		conn, err := net.Dial("tcp", of.addr)
		session := sessions[r.IntN(len(sessions))]
		first := 0
		if r.IntN(4) > 0 {
			first = int(session[2])<<8 | int(session[3])
		}
		return conn, mutated(session, first, r), err
	}}
}

var encrypted inProcess

// encryptedVictim encrypts sessions and asks for passwords. It gets handshakes, logins, and what follows them.
func encryptedVictim(t *testing.T, upstream string) *victim {
	u, err := url.Parse(upstream)
	require.NoError(t, err)
	ca := testenv.NewAuthority(t)
	cert, key := ca.Issue("server")
	secured, err := proxy.LoadTLS(proxy.TLSFiles{Cert: cert, Key: key})
	require.NoError(t, err)
	encrypted.start(t, proxy.Config{Upstream: tcp(u.Host), TLS: secured, Users: knownUser{u.User.Username()}},
		func() (sequencer.Store, error) { return memstore.New(), nil })
	u.Host, u.User, u.RawQuery = encrypted.addr, url.UserPassword(u.User.Username(), rightPassword), "sslmode=require"
	target := u.String()

	login := startOf(t, target)
	for _, body := range []string{
		"SCRAM-SHA-256\x00\x00\x00\x00\x0bn,,n=,r=abc",
		"c=biws,r=abcdef,p=" + base64.StdEncoding.EncodeToString(make([]byte, 32)),
	} {
		login = append(append(login, 'p', 0, 0, 0, byte(4+len(body))), body...)
	}
	logins, sessions, hello := sessionBytes(t, login), sessionBytes(t, nil), helloOf(t)
	request := []byte(untyped(sslRequest, ""))

	return &victim{url: target, of: &encrypted, open: func(t *testing.T, r *rand.Rand) (net.Conn, []byte, error) {
		if r.IntN(2) == 0 {
			conn, err := pgconn.Connect(context.Background(), target)
			if err != nil {
				return nil, nil, err
			}
			hijacked, err := conn.Hijack()
			if err != nil {
				return nil, nil, err
			}
			return hijacked.Conn, mutated(sessions[r.IntN(len(sessions))], 0, r), nil
		}
		conn, err := net.Dial("tcp", encrypted.addr)
		if err != nil {
			return nil, nil, err
		}
		session := mutated(logins[r.IntN(len(logins))], 0, r)
		switch r.IntN(4) {
		case 0: // without TLS
			return conn, session, nil
		case 1: // direct
			return conn, mutated(hello, 0, r), nil
		}
		if _, err := conn.Write(request); err != nil {
			return nil, nil, err
		}
		if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
			return nil, nil, err
		}
		if r.IntN(2) == 0 {
			return conn, mutated(hello, 0, r), nil
		}
		return tls.Client(conn, &tls.Config{InsecureSkipVerify: true}), session, nil
	}}
}

// knownUser is a list of one user whose password is rightPassword.
type knownUser struct{ name string }

func (u knownUser) Secret(_ context.Context, user string) (*auth.Secret, error) {
	if user != u.name {
		return nil, nil
	}
	return auth.ParseSecret(user, quickVerifier)
}

// quickVerifier is that of rightPassword with one iteration, so that a login takes no time.
var quickVerifier = func() string {
	salted, err := pbkdf2.Key(sha256.New, rightPassword, []byte("salt"), 1, sha256.Size)
	if err != nil {
		panic(err)
	}
	sum := func(text string) []byte {
		m := hmac.New(sha256.New, salted)
		m.Write([]byte(text))
		return m.Sum(nil)
	}
	stored := sha256.Sum256(sum("Client Key"))
	return "SCRAM-SHA-256$1:" + base64.StdEncoding.EncodeToString([]byte("salt")) + "$" +
		base64.StdEncoding.EncodeToString(stored[:]) + ":" + base64.StdEncoding.EncodeToString(sum("Server Key"))
}()

// helloOf is what a client of TLS sends first.
func helloOf(t *testing.T) []byte {
	near, far := net.Pipe()
	go func() {
		_ = tls.Client(near, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"postgresql"}}).Handshake()
	}()
	buf := make([]byte, 64<<10)
	n, err := far.Read(buf)
	require.NoError(t, err)
	_ = far.Close()
	return buf[:n]
}

// startOf is the startup packet of a session.
func startOf(t *testing.T, url string) []byte {
	cfg, err := pgx.ParseConfig(url)
	require.NoError(t, err)
	packet, err := (&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30,
		Parameters: map[string]string{"user": cfg.User, "database": cfg.Database}}).Encode(nil)
	require.NoError(t, err)
	return packet
}

// sessionBytes are the bytes of all conversations, each behind a login.
func sessionBytes(t *testing.T, login []byte) (sessions [][]byte) {
	for _, group := range []map[string]conversation{alone, withTable} {
		for _, name := range slices.Sorted(maps.Keys(group)) { // the same ones for a seed
			c := group[name]
			session, err := append([]byte(nil), login...), error(nil)
			for _, e := range c {
				for _, m := range e.messages {
					session, err = m.Encode(session)
					require.NoError(t, err)
				}
			}
			session, err = (&pgproto3.Terminate{}).Encode(session)
			require.NoError(t, err)
			sessions = append(sessions, session)
		}
	}
	return sessions
}

// mutated is a session with bytes changed, from the first that may be on.
func mutated(session []byte, first int, r *rand.Rand) []byte {
	session = append([]byte(nil), session...)
	for range 1 + r.IntN(6) {
		if first >= len(session)-1 {
			break
		}
		at := first + r.IntN(len(session)-first)
		switch r.IntN(6) {
		case 0:
			session[at] = byte(r.Uint32())
		case 1:
			session[at] ^= 1 << r.IntN(8)
		case 2:
			session = append(session[:at:at], session[min(len(session), at+1+r.IntN(8)):]...)
		case 3:
			session = append(session[:at:at], append([]byte(strconv.Itoa(r.IntN(1000))), session[at:]...)...)
		case 4:
			session = session[:at]
		case 5:
			session = append(session, session[at:]...)
		}
	}
	return session
}

// hostile sends one mutated session and reads until the server closes.
func (v *victim) hostile(t *testing.T, r *rand.Rand) {
	conn, session, err := v.open(t, r)
	if err != nil {
		t.Errorf("the proxy does not accept: %v", err)
		return
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	go func() {
		_, _ = conn.Write(session)
		_ = conn.(interface{ CloseWrite() error }).CloseWrite()
	}()
	if _, err := io.Copy(io.Discard, conn); err != nil {
		if e, ok := err.(net.Error); ok && e.Timeout() {
			t.Errorf("a session did not end: %q", session)
		}
	}
}
