package sqlrewrite

import (
	"errors"
	"strings"
	"unicode/utf8"
)

// A client may send its texts in another encoding than UTF-8, which the parser does not read. In a single-byte encoding
// each byte beyond ASCII is a letter, in names and strings alike. It is read as an underscore, so that positions stay;
// what such a letter is part of stays unknown.

var errEncoding = errors.New("text is in an encoding that cannot be read")

// readable is a text as the parser can read it, byte for byte.
func readable(text string) (string, error) {
	switch {
	case strings.IndexByte(text, 0) >= 0:
		return "", errEncoding
	case utf8.ValidString(text):
		return text, nil
	case strings.IndexByte(text, '\\') >= 0: // it may be half of a character
		return "", errEncoding
	}
	masked := []byte(text)
	for i, b := range masked {
		if b >= utf8.RuneSelf {
			masked[i] = '_'
		}
	}
	return string(masked), nil
}

// forget takes out of a statement what was not readable in its text.
func (st *Statement) forget(text string) {
	if isASCII(text[st.Start:st.End]) {
		return
	}
	st.Answer, st.Rows = nil, nil
	if st.Kind == KindDDL {
		st.Kind, st.DDL = KindPass, nil
	}
	for i := range st.Calls {
		c := &st.Calls[i]
		c.Rows = false
		for _, a := range []*Argument{&c.Name, &c.Value, &c.IsCalled} {
			if !isASCII(text[a.Start:a.End]) {
				*a = Argument{Start: a.Start, End: a.End}
			}
		}
	}
	for i := range st.Catalogs {
		if k := &st.Catalogs[i]; !isASCII(text[k.Start:k.End]) || !isASCII(k.Key.Value) {
			k.Key = Argument{}
		}
	}
	reads := st.Reads[:0]
	for _, r := range st.Reads {
		if isASCII(text[r.Start:r.End]) {
			reads = append(reads, r)
		}
	}
	st.Reads = reads
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}
