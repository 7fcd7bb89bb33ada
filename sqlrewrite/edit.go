package sqlrewrite

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Edit replaces the bytes [Start, End) of a text.
type Edit struct {
	Start, End int
	Text       string
}

// Positions maps character positions of an edited text back to the original. The zero value maps each to itself.
type Positions struct {
	spans []span
}

// span is one edit, in characters from 0.
type span struct {
	edited, editedEnd     int
	original, originalEnd int
}

// Apply carries out edits, which may come in any order; insertions at one place keep theirs. What lies inside another edit
// is left out.
func Apply(text string, edits []Edit) (string, Positions) {
	edits = slices.Clone(edits)
	slices.SortStableFunc(edits, func(a, b Edit) int {
		switch {
		case a.Start != b.Start:
			return a.Start - b.Start
		case a.Start == a.End || b.Start == b.End:
			return a.End - b.End
		}
		return b.End - a.End
	})
	var (
		b               strings.Builder
		positions       Positions
		at              int // bytes of text that are done
		original, after int // the same in characters, here and there
	)
	for _, e := range edits {
		if e.Start < at {
			continue
		}
		kept := text[at:e.Start]
		b.WriteString(kept)
		b.WriteString(e.Text)
		n := utf8.RuneCountInString(kept)
		original, after = original+n, after+n
		s := span{edited: after, original: original}
		original += utf8.RuneCountInString(text[e.Start:e.End])
		after += utf8.RuneCountInString(e.Text)
		s.editedEnd, s.originalEnd = after, original
		positions.spans = append(positions.spans, s)
		at = e.End
	}
	b.WriteString(text[at:])
	return b.String(), positions
}

// Original maps a character position of the edited text, from 1, to the original text. A position inside a replacement
// is that of what was replaced.
func (p Positions) Original(pos int) int {
	at := pos - 1
	shift := 0
	for _, s := range p.spans {
		if at < s.edited {
			break
		}
		if at < s.editedEnd {
			return s.original + 1
		}
		shift = s.originalEnd - s.editedEnd
	}
	return at + shift + 1
}

// Replacement is what to put in the place of the call. value is an expression of type int8, which is used once. Names
// of columns, the shape of FROM and types stay as the call made them.
func (c *Call) Replacement(value string) string {
	name := functionNames[c.Function]
	switch c.Place {
	case PlaceColumn:
		return "(SELECT " + value + " AS " + name + ")"
	case PlaceFrom:
		return identity(value)
	case PlaceFromBare:
		return identity(value) + " AS " + name
	default:
		return "(" + value + ")"
	}
}

// identity is a call of a function that returns value, the larger of it and the smallest int8.
func identity(value string) string {
	return "pg_catalog.int8larger(" + value + ", '-9223372036854775808'::pg_catalog.int8)"
}

var functionNames = [...]string{Nextval: "nextval", Currval: "currval", Lastval: "lastval", Setval: "setval"}

// Replacement is what to put in the place of the relation: a row of the sequence's columns.
func (r *Read) Replacement(lastValue, logCnt, isCalled string) string {
	return aliased("(SELECT "+lastValue+" AS last_value, "+logCnt+" AS log_cnt, "+isCalled+" AS is_called)", r.Name.Name, r.Alias, r.Table)
}

// logCntCalled is sequencer.LogCntCalled.
const logCntCalled = "32"

// Overlaid is what to put in the place of the relation where the upstream has the sequence: it resolves the name and checks
// the privilege as always. overlay is that of Catalog.Edits, and text that of the plan; system are those of Statement.System.
func (r *Read) Overlaid(text, overlay string, system []string) string {
	relation := text[r.Start:r.End]
	if r.Table {
		relation = strings.TrimLeft(relation[len("table"):], " \t\r\n\f\v")
	}
	const oid = "s.tableoid"
	return aliased("(SELECT "+over(oid, "last", "int8", "s.last_value", "last_value")+
		", CASE WHEN "+fieldOf("o.v", oid, "last", "text")+" IS NULL THEN s.log_cnt WHEN "+fieldOf("o.v", oid, "called", "bool")+
		" THEN "+logCntCalled+" ELSE 0 END AS log_cnt, "+
		over(oid, "called", "bool", "s.is_called", "is_called")+systemList(system)+
		" FROM "+relation+" AS s, (SELECT "+overlay+") AS o(v))", r.Name.Name, r.Alias, r.Table)
}

// systemList are system columns of s, to follow others.
func systemList(system []string) string {
	var b strings.Builder
	for _, column := range system {
		b.WriteString(", s." + column)
	}
	return b.String()
}
