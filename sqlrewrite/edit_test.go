package sqlrewrite

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestApply(t *testing.T) {
	tests := map[string]struct {
		text  string
		edits []Edit
		want  string
		// positions of the edited text, from 1, and where they were in the original
		positions map[int]int
	}{
		"nothing":             {"SELECT 1", nil, "SELECT 1", map[int]int{1: 1, 8: 8, 9: 9}},
		"longer":              {"a b c", []Edit{{2, 3, "BBB"}}, "a BBB c", map[int]int{1: 1, 2: 2, 3: 3, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6}},
		"shorter":             {"aa bbb c", []Edit{{3, 6, "B"}}, "aa B c", map[int]int{3: 3, 4: 4, 5: 7, 6: 8, 7: 9}},
		"any order":           {"abcd", []Edit{{3, 4, "DD"}, {0, 1, "AA"}}, "AAbcDD", map[int]int{1: 1, 2: 1, 3: 2, 4: 3, 5: 4, 6: 4, 7: 5}},
		"beside each other":   {"ab", []Edit{{0, 1, "12"}, {1, 2, "34"}}, "1234", map[int]int{1: 1, 2: 1, 3: 2, 4: 2, 5: 3}},
		"insertion":           {"ab", []Edit{{1, 1, "xy"}}, "axyb", map[int]int{1: 1, 2: 2, 3: 2, 4: 2}},
		"removal":             {"abc", []Edit{{1, 2, ""}}, "ac", map[int]int{1: 1, 2: 3, 3: 4}},
		"characters in bytes": {"ä ö ü", []Edit{{3, 5, "éé"}}, "ä éé ü", map[int]int{2: 2, 3: 3, 4: 3, 5: 4, 6: 5}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, positions := Apply(test.text, test.edits)
			if got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
			for edited, original := range test.positions {
				if p := positions.Original(edited); p != original {
					t.Errorf("position %d was %d, want %d", edited, p, original)
				}
			}
		})
	}
}

// TestReplacements checks the texts that PostgreSQL gives the same names, types and shape as the originals.
func TestReplacements(t *testing.T) {
	tests := map[string]struct{ text, want string }{
		"column":          {"SELECT nextval('s')", "SELECT (SELECT v AS nextval)"},
		"cast":            {"SELECT setval('s', 1)::int", "SELECT (SELECT v AS setval)::int"},
		"alias":           {"SELECT lastval() AS x", "SELECT (v) AS x"},
		"expression":      {"INSERT INTO t VALUES (-nextval('s'))", "INSERT INTO t VALUES (-(v))"},
		"function":        {"SELECT * FROM currval('s')", "SELECT * FROM pg_catalog.int8larger(v, '-9223372036854775808'::pg_catalog.int8) AS currval"},
		"function, alias": {"SELECT * FROM nextval('s') x(y)", "SELECT * FROM pg_catalog.int8larger(v, '-9223372036854775808'::pg_catalog.int8) x(y)"},
		"relation":        {"SELECT * FROM s", `SELECT * FROM (SELECT l AS last_value, 0 AS log_cnt, c AS is_called) AS "s"`},
		"quoted relation": {`SELECT * FROM a."S""s" WHERE true`, `SELECT * FROM (SELECT l AS last_value, 0 AS log_cnt, c AS is_called) AS "S""s" WHERE true`},
		"relation, alias": {"SELECT * FROM ONLY (s) AS x", "SELECT * FROM (SELECT l AS last_value, 0 AS log_cnt, c AS is_called) AS x"},
		"table":           {"TABLE s LIMIT 1", `SELECT * FROM (SELECT l AS last_value, 0 AS log_cnt, c AS is_called) AS "s" LIMIT 1`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			plan, err := Parse(test.text)
			if err != nil {
				t.Fatal(err)
			}
			if got, _ := Apply(test.text, replaceAll(plan)); got != test.want {
				t.Errorf("%s\nwant\n%s", got, test.want)
			}
		})
	}
}

// replaceAll replaces the calls and reads of a plan that can be.
func replaceAll(plan *Plan) (edits []Edit) {
	for _, st := range plan.Statements {
		for i, c := range st.Calls {
			nested := false
			for _, outer := range st.Calls[i+1:] {
				nested = nested || outer.Start <= c.Start && c.End <= outer.End
			}
			if c.Evaluation == Once && !nested {
				edits = append(edits, Edit{c.Start, c.End, c.Replacement("v")})
			}
		}
		for _, r := range st.Reads {
			edits = append(edits, Edit{r.Start, r.End, r.Replacement("l", "0", "c")})
		}
	}
	return edits
}

func FuzzApply(f *testing.F) {
	f.Add("SELECT nextval('s')", 7, 19, 0, "$1", "x")
	f.Add("äöü", 2, 4, 2, "é", "")
	f.Fuzz(func(t *testing.T, text string, start, end, gap int, first, second string) {
		if !utf8.ValidString(text) || !utf8.ValidString(first) || !utf8.ValidString(second) {
			return
		}
		// Two edits at the starts of characters.
		at := func(n int) int {
			n = min(max(n, 0), len(text))
			for n < len(text) && !utf8.RuneStart(text[n]) {
				n++
			}
			return n
		}
		a := Edit{Start: at(start), Text: first}
		a.End = max(at(end), a.Start)
		b := Edit{Start: max(at(end+gap), a.End), End: len(text), Text: second}
		edits := []Edit{b, a}
		if a.Start == b.End {
			edits = []Edit{a, b} // insertions at one place
		}
		edited, positions := Apply(text, edits)
		if want := text[:a.Start] + first + text[a.End:b.Start] + second; edited != want {
			t.Fatalf("%q, want %q", edited, want)
		}
		// What was kept is found again where it was.
		original := []rune(text)
		changed := len([]rune(text[:a.Start]))
		kept := len([]rune(text[:a.Start] + first))
		for i, r := range []rune(edited) {
			p := positions.Original(i+1) - 1
			inside := i >= changed && i < kept || i >= len([]rune(edited))-len([]rune(second))
			if !inside && original[p] != r {
				t.Fatalf("character %d of %q was %d of %q", i, edited, p, text)
			}
			if p < 0 || p > len(original) {
				t.Fatalf("position %d is outside of %q", p, text)
			}
		}
	})
}

func BenchmarkApply(b *testing.B) {
	text := "INSERT INTO t VALUES (nextval('s'), 'x')" + strings.Repeat(", (nextval('s'), 'x')", 100)
	plan, err := Parse(text)
	if err != nil {
		b.Fatal(err)
	}
	edits := replaceAll(plan)
	b.ReportAllocs()
	for b.Loop() {
		Apply(text, edits)
	}
}
