package proxy

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nextvald/nextvald/proxy/answer"
	"github.com/nextvald/nextvald/proxy/wire"
	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sqlrewrite"
)

// names caches what the session's names mean.
type names struct {
	// touched: something that the open transaction changed may be undone at its end.
	touched bool
	// path are the schemas of the effective search_path, in order; nil when it has to be asked for.
	path []string
	// known are the full names of the sequences of ours that names stand for; where the upstream has all relations, of those
	// that it does not have.
	known map[sqlrewrite.Name]sequencer.Name
	// catalogs: the names of catalogs mean the catalogs.
	catalogs tristate
	// database is the OID of the session's database, 0 when it was not asked for yet.
	database uint32
	// meanings are the sequences of the upstream that names stand for; nil until there is one.
	meanings map[sqlrewrite.Name]*meaning
}

func (n *names) init() { n.known = make(map[sqlrewrite.Name]sequencer.Name) }

// changeNames voids everything that is known: a statement that may change search_path, role or relations is on its way.
func (x *session) changeNames() {
	x.names.touched = true
	x.names.path, x.names.catalogs = nil, unknown
	clear(x.names.known)
	clear(x.names.meanings)
	clear(x.answers)
}

// resolve finds the sequence of ours that a name means to the session; nil when it is the upstream's or nobody's.
func (x *session) resolve(name sqlrewrite.Name) (*sequencer.Sequence, error) {
	if name.Database != "" && name.Database != x.database {
		return nil, nil
	}
	if called, ok := x.names.known[name]; ok {
		if sequence, err := x.lookup(called); sequence != nil || err != nil {
			return sequence, err // the registry knows it; nil when it was dropped or renamed meanwhile
		}
	}
	find := x.find
	if x.mirrored() {
		find = x.findMirrored
	}
	sequence, err := find(name)
	if sequence == nil || err != nil || sequence.Kind() == sequencer.Mirrored {
		return sequence, err // the registry remembers for a while what the store does not have
	}
	x.names.known[name] = x.visible(sequence)
	return sequence, nil
}

// find resolves a name that is not cached.
func (x *session) find(name sqlrewrite.Name) (*sequencer.Sequence, error) {
	schemas := []string{name.Schema}
	if name.Schema == "" {
		var err error
		if schemas, err = x.searchPath(); err != nil {
			return nil, err
		}
	}
	for _, schema := range schemas {
		if strings.HasPrefix(schema, "pg_") {
			continue // temporary and system schemas hold nothing of ours
		}
		sequence, err := x.lookup(sequencer.Name{Database: x.database, Schema: schema, Name: name.Name})
		if err != nil {
			return nil, err
		}
		if sequence == nil || x.mirrored() && sequence.Kind() == sequencer.Mirrored {
			continue // the upstream knows what its own relations are called
		}
		hidden, err := x.hidden(schemas, schema, name.Name, sequence)
		if hidden || err != nil {
			return nil, err
		}
		return sequence, nil
	}
	return nil, nil
}

// lookup finds a sequence by its full name; nil when there is none.
func (x *session) lookup(name sequencer.Name) (*sequencer.Sequence, error) {
	if p := x.pending; p != nil {
		if sequence, decided, err := p.lookup(name); decided || err != nil {
			return sequence, err
		}
	}
	if sequence := x.srv.cfg.Sequences.Bound(name); sequence != nil {
		return sequence, nil
	}
	x.detach()
	sequence, err := x.srv.cfg.Sequences.Lookup(x.ctx, name)
	if errors.Is(err, sequencer.ErrUndefined) {
		return nil, nil
	}
	return sequence, err
}

// lookupOID finds a sequence by the OID that nextvald gave it; nil when there is none.
func (x *session) lookupOID(digits string) (*sequencer.Sequence, error) {
	oid, err := strconv.ParseUint(digits, 10, 32)
	if err != nil {
		return nil, nil
	}
	x.detach()
	sequence, err := x.srv.cfg.Sequences.LookupOID(x.ctx, x.database, uint32(oid))
	if errors.Is(err, sequencer.ErrUndefined) {
		return nil, nil
	}
	return sequence, err
}

// searchPath is the session's effective search_path.
func (x *session) searchPath() ([]string, error) {
	if x.srv.cfg.Standalone {
		return []string{"public"}, nil
	}
	if x.names.path != nil {
		return x.names.path, nil
	}
	rows, err := x.ask("SELECT pg_catalog.unnest(pg_catalog.current_schemas(true))")
	if err != nil {
		return nil, err
	}
	x.names.path = make([]string, len(rows))
	for i, row := range rows {
		x.names.path[i] = row[0]
	}
	return x.names.path, nil
}

// hidden reports whether a relation of the upstream comes before the sequence that was found in schema. One in the
// same schema makes the name mean two things, which stops the sequence.
func (x *session) hidden(schemas []string, schema, name string, sequence *sequencer.Sequence) (bool, error) {
	if x.srv.cfg.Standalone {
		return false, nil
	}
	rows, err := x.ask(`SELECT n.nspname, c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relname = $1::pg_catalog.name`, name)
	if err != nil {
		return false, err
	}
	for _, s := range schemas {
		for _, row := range rows {
			switch {
			case row[0] != s:
			case s != schema:
				return true, nil
			case isMirrored(sequence) && row[1] == strconv.FormatUint(uint64(sequence.OID()), 10):
				return false, nil // its own
			default:
				return false, &wire.Error{Code: "55000",
					Message: fmt.Sprintf("relation \"%s\" exists both in nextvald and in the upstream server", schema+"."+name),
					Hint:    "Rename or drop one of them: the upstream's directly on its server, or nextvald's with DROP SEQUENCE through nextvald while the other is away."}
			}
		}
		if s == schema {
			break
		}
	}
	return false, nil
}

// argument resolves the sequence argument of a call: null when it is NULL, found when it is a sequence of ours.
func (x *session) argument(a *sqlrewrite.Argument, params []answer.Param) (sequence *sequencer.Sequence, null bool, err error) {
	text := a.Value
	switch a.Kind {
	case sqlrewrite.Opaque:
		return nil, false, nil
	case sqlrewrite.Constant:
		if a.Null {
			return nil, true, nil
		}
	case sqlrewrite.Parameter:
		if text, null, err = answer.Text(params[a.Param-1]); err != nil || null {
			return nil, null, err
		}
	}
	if sqlrewrite.IsOID(text) {
		sequence, err = x.lookupOID(text)
		return sequence, false, err
	}
	name, err := sqlrewrite.ParseQualifiedName(text)
	if err != nil {
		return nil, false, nil // the upstream says what is wrong with it
	}
	sequence, err = x.resolve(name)
	return sequence, false, err
}

// relationNamed reports whether the upstream has a relation of that name.
func (x *session) relationNamed(schema, name string) (bool, error) {
	if x.srv.cfg.Standalone {
		return false, nil
	}
	rows, err := x.ask(`SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1::pg_catalog.name AND c.relname = $2::pg_catalog.name`, schema, name)
	return len(rows) > 0, err
}

// loadKnown makes the names of the database's sequences known. Until the store answers nothing is known, and names in
// calls are looked up one by one.
func (s *Server) loadKnown(ctx context.Context, database string) {
	if err := s.cfg.Sequences.Load(ctx, database); err != nil {
		s.cfg.Logger.Warn("cannot read the names of sequences", "database", database, "error", err)
	}
}
