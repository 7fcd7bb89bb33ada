package proxy_test

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/proxy"
	"github.com/nextvald/nextvald/proxy/standalone"
	"github.com/nextvald/nextvald/proxy/wire"
	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/memstore"
)

// BenchmarkLocal measures one nextval, from the client's bytes to the answer's, over a loopback connection. The
// allocations are the proxy's: the client makes none.
func BenchmarkLocal(b *testing.B) {
	prepared := wire.AppendParse(nil, wire.Parse{Name: "p", Query: "SELECT nextval('s')"})
	prepared = wire.AppendEmpty(prepared, wire.TypeSync)
	execute := func(dst []byte, statement string) []byte {
		dst = wire.AppendBind(dst, wire.Bind{Statement: statement})
		dst = wire.AppendTarget(dst, wire.TypeDescribe, 'P', "")
		dst = wire.AppendExecute(dst, "", 0)
		return wire.AppendEmpty(dst, wire.TypeSync)
	}
	for name, batch := range map[string]struct{ before, each []byte }{
		"simple":   {nil, wire.AppendQuery(nil, "SELECT nextval('s')")},
		"extended": {nil, execute(wire.AppendParse(nil, wire.Parse{Query: "SELECT nextval('s')"}), "")},
		"prepared": {prepared, execute(nil, "p")},
	} {
		b.Run(name, func(b *testing.B) {
			client := benchClient(b)
			client.exchange(b, wire.AppendQuery(nil, "CREATE SEQUENCE s CACHE 1000000"))
			if batch.before != nil {
				client.exchange(b, batch.before)
			}
			client.exchange(b, batch.each)
			b.ReportAllocs()
			for b.Loop() {
				client.exchange(b, batch.each)
			}
		})
	}
}

type rawClient struct {
	net.Conn
	in *wire.Reader
}

func benchClient(b *testing.B) rawClient {
	b.Helper()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	registry, err := sequencer.Open(context.Background(), memstore.New(), sequencer.Config{Logger: log})
	require.NoError(b, err)
	backend := standalone.New(standalone.Config{})
	server := proxy.New(proxy.Config{Logger: log, Sequences: registry, Upstream: proxy.Dialer(backend.Dial), Standalone: true, DialTimeout: time.Second})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	go func() { _ = server.Serve(context.Background(), l) }()
	conn, err := net.Dial("tcp", l.Addr().String())
	require.NoError(b, err)
	b.Cleanup(func() {
		_ = conn.Close()
		require.NoError(b, server.Shutdown(context.Background()))
		require.NoError(b, backend.Close())
		require.NoError(b, registry.Close(context.Background()))
	})
	login, err := (&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "u", "database": "d"}}).Encode(nil)
	require.NoError(b, err)
	client := rawClient{conn, wire.NewReader(bufio.NewReader(conn), nil)}
	client.exchange(b, login)
	return client
}

// exchange sends bytes and reads up to the next ReadyForQuery.
func (c rawClient) exchange(b *testing.B, batch []byte) {
	if _, err := c.Write(batch); err != nil {
		b.Fatal(err)
	}
	for {
		typ, body, err := c.in.Next()
		if err != nil {
			b.Fatal(err)
		}
		frame, err := c.in.Frame(body)
		if err != nil {
			b.Fatal(err)
		}
		switch typ {
		case wire.TypeErrorResponse:
			b.Fatal(wire.ErrorField(frame[wire.HeaderLen:], 'M'))
		case wire.TypeReadyForQuery:
			return
		}
	}
}
