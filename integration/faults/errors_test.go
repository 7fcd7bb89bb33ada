package faults

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// note counts how a call ended, and keeps what no client should see.
func (r *workload) note(ctx context.Context, life int, sequence string, limit time.Duration, err error) {
	var answer *pgconn.PgError
	switch {
	case err == nil:
		r.got.add("answers")
	case errors.As(err, &answer):
		r.got.add(answer.Code)
		if !r.expected(answer, sequence) {
			r.complain("life %d, %s: %s (detail %q, hint %q)", life, sequence, answer, answer.Detail, answer.Hint)
		}
	case ctx.Err() != nil, limit < patience: // a client that gave up
		r.got.add("given up")
	case r.world.fleet.over(life):
		r.got.add("cut off")
	default:
		r.complain("life %d, %s: %v", life, sequence, err)
	}
}

// expected reports whether a client must be ready for an error while stores, networks and processes fail.
func (r *workload) expected(answer *pgconn.PgError, sequence string) bool {
	switch answer.Code {
	case "58030":
		return answer.Hint != ""
	case "57014", "57P01", "57P03":
		return true
	case "42P01":
		return sequence == r.moved // it is being created anew
	}
	return strings.HasPrefix(answer.Code, "08")
}

// refused notes a session that did not come about.
func (r *workload) refused(ctx context.Context, life int, err error) {
	var answer *pgconn.PgError
	switch {
	case errors.As(err, &answer) && !r.expected(answer, ""):
		r.complain("life %d, a session: %s", life, answer)
	case errors.Is(err, errRestarted), ctx.Err() != nil, r.world.fleet.over(life), errors.As(err, &answer):
	case errors.Is(err, context.DeadlineExceeded): // the process was stopped
	default:
		r.complain("life %d, a session: %v", life, err)
	}
}

// complain keeps what no client should see.
func (r *workload) complain(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	const enough = 20
	if len(r.wrong) < enough {
		r.wrong = append(r.wrong, fmt.Sprintf("after %v: ", r.world.fleet.since().Round(time.Millisecond))+fmt.Sprintf(format, args...))
	}
}
