package sqlrewrite

import "strings"

// Traits is a set of hints that the words of a text give about it. A hint may be wrong; one that is missing is not.
type Traits uint32

const (
	// HasCall: nextval, currval, lastval or setval, or a quoted identifier with Unicode escapes, which may spell one.
	HasCall Traits = 1 << iota
	// HasSequenceDDL: the word sequence.
	HasSequenceDDL
	// HasKnownName: a word for which known is true.
	HasKnownName
	// HasCreate: the statement may create or rename a relation.
	HasCreate
	// HasTransaction: it may begin or end a transaction or set a savepoint.
	HasTransaction
	// HasDeallocate: DEALLOCATE or DISCARD.
	HasDeallocate
	// HasSession: it may change search_path, role, the temporary schema or what schemas exist, now or by ending what
	// changed them.
	HasSession
	// HasReadOnly: it may change the access mode of the open transaction.
	HasReadOnly
)

// anywhere are hints that a word gives wherever it stands, opening those that it gives as the first of a statement.
// All in lower case.
var (
	anywhere = map[string]Traits{
		"nextval": HasCall, "currval": HasCall, "lastval": HasCall, "setval": HasCall,
		"sequence": HasSequenceDDL,
		"create":   HasCreate, "rename": HasCreate, "schema": HasCreate | HasSession,
		"into": hintInto, "insert": hintTarget, "merge": hintTarget,
		"set_config": HasSession | HasReadOnly,
	}
	opening = map[string]Traits{
		"begin": HasTransaction, "start": HasTransaction, "commit": HasTransaction, "end": HasTransaction,
		"rollback": HasTransaction | HasSession, "abort": HasTransaction | HasSession, "savepoint": HasTransaction,
		"release": HasTransaction, "prepare": HasTransaction,
		"deallocate": HasDeallocate, "discard": HasDeallocate | HasSession,
		"set": HasSession | HasReadOnly, "reset": HasSession | HasReadOnly, "do": HasSession | HasReadOnly,
		"call": HasSession | HasReadOnly, "drop": HasSession, "alter": HasSession,
	}
)

// INTO creates a table only where it is not that of INSERT or MERGE: Scan counts both.
const (
	hintInto Traits = 1 << (iota + 24)
	hintTarget
)

const (
	// longestHint is the length of the longest word with a hint.
	longestHint = len("deallocate")
	// longestName is PostgreSQL's NAMEDATALEN - 1, in bytes.
	longestName = 63
)

// class says what a byte is in a word.
const (
	classOther = iota
	classWord
	classUpper
)

var classes = func() (c [256]uint8) {
	for b := range c {
		switch {
		case b >= 'A' && b <= 'Z':
			c[b] = classUpper
		case b >= 'a' && b <= 'z', b >= '0' && b <= '9', b == '_', b == '$', b >= 0x80:
			c[b] = classWord
		}
	}
	return c
}()

// Scan collects the hints of a text's words, wherever they stand: in comments and strings too. known says whether a
// word, or the contents of quotes, may be the name of a sequence; it may be nil. Scan allocates nothing.
func Scan(text string, known func(word string) bool) Traits {
	var (
		traits        Traits
		into, targets int
		opens         = true // the next word is the first of a statement
	)
	for i := 0; i < len(text); {
		if classes[text[i]] == classOther {
			switch b := text[i]; {
			case b == '"':
				traits |= quotedHint(text, i, known)
			case b == ';':
				opens = true
			case opens && (b == '-' || b == '/'):
				end := comment(text, i)
				traits |= Scan(text[i+1:end], known) // a comment may hold a name, and its words do no harm
				i = end
				continue
			}
			i++
			continue
		}
		start, upper := i, false
		for i < len(text) {
			c := classes[text[i]]
			if c == classOther {
				break
			}
			upper = upper || c == classUpper
			i++
		}
		hint := wordHint(text[start:i], upper, opens, known)
		opens = false
		if hint&hintInto != 0 {
			into++
		}
		if hint&hintTarget != 0 {
			targets++
		}
		traits |= hint &^ (hintInto | hintTarget)
	}
	if into > targets {
		traits |= HasCreate
	}
	return traits
}

// comment is the end of a comment that begins at text[at], or at+1 where none does.
func comment(text string, at int) int {
	rest := text[at:]
	switch {
	case strings.HasPrefix(rest, "--"):
		if n := strings.IndexAny(rest, "\r\n"); n >= 0 {
			return at + n
		}
		return len(text)
	case strings.HasPrefix(rest, "/*"):
		for i, depth := at+2, 1; i+1 < len(text); i++ {
			switch text[i : i+2] {
			case "/*":
				depth++
				i++
			case "*/":
				depth--
				i++
			}
			if depth == 0 {
				return i + 1
			}
		}
		return len(text)
	}
	return at + 1
}

// wordHint is the hint of one word.
func wordHint(word string, upper, opens bool, known func(string) bool) (traits Traits) {
	if len(word) > longestName {
		return 0
	}
	if upper {
		var folded [longestName]byte
		for i := range len(word) {
			b := word[i]
			if b >= 'A' && b <= 'Z' {
				b += 'a' - 'A'
			}
			folded[i] = b
		}
		lower := folded[:len(word)]
		if len(word) <= longestHint {
			traits = anywhere[string(lower)]
			if opens {
				traits |= opening[string(lower)]
			}
		}
		if known != nil && known(string(lower)) {
			traits |= HasKnownName
		}
		return traits
	}
	if len(word) <= longestHint {
		traits = anywhere[word]
		if opens {
			traits |= opening[word]
		}
	}
	if known != nil && known(word) {
		traits |= HasKnownName
	}
	return traits
}

// quotedHint is the hint of what a double quote at text[at] may begin: a name that no word shows, for its blanks,
// upper case or escapes.
func quotedHint(text string, at int, known func(string) bool) Traits {
	if at > 1 && text[at-1] == '&' && (text[at-2] == 'U' || text[at-2] == 'u') {
		return HasCall
	}
	if known == nil {
		return 0
	}
	for end := at + 1; end < len(text) && end-at <= longestName+1; end++ {
		if text[end] != '"' {
			continue
		}
		if end+1 < len(text) && text[end+1] == '"' {
			return HasKnownName // a quote in the name: rare enough to look closer
		}
		if end > at+1 && known(text[at+1:end]) {
			return HasKnownName
		}
		return 0
	}
	return 0
}
