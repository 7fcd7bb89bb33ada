package sqlrewrite

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// knownNames are the sequences that the tests of Scan know.
var knownNames = map[string]bool{
	"orders_seq": true, "Orders Seq": true, "my$seq": true, `a "b"`: true, strings.Repeat("x", longestName): true,
}

func isKnown(word string) bool { return knownNames[word] }

func TestScan(t *testing.T) {
	for name, c := range map[string]struct {
		text   string
		traits Traits
	}{
		"nothing":                       {"SELECT 1 FROM orders WHERE nextvalue = 3", 0},
		"empty":                         {"", 0},
		"call":                          {"SELECT nextval('s')", HasCall},
		"call in upper case":            {"SELECT NEXTVAL('s')", HasCall},
		"call in a dollar quote":        {"SELECT $$nextval('s')$$", HasCall},
		"call after a dollar tag":       {"SELECT $a$setval('s', 1)$a$", HasCall},
		"call in a comment":             {"SELECT 1 /* lastval */", HasCall},
		"call as a quoted name":         {`SELECT "currval"('s')`, HasCall},
		"escaped identifier":            {`SELECT U&"\006eextval"('s')`, HasCall},
		"escaped, of no concern":        {`SELECT 1 AS U&"d\0061t\+000061", 2 AS u&"a\\""b"`, 0},
		"escaped, no escape":            {`SELECT U&"nextval"('s')`, HasCall},
		"escaped, in six digits":        {`SELECT U&"\+00006eextval"('s')`, HasCall},
		"escaped otherwise":             {`SELECT U&"!006eextval" UESCAPE '!' ('s')`, HasCall},
		"escaped otherwise, no concern": {`SELECT 1 AS U&"!006e\0061" uescape'!'`, 0},
		"escaped, behind a comment":     {"SELECT U&\"x\" -- y\nUESCAPE 'x'", HasCall},
		"escaped, half a surrogate":     {`SELECT 1 AS U&"\d83d\de00"`, HasCall},
		"escaped, a sequence":           {`SELECT * FROM U&"orders\005fseq"`, HasKnownName},
		"escaped, a catalog":            {`SELECT * FROM U&"pg\005fsequence"`, HasCatalog},
		"escaped identifier, lower u":   {`SELECT u&"l\0061stval"()`, HasCall},
		"part of a word":                {"SELECT my_nextval('s'), nextval_2, xcreate", 0},
		"sequence":                      {"ALTER SEQUENCE s RESTART", HasSequenceDDL | HasSession | HasCreate | HasMoves},
		"known name":                    {"TABLE orders_seq", HasKnownName},
		"known name in upper case":      {"TABLE ORDERS_SEQ", HasKnownName},
		"known name with blanks":        {`TABLE "Orders Seq"`, HasKnownName},
		"known name with a dollar":      {"TABLE my$seq", HasKnownName},
		"known name in a string":        {"SELECT '\"Orders Seq\"'::regclass", HasKnownName},
		"known name, too long":          {"TABLE " + strings.Repeat("x", 70), HasKnownName},
		"known name, too long, quoted":  {`TABLE "` + strings.Repeat("x", 70) + `"`, HasKnownName},
		"known name, too long, upper":   {"TABLE " + strings.Repeat("X", 70), HasKnownName},
		"quote within a quoted name":    {`TABLE "a ""b"""`, HasKnownName},
		"JSON":                          {`SELECT '{"a": "", "b": ""}'`, 0},
		"create":                        {"create table t()", HasCreate},
		"select into":                   {"SELECT 1 INTO t", HasCreate},
		"select into after a string":    {"SELECT $$a$$INTO t", HasCreate},
		"insert into":                   {"INSERT INTO t VALUES (1)", 0},
		"insert into and select into":   {"INSERT INTO t VALUES (1); SELECT 1 INTO u", HasCreate},
		"insert in a string, into":      {"SELECT 'insert' INTO t", HasCreate},
		"merge, insert, select into":    {"MERGE INTO t USING u ON true WHEN NOT MATCHED THEN INSERT VALUES (1); SELECT 1 INTO v", HasCreate},
		"insert into on two lines":      {"INSERT\n\tINTO t VALUES (1)", 0},
		"merge into":                    {"MERGE INTO t USING u ON true WHEN NOT MATCHED THEN INSERT VALUES (1)", 0},
		"rename":                        {"ALTER TABLE t RENAME TO u", HasCreate | HasSession | HasMoves},
		"serial column":                 {"ALTER TABLE t ADD COLUMN id serial", HasCreate | HasSession | HasMoves},
		"import":                        {"IMPORT FOREIGN SCHEMA a FROM SERVER b INTO c", HasCreate | HasSession},
		"begin":                         {"BEGIN READ ONLY", HasTransaction},
		"begin after a comment":         {"/* ping */ -- x\nBEGIN", HasTransaction},
		"begin after nested comments":   {"/* a /* b */ c */ begin", HasTransaction},
		"begin after another statement": {"SELECT 1; Begin", HasTransaction},
		"end of a case":                 {"SELECT CASE WHEN a THEN 1 END, -1 - 2 / 3", 0},
		"rollback":                      {"ROLLBACK TO a", HasTransaction | HasSession},
		"deallocate":                    {"DEALLOCATE ALL", HasDeallocate},
		"discard":                       {"DISCARD ALL", HasDeallocate | HasSession},
		"set":                           {"SET search_path = a", HasSession | HasReadOnly},
		"set of update":                 {"UPDATE t SET a = 1", 0},
		"do":                            {"DO 'x'", HasSession | HasReadOnly | HasMoves},
		"do of on conflict":             {"INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING", 0},
		"set_config":                    {"SELECT set_config('search_path', 'a', true)", HasSession | HasReadOnly},
		"parameters and numbers":        {"SELECT $1, 12, 1e5", 0},
		"not UTF-8":                     {"SELECT '\xff\xfe', nextval('s')", HasCall},
		"unfinished comment":            {"/* begin", HasTransaction},
		"unfinished quotes":             {`"nextval`, HasCall},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.traits, Scan(c.text, isKnown))
		})
	}
	require.Zero(t, Scan("TABLE orders_seq", nil))
}

func TestScanAllocatesNothing(t *testing.T) {
	text := `SELECT "Id", Name INTO U FROM Orders WHERE id = $1 AND note LIKE '%NEXTVAL%'; COMMIT`
	require.Zero(t, testing.AllocsPerRun(100, func() { Scan(text, isKnown) }))
}

// hintsOf finds what Scan must, in the slow and obvious way: it cuts a text into words.
func hintsOf(text string) (traits Traits) {
	for _, word := range strings.FieldsFunc(text, func(r rune) bool {
		return r < utf8.RuneSelf && classes[r] == 0
	}) {
		word = foldName(word)
		for _, piece := range append(strings.Split(word, "$"), word) {
			traits |= hints[piece].anywhere &^ (hintInto | hintTarget | hintMove)
			if isKnown(piece) {
				traits |= HasKnownName
			}
		}
	}
	for statement := range strings.SplitSeq(foldName(text), ";") {
		words := strings.Fields(statement)
		if len(words) > 0 {
			traits |= hints[words[0]].opening
		}
	}
	return traits
}

func FuzzScan(f *testing.F) {
	for _, text := range []string{
		"SELECT nextval('orders_seq')", "/* a /* b */ */ begin; -- x\n set a = b", `TABLE "Orders Seq"`, "DO $a$BEGIN PERFORM setval('s', 1); END$a$",
		"INSERT INTO t VALUES ($1); SELECT 1 INTO my$seq", "\"\"\"", "U&\"", "\xff$$\xffnextval$",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		found := Scan(text, isKnown)
		if missed := hintsOf(text) &^ found; missed != 0 {
			t.Fatalf("Scan(%q) = %b lacks %b", text, found, missed)
		}
		if other := Scan(text, nil); other != found&^HasKnownName {
			t.Fatalf("Scan(%q) finds %b, and %b where no name is known", text, found, other)
		}
	})
}

func BenchmarkScan(b *testing.B) {
	for name, text := range map[string]string{
		"select": "SELECT o.id, o.total, c.name FROM orders o JOIN customers c ON c.id = o.customer_id WHERE o.created_at > $1 AND " +
			"o.status IN ('open', 'paid') ORDER BY o.created_at DESC LIMIT 50",
		"quoted": `SELECT "users"."id", "users"."createdAt" AS "createdAt" FROM "users" AS "users" WHERE "users"."id" = $1 LIMIT 1;`,
		"update": "UPDATE accounts SET balance = balance + $1, updated_at = now() WHERE id = $2",
		"insert": "INSERT INTO t (a, b, c) VALUES " + strings.Repeat("(1234, 'some text here', 'more text'), ", 1000),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				Scan(text, isKnown)
			}
		})
	}
}

func TestIsRowStatement(t *testing.T) {
	for text, want := range map[string]bool{
		"INSERT INTO t DEFAULT VALUES":                true,
		" select 1;":                                  true,
		"(SELECT 1) UNION SELECT 2 ; -- end":          true,
		"/* a /* b */ */ -- c\n WITH a AS (SELECT 1)": true,
		"TABLE t":                      true,
		"MERGE INTO t USING u":         true,
		"":                             false,
		";":                            false,
		"selects":                      false,
		"- select":                     false,
		"CALL p()":                     false,
		"DO 'x'":                       false,
		"COPY t FROM STDIN":            false,
		"EXPLAIN ANALYZE SELECT 1":     false,
		"SELECT 1; COMMIT":             false,
		"COMMIT; SELECT 1":             false,
		"SELECT ';', 1":                false, // in doubt
		"BEGIN":                        false,
		"/* open":                      false,
		"EXECUTE p":                    false,
		"CREATE TABLE t AS SELECT f()": false,
		"REFRESH MATERIALIZED VIEW v":  false,
	} {
		require.Equal(t, want, IsRowStatement(text), text)
	}
}
