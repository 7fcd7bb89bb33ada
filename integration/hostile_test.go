package integration

import (
	"context"
	"flag"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	gosync "sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
)

var (
	hostileSessions = flag.Int("hostile-sessions", 2000, "mutated sessions to run against each proxy")
	hostileSeed     = flag.Uint64("hostile-seed", 0, "seed of the mutations; 0 takes a random one")
)

// TestHostileSessions sends sessions whose bytes were changed at random. None may hurt another session, or end in a
// panic; all must end.
func TestHostileSessions(t *testing.T) {
	seed := *hostileSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-hostile-seed %d", seed)
	direct := freshDatabase(t)
	for name, target := range map[string]struct {
		url string
		of  *inProcess
	}{"upstream": {proxied(t, direct), &before}, "standalone": {withoutUpstream(t), &standing}} {
		t.Run(name, func(t *testing.T) {
			exec(t, target.url, append(sequences, "CREATE SEQUENCE untouched")...)
			good := connect(t, target.url)
			_, err := good.Prepare(context.Background(), "draw", "SELECT nextval('untouched')")
			require.NoError(t, err)
			bytes := sessionBytes(t, target.url)
			jobs := make(chan uint64)
			var workers gosync.WaitGroup
			for range 16 {
				workers.Go(func() {
					for n := range jobs {
						hostile(t, target.of.addr, bytes, rand.New(rand.NewPCG(seed, n)))
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
			}
			close(jobs)
			workers.Wait()
			require.Empty(t, target.of.log.String())
			exec(t, target.url, "SELECT nextval('untouched')")
		})
	}
}

// sessionBytes are the bytes of all conversations, each with its own login.
func sessionBytes(t *testing.T, url string) [][]byte {
	cfg, err := pgx.ParseConfig(url)
	require.NoError(t, err)
	login, err := (&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30,
		Parameters: map[string]string{"user": cfg.User, "database": cfg.Database}}).Encode(nil)
	require.NoError(t, err)
	var sessions [][]byte
	for _, group := range []map[string]conversation{alone, withTable} {
		for _, c := range group {
			session := append([]byte(nil), login...)
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

// hostile sends one mutated session and reads until the server closes. Half of them keep their login as it is.
func hostile(t *testing.T, addr string, sessions [][]byte, r *rand.Rand) {
	session := append([]byte(nil), sessions[r.IntN(len(sessions))]...)
	first := 0
	if r.IntN(4) > 0 {
		first = int(session[2])<<8 | int(session[3])
	}
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
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Errorf("the proxy does not accept: %v", err)
		return
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	go func() {
		_, _ = conn.Write(session)
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	if _, err := io.Copy(io.Discard, conn); err != nil {
		if e, ok := err.(net.Error); ok && e.Timeout() {
			t.Errorf("a session did not end: %q", session)
		}
	}
}
