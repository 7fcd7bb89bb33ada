package sqlrewrite

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestClasses(t *testing.T) {
	for name, c := range map[string]struct {
		text   string
		edited string // with 7 for every constant
	}{
		"cast":                    {"SELECT 's'::regclass", "SELECT '7'::regclass"},
		"CAST":                    {"SELECT CAST ('s' AS pg_catalog.regclass)", "SELECT CAST ('7' AS pg_catalog.regclass)"},
		"typed string":            {"SELECT regclass 's', 1", "SELECT regclass '7', 1"},
		"other strings":           {"SELECT E's'::regclass, $a$s$a$::regclass::oid", "SELECT '7'::regclass, '7'::regclass::oid"},
		"function":                {"SELECT 1 + to_regclass('s')::oid", "SELECT 1 + '7'::pg_catalog.regclass::oid"},
		"function names a column": {"SELECT to_regclass ( 's' ) FROM t", "SELECT '7'::pg_catalog.regclass AS to_regclass FROM t"},
		"function with a name":    {"SELECT to_regclass('s') AS x", "SELECT '7'::pg_catalog.regclass AS x"},
		"in conditions":           {"SELECT 1 FROM t WHERE o = 's'::regclass GROUP BY 'u'::regclass", "SELECT 1 FROM t WHERE o = '7'::regclass GROUP BY '7'::regclass"},
		"the name of a sequence":  {"SELECT nextval('s'::regclass), 'u'::regclass", "SELECT nextval('s'::regclass), '7'::regclass"},
		"a parameter":             {"SELECT $1::regclass", "SELECT $1::regclass"},
		"another type":            {"SELECT 's'::regtype", "SELECT 's'::regtype"},
		"another function":        {"SELECT a.to_regclass('s')", "SELECT a.to_regclass('s')"},
		"an array":                {"SELECT '{s}'::regclass[]", "SELECT '{s}'::regclass[]"},
		"a definition":            {"CREATE VIEW v AS SELECT 's'::regclass", "CREATE VIEW v AS SELECT 's'::regclass"},
	} {
		t.Run(name, func(t *testing.T) {
			st := plan(t, c.text)
			var edits []Edit
			for i := range st.Classes {
				edits = append(edits, Edit{Start: st.Classes[i].Start, End: st.Classes[i].End, Text: st.Classes[i].Replacement(7)})
			}
			text, _ := Apply(c.text, edits)
			require.Equal(t, c.edited, text)
		})
	}
}

func TestReservedWords(t *testing.T) {
	for word, want := range map[string]bool{"order": true, "int": true, "left": true, "s": false, "sequence": false, "a b": true} {
		require.Equal(t, want, IsReserved(word), word)
	}
}
