package peerstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/nextvald/nextvald/sequencer"
)

// Centre answers the functions of schema nextvald. It is safe for concurrent use.
type Centre struct {
	registry  *sequencer.Registry
	store     sequencer.Store
	namespace string
}

// NewCentre answers from a registry and the store that it is on, which keeps a namespace.
func NewCentre(registry *sequencer.Registry, store sequencer.Store, namespace string) *Centre {
	return &Centre{registry: registry, store: store, namespace: namespace}
}

// arguments are those of a call: int64, string or nil for NULL.
type arguments []any

func (a arguments) text(i int) string {
	v, _ := a.at(i).(string)
	return v
}

func (a arguments) number(i int) int64 {
	v, _ := a.at(i).(int64)
	return v
}

func (a arguments) at(i int) any {
	if i < len(a) {
		return a[i]
	}
	return nil
}

// Call carries out a function, whose arguments are in the order and of the types that the package's documentation says, and
// returns its row. NULL is as an argument that is left out: "" or 0. Errors are *sequencer.Error.
func (c *Centre) Call(ctx context.Context, database, function string, given []any) (map[string]any, error) {
	row, err := c.call(ctx, database, function, given)
	var known *sequencer.Error
	switch {
	case err == nil || errors.As(err, &known):
		return row, err
	case errors.Is(err, sequencer.ErrUnknownOutcome):
		return nil, &sequencer.Error{Code: codeUnknownOutcome, Message: err.Error(), Err: err}
	}
	return nil, &sequencer.Error{Code: sequencer.ErrStore.Code, Message: err.Error(), Err: err}
}

// codeUnknownOutcome says that a write may have taken place (transaction_resolution_unknown).
const codeUnknownOutcome = "08007"

func (c *Centre) call(ctx context.Context, database, function string, a arguments) (map[string]any, error) {
	switch function {
	case "lease":
		return c.lease(ctx, database, a)
	case "changes":
		return c.changes(ctx, a.number(0))
	case "confirm":
		return c.confirm(ctx, a)
	case "store":
		var in message
		if err := decode(a.text(1), &in); err != nil {
			return nil, &sequencer.Error{
				Code: "22023", Message: "the argument of nextvald.store is malformed", Detail: err.Error(),
				Hint: "Run one version of nextvald at both ends.",
			}
		}
		out, err := c.run(ctx, a.text(0), in)
		return map[string]any{"store": encode(out)}, err
	}
	return nil, &sequencer.Error{Code: "0A000", Message: fmt.Sprintf("function nextvald.%s is not known here", function)}
}

func (c *Centre) lease(ctx context.Context, database string, a arguments) (map[string]any, error) {
	claim, err := c.registry.LeaseToPeer(ctx, sequencer.PeerLease{
		Name:  sequencer.Name{Database: database, Schema: a.text(0), Name: a.text(1)},
		Count: a.number(2), Member: a.text(3),
		Incarnation: a.text(4), Version: a.number(5), Told: a.number(6),
	})
	if err != nil {
		return nil, err
	}
	return map[string]any{
		"first": claim.First, "count": claim.Count, "increment": claim.Increment,
		"incarnation": claim.Incarnation, "version": claim.Version, "rev": claim.Rev,
	}, nil
}

func (c *Centre) changes(ctx context.Context, told int64) (map[string]any, error) {
	feed, err := c.registry.Followed(ctx)
	if err != nil {
		return nil, err
	}
	row := map[string]any{"rev": feed.Rev, "names": feed.Names, "topics": nil}
	if feed.Rev != told {
		row["topics"] = encode(topics{feed.Topics, feed.Latest})
	}
	return row, nil
}

func (c *Centre) confirm(ctx context.Context, a arguments) (map[string]any, error) {
	id, seen, token := a.text(0), a.number(1), a.text(2)
	row := map[string]any{"confirm": seen}
	if token == "" {
		return row, c.registry.ConfirmFor(ctx, id, seen)
	}
	err := c.store.PutMember(ctx, sequencer.Member{ID: id, Token: token, Seen: seen, Expires: a.number(3)}, token)
	if errors.Is(err, sequencer.ErrNotFound) {
		return nil, errNoMember(id)
	}
	if err != nil {
		return nil, fmt.Errorf("write the member: %w", err)
	}
	return row, nil
}

// codeNoMember is that of a member that the store has not, or not by that token (undefined_object).
const codeNoMember = "42704"

func errNoMember(id string) error {
	return &sequencer.Error{Code: codeNoMember, Message: fmt.Sprintf("member \"%s\" does not exist by that token", id)}
}

// run carries out an operation of the store. An error says that it was not even tried.
func (c *Centre) run(ctx context.Context, op string, in message) (out message, err error) {
	operation := operations[op]
	if operation == nil {
		return out, &sequencer.Error{
			Code: "22023", Message: fmt.Sprintf("nextvald.store has no operation \"%s\"", op),
			Hint: "Run one version of nextvald at both ends.",
		}
	}
	if err := operation(ctx, c, in, &out); err != nil {
		return refuse(err), nil
	}
	return out, nil
}

// operations read what they need of in, whose absent fields are zero, and write their result to out.
var operations = map[string]func(ctx context.Context, c *Centre, in message, out *message) error{
	opOpen: func(_ context.Context, c *Centre, in message, _ *message) error {
		if in.Namespace != c.namespace {
			return fmt.Errorf("it keeps namespace %q, not %q", c.namespace, in.Namespace)
		}
		return nil
	},
	opLease: func(ctx context.Context, c *Centre, in message, out *message) error {
		lease, err := c.store.Lease(ctx, orZero(in.Item), in.Count)
		out.Lease = &lease
		return err
	},
	opGiveBack: func(ctx context.Context, c *Centre, in message, _ *message) error {
		return c.store.GiveBack(ctx, orZero(in.GiveBack))
	},
	opGet: func(ctx context.Context, c *Centre, in message, out *message) error {
		item, err := c.store.Get(ctx, in.Incarnation)
		out.Item = &item
		return err
	},
	opPut: func(ctx context.Context, c *Centre, in message, _ *message) error {
		return c.store.Put(ctx, orZero(in.Item), in.Rev)
	},
	opDelete: func(ctx context.Context, c *Centre, in message, _ *message) error {
		return c.store.Delete(ctx, in.Incarnation, in.Rev)
	},
	opRevoke: func(ctx context.Context, c *Centre, in message, out *message) error {
		item, err := c.store.Revoke(ctx, in.Incarnation, in.Version, in.Changed)
		out.Item = &item
		return err
	},
	opResolve: func(ctx context.Context, c *Centre, in message, out *message) error {
		e, err := c.store.Resolve(ctx, sequencer.Name(orZero(in.Name)))
		found := entryOf(e)
		out.Entry = &found
		return err
	},
	opNames: func(ctx context.Context, c *Centre, in message, out *message) error {
		entries, err := c.store.Names(ctx, orZero(in.Name).Database)
		for _, e := range entries {
			out.Entries = append(out.Entries, entryOf(e))
		}
		return err
	},
	opPutName: func(ctx context.Context, c *Centre, in message, _ *message) error {
		return c.store.PutName(ctx, orZero(in.Entry).entry())
	},
	opDeleteName: func(ctx context.Context, c *Centre, in message, _ *message) error {
		return c.store.DeleteName(ctx, sequencer.Name(orZero(in.Name)), in.Incarnation)
	},
	opAnnounce: func(ctx context.Context, c *Centre, in message, out *message) (err error) {
		out.Rev, err = c.store.Announce(ctx, orZero(in.Announcement))
		return err
	},
	opMembers: func(ctx context.Context, c *Centre, _ message, out *message) (err error) {
		out.Members, err = c.store.Members(ctx)
		return err
	},
	opPutMember: func(ctx context.Context, c *Centre, in message, _ *message) error {
		return c.store.PutMember(ctx, orZero(in.Member), in.Token)
	},
	opDeleteMember: func(ctx context.Context, c *Centre, in message, _ *message) error {
		m := orZero(in.Member)
		return c.store.DeleteMember(ctx, m.ID, m.Token)
	},
	opNextOID: func(ctx context.Context, c *Centre, _ message, out *message) (err error) {
		out.OID, err = c.store.NextOID(ctx)
		return err
	},
}

func orZero[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
