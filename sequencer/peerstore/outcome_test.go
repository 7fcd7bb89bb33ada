package peerstore_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/memstore"
	"github.com/nextvald/nextvald/sequencer/peerstore"
)

// deaf is a connection that breaks when it hears the answer to a request that holds a word.
type deaf struct {
	net.Conn
	word  string
	asked atomic.Bool
}

func (d *deaf) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(d.word)) {
		d.asked.Store(true)
	}
	return d.Conn.Write(p)
}

func (d *deaf) Read(p []byte) (int, error) {
	n, err := d.Conn.Read(p)
	if d.asked.Load() {
		_ = d.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// A write whose answer is lost may have taken place, and one that was never sent has not.
func TestLostAnswers(t *testing.T) {
	backing := memstore.New()
	c := startCentre(t, backing, "default", "127.0.0.1:0", quick)
	var word atomic.Pointer[string] // nil: there is no way to the centre
	word.Store(new(string))
	store, err := peerstore.Open(ctx(t), peerstore.Config{
		URL: c.url(role), Namespace: "default",
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			deafTo := word.Load()
			if deafTo == nil {
				return nil, io.ErrClosedPipe
			}
			var d net.Dialer
			conn, err := d.DialContext(ctx, network, address)
			if err != nil || *deafTo == "" {
				return conn, err
			}
			return &deaf{Conn: conn, word: *deafTo}, nil
		},
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close()) }()
	_, err = store.Members(ctx(t))
	require.NoError(t, err)

	again := func(deafTo *string) { // with new connections
		word.Store(deafTo)
		address := c.address
		c.stop()
		c = startCentre(t, backing, "default", address, quick)
		_, _ = store.Members(ctx(t)) // finds the old connection dead
	}
	e := sequencer.Entry{Name: seq("s"), Incarnation: "i", OID: 4294967294}
	again(ptr("put_name"))
	err = store.PutName(ctx(t), e)
	require.ErrorIs(t, err, sequencer.ErrUnknownOutcome)
	again(ptr(""))
	require.ErrorIs(t, store.PutName(ctx(t), e), sequencer.ErrExists, "it had taken place")
	got, err := store.Resolve(ctx(t), e.Name)
	require.NoError(t, err)
	require.Equal(t, e, got)

	again(ptr("nextvald.confirm"))
	self := sequencer.Member{ID: "m", Token: "t", Expires: 1 << 50}
	require.NoError(t, store.PutMember(ctx(t), self, ""))
	self.Seen = 5
	require.ErrorIs(t, store.PutMember(ctx(t), self, self.Token), sequencer.ErrUnknownOutcome)

	again(nil)
	err = store.DeleteName(ctx(t), e.Name, e.Incarnation)
	require.Error(t, err)
	require.NotErrorIs(t, err, sequencer.ErrUnknownOutcome, "it was never sent")
	again(ptr(""))
	members, err := store.Members(ctx(t))
	require.NoError(t, err)
	require.Equal(t, []sequencer.Member{self}, members)
	other := self
	other.Token = "another process"
	require.ErrorIs(t, store.PutMember(ctx(t), other, other.Token), sequencer.ErrNotFound)
	require.NoError(t, store.DeleteName(ctx(t), e.Name, e.Incarnation))
}

func TestOpenFailsWithoutASecret(t *testing.T) {
	c := startCentre(t, memstore.New(), "default", "127.0.0.1:0", quick)
	for name, cfg := range map[string]peerstore.Config{
		"nobody there":      {URL: "postgres://u:hunter2@127.0.0.1:1/", Namespace: "default"},
		"not the role":      {URL: "postgres://u:hunter2@" + c.address + "/", Namespace: "default"},
		"another namespace": {URL: "postgres://" + role + ":hunter2@" + c.address + "/", Namespace: "other"},
		"malformed":         {URL: "postgres://u:hunter2@h:x/", Namespace: "default"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := peerstore.Open(ctx(t), cfg)
			require.Error(t, err)
			require.NotContains(t, err.Error(), "hunter2")
		})
	}
}
