package proxy

import (
	"bytes"
	"io"
	"net"
	"testing"

	"github.com/pires/go-proxyproto"
	"github.com/stretchr/testify/require"
)

// headers are PROXY headers of every kind, by what readHeader makes of them.
func headers(t testing.TB) map[string][]byte {
	t.Helper()
	to := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 5432}
	from := &net.TCPAddr{IP: net.IPv4(198, 51, 100, 7), Port: 4711}
	format := func(h *proxyproto.Header) []byte {
		text, err := h.Format()
		require.NoError(t, err)
		return text
	}
	plain := proxyproto.HeaderProxyFromAddrs(2, from, to)
	local := proxyproto.HeaderProxyFromAddrs(2, from, to)
	local.Command = proxyproto.LOCAL
	described := proxyproto.HeaderProxyFromAddrs(2, from, to)
	require.NoError(t, described.SetTLVs([]proxyproto.TLV{{Type: proxyproto.PP2_TYPE_AUTHORITY, Value: bytes.Repeat([]byte("x"), 300)}}))
	six := proxyproto.HeaderProxyFromAddrs(2, &net.TCPAddr{IP: net.ParseIP("2001:db8::7"), Port: 4711}, &net.TCPAddr{IP: net.ParseIP("2001:db8::1"), Port: 5432})
	return map[string][]byte{
		"198.51.100.7:4711":       format(plain),
		"local":                   format(local),
		"198.51.100.7:4711 again": format(described),
		"[2001:db8::7]:4711":      format(six),
	}
}

// Nothing behind a header is read.
func TestReadHeader(t *testing.T) {
	for want, header := range headers(t) {
		rest := bytes.NewReader(append(append([]byte(nil), header...), "rest"...))
		from, err := readHeader(rest)
		require.NoError(t, err, want)
		if want == "local" {
			require.Nil(t, from)
		} else {
			require.Equal(t, want[:len(from.String())], from.String())
		}
		left, err := io.ReadAll(rest)
		require.NoError(t, err)
		require.Equal(t, "rest", string(left))
	}
}

func FuzzReadHeader(f *testing.F) {
	for _, header := range headers(f) {
		f.Add(header)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		from, err := readHeader(bytes.NewReader(data))
		if err != nil {
			require.Nil(t, from)
		} else if from != nil {
			require.NotEmpty(t, from.String())
		}
	})
}
