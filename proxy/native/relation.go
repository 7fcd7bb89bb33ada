package native

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/nextvald/nextvald/sequencer"
)

// errGone: the upstream has no such sequence any more.
var errGone = errors.New("the sequence does not exist in the upstream")

// relation is a sequence of the upstream as its catalogs have it.
type relation struct {
	oid, database uint32
	name          sequencer.Name
	// quoted is the name with its schema as SQL writes it.
	quoted     string
	definition sequencer.Definition
	// cache is the number that CACHE gave or defaults to.
	cache int64
	// temporary, and so a session's own. owned: nextvald's role may alter it.
	temporary, owned bool
	// table and column own it, empty for none, as SQL writes them: by OWNED BY, or as an identity column. referred: a column
	// default calls it.
	table, column string
	referred      bool
}

// relations reads sequences that a condition on pg_class (c) and pg_namespace (n) chooses, in the order of their names. It
// takes no lock on them.
const relations = `SELECT c.oid, d.oid, d.datname::text, n.nspname::text, c.relname::text, pg_catalog.format('%I.%I', n.nspname, c.relname),
	pg_catalog.format_type(s.seqtypid, NULL), s.seqstart, s.seqincrement, s.seqmin, s.seqmax, s.seqcache, s.seqcycle,
	c.relpersistence = 't', pg_catalog.pg_has_role(c.relowner, 'USAGE'),
	COALESCE(o.relation, ''), COALESCE(o.attribute, ''),
	EXISTS (SELECT FROM pg_catalog.pg_depend r WHERE r.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass
		AND r.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass AND r.refobjid = c.oid)
	FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
	JOIN pg_catalog.pg_sequence s ON s.seqrelid = c.oid
	JOIN pg_catalog.pg_database d ON d.datname = pg_catalog.current_database()
	LEFT JOIN LATERAL (SELECT pg_catalog.format('%I.%I', tn.nspname, t.relname) AS relation, pg_catalog.quote_ident(a.attname) AS attribute
		FROM pg_catalog.pg_depend o JOIN pg_catalog.pg_class t ON t.oid = o.refobjid
		JOIN pg_catalog.pg_namespace tn ON tn.oid = t.relnamespace
		JOIN pg_catalog.pg_attribute a ON a.attrelid = o.refobjid AND a.attnum = o.refobjsubid
		WHERE o.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND o.objid = c.oid AND o.objsubid = 0
		AND o.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass AND o.deptype IN ('a', 'i') LIMIT 1) o ON true
	WHERE c.relkind = 'S' AND `

// readRelations reads the sequences that a condition chooses.
func readRelations(ctx context.Context, conn *pgx.Conn, condition string, arguments ...any) ([]relation, error) {
	rows, err := conn.Query(ctx, relations+condition+" ORDER BY n.nspname, c.relname", arguments...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r relation, err error) {
		var kind string
		d := &r.definition
		err = row.Scan(&r.oid, &r.database, &r.name.Database, &r.name.Schema, &r.name.Name, &r.quoted,
			&kind, &d.Start, &d.Increment, &d.Min, &d.Max, &r.cache, &d.Cycle,
			&r.temporary, &r.owned, &r.table, &r.column, &r.referred)
		if err != nil {
			return r, err
		}
		if r.cache > 1 {
			d.Cache = r.cache // of 1 the catalogs do not tell whether anybody wrote it
		}
		d.Type, err = sequencer.ParseDataType(kind)
		return r, err
	})
}

// readRelation reads a sequence by its OID. errGone.
func readRelation(ctx context.Context, conn *pgx.Conn, oid uint32) (relation, error) {
	all, err := readRelations(ctx, conn, "c.oid = $1", oid)
	if err == nil && len(all) == 0 {
		err = errGone
	}
	if err != nil {
		return relation{}, err
	}
	return all[0], nil
}

// where reads where a sequence stands. It takes no lock that anybody waits for.
func (r relation) where(ctx context.Context, conn *pgx.Conn) (last int64, called bool, err error) {
	err = conn.QueryRow(ctx, "SELECT last_value, is_called FROM "+r.quoted).Scan(&last, &called)
	return last, called, err
}

// furthest reads the furthest value in the column that owns a sequence, nil where there is none or it is out of the
// sequence's bounds. It may take as long as reading the table does.
func (r relation) furthest(ctx context.Context, conn *pgx.Conn) (*int64, error) {
	if r.column == "" {
		return nil, nil
	}
	aggregate := "max"
	if r.definition.Increment < 0 {
		aggregate = "min"
	}
	var v *int64
	err := conn.QueryRow(ctx, fmt.Sprintf("SELECT pg_catalog.%s(%s)::pg_catalog.int8 FROM %s WHERE %s BETWEEN $1 AND $2",
		aggregate, r.column, r.table, r.column), r.definition.Min, r.definition.Max).Scan(&v)
	return v, err
}

// literal is the inside of a string constant.
func literal(s string) string { return strings.ReplaceAll(s, "'", "''") }
