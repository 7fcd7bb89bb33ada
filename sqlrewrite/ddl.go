package sqlrewrite

import (
	"strings"

	pg_query "github.com/pganalyze/pg_query_go/v5"
)

// ddl plans a statement about sequences as relations; false when it is none.
func (p *planner) ddl(node *pg_query.Node) bool {
	d := DDL{}
	// PostgreSQL takes a sequence in ALTER TABLE, and refuses it in ALTER VIEW and its like.
	table := func(object pg_query.ObjectType) bool {
		switch object {
		case pg_query.ObjectType_OBJECT_SEQUENCE:
			d.Tag = "ALTER SEQUENCE"
			return true
		case pg_query.ObjectType_OBJECT_TABLE:
			d.Table, d.Tag = true, "ALTER TABLE"
			return true
		}
		return false
	}
	switch n := node.Node.(type) {
	case *pg_query.Node_CreateSeqStmt:
		s := n.CreateSeqStmt
		d.Verb, d.Tag, d.IfExists = CreateSequence, "CREATE SEQUENCE", s.IfNotExists
		d.Names = []Name{nameOf(s.Sequence)}
		d.Temporary, d.Unlogged = s.Sequence.Relpersistence == "t", s.Sequence.Relpersistence == "u"
		d.Temporary = d.Temporary || s.Sequence.Schemaname == "pg_temp"
		d.Options = options(s.Options)
		p.creates(s.Sequence)
	case *pg_query.Node_AlterSeqStmt:
		s := n.AlterSeqStmt
		d.Verb, d.Tag, d.IfExists = AlterSequence, "ALTER SEQUENCE", s.MissingOk
		d.Names = []Name{nameOf(s.Sequence)}
		d.Options = options(s.Options)
	case *pg_query.Node_DropStmt:
		s := n.DropStmt
		if s.RemoveType != pg_query.ObjectType_OBJECT_SEQUENCE {
			return false
		}
		d.Verb, d.Tag, d.IfExists = DropSequence, "DROP SEQUENCE", s.MissingOk
		d.Cascade = s.Behavior == pg_query.DropBehavior_DROP_CASCADE
		for _, o := range s.Objects {
			var parts []string
			for _, item := range o.GetList().GetItems() {
				parts = append(parts, item.GetString_().GetSval())
			}
			name, ok := nameOfParts(parts)
			if !ok {
				return false
			}
			d.Names = append(d.Names, name)
		}
	case *pg_query.Node_RenameStmt:
		s := n.RenameStmt
		switch {
		case s.Relation == nil:
			return false
		case s.RenameType == pg_query.ObjectType_OBJECT_INDEX: // as in ALTER TABLE
			d.Table, d.Tag = true, "ALTER INDEX"
		case !table(s.RenameType):
			return false
		}
		d.Verb, d.IfExists, d.To = RenameSequence, s.MissingOk, s.Newname
		d.Names = []Name{nameOf(s.Relation)}
		p.st.Creates = append(p.st.Creates, Name{Schema: s.Relation.Schemaname, Name: s.Newname})
	case *pg_query.Node_AlterObjectSchemaStmt:
		s := n.AlterObjectSchemaStmt
		if s.Relation == nil || !table(s.ObjectType) {
			return false
		}
		d.Verb, d.IfExists, d.To = SetSchema, s.MissingOk, s.Newschema
		d.Names = []Name{nameOf(s.Relation)}
		p.st.Creates = append(p.st.Creates, Name{Schema: s.Newschema, Name: s.Relation.Relname})
	case *pg_query.Node_AlterTableStmt:
		s := n.AlterTableStmt
		if !table(s.Objtype) {
			return false
		}
		if list, ok := storageParameters(s.Cmds); ok {
			d.Verb, d.IfExists, d.Parameters = SetParameters, s.MissingOk, list
			d.Names = []Name{nameOf(s.Relation)}
			break
		}
		if len(s.Cmds) != 1 {
			return false
		}
		cmd := s.Cmds[0].GetAlterTableCmd()
		if cmd.GetSubtype() != pg_query.AlterTableType_AT_ChangeOwner {
			return false
		}
		d.Verb, d.IfExists = OwnerTo, s.MissingOk
		d.Names = []Name{nameOf(s.Relation)}
		switch cmd.Newowner.GetRoletype() {
		case pg_query.RoleSpecType_ROLESPEC_CURRENT_USER:
			d.To = "CURRENT_USER"
		case pg_query.RoleSpecType_ROLESPEC_CURRENT_ROLE:
			d.To = "CURRENT_ROLE"
		case pg_query.RoleSpecType_ROLESPEC_SESSION_USER:
			d.To = "SESSION_USER"
		default:
			d.To = cmd.Newowner.GetRolename()
		}
	default:
		return false
	}
	p.st.Kind, p.st.DDL = KindDDL, &d
	return true
}

func nameOf(rv *pg_query.RangeVar) Name {
	return Name{Database: rv.Catalogname, Schema: rv.Schemaname, Name: rv.Relname}
}

func nameOfParts(parts []string) (Name, bool) {
	switch len(parts) {
	case 1:
		return Name{Name: parts[0]}, true
	case 2:
		return Name{Schema: parts[0], Name: parts[1]}, true
	case 3:
		return Name{Database: parts[0], Schema: parts[1], Name: parts[2]}, true
	}
	return Name{}, false
}

// storageParameters reads the commands of an ALTER TABLE or SEQUENCE; ok is false unless all are SET (...) or RESET (...).
func storageParameters(cmds []*pg_query.Node) (list []StorageParameter, ok bool) {
	for _, node := range cmds {
		cmd := node.GetAlterTableCmd()
		reset := cmd.GetSubtype() == pg_query.AlterTableType_AT_ResetRelOptions
		if !reset && cmd.GetSubtype() != pg_query.AlterTableType_AT_SetRelOptions {
			return nil, false
		}
		for _, item := range cmd.GetDef().GetList().GetItems() {
			d := item.GetDefElem()
			p := StorageParameter{Namespace: d.GetDefnamespace(), Name: d.GetDefname(), Reset: reset}
			if !reset {
				p.Value = "true"
				if d.GetArg() != nil {
					var o Option
					o.read(d.GetArg())
					p.Value = o.Value + strings.Join(o.Parts, ".")
				}
			}
			list = append(list, p)
		}
	}
	return list, true
}

// options reads the options of CREATE and ALTER SEQUENCE.
func options(nodes []*pg_query.Node) []Option {
	var list []Option
	for _, n := range nodes {
		d := n.GetDefElem()
		if d == nil {
			continue
		}
		o := Option{Name: d.Defname, Start: int(d.Location)}
		switch {
		case d.Arg == nil:
			o.None = true
		default:
			o.read(d.Arg)
		}
		list = append(list, o)
	}
	return list
}

func (o *Option) read(n *pg_query.Node) {
	switch v := n.Node.(type) {
	case *pg_query.Node_Integer:
		o.Value = itoa(int64(v.Integer.Ival))
	case *pg_query.Node_Float:
		o.Value = v.Float.Fval
	case *pg_query.Node_Boolean:
		o.None = !v.Boolean.Boolval
	case *pg_query.Node_String_:
		o.Value = v.String_.Sval
	case *pg_query.Node_TypeName:
		o.ValueStart = int(v.TypeName.Location)
		for _, part := range v.TypeName.Names {
			o.Parts = append(o.Parts, part.GetString_().GetSval())
		}
	case *pg_query.Node_List:
		for _, part := range v.List.Items {
			o.Parts = append(o.Parts, part.GetString_().GetSval())
		}
		if len(o.Parts) == 1 && o.Name == "owned_by" && o.Parts[0] == "none" {
			o.None = true
		}
	}
}
