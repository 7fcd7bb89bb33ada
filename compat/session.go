package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgtype"
)

// Flows are the ways in which drivers send a statement.
const (
	simple   = "simple"   // Query
	extended = "extended" // Parse, Bind, Describe portal, Execute, Sync: values as texts
	prepared = "prepared" // Parse with a name, Describe, Sync, unless the text has been prepared before; then Bind, Execute, Sync: values in binary form where it is common
	flushed  = "flushed"  // Parse, Describe, Flush; then Bind, Execute, Sync
)

var flows = []string{simple, extended, prepared, flushed}

// inTurn takes the place of a flow where each script runs in one of its flows, and the next one in the next.
const inTurn = "in-turn"

// entryTimeout is how long an entry may take.
const entryTimeout = time.Minute

// param is a parameter as it is sent.
type param struct {
	value  []byte // nil: NULL
	oid    uint32 // 0: for the server to say
	binary bool
}

// session is one connection, and the state that reading its answers needs.
type session struct {
	url      string
	database string

	conn     net.Conn
	frontend *pgproto3.Frontend
	fields   []pgproto3.FieldDescription // of the rows that come
	lines    []string                    // of the entry
	prepared map[string]statement        // by text
}

// statement is one that was prepared.
type statement struct {
	name   string
	fields []pgproto3.FieldDescription
}

// connect opens a session. It belongs to one goroutine.
func connect(ctx context.Context, url, database string) (*session, error) {
	s := &session{url: url, database: database}
	return s, s.open(ctx)
}

func (s *session) open(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, entryTimeout)
	defer stop()
	cfg, err := pgconn.ParseConfig(s.url)
	if err != nil {
		return err
	}
	cfg.Database = s.database
	conn, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	hijacked, err := conn.Hijack()
	if err != nil {
		return err
	}
	s.conn, s.frontend, s.prepared = hijacked.Conn, hijacked.Frontend, map[string]statement{}
	return nil
}

func (s *session) close() {
	s.frontend.Send(&pgproto3.Terminate{})
	_ = s.frontend.Flush()
	_ = s.conn.Close()
}

// run sends an entry and returns what the server said, a line for each message, masked. After the end of a connection the
// next entry has a new one.
func (s *session) run(ctx context.Context, e entry, flow string) ([]string, error) {
	s.lines, s.fields = nil, nil
	if err := s.conn.SetDeadline(time.Now().Add(entryTimeout)); err != nil {
		return nil, err
	}
	if err := s.exchange(e, flow); err != nil {
		s.say("the connection ends: %v", err)
		_ = s.conn.Close()
		if err := s.open(ctx); err != nil {
			return nil, fmt.Errorf("after %s: %w", e.name(), err)
		}
	}
	return s.lines, nil
}

func (s *session) exchange(e entry, flow string) error {
	flow = e.flowIn(flow)
	if flow == simple {
		s.frontend.Send(&pgproto3.Query{String: e.sql})
		return s.answer(e, true)
	}
	oids := make([]uint32, len(e.params))
	bind := &pgproto3.Bind{}
	for i, p := range e.params {
		oids[i] = p.oid
		format := int16(pgtype.TextFormatCode)
		if p.binary {
			format = pgtype.BinaryFormatCode
		}
		bind.ParameterFormatCodes = append(bind.ParameterFormatCodes, format)
		bind.Parameters = append(bind.Parameters, p.value)
	}
	parse := &pgproto3.Parse{Query: e.sql, ParameterOIDs: oids}
	switch flow {
	case extended:
		s.frontend.Send(parse)
		s.frontend.Send(bind)
		s.frontend.Send(&pgproto3.Describe{ObjectType: 'P'})
	case flushed:
		s.frontend.Send(parse)
		s.frontend.Send(&pgproto3.Describe{ObjectType: 'S'})
		s.frontend.Send(&pgproto3.Flush{})
		if ok, err := s.described(false); err != nil || !ok {
			return err
		}
		s.frontend.Send(bind)
	case prepared:
		p, known := s.prepared[e.sql]
		if !known {
			parse.Name = fmt.Sprintf("s%d", len(s.prepared)+1)
			s.frontend.Send(parse)
			s.frontend.Send(&pgproto3.Describe{ObjectType: 'S', Name: parse.Name})
			s.frontend.Send(&pgproto3.Sync{})
			if ok, err := s.described(true); err != nil || !ok {
				return err
			}
			p = statement{parse.Name, s.fields}
			s.prepared[e.sql] = p
		}
		s.fields = slices.Clone(p.fields)
		bind.PreparedStatement, bind.ResultFormatCodes = p.name, resultFormats(p.fields)
		for i, code := range bind.ResultFormatCodes { // rows come without another description
			s.fields[i].Format = code
		}
		s.frontend.Send(bind)
	}
	s.frontend.Send(&pgproto3.Execute{})
	if e.isCopy { // whether it answers a Sync here or ignores it as within the data depends on where the COPY fails
		s.frontend.Send(&pgproto3.Flush{})
		return s.answer(e, false)
	}
	s.frontend.Send(&pgproto3.Sync{})
	return s.answer(e, true)
}

// described reads the answers to Parse and Describe, up to the ReadyForQuery where one was asked for. Without one an error
// still needs a Sync.
func (s *session) described(synced bool) (ok bool, err error) {
	if err := s.frontend.Flush(); err != nil {
		return false, err
	}
	for ok = true; ; {
		m, err := s.receive()
		if err != nil {
			return false, err
		}
		switch m.(type) {
		case *pgproto3.ErrorResponse:
			ok = false
			if !synced {
				s.frontend.Send(&pgproto3.Sync{})
				return false, s.answer(entry{}, true)
			}
		case *pgproto3.RowDescription, *pgproto3.NoData:
			if !synced {
				return true, nil
			}
		case *pgproto3.ReadyForQuery:
			return ok, nil
		}
	}
}

// answer reads what comes up to ReadyForQuery, and sends data where the server asks for it. ended: what ends the batch was sent;
// otherwise it sends a Sync once the batch is over.
func (s *session) answer(e entry, ended bool) error {
	if err := s.frontend.Flush(); err != nil {
		return err
	}
	for {
		m, err := s.receive()
		if err != nil {
			return err
		}
		switch m.(type) {
		case *pgproto3.CopyInResponse:
			for data := []byte(e.copyData); len(data) > 0; {
				n := min(len(data), 32*1024)
				s.frontend.Send(&pgproto3.CopyData{Data: data[:n]})
				data = data[n:]
			}
			if e.isCopy {
				s.frontend.Send(&pgproto3.CopyDone{})
			} else {
				s.frontend.Send(&pgproto3.CopyFail{Message: "there is no data"})
			}
		case *pgproto3.ErrorResponse, *pgproto3.CommandComplete:
			if ended {
				continue
			}
		case *pgproto3.ReadyForQuery:
			return nil
		default:
			continue
		}
		if !ended {
			s.frontend.Send(&pgproto3.Sync{})
			ended = true
		}
		if err := s.frontend.Flush(); err != nil {
			return err
		}
	}
}

// receive reads a message and writes it down.
func (s *session) receive() (pgproto3.BackendMessage, error) {
	m, err := s.frontend.Receive()
	if err != nil {
		return nil, err
	}
	s.show(m)
	return m, nil
}

func (s *session) say(format string, args ...any) {
	s.lines = append(s.lines, s.maskText(fmt.Sprintf(format, args...)))
}

// show writes down a message, for people.
func (s *session) show(m pgproto3.BackendMessage) {
	switch m := m.(type) {
	case *pgproto3.ErrorResponse:
		s.say("ERROR %s", diagnostics((*pgproto3.NoticeResponse)(m)))
	case *pgproto3.NoticeResponse:
		s.say("NOTICE %s", diagnostics(m))
	case *pgproto3.RowDescription:
		s.fields = slices.Clone(m.Fields)
		for i, f := range s.fields {
			s.fields[i].Name = slices.Clone(f.Name)
			table := strconv.Itoa(int(f.TableOID))
			if mask, own := maskOID(int64(f.TableOID)); own {
				table = mask
			}
			s.say("column %s type %d size %d modifier %d format %d of %s.%d", f.Name, f.DataTypeOID, f.DataTypeSize, f.TypeModifier, f.Format, table, f.TableAttributeNumber)
		}
	case *pgproto3.DataRow:
		values := make([]string, len(m.Values))
		for i, v := range m.Values {
			values[i] = s.value(i, v)
		}
		s.say("row %s", strings.Join(values, " | "))
	case *pgproto3.CommandComplete:
		s.say("tag %s", m.CommandTag)
	case *pgproto3.ReadyForQuery:
		s.say("ready %c", m.TxStatus)
	case *pgproto3.ParameterDescription:
		s.say("parameters %v", m.ParameterOIDs)
	case *pgproto3.ParameterStatus:
		s.say("setting %s = %s", m.Name, m.Value)
	case *pgproto3.NotificationResponse:
		s.say("notification %s %q", m.Channel, m.Payload)
	case *pgproto3.CopyInResponse:
		s.say("copy in %d %v", m.OverallFormat, m.ColumnFormatCodes)
	case *pgproto3.CopyOutResponse:
		s.say("copy out %d %v", m.OverallFormat, m.ColumnFormatCodes)
	case *pgproto3.CopyData:
		s.say("data %q", m.Data)
	default:
		s.say("%s", strings.TrimPrefix(fmt.Sprintf("%T", m), "*pgproto3."))
	}
}

// diagnostics are the fields of an error or notice that have a value, but for those of the server's source.
func diagnostics(n *pgproto3.NoticeResponse) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %q", n.Severity, n.Code, n.Message)
	if n.SeverityUnlocalized != n.Severity {
		fmt.Fprintf(&b, " severity=%s", n.SeverityUnlocalized)
	}
	for _, f := range []struct {
		name  string
		value string
	}{
		{"detail", n.Detail}, {"hint", n.Hint}, {"where", n.Where}, {"query", n.InternalQuery},
		{"schema", n.SchemaName}, {"table", n.TableName}, {"column", n.ColumnName}, {"type", n.DataTypeName}, {"constraint", n.ConstraintName},
	} {
		if f.value != "" {
			fmt.Fprintf(&b, " %s=%q", f.name, f.value)
		}
	}
	if n.Position != 0 {
		fmt.Fprintf(&b, " position=%d", n.Position)
	}
	if n.InternalPosition != 0 {
		fmt.Fprintf(&b, " query position=%d", n.InternalPosition)
	}
	return b.String()
}

// value shows one of a row.
func (s *session) value(column int, v []byte) string {
	if v == nil {
		return "NULL"
	}
	if column >= len(s.fields) {
		return fmt.Sprintf("%q", v)
	}
	f := s.fields[column]
	if mask := maskedTypes[f.DataTypeOID]; mask != "" {
		return mask
	}
	if mask := maskedColumns[string(f.Name)]; mask != "" {
		return mask
	}
	text := string(v)
	if f.Format == pgtype.BinaryFormatCode {
		text = fromBinary(f.DataTypeOID, v)
	}
	if f.DataTypeOID == pgtype.OIDOID || f.DataTypeOID == regclassOID {
		if oid, err := strconv.ParseInt(text, 10, 64); err == nil {
			if mask, own := maskOID(oid); own {
				return mask
			}
		}
	}
	return fmt.Sprintf("%q", text)
}

const regclassOID = 2205

// resultFormats asks for the binary form of values whose types drivers like it for.
func resultFormats(fields []pgproto3.FieldDescription) []int16 {
	formats := make([]int16, len(fields))
	for i, f := range fields {
		switch f.DataTypeOID {
		case pgtype.BoolOID, pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID, pgtype.OIDOID, regclassOID, pgtype.TextOID, pgtype.VarcharOID, pgtype.NumericOID, pgtype.DateOID:
			formats[i] = pgtype.BinaryFormatCode
		}
	}
	return formats
}

// fromBinary writes numbers as texts, and the rest as it is.
func fromBinary(oid uint32, v []byte) string {
	switch {
	case oid == pgtype.Int2OID && len(v) == 2:
		return strconv.Itoa(int(int16(binary.BigEndian.Uint16(v))))
	case oid == pgtype.Int4OID && len(v) == 4:
		return strconv.Itoa(int(int32(binary.BigEndian.Uint32(v))))
	case oid == pgtype.Int8OID && len(v) == 8:
		return strconv.FormatInt(int64(binary.BigEndian.Uint64(v)), 10)
	case (oid == pgtype.OIDOID || oid == regclassOID) && len(v) == 4:
		return strconv.FormatUint(uint64(binary.BigEndian.Uint32(v)), 10)
	}
	return string(v)
}
