package integration

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
)

// parameters makes the body of a startup packet of names and values in turn.
func parameters(pairs ...string) string { return strings.Join(pairs, "\x00") + "\x00\x00" }

// What a startup packet asks for is answered as the PostgreSQL behind answers it, whoever asks for the password.
func TestStartupPackets(t *testing.T) {
	t.Parallel()
	upstream := testenv.Upstream(t)
	direct, err := url.Parse(upstream)
	require.NoError(t, err)
	relay := testenv.Start(t, "--store", "memory:", "--upstream", upstream)
	me := []string{"user", "postgres", "database", "postgres"}
	with := func(more ...string) string { return parameters(append(more, me...)...) }
	long := strings.Repeat("x", 70)
	for name, packet := range map[string]string{
		"3.0":                           untyped(version30, with()),
		"3.1":                           untyped(version30+1, with()),
		"3.2":                           untyped(version30+2, with()),
		"a minor version to come":       untyped(version30+9999, with()),
		"option of the protocol":        untyped(version30, with("_pq_.foo", "1")),
		"options, and a minor version":  untyped(version30+7, with("_pq_.foo", "1", "_pq_.bar", "")),
		"nearly one":                    untyped(version30, with("_pq_foo", "1")),
		"settings":                      untyped(version30, with("application_name", "x", "DateStyle", "German", "options", "-c search_path=a,b")),
		"unknown setting":               untyped(version30, with("nothing.of_that_name", "x", "no_such_setting", "x")),
		"bad value":                     untyped(version30, with("statement_timeout", "x")),
		"user twice":                    untyped(version30, with("user", "nobody_at_all")),
		"no database":                   untyped(version30, parameters("user", "postgres")),
		"empty database":                untyped(version30, parameters("user", "postgres", "database", "")),
		"no such database":              untyped(version30, parameters("user", "postgres", "database", "nowhere")),
		"long database":                 untyped(version30, parameters("user", "postgres", "database", long)),
		"no such user":                  untyped(version30, parameters("user", "nobody_at_all")),
		"long user":                     untyped(version30, parameters("user", long)),
		"no user":                       untyped(version30, parameters("database", "postgres")),
		"empty user":                    untyped(version30, parameters("user", "", "database", "postgres")),
		"nothing":                       untyped(version30, "\x00"),
		"no terminator":                 untyped(version30, "user\x00postgres\x00"),
		"name without value":            untyped(version30, "user\x00"),
		"bytes behind":                  untyped(version30, with()+"x"),
		"no body":                       untyped(version30, ""),
		"replication":                   untyped(version30, with("replication", "database")),
		"no replication":                untyped(version30, with("replication", "off")),
		"replication, malformed":        untyped(version30, with("replication", "maybe")),
		"longest":                       untyped(version30, with("options", strings.Repeat(" ", 9996-len(with("options", ""))))),
		"too long":                      untyped(version30, with("options", strings.Repeat(" ", 9997-len(with("options", ""))))),
		"cancel of nobody":              untyped(80877102, "\x00\x00\x00\x01abcd"),
		"cancel of nobody, a long key":  untyped(80877102, strings.Repeat("k", 260)),
		"cancel of nobody, a short key": untyped(80877102, "k"),
		"request of another kind":       untyped(80877199, ""),
		"no length":                     "\x00\x00\x00\x00",
		"length below that of a packet": "\x00\x00\x00\x07abc",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := strings.Join(startUp(t, direct.Host, packet), "\n")
			got := strings.Join(startUp(t, relay.Address, packet), "\n")
			// The proxy says what PostgreSQL's newest version would.
			require.Equal(t, strings.ReplaceAll(want, "server supports 3.0 to 3.0", "server supports 3.0 to 3.2"), got)
		})
	}
	t.Run("in pieces", func(t *testing.T) {
		t.Parallel()
		packet := untyped(version30, with())
		conn, err := net.Dial("tcp", relay.Address)
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		for i := range packet {
			_, err := io.WriteString(conn, packet[i:i+1])
			require.NoError(t, err)
		}
		require.Contains(t, answers(t, conn), "ReadyForQuery I")
	})
}

// startUp sends one packet and notes what is answered up to the first ReadyForQuery or the end, without what differs from one
// session to the next.
func startUp(t *testing.T, address, packet string) []string {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	_, err = io.WriteString(conn, packet)
	require.NoError(t, err)
	return answers(t, conn)
}

func answers(t *testing.T, conn net.Conn) []string {
	t.Helper()
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	var said []string
	for {
		header := make([]byte, 5)
		if n, err := io.ReadFull(conn, header); n == 0 && err != nil {
			return append(said, "the end")
		}
		body := make([]byte, binary.BigEndian.Uint32(header[1:])-4)
		_, err := io.ReadFull(conn, body)
		require.NoError(t, err)
		switch header[0] {
		case 'Z':
			return append(said, "ReadyForQuery "+string(body))
		case 'K':
			said = append(said, fmt.Sprintf("key of %d bytes", len(body)-4))
		case 'E':
			var e pgproto3.ErrorResponse
			require.NoError(t, e.Decode(body))
			said = append(said, fmt.Sprintf("%s %s %s %q %q", e.Severity, e.Code, e.Message, e.Detail, e.Hint))
		default:
			said = append(said, fmt.Sprintf("%c %q", header[0], body))
		}
	}
}
