package sqlrewrite

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// place names are those of the tables below.
var (
	evaluationNames = [...]string{Once: "once", PerRow: "row", Later: "later"}
	placeNames      = [...]string{PlaceExpression: "", PlaceColumn: " column", PlaceFrom: " from", PlaceFromBare: " bare"}
)

// plan is the only statement of a text.
func plan(t *testing.T, text string) *Statement {
	t.Helper()
	plan, err := Parse(text)
	require.NoError(t, err)
	require.Len(t, plan.Statements, 1)
	return &plan.Statements[0]
}

// calls writes the calls of a statement as: function, evaluation and place, comma separated.
func calls(st *Statement) string {
	var list []string
	for _, c := range st.Calls {
		list = append(list, fmt.Sprintf("%s %s%s", functionNames[c.Function], evaluationNames[c.Evaluation], placeNames[c.Place]))
	}
	return strings.Join(list, ", ")
}

// Every evaluation was counted on a server: "once" are those that it carries out at most once.
func TestEvaluation(t *testing.T) {
	for name, c := range map[string]struct{ text, calls string }{
		"target":                          {"SELECT nextval('s')", "nextval once column"},
		"named target":                    {"SELECT nextval('s') AS id", "nextval once"},
		"cast target":                     {"SELECT nextval('s')::text::varchar", "nextval once column"},
		"target with collation":           {`SELECT nextval('s')::text COLLATE "C"`, "nextval once column"},
		"else of a case":                  {"SELECT CASE WHEN true THEN nextval('a') ELSE nextval('s') END", "nextval once, nextval once column"},
		"argument":                        {"SELECT abs(nextval('s')), nextval('s') + 1", "nextval once, nextval once"},
		"scalar subquery":                 {"SELECT (SELECT nextval('s'))", "nextval once column"},
		"array":                           {"SELECT ARRAY[nextval('s'), nextval('s')]", "nextval once, nextval once"},
		"other clauses":                   {"SELECT 1 WHERE nextval('s') > 0 LIMIT nextval('s') OFFSET nextval('s')", "nextval once, nextval once, nextval once"},
		"limit of rows":                   {"SELECT x FROM t LIMIT nextval('s')", "nextval once"},
		"set-returning target":            {"SELECT nextval('s'), generate_series(1, 3)", "nextval row column"},
		"set-returning order":             {"SELECT nextval('s') ORDER BY generate_series(1, 3)", "nextval row column"},
		"grouping sets":                   {"SELECT nextval('s') GROUP BY GROUPING SETS ((), ())", "nextval row column"},
		"group of one row":                {"SELECT nextval('s') GROUP BY 1", "nextval once column"},
		"from first":                      {"SELECT currval('s') FROM nextval('s') x", "nextval once from, currval once column"},
		"from a relation":                 {"SELECT nextval('s') FROM t", "nextval row column"},
		"from a relation, limited":        {"SELECT nextval('s') FROM t LIMIT 1", "nextval row column"},
		"from a series":                   {"SELECT nextval('s') FROM generate_series(1, 3)", "nextval row column"},
		"from one row":                    {"SELECT nextval('s') FROM (SELECT 1) x, (VALUES (1)) y, lastval() z", "lastval once from, nextval once column"},
		"from two rows":                   {"SELECT nextval('s') FROM (VALUES (1), (2)) x", "nextval row column"},
		"from an aggregate":               {"SELECT nextval('s') FROM (SELECT count(*) FROM t) x", "nextval once column"},
		"where of rows":                   {"SELECT 1 FROM t WHERE nextval('s') > 0", "nextval row"},
		"beside an aggregate":             {"SELECT count(*), nextval('s') FROM t", "nextval once column"},
		"of an aggregate":                 {"SELECT setval('s', max(id)) FROM t", "setval once column"},
		"inside an aggregate":             {"SELECT sum(id + nextval('s')) FROM t", "nextval row"},
		"beside a grouped aggregate":      {"SELECT max(id), nextval('s') FROM t GROUP BY x", "nextval row column"},
		"beside a window function":        {"SELECT count(*) OVER (), nextval('s') FROM t", "nextval row column"},
		"having":                          {"SELECT 1 FROM t HAVING nextval('s') > 0", "nextval once"},
		"subquery of each row":            {"SELECT (SELECT nextval('s')), id FROM t", "nextval once column"},
		"correlated subquery":             {"SELECT (SELECT nextval('s') + t.id) FROM t", "nextval row"},
		"subquery in a correlated one":    {"SELECT (SELECT (SELECT nextval('s')) + t.id) FROM t", "nextval once column"},
		"subquery with a relation":        {"SELECT (SELECT nextval('s') FROM t LIMIT 1)", "nextval row column"},
		"array of a subquery":             {"SELECT id FROM t WHERE id = ANY (ARRAY(SELECT nextval('s')))", "nextval once column"},
		"in a subquery":                   {"SELECT id FROM t WHERE id IN (SELECT nextval('s'))", "nextval row column"},
		"subquery in FROM":                {"SELECT * FROM (SELECT nextval('s')) x", "nextval once column"},
		"subquery in FROM, joined":        {"SELECT * FROM t LEFT JOIN (SELECT nextval('s') v) x ON true", "nextval once"},
		"lateral subquery":                {"SELECT * FROM t, LATERAL (SELECT nextval('s') + t.id) x", "nextval row"},
		"join condition":                  {"SELECT * FROM t JOIN u ON t.id = nextval('s')", "nextval row"},
		"values":                          {"VALUES (nextval('s')), (nextval('s'))", "nextval once, nextval once"},
		"union":                           {"SELECT nextval('s') UNION ALL SELECT nextval('s')", "nextval once column, nextval once column"},
		"function in FROM":                {"SELECT * FROM nextval('s')", "nextval once bare"},
		"function in FROM, with an alias": {"SELECT * FROM t, LATERAL nextval('s') AS x(y)", "nextval once from"},
		"function in FROM, numbered":      {"SELECT * FROM nextval('s') WITH ORDINALITY AS x(y, z)", "nextval once from"},
		"function in FROM, of a column":   {"SELECT * FROM t, setval('s', t.id)", "setval row bare"},
		"function in FROM, bare numbers":  {"SELECT * FROM nextval('s') WITH ORDINALITY", "nextval row from"},
		"functions in FROM":               {"SELECT * FROM ROWS FROM (nextval('a'), nextval('s')) AS x", "nextval row from, nextval row from"},
		"argument in FROM, of a column":   {"SELECT * FROM t, generate_series(t.id, nextval('s')) x", "nextval row"},
		"cast in FROM":                    {"SELECT * FROM CAST(nextval('s') AS int)", "nextval once column"},
		"argument in FROM":                {"SELECT * FROM generate_series(1, nextval('s'))", "nextval once"},
		"cte":                             {"WITH c AS (SELECT nextval('s') v) SELECT c.v, t.id FROM t, c", "nextval once"},
		"recursive cte":                   {"WITH RECURSIVE r AS (SELECT nextval('a') v UNION ALL SELECT nextval('s') FROM r) SELECT * FROM r", "nextval once, nextval row column"},
		"recursive cte, one round":        {"WITH RECURSIVE r AS (SELECT 1 UNION ALL SELECT 1 FROM r, (SELECT nextval('s')) x) SELECT * FROM r", "nextval row column"},
		"insert":                          {"INSERT INTO t VALUES (nextval('s'), 1) RETURNING nextval('s')", "nextval once, nextval once column"},
		"insert, two rows":                {"INSERT INTO t VALUES (nextval('s')), (nextval('s')) RETURNING nextval('s')", "nextval once, nextval once, nextval row column"},
		"insert of a set":                 {"INSERT INTO t VALUES (nextval('s'), generate_series(1, 3)) RETURNING nextval('s')", "nextval row, nextval row column"},
		"insert on conflict":              {"INSERT INTO t VALUES (1) ON CONFLICT (id) DO UPDATE SET v = nextval('s')", "nextval once"},
		"insert on conflict, two rows":    {"INSERT INTO t VALUES (1), (2) ON CONFLICT (id) DO UPDATE SET v = nextval('s')", "nextval row"},
		"insert of defaults":              {"INSERT INTO t DEFAULT VALUES RETURNING nextval('s')", "nextval once column"},
		"insert select":                   {"INSERT INTO t SELECT nextval('s')", "nextval once column"},
		"insert select from":              {"INSERT INTO t SELECT nextval('s') FROM u", "nextval row column"},
		"update":                          {"UPDATE t SET id = nextval('s')", "nextval row"},
		"update by a subquery":            {"UPDATE t SET id = (SELECT nextval('s'))", "nextval once column"},
		"update of two by a subquery":     {"UPDATE t SET (id, v) = (SELECT nextval('s'), 1)", "nextval once column"},
		"update of two by a row":          {"UPDATE t SET (id, v) = ROW (nextval('s'), 1)", "nextval row"},
		"delete":                          {"DELETE FROM t WHERE id = nextval('s')", "nextval row"},
		"merge, matched":                  {"MERGE INTO t USING (SELECT 1) s ON true WHEN MATCHED THEN UPDATE SET id = nextval('s')", "nextval row"},
		"merge, not matched":              {"MERGE INTO t USING (SELECT 1) s ON true WHEN NOT MATCHED THEN INSERT VALUES (nextval('s'))", "nextval once"},
		"merge of rows":                   {"MERGE INTO t USING u ON true WHEN NOT MATCHED THEN INSERT VALUES (nextval('s'))", "nextval row"},
		"data-modifying cte":              {"WITH c AS (INSERT INTO t VALUES (nextval('s')) RETURNING id) SELECT * FROM c, u", "nextval once"},
		"explain":                         {"EXPLAIN ANALYZE SELECT nextval('s')", "nextval once column"},
		"copy":                            {"COPY (SELECT nextval('s')) TO STDOUT", "nextval once column"},
		"copy from":                       {"COPY t FROM STDIN WHERE nextval('s') > 0", "nextval row"},
		"cursor":                          {"DECLARE c CURSOR FOR SELECT nextval('s')", "nextval once column"},
		"create table as":                 {"CREATE TABLE t AS SELECT nextval('s')", "nextval once column"},
		"create table as execute":         {"CREATE TABLE t AS EXECUTE p(nextval('s'))", "nextval once"},
		"execute":                         {"EXECUTE p(nextval('s'))", "nextval once"},
		"call":                            {"CALL p(nextval('s'))", "nextval once"},
		"materialized view":               {"CREATE MATERIALIZED VIEW v AS SELECT nextval('s')", "nextval later column"},
		"view":                            {"CREATE VIEW v AS SELECT nextval('s') FROM t", "nextval later column"},
		"rule":                            {"CREATE RULE r AS ON INSERT TO t DO INSERT INTO u VALUES (nextval('s'))", "nextval later"},
		"prepare":                         {"PREPARE p AS INSERT INTO t SELECT nextval('s') FROM u", "nextval later column"},
		"default":                         {"CREATE TABLE t (id bigint DEFAULT nextval('s'))", "nextval later"},
		"set default":                     {"ALTER TABLE t ALTER id SET DEFAULT nextval('s')", "nextval later"},
		"check":                           {"ALTER TABLE t ADD CHECK (nextval('s') > 0)", "nextval later"},
		"SQL body":                        {"CREATE FUNCTION f() RETURNS bigint BEGIN ATOMIC SELECT nextval('s'); END", "nextval later column"},
		"currval of rows":                 {"INSERT INTO t SELECT currval('s'), lastval() FROM u", "currval once column, lastval once column"},
		"currval of rows beside its own":  {"UPDATE t SET id = nextval('s'), v = currval('a.s'), w = lastval()", "nextval row, currval row, lastval row"},
		"currval of rows beside another":  {"UPDATE t SET id = nextval('a'), v = currval('s')", "nextval row, currval once"},
		"currval of rows beside any":      {"UPDATE t SET id = nextval(x), v = currval('s')", "nextval row, currval row"},
		"other schema":                    {"SELECT mine.nextval('s'), pg_catalog.nextval('s')", "nextval once column"},
		"other arguments":                 {"SELECT nextval(), nextval('s', 1), lastval(1), setval('s'), nextval(DISTINCT 's')", ""},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.calls, calls(plan(t, c.text)))
		})
	}
}

func TestReads(t *testing.T) {
	for name, c := range map[string]struct {
		text  string
		reads []Read
	}{
		"relation":     {"SELECT last_value FROM s", []Read{{Name: Name{Name: "s"}, Start: 23, End: 24}}},
		"table":        {"TABLE a.s", []Read{{Name: Name{Schema: "a", Name: "s"}, Start: 0, End: 9, Table: true}}},
		"table, only":  {"(TABLE ONLY s) LIMIT 1", []Read{{Name: Name{Name: "s"}, Start: 1, End: 13, Table: true}}},
		"alias":        {`SELECT * FROM d . a . "S" AS x`, []Read{{Name: Name{Database: "d", Schema: "a", Name: "S"}, Start: 14, End: 25, Alias: true}}},
		"only":         {"SELECT * FROM ONLY s x", []Read{{Name: Name{Name: "s"}, Start: 14, End: 20, Alias: true}}},
		"only, parens": {"SELECT * FROM ONLY (a.s)", []Read{{Name: Name{Schema: "a", Name: "s"}, Start: 14, End: 24}}},
		"star":         {"SELECT * FROM s * x", []Read{{Name: Name{Name: "s"}, Start: 14, End: 17, Alias: true}}},
		"join": {"SELECT * FROM s JOIN t USING (x)", []Read{{Name: Name{Name: "s"}, Start: 14, End: 15},
			{Name: Name{Name: "t"}, Start: 21, End: 22}}},
		"subquery":                 {"UPDATE t SET x = (SELECT last_value FROM s)", []Read{{Name: Name{Name: "s"}, Start: 41, End: 42}}},
		"cte":                      {"WITH s AS (SELECT 1) SELECT * FROM s", nil},
		"cte of its name":          {"WITH s AS (SELECT * FROM s) SELECT * FROM s", []Read{{Name: Name{Name: "s"}, Start: 25, End: 26}}},
		"recursive cte":            {"WITH RECURSIVE s AS (SELECT 1 UNION SELECT * FROM s) SELECT * FROM s", nil},
		"cte and schema":           {"WITH s AS (SELECT 1) SELECT * FROM a.s", []Read{{Name: Name{Schema: "a", Name: "s"}, Start: 35, End: 38}}},
		"cte of a subquery":        {"SELECT * FROM (WITH s AS (SELECT 1) SELECT * FROM s) x, s", []Read{{Name: Name{Name: "s"}, Start: 56, End: 57}}},
		"view":                     {"CREATE VIEW v AS SELECT last_value FROM s", nil},
		"target of a modification": {"DELETE FROM s", nil},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.reads, plan(t, c.text).Reads)
		})
	}
}
