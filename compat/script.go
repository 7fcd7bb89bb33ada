package main

import (
	"fmt"
	"strings"

	pg_query "github.com/pganalyze/pg_query_go/v5"
)

// entry is one statement to run, with all that the client sends of it.
type entry struct {
	script string // base name of its file
	line   int    // its first, from 1
	id     string // of a corpus; empty: the statement's own text names it

	sql    string
	params []param
	bound  bool   // in the extended protocol, with params, where the flow is another
	joined bool   // several statements in one Query, whatever the flow
	fixed  string // its flow, whatever that of the script; empty: the script's

	copyData string // what follows a COPY FROM STDIN
	isCopy   bool
}

// flowIn is how an entry of a script goes that runs in a flow.
func (e entry) flowIn(flow string) string {
	switch {
	case e.joined:
		return simple
	case e.fixed != "":
		return e.fixed
	case e.bound && flow == simple:
		return extended
	}
	return flow
}

// name says which entry it is, on one line.
func (e entry) name() string {
	text := e.id
	if text == "" {
		text = strings.Join(strings.Fields(e.sql), " ")
	}
	return e.script + ": " + text
}

// parseScript splits a script as psql does: at semicolons outside of quotes, comments, parentheses and the bodies of SQL
// functions. The data after a COPY FROM STDIN belongs to it, up to \. or the end. Of psql's own commands it knows \; (the next
// statement goes into the same Query) and \bind (the statement goes by the extended protocol with these parameters) up to
// its \g; it skips others and says so in notes.
func parseScript(script, text string) (entries []entry, notes []string, err error) {
	p := splitter{text: text, line: 1}
	for {
		e, err := p.next()
		switch {
		case err != nil:
			return nil, nil, fmt.Errorf("%s:%d: %w", script, p.line, err)
		case e == nil:
			for i, note := range p.notes {
				p.notes[i] = script + ":" + note
			}
			return entries, p.notes, nil
		}
		e.script = script
		entries = append(entries, *e)
	}
}

// splitter walks over a script.
type splitter struct {
	text  string
	at    int // offset of what comes next
	line  int // of at
	notes []string
}

// next reads the next statement, nil at the end.
func (p *splitter) next() (*entry, error) {
	p.blanks()
	e := entry{line: p.line}
	var sql strings.Builder
	body := sqlBody{}
	for depth := 0; p.at < len(p.text); {
		rest := p.text[p.at:]
		switch {
		case strings.HasPrefix(rest, `\;`):
			sql.WriteString(";")
			p.skip(2)
			e.joined, body = true, sqlBody{}
		case rest[0] == '\\':
			command := p.command()
			switch arguments, isBind := strings.CutPrefix(command, `\bind`); {
			case isBind && strings.TrimSpace(sql.String()) != "":
				e.bound = true
				var err error
				if e.params, err = bindParams(strings.TrimSuffix(strings.TrimSpace(arguments), `\g`)); err != nil {
					return nil, err
				}
				return p.finish(&e, sql.String())
			case strings.HasPrefix(command, `\g`) && strings.TrimSpace(sql.String()) != "":
				if command != `\g` {
					p.notes = append(p.notes, fmt.Sprintf("%d: run as if it ended in \\g: %s", p.line-1, command))
				}
				return p.finish(&e, sql.String())
			default:
				p.notes = append(p.notes, fmt.Sprintf("%d: skipped: %s", p.line-1, command))
			}
			if strings.TrimSpace(sql.String()) == "" {
				p.blanks()
				e.line = p.line
			}
		case rest[0] == ';' && depth == 0 && !body.open():
			sql.WriteByte(';')
			p.skip(1)
			return p.finish(&e, sql.String())
		default:
			n, err := tokenLength(rest)
			if err != nil {
				return nil, err
			}
			switch token := rest[:n]; token {
			case "(":
				depth++
			case ")":
				depth--
			default:
				body.word(token)
			}
			sql.WriteString(rest[:n])
			p.skip(n)
		}
	}
	if strings.TrimSpace(sql.String()) == "" {
		return nil, nil
	}
	return p.finish(&e, sql.String())
}

func (p *splitter) skip(n int) {
	p.line += strings.Count(p.text[p.at:p.at+n], "\n")
	p.at += n
}

// blanks skips white space and comments of whole lines.
func (p *splitter) blanks() {
	for {
		rest := p.text[p.at:]
		trimmed := strings.TrimLeft(rest, " \t\r\n")
		p.skip(len(rest) - len(trimmed))
		if !strings.HasPrefix(trimmed, "--") {
			return
		}
		n := strings.IndexByte(trimmed, '\n')
		if n < 0 {
			n = len(trimmed)
		}
		p.skip(n)
	}
}

// command reads the rest of the line.
func (p *splitter) command() string {
	line, _, found := strings.Cut(p.text[p.at:], "\n")
	n := len(line)
	if found {
		n++
	}
	p.skip(n)
	return strings.TrimSpace(line)
}

// finish takes the data of a COPY along.
func (p *splitter) finish(e *entry, sql string) (*entry, error) {
	e.sql = strings.TrimSpace(sql)
	if !e.joined {
		e.sql = strings.TrimSpace(strings.TrimSuffix(e.sql, ";"))
	}
	if e.isCopy = copiesIn(e.sql); !e.isCopy {
		return e, nil
	}
	p.command() // what is left of the line
	for p.at < len(p.text) {
		from := p.at
		if p.command() == `\.` {
			break
		}
		e.copyData += p.text[from:p.at]
	}
	return e, nil
}

// copiesIn reports whether a text waits for data.
func copiesIn(sql string) bool {
	if !strings.Contains(strings.ToLower(sql), "copy") {
		return false
	}
	tree, err := pg_query.Parse(sql)
	if err != nil {
		return false
	}
	for _, s := range tree.Stmts {
		if c := s.Stmt.GetCopyStmt(); c != nil && c.IsFrom && c.Filename == "" {
			return true
		}
	}
	return false
}

// bindParams reads the arguments of \bind: words, or quoted by '.
func bindParams(text string) (params []param, err error) {
	for text = strings.TrimSpace(text); text != ""; text = strings.TrimLeft(text, " \t") {
		n := strings.IndexAny(text, " \t")
		if n < 0 {
			n = len(text)
		}
		value := text[:n]
		if text[0] == '\'' {
			if n, err = tokenLength(text); err != nil {
				return nil, err
			}
			value = strings.ReplaceAll(text[1:n-1], "''", "'")
		}
		params = append(params, param{value: []byte(value)})
		text = text[n:]
	}
	return params, nil
}

// tokenLength is the length of what a text begins with: a string, a quoted identifier, a comment, a word, or a byte.
func tokenLength(text string) (int, error) {
	switch {
	case strings.HasPrefix(text, "--"):
		if n := strings.IndexByte(text, '\n'); n >= 0 {
			return n, nil
		}
		return len(text), nil
	case strings.HasPrefix(text, "/*"):
		return commentLength(text)
	case text[0] == '\'', text[0] == '"':
		return quotedLength(text, text[0], false)
	case (text[0] == 'e' || text[0] == 'E') && len(text) > 1 && text[1] == '\'':
		n, err := quotedLength(text[1:], '\'', true)
		return n + 1, err
	case text[0] == '$':
		return dollarLength(text)
	}
	n := 0
	for n < len(text) && isWord(text[n]) {
		n++
	}
	return max(n, 1), nil
}

func isWord(b byte) bool {
	return b == '_' || b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= 0x80
}

func commentLength(text string) (int, error) {
	depth := 0
	for i := 0; i+1 < len(text); i++ {
		switch text[i : i+2] {
		case "/*":
			depth++
			i++
		case "*/":
			depth--
			i++
			if depth == 0 {
				return i + 1, nil
			}
		}
	}
	return 0, fmt.Errorf("a comment does not end")
}

// quotedLength of a text that begins with a quote; a doubled quote goes on, and with escapes a backslash takes the next byte.
func quotedLength(text string, quote byte, escapes bool) (int, error) {
	for i := 1; i < len(text); i++ {
		switch {
		case escapes && text[i] == '\\':
			i++
		case text[i] == quote && i+1 < len(text) && text[i+1] == quote:
			i++
		case text[i] == quote:
			return i + 1, nil
		}
	}
	return 0, fmt.Errorf("quotes do not end: %.40s", text)
}

// dollarLength of a text that begins with a dollar sign: a dollar-quoted string, or a parameter.
func dollarLength(text string) (int, error) {
	n := 1
	for n < len(text) && isWord(text[n]) {
		n++
	}
	if n == len(text) || text[n] != '$' || n > 1 && text[1] >= '0' && text[1] <= '9' {
		return n, nil
	}
	tag := text[:n+1]
	end := strings.Index(text[len(tag):], tag)
	if end < 0 {
		return 0, fmt.Errorf("no second %s", tag)
	}
	return end + 2*len(tag), nil
}

// sqlBody follows CREATE FUNCTION ... BEGIN ATOMIC ... END, in which semicolons do not end the statement.
type sqlBody struct {
	words  int
	create bool // CREATE [OR REPLACE] FUNCTION or PROCEDURE
	begins int
}

func (b *sqlBody) open() bool { return b.begins > 0 }

func (b *sqlBody) word(token string) {
	if !isWord(token[0]) {
		return
	}
	b.words++
	switch word := strings.ToLower(token); {
	case b.words == 1:
		b.create = word == "create"
	case b.words <= 4 && (word == "function" || word == "procedure"):
		b.create = b.create && b.words != 3
		if b.words == 4 || b.words == 2 {
			b.words = 5 // decided
		}
	case b.words <= 4 && word != "or" && word != "replace":
		b.create = false
	case !b.create:
	case word == "begin", word == "case" && b.begins > 0:
		b.begins++
	case word == "end" && b.begins > 0:
		b.begins--
	}
}
