package standalone

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newBackend returns a backend that is closed at the test's end. A session that panicked fails the test.
func newBackend(t testing.TB) *Backend {
	log := &countingLog{Handler: slog.DiscardHandler}
	b := New(Config{Logger: slog.New(log)})
	t.Cleanup(func() {
		require.NoError(t, b.Close())
		require.Zero(t, log.records.Load(), "a session panicked")
	})
	return b
}

// countingLog counts what is logged.
type countingLog struct {
	slog.Handler
	records atomic.Int32
}

func (l *countingLog) Enabled(context.Context, slog.Level) bool { return true }

func (l *countingLog) Handle(context.Context, slog.Record) error {
	l.records.Add(1)
	return nil
}

// listen makes the backend reachable by TCP, for drivers, and returns its address.
func listen(t *testing.T, b *Backend) (host, port string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			backend, err := b.Dial(context.Background())
			if err != nil {
				_ = client.Close()
				continue
			}
			go func() {
				_, _ = io.Copy(backend, client)
				_ = backend.(*conn).CloseWrite()
			}()
			go func() {
				_, _ = io.Copy(client, backend)
				_ = client.Close()
				_ = backend.Close()
			}()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	host, port, err = net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	return host, port
}

// frontend is a client that speaks in frames.
type frontend struct {
	conn net.Conn
	*pgproto3.Frontend
}

// login opens a session of the standalone backend with the startup parameters given in pairs.
func login(t testing.TB, b *Backend, parameters ...string) *frontend {
	c, err := b.Dial(context.Background())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	f := &frontend{c, pgproto3.NewFrontend(c, c)}
	start := &pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersionNumber, Parameters: map[string]string{"user": "postgres", "database": "postgres"}}
	for i := 0; i < len(parameters); i += 2 {
		start.Parameters[parameters[i]] = parameters[i+1]
	}
	f.Send(start)
	require.NoError(t, f.Flush())
	return f
}

// upstream opens a session of the real PostgreSQL that the tests compare with.
func upstream(t *testing.T, url string) *frontend {
	c, err := pgconn.Connect(context.Background(), url)
	require.NoError(t, err)
	h, err := c.Hijack()
	require.NoError(t, err)
	t.Cleanup(func() { _ = h.Conn.Close() })
	return &frontend{h.Conn, h.Frontend}
}

// drain reads messages up to the nth ReadyForQuery, or the end of the session, and writes one line for each. A negative n
// means the end.
func (f *frontend) drain(t testing.TB, n int) []string {
	require.NoError(t, f.conn.SetReadDeadline(time.Now().Add(time.Minute)))
	var lines []string
	for n != 0 {
		m, err := f.Receive()
		if err != nil {
			return append(lines, "closed")
		}
		if e, ok := m.(*pgproto3.ErrorResponse); ok {
			e.File, e.Line, e.Routine = "", 0, ""
		}
		if e, ok := m.(*pgproto3.NoticeResponse); ok {
			e.File, e.Line, e.Routine = "", 0, ""
		}
		lines = append(lines, describe(t, m))
		if _, ok := m.(*pgproto3.ReadyForQuery); ok {
			n--
		}
	}
	return lines
}

// describe writes a message as JSON, without what is empty.
func describe(t testing.TB, m pgproto3.BackendMessage) string {
	raw, err := json.Marshal(m)
	require.NoError(t, err)
	var fields map[string]any
	require.NoError(t, json.Unmarshal(raw, &fields))
	for name, v := range fields {
		if v == "" || v == nil || v == float64(0) {
			delete(fields, name)
		}
	}
	raw, err = json.Marshal(fields)
	require.NoError(t, err)
	return string(raw)
}

// exchange sends all messages at once, ends the session and returns everything that it answered.
func (f *frontend) exchange(t testing.TB, messages []pgproto3.FrontendMessage) []string {
	for _, m := range messages {
		f.Send(m)
	}
	f.Send(&pgproto3.Terminate{})
	sent := make(chan error, 1)
	go func() { sent <- f.Flush() }()
	lines := f.drain(t, -1)
	require.NoError(t, <-sent)
	return lines
}

func q(sql string) pgproto3.FrontendMessage { return &pgproto3.Query{String: sql} }

func parse(name, sql string, types ...uint32) pgproto3.FrontendMessage {
	return &pgproto3.Parse{Name: name, Query: sql, ParameterOIDs: types}
}

// bind binds text parameters; "NULL" is NULL.
func bind(portal, statement string, values ...string) *pgproto3.Bind {
	b := &pgproto3.Bind{DestinationPortal: portal, PreparedStatement: statement}
	for _, v := range values {
		if v == "NULL" {
			b.Parameters = append(b.Parameters, nil)
		} else {
			b.Parameters = append(b.Parameters, []byte(v))
		}
	}
	return b
}

func inBinary(b *pgproto3.Bind) *pgproto3.Bind {
	b.ResultFormatCodes = []int16{1}
	return b
}

func describeTarget(kind byte, name string) pgproto3.FrontendMessage {
	return &pgproto3.Describe{ObjectType: kind, Name: name}
}

func closeTarget(kind byte, name string) pgproto3.FrontendMessage {
	return &pgproto3.Close{ObjectType: kind, Name: name}
}

func execute(portal string, limit uint32) pgproto3.FrontendMessage {
	return &pgproto3.Execute{Portal: portal, MaxRows: limit}
}

var syncMessage pgproto3.FrontendMessage = &pgproto3.Sync{}

// extended is a statement in the extended protocol, from Parse to Sync.
func extended(sql string, values ...string) []pgproto3.FrontendMessage {
	return []pgproto3.FrontendMessage{
		parse("", sql), describeTarget('S', ""), bind("", "", values...), execute("", 0), syncMessage,
	}
}

// script is a list of simple queries.
func script(sql ...string) []pgproto3.FrontendMessage {
	var messages []pgproto3.FrontendMessage
	for _, s := range sql {
		messages = append(messages, q(s))
	}
	return messages
}

func lines(s []string) string { return strings.Join(s, "\n") }
