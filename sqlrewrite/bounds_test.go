package sqlrewrite

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
)

// deepForms are texts whose tree is n levels deep.
var deepForms = map[string]func(n int) string{
	"operators":        func(n int) string { return "SELECT 1" + strings.Repeat("+1", n) },
	"prefix operators": func(n int) string { return "SELECT " + strings.Repeat("- ", n) + "a" },
	"NOT":              func(n int) string { return "SELECT " + strings.Repeat("NOT ", n) + "a" },
	"casts":            func(n int) string { return "SELECT 1" + strings.Repeat("::int", n) },
	"JSON paths":       func(n int) string { return "SELECT a" + strings.Repeat("->'b'", n) },
	"collations":       func(n int) string { return "SELECT a" + strings.Repeat(` COLLATE "C"`, n) },
	"joins":            func(n int) string { return "SELECT 1 FROM a" + strings.Repeat(" JOIN b ON a.x = b.x AND b.y", n) },
	"joins to the right": func(n int) string {
		return "SELECT 1 FROM a" + strings.Repeat(" JOIN b", n) + strings.Repeat(" ON true", n)
	},
	"UNION":                func(n int) string { return "SELECT 1, 2" + strings.Repeat(" UNION ALL SELECT 1, 2", n) },
	"BETWEEN":              func(n int) string { return "SELECT a" + strings.Repeat(" BETWEEN 1 AND NOT a", n) },
	"parentheses":          func(n int) string { return "SELECT " + strings.Repeat("(", n) + "1" + strings.Repeat(")", n) },
	"terms in parentheses": func(n int) string { return "SELECT " + strings.Repeat("(1+", n) + "1" + strings.Repeat(")", n) },
	"AND in parentheses":   func(n int) string { return "SELECT " + strings.Repeat("a AND (", n) + "b" + strings.Repeat(")", n) },
	"subqueries":           func(n int) string { return "SELECT " + strings.Repeat("(SELECT ", n) + "1" + strings.Repeat(")", n) },
	"EXISTS":               func(n int) string { return strings.Repeat("SELECT EXISTS (", n) + "SELECT 1" + strings.Repeat(")", n) },
	"subqueries in FROM": func(n int) string {
		return strings.Repeat("SELECT * FROM (", n) + "SELECT 1" + strings.Repeat(") x", n)
	},
	"CTEs": func(n int) string {
		return strings.Repeat("WITH x AS (", n) + "SELECT 1" + strings.Repeat(") SELECT 1", n)
	},
	"CASE in ELSE": func(n int) string {
		return "SELECT " + strings.Repeat("CASE WHEN a AND b THEN 1 ELSE ", n) + "1" + strings.Repeat(" END", n)
	},
	"CASE in WHEN": func(n int) string {
		return "SELECT " + strings.Repeat("CASE WHEN a.end OR ", n) + "b" + strings.Repeat(" THEN c END", n)
	},
	"arrays":             func(n int) string { return "SELECT ARRAY" + strings.Repeat("[", n) + "1" + strings.Repeat("]", n) },
	"subscripts":         func(n int) string { return "SELECT " + strings.Repeat("a[", n) + "1" + strings.Repeat("]", n) },
	"function calls":     func(n int) string { return "SELECT " + strings.Repeat("f(1, ", n) + "1" + strings.Repeat(")", n) },
	"last of a list":     func(n int) string { return "SELECT 1, 2, 3" + strings.Repeat("+1", n) + ", 4" },
	"behind a semicolon": func(n int) string { return "SELECT 1; SELECT 1" + strings.Repeat("+1", n) },
	"without an end":     func(n int) string { return "SELECT " + strings.Repeat("(1+", n) },
}

// TestDeepTexts checks that every form is refused before the parser's stack ends, with a margin of two: a text of twice
// the accepted depth must be parsed on a thread with the smallest stack. Processes of their own try it.
func TestDeepTexts(t *testing.T) {
	if form := os.Getenv("SQLREWRITE_DEEP_FORM"); form != "" {
		parseOnOwnThread(deepForms[form](2 * accepted(form)))
		return
	}
	for name, form := range deepForms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := accepted(name)
			if n < 50 {
				t.Errorf("only %d levels are accepted", n)
			}
			if _, err := Parse(form(n)); errors.Is(err, ErrTooComplex) {
				t.Errorf("%d levels are within the bounds, but Parse refuses them", n)
			}
			if _, err := Parse(form(50_000)); !errors.Is(err, ErrTooComplex) {
				t.Errorf("50,000 levels: %v, want ErrTooComplex", err)
			}
			c := exec.Command("sh", "-c", `ulimit -s 2048; exec "$0" -test.run '^TestDeepTexts$'`, os.Args[0])
			c.Env = append(os.Environ(), "SQLREWRITE_DEEP_FORM="+name)
			if out, err := c.CombinedOutput(); err != nil {
				t.Errorf("twice %d levels: %v\n%.500s", n, err, out)
			}
		})
	}
}

// accepted is the largest depth of a form that is within the bounds.
func accepted(form string) int {
	lo, hi := 1, 10_000
	for lo+1 < hi {
		mid := (lo + hi) / 2
		if tokens, err := tokensOf(deepForms[form](mid)); err == nil && checkBounds(tokens) == nil {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo
}

// parseOnOwnThread parses without bounds, on a thread that cgo made. That it returns is what matters.
func parseOnOwnThread(text string) {
	done := make(chan struct{})
	runtime.LockOSThread()
	go func() {
		defer close(done)
		runtime.LockOSThread()
		_, _ = parseTree(text)
	}()
	<-done
}

func TestLargeTexts(t *testing.T) {
	tests := map[string]string{
		"50,000 rows of VALUES": "INSERT INTO t VALUES (1, 'a', true, now())" + strings.Repeat(", (-2, 'b' || 'c', DEFAULT, now())", 50_000),
		"an IN list of 30,000":  "SELECT 1 WHERE a IN (1" + strings.Repeat(", -2", 30_000) + ")",
		"2,000 AND":             "SELECT 1 WHERE a = 1" + strings.Repeat(" AND a = 1 + 1", 2_000),
		"2,000 OR":              "SELECT 1 WHERE a = 1" + strings.Repeat(" OR (a = 1 AND b = 2)", 2_000),
		"1,000 statements":      strings.Repeat("SELECT 1 + 1;", 1_000),
		"500 arms of UNION":     "SELECT 1" + strings.Repeat(" UNION ALL SELECT a + 1 FROM b JOIN c ON d = e", 500),
		"1,000 concatenations":  "SELECT ''" + strings.Repeat(" || 'a'", 1_000),
		"1,000 columns":         "CREATE TABLE t (a int" + strings.Repeat(", b int NOT NULL DEFAULT 1 + 1", 1_000) + ")",
	}
	for name, text := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := Parse(text); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestLongTextsAreRefused(t *testing.T) {
	for name, text := range map[string]string{
		"bytes":  "SELECT '" + strings.Repeat("a", maxLength) + "'",
		"tokens": "SELECT 1" + strings.Repeat(",1", maxTokens/2),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Parse(text); !errors.Is(err, ErrTooComplex) {
				t.Errorf("%v, want ErrTooComplex", err)
			}
		})
	}
}
