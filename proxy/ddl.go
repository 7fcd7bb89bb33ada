package proxy

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/nextvald/nextvald/proxy/wire"
	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sqlrewrite"
)

// ownsDDL reports whether a DDL statement is nextvald's to carry out. DDL on names that are not ours passes.
func (x *session) ownsDDL(st *sqlrewrite.Statement) (bool, error) {
	d := st.DDL
	switch {
	case d.Verb == sqlrewrite.CreateSequence:
		if d.Temporary || x.mirrored() {
			return false, nil // a temporary one lives and dies with its session in the upstream
		}
		return x.createsHere(d.Names[0])
	case x.mirrored() && d.Verb == sqlrewrite.SetParameters && isPolicy(d):
		return true, nil
	}
	ours := 0
	var others []sqlrewrite.Name
	for _, name := range d.Names {
		sequence, err := x.resolve(name)
		if err != nil {
			return false, err
		}
		if sequence != nil && !(x.mirrored() && sequence.Kind() == sequencer.Mirrored) {
			ours++
		} else {
			others = append(others, name)
		}
	}
	switch {
	case ours == 0:
		return x.srv.cfg.Standalone && !d.Table, nil
	case len(others) == 0 || x.srv.cfg.Standalone:
		return true, nil
	}
	for _, name := range others {
		there, err := x.upstreamHas(name)
		if err != nil {
			return false, err
		}
		if there {
			return false, errMixedNames(d)
		}
	}
	return true, nil // nobody has the others
}

// createsHere reports whether a sequence of a name becomes nextvald's when it is created: where there is one already, and
// where no policy wants it in the upstream.
func (x *session) createsHere(name sqlrewrite.Name) (bool, error) {
	if x.srv.cfg.Standalone {
		return true, nil
	}
	full, err := x.creationName(name)
	if err != nil {
		return false, err
	}
	if x.srv.cfg.Sequences.DefaultSource(full) == sequencer.FromStore {
		return true, nil
	}
	sequence, err := x.lookup(full)
	return sequence != nil, err
}

// creationName is the full name of a relation that is created under a name; the schema is empty where there is none to
// create in.
func (x *session) creationName(name sqlrewrite.Name) (sequencer.Name, error) {
	full := sequencer.Name{Database: x.database, Schema: name.Schema, Name: name.Name}
	if full.Schema == "" {
		path, err := x.searchPath()
		if err != nil {
			return full, err
		}
		for _, schema := range path {
			if !strings.HasPrefix(schema, "pg_") {
				full.Schema = schema
				break
			}
		}
	}
	return full, nil
}

// upstreamHas reports whether a name means a relation of the upstream.
func (x *session) upstreamHas(name sqlrewrite.Name) (bool, error) {
	rows, err := x.ask("SELECT 1 WHERE pg_catalog.to_regclass($1) IS NOT NULL", quoted(nameParts(name)))
	return len(rows) > 0, err
}

func errMixedNames(d *sqlrewrite.DDL) *wire.Error {
	return notSupported("Name the sequences of nextvald and those of the upstream server in statements of their own.",
		"%s of sequences of nextvald and of the upstream server in one statement is not supported", d.Tag)
}

// runDDL carries out a statement that ownsDDL found to be ours, and appends its response.
func (x *session) runDDL(frames []byte, st *sqlrewrite.Statement) ([]byte, error) {
	d := st.DDL
	if readOnly, err := x.readOnly(); err != nil {
		return frames, err
	} else if readOnly {
		return frames, errReadOnly(d.Tag)
	}
	if byte(x.status.Load()) == inBlock {
		if !x.srv.cfg.Standalone {
			return frames, notSupported("Run the statement outside of a transaction block.",
				"%s of nextvald inside a transaction block is not supported", d.Tag)
		}
		x.beginPending()
	}
	notice, err := x.applyDDL(st)
	if err != nil {
		return frames, err
	}
	x.changeNames()
	for _, n := range notice {
		frames = wire.AppendError(frames, n)
	}
	return wire.AppendCommandComplete(frames, d.Tag), nil
}

func (x *session) applyDDL(st *sqlrewrite.Statement) (notices []*wire.Error, err error) {
	d := st.DDL
	for _, name := range d.Names {
		if name.Database != "" && name.Database != x.database {
			return nil, &wire.Error{Code: "0A000", Message: fmt.Sprintf("cross-database references are not implemented: \"%s\"", dotted(name))}
		}
	}
	if d.Verb == sqlrewrite.CreateSequence {
		return x.createSequence(st)
	}
	if d.Verb == sqlrewrite.SetParameters && x.mirrored() {
		if m, err := x.mean(d.Names[0]); m != nil || err != nil {
			if err == nil {
				err = x.setParameters(m, d)
			}
			return nil, err
		}
	}
	sequences := make([]*sequencer.Sequence, 0, len(d.Names))
	for _, name := range d.Names {
		sequence, err := x.resolve(name)
		switch {
		case err != nil:
			return nil, err
		case sequence != nil:
			sequences = append(sequences, sequence)
		case d.Verb == sqlrewrite.DropSequence && d.IfExists:
			notices = append(notices, &wire.Error{Severity: wire.SeverityNotice, Code: "00000",
				Message: fmt.Sprintf("sequence \"%s\" does not exist, skipping", dotted(name))})
		case d.Verb == sqlrewrite.DropSequence:
			return nil, &wire.Error{Code: "42P01", Message: fmt.Sprintf("sequence \"%s\" does not exist", dotted(name))}
		case d.IfExists:
			return []*wire.Error{{Severity: wire.SeverityNotice, Code: "00000",
				Message: fmt.Sprintf("relation \"%s\" does not exist, skipping", dotted(name))}}, nil
		default:
			return nil, errUndefined(dotted(name))
		}
	}
	if d.Verb == sqlrewrite.DropSequence {
		for _, sequence := range sequences {
			if err := x.drop(x.visible(sequence)); err != nil {
				return nil, err
			}
		}
		return notices, nil
	}
	name := x.visible(sequences[0])
	switch d.Verb {
	case sqlrewrite.AlterSequence:
		options, err := x.options(st)
		if err != nil {
			return nil, err
		}
		return nil, x.alter(name, options)
	case sqlrewrite.SetParameters:
		options, err := policyOptions(d)
		if err != nil {
			return nil, err
		}
		return nil, x.alter(name, options)
	case sqlrewrite.RenameSequence, sqlrewrite.SetSchema:
		to := name
		if d.Verb == sqlrewrite.RenameSequence {
			to.Name = d.To
		} else {
			to.Schema = d.To
		}
		if d.Verb == sqlrewrite.SetSchema && to == name {
			return nil, nil
		}
		if err := x.checkTarget(to); err != nil {
			return nil, err
		}
		return nil, x.rename(name, to)
	default:
		owner, err := x.role(d.To)
		if err != nil {
			return nil, err
		}
		return nil, x.alter(name, sequencer.Options{Owner: &owner})
	}
}

// createSequence carries out CREATE SEQUENCE, with PostgreSQL's checks in PostgreSQL's order.
func (x *session) createSequence(st *sqlrewrite.Statement) ([]*wire.Error, error) {
	d := st.DDL
	name := sequencer.Name{Database: x.database, Schema: d.Names[0].Schema, Name: d.Names[0].Name}
	exists := func() (bool, error) {
		schema, err := x.creationSchema(name.Schema, d.Names[0].Schema != "")
		if err != nil {
			return false, err
		}
		name.Schema = schema
		if sequence, err := x.lookup(name); sequence != nil || err != nil {
			return true, err
		}
		return x.relationNamed(name.Schema, name.Name)
	}
	if d.IfExists {
		if there, err := exists(); err != nil {
			return nil, err
		} else if there {
			return []*wire.Error{{Severity: wire.SeverityNotice, Code: "42P07",
				Message: fmt.Sprintf("relation \"%s\" already exists, skipping", name.Name)}}, nil
		}
	}
	options, err := x.options(st)
	if err != nil {
		return nil, err
	}
	def, err := sequencer.Define(options)
	if err != nil {
		return nil, err
	}
	def.Owner = x.user
	if there, err := exists(); err != nil {
		return nil, err
	} else if there {
		return nil, errDuplicate(name.Name)
	}
	return nil, x.create(name, def)
}

// creationSchema finds the schema that a new relation goes to, and checks that the user may create there.
func (x *session) creationSchema(schema string, written bool) (string, error) {
	missing := &wire.Error{Code: "3F000", Message: fmt.Sprintf("schema \"%s\" does not exist", schema)}
	if x.srv.cfg.Standalone {
		if written && schema != "public" {
			return "", missing
		}
		return "public", nil
	}
	rows, err := x.ask(`SELECT n.nspname, pg_catalog.has_schema_privilege(n.oid, 'CREATE') FROM pg_catalog.pg_namespace n
		WHERE n.nspname = CASE WHEN $1 = '' THEN pg_catalog.current_schema() ELSE $1::pg_catalog.name END`, schema)
	switch {
	case err != nil:
		return "", err
	case len(rows) == 0 && schema != "":
		return "", missing
	case len(rows) == 0:
		return "", &wire.Error{Code: "3F000", Message: "no schema has been selected to create in"}
	case rows[0][1] != "t":
		return "", &wire.Error{Code: "42501", Message: fmt.Sprintf("permission denied for schema %s", rows[0][0])}
	}
	return rows[0][0], nil
}

// checkTarget checks that a sequence may get a name.
func (x *session) checkTarget(to sequencer.Name) error {
	if _, err := x.creationSchema(to.Schema, true); err != nil {
		return err
	}
	sequence, err := x.lookup(to)
	if err != nil {
		return err
	}
	there := sequence != nil
	if !there {
		if there, err = x.relationNamed(to.Schema, to.Name); err != nil {
			return err
		}
	}
	if there {
		return errDuplicate(to.Name)
	}
	return nil
}

// checkCreates refuses a statement that passes and would create a relation of a sequence's name.
func (x *session) checkCreates(st *sqlrewrite.Statement) error {
	if x.srv.cfg.Standalone {
		return nil
	}
	if d := st.DDL; d != nil && len(st.Creates) > 0 && d.Verb != sqlrewrite.CreateSequence {
		if there, err := x.upstreamHas(d.Names[0]); !there || err != nil {
			return err // the upstream has nothing to rename, and says so
		}
	}
	for _, name := range st.Creates {
		if strings.HasPrefix(name.Schema, "pg_") || x.mirrored() && !x.known(name.Name) {
			continue // a temporary relation hides a sequence, and takes nothing from it
		}
		full, err := x.creationName(name)
		if err != nil {
			return err
		}
		sequence, err := x.lookup(full)
		if err != nil {
			return err
		}
		if sequence != nil && !(x.mirrored() && sequence.Kind() == sequencer.Mirrored) {
			e := errDuplicate(name.Name)
			e.Hint = "It is a sequence of nextvald. Choose another name, or rename or drop the sequence."
			return e
		}
	}
	return nil
}

// role is the name of the role that OWNER TO means.
func (x *session) role(name string) (string, error) {
	switch name {
	case "CURRENT_USER", "CURRENT_ROLE", "SESSION_USER":
		if x.srv.cfg.Standalone {
			return x.user, nil
		}
		rows, err := x.ask("SELECT " + strings.ToLower(name))
		if err != nil {
			return "", err
		}
		return rows[0][0], nil
	}
	missing := &wire.Error{Code: "42704", Message: fmt.Sprintf("role \"%s\" does not exist", name)}
	if x.srv.cfg.Standalone {
		if name != x.user {
			return "", missing
		}
		return name, nil
	}
	rows, err := x.ask("SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = $1::pg_catalog.name", name)
	if err == nil && len(rows) == 0 {
		err = missing
	}
	return name, err
}

// options reads the options of CREATE and ALTER SEQUENCE, with PostgreSQL's errors.
func (x *session) options(st *sqlrewrite.Statement) (sequencer.Options, error) {
	var o sequencer.Options
	seen := make(map[string]bool)
	for i := range st.DDL.Options {
		opt := &st.DDL.Options[i]
		if opt.Name == "sequence_name" || opt.Name == "logged" {
			return o, &wire.Error{Code: "42601", Message: "invalid sequence option SEQUENCE NAME", Position: x.position(opt.Start)}
		}
		if seen[opt.Name] {
			return o, &wire.Error{Code: "42601", Message: "conflicting or redundant options", Position: x.position(opt.Start)}
		}
		seen[opt.Name] = true
	}
	for i := range st.DDL.Options {
		opt := &st.DDL.Options[i]
		switch opt.Name {
		case "as":
			t, err := x.dataType(opt)
			if err != nil {
				return o, err
			}
			o.As = &t
			continue
		case "cycle":
			on := !opt.None
			o.Cycle = &on
			continue
		case "owned_by":
			column, err := x.owningColumn(opt)
			if err != nil {
				return o, err
			}
			o.OwnedBy = &column
			continue
		}
		var v int64
		if !opt.None {
			var err error
			if v, err = integer(opt.Value); err != nil {
				return o, err
			}
		}
		switch opt.Name {
		case "increment":
			o.Increment = &v
		case "minvalue":
			o.Min = &sequencer.Bound{Value: v, No: opt.None}
		case "maxvalue":
			o.Max = &sequencer.Bound{Value: v, No: opt.None}
		case "start":
			o.Start = &v
		case "restart":
			o.Restart = &sequencer.Restart{Value: v, Bare: opt.None}
		case "cache":
			o.Cache = &v
		default:
			return o, &wire.Error{Code: "42601", Message: fmt.Sprintf("option \"%s\" not recognized", opt.Name)}
		}
	}
	return o, nil
}

// policyNamespace is that of the parameters by which a sequence gets a policy of its own.
const policyNamespace = "nextvald"

// isPolicy reports whether all parameters of a SET or RESET are nextvald's.
func isPolicy(d *sqlrewrite.DDL) bool {
	return !slices.ContainsFunc(d.Parameters, func(p sqlrewrite.StorageParameter) bool { return p.Namespace != policyNamespace })
}

// policyOptions reads SET (nextvald.<key> = <value>, ...) and RESET (nextvald.<key>, ...). Other parameters are refused as
// PostgreSQL refuses all of them for a sequence.
func policyOptions(d *sqlrewrite.DDL) (sequencer.Options, error) {
	var o sequencer.Options
	for _, p := range d.Parameters {
		if p.Namespace != policyNamespace {
			action := "SET"
			if p.Reset {
				action = "RESET"
			}
			return o, &wire.Error{
				Code:    "42809",
				Message: fmt.Sprintf("ALTER action %s cannot be performed on relation \"%s\"", action, d.Names[0].Name),
				Detail:  "This operation is not supported for sequences.",
				Hint:    "The parameters of a sequence begin with \"nextvald.\".",
			}
		}
		if p.Reset {
			// It is applied first, so it takes back what the statement has set before.
			o.Set = slices.DeleteFunc(o.Set, func(s sequencer.Setting) bool { return s.Key == p.Name })
			o.Reset = append(o.Reset, p.Name)
		} else {
			o.Set = append(o.Set, sequencer.Setting{Key: p.Name, Value: p.Value})
		}
	}
	return o, nil
}

// position is the character position, from 1, of a byte offset in the text being run.
func (x *session) position(offset int) int {
	return x.base + utf8.RuneCountInString(x.text[:min(offset, len(x.text))]) + 1
}

// integer reads a number as PostgreSQL's int8 input does.
func integer(s string) (int64, error) {
	v, err := strconv.ParseInt(s, 10, 64)
	switch {
	case err == nil:
		return v, nil
	case errors.Is(err, strconv.ErrRange) || math.Abs(float(s)) > math.MaxInt64 && !strings.ContainsAny(s, ".eE"):
		return 0, &wire.Error{Code: "22003", Message: fmt.Sprintf("value \"%s\" is out of range for type bigint", s)}
	}
	return 0, &wire.Error{Code: "22P02", Message: fmt.Sprintf("invalid input syntax for type bigint: \"%s\"", s)}
}

func float(s string) float64 {
	f, _ := strconv.ParseFloat(s, 64)
	return f
}

// dataType reads the option AS.
func (x *session) dataType(opt *sqlrewrite.Option) (sequencer.DataType, error) {
	parts := opt.Parts
	if len(parts) == 2 && parts[0] == "pg_catalog" {
		parts = parts[1:]
	}
	if len(parts) == 1 {
		switch parts[0] {
		case "int2":
			return sequencer.Smallint, nil
		case "int4":
			return sequencer.Integer, nil
		case "int8":
			return sequencer.Bigint, nil
		}
	}
	if !x.srv.cfg.Standalone {
		rows, err := x.ask("SELECT 1 WHERE pg_catalog.to_regtype($1) IS NOT NULL", quoted(opt.Parts))
		if err != nil {
			return 0, err
		}
		if len(rows) == 0 {
			return 0, &wire.Error{Code: "42704", Message: fmt.Sprintf("type \"%s\" does not exist", strings.Join(opt.Parts, ".")),
				Position: x.position(opt.ValueStart)}
		}
	}
	return 0, &wire.Error{Code: "22023", Message: "sequence type must be smallint, integer, or bigint"}
}

// owningColumn reads the option OWNED BY. The column is recorded; the upstream does not know of the sequence.
func (x *session) owningColumn(opt *sqlrewrite.Option) (string, error) {
	switch {
	case opt.None:
		return "", nil
	case len(opt.Parts) < 2:
		return "", &wire.Error{Code: "42601", Message: "invalid OWNED BY option", Hint: "Specify OWNED BY table.column or OWNED BY NONE."}
	}
	table, column := opt.Parts[:len(opt.Parts)-1], opt.Parts[len(opt.Parts)-1]
	missing := &wire.Error{Code: "42P01", Message: fmt.Sprintf("relation \"%s\" does not exist", strings.Join(table, "."))}
	if x.srv.cfg.Standalone {
		missing.Hint = "Without an upstream there are no tables: write OWNED BY NONE."
		return "", missing
	}
	rows, err := x.ask(`SELECT EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = t.oid AND a.attname = $2::pg_catalog.name AND a.attnum > 0
		AND NOT a.attisdropped) FROM (SELECT pg_catalog.to_regclass($1)::pg_catalog.oid AS oid) t WHERE t.oid IS NOT NULL`, quoted(table), column)
	switch {
	case err != nil:
		return "", err
	case len(rows) == 0:
		return "", missing
	case rows[0][0] != "t":
		return "", &wire.Error{Code: "42703", Message: fmt.Sprintf("column \"%s\" of relation \"%s\" does not exist", column, table[len(table)-1])}
	}
	return quoted(opt.Parts), nil
}

// quoted writes a qualified name so that PostgreSQL reads it back.
func quoted(parts []string) string {
	q := make([]string, len(parts))
	for i, p := range parts {
		q[i] = `"` + strings.ReplaceAll(p, `"`, `""`) + `"`
	}
	return strings.Join(q, ".")
}

func dotted(n sqlrewrite.Name) string { return strings.Join(nameParts(n), ".") }

func nameParts(n sqlrewrite.Name) []string {
	parts := []string{n.Database, n.Schema, n.Name}
	for len(parts) > 1 && parts[0] == "" {
		parts = parts[1:]
	}
	return parts
}

// state reads a sequence's last value.
func (x *session) state(sequence *sequencer.Sequence) (sequencer.State, error) {
	if err := x.checkPending(sequence); err != nil {
		return sequencer.State{}, err
	}
	ctx := x.wait()
	defer x.waited()
	return sequence.State(ctx)
}
