package sqlrewrite

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The texts are in Latin-1.
func TestOtherEncodings(t *testing.T) {
	for name, c := range map[string]struct {
		text   string
		kind   Kind
		calls  []ArgumentKind // of their names
		reads  int
		answer bool
		edited string
	}{
		"beside a call": {"INSERT INTO t VALUES (nextval('s'), 'M\xfcller')", KindUse, []ArgumentKind{Constant}, 0, false,
			"INSERT INTO t VALUES (('7'), 'M\xfcller')"},
		"before a call":   {"SELECT '\xe9\xe8' AS \xe9, nextval('s') AS n", KindUse, []ArgumentKind{Constant}, 0, false, "SELECT '\xe9\xe8' AS \xe9, ('7') AS n"},
		"in a comment":    {"/* \xfc */ SELECT nextval('s')", KindUse, []ArgumentKind{Constant}, 0, true, "/* \xfc */ SELECT (SELECT '7' AS nextval)"},
		"in a name":       {"SELECT nextval('\xfcber')", KindUse, []ArgumentKind{Opaque}, 0, false, ""},
		"in a relation":   {"SELECT 1 FROM \xfcber, s", KindUse, nil, 1, false, ""},
		"in a definition": {"CREATE SEQUENCE \xfcber", KindPass, nil, 0, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			st := plan(t, c.text)
			require.Equal(t, c.kind, st.Kind)
			require.Equal(t, c.answer, st.Answer != nil)
			require.Len(t, st.Reads, c.reads)
			var edits []Edit
			var names []ArgumentKind
			for _, k := range st.Calls {
				names = append(names, k.Name.Kind)
				edits = append(edits, Edit{k.Start, k.End, k.Replacement("'7'")})
			}
			require.Equal(t, c.calls, names)
			if c.edited != "" {
				edited, _ := Apply(c.text, edits)
				require.Equal(t, c.edited, edited)
			}
		})
	}
	for name, text := range map[string]string{
		"half of a character may be a backslash": "SELECT E'\x95\\', nextval('s')",
		"zero byte":                              "SELECT 'a\x00b'",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(text)
			require.ErrorIs(t, err, errEncoding)
		})
	}
}
