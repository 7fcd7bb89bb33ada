package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"unsafe"
)

// Types of the messages that a client sends.
const (
	TypeBind         = 'B'
	TypeClose        = 'C'
	TypeCopyData     = 'd'
	TypeCopyDone     = 'c'
	TypeCopyFail     = 'f'
	TypeDescribe     = 'D'
	TypeExecute      = 'E'
	TypeFlush        = 'H'
	TypeFunctionCall = 'F'
	TypeParse        = 'P'
	TypePassword     = 'p'
	TypeQuery        = 'Q'
	TypeSync         = 'S'
	TypeTerminate    = 'X'
)

// ErrFormat says that a message's body does not have the form of its type (PostgreSQL: 08P01, "invalid message format").
var ErrFormat = errors.New("invalid message format")

// Parse is a Parse message. Its strings and slices are copies.
type Parse struct {
	Name, Query string
	// ParameterOIDs are the declared types; 0 means unspecified.
	ParameterOIDs []uint32
}

// Bind is a Bind message. Parameters point into the decoded body.
type Bind struct {
	Portal, Statement string
	ParameterFormats  []int16
	Parameters        [][]byte // nil for NULL
	ResultFormats     []int16
}

// DecodeQuery returns the text of a Query body.
func DecodeQuery(body []byte) (string, error) {
	d := decoder{body}
	text := d.text()
	return text, d.end()
}

// DecodeParse decodes a Parse body.
func DecodeParse(body []byte) (Parse, error) {
	d := decoder{body}
	m := Parse{Name: d.text(), Query: d.text()}
	n := int(d.uint16())
	if n*4 > len(d.rest) {
		return Parse{}, ErrFormat
	}
	if n > 0 {
		m.ParameterOIDs = make([]uint32, n)
		for i := range m.ParameterOIDs {
			m.ParameterOIDs[i] = d.uint32()
		}
	}
	return m, d.end()
}

// PeekParse views the name and the text of a Parse body, and counts its declared parameters. The strings are valid as
// long as the body is.
func PeekParse(body []byte) (name, query string, declared int, err error) {
	d := decoder{body}
	name, query = d.view(), d.view()
	declared = int(d.uint16())
	d.take(4 * declared)
	return name, query, declared, d.end()
}

// PeekBind views the portal and the statement of a Bind body, or of its beginning. The strings are valid as long as the
// body is.
func PeekBind(body []byte) (portal, statement string, err error) {
	d := decoder{body}
	portal, statement = d.view(), d.view()
	if d.rest == nil {
		return "", "", ErrFormat
	}
	return portal, statement, nil
}

// DecodeBind decodes a Bind body.
func DecodeBind(body []byte) (Bind, error) {
	var m Bind
	err := m.Decode(body)
	return m, err
}

// Decode decodes a Bind body, reusing m's memory.
func (m *Bind) Decode(body []byte) error {
	d := decoder{body}
	m.Portal, m.Statement = again(m.Portal, d.view()), again(m.Statement, d.view())
	m.ParameterFormats = d.formats(m.ParameterFormats[:0])
	n := int(d.uint16())
	if n*4 > len(d.rest) {
		return ErrFormat
	}
	m.Parameters = m.Parameters[:0]
	for range n {
		m.Parameters = append(m.Parameters, d.value())
	}
	m.ResultFormats = d.formats(m.ResultFormats[:0])
	return d.end()
}

// again is old when a view has the same text, so that only a new text is copied.
func again(old, view string) string {
	if old == view {
		return old
	}
	return strings.Clone(view)
}

// FunctionCall is a FunctionCall message. Its arguments point into the decoded body.
type FunctionCall struct {
	Function        uint32 // OID in pg_proc
	ArgumentFormats []int16
	Arguments       [][]byte // nil for NULL
	ResultFormat    int16
}

// DecodeFunctionCall decodes a FunctionCall body.
func DecodeFunctionCall(body []byte) (FunctionCall, error) {
	d := decoder{body}
	m := FunctionCall{Function: d.uint32(), ArgumentFormats: d.formats(nil)}
	n := int(d.uint16())
	if n*4 > len(d.rest) {
		return FunctionCall{}, ErrFormat
	}
	for range n {
		m.Arguments = append(m.Arguments, d.value())
	}
	m.ResultFormat = int16(d.uint16())
	return m, d.end()
}

// DecodeTarget decodes the body of a Describe or Close: 'S' for a statement or 'P' for a portal, and its name.
func DecodeTarget(body []byte) (kind byte, name string, err error) {
	d := decoder{body}
	if len(body) == 0 {
		return 0, "", ErrFormat
	}
	kind, d.rest = body[0], body[1:]
	name = d.text()
	return kind, name, d.end()
}

// DecodeExecute decodes an Execute body. A limit of 0 means all rows; so does a negative one.
func DecodeExecute(body []byte) (portal string, limit int32, err error) {
	d := decoder{body}
	portal = d.text()
	limit = int32(d.uint32())
	return portal, limit, d.end()
}

// AppendParse appends a Parse message.
func AppendParse(dst []byte, m Parse) []byte {
	dst, at := begin(dst, TypeParse)
	dst = appendText(dst, m.Name)
	dst = appendText(dst, m.Query)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(m.ParameterOIDs)))
	for _, oid := range m.ParameterOIDs {
		dst = binary.BigEndian.AppendUint32(dst, oid)
	}
	return finish(dst, at)
}

// AppendBind appends a Bind message.
func AppendBind(dst []byte, m Bind) []byte {
	dst, at := begin(dst, TypeBind)
	dst = appendText(dst, m.Portal)
	dst = appendText(dst, m.Statement)
	dst = appendFormats(dst, m.ParameterFormats)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(m.Parameters)))
	for _, p := range m.Parameters {
		dst = appendValue(dst, p)
	}
	dst = appendFormats(dst, m.ResultFormats)
	return finish(dst, at)
}

// AppendTarget appends a Describe or Close message (typ) of a statement 'S' or portal 'P'.
func AppendTarget(dst []byte, typ, kind byte, name string) []byte {
	dst, at := begin(dst, typ)
	dst = append(dst, kind)
	dst = appendText(dst, name)
	return finish(dst, at)
}

// AppendExecute appends an Execute message.
func AppendExecute(dst []byte, portal string, limit int32) []byte {
	dst, at := begin(dst, TypeExecute)
	dst = appendText(dst, portal)
	dst = binary.BigEndian.AppendUint32(dst, uint32(limit))
	return finish(dst, at)
}

// AppendQuery appends a Query message.
func AppendQuery(dst []byte, text string) []byte {
	dst, at := begin(dst, TypeQuery)
	dst = appendText(dst, text)
	return finish(dst, at)
}

// AppendEmpty appends a message without a body: Sync, Flush, Terminate, and the bare answers of a server.
func AppendEmpty(dst []byte, typ byte) []byte {
	return append(dst, typ, 0, 0, 0, 4)
}

// begin appends a header whose length finish fills in.
func begin(dst []byte, typ byte) ([]byte, int) {
	dst = append(dst, typ, 0, 0, 0, 0)
	return dst, len(dst) - 4
}

func finish(dst []byte, at int) []byte {
	binary.BigEndian.PutUint32(dst[at:], uint32(len(dst)-at))
	return dst
}

func appendText(dst []byte, s string) []byte {
	return append(append(dst, s...), 0)
}

// appendValue appends a length and a value; nil is NULL.
func appendValue(dst, v []byte) []byte {
	if v == nil {
		return binary.BigEndian.AppendUint32(dst, 0xFFFFFFFF)
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(v)))
	return append(dst, v...)
}

func appendFormats(dst []byte, codes []int16) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(codes)))
	for _, c := range codes {
		dst = binary.BigEndian.AppendUint16(dst, uint16(c))
	}
	return dst
}

// decoder takes a body apart. After a failure rest is nil and everything it returns is empty; a body that is used up
// has an empty rest that is not nil.
type decoder struct{ rest []byte }

func (d *decoder) take(n int) []byte {
	if d.rest == nil || n < 0 || n > len(d.rest) {
		d.rest = nil
		return nil
	}
	part := d.rest[:n:n]
	d.rest = d.rest[n:]
	return part
}

func (d *decoder) text() string { return strings.Clone(d.view()) }

// view takes a text without copying it.
func (d *decoder) view() string {
	i := bytes.IndexByte(d.rest, 0)
	if i < 0 {
		d.rest = nil
		return ""
	}
	s := unsafe.String(unsafe.SliceData(d.rest), i)
	d.rest = d.rest[i+1:]
	return s
}

func (d *decoder) uint16() uint16 {
	b := d.take(2)
	if b == nil {
		return 0
	}
	return binary.BigEndian.Uint16(b)
}

func (d *decoder) uint32() uint32 {
	b := d.take(4)
	if b == nil {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

// formats takes a list of format codes and appends them to codes.
func (d *decoder) formats(codes []int16) []int16 {
	n := int(d.uint16())
	if n*2 > len(d.rest) {
		d.rest = nil
		return codes
	}
	for range n {
		codes = append(codes, int16(d.uint16()))
	}
	return codes
}

// value takes a length and as many bytes; -1 is NULL (nil).
func (d *decoder) value() []byte {
	n := int32(d.uint32())
	if n == -1 {
		return nil
	}
	v := d.take(int(n))
	if v == nil && d.rest != nil {
		v = []byte{}
	}
	return v
}

// end reports whether the body had its form and nothing is left of it.
func (d *decoder) end() error {
	if d.rest == nil || len(d.rest) > 0 {
		return ErrFormat
	}
	return nil
}
