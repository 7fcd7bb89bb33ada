package standalone

import (
	"fmt"
	"unicode/utf8"

	"github.com/nextvald/nextvald/proxy/wire"
)

const hintUpstream = "Start nextvald with --upstream to pass statements to a PostgreSQL."

func errorf(code, format string, args ...any) *wire.Error {
	return &wire.Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

func fatalf(code, format string, args ...any) *wire.Error {
	return &wire.Error{Severity: wire.SeverityFatal, Code: code, Message: fmt.Sprintf(format, args...)}
}

// unsupported is the refusal of what only a real PostgreSQL can do.
func unsupported(what string) *wire.Error {
	return &wire.Error{Code: "0A000", Message: what + " is not supported without an upstream", Hint: hintUpstream}
}

func errFailedBlock() *wire.Error {
	return errorf("25P02", "current transaction is aborted, commands ignored until end of transaction block")
}

// positionOf is the position of a byte offset as the P field counts: characters from 1; 0 for an unknown offset.
func positionOf(text string, offset int32) int {
	if offset < 0 || int(offset) > len(text) {
		return 0
	}
	return utf8.RuneCountInString(text[:offset]) + 1
}
