package proxy

import (
	"sync/atomic"

	"github.com/nextvald/nextvald/sqlrewrite"
)

// A tristate is a fact that may be unknown.
type tristate int32

const (
	unknown tristate = iota
	no
	yes
)

// access follows whether the session may write, as far as that can be told from outside; the rest is asked.
type access struct {
	// What the upstream reports, from PostgreSQL 14 on.
	byDefault, standby atomic.Int32
	// backslashes: backslashes escape in plain string constants, which the parser does not expect.
	backslashes atomic.Bool

	// block is the access mode of the open transaction; the client side's.
	block tristate
	// inBlock: block is about a transaction that was begun.
	inBlock bool
}

func (a *access) reported(what *atomic.Int32, on bool) {
	what.Store(int32(no))
	if on {
		what.Store(int32(yes))
	}
}

// initial is the access mode that a new transaction gets.
func (a *access) initial() tristate {
	byDefault, standby := tristate(a.byDefault.Load()), tristate(a.standby.Load())
	switch {
	case byDefault == yes || standby == yes:
		return yes
	case byDefault == no && standby == no:
		return no
	}
	return unknown
}

// transaction notes a transaction statement that the upstream is about to run.
func (a *access) transaction(t sqlrewrite.Transaction) {
	switch t.Verb {
	case sqlrewrite.Begin:
		a.inBlock = true
		a.block = a.initial()
		if t.ReadOnly != nil {
			a.block = no
			if *t.ReadOnly {
				a.block = yes
			}
			if !*t.ReadOnly && tristate(a.standby.Load()) != no {
				a.block = unknown
			}
		}
	case sqlrewrite.Commit, sqlrewrite.Rollback, sqlrewrite.PrepareTransaction:
		a.inBlock = t.Chain && a.inBlock // AND CHAIN keeps the mode
	}
}

// mode is the access mode of the statement about to run, in a session whose transaction state is status.
func (a *access) mode(status byte) tristate {
	if a.inBlock {
		return a.block
	}
	if status == idle {
		return a.initial()
	}
	return unknown
}

// readOnly reports whether the next statement runs in a read-only transaction, and asks the upstream when nothing else
// tells.
func (x *session) readOnly() (bool, error) {
	mode := x.access.mode(byte(x.status.Load()))
	if mode == unknown {
		rows, err := x.ask("SHOW transaction_read_only")
		if err != nil {
			return false, err
		}
		mode = no
		if len(rows) == 1 && rows[0][0] == "on" {
			mode = yes
		}
		if byte(x.status.Load()) == inBlock {
			x.access.block, x.access.inBlock = mode, true
		}
	}
	return mode == yes, nil
}
