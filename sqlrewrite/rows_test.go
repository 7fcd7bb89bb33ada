package sqlrewrite

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRows: how calls are numbered by the rows of a query. n() numbers them.
func TestRows(t *testing.T) {
	const count = "SELECT pg_catalog.count(*) FROM (SELECT "
	for name, c := range map[string]struct{ text, edited, count string }{
		"relation":           {"SELECT nextval('s') FROM t", "SELECT (n() over ()) AS \"nextval\" FROM t", "FROM t"},
		"where":              {"SELECT nextval('s') AS id FROM t WHERE v IS DISTINCT FROM 'a'", "SELECT (n() over ()) AS id FROM t WHERE v IS DISTINCT FROM 'a'", "FROM t WHERE v IS DISTINCT FROM 'a'"},
		"expressions":        {"SELECT -nextval('s') + id, f(nextval('s')::text), ARRAY[ROW(nextval('s'))] FROM t", "SELECT -(n() over ()) + id, f((n() over ())::text), ARRAY[ROW((n() over ()))] FROM t", "FROM t"},
		"cast":               {"SELECT (nextval('s'))::int , a IS NOT DISTINCT FROM b FROM t", "SELECT ((n() over ()))::int AS \"nextval\" , a IS NOT DISTINCT FROM b FROM t", "FROM t"},
		"keywords":           {"SELECT nextval('s'), t.order, x AS from FROM a.from AS t", "SELECT (n() over ()) AS \"nextval\", t.order, x AS from FROM a.from AS t", "FROM a.from AS t"},
		"comments":           {"SELECT nextval('s') -- FROM x\n FROM /* ( */ t -- ;\n;", "SELECT (n() over ()) AS \"nextval\" -- FROM x\n FROM /* ( */ t -- ;\n;", "FROM /* ( */ t"},
		"join":               {"SELECT nextval('s') FROM a JOIN b ON conflict LEFT JOIN c USING (x) WHERE a.y > 1", "SELECT (n() over ()) AS \"nextval\" FROM a JOIN b ON conflict LEFT JOIN c USING (x) WHERE a.y > 1", "FROM a JOIN b ON conflict LEFT JOIN c USING (x) WHERE a.y > 1"},
		"into":               {"SELECT nextval('s') INTO n FROM t", "SELECT (n() over ()) AS \"nextval\" INTO n FROM t", "FROM t"},
		"insert":             {"INSERT INTO t (id) SELECT nextval('s') FROM u JOIN w ON true ON CONFLICT (id) DO NOTHING RETURNING id", "INSERT INTO t (id) SELECT (n() over ()) AS \"nextval\" FROM u JOIN w ON true ON CONFLICT (id) DO NOTHING RETURNING id", "FROM u JOIN w ON true"},
		"in parentheses":     {"INSERT INTO t ((SELECT nextval('s') FROM u)) RETURNING id", "INSERT INTO t ((SELECT (n() over ()) AS \"nextval\" FROM u)) RETURNING id", "FROM u"},
		"create table":       {"CREATE TABLE n AS SELECT nextval('s') FROM t WHERE a > '1'::timestamp WITH TIME ZONE WITH NO DATA", "CREATE TABLE n AS SELECT (n() over ()) AS \"nextval\" FROM t WHERE a > '1'::timestamp WITH TIME ZONE WITH NO DATA", "FROM t WHERE a > '1'::timestamp WITH TIME ZONE"},
		"ordinality":         {"SELECT nextval('s') FROM f() WITH ORDINALITY", "SELECT (n() over ()) AS \"nextval\" FROM f() WITH ORDINALITY", "FROM f() WITH ORDINALITY"},
		"copy":               {"COPY (SELECT nextval('s') FROM t) TO STDOUT", "COPY (SELECT (n() over ()) AS \"nextval\" FROM t) TO STDOUT", "FROM t"},
		"cursor":             {"DECLARE c CURSOR FOR SELECT nextval('s') FROM t", "DECLARE c CURSOR FOR SELECT (n() over ()) AS \"nextval\" FROM t", "FROM t"},
		"explain":            {"EXPLAIN ANALYZE SELECT nextval('s') FROM t", "EXPLAIN ANALYZE SELECT (n() over ()) AS \"nextval\" FROM t", "FROM t"},
		"with":               {"WITH a AS (SELECT 1) INSERT INTO t SELECT nextval('s') FROM a", "WITH a AS (SELECT 1) INSERT INTO t SELECT (n() over ()) AS \"nextval\" FROM a", "WITH a AS (SELECT 1) | FROM a"},
		"with of the query":  {"INSERT INTO t WITH RECURSIVE a (select1) AS (SELECT 1) SELECT nextval('s') FROM a", "INSERT INTO t WITH RECURSIVE a (select1) AS (SELECT 1) SELECT (n() over ()) AS \"nextval\" FROM a", "WITH RECURSIVE a (select1) AS (SELECT 1) | FROM a"},
		"parameters":         {"INSERT INTO t WITH a AS (SELECT $3) SELECT nextval('s'), $1 FROM a WHERE x = $5 OR y = $3", "INSERT INTO t WITH a AS (SELECT $3) SELECT (n() over ()) AS \"nextval\", $1 FROM a WHERE x = $5 OR y = $3", "WITH a AS (SELECT $1) | FROM a WHERE x = $2 OR y = $1"},
		"order":              {"SELECT nextval('s') FROM t ORDER BY a DESC, lower(b) USING <", "SELECT (n() over (ORDER BY a DESC, lower(b) USING <)) AS \"nextval\" FROM t ORDER BY a DESC, lower(b) USING <", "FROM t"},
		"order by a column":  {"SELECT nextval('s'), t.a FROM t ORDER BY a DESC NULLS LAST", "SELECT (n() over (ORDER BY (t.a) DESC NULLS LAST)) AS \"nextval\", t.a FROM t ORDER BY a DESC NULLS LAST", "FROM t"},
		"order by an alias":  {"SELECT nextval('s'), lower(b) AS k, upper(b) l FROM t ORDER BY k, l DESC", "SELECT (n() over (ORDER BY (lower(b)), (upper(b)) DESC)) AS \"nextval\", lower(b) AS k, upper(b) l FROM t ORDER BY k, l DESC", "FROM t"},
		"order by a number":  {"SELECT nextval('s'), a, * FROM t ORDER BY 2", "SELECT (n() over (ORDER BY (a))) AS \"nextval\", a, * FROM t ORDER BY 2", "FROM t"},
		"order of a star":    {"SELECT *, nextval('s') FROM t ORDER BY a", "SELECT *, (n() over (ORDER BY a)) AS \"nextval\" FROM t ORDER BY a", "FROM t"},
		"order by the value": {"SELECT nextval('s') AS id, a FROM t ORDER BY a, id", "SELECT (n() over ()) AS id, a FROM t ORDER BY a, id", "FROM t"},
	} {
		t.Run(name, func(t *testing.T) {
			st := plan(t, c.text)
			require.NotNil(t, st.Rows)
			var edits []Edit
			for i := range st.Calls {
				require.True(t, st.Calls[i].Rows)
				edits = append(edits, st.Calls[i].RowEdits("n() over ("+st.Rows.Window+")")...)
			}
			edited, _ := Apply(c.text, edits)
			require.Equal(t, c.edited, edited)
			with, from, ok := strings.Cut(c.count, " | ")
			if !ok {
				with, from = "", c.count
			}
			query, _, positions := st.Rows.Count()
			require.Equal(t, with+" "+count+from+") AS counted", query)
			if at := strings.Index(query, "FROM t"); at >= 0 {
				require.Equal(t, strings.LastIndex(c.text, "FROM t"), positions.Original(at+1)-1)
			}
			_, err := Parse(edited)
			require.NoError(t, err)
			_, err = Parse(query)
			require.NoError(t, err)
		})
	}
}

// TestRowsThatCannotBeNumbered: what is evaluated more or less often than once for each row, or in another order than a
// window can say.
func TestRowsThatCannotBeNumbered(t *testing.T) {
	for name, text := range map[string]string{
		"distinct":             "SELECT DISTINCT nextval('s') FROM t",
		"group":                "SELECT a, nextval('s') FROM t GROUP BY a",
		"aggregate":            "SELECT sum(nextval('s')) FROM t",
		"window":               "SELECT sum(nextval('s')) OVER () FROM t",
		"window clause":        "SELECT nextval('s'), rank() OVER w FROM t WINDOW w AS (ORDER BY a)",
		"window of its own":    "SELECT nextval('s'), rank() OVER (ORDER BY a) FROM t",
		"limit":                "SELECT nextval('s') FROM t LIMIT 3",
		"offset":               "SELECT nextval('s') FROM t OFFSET 3",
		"lock":                 "SELECT nextval('s') FROM t FOR UPDATE",
		"union":                "SELECT nextval('s') FROM t UNION ALL SELECT 1",
		"set-returning target": "SELECT nextval('s'), unnest(a) FROM t",
		"case":                 "SELECT CASE WHEN a THEN nextval('s') END FROM t",
		"else of a case":       "SELECT CASE WHEN a THEN 1 ELSE nextval('s') END FROM t",
		"coalesce":             "SELECT COALESCE(a, nextval('s')) FROM t",
		"and":                  "SELECT a AND nextval('s') > 1 FROM t",
		"between":              "SELECT nextval('s') BETWEEN 1 AND 3 FROM t",
		"expanded":             "SELECT (f(nextval('s'))).* FROM t",
		"where":                "SELECT 1 FROM t WHERE id = nextval('s')",
		"order":                "SELECT 1 FROM t ORDER BY nextval('s')",
		"subquery":             "SELECT (SELECT nextval('s') + t.a) FROM t",
		"subquery in FROM":     "SELECT * FROM (SELECT nextval('s') FROM t) x",
		"values":               "SELECT setval('s', a) FROM t",
		"parameter":            "SELECT nextval($1) FROM t",
		"update":               "UPDATE t SET id = nextval('s')",
		"returning":            "INSERT INTO t SELECT a FROM u RETURNING nextval('s')",
		"modifying with":       "WITH a AS (DELETE FROM t RETURNING *) INSERT INTO u SELECT nextval('s') FROM a",
		"sample":               "SELECT nextval('s') FROM t TABLESAMPLE BERNOULLI (10)",
		"sample in a subquery": "SELECT nextval('s') FROM (SELECT * FROM t TABLESAMPLE SYSTEM (10)) x",
		"two sorts":            "SELECT nextval('s') AS a, nextval('s') AS b FROM t ORDER BY a",
		"number of a star":     "SELECT *, nextval('s') FROM t ORDER BY 1",
		"name of a subquery":   "SELECT nextval('s'), (SELECT a AS v FROM u) FROM t ORDER BY v",
		"name of two targets":  "SELECT nextval('s'), a AS v, b AS v FROM t ORDER BY v",
		"materialized view":    "CREATE MATERIALIZED VIEW w AS SELECT nextval('s') FROM t",
		"prepared":             "PREPARE p AS SELECT nextval('s') FROM t",
		"another encoding":     "SELECT nextval('s') FROM t WHERE a = '\xe9'",
	} {
		t.Run(name, func(t *testing.T) {
			st := plan(t, text)
			require.Nil(t, st.Rows)
			for _, c := range st.Calls {
				require.False(t, c.Rows)
				require.NotEqual(t, Once, c.Evaluation)
			}
		})
	}
}

// TestNamesOfRows: the names that a server has to judge.
func TestNamesOfRows(t *testing.T) {
	st := plan(t, `WITH a AS (SELECT f1()) INSERT INTO x SELECT nextval('s'), f2(a.b), (c).d.e, 1 OPERATOR(o.@@) 2, (SELECT f5(1)), max(q) OVER (ORDER BY f6()) AS z
		FROM a, f3() y JOIN LATERAL (SELECT f4(y)) ON a.b @> 1 ORDER BY f7(g), 2`)
	require.NotNil(t, st.Rows)
	require.Equal(t, []string{"f2", "f1", "f3", "f4", "f7"}, st.Rows.Repeated)
	require.Equal(t, []string{"f2", "f6"}, st.Rows.Functions)
	require.Equal(t, []string{"b", "d", "e"}, st.Rows.Attributes)
	require.Equal(t, []string{"@@"}, st.Rows.Operators)
	at := strings.Index
	for _, repeated := range []string{"f1()", "a.b)", "f3()", "f7(g)"} {
		i := at(st.Rows.text, repeated)
		require.True(t, st.Rows.Touches(i, i+1), repeated)
	}
	for _, once := range []string{"nextval", "INSERT", "f6()", "1 OPERATOR", "ORDER BY f7"} {
		i := at(st.Rows.text, once)
		require.False(t, st.Rows.Touches(i, i+1), once)
	}
}

func TestSeries(t *testing.T) {
	for text, want := range map[string][]string{
		"SELECT nextval('s') FROM generate_series(1, 5) g":                       {"1", "5"},
		"SELECT nextval('s') FROM pg_catalog.generate_series(-1, 5000000000, 2)": {"-1", "5000000000", "2"},
		"SELECT nextval('s') FROM generate_series(1, $1::int4)":                  {"1", "$"},
		"SELECT nextval('s') FROM generate_series(1, 5) g WHERE g > 2":           nil,
		"SELECT nextval('s') FROM generate_series(1, 5), t":                      nil,
		"SELECT nextval('s') FROM generate_series('1', 5)":                       nil,
		"SELECT nextval('s') FROM generate_series(1.0, 5)":                       nil,
		"SELECT nextval('s') FROM other.generate_series(1, 5)":                   nil,
		"SELECT nextval('s') FROM generate_series(1, 5) WITH ORDINALITY":         nil,
	} {
		var got []string
		for _, a := range plan(t, text).Rows.Series {
			got = append(got, a.Value+strings.Repeat("$", a.Param))
		}
		require.Equal(t, want, got, text)
	}
}
