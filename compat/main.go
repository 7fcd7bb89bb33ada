package main

import (
	"context"
	"embed"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed testdata
var testdata embed.FS

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	different, err := compare(ctx, os.Args[1:], os.Stdout)
	stop()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "compat:", err)
		os.Exit(2)
	case different > 0:
		os.Exit(1)
	}
}

// compare does what the command line says, and returns how many entries were different.
func compare(ctx context.Context, args []string, out io.Writer) (different int, err error) {
	flags := flag.NewFlagSet("compat", flag.ContinueOnError)
	direct := flags.String("direct", "", "`URL` of a plain PostgreSQL, as a superuser")
	proxy := flags.String("proxy", "", "`URL` of a nextvald, as a superuser of what is behind")
	mode := flags.String("mode", "virtual", "`MODE` of the upstream's sequences that nextvald runs in, whose differences are expected")
	flow := flags.String("flow", "", "run in this `FLOW` only: "+strings.Join(flows, ", ")+"; or "+inTurn+", each script in one of its flows")
	least := flags.Int("least", 0, "leave scripts of fewer entries than this `NUMBER` out")
	jobs := flags.Int("jobs", 4, "`NUMBER` of scripts that run at the same time")
	keep := flags.Bool("keep", false, "keep the databases")
	verbose := flags.Bool("v", false, "print what is the same, too")
	if err := flags.Parse(args); err != nil {
		return 0, err
	}
	if *direct == "" || *proxy == "" || *flow != "" && *flow != inTurn && !slices.Contains(flows, *flow) {
		flags.Usage()
		return 0, fmt.Errorf("-direct and -proxy are needed, and a -flow is one of %s, %s", strings.Join(flows, ", "), inTurn)
	}
	c := &comparison{direct: *direct, proxy: *proxy, keep: *keep, verbose: *verbose, gaps: *mode == "mirrored", out: out}
	if c.expected, err = expectedIn(*mode); err != nil {
		return 0, err
	}
	scripts, err := ours(*mode)
	if flags.NArg() > 0 {
		scripts, err = read(out, flags.Args())
	}
	if err != nil {
		return 0, err
	}
	scripts = slices.DeleteFunc(scripts, func(s script) bool { return len(s.entries) < *least })
	if err := c.runAll(ctx, scripts, *flow, *jobs); err != nil {
		return 0, err
	}
	if *flow == "" && *least == 0 { // some differ in one flow only
		for _, report := range c.unused() {
			fmt.Fprintln(out, report)
		}
	}
	fmt.Fprintln(out, c.counts)
	return c.counts.different, nil
}

// expectedIn are the differences of a mode.
func expectedIn(mode string) ([]*expectation, error) {
	name := "testdata/expected-" + mode + ".txt"
	text, err := testdata.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("unknown mode %q", mode)
	}
	return parseExpected(name, string(text))
}

// ours are the scripts and the corpus of testdata, and the scripts of the mode: most of what those in the folder mirrored do
// is refused where the upstream does not know the sequences.
func ours(mode string) (scripts []script, err error) {
	names, err := fs.Glob(testdata, "testdata/*")
	if err != nil {
		return nil, err
	}
	more, err := fs.Glob(testdata, "testdata/"+mode+"/*")
	if err != nil {
		return nil, err
	}
	for _, file := range append(names, more...) {
		base, extension := strings.TrimSuffix(file, path.Ext(file)), path.Ext(file)
		if extension != ".jsonl" && extension != ".sql" {
			continue
		}
		text, err := testdata.ReadFile(file)
		if err != nil {
			return nil, err
		}
		name := path.Base(file)
		if extension == ".jsonl" {
			setup, err := testdata.ReadFile(base + ".setup")
			if err != nil {
				return nil, err
			}
			corpus, err := parseCorpus(name, string(text), string(setup))
			if err != nil {
				return nil, err
			}
			scripts = append(scripts, corpus...)
			continue
		}
		entries, notes, err := parseScript(name, string(text))
		if err != nil || len(notes) > 0 {
			return nil, fmt.Errorf("%v %v", err, notes)
		}
		scripts = append(scripts, script{name: name, flows: flows, entries: entries})
	}
	return scripts, nil
}

// read reads scripts from files.
func read(out io.Writer, files []string) (scripts []script, err error) {
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		name := filepath.Base(file)
		entries, notes, err := parseScript(name, string(text))
		if err != nil {
			return nil, err
		}
		for _, note := range notes {
			fmt.Fprintln(out, note)
		}
		scripts = append(scripts, script{name: name, flows: flows, entries: entries})
	}
	return scripts, nil
}
