package standalone

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/proxy/wire"
)

// startupPacket is a startup packet of a protocol version with parameters in pairs.
func startupPacket(version uint32, parameters ...string) []byte {
	body := binary.BigEndian.AppendUint32(nil, version)
	for _, p := range parameters {
		body = append(append(body, p...), 0)
	}
	body = append(body, 0)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body)+4)), body...)
}

// talk writes raw bytes to a new connection, ends its own side, and returns everything that comes back.
func talk(t testing.TB, b *Backend, raw []byte) []byte {
	c, err := b.Dial(context.Background())
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
	go func() {
		_, _ = c.Write(raw)
		_ = c.(*conn).CloseWrite()
	}()
	answer, err := io.ReadAll(c)
	require.NoError(t, err)
	return answer
}

// decoded are the messages in raw, a line each.
func decoded(t testing.TB, raw []byte) []string {
	f := &frontend{Frontend: pgproto3.NewFrontend(bytes.NewReader(raw), io.Discard)}
	var all []string
	for {
		m, err := f.Receive()
		if err != nil {
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			return all
		}
		all = append(all, describe(t, m))
	}
}

func TestLoginReport(t *testing.T) {
	f := login(t, newBackend(t), "application_name", "me", "timezone", "Europe/Berlin", "options", `-c work_mem=8MB --search-path=a\ b`)
	told := make(map[string]string)
	for {
		m, err := f.Receive()
		require.NoError(t, err)
		switch m := m.(type) {
		case *pgproto3.ParameterStatus:
			told[m.Name] = m.Value
		case *pgproto3.BackendKeyData:
			assert.Len(t, m.SecretKey, 4)
		}
		if _, ok := m.(*pgproto3.ReadyForQuery); ok {
			break
		}
	}
	assert.Equal(t, map[string]string{
		"application_name": "me", "client_encoding": "UTF8", "DateStyle": "ISO, MDY", "default_transaction_read_only": "off",
		"in_hot_standby": "off", "integer_datetimes": "on", "IntervalStyle": "postgres", "is_superuser": "off",
		"server_encoding": "UTF8", "server_version": "15.0 (nextvald)", "session_authorization": "postgres",
		"standard_conforming_strings": "on", "TimeZone": "Europe/Berlin",
	}, told)
	answers := lines(f.exchange(t, script("show work_mem", "show search_path", "set work_mem = '1MB'; reset work_mem; show work_mem")))
	assert.Equal(t, 2, strings.Count(answers, `{"text":"8MB"}`), answers)
	assert.Contains(t, answers, `{"text":"a b"}`)
}

func TestStartup(t *testing.T) {
	user := []string{"user", "me"}
	cases := map[string]struct {
		packet []byte
		want   []string // parts of the first messages
	}{
		"bare":                {startupPacket(3<<16, user...), []string{`AuthenticationOK`, `"Name":"application_name"`}},
		"protocol 3.2":        {startupPacket(3<<16|2, user...), []string{`AuthenticationOK`}},
		"later minor":         {startupPacket(3<<16|9999, user...), []string{`"NewestMinorProtocol":196610`, `AuthenticationOK`}},
		"protocol option":     {startupPacket(3<<16, "user", "me", "_pq_.x", "y"), []string{`"UnrecognizedOptions":["_pq_.x"]`, `AuthenticationOK`}},
		"other major":         {startupPacket(2<<16, user...), []string{`"Message":"unsupported frontend protocol 2.0: server supports 3.0 to 3.2"`}},
		"no user":             {startupPacket(3 << 16), []string{`"Code":"28000"`}},
		"unknown setting":     {startupPacket(3<<16, "user", "me", "foo", "bar"), []string{`"Code":"42704"`}},
		"bad setting":         {startupPacket(3<<16, "user", "me", "client_encoding", "foo"), []string{`"Code":"22023"`}},
		"bad option":          {startupPacket(3<<16, "user", "me", "options", "-x"), []string{`"Message":"invalid command-line argument for server process: -x"`}},
		"replication":         {startupPacket(3<<16, "user", "me", "replication", "database"), []string{`"Code":"0A000"`}},
		"no replication":      {startupPacket(3<<16, "user", "me", "replication", "off"), []string{`AuthenticationOK`}},
		"value missing":       {startupPacket(3<<16, "user"), []string{`"Code":"08P01"`}},
		"bytes behind":        {append(startupPacket(3<<16, user...)[:4:4], append(startupPacket(3<<16, user...)[4:], 'x')...), []string{`AuthenticationOK`}},
		"cancel":              {[]byte{0, 0, 0, 16, 4, 210, 22, 46, 0, 0, 0, 1, 0, 0, 0, 2}, nil},
		"too long":            {[]byte{0, 1, 0, 0, 0, 3, 0, 0}, nil},
		"too short":           {[]byte{0, 0, 0, 7, 0, 3, 0}, nil},
		"cut short":           {startupPacket(3<<16, user...)[:12], nil},
		"nothing":             {nil, nil},
		"several at a time":   {append(startupPacket(3<<16, user...), 'Q', 0, 0, 0, 5, 0), []string{`AuthenticationOK`}},
		"longest application": {startupPacket(3<<16, "user", "me", "application_name", strings.Repeat("x", 9000)), []string{`AuthenticationOK`, strings.Repeat("x", 63) + `"`}},
	}
	b := newBackend(t)
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			answers := decoded(t, talk(t, b, c.packet))
			if c.want == nil {
				assert.Empty(t, answers)
				return
			}
			for i, part := range c.want {
				require.Greater(t, len(answers), i)
				assert.Contains(t, answers[i], part)
			}
			if strings.Contains(c.want[0], "Code") {
				assert.Len(t, answers, 1)
				assert.Contains(t, answers[0], "FATAL")
			}
		})
	}
}

func TestEncryptionIsRefused(t *testing.T) {
	packet := []byte{0, 0, 0, 8, 4, 210, 22, 47}
	answer := talk(t, newBackend(t), append(packet, startupPacket(3<<16, "user", "me")...))
	require.NotEmpty(t, answer)
	assert.Equal(t, byte('N'), answer[0])
	assert.Contains(t, lines(decoded(t, answer[1:])), "ReadyForQuery")
}

func TestKeyOfProtocol32(t *testing.T) {
	answer := talk(t, newBackend(t), startupPacket(3<<16|2, "user", "me"))
	at := bytes.Index(answer, []byte{wire.TypeBackendKeyData, 0, 0, 0, 8 + 32})
	require.Positive(t, at)
	assert.Equal(t, []byte{wire.TypeReadyForQuery, 0, 0, 0, 5, 'I'}, answer[at+1+8+32:])
}

func TestBrokenProtocol(t *testing.T) {
	cases := map[string]struct {
		raw   string
		want  string // part of the first answer after the login, empty for none
		stays bool   // the session goes on
	}{
		"unknown type":        {"!\x00\x00\x00\x04", `"Message":"invalid frontend message type 33","Severity":"FATAL"`, false},
		"password later":      {"p\x00\x00\x00\x05\x00", `"Message":"invalid frontend message type 112"`, false},
		"length of 3":         {"Q\x00\x00\x00\x03", "", false},
		"length of 4 GB":      {"Q\xff\xff\xff\xff", "", false},
		"function call":       {"F\x00\x00\x00\x0e\x00\x00\x06\x26\x00\x00\x00\x00\x00\x00", `"Code":"0A000"`, true},
		"unterminated text":   {"Q\x00\x00\x00\x06ab", `"Code":"08P01"`, true},
		"text after the end":  {"Q\x00\x00\x00\x07a\x00b", `"Code":"08P01"`, true},
		"Parse cut":           {"P\x00\x00\x00\x05\x00" + "S\x00\x00\x00\x04", `"Message":"invalid message format"`, true},
		"Parse of many types": {"P\x00\x00\x00\x08\x00\x00\xff\xff" + "S\x00\x00\x00\x04", `"Message":"invalid message format"`, true},
		"Bind of bad length":  {"B\x00\x00\x00\x0e\x00\x00\x00\x00\x00\x01\xff\xff\xff\xfe" + "S\x00\x00\x00\x04", `"Message":"invalid message format"`, true},
		"Execute cut":         {"E\x00\x00\x00\x06\x00\x00" + "S\x00\x00\x00\x04", `"Message":"invalid message format"`, true},
		"message over 1 MB":   {"Q\x00\x20\x00\x00" + strings.Repeat(" ", 0x200000-4), `"Code":"54000"`, true},
		"text over 16 kB":     {"Q\x00\x00\x80\x00" + strings.Repeat(" ", 0x8000-5) + "\x00", `"Code":"54001"`, true},
		"message cut":         {"Q\x00\x00\x01\x00select", "", false},
	}
	b := newBackend(t)
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			raw := append(startupPacket(3<<16, "user", "me"), c.raw...)
			raw = append(raw, "Q\x00\x00\x00\x1cselect 'still ' || here\x00"...)
			answers := decoded(t, talk(t, b, raw))
			for len(answers) > 0 && !strings.Contains(answers[0], "ReadyForQuery") {
				answers = answers[1:]
			}
			require.NotEmpty(t, answers, "no login")
			answers = answers[1:]
			if c.want == "" {
				assert.Empty(t, answers)
				return
			}
			require.NotEmpty(t, answers)
			assert.Contains(t, answers[0], c.want)
			assert.Equal(t, c.stays, strings.Count(lines(answers), "ReadyForQuery") == 2, lines(answers))
		})
	}
}

// TestDeepStatements sends expressions that come close to what the parser survives. The test is that the process does.
func TestDeepStatements(t *testing.T) {
	fit := func(prefix, part string, parts int, suffix string) string {
		for len(prefix)+len(part)*parts+len(suffix)*parts > maxText-64 {
			parts--
		}
		return prefix + strings.Repeat(part, parts) + "1" + strings.Repeat(suffix, parts)
	}
	cases := map[string]string{
		"sum":         fit("select ", "1+", maxText, ""),
		"parentheses": fit("select ", "(", maxText, ")"),
		"signs":       fit("select ", "- ", maxText, ""),
		"not":         fit("select ", "not ", maxText, ""),
		"or":          fit("select ", "1 or ", maxText, ""),
		"subselects":  fit("select ", "(select ", maxText, ")"),
		"casts":       "select 1" + strings.Repeat("::int", maxText/5-20),
		"lists":       "values (1)" + strings.Repeat(",(1)", maxText/4-20),
		"from":        fit("select 1 from ", "(select 1 from ", maxText, ") a"),
		"calls":       fit("select ", "a(", maxText, ")"),
		"brackets":    fit("select ", "array[", maxText, "]"),
		"case":        fit("select ", "case when true then ", maxText, " end"),
	}
	b := newBackend(t)
	for name, text := range cases {
		t.Run(name, func(t *testing.T) {
			f := login(t, b)
			f.drain(t, 1)
			assert.Equal(t, 2, strings.Count(lines(f.exchange(t, script(text, "select 1"))), "ReadyForQuery"))
		})
	}
}

// TestTypesOfExtensions looks for types as psycopg 2 and 3 do.
func TestTypesOfExtensions(t *testing.T) {
	f := login(t, newBackend(t))
	f.drain(t, 1)
	byParameter := "SELECT typname AS name, oid, typarray AS array_oid, oid::regtype::text AS regtype, typdelim AS delimiter FROM pg_type t WHERE t.oid = to_regtype($1) ORDER BY t.oid"
	messages := append(script("SELECT t.oid, typarray FROM pg_type t JOIN pg_namespace ns ON typnamespace = ns.oid WHERE typname = 'hstore'"),
		extended(byParameter, "hstore")...)
	answers := f.exchange(t, append(messages, extended(byParameter, "int4")...))
	assert.Equal(t, 2, strings.Count(lines(answers), `"CommandTag":"SELECT 0"`), lines(answers))
	assert.Contains(t, lines(answers), "reading pg_type is not supported without an upstream")
}

func TestClose(t *testing.T) {
	b := New(Config{})
	c, err := b.Dial(context.Background())
	require.NoError(t, err)
	require.NoError(t, b.Close())
	require.NoError(t, b.Close())
	_, err = io.ReadAll(c)
	require.NoError(t, err)
	_, err = b.Dial(context.Background())
	require.ErrorIs(t, err, ErrClosed)

	b = newBackend(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = b.Dial(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

func TestDeadlines(t *testing.T) {
	c, err := newBackend(t).Dial(context.Background())
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	past := time.Unix(1, 0)
	require.NoError(t, c.SetReadDeadline(past))
	_, err = c.Read(make([]byte, 1))
	var timeout net.Error
	require.ErrorAs(t, err, &timeout)
	assert.True(t, timeout.Timeout())
	require.NoError(t, c.SetDeadline(past))
	_, err = c.Write(make([]byte, startupLimit))
	require.ErrorAs(t, err, &timeout)
}

func TestPiecemeal(t *testing.T) {
	b := newBackend(t)
	raw := append(startupPacket(3<<16, "user", "me"), "Q\x00\x00\x00\x0dselect 1\x00X\x00\x00\x00\x04"...)
	c, err := b.Dial(context.Background())
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	go func() { _, _ = io.Copy(c, iotest.OneByteReader(bytes.NewReader(raw))) }()
	answer, err := io.ReadAll(iotest.OneByteReader(c))
	require.NoError(t, err)
	assert.Contains(t, lines(decoded(t, answer)), `"CommandTag":"SELECT 1"`)
}

// FuzzSession sends arbitrary bytes behind a login. Whatever they are, the session must end without a panic, and every
// answer must be well-formed.
func FuzzSession(f *testing.F) {
	f.Add([]byte("Q\x00\x00\x00\x0dselect 1\x00"))
	f.Add([]byte("P\x00\x00\x00\x1c\x00select $1::int4, 'a'\x00\x00\x00B\x00\x00\x00\x11\x00\x00\x00\x00\x00\x01\x00\x00\x00\x015\x00\x00E\x00\x00\x00\x09\x00\x00\x00\x00\x00S\x00\x00\x00\x04"))
	f.Add([]byte("Q\x00\x00\x00\x22begin; set a.b = 1; savepoint x\x00"))
	f.Add([]byte("Q\x00\x00\x00\x26values (1.5e3), (nextval(null)), (2)\x00"))
	f.Add([]byte("Q\x00\x00\x00\x2bset time zone '<+02>-02'; select now(), 1\x00"))
	log := &countingLog{Handler: slog.DiscardHandler}
	b := New(Config{Logger: slog.New(log)})
	f.Cleanup(func() { _ = b.Close() })
	f.Fuzz(func(t *testing.T, raw []byte) {
		answer := talk(t, b, append(startupPacket(3<<16, "user", "me"), raw...))
		for rest := answer; len(rest) > 0; {
			require.GreaterOrEqual(t, len(rest), wire.HeaderLen)
			n := int(binary.BigEndian.Uint32(rest[1:])) + 1
			require.GreaterOrEqual(t, len(rest), n)
			rest = rest[n:]
		}
		require.Zero(t, log.records.Load(), "a panic")
	})
}

// FuzzQuery sends arbitrary texts in both protocols.
func FuzzQuery(f *testing.F) {
	for _, text := range []string{
		"select 1", "values ($1), (2)", "select nextval('a.b'), current_setting('x', true)", "set search_path = a, \"b\"",
		"select * from (select 1 as a) x, int8larger(1, 2) y(z)", "show all", "begin; savepoint a; rollback to a; commit and chain",
		"select '1e9'::numeric::int, -1.5::float8, 'x'::varchar(3)", "set datestyle = 'sql'; select now()", "select (select ($1))::int + 5",
	} {
		f.Add(text, "5")
	}
	log := &countingLog{Handler: slog.DiscardHandler}
	b := New(Config{Logger: slog.New(log)})
	f.Cleanup(func() { _ = b.Close() })
	f.Fuzz(func(t *testing.T, text, value string) {
		session := login(t, b)
		session.drain(t, 1)
		session.exchange(t, append(extended(text, value), q(text), syncMessage))
		require.Zero(t, log.records.Load(), "a panic")
	})
}
