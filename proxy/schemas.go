package proxy

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nextvald/nextvald/proxy/wire"
	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sqlrewrite"
)

// afterwards is what follows from a statement of the client once the upstream has carried it out.
type afterwards struct {
	drop     []sequencer.Name
	failures uint64 // of the session before the statement: one more, and nothing follows
}

// checkDropSchemas looks for sequences of ours in the schemas that a statement drops in the upstream. With CASCADE they
// go once it has succeeded.
func (x *session) checkDropSchemas(st *sqlrewrite.Statement, status byte) error {
	if len(st.DropSchemas) == 0 || x.srv.cfg.Standalone {
		return nil
	}
	ctx := x.wait()
	defer x.waited()
	entries, err := x.srv.cfg.Sequences.List(ctx, x.database)
	if err != nil {
		return err
	}
	var inside []sequencer.Name
	for _, e := range entries {
		if !slices.Contains(st.DropSchemas, e.Name.Schema) {
			continue
		}
		if x.mirrored() {
			if sequence, err := x.lookup(e.Name); err != nil {
				return err
			} else if sequence == nil || sequence.Kind() == sequencer.Mirrored {
				continue // the upstream's own
			}
		}
		inside = append(inside, e.Name)
	}
	switch {
	case len(inside) == 0:
		return nil
	case !st.DropCascade:
		return &wire.Error{Code: "2BP01", Message: fmt.Sprintf("cannot drop schema %s because other objects depend on it", inside[0].Schema),
			Detail: fmt.Sprintf("sequence %s.%s depends on schema %s", inside[0].Schema, inside[0].Name, inside[0].Schema),
			Hint:   "Use DROP ... CASCADE to drop the dependent objects too."}
	case status == inBlock:
		return notSupported("Run the statement outside of a transaction block, or drop the sequences first.",
			"DROP SCHEMA of a schema with sequences of nextvald inside a transaction block is not supported")
	}
	x.after = &afterwards{drop: inside, failures: x.failures.Load()}
	return nil
}

// follow does what follows from the statements before, once they are answered.
func (x *session) follow() error {
	if err := x.concludeLate(); err != nil {
		return err
	}
	after := x.after
	if after == nil {
		return nil
	}
	if x.batch.forwarded {
		return nil // its batch has not ended
	}
	x.after = nil
	if _, open := x.transaction(); !open {
		return errOver
	}
	x.dropAfter(after)
	return nil
}

// dropAfter removes sequences whose schema is gone, unless the statement failed.
func (x *session) dropAfter(after *afterwards) {
	if x.failures.Load() != after.failures {
		return
	}
	for _, name := range after.drop {
		if err := x.srv.cfg.Sequences.Drop(context.WithoutCancel(x.ctx), name); err != nil && !errors.Is(err, sequencer.ErrUndefined) {
			x.srv.cfg.Logger.Warn("cannot drop a sequence of a schema that is gone", "sequence", name.String(), "error", err)
		}
	}
	x.changeNames()
}
