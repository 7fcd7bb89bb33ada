package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/nextvald/nextvald/sequencer"
)

// exported is a sequence as export writes it, one JSON object a line.
type exported struct {
	Schema    string            `json:"schema"`
	Name      string            `json:"name"`
	Kind      sequencer.Kind    `json:"kind"`
	Type      string            `json:"type"`
	Start     int64             `json:"start"`
	Increment int64             `json:"increment"`
	Min       int64             `json:"min"`
	Max       int64             `json:"max"`
	Cache     int64             `json:"cache,omitempty"`
	Cycle     bool              `json:"cycle,omitempty"`
	OwnedBy   string            `json:"owned_by,omitempty"`
	Owner     string            `json:"owner,omitempty"`
	Mode      sequencer.Mode    `json:"mode"`
	Policy    map[string]string `json:"policy,omitempty"`
	LastValue int64             `json:"last_value"`
	IsCalled  bool              `json:"is_called"`
}

func exportCommand(environ []string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "export DATABASE",
		Short: "Write the sequences that the store has of a database, with modes, policies and positions",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withRegistry(cmd, environ, func(r *sequencer.Registry, store sequencer.Store) error {
				return export(cmd.Context(), r, store, args[0], cmd.OutOrStdout())
			})
		},
	}
	addFlags(cmd, "store", "namespace")
	return cmd
}

// export writes the sequences of a database in the order of their names.
func export(ctx context.Context, r *sequencer.Registry, store sequencer.Store, database string, out io.Writer) error {
	entries, err := r.List(ctx, database)
	if err != nil {
		return err
	}
	slices.SortFunc(entries, func(a, b sequencer.Entry) int {
		return cmp.Or(cmp.Compare(a.Name.Schema, b.Name.Schema), cmp.Compare(a.Name.Name, b.Name.Name))
	})
	lines := json.NewEncoder(out)
	for _, e := range entries {
		if e.Name.Schema == importSchema {
			continue // what an import left that was cut off
		}
		item, err := store.Get(ctx, e.Incarnation)
		if errors.Is(err, sequencer.ErrNotFound) {
			continue // it was dropped meanwhile
		}
		if err != nil {
			return err
		}
		d, state := item.Definition, item.Reads()
		line := exported{
			Schema: e.Name.Schema, Name: e.Name.Name, Kind: item.Kind, Type: d.Type.String(), Start: d.Start, Increment: d.Increment,
			Min: d.Min, Max: d.Max, Cache: d.Cache, Cycle: d.Cycle, OwnedBy: d.OwnedBy, Owner: d.Owner, Mode: item.Mode,
			LastValue: state.LastValue, IsCalled: state.IsCalled,
		}
		for _, s := range d.Policy.Settings() {
			if line.Policy == nil {
				line.Policy = map[string]string{}
			}
			line.Policy[s.Key] = s.Value
		}
		if err := lines.Encode(line); err != nil {
			return err
		}
	}
	return nil
}

// importSchema is that of sequences that are not imported yet. No session looks into schemas that begin with pg_.
const importSchema = "pg_nextvald_import"

func importCommand(environ []string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import DATABASE [FILE]",
		Short: "Give a database the sequences, modes and policies that export wrote (from standard input without a FILE)",
		Args:  cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			in := cmd.InOrStdin()
			if len(args) == 2 {
				file, err := os.Open(args[1])
				if err != nil {
					return err
				}
				defer func() { _ = file.Close() }()
				in = file
			}
			return withRegistry(cmd, environ, func(r *sequencer.Registry, _ sequencer.Store) error {
				return (&importing{registry: r, database: args[0], out: cmd.OutOrStdout()}).run(cmd.Context(), in)
			})
		},
	}
	addFlags(cmd, "store", "namespace")
	return cmd
}

// importing carries out an import. It may be repeated: what is there already only gets its mode and policy.
type importing struct {
	registry *sequencer.Registry
	database string
	out      io.Writer

	created, changed, missing int
}

func (i *importing) run(ctx context.Context, in io.Reader) error {
	lines := json.NewDecoder(in)
	lines.DisallowUnknownFields()
	for n := 1; ; n++ {
		var line exported
		err := lines.Decode(&line)
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = i.one(ctx, line)
		}
		if err != nil {
			return fmt.Errorf("sequence %d of the input: %w", n, err)
		}
	}
	_, _ = fmt.Fprintf(i.out, "%d created, %d changed\n", i.created, i.changed)
	if i.missing > 0 {
		return fmt.Errorf("%d sequences are not the store's yet: create or restore them in the upstream, hand them over with nextvald adopt, and import again", i.missing)
	}
	return nil
}

// one imports a sequence.
func (i *importing) one(ctx context.Context, line exported) error {
	name := sequencer.Name{Database: i.database, Schema: line.Schema, Name: line.Name}
	options, err := line.options()
	if err != nil {
		return err
	}
	_, err = i.registry.Lookup(ctx, name)
	switch {
	case err == nil:
		i.changed++
		return i.registry.Alter(ctx, name, sequencer.Options{Set: options.Set})
	case !errors.Is(err, sequencer.ErrUndefined):
		return err
	case line.Kind == sequencer.Mirrored:
		i.missing++
		_, _ = fmt.Fprintf(i.out, "%s is not the store's\n", name)
		return nil
	}
	definition, err := sequencer.Define(options)
	if err != nil {
		return err
	}
	definition.OwnedBy, definition.Owner = line.OwnedBy, line.Owner
	// It gets its name last: whoever finds it finds it where it stood.
	unready := sequencer.Name{Database: i.database, Schema: importSchema, Name: name.Schema + "." + name.Name}
	if err := i.registry.Drop(ctx, unready); err != nil && !errors.Is(err, sequencer.ErrUndefined) {
		return err
	}
	s, err := i.registry.Create(ctx, unready, definition)
	if err != nil {
		return err
	}
	if err := s.Set(ctx, line.LastValue, line.IsCalled); err != nil {
		return err
	}
	i.created++
	return i.registry.Rename(ctx, unready, name)
}

// options are the clauses that make the sequence.
func (line *exported) options() (sequencer.Options, error) {
	t, err := sequencer.ParseDataType(line.Type)
	if err != nil {
		return sequencer.Options{}, err
	}
	o := sequencer.Options{
		As: &t, Increment: &line.Increment, Start: &line.Start, Cycle: &line.Cycle,
		Min: &sequencer.Bound{Value: line.Min}, Max: &sequencer.Bound{Value: line.Max},
	}
	if line.Cache != 0 {
		o.Cache = &line.Cache
	}
	for key, value := range line.Policy {
		o.Set = append(o.Set, sequencer.Setting{Key: key, Value: value})
	}
	usual := sequencer.Cached
	if line.Cache == 1 {
		usual = sequencer.Strict
	}
	if _, ok := line.Policy["mode"]; !ok && line.Mode != usual {
		// It came from the other side's configuration, which is not carried over.
		o.Set = append(o.Set, sequencer.Setting{Key: "mode", Value: string(line.Mode)})
	}
	return o, nil
}
