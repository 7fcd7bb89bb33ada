package nextvald_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/nextvald/nextvald"

// allowed says which packages of this module a package may import, tests left out. A folder stands for all below it; the
// longest that fits a package counts, and what no folder fits may import nothing of the module.
var allowed = map[string][]string{
	// Pure: text in, plan out.
	"sqlrewrite": nil,
	// A library of its own, which knows nothing of SQL or the wire.
	"sequencer": {"sequencer"},
	// Frames only.
	"proxy/wire":  nil,
	"proxy/event": nil,
	// Sessions see the sequencer, and never a store.
	"proxy": {"proxy/wire", "proxy/event", "proxy/answer", "proxy/auth", "sqlrewrite", "sequencer."},
	// Both sides of a login, without connections.
	"proxy/auth":       {"proxy/wire"},
	"proxy/answer":     {"proxy/wire", "sqlrewrite"},
	"proxy/standalone": {"proxy/wire", "proxy/answer", "sqlrewrite"},
	"proxy/admin":      {"sequencer."},
	// What it is to sessions, sessions say.
	"proxy/native": {"proxy.", "sequencer."},
	// The one place where concrete types meet.
	"cmd/nextvald": {"proxy", "sequencer", "sqlrewrite"},
	// It sees of nextvald what a client sees.
	"compat": nil,
	// What tests share.
	"integration/testenv": nil,
	"integration/history": nil,
}

// within reports whether a package is in a folder. A folder that ends in a full stop is the package itself alone.
func within(pkg, folder string) bool {
	if exact, ok := strings.CutSuffix(folder, "."); ok {
		return pkg == exact
	}
	return pkg == folder || strings.HasPrefix(pkg, folder+"/")
}

func mayImport(pkg, imported string) bool {
	var folder string
	for f := range allowed {
		if within(pkg, f) && len(f) > len(folder) {
			folder = f
		}
	}
	for _, f := range allowed[folder] {
		if within(imported, f) {
			return true
		}
	}
	return false
}

func TestImportsPointOneWay(t *testing.T) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, &stderr)
	}
	packages := 0
	for d := json.NewDecoder(bytes.NewReader(out)); ; packages++ {
		var pkg struct {
			ImportPath string
			Imports    []string
		}
		if err := d.Decode(&pkg); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		from := strings.TrimPrefix(pkg.ImportPath, module+"/")
		for _, path := range pkg.Imports {
			to, own := strings.CutPrefix(path, module+"/")
			if own && !mayImport(from, to) {
				t.Errorf("%s imports %s", from, to)
			}
		}
	}
	if packages == 0 {
		t.Fatal("go list found no packages")
	}
}

func TestImportRules(t *testing.T) {
	for name, c := range map[string]struct {
		from, to string
		want     bool
	}{
		"the program joins proxy and stores":       {"cmd/nextvald", "sequencer/boltstore", true},
		"sessions use the sequencer":               {"proxy", "sequencer", true},
		"sessions know no store":                   {"proxy", "sequencer/dynamostore", false},
		"sessions know no program":                 {"proxy", "cmd/nextvald", false},
		"frames know nothing":                      {"proxy/wire", "sqlrewrite", false},
		"plans know nothing":                       {"sqlrewrite", "sequencer", false},
		"stores use the sequencer":                 {"sequencer/boltstore", "sequencer", true},
		"the sequencer knows no SQL":               {"sequencer", "sqlrewrite", false},
		"the standalone backend knows no sequence": {"proxy/standalone", "sequencer", false},
		"a package without a rule imports nothing": {"other", "sequencer", false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := mayImport(c.from, c.to); got != c.want {
				t.Errorf("mayImport(%s, %s) = %v", c.from, c.to, got)
			}
		})
	}
}
