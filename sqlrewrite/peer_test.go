package sqlrewrite

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// written is an expression as text: a field by its name, a constant by its value.
func written(e *Expr) string {
	switch e.Kind {
	case ExprField:
		return e.Text
	case ExprConstant:
		if e.Null {
			return "NULL"
		}
		return fmt.Sprintf("%q", e.Text)
	case ExprParam:
		return fmt.Sprintf("$%d", e.Param)
	case ExprCast:
		return written(e.Arg) + "::" + typeName(e.Type)
	}
	return "?"
}

func TestPeerCalls(t *testing.T) {
	for name, c := range map[string]struct {
		text      string
		arguments string
		columns   string // name=expression
	}{
		"as documented": {
			"SELECT first, count, increment, incarnation, version, rev FROM nextvald.lease('public', 's', 100::bigint, 'me')",
			`["public"::text "s"::text "100"::bigint::bigint "me"::text]`,
			"first=first count=count increment=increment incarnation=incarnation version=version rev=rev",
		},
		"parameters": {
			"SELECT first FROM nextvald.lease($1, $2, $3::bigint, $4, $5, $6, $7)",
			"[$1::text $2::text $3::bigint::bigint $4::text $5::text $6::bigint $7::bigint]", "first=first",
		},
		"star":               {"SELECT * FROM nextvald.changes(0)", `["0"::bigint]`, "rev=rev names=names topics=topics"},
		"star of an alias":   {"SELECT c.* FROM nextvald.changes(0) AS c", `["0"::bigint]`, "rev=rev names=names topics=topics"},
		"renamed columns":    {"SELECT b, names FROM nextvald.changes(0) c(b)", `["0"::bigint]`, "b=rev names=names"},
		"named by its alias": {"SELECT x FROM nextvald.confirm('a', 1) x", `["a"::text "1"::bigint]`, "x=confirm"},
		"twice, and more":    {"SELECT rev::text, rev AS r, 7 FROM nextvald.changes(NULL)", "[NULL::bigint]", `rev=rev::text r=rev ?column?="7"`},
		"quoted":             {`SELECT "store" FROM "nextvald"."store"('get', '{}')`, `["get"::text "{}"::text]`, "store=store"},
		"negative":           {"SELECT rev FROM nextvald.changes(-5)", `["-5"::bigint]`, "rev=rev"},
	} {
		t.Run(name, func(t *testing.T) {
			st := plan(t, c.text)
			require.Equal(t, KindUse, st.Kind)
			require.NotNil(t, st.Peer)
			require.Empty(t, st.Peer.Missing)
			var arguments []string
			for i := range st.Peer.Arguments {
				arguments = append(arguments, written(&st.Peer.Arguments[i]))
			}
			require.Equal(t, c.arguments, fmt.Sprint(arguments))
			var columns []string
			for i := range st.Answer.Columns {
				columns = append(columns, st.Answer.Columns[i]+"="+written(&st.Answer.Rows[0][i]))
			}
			require.Equal(t, "["+c.columns+"]", fmt.Sprint(columns))
		})
	}
}

func TestPeerFunctionsThatDoNotExist(t *testing.T) {
	for text, want := range map[string]string{
		"SELECT * FROM nextvald.none()":                                  "nextvald.none()",
		"SELECT * FROM nextvald.lease('a', 'b')":                         "nextvald.lease(unknown, unknown)",
		"SELECT * FROM nextvald.lease('a', 'b', '1', 'd', 1)":            "nextvald.lease(unknown, unknown, unknown, unknown, integer)",
		"SELECT * FROM nextvald.changes(1.5)":                            "nextvald.changes(numeric)",
		"SELECT * FROM nextvald.changes(true, 1::int2, 'x'::name)":       "nextvald.changes(boolean, smallint, name)",
		"SELECT * FROM nextvald.confirm(9999999999, 1)":                  "nextvald.confirm(bigint, integer)",
		"SELECT 1 FROM nextvald.store('a'::varchar(3), 'b'::bpchar, $1)": "nextvald.store(character varying, character, unknown)",
	} {
		t.Run(text, func(t *testing.T) {
			st := plan(t, text)
			require.Equal(t, KindUse, st.Kind)
			require.Equal(t, want, st.Peer.Missing)
			require.Nil(t, st.Answer)
			require.Equal(t, "nextvald", text[st.Peer.Start:st.Peer.Start+len("nextvald")])
		})
	}
}

func TestNoPeerCalls(t *testing.T) {
	for _, text := range []string{
		"SELECT * FROM lease('a', 'b', 1, 'c')",
		"SELECT * FROM public.changes(1)",
		"SELECT nextvald.changes(1)",
		"SELECT * FROM nextvald.changes(1), t",
		"SELECT * FROM nextvald.changes(1) WHERE rev > 1",
		"SELECT max(rev) FROM nextvald.changes(1)",
		"SELECT none FROM nextvald.changes(1)",
		"SELECT * FROM nextvald.changes(1) WITH ORDINALITY",
		"SELECT * FROM nextvald.changes(random())",
		"SELECT * FROM nextvald.changes(nextval('s'))",
		"SELECT * FROM nextvald.changes",
		"INSERT INTO t SELECT * FROM nextvald.changes(1)",
		"EXPLAIN SELECT * FROM nextvald.changes(1)",
	} {
		t.Run(text, func(t *testing.T) { require.Nil(t, plan(t, text).Peer) })
	}
}
