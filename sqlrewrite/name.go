package sqlrewrite

import (
	"errors"
	"strings"
	"unicode/utf8"

	pg_query "github.com/pganalyze/pg_query_go/v5"
)

var (
	// ErrInvalidName says that a string is no qualified name (PostgreSQL: 42602, "invalid name syntax").
	ErrInvalidName = errors.New("invalid name syntax")
	// ErrTooManyParts says that a name has more parts than database, schema and name (PostgreSQL: 42601).
	ErrTooManyParts = errors.New("too many dotted names")
)

// ParseQualifiedName reads the name in a string argument of nextval or regclass: [[database.]schema.]name, parts folded
// to lower case unless quoted, blanks around parts ignored.
func ParseQualifiedName(s string) (Name, error) {
	if !utf8.ValidString(s) {
		return Name{}, ErrInvalidName
	}
	var parts []string
	rest := trimBlanks(s)
	for {
		var part string
		switch {
		case rest == "":
			return Name{}, ErrInvalidName
		case rest[0] == '"':
			var b strings.Builder
			i := 1
			for {
				end := strings.IndexByte(rest[i:], '"')
				if end < 0 {
					return Name{}, ErrInvalidName
				}
				b.WriteString(rest[i : i+end])
				i += end + 1
				if i >= len(rest) || rest[i] != '"' {
					break
				}
				b.WriteByte('"')
				i++
			}
			part, rest = b.String(), rest[i:]
		default:
			end := strings.IndexFunc(rest, func(r rune) bool { return r == '.' || isBlank(r) })
			if end < 0 {
				end = len(rest)
			}
			part, rest = foldName(rest[:end]), rest[end:]
		}
		if part == "" {
			return Name{}, ErrInvalidName
		}
		parts = append(parts, truncateName(part))
		rest = trimBlanks(rest)
		if rest == "" {
			break
		}
		if rest[0] != '.' {
			return Name{}, ErrInvalidName
		}
		rest = trimBlanks(rest[1:])
	}
	switch len(parts) {
	case 1:
		return Name{Name: parts[0]}, nil
	case 2:
		return Name{Schema: parts[0], Name: parts[1]}, nil
	case 3:
		return Name{Database: parts[0], Schema: parts[1], Name: parts[2]}, nil
	}
	return Name{}, ErrTooManyParts
}

func isBlank(r rune) bool {
	return r == ' ' || r == '\t' || r == '\n' || r == '\r' || r == '\f' || r == '\v'
}

func trimBlanks(s string) string { return strings.TrimFunc(s, isBlank) }

// foldName folds ASCII letters to lower case, as PostgreSQL does for names in a multibyte encoding.
func foldName(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s)
}

// truncateName cuts a name to PostgreSQL's length, at a character's end.
func truncateName(s string) string {
	if len(s) <= longestName {
		return s
	}
	n := longestName
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n]
}

// IsOID reports whether the string argument of nextval or regclass is an OID rather than a name.
func IsOID(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// IsReserved reports whether a word in lower case is a keyword that PostgreSQL writes in quotes where it is a name.
func IsReserved(word string) bool {
	r, err := pg_query.Scan(word)
	if err != nil || len(r.Tokens) != 1 {
		return true
	}
	kind := r.Tokens[0].KeywordKind
	return kind != pg_query.KeywordKind_NO_KEYWORD && kind != pg_query.KeywordKind_UNRESERVED_KEYWORD
}
