package sqlrewrite

import (
	"errors"

	pg_query "github.com/pganalyze/pg_query_go/v5"
)

// ErrTooComplex says that a text is too large or too deeply nested to be parsed safely.
var ErrTooComplex = errors.New("statement too complex")

// Bounds of what is parsed. PostgreSQL's parser recurses on the C stack over the tree that it made, unchecked: a tree
// that is too deep ends the process. Before that its form in Go is refused beyond 10,000 nested messages, some six for a
// subquery. Measured on a thread with 2 MiB of stack, the smallest that glibc gives (it is 8 MiB by default), in the
// worst forms:
//
//	form                                     crashes beyond   accepted here
//	subqueries in each other, (SELECT (...   1,700 levels       500 levels
//	subscripts in each other, a[a[...        2,700 levels       750 levels
//	casts in a row, 1::int::int...           5,200            1,500
//	operators in a row, 1+1+...              5,200            1,500
//	UNION in a row                          10,000            1,500
//	50,000 rows of VALUES, AND or OR         never            any number, within maxTokens
const (
	// maxLength bounds a text in bytes and maxTokens in tokens: a token costs up to a kilobyte of memory.
	maxLength = 64 << 20
	maxTokens = 2_000_000
	// maxDepth bounds the depth of the tree, in operators. A parenthesis counts as two.
	maxDepth = 1_500
)

// level counts what may deepen the tree between two parentheses: the depth is at most the sum of the largest of each.
type level struct {
	arms            int // of UNION and its like
	joins, maxJoins int // in one item of a list
	ops, maxOps     int // other keywords and operators in one item of a list, or between two AND or OR
	nested          int // depth of the deepest level inside
	between         int // BETWEEN whose AND has not come
	isCase          bool
}

func (l *level) depth() int {
	return l.arms + max(l.joins, l.maxJoins) + max(l.ops, l.maxOps) + l.nested
}

// endTerm begins another term of AND or OR, which lie beside each other in the tree.
func (l *level) endTerm() { l.ops, l.maxOps = 0, max(l.ops, l.maxOps) }

// endItem begins another item of a list.
func (l *level) endItem() {
	l.endTerm()
	l.joins, l.maxJoins = 0, max(l.joins, l.maxJoins)
}

// checkBounds refuses texts that the parser might not survive. It estimates the tree's depth from the tokens, upwards.
func checkBounds(tokens []*pg_query.ScanToken) error {
	if len(tokens) > maxTokens {
		return ErrTooComplex
	}
	levels := make([]level, 1, 16)
	var before pg_query.Token
	for _, t := range tokens {
		l := &levels[len(levels)-1]
		token := t.Token
		if before == pg_query.Token_ASCII_46 || before == pg_query.Token_AS {
			if token == pg_query.Token_CASE || token == pg_query.Token_END_P {
				token = pg_query.Token_IDENT // a label
			}
		}
		before = t.Token
		switch token {
		case pg_query.Token_ASCII_40, pg_query.Token_ASCII_91, pg_query.Token_CASE: // ( [
			levels = append(levels, level{isCase: token == pg_query.Token_CASE})
		case pg_query.Token_ASCII_41, pg_query.Token_ASCII_93, pg_query.Token_END_P: // ) ]
			if len(levels) > 1 && l.isCase == (token == pg_query.Token_END_P) {
				depth := l.depth() + 2
				levels = levels[:len(levels)-1]
				outer := &levels[len(levels)-1]
				outer.nested = max(outer.nested, depth)
			}
		case pg_query.Token_ASCII_59: // ;
			if len(levels) == 1 && l.depth() <= maxDepth {
				levels[0] = level{}
			}
		case pg_query.Token_ASCII_44: // ,
			l.endItem()
		case pg_query.Token_BETWEEN:
			l.between++
			l.ops++
		case pg_query.Token_AND, pg_query.Token_OR:
			if token == pg_query.Token_AND && l.between > 0 {
				l.between--
			} else {
				l.endTerm()
			}
		case pg_query.Token_UNION, pg_query.Token_INTERSECT, pg_query.Token_EXCEPT:
			l.endItem()
			l.arms++
		case pg_query.Token_JOIN:
			l.endTerm()
			l.joins++
		case pg_query.Token_SCONST, pg_query.Token_ICONST, pg_query.Token_FCONST, pg_query.Token_BCONST, pg_query.Token_XCONST,
			pg_query.Token_IDENT, pg_query.Token_PARAM, pg_query.Token_NULL_P, pg_query.Token_ASCII_46: // .
		default:
			l.ops++
		}
		if len(levels) > maxDepth/2 {
			return ErrTooComplex
		}
	}
	depth := 0
	for i := range levels { // those that the text does not close count too
		depth += levels[i].depth()
	}
	if depth > maxDepth {
		return ErrTooComplex
	}
	return nil
}
