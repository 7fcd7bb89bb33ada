package sqlrewrite

import (
	"strings"
	"testing"
)

// TestCalls checks that calls are found however they are written, and where they begin and end.
func TestCalls(t *testing.T) {
	tests := map[string]struct {
		text string
		want string // calls, divided by semicolons
	}{
		"plain":                        {"SELECT nextval('s')", "nextval('s')"},
		"upper case":                   {"SELECT NEXTVAL('s')", "NEXTVAL('s')"},
		"blanks":                       {"SELECT nextval ( 's' ) ", "nextval ( 's' )"},
		"comments":                     {"/* a */ SELECT -- b\n nextval /* ) */ ('s' -- )\n)", "nextval /* ) */ ('s' -- )\n)"},
		"quoted":                       {`SELECT "nextval"('s')`, `"nextval"('s')`},
		"quoted with escapes":          {`SELECT U&"nextv\0061l"('s')`, `U&"nextv\0061l"('s')`},
		"quoted in upper case":         {`SELECT "NEXTVAL"('s')`, ""},
		"of pg_catalog":                {"SELECT pg_catalog . nextval('s')", "pg_catalog . nextval('s')"},
		"of another schema":            {"SELECT app.nextval('s')", ""},
		"parenthesis in a string":      {"SELECT nextval('s)') + nextval($$)$$) + nextval(E'\\')')", "nextval('s)'); nextval($$)$$); nextval(E'\\')')"},
		"parentheses in an argument":   {"SELECT nextval((('s')::varchar)), setval('s', (1), ((true)))", "nextval((('s')::varchar)); setval('s', (1), ((true)))"},
		"in a comment, in a string":    {"SELECT 'nextval(''s'')' -- nextval('s')", ""},
		"no argument":                  {"SELECT nextval()", ""},
		"too many arguments":           {"SELECT nextval('s', 1)", ""},
		"lastval with an argument":     {"SELECT lastval('s')", ""},
		"OVER, DISTINCT, FILTER":       {"SELECT nextval('s') OVER (), nextval(DISTINCT 's'), nextval('s') FILTER (WHERE true)", ""},
		"VARIADIC":                     {"SELECT nextval(VARIADIC 's')", "nextval(VARIADIC 's')"},
		"named argument":               {"SELECT nextval(regclass => 's')", ""},
		"all four":                     {"SELECT nextval('s'), currval('s'), lastval(), setval('s', 1), setval('s', 1, true)", "nextval('s'); currval('s'); lastval(); setval('s', 1); setval('s', 1, true)"},
		"in each other":                {"SELECT setval('a', nextval('b'))", "nextval('b'); setval('a', nextval('b'))"},
		"bytes before":                 {"SELECT 'é', nextval('ü')", "nextval('ü')"},
		"several statements":           {"SELECT 1; SELECT nextval('s')", "nextval('s')"},
		"behind a chain of statements": {"BEGIN;;SELECT nextval('a');COMMIT;SELECT nextval('b');", "nextval('a'); nextval('b')"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			plan, err := Parse(test.text)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, st := range plan.Statements {
				for _, c := range st.Calls {
					got = append(got, test.text[c.Start:c.End])
				}
			}
			if joined := strings.Join(got, "; "); joined != test.want {
				t.Errorf("calls\n\t%s\nwant\n\t%s", joined, test.want)
			}
			if len(got) > 0 && Scan(test.text, nil)&HasCall == 0 {
				t.Error("Scan does not give HasCall")
			}
		})
	}
}

func TestArguments(t *testing.T) {
	constant := func(value string, oid uint32) Argument { return Argument{Kind: Constant, Value: value, Type: oid} }
	parameter := func(n int, oid uint32, sole bool) Argument {
		return Argument{Kind: Parameter, Param: n, Type: oid, Sole: sole}
	}
	isTrue := constant("t", oidBool)
	tests := map[string]struct {
		call string
		want []Argument // name, value, is_called
	}{
		"string":                   {"nextval('s')", []Argument{constant("s", oidUnknown)}},
		"escapes":                  {`nextval(E'a\137b')`, []Argument{constant("a_b", oidUnknown)}},
		"dollar quotes":            {"nextval($x$it's$x$)", []Argument{constant("it's", oidUnknown)}},
		"Unicode escapes":          {`nextval(U&'\0073')`, []Argument{constant("s", oidUnknown)}},
		"empty":                    {"nextval('')", []Argument{constant("", oidUnknown)}},
		"regclass":                 {"nextval('s'::regclass)", []Argument{constant("s", oidRegclass)}},
		"CAST":                     {"nextval(CAST('s' AS pg_catalog.regclass))", []Argument{constant("s", oidRegclass)}},
		"typed literal":            {"nextval(regclass 's')", []Argument{constant("s", oidRegclass)}},
		"text, then regclass":      {"nextval('s'::text::regclass)", []Argument{constant("s", oidText)}},
		"a type that cuts":         {"nextval('sequence'::varchar(1))", []Argument{{}}},
		"a type of somebody":       {"nextval('s'::app.regclass)", []Argument{{}}},
		"name":                     {"nextval('s'::name)", []Argument{{}}},
		"OID":                      {"nextval(16384)", []Argument{constant("16384", oidInt4)}},
		"OID with a cast":          {"nextval(16384::oid)", []Argument{constant("16384", oidOID)}},
		"large OID":                {"nextval(4294967294)", []Argument{constant("4294967294", oidInt8)}},
		"NULL":                     {"nextval(NULL)", []Argument{{Kind: Constant, Null: true, Type: oidUnknown}}},
		"parameter":                {"nextval($2)", []Argument{parameter(2, 0, true)}},
		"parameter with a cast":    {"nextval($1::text)", []Argument{parameter(1, oidText, true)}},
		"parameter with two casts": {"nextval($1::text::regclass)", []Argument{parameter(1, oidText, true)}},
		"parameter used twice":     {"setval($1, $1)", []Argument{parameter(1, 0, false), parameter(1, 0, false), isTrue}},
		"expression":               {"nextval('a' || 'b')", []Argument{{}}},
		"function":                 {"currval(pg_get_serial_sequence('t', 'id'))", []Argument{{}}},
		"collation":                {`nextval('s' COLLATE "C")`, []Argument{{}}},
		"setval":                   {"setval('s', 10)", []Argument{constant("s", oidUnknown), constant("10", oidInt4), isTrue}},
		"setval negative":          {"setval('s', -10)", []Argument{constant("s", oidUnknown), constant("-10", oidInt4), isTrue}},
		"setval zero, false":       {"setval('s', 0, false)", []Argument{constant("s", oidUnknown), constant("0", oidInt4), constant("f", oidBool)}},
		"setval largest":           {"setval('s', 9223372036854775807)", []Argument{constant("s", oidUnknown), constant("9223372036854775807", oidInt8), isTrue}},
		"setval smallest":          {"setval('s', -9223372036854775808)", []Argument{constant("s", oidUnknown), constant("-9223372036854775808", oidInt8), isTrue}},
		"setval beyond int8":       {"setval('s', 9223372036854775808)", []Argument{constant("s", oidUnknown), {}, isTrue}},
		"setval of a fraction":     {"setval('s', 1.5)", []Argument{constant("s", oidUnknown), {}, isTrue}},
		"setval of strings":        {"setval('s', '10', 't')", []Argument{constant("s", oidUnknown), constant("10", oidUnknown), constant("t", oidUnknown)}},
		"setval of casts":          {"setval('s', '10'::bigint, 'f'::bool)", []Argument{constant("s", oidUnknown), constant("10", oidInt8), constant("f", oidBool)}},
		"setval of parameters":     {"setval($1, $2, $3)", []Argument{parameter(1, 0, true), parameter(2, 0, true), parameter(3, 0, true)}},
		"setval of a number":       {"setval('s', 1, 1)", []Argument{constant("s", oidUnknown), constant("1", oidInt4), {}}},
		"setval of a subquery":     {"setval('s', (SELECT max(id) FROM t))", []Argument{constant("s", oidUnknown), {}, isTrue}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			text := "SELECT " + test.call
			plan, err := Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			c := plan.Statements[0].Calls[0]
			for i, got := range []Argument{c.Name, c.Value, c.IsCalled} {
				if i >= len(test.want) {
					if got != (Argument{}) {
						t.Errorf("argument %d: %+v, want none", i, got)
					}
					continue
				}
				got.Start, got.End = 0, 0
				if got != test.want[i] {
					t.Errorf("argument %d: %+v, want %+v", i, got, test.want[i])
				}
			}
		})
	}
	plan, err := Parse("SELECT setval( 's' /* , */ , (SELECT 1, 2) , ( true ) )")
	if err != nil {
		t.Fatal(err)
	}
	c := plan.Statements[0].Calls[0]
	for argument, want := range map[*Argument]string{&c.Name: "'s'", &c.Value: "(SELECT 1, 2)", &c.IsCalled: "( true )"} {
		if got := plan.Text[argument.Start:argument.End]; got != want {
			t.Errorf("an argument's range is %q, want %q", got, want)
		}
	}
}
