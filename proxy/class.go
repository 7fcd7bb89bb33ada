package proxy

import (
	"strings"

	"github.com/nextvald/nextvald/proxy/answer"
	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sqlrewrite"
)

// class finds the sequence of ours that a constant of type regclass means; nil when there is none.
func (x *session) class(c *sqlrewrite.Class) (*sequencer.Sequence, error) {
	if !sqlrewrite.IsOID(c.Name.Value) {
		name, err := sqlrewrite.ParseQualifiedName(c.Name.Value)
		if err != nil || !x.known(name.Name) {
			return nil, nil
		}
	}
	sequence, _, err := x.argument(&c.Name, nil)
	if isMirrored(sequence) {
		return nil, err // the upstream knows it as well
	}
	return sequence, err
}

// classValue is the value of type regclass that means a sequence: it is written with its schema where the name alone means
// something else or nothing.
func (x *session) classValue(sequence *sequencer.Sequence) (any, error) {
	name := x.visible(sequence)
	bare, err := x.resolve(sqlrewrite.Name{Name: name.Name})
	if err != nil {
		return nil, err
	}
	text := quotedIdentifier(name.Name)
	if bare != sequence {
		text = quotedIdentifier(name.Schema) + "." + text
	}
	return answer.Regclass{OID: sequence.OID(), Text: text}, nil
}

// quotedIdentifier is a name as PostgreSQL writes it, in quotes where it needs them.
func quotedIdentifier(name string) string {
	plain := name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == "" && (name[0] < '0' || name[0] > '9') &&
		!sqlrewrite.IsReserved(name)
	if plain {
		return name
	}
	return quoted([]string{name})
}

// classEdits replaces the constants that are ours by OIDs.
func classEdits(u *use) (edits []sqlrewrite.Edit) {
	for i, sequence := range u.classes {
		if sequence != nil {
			c := &u.statement.Classes[i]
			edits = append(edits, sqlrewrite.Edit{Start: c.Start, End: c.End, Text: c.Replacement(sequence.OID())})
		}
	}
	return edits
}
