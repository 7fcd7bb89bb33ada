package sqlrewrite

import (
	"errors"
	"strings"
	"testing"
)

// TestParseQualifiedName checks against what PostgreSQL 15 makes of the string as a regclass.
func TestParseQualifiedName(t *testing.T) {
	long := strings.Repeat("x", 70)
	tests := map[string]struct {
		text string
		want Name
		err  error
	}{
		"plain":                {"s", Name{Name: "s"}, nil},
		"folded":               {"Person_SEQ", Name{Name: "person_seq"}, nil},
		"folded, ASCII only":   {"ÄB", Name{Name: "Äb"}, nil},
		"quoted":               {`"Weird ""Seq'"`, Name{Name: `Weird "Seq'`}, nil},
		"schema":               {"app.s", Name{Schema: "app", Name: "s"}, nil},
		"quoted schema":        {`"Schema.name"."a.b"`, Name{Schema: "Schema.name", Name: "a.b"}, nil},
		"database":             {"db.app.s", Name{Database: "db", Schema: "app", Name: "s"}, nil},
		"blanks":               {" \tapp . \n s ", Name{Schema: "app", Name: "s"}, nil},
		"blanks in quotes":     {`" s "`, Name{Name: " s "}, nil},
		"a quote inside":       {`a"b`, Name{Name: `a"b`}, nil},
		"any character":        {"a-b;c", Name{Name: "a-b;c"}, nil},
		"digits":               {"16384", Name{Name: "16384"}, nil},
		"quoted digits":        {`"16384"`, Name{Name: "16384"}, nil},
		"too long":             {long, Name{Name: long[:63]}, nil},
		"too long, quoted":     {`"` + long + `"`, Name{Name: long[:63]}, nil},
		"too long, characters": {strings.Repeat("x", 62) + "ä", Name{Name: strings.Repeat("x", 62)}, nil},
		"empty":                {"", Name{}, ErrInvalidName},
		"blank":                {"  ", Name{}, ErrInvalidName},
		"empty quotes":         {`""`, Name{}, ErrInvalidName}, // PostgreSQL looks for it, in vain
		"open quotes":          {`"s`, Name{}, ErrInvalidName},
		"after quotes":         {`"a"b`, Name{}, ErrInvalidName},
		"two words":            {"a b", Name{}, ErrInvalidName},
		"ends with a dot":      {"app.", Name{}, ErrInvalidName},
		"begins with a dot":    {".s", Name{}, ErrInvalidName},
		"two dots":             {"app..s", Name{}, ErrInvalidName},
		"too many parts":       {"a.b.c.d", Name{}, ErrTooManyParts},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := ParseQualifiedName(test.text)
			if got != test.want || !errors.Is(err, test.err) {
				t.Errorf("%+v, %v, want %+v, %v", got, err, test.want, test.err)
			}
		})
	}
}

// FuzzParseQualifiedName checks that a name, quoted part by part, gives itself again.
func FuzzParseQualifiedName(f *testing.F) {
	for _, s := range []string{"s", "App.S", ` "a""b" . "C" `, `"`, "a.b.c.d", "\xff.\xc3", "a\vb"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		name, err := ParseQualifiedName(s)
		if err != nil {
			if name != (Name{}) {
				t.Fatalf("%+v with an error", name)
			}
			return
		}
		quoted := ""
		for _, part := range []string{name.Database, name.Schema, name.Name} {
			if len(part) > longestName {
				t.Fatalf("%q is longer than a name", part)
			}
			if part != "" {
				quoted += `."` + strings.ReplaceAll(part, `"`, `""`) + `"`
			}
		}
		if again, err := ParseQualifiedName(quoted[1:]); err != nil || again != name {
			t.Fatalf("%q gives %+v, quoted %s %+v, %v", s, name, quoted[1:], again, err)
		}
	})
}
