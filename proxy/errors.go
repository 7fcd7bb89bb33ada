package proxy

import (
	"context"
	"errors"
	"fmt"

	"github.com/nextvald/nextvald/proxy/wire"
	"github.com/nextvald/nextvald/sequencer"
)

// errOver ends the client side: the session is over for a reason that others tell.
var errOver = errors.New("session is over")

func errUpstreamLost() *wire.Error {
	return &wire.Error{Code: "08006", Message: "lost the connection to the upstream server",
		Hint: "Connect again once the upstream PostgreSQL is back."}
}

func errShutdown() *wire.Error {
	return &wire.Error{Code: "57P01", Message: "terminating connection due to administrator command"}
}

func errDraining() *wire.Error {
	return &wire.Error{Code: cannotConnectNow, Message: "the database system is shutting down",
		Hint: "This nextvald stops. Connect to another one, or again once it is back."}
}

func errTooMany() *wire.Error {
	return &wire.Error{Code: "53300", Message: "sorry, too many clients already",
		Hint: "nextvald's setting max_connections bounds them."}
}

// ending is the word by which we end a session that is idle, or not logged in yet.
type ending struct{ word *wire.Error }

func (e *ending) Error() string { return e.word.Error() }

// clientError is the error that a client sees for err.
func clientError(err error) *wire.Error {
	var (
		ours *wire.Error
		seq  *sequencer.Error
	)
	switch {
	case errors.As(err, &ours):
		return ours
	case errors.Is(err, context.Canceled):
		return &wire.Error{Code: "57014", Message: "canceling statement due to user request"}
	case errors.As(err, &seq):
		return &wire.Error{Code: seq.Code, Message: seq.Message, Detail: seq.Detail, Hint: seq.Hint}
	default:
		return &wire.Error{Code: "58030", Message: err.Error(), Hint: "See nextvald's log."}
	}
}

// notSupported is the error for what cannot be done right: 0A000 with what to do instead.
func notSupported(hint, format string, args ...any) *wire.Error {
	return &wire.Error{Code: "0A000", Message: fmt.Sprintf(format, args...), Hint: hint}
}

func errUndefined(name string) *wire.Error {
	return &wire.Error{Code: "42P01", Message: fmt.Sprintf("relation \"%s\" does not exist", name)}
}

func errDuplicate(name string) *wire.Error {
	return &wire.Error{Code: "42P07", Message: fmt.Sprintf("relation \"%s\" already exists", name)}
}

func errReadOnly(what string) *wire.Error {
	return &wire.Error{Code: "25006", Message: fmt.Sprintf("cannot execute %s in a read-only transaction", what)}
}
