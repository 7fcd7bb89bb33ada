package sqlrewrite

import (
	"errors"
	"slices"
	"testing"
)

func TestTransactions(t *testing.T) {
	on, off := true, false
	tests := map[string]struct {
		text     string
		want     Transaction
		readOnly *bool
	}{
		"BEGIN":              {"BEGIN", Transaction{Verb: Begin}, nil},
		"BEGIN READ ONLY":    {"BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY", Transaction{Verb: Begin}, &on},
		"BEGIN READ WRITE":   {"BEGIN READ WRITE", Transaction{Verb: Begin}, &off},
		"START":              {"START TRANSACTION READ ONLY", Transaction{Verb: Begin}, &on},
		"COMMIT":             {"COMMIT", Transaction{Verb: Commit}, nil},
		"END AND CHAIN":      {"END AND CHAIN", Transaction{Verb: Commit, Chain: true}, nil},
		"ABORT":              {"ABORT", Transaction{Verb: Rollback}, nil},
		"ROLLBACK AND CHAIN": {"ROLLBACK AND CHAIN", Transaction{Verb: Rollback, Chain: true}, nil},
		"SAVEPOINT":          {`SAVEPOINT "A"`, Transaction{Verb: Savepoint, Savepoint: "A"}, nil},
		"ROLLBACK TO":        {"ROLLBACK TO A", Transaction{Verb: RollbackTo, Savepoint: "a"}, nil},
		"RELEASE":            {"RELEASE SAVEPOINT a", Transaction{Verb: Release, Savepoint: "a"}, nil},
		"PREPARE":            {"PREPARE TRANSACTION 'x'", Transaction{Verb: PrepareTransaction}, nil},
		"COMMIT PREPARED":    {"COMMIT PREPARED 'x'", Transaction{Verb: CommitPrepared}, nil},
		"ROLLBACK PREPARED":  {"ROLLBACK PREPARED 'x'", Transaction{Verb: RollbackPrepared}, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			st := plan(t, test.text)
			got := st.Transaction
			if got.ReadOnly != nil && test.readOnly != nil && *got.ReadOnly != *test.readOnly ||
				(got.ReadOnly == nil) != (test.readOnly == nil) {
				t.Errorf("read only %v, want %v", got.ReadOnly, test.readOnly)
			}
			got.ReadOnly = nil
			if st.Kind != KindTransaction || got != test.want {
				t.Errorf("kind %d, %+v, want %+v", st.Kind, got, test.want)
			}
		})
	}
}

func TestKinds(t *testing.T) {
	tests := map[string]struct {
		text string
		want Kind
		name string // of DEALLOCATE and DISCARD
	}{
		"nothing of sequences": {"SELECT 1", KindPass, ""},
		"SET":                  {"SET a = b", KindPass, ""},
		"a call":               {"SELECT 1 + nextval('s')", KindUse, ""},
		"a relation":           {"SELECT 1 FROM t", KindUse, ""},
		"DDL":                  {"DROP SEQUENCE s", KindDDL, ""},
		"DROP TABLE":           {"DROP TABLE s", KindPass, ""},
		"DEALLOCATE":           {`DEALLOCATE PREPARE "P"`, KindDeallocate, "P"},
		"DEALLOCATE ALL":       {"DEALLOCATE ALL", KindDeallocate, ""},
		"DISCARD ALL":          {"DISCARD ALL", KindDiscard, "ALL"},
		"DISCARD SEQUENCES":    {"DISCARD SEQUENCES", KindDiscard, "SEQUENCES"},
		"DISCARD PLANS":        {"DISCARD PLANS", KindDiscard, "PLANS"},
		"DISCARD TEMPORARY":    {"DISCARD TEMPORARY", KindDiscard, "TEMP"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			st := plan(t, test.text)
			if st.Kind != test.want || st.Deallocate+st.Discard != test.name {
				t.Errorf("kind %d, %q, want %d, %q", st.Kind, st.Deallocate+st.Discard, test.want, test.name)
			}
		})
	}
}

func TestExplain(t *testing.T) {
	for text, want := range map[string]bool{
		"EXPLAIN SELECT nextval('s')":                             true,
		"EXPLAIN ANALYZE SELECT nextval('s')":                     false,
		"EXPLAIN (VERBOSE) SELECT nextval('s')":                   true,
		"EXPLAIN (ANALYZE, VERBOSE) SELECT nextval('s')":          false,
		"EXPLAIN (ANALYZE off) SELECT nextval('s')":               true,
		"EXPLAIN (ANALYZE 0) SELECT nextval('s')":                 true,
		"EXPLAIN (ANALYZE, ANALYZE false) SELECT nextval('s')":    true,
		"EXPLAIN (ANALYZE 'TRUE') CREATE TABLE t AS SELECT 1":     false,
		"EXPLAIN DECLARE c CURSOR FOR SELECT nextval('s') FROM t": true,
		"EXPLAIN EXECUTE p(nextval('s'))":                         false,
		"SELECT nextval('s')":                                     false,
	} {
		if got := plan(t, text).Explain; got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}

func TestStatements(t *testing.T) {
	for text, want := range map[string][]string{
		"":                                 nil,
		" ; /* a */ ;; -- b":               nil,
		"SELECT 1":                         {"SELECT 1"},
		" /* a */ SELECT 'é;' /* b */ ; ":  {"SELECT 'é;'"},
		"BEGIN;\n-- x\nSELECT $1\n;COMMIT": {"BEGIN", "SELECT $1", "COMMIT"},
	} {
		plan, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, st := range plan.Statements {
			got = append(got, text[st.Start:st.End])
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if plan, err := Parse("SELECT $3; SELECT nextval($1)"); err != nil || plan.Params != 3 {
		t.Errorf("%+v, %v: want 3 parameters", plan, err)
	}
}

func TestSyntaxErrors(t *testing.T) {
	for text, position := range map[string]int{
		"SELEC 1":                1,
		"SELECT 'é', FROM FROM":  13,
		"SELECT nextval('s'":     19,
		"SELECT 1; SELECT 'open": 18,
	} {
		_, err := Parse(text)
		var syntax *SyntaxError
		if !errors.As(err, &syntax) || syntax.Position != position {
			t.Errorf("%q: %v at %+v, want a syntax error at %d", text, err, syntax, position)
		}
	}
	if _, err := Parse("SELECT 1\x00"); err == nil {
		t.Error("a zero byte is accepted")
	}
}

func BenchmarkParse(b *testing.B) {
	text := "INSERT INTO orders (id, note) VALUES (nextval('orders_id_seq'), $1) RETURNING id"
	b.Run("uncached", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := Parse(text); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("cached", func(b *testing.B) {
		cache := NewCache(10)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := cache.Parse(text); err != nil {
				b.Fatal(err)
			}
		}
	})
}
