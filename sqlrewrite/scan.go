package sqlrewrite

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

// Hints about single words, which Scan weighs at the end: the SET of an UPDATE and the DO of an ON CONFLICT change
// nothing of the session.
const (
	hintSet Traits = 1 << (iota + 24)
	hintUpdate
	hintDo
	hintConflict
	hintSeveral // a semicolon with a word after it

	weighed = hintSet | hintUpdate | hintDo | hintConflict | hintSeveral
)

// hints are the words that matter, in lower case.
var hints = map[string]Traits{
	"nextval": HasCall, "currval": HasCall, "lastval": HasCall, "setval": HasCall,
	"sequence": HasSequenceDDL,

	"create": HasCreate, "into": HasCreate, "rename": HasCreate, "import": HasCreate,

	"begin": HasTransaction, "start": HasTransaction, "commit": HasTransaction, "end": HasTransaction,
	"rollback": HasTransaction | HasSession, "abort": HasTransaction | HasSession, "savepoint": HasTransaction,
	"release": HasTransaction, "prepare": HasTransaction,

	"deallocate": HasDeallocate,
	"discard":    HasDeallocate | HasSession,

	"set": hintSet, "update": hintUpdate, "conflict": hintConflict, "do": hintDo, "reset": HasSession | HasReadOnly, "set_config": HasSession | HasReadOnly,
	"schema": HasSession | HasCreate, "call": HasSession | HasReadOnly,
	"execute": HasSession | HasReadOnly, "role": HasSession, "drop": HasSession,
}

const (
	// longestHint is the length of the longest word in hints.
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
	var traits, after Traits
	for i := 0; i < len(text); {
		c := classes[text[i]]
		if c == classOther {
			switch text[i] {
			case '"':
				traits |= quotedHint(text, i, known)
			case ';':
				after = hintSeveral
			}
			i++
			continue
		}
		traits |= after
		start, upper := i, false
		for i < len(text) {
			c := classes[text[i]]
			if c == classOther {
				break
			}
			upper = upper || c == classUpper
			i++
		}
		traits |= wordHint(text[start:i], upper, known)
	}
	several := traits&hintSeveral != 0
	if traits&hintSet != 0 && (traits&hintUpdate == 0 || several) || traits&hintDo != 0 && (traits&hintConflict == 0 || several) {
		traits |= HasSession | HasReadOnly
	}
	return traits &^ weighed
}

// wordHint is the hint of one word.
func wordHint(word string, upper bool, known func(string) bool) (traits Traits) {
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
			traits = hints[string(lower)]
		}
		if known != nil && known(string(lower)) {
			traits |= HasKnownName
		}
		return traits
	}
	if len(word) <= longestHint {
		traits = hints[word]
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
