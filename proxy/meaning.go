package proxy

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/nextvald/nextvald/proxy/wire"
	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sqlrewrite"
)

// Where every relation is the upstream's (Config.Native), it says what a name means: one question for each name that a session
// uses, on its own connection, so that search_path, role and temporary relations count, and what its transaction has changed.

// meaning is a sequence of the upstream, as the session sees it.
type meaning struct {
	oid       uint32
	database  uint32 // its OID
	name      sequencer.Name
	temporary bool
	// What the session's role may do with it.
	usage, selects, update, owns bool
	// told: functions, defaults or rules of the database tell its last value, by currval or lastval: only the upstream answers
	// nextval for them.
	told bool
	// changes is Server.changes at the time of the question.
	changes uint64
}

// toldQuery asks whether the database has anything that tells the last value of sequence c. Objects of initdb have lower OIDs;
// 1575 and 2559 are currval and lastval, in trees of expressions. Without standard_conforming_strings a backslash would escape.
const toldQuery = `EXISTS (SELECT FROM pg_catalog.pg_proc p WHERE p.oid >= 16384 AND (p.prosrc ~* 'lastval'
			OR p.prosrc ~* 'currval' AND (p.prosrc !~* 'currval[[:space:]]*[(][[:space:]]*''' OR pg_catalog.strpos(p.prosrc, c.relname) > 0)
			OR p.prolang = 14 AND pg_catalog.to_jsonb(p) ->> 'prosqlbody' ~ ':funcid (1575|2559) '))
		OR EXISTS (SELECT FROM pg_catalog.pg_attrdef d WHERE d.adbin::pg_catalog.text ~ ':funcid (1575|2559) ')
		OR EXISTS (SELECT FROM pg_catalog.pg_rewrite r WHERE r.oid >= 16384 AND r.ev_action::pg_catalog.text ~ ':funcid (1575|2559) ')`

func (x *session) mirrored() bool { return x.srv.cfg.Native != nil }

// oidName stands for an OID in place of a name. No name holds a NUL.
func oidName(digits string) sqlrewrite.Name { return sqlrewrite.Name{Schema: "\x00", Name: digits} }

// mean returns the sequence that a name means to the session; nil when it means something else or nothing.
func (x *session) mean(name sqlrewrite.Name) (*meaning, error) {
	if name.Database != "" && name.Database != x.database {
		return nil, nil
	}
	changes := x.srv.changes.Load()
	if m := x.names.meanings[name]; m != nil && m.changes == changes {
		return m, nil
	}
	// to_regclass fails where the session may not look into the schema; the upstream says so where its client asks.
	which, arguments := "pg_catalog.to_regclass($1)", []string{quoted(nameParts(name))}
	if name.Schema != "" {
		which = `pg_catalog.to_regclass(CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_namespace s WHERE s.nspname = $2
			AND NOT pg_catalog.has_schema_privilege(s.oid, 'USAGE')) THEN NULL ELSE $1 END)`
		arguments = append(arguments, name.Schema)
	}
	if name.Schema == "\x00" {
		which, arguments = "$1::pg_catalog.oid", []string{name.Name}
		if _, err := strconv.ParseUint(name.Name, 10, 32); err != nil {
			return nil, nil
		}
	}
	rows, err := x.ask(`SELECT c.oid, n.nspname, c.relname, c.relpersistence = 't', pg_catalog.has_sequence_privilege(c.oid, 'USAGE'),
		pg_catalog.has_sequence_privilege(c.oid, 'SELECT'), pg_catalog.has_sequence_privilege(c.oid, 'UPDATE'),
		pg_catalog.pg_has_role(c.relowner, 'USAGE'), `+toldQuery+`,
		(SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
		FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind = 'S' AND c.oid = `+which, arguments...)
	if len(rows) != 1 || err != nil {
		return nil, err
	}
	row := rows[0]
	oid, err := strconv.ParseUint(row[0], 10, 32)
	if err != nil {
		return nil, err
	}
	database, err := strconv.ParseUint(row[9], 10, 32)
	if err != nil {
		return nil, err
	}
	m := &meaning{
		oid: uint32(oid), database: uint32(database), name: sequencer.Name{Database: x.database, Schema: row[1], Name: row[2]}, temporary: row[3] == "t",
		usage: row[4] == "t", selects: row[5] == "t", update: row[6] == "t", owns: row[7] == "t",
		told:    row[8] == "t",
		changes: changes,
	}
	if x.names.meanings == nil {
		x.names.meanings = make(map[sqlrewrite.Name]*meaning)
	}
	x.names.meanings[name] = m
	return m, nil
}

// stored returns the sequence of the store that a sequence of the upstream was handed over to; nil where the upstream hands
// it out itself.
func (x *session) stored(m *meaning) (*sequencer.Sequence, error) {
	if m.temporary {
		return nil, nil
	}
	sequence := x.srv.cfg.Sequences.Bound(m.name)
	if sequence == nil || sequence.OID() != m.oid {
		var err error
		x.detach()
		if sequence, err = x.srv.cfg.Sequences.LookupOID(x.ctx, x.database, m.oid); errors.Is(err, sequencer.ErrUndefined) {
			return nil, nil
		} else if err != nil {
			return nil, err
		}
	}
	if sequence.Kind() != sequencer.Mirrored || m.database != 0 && sequence.Mirrors() != m.database {
		return nil, nil // of a database of that name that was there before, say
	}
	return sequence, nil
}

// findMirrored is find where the upstream has all relations but those that are still stored as virtual.
func (x *session) findMirrored(name sqlrewrite.Name) (*sequencer.Sequence, error) {
	if !x.mayBeStored(name) {
		return nil, nil
	}
	m, err := x.mean(name)
	if err != nil {
		return nil, err
	}
	if m != nil {
		if sequence, err := x.stored(m); sequence != nil || err != nil {
			return sequence, err
		}
	}
	return x.find(name)
}

// errDenied is PostgreSQL's for a sequence that the session's role may not use so.
func errDenied(name sequencer.Name) *wire.Error {
	return &wire.Error{Code: "42501", Message: fmt.Sprintf("permission denied for sequence %s", name.Name)}
}
