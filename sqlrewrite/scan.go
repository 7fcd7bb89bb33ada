package sqlrewrite

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
	"unsafe"
)

// Traits is a set of hints that the words of a text give about it. A hint may be wrong; one that is missing is not.
type Traits uint32

const (
	// HasCall: nextval, currval, lastval, setval or the schema nextvald.
	HasCall Traits = 1 << iota
	// HasSequenceDDL: the word sequence.
	HasSequenceDDL
	// HasKnownName: a word for which known is true.
	HasKnownName
	// HasCreate: the statement may create, rename or move a relation.
	HasCreate
	// HasTransaction: it may begin or end a transaction or set a savepoint.
	HasTransaction
	// HasDeallocate: DEALLOCATE or DISCARD.
	HasDeallocate
	// HasSession: it may change search_path, role, the temporary schema or what schemas exist, now or by undoing what
	// changed them: SET, RESET, DISCARD, set_config, ROLLBACK, DDL of schemas, ALTER, DROP, and CALL and DO, which may
	// hold any of these. A COMMIT ends what SET LOCAL changed, and a function may change settings unseen.
	HasSession
	// HasReadOnly: it may change the access mode of the open transaction: SET, RESET, set_config, CALL and DO. The mode
	// that BEGIN names is in Transaction.
	HasReadOnly
	// HasMoves: it may alter, drop, rename or set back sequences, or run what was prepared to do so: ALTER, DROP, TRUNCATE, DO
	// and EXECUTE.
	HasMoves
	// HasCatalog: the name of a relation or function by which catalogs tell of sequences.
	HasCatalog
	// HasExecute: EXECUTE.
	HasExecute
)

// hint is what a word says wherever it stands, and what it says as the first of a statement.
type hint struct{ anywhere, opening Traits }

// hints are those of the words that have one, in lower case.
var hints = map[string]hint{
	"nextval": {anywhere: HasCall}, "currval": {anywhere: HasCall}, "lastval": {anywhere: HasCall}, "setval": {anywhere: HasCall | hintMove},
	peerSchema: {anywhere: HasCall},
	"sequence": {anywhere: HasSequenceDDL},
	"create":   {anywhere: HasCreate}, "rename": {anywhere: HasCreate}, "schema": {anywhere: HasCreate | HasSession},
	"into": {anywhere: hintInto}, "insert": {anywhere: hintTarget}, "merge": {anywhere: hintTarget},
	"set_config": {anywhere: HasSession | HasReadOnly},

	"begin": {opening: HasTransaction}, "start": {opening: HasTransaction}, "commit": {opening: HasTransaction},
	"end": {opening: HasTransaction}, "rollback": {opening: HasTransaction | HasSession},
	"abort": {opening: HasTransaction | HasSession}, "savepoint": {opening: HasTransaction},
	"release": {opening: HasTransaction}, "prepare": {opening: HasTransaction | HasMoves},
	"deallocate": {opening: HasDeallocate}, "discard": {opening: HasDeallocate | HasSession},
	"set": {opening: HasSession | HasReadOnly}, "reset": {opening: HasSession | HasReadOnly},
	"do": {opening: HasSession | HasReadOnly | HasMoves}, "call": {opening: HasSession | HasReadOnly},
	"drop": {opening: HasSession | HasMoves, anywhere: hintMove}, "alter": {opening: HasSession | HasCreate | HasMoves, anywhere: hintMove},
	"truncate": {opening: HasMoves, anywhere: hintMove}, "execute": {opening: HasMoves, anywhere: HasExecute}, "grant": {opening: HasSession},
	"revoke": {opening: HasSession},

	"pg_sequence": {anywhere: HasCatalog}, "pg_sequences": {anywhere: HasCatalog}, "sequences": {anywhere: HasCatalog},
	"pg_sequence_last_value": {anywhere: HasCatalog}, "pg_sequence_parameters": {anywhere: HasCatalog},
	"pg_get_sequence_data": {anywhere: HasCatalog},
}

// INTO creates a table only where it does not follow INSERT or MERGE. A move in the text of DO may stand anywhere.
const (
	hintInto Traits = 1 << (iota + 24)
	hintTarget
	hintMove
)

// longestHint is the length of the longest word with a hint.
const longestHint = 31

// longestName is PostgreSQL's NAMEDATALEN - 1, in bytes.
const longestName = 63

// hintLengths holds the lengths of the words with a hint, as bits, by their first letter in either case.
var hintLengths = func() (lengths [256]uint32) {
	for word := range hints {
		lengths[word[0]] |= 1 << len(word)
		lengths[word[0]-'a'+'A'] |= 1 << len(word)
	}
	return lengths
}()

// classes say what each byte is in a word.
var classes = func() (c [256]uint8) {
	for b := range c {
		switch {
		case b >= 'A' && b <= 'Z':
			c[b] = classUpper
		case b >= '0' && b <= '9':
			c[b] = classDigit
		case b == '$':
			c[b] = classDollar
		case b >= 'a' && b <= 'z', b == '_', b >= 0x80:
			c[b] = classLower
		}
	}
	return c
}()

// Classes of bytes; a word's are joined.
const (
	classLower uint8 = 1 << iota
	classUpper
	classDigit
	classDollar
)

// Scan collects the hints of a text's words, wherever they stand: in comments and strings too. known says whether a
// word, or the contents of quotes, may be the name of a sequence; it may be nil, and must not keep the word. Scan
// allocates nothing, but for names with Unicode escapes.
func Scan(text string, known func(word string) bool) Traits {
	return scan(text, known) &^ (hintInto | hintTarget | hintMove)
}

func scan(text string, known func(word string) bool) Traits {
	s := scanner{known: known, opens: true}
	s.scan(text)
	if s.name != nil {
		nameBuffers.Put(s.name)
	}
	return s.traits
}

// scanner is the state of a Scan.
type scanner struct {
	known  func(word string) bool
	traits Traits
	opens  bool // the next word is the first of a statement
	target bool // the word before was INSERT or MERGE, with nothing but blanks since
	name   *nameBuffer
}

// nameBuffer holds a name that does not stand in the text as it is, and a byte more that shows that it is too long.
type nameBuffer [longestName + 1]byte

var nameBuffers = sync.Pool{New: func() any { return new(nameBuffer) }}

func (s *scanner) scan(text string) {
	comment := 0 // the end of the last comment before a statement's first word
	for i := 0; i < len(text); {
		class := classes[text[i]]
		if class == 0 {
			switch b := text[i]; {
			case b == ' ', b == '\n', b == '\t', b == '\r':
				i++
				continue
			case b == '"':
				s.quoted(text, i)
			case b == ';':
				s.opens = true
			case s.opens && i >= comment && (b == '-' || b == '/'):
				comment = commentEnd(text, i)
			}
			s.target = false
			i++
			continue
		}
		start := i
		for i++; i < len(text); i++ {
			c := classes[text[i]]
			if c == 0 {
				break
			}
			class |= c
		}
		if class&^(classDigit|classDollar) != 0 { // else a number or parameter
			s.word(text[start:i], class)
		}
		s.opens = s.opens && start < comment
	}
}

// word adds the hint of a word of these classes.
func (s *scanner) word(word string, class uint8) {
	if class&classDollar != 0 {
		s.pieces(word, class&^classDollar)
	}
	target := s.target
	s.target = false
	whole := word
	if len(word) > longestName {
		word = truncateName(word)
	}
	mayHint := len(whole) <= longestHint && hintLengths[word[0]]>>len(whole)&1 != 0
	if s.known == nil && !mayHint {
		return
	}
	if class&classUpper != 0 {
		word = s.lower(word)
	}
	if mayHint {
		h := hints[word]
		s.traits |= h.anywhere
		if s.opens {
			s.traits |= h.opening
		}
		switch h.anywhere {
		case hintInto:
			if !target {
				s.traits |= HasCreate
			}
		case hintTarget:
			s.target = true
		}
	}
	if s.traits&HasKnownName == 0 && s.known != nil && s.known(word) {
		s.traits |= HasKnownName
	}
}

// pieces adds the hints of a word's parts between dollar signs: they may be the quotes of a string.
func (s *scanner) pieces(word string, class uint8) {
	for word != "" {
		piece, rest, _ := strings.Cut(word, "$")
		if strings.Trim(piece, "0123456789") != "" {
			s.word(piece, class)
		}
		word = rest
	}
}

// lower is a word in lower case, until the next call.
func (s *scanner) lower(word string) string {
	buffer := s.buffer()
	for i := range len(word) {
		b := word[i]
		if b >= 'A' && b <= 'Z' {
			b += 'a' - 'A'
		}
		buffer[i] = b
	}
	return unsafe.String(&buffer[0], len(word))
}

func (s *scanner) buffer() *nameBuffer {
	if s.name == nil {
		s.name = nameBuffers.Get().(*nameBuffer)
	}
	return s.name
}

// quoted adds the hint of what a double quote at text[at] may begin: a name that no word shows, for its blanks, upper
// case or escapes.
func (s *scanner) quoted(text string, at int) {
	if at > 1 && text[at-1] == '&' && (text[at-2] == 'U' || text[at-2] == 'u') {
		s.escaped(text[at+1:])
		return
	}
	if s.known == nil || s.traits&HasKnownName != 0 {
		return
	}
	rest := text[at+1:]
	end := strings.IndexByte(rest[:min(len(rest), longestName+1)], '"')
	if end < 0 || end+1 < len(rest) && rest[end+1] == '"' {
		rest = s.unquote(rest) // a quote in the name, or a name to be cut
		end = len(rest)
	}
	if end > 0 && s.known(rest[:end]) {
		s.traits |= HasKnownName
	}
}

// escaped adds the hints of a quoted identifier with Unicode escapes, which begins behind its quote.
func (s *scanner) escaped(text string) {
	name, ok := unescape(text)
	if !ok {
		s.traits |= HasCall // it may spell one
		return
	}
	name = truncateName(name)
	s.traits |= hints[name].anywhere
	if s.known != nil && s.known(name) {
		s.traits |= HasKnownName
	}
}

// unescape is the name that U&"..." stands for, with UESCAPE where that follows. ok is false where it may be another.
func unescape(text string) (name string, ok bool) {
	end := 0
	for ; end < len(text); end++ {
		if text[end] != '"' {
			continue
		}
		if end+1 == len(text) || text[end+1] != '"' {
			break
		}
		end++
	}
	if end >= len(text) {
		return "", false
	}
	escape := byte('\\')
	if rest := strings.TrimLeft(text[end+1:], " \t\r\n\f\v"); rest != "" && strings.IndexByte("-/Uu", rest[0]) >= 0 {
		// A comment may hide the word.
		if len(rest) < 7 || !strings.EqualFold(rest[:7], "uescape") {
			return "", false
		}
		rest = strings.TrimLeft(rest[7:], " \t\r\n\f\v")
		if len(rest) < 3 || rest[0] != '\'' || rest[2] != '\'' {
			return "", false
		}
		escape = rest[1]
	}
	var b strings.Builder
	for quoted := strings.ReplaceAll(text[:end], `""`, `"`); quoted != ""; {
		at := strings.IndexByte(quoted, escape)
		if at < 0 {
			at = len(quoted)
		}
		b.WriteString(quoted[:at])
		quoted = quoted[at:]
		if quoted == "" {
			break
		}
		skip, digits := 1, 4
		switch {
		case len(quoted) > 1 && quoted[1] == escape:
			b.WriteByte(escape)
			quoted = quoted[2:]
			continue
		case len(quoted) > 1 && quoted[1] == '+':
			skip, digits = 2, 6
		}
		if len(quoted) < skip+digits {
			return "", false
		}
		code, err := strconv.ParseUint(quoted[skip:skip+digits], 16, 32)
		if err != nil || code == 0 || !utf8.ValidRune(rune(code)) { // or half of a surrogate pair
			return "", false
		}
		b.WriteRune(rune(code))
		quoted = quoted[skip+digits:]
	}
	return b.String(), true
}

// unquote is the name that begins after a double quote, cut as PostgreSQL does, until the next call.
func (s *scanner) unquote(text string) string {
	buffer := s.buffer()
	n := 0
	for i := 0; i < len(text) && n < len(buffer); i++ {
		if text[i] == '"' {
			if i++; i == len(text) || text[i] != '"' {
				break
			}
		}
		buffer[n] = text[i]
		n++
	}
	return truncateName(unsafe.String(&buffer[0], n))
}

// commentEnd is the end of a comment that begins at text[at], or at where none does.
func commentEnd(text string, at int) int {
	rest := text[at:]
	switch {
	case strings.HasPrefix(rest, "--"):
		if n := strings.IndexAny(rest, "\r\n"); n >= 0 {
			return at + n
		}
		return len(text)
	case strings.HasPrefix(rest, "/*"):
		depth := 1
		for i := at + 2; i+1 < len(text); i++ {
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
	return at
}

// rowWords begin the statements that read or write rows and end no transaction.
var rowWords = []string{"select", "insert", "update", "delete", "merge", "with", "values", "table"}

// IsRowStatement reports whether a text is one statement that reads or writes rows. Where it is in doubt it is not.
func IsRowStatement(text string) bool {
	i := openingWord(text)
	if end := strings.IndexByte(text, ';'); end >= 0 && openingWord(text[end+1:]) < len(text)-end-1 {
		return false
	}
	n := i
	for n < len(text) && classes[text[n]] != 0 {
		n++
	}
	return slices.ContainsFunc(rowWords, func(word string) bool { return strings.EqualFold(word, text[i:n]) })
}

// openingWord is where the first word of a text begins, behind blanks, comments and parentheses.
func openingWord(text string) int {
	for i := 0; i < len(text); {
		switch text[i] {
		case ' ', '\n', '\t', '\r', '(':
			i++
		case '-', '/':
			end := commentEnd(text, i)
			if end == i {
				return i
			}
			i = end
		default:
			return i
		}
	}
	return len(text)
}
