package sqlrewrite

import (
	"slices"

	pg_query "github.com/pganalyze/pg_query_go/v5"
)

// A statement creates the relations that it names, and others whose names PostgreSQL makes up: the sequences of serial
// and identity columns, and the indexes of keys. Where such a name is taken, by a sequence of the upstream or not,
// PostgreSQL adds a number to it. What LIKE, INHERITS and PARTITION OF bring along is in no text.

// creates notes a relation that the statement would create.
func (p *planner) creates(rv *pg_query.RangeVar) {
	if rv == nil || rv.Relname == "" {
		return
	}
	p.createsBeside(rv, rv.Relname)
}

// createsBeside notes a relation in the schema of another.
func (p *planner) createsBeside(rv *pg_query.RangeVar, name string) {
	schema := rv.GetSchemaname()
	if rv.GetRelpersistence() == "t" {
		schema = "pg_temp"
	}
	p.st.Creates = append(p.st.Creates, Name{Schema: schema, Name: name})
}

// createsOf notes the relations that a statement other than a query would create.
func (p *planner) createsOf(node *pg_query.Node) {
	switch n := node.Node.(type) {
	case *pg_query.Node_DropStmt:
		if n.DropStmt.RemoveType != pg_query.ObjectType_OBJECT_SCHEMA {
			break
		}
		for _, o := range n.DropStmt.Objects {
			p.st.DropSchemas = append(p.st.DropSchemas, o.GetString_().GetSval())
		}
		p.st.DropCascade = n.DropStmt.Behavior == pg_query.DropBehavior_DROP_CASCADE
	case *pg_query.Node_CreateStmt:
		p.createsTable(n.CreateStmt)
	case *pg_query.Node_CreateForeignTableStmt:
		p.createsTable(n.CreateForeignTableStmt.BaseStmt)
	case *pg_query.Node_CreateSeqStmt:
		p.creates(n.CreateSeqStmt.Sequence)
	case *pg_query.Node_ViewStmt:
		p.creates(n.ViewStmt.View)
	case *pg_query.Node_CompositeTypeStmt:
		p.creates(n.CompositeTypeStmt.Typevar)
	case *pg_query.Node_IndexStmt:
		s := n.IndexStmt
		name := s.Idxname
		if name == "" {
			name = indexName(s.Relation.GetRelname(), columnsOf(append(slices.Clip(s.IndexParams), s.IndexIncludingParams...)), "idx")
		}
		p.createsBeside(s.Relation, name)
	case *pg_query.Node_CreateSchemaStmt:
		first := len(p.st.Creates)
		for _, e := range n.CreateSchemaStmt.SchemaElts {
			p.createsOf(e)
		}
		for i := range p.st.Creates[first:] {
			if name := &p.st.Creates[first+i]; name.Schema == "" {
				name.Schema = n.CreateSchemaStmt.Schemaname // empty where AUTHORIZATION names it
			}
		}
	case *pg_query.Node_ImportForeignSchemaStmt:
		s := n.ImportForeignSchemaStmt
		if s.ListType == pg_query.ImportForeignSchemaType_FDW_IMPORT_SCHEMA_LIMIT_TO {
			for _, t := range s.TableList {
				p.createsBeside(&pg_query.RangeVar{Schemaname: s.LocalSchema}, t.GetRangeVar().GetRelname())
			}
		}
	case *pg_query.Node_RenameStmt:
		switch s := n.RenameStmt; s.RenameType {
		case pg_query.ObjectType_OBJECT_VIEW, pg_query.ObjectType_OBJECT_MATVIEW, pg_query.ObjectType_OBJECT_FOREIGN_TABLE:
			p.createsBeside(s.Relation, s.Newname)
		case pg_query.ObjectType_OBJECT_TYPE:
			if name, ok := listName(s.Object); ok {
				p.st.Creates = append(p.st.Creates, Name{Schema: name.Schema, Name: s.Newname})
			}
		}
	case *pg_query.Node_AlterObjectSchemaStmt:
		switch s := n.AlterObjectSchemaStmt; s.ObjectType {
		case pg_query.ObjectType_OBJECT_VIEW, pg_query.ObjectType_OBJECT_MATVIEW, pg_query.ObjectType_OBJECT_FOREIGN_TABLE:
			p.createsBeside(&pg_query.RangeVar{Schemaname: s.Newschema}, s.Relation.GetRelname())
		case pg_query.ObjectType_OBJECT_TYPE:
			if name, ok := listName(s.Object); ok {
				p.st.Creates = append(p.st.Creates, Name{Schema: s.Newschema, Name: name.Name})
			}
		}
	case *pg_query.Node_AlterTableStmt:
		s := n.AlterTableStmt
		for _, c := range s.Cmds {
			cmd := c.GetAlterTableCmd()
			switch cmd.GetSubtype() {
			case pg_query.AlterTableType_AT_AddColumn:
				p.createsColumn(s.Relation, cmd.Def.GetColumnDef())
			case pg_query.AlterTableType_AT_AddConstraint, pg_query.AlterTableType_AT_AddIdentity:
				p.createsConstraint(s.Relation, cmd.Name, cmd.Def.GetConstraint())
			}
		}
	}
}

// listName is a name that stands in the tree as a list of its parts.
func listName(n *pg_query.Node) (Name, bool) {
	var parts []string
	for _, item := range n.GetList().GetItems() {
		parts = append(parts, item.GetString_().GetSval())
	}
	return nameOfParts(parts)
}

// createsTable notes a table and what its columns and constraints bring along.
func (p *planner) createsTable(s *pg_query.CreateStmt) {
	table := s.GetRelation()
	p.creates(table)
	for _, e := range s.GetTableElts() {
		p.createsColumn(table, e.GetColumnDef())
		p.createsConstraint(table, "", e.GetConstraint())
	}
}

// createsColumn notes what a new column brings along.
func (p *planner) createsColumn(table *pg_query.RangeVar, column *pg_query.ColumnDef) {
	if table == nil || column == nil {
		return
	}
	if names := column.TypeName.GetNames(); len(names) == 1 {
		switch names[0].GetString_().GetSval() {
		case "serial", "serial2", "serial4", "serial8", "bigserial", "smallserial":
			p.createsBeside(table, objectName(table.Relname, column.Colname, "seq"))
		}
	}
	for _, c := range column.Constraints {
		p.createsConstraint(table, column.Colname, c.GetConstraint())
	}
}

// createsConstraint notes the index of a key, or the sequence of an identity column. column is that of the constraint,
// empty for one of the whole table.
func (p *planner) createsConstraint(table *pg_query.RangeVar, column string, c *pg_query.Constraint) {
	if table == nil || c == nil {
		return
	}
	name, columns := c.Conname, []string{column}
	if column == "" {
		columns = nil
		for _, k := range c.Keys {
			columns = append(columns, k.GetString_().GetSval())
		}
	}
	switch c.Contype {
	case pg_query.ConstrType_CONSTR_IDENTITY:
		for _, o := range c.Options {
			if d := o.GetDefElem(); d.GetDefname() == "sequence_name" {
				if given, ok := listName(d.Arg); ok {
					p.st.Creates = append(p.st.Creates, Name{Schema: given.Schema, Name: given.Name})
				}
				return
			}
		}
		name = objectName(table.Relname, column, "seq")
	case pg_query.ConstrType_CONSTR_PRIMARY:
		if name == "" {
			name = objectName(table.Relname, "", "pkey")
		}
	case pg_query.ConstrType_CONSTR_UNIQUE:
		if name == "" {
			name = indexName(table.Relname, columns, "key")
		}
	case pg_query.ConstrType_CONSTR_EXCLUSION:
		if name == "" {
			var elements []*pg_query.Node
			for _, e := range c.Exclusions {
				if items := e.GetList().GetItems(); len(items) > 0 {
					elements = append(elements, items[0])
				}
			}
			name = indexName(table.Relname, columnsOf(elements), "excl")
		}
	default:
		return
	}
	if c.Indexname == "" { // else an index that exists becomes the key
		p.createsBeside(table, name)
	}
}

// columnsOf are the names of an index's columns; that of an expression is "expr", or its function's.
func columnsOf(elements []*pg_query.Node) []string {
	var names []string
	for _, n := range elements {
		e := n.GetIndexElem()
		name := e.GetName()
		if name == "" {
			name, _ = columnName(e.GetExpr())
		}
		if name == "" {
			name = "expr"
		}
		names = append(names, name)
	}
	return names
}

// indexName makes the name of an index without one.
func indexName(table string, columns []string, label string) string {
	names := ""
	for i, c := range columns {
		if i > 0 {
			names += "_"
		}
		names += c
		if len(names) > longestName {
			break
		}
	}
	return objectName(table, names, label)
}

// objectName makes a name of one or two others and a label as PostgreSQL does: the longer is cut until all fit.
func objectName(first, second, label string) string {
	room := longestName - 1 - len(label)
	if second != "" {
		room--
	}
	a, b := len(first), len(second)
	for a+b > room {
		if a > b {
			a--
		} else {
			b--
		}
	}
	name := clip(first, a)
	if second != "" {
		name += "_" + clip(second, b)
	}
	return name + "_" + label
}

// clip cuts a text to n bytes, at a character's end.
func clip(s string, n int) string {
	for n > 0 && n < len(s) && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:min(n, len(s))]
}
