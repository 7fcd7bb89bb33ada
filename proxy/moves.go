package proxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nextvald/nextvald/proxy/answer"
	"github.com/nextvald/nextvald/proxy/wire"
	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sqlrewrite"
)

// A statement that alters, drops, renames or sets back sequences of the upstream goes there as the client wrote it. Before, what
// was drawn of them is revoked in all processes, and those of the store's are handed back to the upstream; once the
// transaction has ended, they are handed over to the store again, as are those that it created, before the client hears that
// it has ended.

// moving is what the open transaction of a session does to sequences whose values are handed out here.
type moving struct {
	// done ends the revocations, of the databases and OIDs in revoked.
	done    []func()
	revoked map[revoked]bool
	// adopt are the sequences that go to the store when the transaction has ended, by OID; renamed are those of the store
	// whose names are looked at then.
	adopt   map[uint32]adoption
	renamed []uint32
	// created are sequences whose CREATE was sent last, cached those whose CACHE was, and failures are those of the session
	// before that.
	created  []created
	cached   []cached
	failures uint64
}

// revoked is a sequence whose values were revoked for the time of the transaction; with OID 0 all of the database.
type revoked struct {
	database string
	oid      uint32
}

// created is a sequence that a statement creates; cacheOne: with CACHE 1, which the catalogs do not tell from no CACHE.
type created struct {
	name     sqlrewrite.Name
	cacheOne bool
}

// cached is a sequence whose CACHE a statement alters.
type cached struct {
	oid      uint32
	cacheOne bool
}

// adoption is a sequence that goes to the store.
type adoption struct {
	name sequencer.Name
	// cacheOne: CACHE 1 was written.
	cacheOne bool
	// policy is what it had of its own in the store; asked says that it was there, and so is no news to anybody.
	policy []sequencer.Setting
	asked  bool
}

// hold keeps the ReadyForQuery of a batch from the client, until the upstream has said it, or reads COPY data first.
type hold struct{ answered, copying bool } // under flight.mu

// moved are the sequences of the upstream that a statement moves.
type moved struct {
	oid  uint32
	name sequencer.Name
	// renamed: only its name changes. stays: it is not handed over to the store again.
	renamed, stays bool
}

// clearWay does what has to be done before a statement goes to the upstream. ours says which of its calls are answered here;
// nil: none. A later statement of a text may depend on those before: what it moves of what they create is nobody else's.
func (x *session) clearWay(st *sqlrewrite.Statement, params []answer.Param, ours []bool) error {
	if !x.mirrored() {
		return nil
	}
	if x.moving != nil && st.Kind == sqlrewrite.KindTransaction && st.Transaction.Verb == sqlrewrite.PrepareTransaction {
		return notSupported("Commit instead.", "PREPARE TRANSACTION after changes of sequences is not supported")
	}
	list, all, err := x.movedBy(st, params, ours)
	if err != nil {
		return err
	}
	if err := x.revoke(list, all); err != nil {
		return err
	}
	if st.Moves != nil {
		if err := x.revokeDatabases(st.Moves.Databases); err != nil {
			return err
		}
	}
	x.noteCreated(st)
	x.noteCached(st, list)
	return nil
}

// clearWayAhead is clearWay before calls of a statement are answered that it leaves to the upstream as written: asking there for
// currval locks the sequence, which is then to be handed back.
func (x *session) clearWayAhead(u *use) error {
	if !x.mirrored() || !asWritten(u.statement) {
		return nil
	}
	return x.clearWay(u.statement, u.params, u.ours)
}

// clearWayOfReads is clearWay before a statement is bound that reads a sequence: a portal opens what it reads when it is bound, and
// of a sequence that is handed back after that it finds no row.
func (x *session) clearWayOfReads(u *use) error {
	if !slices.ContainsFunc(u.relations, isMirrored) {
		return nil
	}
	return x.clearWay(u.statement, u.params, u.ours)
}

// clearWayUnseen is clearWay for a text that cannot be read.
func (x *session) clearWayUnseen(traits sqlrewrite.Traits) error {
	if !x.mirrored() || traits&sqlrewrite.HasMoves == 0 {
		return nil
	}
	return x.revoke(nil, true)
}

// movedBy finds the sequences that a statement moves; all of the database are meant where nothing tells.
func (x *session) movedBy(st *sqlrewrite.Statement, params []answer.Param, ours []bool) (list []moved, all bool, err error) {
	var sets []*sqlrewrite.Argument
	if st.Execute != nil {
		set := x.prepares[st.Execute.Name]
		for i := range set {
			sets = append(sets, &set[i])
		}
	}
	if m := st.Moves; m != nil {
		all = all || m.All
		if byte(x.status.Load()) == failed { // what comes after a ROLLBACK in the same text; nothing can be asked
			return nil, true, nil
		}
		if list, err = x.owned(m.Names); err != nil {
			return nil, false, err
		}
		inside, err := x.insideSchemas(m.Schemas)
		if err != nil {
			return nil, false, err
		}
		list = append(list, inside...)
		for i := range list {
			list[i].renamed = m.Renames
		}
	}
	for i := range st.Calls {
		c := &st.Calls[i]
		switch {
		case c.Function != sqlrewrite.Setval || st.Explain || ours != nil && ours[i]:
		case st.Prepare != nil:
			if x.prepares == nil {
				x.prepares = make(map[string][]sqlrewrite.Argument)
			}
			x.prepares[st.Prepare.Name] = append(x.prepares[st.Prepare.Name], c.Name)
		case c.Evaluation != sqlrewrite.Later, c.Body && st.Moves != nil: // DO runs its text at once
			if !isNoInteger(&c.Value) { // else it fails
				sets = append(sets, &c.Name)
			}
		}
	}
	for _, a := range sets {
		name, known := calledName(a, params)
		if !known {
			all = all || !a.Null
			continue
		}
		m, err := x.mean(name)
		if err != nil {
			return nil, false, err
		}
		if m != nil && !m.temporary {
			list = append(list, moved{oid: m.oid, name: m.name})
		}
	}
	left, err := x.left(st, params, ours)
	return append(list, left...), all, err
}

// left are the sequences of the store that a statement makes the upstream's: that are called once for each row, by a default,
// view, rule or trigger, or by what is prepared or fetched later; and those that it calls as written, for the time of its
// transaction.
func (x *session) left(st *sqlrewrite.Statement, params []answer.Param, ours []bool) (list []moved, err error) {
	leave := func(name sqlrewrite.Name, stays, defined bool) error {
		adopts := defined && x.moving != nil && len(x.moving.adopt) > 0
		if !adopts && !x.mayBeStored(name) {
			return nil
		}
		m, err := x.mean(name)
		if err != nil || m == nil || m.temporary {
			return err
		}
		if adopts {
			delete(x.moving.adopt, m.oid)
		}
		sequence, err := x.stored(m)
		if sequence != nil {
			list = append(list, moved{oid: m.oid, name: m.name, stays: stays})
		}
		return err
	}
	for i := range st.Calls {
		c := &st.Calls[i]
		stays := c.Default || c.Evaluation == sqlrewrite.PerRow || st.Prepare != nil || st.Cursor
		switch {
		case c.Body || st.Explain || ours != nil && ours[i] || !stays && !asWritten(st):
			continue
		case c.Function != sqlrewrite.Nextval && (c.Function != sqlrewrite.Setval || st.Prepare == nil):
			continue
		}
		if name, known := calledName(&c.Name, params); known {
			if err := leave(name, stays, c.Default); err != nil {
				return nil, err
			}
		}
	}
	for _, name := range st.Arguments {
		if err := leave(name, true, true); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// owned are the sequences of these names, and those that columns of tables of these names own.
func (x *session) owned(names []sqlrewrite.Name) (list []moved, err error) {
	var (
		roots     []string
		arguments []string
	)
	for _, name := range names {
		if name.Database != "" && name.Database != x.database {
			continue
		}
		arguments = append(arguments, quoted(nameParts(name)))
		roots = append(roots, "(pg_catalog.to_regclass($"+strconv.Itoa(len(arguments))+")::pg_catalog.oid)")
	}
	if len(roots) == 0 {
		return nil, nil
	}
	rows, err := x.ask(`WITH RECURSIVE r(oid) AS (VALUES `+strings.Join(roots, ", ")+`
			UNION SELECT i.inhrelid FROM r JOIN pg_catalog.pg_inherits i ON i.inhparent = r.oid)
		SELECT c.oid, n.nspname, c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind = 'S' AND c.relpersistence <> 't' AND (c.oid IN (SELECT oid FROM r) OR EXISTS (SELECT FROM pg_catalog.pg_depend d
			WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = c.oid AND d.deptype IN ('a', 'i')
			AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refobjid IN (SELECT oid FROM r)))`, arguments...)
	if err != nil {
		return nil, err
	}
	for _, row := range rows {
		oid, err := strconv.ParseUint(row[0], 10, 32)
		if err != nil {
			return nil, err
		}
		list = append(list, moved{oid: uint32(oid), name: sequencer.Name{Database: x.database, Schema: row[1], Name: row[2]}})
	}
	return list, nil
}

// insideSchemas are the sequences of the store in these schemas.
func (x *session) insideSchemas(schemas []string) (list []moved, err error) {
	if len(schemas) == 0 {
		return nil, nil
	}
	ctx := x.wait()
	defer x.waited()
	entries, err := x.srv.cfg.Sequences.List(ctx, x.database)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if slices.Contains(schemas, e.Name.Schema) {
			list = append(list, moved{oid: e.OID, name: e.Name})
		}
	}
	return list, nil
}

// revoke makes sure that no process hands out values of sequences that are about to be moved.
func (x *session) revoke(list []moved, all bool) error {
	if len(list) == 0 && !all {
		return nil
	}
	// Batches before this one may still be under way; what ends after them is the transaction of this one.
	if _, open := x.transaction(); !open {
		return errOver
	}
	x.startMoving()
	oids := []uint32{0}
	if !all {
		oids = oids[:0]
		for _, m := range list {
			if !slices.Contains(oids, m.oid) {
				oids = append(oids, m.oid)
			}
		}
	}
	for _, oid := range oids {
		if err := x.revokeOne(x.database, oid); err != nil {
			return err
		}
	}
	for _, m := range list {
		if err := x.handBack(m); err != nil {
			return err
		}
	}
	x.changeNames()
	x.changed.Store(true)
	return nil
}

func (x *session) revokeOne(database string, oid uint32) error {
	if x.moving.revoked[revoked{database, oid}] {
		return nil
	}
	ctx := x.wait()
	defer x.waited()
	done, err := x.srv.cfg.Native.Revoke(ctx, database, oid)
	if err == nil {
		x.moving.done = append(x.moving.done, done)
		x.moving.revoked[revoked{database, oid}] = true
	}
	return err
}

// revokeDatabases does so for databases that nobody may be connected to.
func (x *session) revokeDatabases(names []string) error {
	for _, name := range names {
		if _, open := x.transaction(); !open {
			return errOver
		}
		x.startMoving()
		if err := x.revokeOne(name, 0); err != nil {
			return err
		}
	}
	return nil
}

// handBack hands a sequence of the store's back to the upstream.
func (x *session) handBack(m moved) error {
	sequence, err := x.stored(&meaning{oid: m.oid, name: m.name})
	if sequence == nil || err != nil {
		return err
	}
	if m.renamed {
		x.moving.renamed = append(x.moving.renamed, m.oid)
		return nil
	}
	d := sequence.Definition()
	ctx := x.wait()
	defer x.waited()
	if err := x.srv.cfg.Native.Release(ctx, x.database, m.oid); err != nil {
		return err
	}
	if !m.stays {
		x.moving.adopt[m.oid] = adoption{name: m.name, cacheOne: d.Cache == 1, policy: d.Policy.Settings(), asked: true}
	}
	return nil
}

// startMoving starts to follow what the transaction does to sequences.
func (x *session) startMoving() {
	if x.moving == nil {
		x.moving = &moving{adopt: make(map[uint32]adoption), revoked: make(map[revoked]bool)}
	}
}

// noteCreated notes the sequence that a CREATE SEQUENCE makes.
func (x *session) noteCreated(st *sqlrewrite.Statement) {
	d := st.DDL
	if d == nil || d.Verb != sqlrewrite.CreateSequence || d.Temporary || d.IfExists && !x.isNew(d.Names[0]) {
		return
	}
	for _, o := range d.Options {
		if o.Name == "owned_by" && !o.None {
			return
		}
	}
	x.startMoving()
	one, _ := cacheClause(d)
	x.moving.created = append(x.moving.created, created{d.Names[0], one})
	x.moving.failures = x.failures.Load()
}

// noteCached notes what an ALTER SEQUENCE says of CACHE.
func (x *session) noteCached(st *sqlrewrite.Statement, list []moved) {
	if st.DDL == nil || st.DDL.Verb != sqlrewrite.AlterSequence {
		return
	}
	one, written := cacheClause(st.DDL)
	if !written || x.moving == nil {
		return
	}
	for _, m := range list {
		x.moving.cached = append(x.moving.cached, cached{m.oid, one})
	}
	x.moving.failures = x.failures.Load()
}

// cacheClause reports whether CACHE is written in a statement, and whether it is CACHE 1.
func cacheClause(d *sqlrewrite.DDL) (one, written bool) {
	for _, o := range d.Options {
		if o.Name == "cache" {
			one, written = o.Value == "1", true
		}
	}
	return one, written
}

// isNew reports whether nothing has that name yet.
func (x *session) isNew(name sqlrewrite.Name) bool {
	there, err := x.upstreamHas(name)
	return !there && err == nil
}

// concludes reports whether the end of the transaction may come with these statements, after which there is something to do.
func (x *session) concludes(statements []sqlrewrite.Statement) bool {
	if x.moving == nil {
		return false
	}
	if byte(x.status.Load()) != inBlock && byte(x.status.Load()) != failed || len(x.moving.created)+len(x.moving.cached) > 0 {
		return true
	}
	return slices.ContainsFunc(statements, func(st sqlrewrite.Statement) bool { return st.Kind == sqlrewrite.KindTransaction })
}

// conclude waits for the end of a batch whose ReadyForQuery is held, does what there is to do when its transaction has
// ended, and tells the client.
func (x *session) conclude(h *hold) error {
	if x.flushAll() != nil || !x.flight.awaitHold(h) {
		return errOver
	}
	if h.copying {
		return nil // what is to be done is done before the next message
	}
	if err := x.settleMoves(byte(x.status.Load())); err != nil {
		return err
	}
	return x.ready()
}

// concludeLate is conclude for a batch whose ReadyForQuery the client has.
func (x *session) concludeLate() error {
	if x.moving == nil || x.batch.open || x.batch.forwarded || x.flight.copyIn() != 0 {
		return nil
	}
	status, open := x.transaction()
	if !open {
		return errOver
	}
	if status == inBlock || status == failed {
		return nil
	}
	return x.settleMoves(status)
}

// settleMoves follows the transaction after a batch.
func (x *session) settleMoves(status byte) error {
	mv := x.moving
	if mv == nil {
		return nil
	}
	if err := x.findCreated(status); err != nil {
		return err
	}
	if status != idle {
		return nil
	}
	x.moving = nil
	for _, done := range mv.done {
		done()
	}
	for _, oid := range mv.renamed {
		if err := x.followName(oid); err != nil {
			x.srv.cfg.Logger.Warn("a sequence has another name in the store than in the upstream", "database", x.database, "oid", oid, "error", err)
		}
	}
	var notices []byte
	for oid, a := range mv.adopt {
		if e := x.adopt(oid, a); e != nil {
			notices = wire.AppendError(notices, e)
		}
	}
	x.changeNames()
	x.srv.changes.Add(1)
	if notices == nil {
		return nil
	}
	return x.respond(notices)
}

// findCreated learns the OIDs of the sequences that were created, and which of them go to the store.
func (x *session) findCreated(status byte) error {
	mv := x.moving
	created, cached := mv.created, mv.cached
	mv.created, mv.cached = nil, nil
	if status == failed || x.failures.Load() != mv.failures {
		return nil
	}
	for _, c := range cached {
		if a, ok := mv.adopt[c.oid]; ok {
			a.cacheOne = c.cacheOne
			mv.adopt[c.oid] = a
		}
	}
	for _, c := range created {
		delete(x.names.meanings, c.name)
		m, err := x.mean(c.name)
		if err != nil {
			if isAsked(err) {
				return nil // it stays the upstream's
			}
			return err
		}
		if m != nil && !m.temporary && x.srv.cfg.Sequences.DefaultSource(m.name) == sequencer.FromStore {
			mv.adopt[m.oid] = adoption{name: m.name, cacheOne: c.cacheOne}
		}
	}
	return nil
}

// adopt hands a sequence over to the store. One that cannot be stays the upstream's; the client is told.
func (x *session) adopt(oid uint32, a adoption) *wire.Error {
	ctx := x.wait()
	defer x.waited()
	err := x.adoptAs(ctx, oid, a)
	if err == nil {
		return nil
	}
	x.srv.cfg.Logger.Warn("a sequence stays the upstream's", "sequence", a.name.String(), "error", err)
	e := &wire.Error{Severity: wire.SeverityWarning, Code: "01000",
		Message: fmt.Sprintf("sequence \"%s\" stays the upstream server's", a.name.Name), Detail: clientError(err).Message,
		Hint: "Hand it over later with ALTER SEQUENCE ... SET (nextvald.source = store), or create it with nextvald's setting sequences.default_source: upstream."}
	if errors.Is(err, ErrNotAllowed) {
		e.Detail = "nextvald's own role in the upstream server is no member of the sequence's owner."
	}
	return e
}

// adoptAs hands a sequence over to the store, with what the catalogs do not tell of it.
func (x *session) adoptAs(ctx context.Context, oid uint32, a adoption) error {
	options := sequencer.Options{Set: a.policy}
	if one := int64(1); a.cacheOne {
		options.Cache = &one
	}
	err := x.srv.cfg.Native.Adopt(ctx, x.database, oid)
	if err != nil || len(options.Set) == 0 && options.Cache == nil {
		return err
	}
	sequence, err := x.srv.cfg.Sequences.LookupOID(ctx, x.database, oid)
	if errors.Is(err, sequencer.ErrUndefined) {
		return nil // it is gone, or has to be the upstream's now
	}
	if err != nil {
		return err
	}
	return x.srv.cfg.Sequences.Alter(ctx, sequence.Name(), options)
}

func (x *session) followName(oid uint32) error {
	ctx := x.wait()
	defer x.waited()
	return x.srv.cfg.Native.Follow(ctx, x.database, oid)
}

// abandonMoves does at the end of the session what its transaction, which was rolled back, has left to do.
func (x *session) abandonMoves() {
	mv := x.moving
	if mv == nil {
		return
	}
	x.moving = nil
	for _, done := range mv.done {
		done()
	}
	ctx := context.WithoutCancel(x.ctx)
	for _, oid := range mv.renamed { // its COMMIT may have been the last that the client sent
		if err := x.srv.cfg.Native.Follow(ctx, x.database, oid); err != nil {
			x.srv.cfg.Logger.Warn("a sequence has another name in the store than in the upstream", "database", x.database, "oid", oid, "error", err)
		}
	}
	for oid, a := range mv.adopt {
		if err := x.adoptAs(ctx, oid, a); err != nil {
			x.srv.cfg.Logger.Warn("a sequence stays the upstream's", "sequence", a.name.String(), "error", err)
		}
	}
}

// sourceKey is the parameter of ALTER SEQUENCE .. SET that hands a sequence over.
const sourceKey = "source"

// setParameters carries out ALTER SEQUENCE .. SET and RESET of nextvald's parameters for a sequence that the upstream has.
func (x *session) setParameters(m *meaning, d *sqlrewrite.DDL) error {
	if !m.owns {
		return &wire.Error{Code: "42501", Message: fmt.Sprintf("must be owner of sequence %s", m.name.Name)}
	}
	var source sequencer.Source
	policy := *d
	policy.Parameters = nil
	for _, p := range d.Parameters {
		if p.Name != sourceKey {
			policy.Parameters = append(policy.Parameters, p)
			continue
		}
		if source = sequencer.Source(p.Value); p.Reset {
			source = x.srv.cfg.Sequences.DefaultSource(m.name)
		}
		if source != sequencer.FromStore && source != sequencer.FromUpstream {
			return &wire.Error{Code: "22023", Message: fmt.Sprintf("invalid value for parameter \"nextvald.source\": \"%s\"", p.Value),
				Hint: "It is store or upstream."}
		}
	}
	options, err := policyOptions(&policy)
	if err != nil {
		return err
	}
	if source != "" {
		if err := x.handOver(m, source); err != nil {
			return err
		}
	}
	if len(policy.Parameters) == 0 {
		return nil
	}
	sequence, err := x.stored(m)
	switch {
	case err != nil:
		return err
	case sequence == nil:
		return &wire.Error{Code: "55000", Message: fmt.Sprintf("sequence \"%s\" is handed out by the upstream server", m.name.Name),
			Hint: "Hand it over first: ALTER SEQUENCE ... SET (nextvald.source = store)."}
	}
	return x.alter(sequence.Name(), options)
}

// handOver gives a sequence a source.
func (x *session) handOver(m *meaning, source sequencer.Source) error {
	ctx := x.wait()
	defer x.waited()
	if source == sequencer.FromUpstream {
		return x.srv.cfg.Native.Release(ctx, x.database, m.oid)
	}
	if err := x.srv.cfg.Native.Adopt(ctx, x.database, m.oid); errors.Is(err, ErrNotAllowed) {
		return &wire.Error{Code: "42501", Message: fmt.Sprintf("sequence \"%s\" cannot be handed over to the store", m.name.Name),
			Detail: "nextvald's own role in the upstream server is no member of the sequence's owner."}
	} else if err != nil {
		return err
	}
	if sequence, err := x.stored(m); sequence != nil || err != nil {
		return err
	}
	return &wire.Error{Code: "55000", Message: fmt.Sprintf("sequence \"%s\" has to stay the upstream server's", m.name.Name),
		Hint: "A column owns it or has it in its default, or it is temporary. The command nextvald adopt hands it over all the same."}
}
