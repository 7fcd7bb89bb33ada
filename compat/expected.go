package main

import (
	"fmt"
	"strings"
)

// expectation is a difference that has to be.
type expectation struct {
	line   int
	reason string
	script string // base name of the file
	flow   string // empty: any
	text   string // of the statement, or the entry's id; white space counts as one blank
	prefix bool   // the text goes on

	ran, differed bool
}

// parseExpected reads a list of expected differences: lines `reason: WHY`, each followed by lines
//
//	SCRIPT: STATEMENT
//	SCRIPT [FLOW]: STATEMENT ...
//
// where three dots at the end stand for the rest of a statement. Empty lines and those that begin with # say nothing.
func parseExpected(name, text string) ([]*expectation, error) {
	var all []*expectation
	reason := ""
	for i, line := range strings.Split(text, "\n") {
		line = strings.Join(strings.Fields(line), " ")
		if line == "" || line[0] == '#' {
			continue
		}
		script, statement, ok := strings.Cut(line, ": ")
		if ok && script == "reason" {
			reason = statement
			continue
		}
		if !ok || reason == "" {
			return nil, fmt.Errorf("%s:%d: neither a reason nor a statement: %s", name, i+1, line)
		}
		x := &expectation{line: i + 1, reason: reason}
		x.script, x.flow, _ = strings.Cut(strings.TrimSuffix(script, "]"), " [")
		x.text, x.prefix = strings.CutSuffix(statement, " ...")
		all = append(all, x)
	}
	return all, nil
}

// of reports whether the expectation is about an entry in a flow.
func (x *expectation) of(e entry, flow string) bool {
	name, ok := strings.CutPrefix(e.name(), x.script+": ")
	if !ok || x.flow != "" && x.flow != flow {
		return false
	}
	if x.prefix {
		return strings.HasPrefix(name, x.text)
	}
	return name == x.text
}
