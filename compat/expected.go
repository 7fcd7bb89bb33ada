package main

import (
	"fmt"
	"regexp"
	"strings"
)

// expectation is a difference that has to be.
type expectation struct {
	line   int
	reason string
	values bool   // only numbers of rows differ, one to one in a run of the script
	script string // base name of the file
	flow   string // empty: any
	text   string // of the statement, or the entry's id; white space counts as one blank
	prefix bool   // the text goes on

	ran, differed bool
}

// parseExpected reads a list of expected differences: lines `reason: WHY`, or `values: WHY` where nothing but the numbers in
// rows may differ and each stands for the same other one in all of a run, each followed by lines
//
//	SCRIPT: STATEMENT
//	SCRIPT [FLOW]: STATEMENT ...
//
// where three dots at the end stand for the rest of a statement. Empty lines and those that begin with # say nothing.
func parseExpected(name, text string) ([]*expectation, error) {
	var all []*expectation
	reason, values := "", false
	for i, line := range strings.Split(text, "\n") {
		line = strings.Join(strings.Fields(line), " ")
		if line == "" || line[0] == '#' {
			continue
		}
		script, statement, ok := strings.Cut(line, ": ")
		if ok && (script == "reason" || script == "values") {
			reason, values = statement, script == "values"
			continue
		}
		if !ok || reason == "" {
			return nil, fmt.Errorf("%s:%d: neither a reason nor a statement: %s", name, i+1, line)
		}
		x := &expectation{line: i + 1, reason: reason, values: values}
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

// renaming tells which number of nextvald's stands for which of PostgreSQL's.
type renaming struct{ there, back map[string]string }

func newRenaming() renaming { return renaming{map[string]string{}, map[string]string{}} }

var numbers = regexp.MustCompile(`-?\d+`)

// same reports whether two answers are the same but for numbers in rows, each of which stands for the same other one as
// before.
func (r renaming) same(want, got []string) bool {
	if len(want) != len(got) {
		return false
	}
	for i := range want {
		if want[i] == got[i] {
			continue
		}
		if !strings.HasPrefix(want[i], "row ") || numbers.ReplaceAllString(want[i], "#") != numbers.ReplaceAllString(got[i], "#") {
			return false
		}
		there := numbers.FindAllString(got[i], -1)
		for j, n := range numbers.FindAllString(want[i], -1) {
			m, known := r.there[n]
			w, used := r.back[there[j]]
			if known && m != there[j] || used && w != n {
				return false
			}
			r.there[n], r.back[there[j]] = there[j], n
		}
	}
	return true
}
