package sqlrewrite

import (
	"slices"
	"strings"

	pg_query "github.com/pganalyze/pg_query_go/v5"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// CatalogKind is a relation or function by which PostgreSQL's catalogs tell of sequences.
type CatalogKind uint8

const (
	// PgSequence is the table pg_sequence: a row of parameters for each sequence, by OID.
	PgSequence CatalogKind = iota
	// PgSequences is the view pg_sequences: the same by name, and the last value.
	PgSequences
	// SchemaSequences is the view information_schema.sequences.
	SchemaSequences
	// LastValueFunction is pg_sequence_last_value(regclass).
	LastValueFunction
	// ParametersFunction is pg_sequence_parameters(oid), which returns a row.
	ParametersFunction
	// DataFunction is pg_get_sequence_data(regclass), which returns a row, since PostgreSQL 18.
	DataFunction
)

// Catalog is a place where a text reads what the catalogs tell of sequences.
type Catalog struct {
	Kind CatalogKind
	// Start and End are the byte range of the relation's name as in Read, or of the whole call. A field that is taken from
	// the row of a function belongs to it: (pg_sequence_parameters('s')).increment.
	Start, End int
	// Bare: the name is written without its schema.
	Bare bool
	// Key is the only sequence that is asked for: the argument of a function, or what seqrelid is compared with. Opaque
	// where the text does not tell.
	Key Argument
	// Alias and Table are those of Read.
	Alias, Table bool
	// Place, of a function: in FROM, as an output column, or elsewhere.
	Place Place
	// Argument is the byte range of a function's argument.
	Argument [2]int
	// Field is the field taken from a row: "*" for all, empty for the row itself.
	Field string
	// Lateral: LATERAL stands before the function in FROM.
	Lateral bool
}

// Prefix is the schema of a column's name, with its dot, in a text: it has to go when the relation, which is of that name,
// becomes a subquery.
type Prefix struct {
	Relation   Name
	Start, End int
}

// catalogRelation is the catalog that a relation's name means; false when it means none.
func catalogRelation(n Name) (CatalogKind, bool) {
	switch {
	case n.Name == "sequences":
		return SchemaSequences, n.Schema == "information_schema"
	case n.Schema != "" && n.Schema != "pg_catalog":
	case n.Name == "pg_sequence":
		return PgSequence, true
	case n.Name == "pg_sequences":
		return PgSequences, true
	}
	return 0, false
}

// IsCatalog reports whether a relation's name means a catalog that tells of sequences.
func IsCatalog(n Name) bool {
	_, ok := catalogRelation(n)
	return ok
}

var catalogFunctions = map[string]CatalogKind{
	"pg_sequence_last_value": LastValueFunction,
	"pg_sequence_parameters": ParametersFunction,
	"pg_get_sequence_data":   DataFunction,
}

// catalogFunction recognises a call of a function of catalogFunctions.
func catalogFunction(n *pg_query.FuncCall) (CatalogKind, bool) {
	kind, ok := catalogFunctions[functionName(n)]
	plain := len(n.Args) == 1 && n.Args[0].GetNamedArgExpr() == nil && len(n.AggOrder) == 0 && n.AggFilter == nil &&
		n.Over == nil && !n.AggDistinct && !n.AggStar && !n.FuncVariadic && !n.AggWithinGroup
	return kind, ok && plain
}

// catalogCall notes a call of a catalog function; false when it is none.
func (p *planner) catalogCall(n *pg_query.FuncCall, c context) bool {
	kind, ok := catalogFunction(n)
	if !ok || !c.reads() {
		return false
	}
	start, end, args := p.extent(int(n.Location))
	if len(args) != 1 {
		return false
	}
	p.st.Catalogs = append(p.st.Catalogs, Catalog{
		Kind: kind, Start: start, End: end, Bare: len(n.Funcname) == 1, Place: c.place, Argument: args[0], Key: p.argument(n.Args[0], 0),
		Lateral: p.token(p.tokenAt(start)-1) == pg_query.Token_LATERAL_P,
	})
	if kind != ParametersFunction && n.Args[0].GetAConst().GetSval() != nil {
		p.st.Classes = append(p.st.Classes, Class{ // the function takes a regclass
			Name: Argument{Kind: Constant, Value: n.Args[0].GetAConst().GetSval().Sval, Type: oidRegclass}, Start: args[0][0], End: args[0][1],
		})
		return true
	}
	inner := c
	inner.place = PlaceExpression
	p.expr(n.Args[0], inner)
	return true
}

// catalogField notes a field of a catalog function's row; false when the expression is another.
func (p *planner) catalogField(n *pg_query.A_Indirection, c context) bool {
	call := n.Arg.GetFuncCall()
	if call == nil || len(n.Indirection) != 1 || !p.catalogCall(call, c) {
		return false
	}
	// Of the calls noted just now, those in the argument come after.
	i := slices.IndexFunc(p.st.Catalogs, func(k Catalog) bool { return k.Start == int(call.Location) })
	k := &p.st.Catalogs[i]
	k.Field = "*"
	if field := n.Indirection[0].GetString_(); field != nil {
		k.Field = field.Sval
	}
	first, last := p.tokenAt(k.Start), p.tokenAt(k.End)
	for p.token(first-1) == pg_query.Token_ASCII_40 && p.token(last) == pg_query.Token_ASCII_41 { // ( and )
		first, last = first-1, last+1
	}
	if p.token(last) == pg_query.Token_ASCII_46 { // .
		k.Start, k.End = int(p.tokens[first].Start), int(p.tokens[last+1].End)
	}
	return true
}

// keys finds what the seqrelid of pg_sequence is compared with, where a SELECT reads it once.
func (p *planner) keys(s *pg_query.SelectStmt) {
	i := -1
	for _, item := range s.FromClause {
		rv := item.GetRangeVar()
		if rv == nil || rv.Relname != "pg_sequence" {
			continue
		}
		if i >= 0 {
			return
		}
		i = slices.IndexFunc(p.st.Catalogs, func(k Catalog) bool {
			return k.Kind == PgSequence && k.Start <= int(rv.Location) && int(rv.Location) < k.End
		})
	}
	if i < 0 || s.WhereClause == nil {
		return
	}
	conditions := []*pg_query.Node{s.WhereClause}
	if and := s.WhereClause.GetBoolExpr(); and.GetBoolop() == pg_query.BoolExprType_AND_EXPR {
		conditions = and.Args
	}
	for _, node := range conditions {
		e := node.GetAExpr()
		if e.GetKind() != pg_query.A_Expr_Kind_AEXPR_OP || operator(e.Name) != "=" {
			continue
		}
		if fields := e.Lexpr.GetColumnRef().GetFields(); len(fields) == 0 || fields[len(fields)-1].GetString_().GetSval() != "seqrelid" {
			continue
		}
		p.st.Catalogs[i].Key = p.argument(e.Rexpr, 0)
	}
}

// operator is an operator of pg_catalog, empty for another.
func operator(name []*pg_query.Node) string {
	if len(name) == 0 || len(name) > 1 && name[0].GetString_().GetSval() != "pg_catalog" {
		return ""
	}
	return name[len(name)-1].GetString_().GetSval()
}

// systemColumns are those that every table has.
var systemColumns = []string{"tableoid", "ctid", "xmin", "cmin", "xmax", "cmax"}

// columns notes how a statement names the columns of the catalogs and relations that it reads.
func (p *planner) columns(m protoreflect.Message) {
	p.columnNames(m)
	if p.st.star {
		p.st.System = nil // they would be columns of *
	}
}

func (p *planner) columnNames(m protoreflect.Message) {
	ref, ok := m.Interface().(*pg_query.ColumnRef)
	if !ok {
		children(m, p.columnNames)
		return
	}
	last := ref.Fields[len(ref.Fields)-1].GetString_().GetSval()
	if slices.Contains(systemColumns, last) && !slices.Contains(p.st.System, last) {
		p.st.System = append(p.st.System, last)
	}
	p.st.star = p.st.star || ref.Fields[len(ref.Fields)-1].GetAStar() != nil
	if n := len(ref.Fields); n == 3 || n == 4 {
		first := p.tokenAt(int(ref.Location))
		relation := Name{Schema: ref.Fields[n-3].GetString_().GetSval(), Name: ref.Fields[n-2].GetString_().GetSval()}
		if end := first + 2*(n-2); end < len(p.tokens) {
			p.st.Prefixes = append(p.st.Prefixes, Prefix{Relation: relation, Start: int(p.tokens[first].Start), End: int(p.tokens[end].Start)})
		}
	}
}

// Edits make the place tell what overlay tells, a value of type jsonb, in the names and types of PostgreSQL. It has a field
// for each sequence of ours, by its OID:
//
//	{"16390": {"type": 20, "start": 1, "increment": 1, "min": 1, "max": 9, "cache": 1, "cycle": false, "last": 7, "called": true}}
//
// A sequence that the upstream does not have has its "schema" and "name" too. The rest stays what the upstream tells, who
// checks privileges as always. system are those of Statement.System.
func (k *Catalog) Edits(text, overlay string, system []string) []Edit {
	switch k.Kind {
	case PgSequence, PgSequences, SchemaSequences:
		return []Edit{{Start: k.Start, End: k.End, Text: k.relation(overlay, system)}}
	}
	return k.function(text, overlay)
}

// fieldOf is the expression of a field of a sequence in an overlay v; NULL when it has no such sequence.
func fieldOf(v, oid, field, typ string) string {
	e := "pg_catalog.jsonb_extract_path_text(" + v + ", " + oid + "::pg_catalog.text, '" + field + "')"
	if typ != "text" {
		e = "(" + e + ")::pg_catalog." + typ
	}
	return e
}

// over is a column in which the overlay comes before the upstream.
func over(oid, field, typ, column, name string) string {
	return "COALESCE(" + fieldOf("o.v", oid, field, typ) + ", " + column + ") AS " + name
}

// aliased gives a subquery the name that the relation had.
func aliased(subquery, name string, alias, table bool) string {
	if table {
		subquery = "SELECT * FROM " + subquery
	}
	if alias {
		return subquery
	}
	return subquery + ` AS "` + strings.ReplaceAll(name, `"`, `""`) + `"`
}

// position is the last value in the way of pg_sequences: none before the first call.
func position(v, oid string) string {
	return "CASE WHEN " + fieldOf(v, oid, "called", "bool") + " THEN " + fieldOf(v, oid, "last", "int8") + " END"
}

// relation is the subquery in the place of a relation.
func (k *Catalog) relation(overlay string, system []string) string {
	own := "FROM pg_catalog.jsonb_each(" + overlay + ") AS e(oid, v) WHERE pg_catalog.jsonb_extract_path_text(e.v, 'schema') IS NOT NULL"
	get := func(field, typ string) string {
		return "(pg_catalog.jsonb_extract_path_text(e.v, '" + field + "'))::" + typ
	}
	var list, virtual []string
	var name, from string
	switch k.Kind {
	case PgSequence:
		name, from = "pg_sequence", "FROM pg_catalog.pg_sequence AS s, (SELECT "+overlay+") AS o(v)"
		const oid = "s.seqrelid"
		list = []string{oid, "s.seqtypid", over(oid, "start", "int8", "s.seqstart", "seqstart"),
			over(oid, "increment", "int8", "s.seqincrement", "seqincrement"), over(oid, "max", "int8", "s.seqmax", "seqmax"),
			over(oid, "min", "int8", "s.seqmin", "seqmin"), over(oid, "cache", "int8", "s.seqcache", "seqcache"),
			over(oid, "cycle", "bool", "s.seqcycle", "seqcycle")}
		virtual = []string{"e.oid::pg_catalog.oid", get("type", "pg_catalog.oid"), get("start", "pg_catalog.int8"), get("increment", "pg_catalog.int8"),
			get("max", "pg_catalog.int8"), get("min", "pg_catalog.int8"), get("cache", "pg_catalog.int8"), get("cycle", "pg_catalog.bool")}
		for _, column := range system {
			list, virtual = append(list, "s."+column), append(virtual, "NULL")
		}
	case PgSequences:
		name, from = "pg_sequences", "FROM pg_catalog.pg_sequences AS s "+byName("s.schemaname", "s.sequencename")+", (SELECT "+overlay+") AS o(v)"
		const oid = "c.oid"
		list = []string{"s.schemaname", "s.sequencename", "s.sequenceowner", "s.data_type",
			over(oid, "start", "int8", "s.start_value", "start_value"), over(oid, "min", "int8", "s.min_value", "min_value"),
			over(oid, "max", "int8", "s.max_value", "max_value"), over(oid, "increment", "int8", "s.increment_by", "increment_by"),
			over(oid, "cycle", "bool", "s.cycle", "cycle"), over(oid, "cache", "int8", "s.cache_size", "cache_size"),
			"CASE WHEN " + fieldOf("o.v", oid, "last", "text") + " IS NULL THEN s.last_value" +
				" WHEN pg_catalog.has_sequence_privilege(" + oid + ", 'SELECT,USAGE') THEN " + position("o.v", oid) + " END AS last_value"}
		virtual = []string{get("schema", "pg_catalog.name"), get("name", "pg_catalog.name"), "current_user", get("type", "pg_catalog.oid") + "::pg_catalog.regtype",
			get("start", "pg_catalog.int8"), get("min", "pg_catalog.int8"), get("max", "pg_catalog.int8"), get("increment", "pg_catalog.int8"),
			get("cycle", "pg_catalog.bool"), get("cache", "pg_catalog.int8"),
			"CASE WHEN " + get("called", "pg_catalog.bool") + " THEN " + get("last", "pg_catalog.int8") + " END"}
	default:
		name, from = "sequences", "FROM information_schema.sequences AS s "+
			byName("s.sequence_schema", "s.sequence_name")+", (SELECT "+overlay+") AS o(v)"
		const oid = "c.oid"
		data := func(field, column string) string {
			return "COALESCE((" + fieldOf("o.v", oid, field, "text") + ")::information_schema.character_data, s." + column + ") AS " + column
		}
		cycle := func(bool string) string {
			return "CASE " + bool + " WHEN true THEN 'YES' WHEN false THEN 'NO' END::information_schema.yes_or_no"
		}
		list = []string{"s.sequence_catalog", "s.sequence_schema", "s.sequence_name", "s.data_type", "s.numeric_precision",
			"s.numeric_precision_radix", "s.numeric_scale", data("start", "start_value"), data("min", "minimum_value"),
			data("max", "maximum_value"), data("increment", "increment"),
			"COALESCE((" + cycle(fieldOf("o.v", oid, "cycle", "bool")) + "), s.cycle_option) AS cycle_option"}
		number := func(of string) string { return of + "::information_schema.cardinal_number" }
		virtual = []string{"pg_catalog.current_database()::information_schema.sql_identifier", get("schema", "information_schema.sql_identifier"),
			get("name", "information_schema.sql_identifier"),
			"pg_catalog.format_type(" + get("type", "pg_catalog.oid") + ", NULL)::information_schema.character_data",
			number("CASE " + get("type", "pg_catalog.int8") + " WHEN 21 THEN 16 WHEN 23 THEN 32 ELSE 64 END"), number("2"), number("0"),
			get("start", "information_schema.character_data"), get("min", "information_schema.character_data"),
			get("max", "information_schema.character_data"), get("increment", "information_schema.character_data"),
			"(" + cycle(get("cycle", "pg_catalog.bool")) + ")"}
	}
	subquery := "(SELECT " + strings.Join(list, ", ") + " " + from + " UNION ALL SELECT " + strings.Join(virtual, ", ") + " " + own + ")"
	return aliased(subquery, name, k.Alias, k.Table)
}

// byName joins pg_class by a relation's schema and name, which are unique.
func byName(schema, name string) string {
	return "LEFT JOIN pg_catalog.pg_namespace AS n ON n.nspname OPERATOR(pg_catalog.=) " + schema + "::pg_catalog.name" +
		" LEFT JOIN pg_catalog.pg_class AS c ON c.relnamespace OPERATOR(pg_catalog.=) n.oid AND c.relname OPERATOR(pg_catalog.=) " + name + "::pg_catalog.name"
}

// function are the edits before and after the argument of a function.
func (k *Catalog) function(text, overlay string) []Edit {
	source := " FROM (SELECT ("
	typed := ")::pg_catalog.regclass, " + overlay + ") AS o(oid, v)"
	if k.Kind == ParametersFunction {
		typed = ")::pg_catalog.oid, " + overlay + ") AS o(oid, v)"
	}
	around := func(before, after string) []Edit {
		return []Edit{{Start: k.Start, End: k.Argument[0], Text: before}, {Start: k.Argument[1], End: k.End, Text: after}}
	}
	const oid = "o.oid::pg_catalog.oid"
	// Where the caller lacks the privilege, or the sequence is none of ours, the upstream's own function answers.
	ours := fieldOf("o.v", oid, "last", "text") + " IS NOT NULL AND COALESCE(pg_catalog.has_sequence_privilege(" + oid + ", '" +
		map[CatalogKind]string{LastValueFunction: "SELECT,USAGE", ParametersFunction: "SELECT,UPDATE,USAGE", DataFunction: "SELECT"}[k.Kind] + "'), true)"
	if k.Kind == LastValueFunction {
		value := "CASE WHEN " + ours + " THEN " + position("o.v", oid) + " ELSE pg_catalog.pg_sequence_last_value(o.oid) END"
		switch k.Place {
		case PlaceColumn:
			return around("(SELECT "+value+" AS pg_sequence_last_value"+source, typed+")")
		case PlaceFrom, PlaceFromBare:
			alias := ""
			if k.Place == PlaceFromBare {
				alias = " AS pg_sequence_last_value"
			}
			return around("pg_catalog.int8larger((SELECT "+value+source, typed+"), '-9223372036854775808'::pg_catalog.int8)"+alias)
		}
		return around("(SELECT "+value+source, typed+")")
	}

	name, upstream := "pg_sequence_parameters", "pg_catalog.pg_sequence_parameters"
	fields := []string{
		over(oid, "start", "int8", "p.start_value", "start_value"), over(oid, "min", "int8", "p.minimum_value", "minimum_value"),
		over(oid, "max", "int8", "p.maximum_value", "maximum_value"), over(oid, "increment", "int8", "p.increment", "increment"),
		over(oid, "cycle", "bool", "p.cycle_option", "cycle_option"), over(oid, "cache", "int8", "p.cache_size", "cache_size"),
		over(oid, "type", "oid", "p.data_type", "data_type"),
	}
	if k.Kind == DataFunction {
		name, upstream = "pg_get_sequence_data", "pg_catalog.pg_get_sequence_data"
		fields = []string{over(oid, "last", "int8", "p.last_value", "last_value"), over(oid, "called", "bool", "p.is_called", "is_called")}
	}
	// The function is strict: of NULL it makes a row of NULL.
	row := " LEFT JOIN LATERAL " + upstream + "(CASE WHEN " + ours + " THEN NULL ELSE o.oid END) AS p ON true)"
	switch k.Place {
	case PlaceFrom, PlaceFromBare:
		before := "(SELECT " + strings.Join(fields, ", ") + source
		if !k.Lateral {
			before = "LATERAL " + before
		}
		return around(before, aliased(typed+row, name, k.Place == PlaceFrom, false))
	}
	column := func(field string) int {
		return slices.IndexFunc(fields, func(f string) bool { return strings.HasSuffix(f, " AS "+field) })
	}
	switch i := column(k.Field); {
	case k.Field == "*":
		argument := text[k.Argument[0]:k.Argument[1]]
		var all []string
		for _, f := range fields {
			_, called, _ := cutLast(f, " AS ")
			all = append(all, "(SELECT "+f+source+argument+typed+row+" AS "+called)
		}
		return []Edit{{Start: k.Start, End: k.End, Text: strings.Join(all, ", ")}}
	case k.Field != "" && i < 0:
		return nil // the upstream says that there is no such field
	case k.Field != "":
		return around("(SELECT "+fields[i]+source, typed+row)
	}
	var values []string
	for _, f := range fields {
		value, _, _ := cutLast(f, " AS ")
		values = append(values, value)
	}
	return around("(SELECT ROW("+strings.Join(values, ", ")+") AS "+name+source, typed+row)
}

// cutLast is strings.Cut at the last separator.
func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}
