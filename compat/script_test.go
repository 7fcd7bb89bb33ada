package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseScript(t *testing.T) {
	for name, c := range map[string]struct {
		text  string
		want  []string
		notes int
	}{
		"empty":                        {"", nil, 0},
		"comments alone":               {"-- a;\n\n-- b", nil, 0},
		"statements":                   {"SELECT 1;\nSELECT\n 2 ; SELECT 3", []string{"SELECT 1", "SELECT\n 2", "SELECT 3"}, 0},
		"comments within":              {"SELECT 1 -- ;\n, 2; /* a; /* b; */ c; */ SELECT 3;", []string{"SELECT 1 -- ;\n, 2", "/* a; /* b; */ c; */ SELECT 3"}, 0},
		"strings":                      {`SELECT 'a;''b;', E'c\';', "d;"";"; SELECT 2`, []string{`SELECT 'a;''b;', E'c\';', "d;"";"`, "SELECT 2"}, 0},
		"a word that ends in e":        {`SELECT name'a\'; SELECT 2`, []string{`SELECT name'a\'`, "SELECT 2"}, 0},
		"dollars":                      {`DO $$a;$$; DO $x$;$$;$x$; SELECT $1;`, []string{`DO $$a;$$`, `DO $x$;$$;$x$`, "SELECT $1"}, 0},
		"parentheses":                  {"CREATE RULE r AS ON INSERT TO t DO (SELECT 1; SELECT 2); SELECT 3", []string{"CREATE RULE r AS ON INSERT TO t DO (SELECT 1; SELECT 2)", "SELECT 3"}, 0},
		"bodies":                       {"CREATE OR REPLACE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; SELECT 2; END; SELECT 3", []string{"CREATE OR REPLACE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; SELECT 2; END", "SELECT 3"}, 0},
		"a block":                      {"BEGIN; SELECT 1; END;", []string{"BEGIN", "SELECT 1", "END"}, 0},
		"joined":                       {`SELECT 1\; SELECT 2; SELECT 3;`, []string{"SELECT 1; SELECT 2;", "SELECT 3"}, 0},
		"psql's commands":              {"\\set x 1\nSELECT 1; \\echo a;b\n\\if :x\nSELECT 2 \\gx\n", []string{"SELECT 1", "SELECT 2"}, 4},
		"a command within a statement": {"SELECT\n\\echo a\n1;", []string{"SELECT\n1"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			entries, notes, err := parseScript("x.sql", c.text)
			require.NoError(t, err)
			var got []string
			for _, e := range entries {
				got = append(got, e.sql)
			}
			assert.Equal(t, c.want, got)
			assert.Len(t, notes, c.notes, "%q", notes)
		})
	}
	for name, text := range map[string]string{"string": "SELECT 'a;", "name": `SELECT "a;`, "dollars": "DO $$a;", "comment": "SELECT /* a;"} {
		t.Run("without an end: "+name, func(t *testing.T) {
			_, _, err := parseScript("x.sql", "SELECT 1;\n"+text)
			require.ErrorContains(t, err, "x.sql:2: ")
		})
	}
}

func TestEntries(t *testing.T) {
	entries, notes, err := parseScript("x.sql", `-- about copies
COPY t (a) FROM stdin;
1	x;
\N	y
\.

COPY t TO STDOUT;
SELECT $1, $2 \bind 'it''s' 2 \g
SELECT 1\; SELECT 2;
COPY t FROM '/tmp/x';
copy t from stdin with (format csv);
3,z`)
	require.NoError(t, err)
	require.Empty(t, notes)
	require.Len(t, entries, 6)
	assert.Equal(t, entry{script: "x.sql", line: 2, sql: "COPY t (a) FROM stdin", isCopy: true, copyData: "1\tx;\n\\N\ty\n"}, entries[0])
	assert.Equal(t, entry{script: "x.sql", line: 7, sql: "COPY t TO STDOUT"}, entries[1])
	assert.Equal(t, entry{script: "x.sql", line: 8, sql: "SELECT $1, $2", bound: true, params: []param{{value: []byte("it's")}, {value: []byte("2")}}}, entries[2])
	assert.Equal(t, extended, entries[2].flowIn(simple))
	assert.Equal(t, prepared, entries[2].flowIn(prepared))
	assert.Equal(t, entry{script: "x.sql", line: 9, sql: "SELECT 1; SELECT 2;", joined: true}, entries[3])
	assert.Equal(t, simple, entries[3].flowIn(prepared))
	assert.False(t, entries[4].isCopy)
	assert.Equal(t, "3,z", entries[5].copyData)
}

func FuzzParseScript(f *testing.F) {
	scripts, err := filepath.Glob("testdata/*.sql")
	require.NoError(f, err)
	for _, path := range scripts {
		text, err := os.ReadFile(path)
		require.NoError(f, err)
		f.Add(string(text))
	}
	f.Add("SELECT $1 \\bind 'a''b' c \\g\n\\x\n/* /* */ */ 'a'';' $a$;$a$ \\; x;")
	f.Fuzz(func(t *testing.T, text string) {
		entries, _, err := parseScript("x.sql", text)
		if err != nil {
			return
		}
		length := 0
		for _, e := range entries {
			length += len(e.sql) + len(e.copyData)
		}
		if length > len(text) {
			t.Fatalf("more comes out than goes in: %v", entries)
		}
	})
}
