package proxy

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"

	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sqlrewrite"
)

// pendingSchema is where a sequence lives until the transaction that created it commits. No client can name it: the
// names of schemas hold no NUL.
const pendingSchema = "pending\x00"

// pending is sequence DDL of a transaction that has not committed. It is written in order at COMMIT. A sequence that the
// transaction created exists already, under a name that nobody else knows, so that it can be used; COMMIT renames it.
type pending struct {
	find       func(sequencer.Name) (*sequencer.Sequence, error)
	names      map[sequencer.Name]change
	steps      []func(context.Context, Sequences) error
	created    []sequencer.Name // under hidden names, in order
	savepoints []savepoint
	implicit   bool // ends with its Query rather than by COMMIT
}

// change is what a name means in the transaction.
type change struct {
	gone    bool           // dropped, or renamed to another
	stands  sequencer.Name // the name in the registry
	altered bool           // by an ALTER that is not written yet
}

type savepoint struct {
	name           string
	names          map[sequencer.Name]change
	steps, created int
}

// beginPending starts to keep DDL back.
func (x *session) beginPending() {
	if x.pending != nil {
		return
	}
	x.pending = &pending{
		names: make(map[sequencer.Name]change),
		find: func(name sequencer.Name) (*sequencer.Sequence, error) {
			x.detach()
			return x.srv.cfg.Sequences.Lookup(x.ctx, name)
		},
	}
}

// beginImplicit starts the transaction of a Query with several statements.
func (x *session) beginImplicit() {
	x.beginPending()
	x.pending.implicit = true
}

func (x *session) commitImplicit() error {
	switch p := x.pending; {
	case p == nil || !p.implicit:
		return nil
	case byte(x.status.Load()) != idle: // the Query began a transaction block and left it open
		p.implicit = false
		return nil
	}
	return x.commitPending()
}

func (x *session) rollbackImplicit() {
	if x.pending != nil && x.pending.implicit {
		x.rollbackPending()
	}
}

// lookup finds a sequence as the transaction sees it; decided is false for a name that it did not change.
func (p *pending) lookup(name sequencer.Name) (sequence *sequencer.Sequence, decided bool, err error) {
	c, ok := p.names[name]
	switch {
	case !ok:
		return nil, false, nil
	case c.gone:
		return nil, true, nil
	}
	sequence, err = p.find(c.stands)
	if errors.Is(err, sequencer.ErrUndefined) {
		return nil, true, nil
	}
	return sequence, true, err
}

// stands is the name under which the registry has what the transaction calls name.
func (p *pending) stands(name sequencer.Name) sequencer.Name {
	if c, ok := p.names[name]; ok {
		return c.stands
	}
	return name
}

// called is the name by which the transaction calls what the registry has under name.
func (p *pending) called(name sequencer.Name) sequencer.Name {
	for called, c := range p.names {
		if !c.gone && c.stands == name {
			return called
		}
	}
	return name
}

// isAltered reports whether a sequence has an ALTER that is not written yet.
func (p *pending) isAltered(name sequencer.Name) bool {
	return p.names[p.called(name)].altered
}

// visible is the name by which the session knows a sequence.
func (x *session) visible(sequence Sequence) sequencer.Name {
	if x.pending == nil {
		return sequence.Name()
	}
	return x.pending.called(sequence.Name())
}

// create, alter, rename and drop change a sequence, by the name that the session knows: now, or at COMMIT inside a
// transaction.

func (x *session) create(name sequencer.Name, def sequencer.Definition) error {
	ctx := x.wait()
	defer x.waited()
	p := x.pending
	if p == nil {
		_, err := x.srv.cfg.Sequences.Create(ctx, name, def)
		return err
	}
	hidden := sequencer.Name{Database: name.Database, Schema: pendingSchema + rand.Text(), Name: name.Name}
	if _, err := x.srv.cfg.Sequences.Create(ctx, hidden, def); err != nil {
		return err
	}
	p.created = append(p.created, hidden)
	p.names[name] = change{stands: hidden}
	p.steps = append(p.steps, func(ctx context.Context, s Sequences) error { return s.Rename(ctx, hidden, name) })
	return nil
}

func (x *session) alter(name sequencer.Name, options sequencer.Options) error {
	ctx := x.wait()
	defer x.waited()
	p := x.pending
	if p == nil {
		return x.srv.cfg.Sequences.Alter(ctx, name, options)
	}
	stands := p.stands(name)
	if p.isOwn(stands) && len(p.savepoints) == 0 {
		return x.srv.cfg.Sequences.Alter(ctx, stands, options) // nobody else sees it, and ROLLBACK drops it
	}
	p.names[name] = change{stands: stands, altered: true}
	p.steps = append(p.steps, func(ctx context.Context, s Sequences) error { return s.Alter(ctx, name, options) })
	return nil
}

func (x *session) rename(name, to sequencer.Name) error {
	ctx := x.wait()
	defer x.waited()
	p := x.pending
	if p == nil {
		return x.srv.cfg.Sequences.Rename(ctx, name, to)
	}
	c := change{stands: p.stands(name), altered: p.names[name].altered}
	p.names[name] = change{gone: true}
	p.names[to] = c
	p.steps = append(p.steps, func(ctx context.Context, s Sequences) error { return s.Rename(ctx, name, to) })
	return nil
}

func (x *session) drop(name sequencer.Name) error {
	ctx := x.wait()
	defer x.waited()
	p := x.pending
	if p == nil {
		return x.srv.cfg.Sequences.Drop(ctx, name)
	}
	p.names[name] = change{gone: true}
	p.steps = append(p.steps, func(ctx context.Context, s Sequences) error { return s.Drop(ctx, name) })
	return nil
}

// isOwn reports whether the transaction itself created the sequence.
func (p *pending) isOwn(name sequencer.Name) bool {
	for _, created := range p.created {
		if created == name {
			return true
		}
	}
	return false
}

// checkPending refuses the use of a sequence whose ALTER is not written yet: nobody knows its next value.
func (x *session) checkPending(sequence Sequence) error {
	if x.pending == nil || !x.pending.isAltered(sequence.Name()) {
		return nil
	}
	return notSupported("Use the sequence after COMMIT.", "using sequence \"%s\" in the transaction that altered it is not supported", sequence.Name().Name)
}

// transactionPending follows a transaction statement that is about to run.
func (x *session) transactionPending(t sqlrewrite.Transaction) error {
	p := x.pending
	if p == nil && t.Verb != sqlrewrite.Savepoint {
		return nil // nothing to follow
	}
	switch t.Verb {
	case sqlrewrite.Commit:
		if byte(x.status.Load()) == failed {
			x.rollbackPending()
			return nil
		}
		return x.commitPending()
	case sqlrewrite.Rollback:
		x.rollbackPending()
	case sqlrewrite.PrepareTransaction:
		return notSupported("Commit instead.", "PREPARE TRANSACTION after sequence DDL of nextvald is not supported")
	case sqlrewrite.Savepoint:
		if x.srv.cfg.Standalone && byte(x.status.Load()) == inBlock {
			x.beginPending()
			p = x.pending
			p.savepoints = append(p.savepoints, savepoint{name: t.Savepoint, names: maps.Clone(p.names), steps: len(p.steps), created: len(p.created)})
		}
	case sqlrewrite.RollbackTo, sqlrewrite.Release:
		for i := len(p.savepoints) - 1; i >= 0; i-- {
			s := p.savepoints[i]
			if s.name != t.Savepoint {
				continue
			}
			if t.Verb == sqlrewrite.Release {
				p.savepoints = p.savepoints[:i]
				break
			}
			p.savepoints = p.savepoints[:i+1]
			x.dropHidden(p.created[s.created:])
			p.names, p.steps, p.created = maps.Clone(s.names), p.steps[:s.steps], p.created[:s.created]
			x.changeNames()
			break
		}
	}
	return nil
}

// commitPending writes what was kept back, in order. After a failure the steps before it stay written, and the error
// says so.
func (x *session) commitPending() error {
	p := x.pending
	x.pending = nil
	x.changeNames()
	ctx := x.wait()
	defer x.waited()
	for i, step := range p.steps {
		if err := step(ctx, x.srv.cfg.Sequences); err != nil {
			x.dropHidden(p.created)
			e := *clientError(err)
			if i > 0 {
				e.Detail = fmt.Sprintf("%d of %d sequence changes of the transaction were made before this error.", i, len(p.steps))
			}
			return &e
		}
	}
	return nil
}

// rollbackPending forgets what was kept back.
func (x *session) rollbackPending() {
	p := x.pending
	x.pending = nil
	x.changeNames()
	x.dropHidden(p.created)
}

// dropHidden removes sequences that never came to have their name. One that cannot be removed now stays behind unseen.
func (x *session) dropHidden(names []sequencer.Name) {
	for _, name := range names {
		if err := x.srv.cfg.Sequences.Drop(context.WithoutCancel(x.ctx), name); err != nil && !errors.Is(err, sequencer.ErrUndefined) {
			x.srv.cfg.Logger.Warn("cannot remove an uncommitted sequence", "sequence", name.Name, "error", err)
		}
	}
}
