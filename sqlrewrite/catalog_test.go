package sqlrewrite_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/sqlrewrite"
)

// catalogsOf writes the catalogs that a text reads: what they are, their text, and the only sequence asked for.
func catalogsOf(t *testing.T, text string) string {
	plan, err := sqlrewrite.Parse(text)
	require.NoError(t, err)
	names := []string{"pg_sequence", "pg_sequences", "sequences", "last_value", "parameters", "data"}
	var list []string
	for i := range plan.Statements {
		for _, k := range plan.Statements[i].Catalogs {
			s := fmt.Sprintf("%s %q", names[k.Kind], text[k.Start:k.End])
			switch k.Key.Kind {
			case sqlrewrite.Constant:
				s += " of " + k.Key.Value
			case sqlrewrite.Parameter:
				s += fmt.Sprintf(" of $%d", k.Key.Param)
			}
			list = append(list, s)
		}
	}
	return strings.Join(list, ", ")
}

func TestCatalogs(t *testing.T) {
	for text, want := range map[string]string{
		"SELECT 1 FROM t": "",
		"SELECT 'pg_sequences'::regclass, pg_sequences.a FROM t AS pg_sequences":         "",
		"SELECT * FROM sequences, public.pg_sequence, nosuch.pg_sequences":               "",
		"INSERT INTO pg_sequences VALUES (1)":                                            "",
		"CREATE VIEW v AS SELECT * FROM pg_sequences":                                    "",
		"CREATE FUNCTION f() RETURNS bigint RETURN pg_sequence_last_value('s')":          "",
		"WITH pg_sequences AS (SELECT 1) SELECT * FROM pg_sequences":                     "",
		"SELECT public.pg_sequence_last_value('s')":                                      "",
		"SELECT * FROM ROWS FROM (pg_sequence_last_value('s'))":                          "",
		"SELECT * FROM pg_sequences":                                                     `pg_sequences "pg_sequences"`,
		"TABLE pg_catalog . pg_sequence":                                                 `pg_sequence "TABLE pg_catalog . pg_sequence"`,
		"SELECT * FROM ONLY (pg_sequences) x, Information_Schema.SEQUENCES":              `pg_sequences "ONLY (pg_sequences)", sequences "Information_Schema.SEQUENCES"`,
		"WITH q AS (SELECT * FROM pg_sequences) SELECT * FROM q":                         `pg_sequences "pg_sequences"`,
		"PREPARE p AS SELECT * FROM pg_sequences":                                        `pg_sequences "pg_sequences"`,
		"EXPLAIN SELECT * FROM pg_sequences":                                             `pg_sequences "pg_sequences"`,
		"COPY (SELECT * FROM pg_sequences) TO STDOUT":                                    `pg_sequences "pg_sequences"`,
		"CREATE TABLE t AS SELECT * FROM pg_sequences":                                   `pg_sequences "pg_sequences"`,
		"UPDATE t SET a = 1 FROM pg_sequence WHERE EXISTS (SELECT 1 FROM pg_sequences)":  `pg_sequence "pg_sequence", pg_sequences "pg_sequences"`,
		"SELECT 1 FROM pg_sequence WHERE seqrelid = '16384'":                             `pg_sequence "pg_sequence" of 16384`,
		"SELECT 1 FROM pg_sequence q, s WHERE q.seqrelid = '16384'::oid AND seqcycle":    `pg_sequence "pg_sequence" of 16384`,
		"SELECT 1 FROM pg_sequence WHERE seqrelid = 'a.b'::regclass::oid":                `pg_sequence "pg_sequence" of a.b`,
		"SELECT 1 FROM pg_sequence WHERE seqrelid = $2":                                  `pg_sequence "pg_sequence" of $2`,
		"SELECT 1 FROM pg_sequence WHERE seqrelid = 16384 OR seqcycle":                   `pg_sequence "pg_sequence"`,
		"SELECT 1 FROM pg_sequence WHERE seqrelid > 16384":                               `pg_sequence "pg_sequence"`,
		"SELECT 1 FROM pg_sequence a, pg_sequence b WHERE a.seqrelid = 16384":            `pg_sequence "pg_sequence", pg_sequence "pg_sequence"`,
		"SELECT 1 FROM pg_sequence LEFT JOIN s ON true WHERE seqrelid = 16384":           `pg_sequence "pg_sequence"`,
		"SELECT 1 FROM pg_sequence WHERE 1 = (SELECT 1 FROM t WHERE seqrelid = 16384)":   `pg_sequence "pg_sequence"`,
		"SELECT pg_sequence_last_value('s')":                                             `last_value "pg_sequence_last_value('s')" of s`,
		"SELECT coalesce(pg_catalog.pg_sequence_last_value ( $1::regclass ), 0)":         `last_value "pg_catalog.pg_sequence_last_value ( $1::regclass )" of $1`,
		"SELECT ( pg_sequence_parameters(c.oid) ) . increment FROM c":                    `parameters "( pg_sequence_parameters(c.oid) ) . increment"`,
		"SELECT (pg_sequence_parameters(c.oid)).* FROM c":                                `parameters "(pg_sequence_parameters(c.oid)).*"`,
		"SELECT (a.b).c, pg_sequence_parameters(16384)":                                  `parameters "pg_sequence_parameters(16384)" of 16384`,
		"SELECT 1 FROM pg_catalog.pg_sequence, LATERAL pg_get_sequence_data(seqrelid) x": `pg_sequence "pg_catalog.pg_sequence", data "pg_get_sequence_data(seqrelid)"`,
		"SELECT pg_sequence_last_value((SELECT max(seqrelid) FROM pg_sequence)::oid)":    `last_value "pg_sequence_last_value((SELECT max(seqrelid) FROM pg_sequence)::oid)", pg_sequence "pg_sequence"`,
		"DELETE FROM t USING pg_sequences":                                               `pg_sequences "pg_sequences"`,
	} {
		assert.Equal(t, want, catalogsOf(t, text), text)
	}
}

// What a text becomes is a statement again, and what is left of the client's text stands where it stood.
func TestCatalogEdits(t *testing.T) {
	for _, text := range []string{
		"SELECT a FROM pg_sequences WHERE x", "SELECT tableoid, s.ctid FROM pg_sequence * s", "TABLE information_schema.sequences",
		"SELECT pg_sequence_last_value(pg_sequence_last_value(a)::oid) x", "SELECT pg_sequence_last_value(a)",
		"SELECT * FROM pg_sequence_last_value('a'), pg_sequence_last_value('b') AS b(c)",
		"SELECT * FROM pg_sequence_parameters(1), LATERAL pg_sequence_parameters(2) AS p(a, b, c)",
		"SELECT (pg_sequence_parameters(a)).*, (pg_sequence_parameters(a)).cycle_option, pg_sequence_parameters(a), (pg_sequence_parameters(a)).nosuch",
		"SELECT * FROM pg_get_sequence_data('a') x, pg_get_sequence_data('b')",
	} {
		plan, err := sqlrewrite.Parse(text)
		require.NoError(t, err)
		var edits []sqlrewrite.Edit
		for _, k := range plan.Statements[0].Catalogs {
			edits = append(edits, k.Edits(text, "$1::pg_catalog.jsonb", plan.Statements[0].System)...)
		}
		require.NotEmpty(t, edits)
		edited, positions := sqlrewrite.Apply(text, edits)
		after, err := sqlrewrite.Parse(edited)
		require.NoError(t, err, edited)
		require.Len(t, after.Statements, 1)
		require.Equal(t, 1, after.Params)
		for _, word := range []string{"SELECT", "x", "WHERE"} {
			if at := strings.LastIndex(text, word); at >= 0 && strings.HasSuffix(edited, text[at:]) {
				assert.Equal(t, at+1, positions.Original(strings.LastIndex(edited, text[at:])+1), text)
			}
		}
	}
}

func TestExecute(t *testing.T) {
	for text, want := range map[string]string{
		"EXECUTE p":                                "EXECUTE p(v)",
		"EXECUTE p ( 1, f(2) ) ;":                  "EXECUTE p ( 1, f(2) , v) ;",
		"EXPLAIN ANALYZE EXECUTE \"P\"\"\"(1)":     "EXPLAIN ANALYZE EXECUTE \"P\"\"\"(1, v)",
		"CREATE TABLE execute AS EXECUTE execute":  "CREATE TABLE execute AS EXECUTE execute(v)",
		"CREATE TEMP TABLE t AS EXECUTE p(1)":      "CREATE TEMP TABLE t AS EXECUTE p(1, v)",
		"SELECT 1; EXECUTE p(')') -- EXECUTE p(1)": "SELECT 1; EXECUTE p(')', v) -- EXECUTE p(1)",
	} {
		plan, err := sqlrewrite.Parse(text)
		require.NoError(t, err)
		edited, _ := sqlrewrite.Apply(text, []sqlrewrite.Edit{plan.Statements[len(plan.Statements)-1].Execute.Edit("v", false)})
		assert.Equal(t, want, edited)
	}
	plan, err := sqlrewrite.Parse("EXECUTE p(1)")
	require.NoError(t, err)
	edited, _ := sqlrewrite.Apply("EXECUTE p(1)", []sqlrewrite.Edit{plan.Statements[0].Execute.Edit("v", true)})
	assert.Equal(t, "EXECUTE p(v)", edited)
	for text, params := range map[string]int{"PREPARE p AS SELECT 1": 0, "PREPARE p (int, text) AS SELECT 1": 2, "PREPARE p(int) AS SELECT $1, $3::int": 3} {
		plan, err := sqlrewrite.Parse(text)
		require.NoError(t, err)
		assert.Equal(t, &sqlrewrite.Prepare{Name: "p", Params: params}, plan.Statements[0].Prepare)
	}
}
