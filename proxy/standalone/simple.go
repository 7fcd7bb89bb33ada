package standalone

import (
	"github.com/nextvald/nextvald/proxy/wire"
)

// query is the simple protocol: all statements of a text, in one implicit transaction.
func (s *session) query(body []byte) error {
	text, err := wire.DecodeQuery(body)
	if err != nil {
		return errorf("08P01", "invalid string in message")
	}
	if err := s.checkEncoding(text); err != nil {
		return err
	}
	delete(s.statements, "")
	delete(s.portals, "")
	tree, err := parseText(text)
	if err != nil {
		return err
	}
	if len(tree) == 0 {
		s.send(wire.AppendEmpty(nil, wire.TypeEmptyQueryResponse))
	}
	s.tx.several = len(tree) > 1
	defer func() { s.tx.several = false }()
	for i := range tree {
		if err := s.queryStatement(text, tree[i]); err != nil {
			return err
		}
	}
	s.endImplicit()
	return s.ready()
}

// queryStatement runs one statement of a simple query.
func (s *session) queryStatement(text string, tree node) error {
	if s.tx.status == statusFailed && !exitsBlock(tree) {
		return errFailedBlock()
	}
	s.enter()
	st, err := s.prepare(text, tree, nil, false)
	if err != nil {
		return err
	}
	p := &portal{statement: st}
	if err := s.plan(p); err != nil {
		return err
	}
	if st.command.returnsRows {
		s.send(appendColumns(nil, st.command.columns, nil))
	}
	return s.runPortal(p, 0)
}
