package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/nextvald/nextvald/proxy/native"
	"github.com/nextvald/nextvald/sequencer"
)

const (
	allFlag      = "all"
	dryRunFlag   = "dry-run"
	restoredFlag = "restored"
)

func adoptCommand(environ []string) *cobra.Command {
	return handoverCommand(environ, &cobra.Command{
		Use:   "adopt [--all | NAME...]",
		Short: "Hand sequences of the upstream's database over to the store, while clients use them",
	}, func(cmd *cobra.Command, b *native.Batch, names []string) error {
		outcomes, err := b.Adopt(cmd.Context(), names)
		return errors.Join(report(cmd.OutOrStdout(), outcomes), err)
	})
}

func releaseCommand(environ []string) *cobra.Command {
	cmd := handoverCommand(environ, &cobra.Command{
		Use:   "release [--all | NAME...]",
		Short: "Give sequences of the store back to the upstream, past everything that was handed out",
	}, func(cmd *cobra.Command, b *native.Batch, names []string) error {
		release := b.Release
		if flag(cmd, restoredFlag) {
			release = b.Restored
		}
		outcomes, err := release(cmd.Context(), names)
		return errors.Join(report(cmd.OutOrStdout(), outcomes), err)
	})
	cmd.Flags().Bool(restoredFlag, false, "the database was restored, copied or promoted: repair its sequences from the store")
	return cmd
}

func checkCommand(environ []string) *cobra.Command {
	cmd := handoverCommand(environ, &cobra.Command{
		Use:   "check [--all | NAME...]",
		Short: "Compare store, upstream and columns, and name each sequence that is not safe",
	}, func(cmd *cobra.Command, b *native.Batch, names []string) error {
		r, err := b.Check(cmd.Context(), names)
		if err != nil {
			return err
		}
		return findings(cmd.OutOrStdout(), r)
	})
	return cmd
}

// handoverCommand completes a command that is about sequences of the database of the upstream's URL.
func handoverCommand(environ []string, cmd *cobra.Command, f func(*cobra.Command, *native.Batch, []string) error) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		checks := cmd.Name() == "check"
		if all := flag(cmd, allFlag); all == (len(names) > 0) && (all || !checks) {
			return errors.New("name the sequences, or use --all for every one of the database")
		}
		return withRegistry(cmd, environ, func(r *sequencer.Registry, _ sequencer.Store) error {
			return withHandovers(cmd, environ, r, func(b *native.Batch) error { return f(cmd, b, names) })
		})
	}
	addFlags(cmd, "upstream", "store", "namespace", "store_timeout")
	cmd.Flags().Bool(allFlag, false, "every sequence of the database")
	if cmd.Name() != "check" {
		cmd.Flags().Bool(dryRunFlag, false, "say what would be done, and do nothing")
	}
	return cmd
}

// flag is the value of a flag that is on or off, off where the command does not have it.
func flag(cmd *cobra.Command, name string) bool {
	on, err := cmd.Flags().GetBool(name)
	return err == nil && on
}

// withHandovers runs f for the database of the upstream's URL.
func withHandovers(cmd *cobra.Command, environ []string, r *sequencer.Registry, f func(*native.Batch) error) error {
	s, err := readSettings(cmd, environ)
	if err != nil {
		return err
	}
	if s.upstream == nil {
		return errors.New("there is no upstream: --upstream is needed")
	}
	conn, err := s.upstream.connect(cmd.Context())
	if err != nil {
		return s.fault("upstream", err)
	}
	var database string
	for _, result := range conn.ExecParams(cmd.Context(), "SELECT pg_catalog.current_database()", nil, nil, nil, nil).Read().Rows {
		database = string(result[0])
	}
	if err := conn.Close(context.WithoutCancel(cmd.Context())); err != nil || database == "" {
		return s.fault("upstream", errors.Join(errors.New("it does not say which database it is"), err))
	}
	if err := r.Load(cmd.Context(), database); err != nil {
		return err
	}
	h := native.NewHandovers(s.upstream, r, slog.New(slog.DiscardHandler))
	defer h.Close()
	return f(&native.Batch{Handovers: h, Database: database, DryRun: flag(cmd, dryRunFlag), Progress: progress(cmd.ErrOrStderr())})
}

// progress draws a bar on a terminal, and nothing elsewhere.
func progress(to io.Writer) func(done, all int) {
	file, ok := to.(*os.File)
	if !ok {
		return nil
	}
	if about, err := file.Stat(); err != nil || about.Mode()&os.ModeCharDevice == 0 {
		return nil
	}
	const width = 40
	return func(done, all int) {
		n := width * done / all
		end := ""
		if done == all {
			end = "\r\x1b[K" // the table comes in its place
		}
		_, _ = fmt.Fprintf(to, "\r[%s%s] %d of %d%s", strings.Repeat("#", n), strings.Repeat(".", width-n), done, all, end)
	}
}

// report prints a table of what was done. Its error says that something failed.
func report(out io.Writer, outcomes []native.Outcome) error {
	if len(outcomes) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "SEQUENCE\tRESULT\tLAST VALUE\tNOTE")
	failed := 0
	for _, o := range outcomes {
		done, last, note := o.Done, "", o.Note
		if done == "" {
			done = "unchanged"
		}
		if o.Known {
			last = lastValue(o.Last, o.Called)
		}
		if o.Err != nil {
			failed++
			done, note = "FAILED", native.Explain(o.Err)
		}
		_, _ = fmt.Fprintf(w, "%s.%s\t%s\t%s\t%s\n", o.Name.Schema, o.Name.Name, done, last, note)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d sequences failed; the command may be repeated", failed, len(outcomes))
	}
	return nil
}

func lastValue(last int64, called bool) string {
	if !called {
		return fmt.Sprint(last, " (not called)")
	}
	return fmt.Sprint(last)
}

// findings prints what a check found. Its error says that something is not safe.
func findings(out io.Writer, r native.Report) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "SEQUENCE\tSOURCE\tLAST VALUE\tSAFE\tNOTE")
	for _, f := range r.Findings {
		source := string(f.Source)
		if f.Kind == sequencer.Virtual {
			source += ", virtual"
		}
		safe, note := "yes", f.Advice
		if f.Unsafe != "" {
			safe, note = "NO", f.Unsafe
			if f.Advice != "" {
				note += "; " + f.Advice
			}
		}
		_, _ = fmt.Fprintf(w, "%s.%s\t%s\t%s\t%s\t%s\n", f.Name.Schema, f.Name.Name, source, lastValue(f.Last, f.Called), safe, note)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, warning := range r.Warnings() {
		_, _ = fmt.Fprintln(out, "Note:", warning)
	}
	if n := r.Unsafe(); n > 0 {
		return fmt.Errorf("%d of %d sequences are not safe", n, len(r.Findings))
	}
	return nil
}
