package wire

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strconv"

	"github.com/jackc/pgproto3/v2"
)

// Types of the messages that a server sends.
const (
	TypeAuthentication       = 'R'
	TypeBackendKeyData       = 'K'
	TypeBindComplete         = '2'
	TypeCloseComplete        = '3'
	TypeCommandComplete      = 'C'
	TypeCopyBothResponse     = 'W'
	TypeCopyInResponse       = 'G'
	TypeCopyOutResponse      = 'H'
	TypeDataRow              = 'D'
	TypeEmptyQueryResponse   = 'I'
	TypeErrorResponse        = 'E'
	TypeFunctionCallResponse = 'V'
	TypeNegotiateProtocol    = 'v'
	TypeNoData               = 'n'
	TypeNoticeResponse       = 'N'
	TypeNotification         = 'A'
	TypeParameterDescription = 't'
	TypeParameterStatus      = 'S'
	TypeParseComplete        = '1'
	TypePortalSuspended      = 's'
	TypeReadyForQuery        = 'Z'
	TypeRowDescription       = 'T'
)

// Field is one column of a RowDescription.
type Field struct {
	Name      string
	Table     uint32 // OID of the relation that the column belongs to, or 0
	Attribute int16  // its column number there, or 0
	Type      uint32
	Size      int16 // pg_type.typlen
	Typmod    int32
	Format    int16 // 0 text, 1 binary
}

// encode appends m. pgproto3 fails only on a message over PostgreSQL's limit, which nothing made here comes near; such
// a message is left out rather than torn.
func encode(dst []byte, m pgproto3.BackendMessage) []byte {
	encoded, err := m.Encode(dst)
	if err != nil {
		return dst
	}
	return encoded
}

// AppendFunctionCallResponse appends the result of a FunctionCall, nil for NULL.
func AppendFunctionCallResponse(dst, value []byte) []byte {
	dst = append(dst, TypeFunctionCallResponse)
	if value == nil {
		dst = binary.BigEndian.AppendUint32(dst, 8)
		return binary.BigEndian.AppendUint32(dst, 0xFFFFFFFF)
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(8+len(value)))
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(value)))
	return append(dst, value...)
}

// AppendRowDescription appends a RowDescription message.
func AppendRowDescription(dst []byte, fields []Field) []byte {
	m := pgproto3.RowDescription{Fields: make([]pgproto3.FieldDescription, len(fields))}
	for i, f := range fields {
		m.Fields[i] = pgproto3.FieldDescription{
			Name: []byte(f.Name), TableOID: f.Table, TableAttributeNumber: uint16(f.Attribute),
			DataTypeOID: f.Type, DataTypeSize: f.Size, TypeModifier: f.Typmod, Format: f.Format,
		}
	}
	return encode(dst, &m)
}

// AppendParameterDescription appends a ParameterDescription message.
func AppendParameterDescription(dst []byte, oids []uint32) []byte {
	return encode(dst, &pgproto3.ParameterDescription{ParameterOIDs: oids})
}

// TrimParameterDescription cuts a ParameterDescription frame down to its first keep types, in place, and returns what
// is left of it.
func TrimParameterDescription(frame []byte, keep int) []byte {
	const fixed = HeaderLen + 2
	if len(frame) < fixed || len(frame) < fixed+4*keep {
		return frame
	}
	frame = frame[:fixed+4*keep]
	binary.BigEndian.PutUint32(frame[1:], uint32(len(frame)-1))
	binary.BigEndian.PutUint16(frame[HeaderLen:], uint16(keep))
	return frame
}

// CopyOrigins makes the columns of a RowDescription say that they are of the tables that another RowDescription says, in place.
// It does nothing when the other is of other columns.
func CopyOrigins(frame, from []byte) []byte {
	type column struct{ name, origin, kind []byte }
	columns := func(frame []byte) (list []column) {
		d := decoder{frame[HeaderLen:]}
		for range d.uint16() {
			end := bytes.IndexByte(d.rest, 0)
			const origin, kind = 4 + 2, 4 + 2 + 4 // table and column; type, size and modifier; and then the format
			if end < 0 || len(d.rest) < end+1+origin+kind+2 {
				return nil
			}
			at := end + 1
			list = append(list, column{d.rest[:end], d.rest[at : at+origin], d.rest[at+origin : at+origin+kind]})
			d.rest = d.rest[at+origin+kind+2:]
		}
		return list
	}
	if len(frame) < HeaderLen+2 || len(from) < HeaderLen+2 {
		return frame
	}
	to, source := columns(frame), columns(from)
	same := slices.EqualFunc(to, source, func(a, b column) bool { return bytes.Equal(a.name, b.name) && bytes.Equal(a.kind, b.kind) })
	if same {
		for i := range to {
			copy(to[i].origin, source[i].origin)
		}
	}
	return frame
}

// DecodeParameterDescription returns the types in a ParameterDescription body.
func DecodeParameterDescription(body []byte) ([]uint32, error) {
	d := decoder{body}
	n := int(d.uint16())
	if n*4 > len(d.rest) {
		return nil, ErrFormat
	}
	types := make([]uint32, n)
	for i := range types {
		types[i] = d.uint32()
	}
	return types, d.end()
}

// AppendDataRow appends a DataRow message; a nil value is NULL.
func AppendDataRow(dst []byte, values ...[]byte) []byte {
	dst, at := begin(dst, TypeDataRow)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(values)))
	for _, v := range values {
		dst = appendValue(dst, v)
	}
	return finish(dst, at)
}

// DecodeDataRow returns the values of a DataRow body, nil for NULL; they point into it.
func DecodeDataRow(body []byte) ([][]byte, error) {
	d := decoder{body}
	n := int(d.uint16())
	if n*4 > len(d.rest) {
		return nil, ErrFormat
	}
	values := make([][]byte, n)
	for i := range values {
		values[i] = d.value()
	}
	return values, d.end()
}

// AppendCommandComplete appends a CommandComplete message.
func AppendCommandComplete(dst []byte, tag string) []byte {
	dst, at := begin(dst, TypeCommandComplete)
	dst = appendText(dst, tag)
	return finish(dst, at)
}

// AppendReadyForQuery appends a ReadyForQuery message; status is 'I', 'T' or 'E'.
func AppendReadyForQuery(dst []byte, status byte) []byte {
	return append(dst, TypeReadyForQuery, 0, 0, 0, 5, status)
}

// AppendParameterStatus appends a ParameterStatus message.
func AppendParameterStatus(dst []byte, name, value string) []byte {
	return encode(dst, &pgproto3.ParameterStatus{Name: name, Value: value})
}

// DecodeParameterStatus decodes a ParameterStatus body.
func DecodeParameterStatus(body []byte) (name, value string, err error) {
	d := decoder{body}
	name, value = d.text(), d.text()
	return name, value, d.end()
}

// DecodeCommandTag decodes a CommandComplete body.
func DecodeCommandTag(body []byte) string {
	return string(bytes.TrimSuffix(body, []byte{0}))
}

// Severities of an Error.
const (
	SeverityError   = "ERROR"
	SeverityFatal   = "FATAL"
	SeverityNotice  = "NOTICE"
	SeverityWarning = "WARNING"
)

// Error is an ErrorResponse or NoticeResponse that the proxy makes. Position counts characters from 1; 0 means none.
type Error struct {
	Severity string // empty: ERROR
	Code     string // SQLSTATE
	Message  string
	Detail   string
	Hint     string
	Position int
	Where    string
}

// Error makes it a Go error.
func (e *Error) Error() string { return e.Message + " (SQLSTATE " + e.Code + ")" }

// AppendError appends e as an ErrorResponse, or as a NoticeResponse when its severity is one of a notice.
func AppendError(dst []byte, e *Error) []byte {
	typ, severity := byte(TypeErrorResponse), e.Severity
	switch severity {
	case "":
		severity = SeverityError
	case SeverityNotice, SeverityWarning:
		typ = TypeNoticeResponse
	}
	dst, at := begin(dst, typ)
	field := func(key byte, value string) {
		if value != "" {
			dst = appendText(append(dst, key), value)
		}
	}
	field('S', severity)
	field('V', severity)
	field('C', e.Code)
	field('M', e.Message)
	field('D', e.Detail)
	field('H', e.Hint)
	if e.Position > 0 {
		field('P', strconv.Itoa(e.Position))
	}
	field('W', e.Where)
	return finish(append(dst, 0), at)
}

// ErrorField returns the value of a field of an ErrorResponse or NoticeResponse body; empty when it has none.
func ErrorField(body []byte, key byte) string {
	d := decoder{body}
	for len(d.rest) > 1 {
		k := d.rest[0]
		d.rest = d.rest[1:]
		if v := d.text(); k == key {
			return v
		}
	}
	return ""
}

// AppendHint adds a hint to an ErrorResponse frame that has none, and returns the frame, a new one when it changed.
func AppendHint(frame []byte, hint string) []byte {
	if len(frame) <= HeaderLen || ErrorField(frame[HeaderLen:], 'H') != "" {
		return frame
	}
	edited := append([]byte(nil), frame[:len(frame)-1]...)
	return finish(append(appendText(append(edited, 'H'), hint), 0), 1)
}

// MapErrorPosition rewrites the position field of an ErrorResponse frame by f, and returns the frame, a new one when
// it changed.
func MapErrorPosition(frame []byte, f func(int) int) []byte {
	d := decoder{frame[HeaderLen:]}
	for len(d.rest) > 1 {
		start := len(frame) - len(d.rest)
		k := d.rest[0]
		d.rest = d.rest[1:]
		v := d.text()
		if k != 'P' || d.rest == nil {
			continue
		}
		pos, err := strconv.Atoi(v)
		if err != nil {
			return frame
		}
		edited := append([]byte(nil), frame[:start+1]...)
		edited = appendText(edited, strconv.Itoa(f(pos)))
		edited = append(edited, d.rest...)
		return finish(edited, 1)
	}
	return frame
}
