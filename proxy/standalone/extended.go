package standalone

import (
	"fmt"

	"github.com/nextvald/nextvald/proxy/answer"
	"github.com/nextvald/nextvald/proxy/wire"
	"github.com/nextvald/nextvald/sqlrewrite"
)

// statement is a prepared statement.
type statement struct {
	command *command // nil for an empty text
	params  []uint32 // types of its parameters
}

// portal is a statement that was bound to its parameters.
type portal struct {
	name string
	*statement
	values  []answer.Param
	formats []int16
	level   int // savepoints that were open when it was made

	started bool
	done    bool // a command without rows has run
	rows    [][]sqlrewrite.Expr
	next    int // rows[next:] have not been sent
}

func errNoStatement(name string) error {
	if name == "" {
		return errorf("26000", "unnamed prepared statement does not exist")
	}
	return errorf("26000", "prepared statement \"%s\" does not exist", name)
}

func errNoPortal(name string) error { return errorf("34000", "portal \"%s\" does not exist", name) }

// usable reports an error when the block has failed and the statement is not one that ends it.
func (s *session) usable(st *statement) error {
	if s.tx.status == statusFailed && st.command != nil && !st.command.exits {
		return errFailedBlock()
	}
	return nil
}

func (s *session) parse(body []byte) error {
	m, err := wire.DecodeParse(body)
	if err != nil {
		return err
	}
	if err := s.checkEncoding(m.Query); err != nil {
		return err
	}
	s.enter()
	if m.Name == "" {
		delete(s.statements, "")
	}
	if len(s.statements) >= maxNamed {
		return errorf("53400", "too many prepared statements in one session (limit %d)", maxNamed)
	}
	tree, err := parseText(m.Query)
	st := &statement{params: m.ParameterOIDs}
	switch {
	case err != nil:
		return err
	case len(tree) > 1:
		return errorf("42601", "cannot insert multiple commands into a prepared statement")
	case len(tree) == 1:
		if s.tx.status == statusFailed && !exitsBlock(tree[0]) {
			return errFailedBlock()
		}
		if st, err = s.prepare(m.Query, tree[0], m.ParameterOIDs, true); err != nil {
			return err
		}
	}
	if _, exists := s.statements[m.Name]; exists {
		return errorf("42P05", "prepared statement \"%s\" already exists", m.Name)
	}
	s.statements[m.Name] = st
	s.send(wire.AppendEmpty(nil, wire.TypeParseComplete))
	return nil
}

func (s *session) bind(body []byte) error {
	m, err := wire.DecodeBind(body)
	if err != nil {
		return err
	}
	s.enter()
	st, ok := s.statements[m.Statement]
	if !ok {
		return errNoStatement(m.Statement)
	}
	switch n := len(m.Parameters); {
	case len(m.ParameterFormats) > 1 && len(m.ParameterFormats) != n:
		return errorf("08P01", "bind message has %d parameter formats but %d parameters", len(m.ParameterFormats), n)
	case n != len(st.params):
		return errorf("08P01", "bind message supplies %d parameters, but prepared statement \"%s\" requires %d", n, m.Statement, len(st.params))
	}
	if err := s.usable(st); err != nil {
		return err
	}
	if m.Portal == "" {
		delete(s.portals, "")
	} else if _, exists := s.portals[m.Portal]; exists {
		return errorf("42P03", "cursor \"%s\" already exists", m.Portal)
	}
	if len(s.portals) >= maxNamed {
		return errorf("53400", "too many portals in one session (limit %d)", maxNamed)
	}
	p := &portal{name: m.Portal, statement: st, formats: m.ResultFormats, level: len(s.tx.savepoints)}
	for i, v := range m.Parameters {
		// The message's memory is reused; the values live as long as the portal.
		p.values = append(p.values, answer.Param{
			Value: cloneValue(v), Format: answer.FormatOf(m.ParameterFormats, i), Type: st.params[i],
		})
	}
	if err := s.checkParams(p.values, m.Portal); err != nil {
		return err
	}
	if c := st.command; c != nil {
		if err := s.plan(p); err != nil {
			return err
		}
		if n := len(p.formats); n > 1 && c.returnsRows && n != len(c.columns) {
			return errorf("08P01", "bind message has %d result formats but query has %d columns", n, len(c.columns))
		}
	}
	s.portals[m.Portal] = p
	s.send(wire.AppendEmpty(nil, wire.TypeBindComplete))
	return nil
}

func cloneValue(v []byte) []byte {
	if v == nil {
		return nil
	}
	return append([]byte{}, v...)
}

// plan raises the errors that PostgreSQL raises while it plans.
func (s *session) plan(p *portal) error {
	c := p.command
	if !c.returnsRows {
		return nil
	}
	e := evaluation{session: s, command: c, params: p.values}
	for _, f := range c.functions {
		if f.immutable {
			if _, err := f.eval(&e); err != nil {
				return err
			}
		}
	}
	return answer.Fold(c.constants, c.columns, p.values)
}

func (s *session) describe(body []byte) error {
	kind, name, err := wire.DecodeTarget(body)
	if err != nil {
		return err
	}
	s.enter()
	var out []byte
	var st *statement
	var formats []int16
	switch kind {
	case 'S':
		var ok bool
		if st, ok = s.statements[name]; !ok {
			return errNoStatement(name)
		}
		out = wire.AppendParameterDescription(out, st.params)
	case 'P':
		p, ok := s.portals[name]
		if !ok {
			return errNoPortal(name)
		}
		st, formats = p.statement, p.formats
	default:
		return errorf("08P01", "invalid DESCRIBE message subtype %d", kind)
	}
	if st.command == nil || !st.command.returnsRows {
		s.send(wire.AppendEmpty(out, wire.TypeNoData))
		return nil
	}
	if err := s.usable(st); err != nil {
		return err
	}
	s.send(appendColumns(out, st.command.columns, formats))
	return nil
}

func (s *session) execute(body []byte) error {
	name, limit, err := wire.DecodeExecute(body)
	if err != nil {
		return err
	}
	p, ok := s.portals[name]
	switch {
	case !ok:
		return errNoPortal(name)
	case p.command == nil:
		s.send(wire.AppendEmpty(nil, wire.TypeEmptyQueryResponse))
		return nil
	}
	s.enter()
	if err := s.usable(p.statement); err != nil {
		return err
	}
	return s.runPortal(p, int(limit))
}

func (s *session) close(body []byte) error {
	kind, name, err := wire.DecodeTarget(body)
	if err != nil {
		return err
	}
	switch kind {
	case 'S':
		delete(s.statements, name)
	case 'P':
		delete(s.portals, name)
	default:
		return errorf("08P01", "invalid CLOSE message subtype %d", kind)
	}
	s.send(wire.AppendEmpty(nil, wire.TypeCloseComplete))
	return nil
}

// runPortal carries out a portal: up to limit rows of one that returns rows (0 or less: all of them), or its command.
func (s *session) runPortal(p *portal, limit int) error {
	c := p.command
	if !c.returnsRows {
		if p.done {
			return errorf("55000", "portal \"%s\" cannot be run", p.name)
		}
		p.done = true
		tag, err := c.run(s)
		if err != nil {
			return err
		}
		s.send(wire.AppendCommandComplete(nil, tag))
		return nil
	}
	if !p.started {
		p.started = true
		rows, err := c.rows(s, p.values)
		if err != nil {
			return err
		}
		p.rows = rows
		s.tx.queried = s.tx.queried || c.tag == "SELECT"
	}
	sent := 0
	e := evaluation{session: s, command: c, params: p.values}
	for ; p.next < len(p.rows) && (limit <= 0 || sent < limit); p.next++ {
		row, err := answer.Row(s.out.Available(), p.rows[p.next], c.columns, p.formats, p.values, e.call, e.field)
		if err != nil {
			return err
		}
		s.send(row)
		sent++
	}
	if limit > 0 && sent == limit {
		s.send(wire.AppendEmpty(nil, wire.TypePortalSuspended))
		return nil
	}
	tag := c.tag
	if tag == "SELECT" {
		tag = fmt.Sprintf("SELECT %d", sent)
	}
	s.send(wire.AppendCommandComplete(nil, tag))
	return nil
}

func appendColumns(dst []byte, columns []answer.Column, formats []int16) []byte {
	fields := make([]wire.Field, len(columns))
	for i, c := range columns {
		fields[i] = wire.Field{Name: c.Name, Type: c.Type, Size: c.Size, Typmod: c.Typmod, Format: answer.FormatOf(formats, i)}
	}
	return wire.AppendRowDescription(dst, fields)
}
