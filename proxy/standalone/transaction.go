package standalone

import (
	"time"

	pg_query "github.com/pganalyze/pg_query_go/v5"

	"github.com/nextvald/nextvald/proxy/wire"
)

// Transaction states, as ReadyForQuery says them.
const (
	statusIdle   = 'I' // outside a block; an implicit transaction may be open
	statusBlock  = 'T'
	statusFailed = 'E'
)

// transaction is the state of a session's transaction. Only settings and portals belong to one: nothing else here can
// be undone.
type transaction struct {
	status byte
	// open: an implicit or explicit transaction has begun.
	open bool
	// several: the statement is one of several in a Query, which are one implicit transaction.
	several bool
	started time.Time
	// queried: a statement that would take a snapshot has run.
	queried    bool
	undo       snapshot // of the settings at the transaction's begin
	savepoints []savepoint
}

type savepoint struct {
	name string
	undo snapshot
}

// enter opens the implicit transaction of a statement, unless a transaction is open.
func (s *session) enter() {
	if s.tx.open {
		return
	}
	s.tx.open = true
	s.tx.started = s.backend.now()
	s.tx.undo = s.settings.snapshot()
}

// end ends the transaction.
func (s *session) end(commit bool) {
	if commit {
		s.settings.commit()
	} else if s.tx.open {
		s.settings.restore(s.tx.undo)
	}
	clear(s.portals)
	s.tx = transaction{status: statusIdle, several: s.tx.several}
}

// endImplicit ends an implicit transaction well.
func (s *session) endImplicit() {
	if s.tx.status == statusIdle && s.tx.open {
		s.end(true)
	}
}

// abort ends an implicit transaction after an error, or makes a block a failed one: what the innermost savepoint
// covers is undone at once.
func (s *session) abort() {
	switch s.tx.status {
	case statusIdle:
		s.end(false)
	case statusBlock:
		s.tx.status = statusFailed
		if n := len(s.tx.savepoints); n > 0 {
			s.settings.restore(s.tx.savepoints[n-1].undo)
		} else {
			s.settings.restore(s.tx.undo)
		}
	}
}

// inBlock reports whether statements after this one belong to the same transaction.
func (s *session) inBlock() bool { return s.tx.status != statusIdle || s.tx.several }

func (s *session) warnNoBlock(what string) {
	message := "there is no transaction in progress"
	if what != "" {
		message = what + " can only be used in transaction blocks"
	}
	s.notice(&wire.Error{Severity: wire.SeverityWarning, Code: "25P01", Message: message})
}

func errNoBlock(what string) error {
	return errorf("25P01", "%s can only be used in transaction blocks", what)
}

// transactionCommand makes the command of BEGIN, COMMIT, ROLLBACK, SAVEPOINT and their relatives.
func transactionCommand(t *pg_query.TransactionStmt) (*command, error) {
	c := &command{}
	switch t.Kind {
	case pg_query.TransactionStmtKind_TRANS_STMT_BEGIN, pg_query.TransactionStmtKind_TRANS_STMT_START:
		tag := "BEGIN"
		if t.Kind == pg_query.TransactionStmtKind_TRANS_STMT_START {
			tag = "START TRANSACTION"
		}
		modes, err := transactionModes(t.Options)
		if err != nil {
			return nil, err
		}
		c.run = func(s *session) (string, error) { return tag, s.begin(modes) }
	case pg_query.TransactionStmtKind_TRANS_STMT_COMMIT:
		c.exits = true
		c.run = func(s *session) (string, error) { return s.finish("COMMIT", t.Chain) }
	case pg_query.TransactionStmtKind_TRANS_STMT_ROLLBACK:
		c.exits = true
		c.run = func(s *session) (string, error) { return s.finish("ROLLBACK", t.Chain) }
	case pg_query.TransactionStmtKind_TRANS_STMT_SAVEPOINT:
		c.run = func(s *session) (string, error) { return "SAVEPOINT", s.savepoint(t.SavepointName) }
	case pg_query.TransactionStmtKind_TRANS_STMT_RELEASE:
		c.run = func(s *session) (string, error) { return "RELEASE", s.release(t.SavepointName) }
	case pg_query.TransactionStmtKind_TRANS_STMT_ROLLBACK_TO:
		c.exits = true
		c.run = func(s *session) (string, error) { return "ROLLBACK", s.rollbackTo(t.SavepointName) }
	default:
		return nil, unsupported("a prepared transaction")
	}
	return c, nil
}

func (s *session) begin(modes []assignment) error {
	if s.tx.status == statusBlock {
		s.notice(&wire.Error{Severity: wire.SeverityWarning, Code: "25001", Message: "there is already a transaction in progress"})
	}
	s.tx.status = statusBlock
	return s.setTransaction(modes)
}

// setTransaction sets the modes of the open transaction.
func (s *session) setTransaction(modes []assignment) error {
	for _, m := range modes {
		if err := s.set(m.name, m.value, true); err != nil {
			return err
		}
	}
	return nil
}

// finish is COMMIT and ROLLBACK, which of them the tag says. A COMMIT of a failed block rolls back, and returns the tag
// that says so.
func (s *session) finish(tag string, chain bool) (string, error) {
	if s.tx.status == statusIdle {
		if chain {
			return "", errNoBlock(tag + " AND CHAIN")
		}
		s.warnNoBlock("")
		s.end(tag == "COMMIT")
		return tag, nil
	}
	if s.tx.status == statusFailed {
		tag = "ROLLBACK"
	}
	modes := s.settings.modes()
	s.end(tag == "COMMIT")
	if !chain {
		return tag, nil
	}
	s.enter()
	s.tx.status = statusBlock
	return tag, s.setTransaction(modes)
}

func (s *session) savepoint(name string) error {
	if s.tx.status == statusIdle {
		return errNoBlock("SAVEPOINT")
	}
	s.tx.savepoints = append(s.tx.savepoints, savepoint{name: name, undo: s.settings.snapshot()})
	return nil
}

func (s *session) release(name string) error {
	if s.tx.status == statusIdle {
		return errNoBlock("RELEASE SAVEPOINT")
	}
	i, err := s.findSavepoint(name)
	if err == nil {
		s.tx.savepoints = s.tx.savepoints[:i]
	}
	return err
}

func (s *session) rollbackTo(name string) error {
	if s.tx.status == statusIdle {
		return errNoBlock("ROLLBACK TO SAVEPOINT")
	}
	i, err := s.findSavepoint(name)
	if err != nil {
		return err
	}
	s.settings.restore(s.tx.savepoints[i].undo)
	s.tx.savepoints = s.tx.savepoints[:i+1]
	for name, p := range s.portals {
		if p.level > i {
			delete(s.portals, name)
		}
	}
	s.tx.status = statusBlock
	return nil
}

func (s *session) findSavepoint(name string) (int, error) {
	for i := len(s.tx.savepoints) - 1; i >= 0; i-- {
		if s.tx.savepoints[i].name == name {
			return i, nil
		}
	}
	return 0, errorf("3B001", "savepoint \"%s\" does not exist", name)
}
