package sequencer

import (
	"context"
	"errors"
	"fmt"
)

// SQLSTATEs of this package's errors.
const (
	codeUndefined    = "42P01" // undefined_table
	codeDuplicate    = "42P07" // duplicate_table
	codeExhausted    = "2200H" // sequence_generator_limit_exceeded
	codeInvalid      = "22023" // invalid_parameter_value
	codeOutOfRange   = "22003" // numeric_value_out_of_range
	codeState        = "55000" // object_not_in_prerequisite_state
	codeNoObject     = "42704" // undefined_object
	codeLimit        = "54000" // program_limit_exceeded
	codeStore        = "58030" // io_error
	codeCanceled     = "57014" // query_canceled
	codeShuttingDown = "57P03" // cannot_connect_now
)

// Error is an error with a SQLSTATE, worded as PostgreSQL words it where PostgreSQL has it.
type Error struct {
	Code    string // SQLSTATE, five characters
	Message string
	Detail  string
	Hint    string
	Err     error // the cause, or nil
}

// Errors to compare with by errors.Is: an Error matches when its Code does.
var (
	// ErrUndefined: no such sequence (42P01).
	ErrUndefined = &Error{Code: codeUndefined}
	// ErrDuplicate: the name is taken (42P07).
	ErrDuplicate = &Error{Code: codeDuplicate}
	// ErrExhausted: a sequence without CYCLE reached its limit (2200H).
	ErrExhausted = &Error{Code: codeExhausted}
	// ErrStore: the store failed or did not answer (58030). A change that failed so was not made, unless Detail says
	// that its outcome is unknown.
	ErrStore = &Error{Code: codeStore}
	// ErrShuttingDown: the registry is closed (57P03).
	ErrShuttingDown = &Error{Code: codeShuttingDown}
)

// ErrMoving: the sequence is being handed over between the store and the upstream, or the upstream hands it out: that is
// whom to ask. It is the cause of an Error of code 55000.
var ErrMoving = errors.New("the sequence is being handed over")

func (e *Error) Error() string {
	switch {
	case e.Message == "":
		return "SQLSTATE " + e.Code
	case e.Err != nil:
		return fmt.Sprintf("%s: %v", e.Message, e.Err)
	}
	return e.Message
}

func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is one of this package's sentinels with the same code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Message == "" && t.Code == e.Code
}

func invalid(format string, args ...any) *Error {
	return &Error{Code: codeInvalid, Message: fmt.Sprintf(format, args...)}
}

func undefined(n Name) *Error {
	return &Error{Code: codeUndefined, Message: fmt.Sprintf("relation %q does not exist", bare(n.Name))}
}

func duplicate(n Name) *Error {
	return &Error{Code: codeDuplicate, Message: fmt.Sprintf("relation %q already exists", bare(n.Name))}
}

func exhausted(n Name, d Definition) *Error {
	kind, bound := "maximum", d.Max
	if d.Increment < 0 {
		kind, bound = "minimum", d.Min
	}
	return &Error{
		Code:    codeExhausted,
		Message: fmt.Sprintf("nextval: reached %s value of sequence %q (%d)", kind, bare(n.Name), bound),
	}
}

func moving(n Name) *Error {
	return &Error{
		Code:    codeState,
		Message: fmt.Sprintf("sequence %q is not handed out by the store", bare(n.Name)),
		Hint:    "It is being handed over to the upstream or from there. Try again.",
		Err:     ErrMoving,
	}
}

// setBack is the error of a sequence whose store knows less than this process.
func setBack(n Name, cause error) *Error {
	return &Error{
		Code:    codeStore,
		Message: fmt.Sprintf("the sequence store was set back for sequence %q", bare(n.Name)),
		Detail:  "It may have been restored from a backup. Values that were handed out since would be handed out again.",
		Hint:    "Move the sequence past every value in use with setval, then restart every nextvald of the namespace.",
		Err:     cause,
	}
}

// storeFailure wraps an error of the store for the caller of op.
func storeFailure(op string, err error) *Error {
	var known *Error
	if errors.As(err, &known) {
		return known
	}
	if errors.Is(err, context.Canceled) && !errors.Is(err, ErrUnknownOutcome) {
		return canceled(err)
	}
	e := &Error{
		Code:    codeStore,
		Message: "could not " + op + " in the sequence store",
		Hint:    "Check that the sequence store is reachable and try again.",
		Err:     err,
	}
	if errors.Is(err, ErrUnknownOutcome) {
		e.Detail = "The store did not say whether the write took place."
	}
	return e
}

func canceled(cause error) *Error {
	return &Error{Code: codeCanceled, Message: "canceling statement due to user request", Err: cause}
}

// bare makes %q print a name between plain double quotes as PostgreSQL does, without Go's escapes.
type bare string

func (b bare) Format(f fmt.State, _ rune) { fmt.Fprint(f, `"`+string(b)+`"`) }
