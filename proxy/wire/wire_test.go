package wire

import (
	"bytes"
	"encoding/binary"
	"io"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/jackc/pgproto3/v2"
	"github.com/stretchr/testify/require"
)

// TestMessagesSurviveOneByteReads reads a stream of messages byte by byte, as a slow network delivers them.
func TestMessagesSurviveOneByteReads(t *testing.T) {
	parse := Parse{Name: "s", Query: "SELECT $1", ParameterOIDs: []uint32{20, 0}}
	bind := Bind{Portal: "p", Statement: "s", ParameterFormats: []int16{1, 0},
		Parameters: [][]byte{nil, {}}, ResultFormats: []int16{1}}
	large := bytes.Repeat([]byte("x"), 3*bufferSize)

	var stream []byte
	stream = AppendParse(stream, parse)
	stream = AppendBind(stream, bind)
	stream = AppendTarget(stream, TypeDescribe, 'P', "p")
	stream = AppendExecute(stream, "p", 7)
	stream = AppendQuery(stream, string(large))
	stream = AppendEmpty(stream, TypeSync)

	r := NewReader(iotest.OneByteReader(bytes.NewReader(stream)), nil)
	body := func(want byte) []byte {
		typ, n, err := r.Next()
		require.NoError(t, err)
		require.Equal(t, string(want), string(typ))
		frame, err := r.Frame(n)
		require.NoError(t, err)
		return frame[HeaderLen:]
	}
	gotParse, err := DecodeParse(body(TypeParse))
	require.NoError(t, err)
	require.Equal(t, parse, gotParse)
	gotBind, err := DecodeBind(body(TypeBind))
	require.NoError(t, err)
	require.Equal(t, bind, gotBind)
	kind, name, err := DecodeTarget(body(TypeDescribe))
	require.NoError(t, err)
	require.Equal(t, "Pp", string(kind)+name)
	portal, limit, err := DecodeExecute(body(TypeExecute))
	require.NoError(t, err)
	require.Equal(t, "p", portal)
	require.EqualValues(t, 7, limit)
	text, err := DecodeQuery(body(TypeQuery))
	require.NoError(t, err)
	require.Equal(t, string(large), text)
	require.Empty(t, body(TypeSync))
	_, _, err = r.Next()
	require.ErrorIs(t, err, io.EOF)
}

func TestForwardAndDiscard(t *testing.T) {
	frame := AppendQuery(nil, string(bytes.Repeat([]byte("y"), 5*bufferSize)))
	stream := append(append([]byte(nil), frame...), frame...)
	var out bytes.Buffer
	w := NewWriter(&out)
	r := NewReader(iotest.HalfReader(bytes.NewReader(stream)), nil)

	_, n, err := r.Next()
	require.NoError(t, err)
	require.NoError(t, r.Discard(n))
	_, n, err = r.Next()
	require.NoError(t, err)
	require.NoError(t, r.Forward(w, n))
	require.NoError(t, w.Flush())
	require.True(t, bytes.Equal(frame, out.Bytes()))
}

// FuzzRun reads messages in runs, where they are of two types and whole, and one by one otherwise: none is lost or torn.
func FuzzRun(f *testing.F) {
	row, done := []byte{'D', 0, 0, 0, 6, 0, 0}, []byte{'C', 0, 0, 0, 4}
	f.Add(bytes.Repeat(row, 5), uint16(3))
	f.Add(slices.Concat(row, done, []byte{'Z', 0, 0, 0, 5, 'I'}, row, row[:6]), uint16(100))
	f.Add(slices.Concat(row, []byte{'D', 0, 0, 0, 3}, row), uint16(9))
	f.Add(slices.Concat(row, []byte{'C', 0xff, 0xff, 0xff, 0xff}, row), uint16(11))
	f.Fuzz(func(t *testing.T, stream []byte, piece uint16) {
		r := NewReader(&pieces{stream, int(piece)%100 + 1}, nil)
		types := TypesOf('D', 'C')
		var got []byte
		for {
			typ, body, err := r.Next()
			if err != nil {
				break
			}
			run := r.Run(types)
			for rest := run; len(rest) > 0; {
				require.Contains(t, "DC", string(rest[:1]))
				n := 1 + int(binary.BigEndian.Uint32(rest[1:]))
				require.LessOrEqual(t, n, len(rest))
				rest = rest[n:]
			}
			if len(run) == 0 {
				if run, err = r.Frame(body); err != nil {
					break
				}
				require.Equal(t, typ, run[0])
			}
			got = append(got, run...)
		}
		require.True(t, bytes.HasPrefix(stream, got))
	})
}

// pieces is a stream that comes in pieces.
type pieces struct {
	rest []byte
	size int
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.rest[:min(p.size, len(p.rest))])
	p.rest = p.rest[n:]
	return n, nil
}

func TestImpossibleLengths(t *testing.T) {
	for name, header := range map[string][]byte{
		"below four": {'Q', 0, 0, 0, 3},
		"negative":   {'Q', 0xFF, 0xFF, 0xFF, 0xFF},
		"over limit": {'Q', 0x40, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := NewReader(bytes.NewReader(header), nil).Next()
			require.ErrorIs(t, err, ErrLength)
		})
	}
	_, err := NewReader(bytes.NewReader([]byte{0, 0, 0x27, 0x11, 0, 3, 0, 0}), nil).Startup(10000)
	require.ErrorIs(t, err, ErrLength)
}

func TestErrorPositionIsMapped(t *testing.T) {
	frame := AppendError(nil, &Error{Code: "42601", Message: "m", Position: 9, Where: "w"})
	mapped := MapErrorPosition(frame, func(p int) int { return p + 1000 })
	require.Equal(t, AppendError(nil, &Error{Code: "42601", Message: "m", Position: 1009, Where: "w"}), mapped)
	require.Equal(t, "1009", ErrorField(mapped[HeaderLen:], 'P'))
	require.Equal(t, "", ErrorField(mapped[HeaderLen:], 'H'))
}

func TestTrimParameterDescription(t *testing.T) {
	frame := AppendParameterDescription(nil, []uint32{25, 20, 20})
	require.Equal(t, AppendParameterDescription(nil, []uint32{25}), TrimParameterDescription(frame, 1))
}

// FuzzDecode feeds arbitrary bodies to every decoder, and checks that what they accept encodes to the same bytes.
func FuzzDecode(f *testing.F) {
	f.Add([]byte{})
	f.Add(AppendParse(nil, Parse{Name: "a", Query: "b", ParameterOIDs: []uint32{1}})[HeaderLen:])
	f.Add(AppendBind(nil, Bind{ParameterFormats: []int16{0}, Parameters: [][]byte{nil, {1}}, ResultFormats: []int16{1}})[HeaderLen:])
	f.Add([]byte{0, 0, 0, 0, 0, 1, 0xFF, 0xFF, 0xFF, 0xFE, 0, 0}) // a parameter of negative length
	f.Add(AppendError(nil, &Error{Code: "42601", Message: "m", Position: 9})[HeaderLen:])
	f.Add(AppendDataRow(nil, nil, []byte("x"))[HeaderLen:])
	f.Add(AppendAuthentication(nil, AuthenticationSASL, Mechanisms([]string{"A", "B"}))[HeaderLen:])
	f.Add(AppendSASLInitial(nil, "A", nil)[HeaderLen:])
	f.Add(AppendSASLInitial(nil, "A", []byte("x"))[HeaderLen:])
	f.Fuzz(func(t *testing.T, body []byte) {
		if m, err := DecodeFunctionCall(body); err == nil {
			require.LessOrEqual(t, len(m.Arguments), len(body))
		}
		if m, err := DecodeParse(body); err == nil {
			require.Equal(t, body, AppendParse(nil, m)[HeaderLen:])
		}
		if m, err := DecodeBind(body); err == nil {
			require.Equal(t, body, AppendBind(nil, m)[HeaderLen:])
		}
		if text, err := DecodeQuery(body); err == nil {
			require.Equal(t, body, AppendQuery(nil, text)[HeaderLen:])
		}
		if kind, name, err := DecodeTarget(body); err == nil {
			require.Equal(t, body, AppendTarget(nil, TypeClose, kind, name)[HeaderLen:])
		}
		if portal, limit, err := DecodeExecute(body); err == nil {
			require.Equal(t, body, AppendExecute(nil, portal, limit)[HeaderLen:])
		}
		if mechanism, message, err := DecodeSASLInitial(body); err == nil {
			require.Equal(t, body, AppendSASLInitial(nil, mechanism, message)[HeaderLen:])
		}
		if code, data, err := DecodeAuthentication(body); err == nil {
			frame := AppendAuthentication(nil, code, data)
			require.Equal(t, body, frame[HeaderLen:])
			if names, err := DecodeMechanisms(data); err == nil {
				require.Equal(t, data, Mechanisms(names))
			}
			frame = WithoutMechanism(frame, "A")
			if names, err := DecodeMechanisms(frame[HeaderLen+4:]); err == nil && code == AuthenticationSASL {
				require.NotContains(t, names, "A")
			}
		}
		if values, err := DecodeDataRow(body); err == nil {
			require.Equal(t, body, AppendDataRow(nil, values...)[HeaderLen:])
		}
		_, _, _ = PeekBind(body)
		_, _, _, _ = PeekParse(body)
		_, _, _ = DecodeParameterStatus(body)
		_ = ErrorField(body, 'P')
		frame := append([]byte{TypeErrorResponse, 0, 0, 0, 0}, body...)
		_ = MapErrorPosition(frame, func(p int) int { return p })
		_ = TrimParameterDescription(append([]byte(nil), frame...), 1)
	})
}

// TestEncodingsAgree compares what is encoded by hand with pgproto3.
func TestEncodingsAgree(t *testing.T) {
	encoded := func(m pgproto3.Message) []byte {
		b, err := m.Encode(nil)
		require.NoError(t, err)
		return b
	}
	require.Equal(t, encoded(&pgproto3.DataRow{Values: [][]byte{[]byte("1"), nil}}), AppendDataRow(nil, []byte("1"), nil))
	require.Equal(t, encoded(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")}), AppendCommandComplete(nil, "SELECT 1"))
	require.Equal(t, encoded(&pgproto3.ReadyForQuery{TxStatus: 'T'}), AppendReadyForQuery(nil, 'T'))
	require.Equal(t, encoded(&pgproto3.Query{String: "x"}), AppendQuery(nil, "x"))
	require.Equal(t, encoded(&pgproto3.Execute{Portal: "p", MaxRows: 3}), AppendExecute(nil, "p", 3))
}

func BenchmarkForward(b *testing.B) {
	frame := AppendQuery(nil, "SELECT 1")
	stream := bytes.Repeat(frame, 1000)
	src := bytes.NewReader(stream)
	w := NewWriter(io.Discard)
	r := NewReader(src, nil)
	b.ReportAllocs()
	for b.Loop() {
		_, n, err := r.Next()
		if err != nil {
			src.Reset(stream)
			continue
		}
		if err := r.Forward(w, n); err != nil {
			b.Fatal(err)
		}
	}
}
