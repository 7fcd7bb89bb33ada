package answer

import (
	"fmt"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/nextvald/nextvald/proxy/wire"
)

// SQLSTATEs of the errors made here.
const (
	codeProtocolViolation     = "08P01"
	codeFeatureNotSupported   = "0A000"
	codeNumericOutOfRange     = "22003"
	codeBadByteSequence       = "22021"
	codeInvalidParameterValue = "22023"
	codeInvalidText           = "22P02"
	codeInvalidBinary         = "22P03"
	codeCannotCoerce          = "42846"
)

// errorf returns an error of which PostgreSQL has the same code and words.
func errorf(code, format string, args ...any) error {
	return &wire.Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

func errSyntax(typ uint32, text string) error {
	return errorf(codeInvalidText, "invalid input syntax for type %s: \"%s\"", TypeName(typ), text)
}

func errTextOutOfRange(typ uint32, text string) error {
	return errorf(codeNumericOutOfRange, "value \"%s\" is out of range for type %s", text, TypeName(typ))
}

func errOutOfRange(typ uint32) error {
	if typ == pgtype.OIDOID {
		return errorf(codeNumericOutOfRange, "OID out of range")
	}
	return errorf(codeNumericOutOfRange, "%s out of range", TypeName(typ))
}

func errFormat(code int16) error {
	return errorf(codeInvalidParameterValue, "unsupported format code: %d", code)
}
