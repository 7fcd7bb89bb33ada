package proxy

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/nextvald/nextvald/proxy/wire"
)

// An error of ours is raised in the upstream by something that fails always, needs no privilege, and is known by its
// message: the number in it tells which error of ours it stands for.

const failingCode = "22P02" // invalid_text_representation

var failingMessage = regexp.MustCompile(`nextvald failure ([0-9]+)`)

// failingStatement takes the place of a statement that fails before it runs.
func failingStatement(n int) string {
	return fmt.Sprintf("SELECT CAST('nextvald failure %d' AS pg_catalog.int4)", n)
}

// failingExpression takes the place of a call that fails when it is evaluated: concat is not immutable, so that the
// planner does not evaluate it.
func failingExpression(n int) string {
	return fmt.Sprintf("pg_catalog.int8in(pg_catalog.textout(pg_catalog.concat('nextvald failure %d')))", n)
}

// moreRows is what a row fails with for which no value was drawn. It is known in the answer to any statement, since the rows
// of a cursor are fetched by another than its own.
const moreRows = "nextvald failure of a row without a value"

// isMoreRows reports whether an ErrorResponse body is that of such a row.
func isMoreRows(fields []byte) bool {
	return wire.ErrorField(fields, 'C') == failingCode && strings.Contains(wire.ErrorField(fields, 'M'), moreRows)
}

func errMoreRows() *wire.Error {
	return &wire.Error{Code: "40001", Message: "nextval was called for more rows than there were when they were counted",
		Detail: "nextvald counts the rows of a statement and draws their values before it runs.",
		Hint:   "Repeat the transaction. At isolation level REPEATABLE READ no rows come in between."}
}

// failureOf finds the error of ours that an ErrorResponse body stands for; nil when it is the upstream's own.
func failureOf(failures []*wire.Error, fields []byte) *wire.Error {
	if wire.ErrorField(fields, 'C') != failingCode {
		return nil
	}
	match := failingMessage.FindStringSubmatch(wire.ErrorField(fields, 'M'))
	if match == nil {
		return nil
	}
	n, err := strconv.Atoi(match[1])
	if err != nil || n >= len(failures) {
		return nil
	}
	return failures[n]
}
