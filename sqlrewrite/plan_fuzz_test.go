package sqlrewrite

import (
	"testing"

	pg_query "github.com/pganalyze/pg_query_go/v5"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// FuzzParse checks what a session relies on: ranges lie within the text and begin with what they are of, no call is
// missed, an edited text parses again, and Scan gave the hint without which it would not have been parsed.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"SELECT nextval('s'), currval($1), lastval() AS x, setval('s', nextval('t')) FROM nextval('u') y",
		"WITH RECURSIVE c AS (SELECT nextval('s') UNION SELECT 1 FROM c) INSERT INTO t SELECT * FROM c RETURNING lastval()",
		"INSERT INTO t VALUES (nextval('s'), 1), (2, DEFAULT) ON CONFLICT (a) DO UPDATE SET b = nextval('t') WHERE t.b IN (SELECT 1)",
		"SELECT s.last_value, (TABLE ONLY s), ARRAY(SELECT * FROM s *) FROM a.s, LATERAL (SELECT nextval('s') + s.log_cnt) x",
		"CREATE SEQUENCE IF NOT EXISTS a.s AS int INCREMENT -1 NO MINVALUE OWNED BY NONE; ALTER SEQUENCE s RESTART",
		"CREATE TABLE t (id serial PRIMARY KEY, b int GENERATED ALWAYS AS IDENTITY (SEQUENCE NAME s), UNIQUE (b, id))",
		"BEGIN READ ONLY; SAVEPOINT a; ROLLBACK TO a; COMMIT AND CHAIN; DEALLOCATE ALL; DISCARD SEQUENCES",
		"DO $$BEGIN PERFORM nextval('s'::regclass); END$$; PREPARE p AS SELECT nextval($1::text)",
		"UPDATE t SET (a, b) = (SELECT nextval('s'), 1), c = CASE WHEN d THEN nextval('s') END FROM (VALUES (1)) v",
		"MERGE INTO t USING s ON a = nextval('s') WHEN NOT MATCHED THEN INSERT VALUES (nextval('s'))",
		"SELECT * FROM ROWS FROM (nextval('s'), generate_series(1, 2)) WITH ORDINALITY, XMLTABLE('a' PASSING b COLUMNS c int)",
		"EXPLAIN (ANALYZE off) EXECUTE p(nextval('s')); CALL p(nextval('s'), out => 1); COPY (TABLE s) TO STDOUT",
		"WITH a AS (SELECT $2) INSERT INTO t SELECT nextval('s') + 1, lower(b) AS k FROM a WHERE c IS DISTINCT FROM $1 ORDER BY k DESC, 2 ON CONFLICT DO NOTHING",
		"SELECT U&\"nextv\\0061l\"('s'), pg_catalog . \"currval\" /* ( */ ($a$s$a$::varchar(1)) -- é",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 2000 {
			return
		}
		plan, err := Parse(text)
		if err != nil {
			return
		}
		at := make(map[int]bool) // where calls begin
		for i, st := range plan.Statements {
			inside(t, plan, 0, len(text), st.Start, st.End)
			if i > 0 && st.Start < plan.Statements[i-1].End {
				t.Fatalf("statement %d begins within the one before", i)
			}
			for _, c := range st.Calls {
				at[c.Start] = true
				inside(t, plan, st.Start, st.End, c.Start, c.End)
				if c.Body {
					continue
				}
				if end := text[c.End-1]; end != ')' {
					t.Fatalf("call %q", text[c.Start:c.End])
				}
				for _, a := range []Argument{c.Name, c.Value, c.IsCalled} {
					if a.End > 0 {
						inside(t, plan, c.Start, c.End-1, a.Start, a.End)
					}
				}
			}
			for _, r := range st.Reads {
				inside(t, plan, st.Start, st.End, r.Start, r.End)
			}
			if a := st.Answer; a != nil {
				for _, row := range a.Rows {
					if len(row) != len(a.Columns) {
						t.Fatalf("%d columns, %d values", len(a.Columns), len(row))
					}
				}
			}
			if len(st.Calls) > 0 && Scan(text, nil)&HasCall == 0 {
				t.Fatal("Scan gives no HasCall")
			}
			if len(st.Creates) > 0 && Scan(text, nil)&HasCreate == 0 {
				t.Fatal("Scan gives no HasCreate")
			}
		}
		read, err := readable(text)
		if err != nil {
			t.Fatal(err)
		}
		tree, err := parseTree(read)
		if err != nil {
			t.Fatal(err)
		}
		everyCall(tree.ProtoReflect(), func(n *pg_query.FuncCall) {
			if _, ok := sequenceFunction(n); ok && !at[int(n.Location)] {
				t.Fatalf("the call at %d is missed", n.Location)
			}
		})
		edits := replaceAll(plan)
		for i := range plan.Statements {
			st := &plan.Statements[i]
			if st.Rows == nil {
				continue
			}
			for k := range st.Calls {
				if c := &st.Calls[k]; c.Rows {
					edits = append(edits, c.RowEdits("n() OVER ("+st.Rows.Window+")")...)
				}
			}
			count, _, _ := st.Rows.Count()
			if counted, err := Parse(count); err != nil || len(counted.Statements) != 1 {
				t.Fatalf("counted by %q: %v", count, err)
			}
		}
		edited, _ := Apply(text, edits)
		if _, err := Parse(edited); err != nil {
			t.Fatalf("edited to %q: %v", edited, err)
		}
	})
}

// inside fails unless [start, end) is a range within [from, to).
func inside(t *testing.T, plan *Plan, from, to, start, end int) {
	t.Helper()
	if start < from || end < start || end > to {
		t.Fatalf("range [%d, %d) of %q is outside of [%d, %d)", start, end, plan.Text, from, to)
	}
}

func everyCall(m protoreflect.Message, f func(*pg_query.FuncCall)) {
	if n, ok := m.Interface().(*pg_query.FuncCall); ok {
		f(n)
	}
	children(m, func(c protoreflect.Message) { everyCall(c, f) })
}
