package proxy

import (
	"sync/atomic"

	"github.com/nextvald/nextvald/proxy/answer"
	"github.com/nextvald/nextvald/sqlrewrite"
)

// mode is how a prepared statement is treated.
type mode uint8

const (
	// passed: the upstream has it as the client wrote it.
	passed mode = iota
	// local: answered here. The upstream gets to know it only when a name in a parameter turns out to be the upstream's.
	local
	// edited: the upstream has it with parameters of ours in the place of calls and reads.
	edited
)

// statement is a prepared statement. The client side owns it, but for dead.
type statement struct {
	name     string
	text     string
	declared []uint32 // parameter types as the client declared them
	mode     mode
	traits   sqlrewrite.Traits
	plan     *sqlrewrite.Plan
	parsed   *sqlrewrite.Statement // the only statement of plan

	params  []uint32        // local: final types of the parameters
	columns []answer.Column // local: the result
	handed  bool            // local: the upstream got it too
	watched bool            // passed: parameters may name sequences of ours
	counted bool            // its calls were counted when it was prepared, for its first execution

	base  int      // edited: parameters of the client
	calls []int    // edited: calls that became parameters, in order
	rows  []int    // edited: calls by row that became three parameters each, behind those
	reads []int    // edited: reads that became three parameters each, behind those
	types []uint32 // edited: of the client's parameters as the upstream has them; nil while nobody had to know
	// overlaid: edited: one more parameter is what the catalogs it reads are to tell.
	overlaid bool
	// origins tells what the text as the client wrote it returns.
	origins *reply
	// prepares: passed: it is a PREPARE of a statement that takes an overlay.
	prepares bool

	// refused: the upstream did not take what was handed to it.
	refused atomic.Bool
	// before is what the name meant when this was prepared; it means that again when this is dead.
	before *statement
	// dead: its Parse failed, or was never carried out because a message before it failed.
	dead atomic.Bool
}

// gone stands for the unnamed statement after a Query, which drops it.
var gone = &statement{}

// onlyHere reports whether the upstream knows nothing of the statement.
func (st *statement) onlyHere() bool { return st.mode == local && !st.upstream() && st != gone }

// upstream reports whether the upstream has a statement that is answered here too.
func (st *statement) upstream() bool { return st.handed && !st.refused.Load() }

// portal is a bound statement that is answered here or needs attention.
type portal struct {
	statement *statement
	use       *use
	formats   []int16
	row       int // rows already sent
	// upstream: the portal is the upstream's; failure, when set, is raised in the place of its first Execute.
	upstream bool
	failure  error
	// Of an upstream's: what clearWay needs of it.
	params []answer.Param
	ours   []bool
}

// named returns the prepared statement of a name; nil when nothing is known of it.
func (x *session) named(name string) *statement {
	st := x.prepared[name]
	if st == nil || !st.dead.Load() {
		return st
	}
	for st != nil && st.dead.Load() {
		st = st.before
	}
	if st == nil {
		delete(x.prepared, name)
	} else {
		x.prepared[name] = st
	}
	return st
}

// deallocate forgets a prepared statement, or all.
func (x *session) deallocate(name string) {
	if name != "" {
		delete(x.prepared, name)
		return
	}
	for name := range x.prepared {
		if name != "" {
			delete(x.prepared, name)
		}
	}
}

// followed are the traits of texts that change what the session has to follow.
const followed = sqlrewrite.HasSession | sqlrewrite.HasCreate | sqlrewrite.HasReadOnly

// effects reports whether executing a passed statement changes what the session has to follow.
func (st *statement) effects() bool {
	return st.traits&followed != 0 || st.parsed != nil && st.parsed.Kind != sqlrewrite.KindPass
}

// acceptable reports whether PostgreSQL accepts a parameter declared so where a sequence function wants that type; final
// is the type that the parameter gets.
func acceptable(declared, wanted uint32) (final uint32, ok bool) {
	switch declared {
	case 0, oidUnknown:
		return wanted, true
	case wanted:
		return declared, true
	}
	switch wanted {
	case answer.RegclassOID:
		switch declared {
		case oidText, oidVarchar, oidOID, oidInt2, oidInt4, oidInt8:
			return declared, true
		}
	case oidInt8:
		return declared, declared == oidInt2 || declared == oidInt4
	}
	return declared, false
}

// OIDs of pg_type.
const (
	oidBool    = 16
	oidInt8    = 20
	oidInt2    = 21
	oidInt4    = 23
	oidText    = 25
	oidOID     = 26
	oidUnknown = 705
	oidNames   = 1003 // name[]
	oidInt8s   = 1016 // int8[]
	oidVarchar = 1043
)

// voidParameters are the numbers of the parameters declared void.
func voidParameters(declared []uint32) (void []int) {
	for i, oid := range declared {
		if oid == answer.VoidOID {
			void = append(void, i+1)
		}
	}
	return void
}

// finalParams are the types of a local statement's parameters. ok is false when PostgreSQL would refuse a declared one,
// or infer another than we can.
func finalParams(st *sqlrewrite.Statement, declared []uint32) (final []uint32, ok bool) {
	inferred := st.Answer.Params
	final = make([]uint32, max(len(inferred), len(declared)))
	copy(final, inferred)
	for i, d := range declared {
		switch {
		case d == 0 || d == oidUnknown:
			if final[i] == 0 {
				return nil, false
			}
		default:
			final[i] = d
		}
	}
	for i := range st.Calls {
		c := &st.Calls[i]
		for _, a := range []struct {
			argument *sqlrewrite.Argument
			wanted   uint32
		}{{&c.Name, answer.RegclassOID}, {&c.Value, oidInt8}, {&c.IsCalled, oidBool}} {
			if a.argument.Kind != sqlrewrite.Parameter || a.argument.Type != 0 {
				continue
			}
			if _, ok := acceptable(final[a.argument.Param-1], a.wanted); !ok {
				return nil, false
			}
		}
	}
	for _, t := range final {
		if t == answer.VoidOID {
			continue
		}
		if t == 0 || t != answer.RegclassOID && !answer.Known(t) {
			return nil, false
		}
	}
	return final, true
}
