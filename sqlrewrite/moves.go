package sqlrewrite

import (
	"slices"

	pg_query "github.com/pganalyze/pg_query_go/v5"
)

// Moves are the sequences that a statement may alter, drop, set back or give another name, beside those of its calls of
// setval.
type Moves struct {
	// All: any sequence of the database.
	All bool
	// Renames: nothing but their names change, or their schemas'.
	Renames bool
	// Names are sequences, and tables: of these, the sequences that their columns own are meant, also of what inherits from
	// them.
	Names []Name
	// Schemas are those that are dropped, with the sequences in them.
	Schemas []string
	// Databases are those that are dropped, renamed or copied, for which nobody may be connected to them.
	Databases []string
}

// moves notes what a statement moves.
func (p *planner) moves(node *pg_query.Node) {
	m := Moves{}
	switch n := node.Node.(type) {
	case *pg_query.Node_AlterSeqStmt:
		m.relation(n.AlterSeqStmt.Sequence)
	case *pg_query.Node_DropStmt:
		m.drop(n.DropStmt)
	case *pg_query.Node_TruncateStmt:
		if n.TruncateStmt.RestartSeqs {
			m.All = n.TruncateStmt.Behavior == pg_query.DropBehavior_DROP_CASCADE
			for _, r := range n.TruncateStmt.Relations {
				m.relation(r.GetRangeVar())
			}
		}
	case *pg_query.Node_AlterTableStmt:
		if slices.ContainsFunc(n.AlterTableStmt.Cmds, movesSequences) {
			m.relation(n.AlterTableStmt.Relation)
		}
	case *pg_query.Node_RenameStmt:
		m.rename(n.RenameStmt)
	case *pg_query.Node_AlterObjectSchemaStmt:
		s := n.AlterObjectSchemaStmt
		m.relation(s.Relation)
		m.All, m.Renames = s.ObjectType == pg_query.ObjectType_OBJECT_EXTENSION, s.Relation != nil
	case *pg_query.Node_DropOwnedStmt, *pg_query.Node_AlterExtensionStmt:
		m.All = true
	case *pg_query.Node_DropdbStmt:
		m.Databases = []string{n.DropdbStmt.Dbname}
	case *pg_query.Node_AlterDatabaseStmt:
		m.Databases = []string{n.AlterDatabaseStmt.Dbname} // it may move to another tablespace
	case *pg_query.Node_CreatedbStmt:
		for _, o := range n.CreatedbStmt.Options {
			if d := o.GetDefElem(); d.GetDefname() == "template" {
				m.Databases = []string{d.Arg.GetString_().GetSval()}
			}
		}
	case *pg_query.Node_DoStmt:
		m.All = movesInBody(n.DoStmt.Args)
	}
	if m.All || len(m.Names)+len(m.Schemas)+len(m.Databases) > 0 {
		p.st.Moves = &m
	}
}

func (m *Moves) relation(rv *pg_query.RangeVar) {
	if rv != nil {
		m.Names = append(m.Names, nameOf(rv))
	}
}

func (m *Moves) drop(s *pg_query.DropStmt) {
	switch s.RemoveType {
	case pg_query.ObjectType_OBJECT_SEQUENCE, pg_query.ObjectType_OBJECT_TABLE, pg_query.ObjectType_OBJECT_FOREIGN_TABLE:
		for _, o := range s.Objects {
			if name, ok := listName(o); ok {
				m.Names = append(m.Names, name)
			}
		}
	case pg_query.ObjectType_OBJECT_SCHEMA:
		m.All = true
		for _, o := range s.Objects {
			m.Schemas = append(m.Schemas, o.GetString_().GetSval())
		}
	case pg_query.ObjectType_OBJECT_EXTENSION:
		m.All = true
	case pg_query.ObjectType_OBJECT_TYPE, pg_query.ObjectType_OBJECT_DOMAIN, pg_query.ObjectType_OBJECT_ACCESS_METHOD,
		pg_query.ObjectType_OBJECT_FDW, pg_query.ObjectType_OBJECT_FOREIGN_SERVER:
		m.All = s.Behavior == pg_query.DropBehavior_DROP_CASCADE // with columns and tables that own sequences
	}
}

func (m *Moves) rename(s *pg_query.RenameStmt) {
	switch s.RenameType {
	case pg_query.ObjectType_OBJECT_SCHEMA:
		m.All, m.Renames, m.Schemas = true, true, []string{s.Subname}
	case pg_query.ObjectType_OBJECT_DATABASE:
		m.Databases = []string{s.Subname}
	case pg_query.ObjectType_OBJECT_SEQUENCE, pg_query.ObjectType_OBJECT_TABLE, pg_query.ObjectType_OBJECT_INDEX,
		pg_query.ObjectType_OBJECT_VIEW, pg_query.ObjectType_OBJECT_MATVIEW:
		m.relation(s.Relation) // PostgreSQL takes sequences in some of these too
		m.Renames = true
	}
}

// movesSequences reports whether a command of ALTER TABLE or ALTER SEQUENCE concerns sequences of the relation's columns.
func movesSequences(node *pg_query.Node) bool {
	switch node.GetAlterTableCmd().GetSubtype() {
	case pg_query.AlterTableType_AT_DropColumn, pg_query.AlterTableType_AT_AlterColumnType, pg_query.AlterTableType_AT_SetIdentity,
		pg_query.AlterTableType_AT_DropIdentity, pg_query.AlterTableType_AT_SetLogged, pg_query.AlterTableType_AT_SetUnLogged:
		return true
	}
	return false
}

// movesInBody reports whether the text of DO may do any of this.
func movesInBody(options []*pg_query.Node) bool {
	for _, o := range options {
		if d := o.GetDefElem(); d.GetDefname() == "as" && scan(d.GetArg().GetString_().GetSval(), nil)&hintMove != 0 {
			return true
		}
	}
	return false
}
