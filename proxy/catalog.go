package proxy

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/nextvald/nextvald/proxy/wire"
	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sqlrewrite"
)

// What the upstream's catalogs tell of a sequence of ours is not true: its native sequence is confined to a fence, or there
// is none. So where a statement names these catalogs, or reads such a sequence, it is given an overlay: what nextvald knows,
// by which the upstream computes the answer.

// oidJSONB is the OID of jsonb in pg_type.
const oidJSONB = 3802

// overlaid is a sequence in an overlay.
type overlaid struct {
	// Schema and Name are those of a sequence that the upstream does not have.
	Schema    string `json:"schema,omitempty"`
	Name      string `json:"name,omitempty"`
	Type      uint32 `json:"type"`
	Start     int64  `json:"start"`
	Increment int64  `json:"increment"`
	Min       int64  `json:"min"`
	Max       int64  `json:"max"`
	Cache     int64  `json:"cache"`
	Cycle     bool   `json:"cycle"`
	Last      int64  `json:"last"`
	Called    bool   `json:"called"`
}

// overlaps reports whether there may be sequences of ours for the catalogs that a statement reads.
func (x *session) overlaps(st *sqlrewrite.Statement) (bool, error) {
	if len(st.Catalogs) == 0 || x.srv.cfg.Standalone || !x.srv.cfg.Sequences.Any(x.database) {
		return false, nil
	}
	for i := range st.Catalogs {
		if k := &st.Catalogs[i]; k.Bare && k.Kind <= sqlrewrite.SchemaSequences {
			return x.catalogsFirst()
		}
	}
	return true, nil
}

// catalogsFirst reports whether the names of catalogs mean the catalogs: search_path can put relations before them.
func (x *session) catalogsFirst() (bool, error) {
	if x.names.catalogs == unknown {
		rows, err := x.ask(`SELECT pg_catalog.to_regclass('pg_sequence') OPERATOR(pg_catalog.=) 'pg_catalog.pg_sequence'::pg_catalog.regclass
			AND pg_catalog.to_regclass('pg_sequences') OPERATOR(pg_catalog.=) 'pg_catalog.pg_sequences'::pg_catalog.regclass`)
		if err != nil {
			return false, err
		}
		x.names.catalogs = no
		if rows[0][0] == "t" {
			x.names.catalogs = yes
		}
	}
	return x.names.catalogs == yes, nil
}

// isMirrored reports whether a sequence is ours and the upstream has it too.
func isMirrored(s *sequencer.Sequence) bool { return s != nil && s.Kind() == sequencer.Mirrored }

// isOverlaid reports whether the upstream needs an overlay for the statement.
func (u *use) isOverlaid() bool {
	if u.catalogs {
		return true
	}
	for _, s := range u.relations {
		if isMirrored(s) {
			return true
		}
	}
	return false
}

// describable reports whether the upstream can tell of the statement as it is which tables its columns are of. The subqueries
// that overlays are do not tell.
func (u *use) describable() bool {
	if !u.isOverlaid() || u.statement.Utility {
		return false
	}
	for _, s := range u.relations {
		if s != nil && !isMirrored(s) {
			return false
		}
	}
	for i := range u.ours {
		if s, ok := u.sequences[i].(*sequencer.Sequence); u.ours[i] && ok && !isMirrored(s) {
			return false
		}
	}
	return !slices.ContainsFunc(u.classes, isOurs)
}

// overlayEdits make a statement take what it reads of sequences from an overlay, an expression.
func (u *use) overlayEdits(overlay string) (edits []sqlrewrite.Edit) {
	st := u.statement
	if u.catalogs {
		for i := range st.Catalogs {
			edits = append(edits, st.Catalogs[i].Edits(u.plan.Text, overlay, st.System)...)
		}
	}
	for i, s := range u.relations {
		if isMirrored(s) {
			r := &st.Reads[i]
			edits = append(edits, sqlrewrite.Edit{Start: r.Start, End: r.End, Text: r.Overlaid(u.plan.Text, overlay, st.System)})
		}
	}
	return edits
}

// prefixEdits take the schema from columns of what becomes a subquery.
func (u *use) prefixEdits() (edits []sqlrewrite.Edit) {
	for _, p := range u.statement.Prefixes {
		if u.replaces(p.Relation) {
			edits = append(edits, sqlrewrite.Edit{Start: p.Start, End: p.End})
		}
	}
	return edits
}

// replaces reports whether a relation of that name, without an alias, becomes a subquery.
func (u *use) replaces(name sqlrewrite.Name) bool {
	for i, s := range u.relations {
		if r := &u.statement.Reads[i]; s != nil && !r.Alias && r.Name.Schema == name.Schema && r.Name.Name == name.Name {
			return true
		}
	}
	return u.catalogs && sqlrewrite.IsCatalog(name)
}

// overlay is what the statement's overlay tells, as the text of a jsonb.
func (x *session) overlay(u *use) (string, error) {
	sequences := make(map[string]overlaid)
	all := false
	for i, s := range u.relations {
		if isMirrored(s) {
			if err := x.overlayOne(sequences, u.relations[i]); err != nil {
				return "", err
			}
		}
	}
	if u.catalogs {
		for i := range u.statement.Catalogs {
			sequence, known, err := x.keyOf(&u.statement.Catalogs[i].Key, u)
			switch {
			case err != nil:
				return "", err
			case !known:
				all = true
			case sequence != nil:
				if err := x.overlayOne(sequences, sequence); err != nil {
					return "", err
				}
			}
		}
	}
	if all {
		if err := x.overlayAll(sequences); err != nil {
			return "", err
		}
	}
	text, err := json.Marshal(sequences)
	return escaped(string(text)), err
}

// overlayLiterals are the edits by which a statement gets its overlay as literals: that of what it prepares as a
// parameter, that of what it executes as an argument.
func (x *session) overlayLiterals(u *use) ([]sqlrewrite.Edit, error) {
	switch {
	case u.executes != nil:
		e, takes := u.statement.Execute, u.executes.base
		if takes > 0 && e.Params != takes {
			return nil, &wire.Error{Code: "42601", Message: fmt.Sprintf("wrong number of parameters for prepared statement \"%s\"", e.Name),
				Detail: fmt.Sprintf("Expected %d parameters but got %d.", takes, e.Params)}
		}
		prepared, err := x.resolveUse(u.executes.plan, u.executes.parsed, nil, false)
		if err != nil {
			return nil, err
		}
		overlay, err := x.overlayLiteral(prepared)
		return []sqlrewrite.Edit{e.Edit(overlay, takes == 0)}, err
	case !u.isOverlaid():
		return nil, nil
	case u.statement.Prepare != nil:
		return u.overlayEdits("$" + strconv.Itoa(u.statement.Prepare.Params+1) + "::pg_catalog.jsonb"), nil
	}
	overlay, err := x.overlayLiteral(u)
	return u.overlayEdits(overlay), err
}

// prepareOverlaid notes a PREPARE that is about to run with an overlay: each execution brings another.
func (x *session) prepareOverlaid(u *use) *statement {
	p := u.statement.Prepare
	st := &statement{name: p.Name, text: u.plan.Text, mode: edited, plan: u.plan, parsed: u.statement, base: p.Params, overlaid: true,
		before: x.named(p.Name)}
	x.prepared[p.Name] = st
	return st
}

// overlayLiteral is the overlay as an expression.
func (x *session) overlayLiteral(u *use) (string, error) {
	text, err := x.overlay(u)
	text = strings.ReplaceAll(text, "'", "''")
	if strings.Contains(text, `\`) {
		return "E'" + strings.ReplaceAll(text, `\`, `\\`) + "'::pg_catalog.jsonb", err
	}
	return "'" + text + "'::pg_catalog.jsonb", err
}

// escaped is a JSON text in ASCII, which reads the same in every encoding.
func escaped(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r < utf8.RuneSelf:
			b.WriteRune(r)
		case r > 0xFFFF:
			high, low := utf16.EncodeRune(r)
			b.WriteString(`\u` + strconv.FormatInt(int64(high), 16) + `\u` + strconv.FormatInt(int64(low), 16))
		default:
			b.WriteString(`\u` + strconv.FormatInt(0x10000+int64(r), 16)[1:])
		}
	}
	return b.String()
}

// keyOf finds the only sequence that a catalog is asked for, nil when it is none of ours; known is false when the statement
// does not tell which.
func (x *session) keyOf(a *sqlrewrite.Argument, u *use) (sequence *sequencer.Sequence, known bool, err error) {
	constant := *a
	switch a.Kind {
	case sqlrewrite.Opaque:
		return nil, false, nil
	case sqlrewrite.Parameter:
		if !u.bound || a.Param > len(u.params) {
			return nil, false, nil
		}
		p := u.params[a.Param-1]
		constant = sqlrewrite.Argument{Kind: sqlrewrite.Constant, Value: string(p.Value), Null: p.Value == nil}
		if p.Format == 1 && p.Value != nil {
			if len(p.Value) != 4 {
				return nil, false, nil
			}
			constant.Value = strconv.FormatUint(uint64(binary.BigEndian.Uint32(p.Value)), 10)
		}
	}
	if name, err := sqlrewrite.ParseQualifiedName(constant.Value); !constant.Null && (err != nil || !sqlrewrite.IsOID(constant.Value) && !x.known(name.Name)) {
		return nil, true, nil // the upstream says what is wrong with it
	}
	sequence, _, err = x.argument(&constant, nil)
	return sequence, true, err
}

// overlayOne adds a sequence.
func (x *session) overlayOne(sequences map[string]overlaid, s *sequencer.Sequence) error {
	if err := x.checkPending(s); err != nil {
		return err
	}
	ctx := x.wait()
	defer x.waited()
	item, state, err := s.Read(ctx)
	if err != nil {
		return err
	}
	return x.overlayItem(sequences, x.visible(s), item, state)
}

// overlayAll adds the sequences of the database, as the session sees them.
func (x *session) overlayAll(sequences map[string]overlaid) error {
	ctx := x.wait()
	list, err := x.srv.cfg.Sequences.Listing(ctx, x.database)
	x.waited()
	if err != nil {
		return err
	}
	for i := range list {
		name := list[i].Entry.Name
		if p := x.pending; p != nil {
			if c, ok := p.names[name]; ok && (c.gone || c.stands != name) {
				continue // dropped, or another has its name
			}
			name = p.called(name)
		}
		if strings.HasPrefix(name.Schema, pendingSchema) {
			continue // of a transaction that is not committed
		}
		if err := x.overlayItem(sequences, name, list[i].Item, list[i].State); err != nil {
			return err
		}
	}
	return nil
}

// overlayItem adds a sequence, unless the upstream tells the truth of it.
func (x *session) overlayItem(sequences map[string]overlaid, name sequencer.Name, item sequencer.Item, state sequencer.State) error {
	d := item.Definition
	o := overlaid{
		Type: typeOf(d.Type), Start: d.Start, Increment: d.Increment, Min: d.Min, Max: d.Max, Cache: max(d.Cache, 1), Cycle: d.Cycle,
		Last: state.LastValue, Called: state.IsCalled,
	}
	switch item.Kind {
	case sequencer.Mirrored:
		if item.Source != sequencer.FromStore {
			return nil
		}
		if database, err := x.databaseOID(); err != nil || database != item.DBOID {
			return err // that of a database of the same name, which is gone
		}
	default:
		o.Schema, o.Name = name.Schema, name.Name
	}
	sequences[strconv.FormatUint(uint64(item.OID), 10)] = o
	return nil
}

// databaseOID is the OID of the session's database.
func (x *session) databaseOID() (uint32, error) {
	if x.names.database == 0 {
		rows, err := x.ask("SELECT oid FROM pg_catalog.pg_database WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database()")
		if err != nil {
			return 0, err
		}
		oid, err := strconv.ParseUint(rows[0][0], 10, 32)
		if err != nil {
			return 0, err
		}
		x.names.database = uint32(oid)
	}
	return x.names.database, nil
}

// typeOf is the OID of a sequence's type.
func typeOf(t sequencer.DataType) uint32 {
	switch t {
	case sequencer.Smallint:
		return oidInt2
	case sequencer.Integer:
		return oidInt4
	}
	return oidInt8
}
