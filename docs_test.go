package nextvald_test

import (
	"os"
	"regexp"
	"slices"
	"testing"
)

// Every module that go.mod asks for by itself has its reason in the docs, and no other does.
func TestEveryDependencyHasAReason(t *testing.T) {
	names := func(path, pattern string) []string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, m := range regexp.MustCompile(pattern).FindAllSubmatch(text, -1) {
			names = append(names, string(m[1]))
		}
		slices.Sort(names)
		return slices.Compact(names)
	}
	// A tool's module is indirect, and stands in a line of its own with the package.
	required := names("go.mod", `(?m)^\t(\S+) v\S+$`)
	required = append(required, names("go.mod", `(?m)^tool (\S+)/cmd/`)...)
	documented := names("docs/dependencies.md", "(?m)^\\| `([^`]+)` \\|")
	for _, name := range required {
		if !slices.Contains(documented, name) {
			t.Errorf("docs/dependencies.md has no reason for %s", name)
		}
	}
	present := names("go.mod", `(?m)^\t(\S+) v\S+`)
	for _, name := range documented {
		if !slices.Contains(present, name) {
			t.Errorf("docs/dependencies.md has %s, which go.mod does not", name)
		}
	}
}
