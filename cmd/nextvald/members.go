package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/nextvald/nextvald/sequencer"
)

func membersCommand(environ []string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "members",
		Short: "List the processes that may hold values of the store",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withRegistry(cmd, environ, func(r *sequencer.Registry, _ sequencer.Store) error {
				members, err := r.Members(cmd.Context())
				if err != nil {
					return err
				}
				w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
				_, _ = fmt.Fprintln(w, "ID\tCOUNTS UNTIL")
				for _, m := range members {
					until := "- (the file of a durable tier)"
					if !m.Mark() {
						until = time.UnixMilli(m.Expires).UTC().Format(time.RFC3339)
					}
					_, _ = fmt.Fprintf(w, "%s\t%s\n", m.ID, until)
				}
				return w.Flush()
			})
		},
	}
	addFlags(cmd, "store", "namespace")
	return cmd
}

func evictCommand(environ []string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "evict ID",
		Short: "Remove a process that is known to be dead, so that no change waits for it",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withRegistry(cmd, environ, func(r *sequencer.Registry, _ sequencer.Store) error {
				err := r.Evict(cmd.Context(), args[0])
				if errors.Is(err, sequencer.ErrNotFound) {
					return fmt.Errorf("there is no member %q", args[0])
				}
				return err
			})
		},
	}
	addFlags(cmd, "store", "namespace")
	return cmd
}

// withRegistry runs f on the store of the settings.
func withRegistry(cmd *cobra.Command, environ []string, f func(*sequencer.Registry, sequencer.Store) error) (err error) {
	ctx := cmd.Context()
	s, err := readSettings(cmd, environ)
	if err != nil {
		return err
	}
	store, err := s.store.look(ctx, s.namespace)
	if err != nil {
		return s.fault("store", err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	registry, err := sequencer.Open(ctx, store, sequencer.Config{Logger: slog.New(slog.DiscardHandler), StoreTimeout: s.storeTimeout})
	if err != nil {
		return s.fault("store", err)
	}
	defer func() {
		bounded, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		err = errors.Join(err, registry.Close(bounded))
	}()
	return f(registry, store)
}
