package main

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"
)

// captured is a line of a corpus: a statement as a client sends it.
type captured struct {
	ID       string `json:"id"`
	Tool     string `json:"tool"`
	Protocol string `json:"protocol"` // simple, extended, either
	SQL      string `json:"sql"`
	Params   []struct {
		Value  *string `json:"value"` // binary ones in hex after 0x, or as a text
		Type   string  `json:"type"`  // a name, its OID in parentheses, or both
		Format string  `json:"format"`
	} `json:"params"`
	Multi bool   `json:"multi_statement"`
	Flow  string `json:"message_flow"` // where it was captured: P Parse, DS and DP Describe, B Bind, E Execute, S Sync, H Flush
}

// parseCorpus makes a script of each tool in a corpus. What the statements need is in a setup: sections that begin with a
// line `-- for TOOL; ID; ...` and are run before the first entry of the tool, or before the entry.
func parseCorpus(name, corpus, setup string) ([]script, error) {
	sections, err := parseSetup(name, setup)
	if err != nil {
		return nil, err
	}
	var scripts []script
	at := map[string]int{} // of a tool in scripts
	for n, line := range strings.Split(strings.TrimSpace(corpus), "\n") {
		var c captured
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, n+1, err)
		}
		e, err := c.entry()
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, n+1, err)
		}
		e.script, e.line = name, n+1
		i, known := at[c.Tool]
		if !known {
			i = len(scripts)
			at[c.Tool] = i
			scripts = append(scripts, script{name: name + " " + c.Tool, flows: []string{simple}, entries: sections.take(c.Tool)})
		}
		scripts[i].entries = append(append(scripts[i].entries, sections.take(c.ID)...), e)
	}
	for i, s := range scripts {
		if slices.ContainsFunc(s.entries, func(e entry) bool { return e.flowIn(simple) != e.flowIn(prepared) }) {
			scripts[i].flows = append(s.flows, prepared)
		}
	}
	for key := range sections {
		return nil, fmt.Errorf("%s: the setup has a section for %s, which is neither a tool nor an entry", name, key)
	}
	return scripts, nil
}

// setups are entries by the tool or entry that needs them.
type setups map[string][]entry

func (s setups) take(key string) []entry {
	entries := s[key]
	delete(s, key)
	return entries
}

var sectionLine = regexp.MustCompile(`(?m)^-- for (.*)$`)

func parseSetup(name, text string) (setups, error) {
	s := setups{}
	heads := sectionLine.FindAllStringSubmatchIndex(text, -1)
	for i, h := range heads {
		end := len(text)
		if i+1 < len(heads) {
			end = heads[i+1][0]
		}
		entries, notes, err := parseScript(name+" setup", text[h[1]:end])
		if err != nil || len(notes) > 0 {
			return nil, fmt.Errorf("%w %v", err, notes)
		}
		for i := range entries {
			entries[i].fixed = simple
			entries[i].line += strings.Count(text[:h[1]], "\n")
		}
		for _, key := range strings.Split(text[h[2]:h[3]], "; ") {
			s[key] = append(s[key], entries...)
		}
	}
	return s, nil
}

// entry is what a client sends.
func (c captured) entry() (entry, error) {
	e := entry{id: c.ID, sql: c.SQL, joined: c.Multi && c.Protocol != extended, bound: c.Protocol == extended}
	switch {
	case c.Flow == "":
	case strings.Contains(c.Flow, "H"):
		e.fixed = flushed
	case strings.Contains(c.Flow, "DS"):
		e.fixed = prepared
	default:
		e.fixed = extended
	}
	if c.Protocol == simple {
		e.fixed = simple
	}
	for _, p := range c.Params {
		oid, err := typeOID(p.Type)
		if err != nil {
			return e, err
		}
		q := param{oid: oid, binary: p.Format == "binary"}
		if p.Value != nil {
			if q.value, err = encode(*p.Value, oid, q.binary); err != nil {
				return e, err
			}
		}
		e.params = append(e.params, q)
	}
	// A COPY gets no data: the corpus has none.
	e.isCopy = copiesIn(e.sql)
	return e, nil
}

var (
	oidInParentheses = regexp.MustCompile(`\((\d+)\)$`)
	typeNames        = map[string]uint32{
		"int2": pgtype.Int2OID, "int4": pgtype.Int4OID, "int8": pgtype.Int8OID, "bool": pgtype.BoolOID, "regclass": regclassOID,
		"text[] (inferred)": pgtype.TextArrayOID,
	}
)

func typeOID(name string) (uint32, error) {
	if m := oidInParentheses.FindStringSubmatch(name); m != nil {
		oid, err := strconv.ParseUint(m[1], 10, 32)
		return uint32(oid), err
	}
	oid, ok := typeNames[name]
	if !ok {
		return 0, fmt.Errorf("unknown type %q", name)
	}
	return oid, nil
}

// encode is the value of a parameter on the wire.
func encode(value string, oid uint32, inBinary bool) ([]byte, error) {
	if !inBinary {
		return []byte(value), nil
	}
	if digits, ok := strings.CutPrefix(value, "0x"); ok {
		return hex.DecodeString(digits)
	}
	switch oid {
	case pgtype.TextOID:
		return []byte(value), nil
	case pgtype.TextArrayOID:
		var elements []string
		m := pgtype.NewMap()
		if err := m.Scan(oid, pgtype.TextFormatCode, []byte(value), &elements); err != nil {
			return nil, err
		}
		return m.Encode(oid, pgtype.BinaryFormatCode, elements, nil)
	case pgtype.Int4OID, regclassOID:
		n, err := strconv.ParseInt(value, 10, 32)
		return binary.BigEndian.AppendUint32(nil, uint32(n)), err
	case pgtype.Int8OID:
		n, err := strconv.ParseInt(value, 10, 64)
		return binary.BigEndian.AppendUint64(nil, uint64(n)), err
	}
	return nil, fmt.Errorf("no binary form of %q as type %d", value, oid)
}
