package standalone

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"
	pg_query "github.com/pganalyze/pg_query_go/v5"

	"github.com/nextvald/nextvald/proxy/answer"
	"github.com/nextvald/nextvald/sqlrewrite"
)

// set sets a value in the session, with the rules that depend on its transaction.
func (s *session) set(name, value string, local bool) error {
	key := strings.ToLower(name)
	switch key {
	case "transaction_isolation", "transaction_read_only", "transaction_deferrable":
		local = true // they are of a transaction by nature
	}
	before := s.settings.get(name)
	if s.tx.queried && s.tx.status != statusIdle {
		canonical, err := s.settings.check(name, value)
		switch {
		case err != nil:
			return err
		case key == "transaction_isolation" && canonical != before:
			return errorf("25001", "SET TRANSACTION ISOLATION LEVEL must be called before any query")
		case key == "transaction_read_only" && before == "on" && canonical == "off":
			return errorf("25001", "transaction read-write mode must be set before any query")
		}
	}
	if err := s.settings.set(name, value, local); err != nil {
		return err
	}
	return nil
}

// setCommand makes the command of SET and RESET.
func setCommand(v *pg_query.VariableSetStmt) (*command, error) {
	var run func(s *session) error
	tag := "SET"
	switch v.Kind {
	case pg_query.VariableSetKind_VAR_SET_VALUE:
		value, err := setValue(v.Name, v.Args)
		if err != nil {
			return nil, err
		}
		run = func(s *session) error { return s.set(v.Name, value, v.IsLocal) }
	case pg_query.VariableSetKind_VAR_SET_DEFAULT:
		run = func(s *session) error { return s.reset(v.Name, v.IsLocal) }
	case pg_query.VariableSetKind_VAR_SET_CURRENT:
		run = func(s *session) error {
			if !s.settings.known(v.Name) {
				return errUnknownSetting(v.Name)
			}
			return s.set(v.Name, s.settings.get(v.Name), v.IsLocal)
		}
	case pg_query.VariableSetKind_VAR_RESET:
		tag = "RESET"
		run = func(s *session) error { return s.reset(v.Name, false) }
	case pg_query.VariableSetKind_VAR_RESET_ALL:
		tag = "RESET"
		run = func(s *session) error { s.settings.resetAll(); return nil }
	case pg_query.VariableSetKind_VAR_SET_MULTI:
		return setTransactionCommand(v)
	default:
		return nil, unsupported("SET of this form")
	}
	return &command{run: func(s *session) (string, error) {
		if v.IsLocal && !s.inBlock() {
			s.warnNoBlock("SET LOCAL")
		}
		return tag, run(s)
	}}, nil
}

// reset goes back to the value of the login.
func (s *session) reset(name string, local bool) error {
	if !s.settings.known(name) && !isCustom(name) {
		return errUnknownSetting(name)
	}
	if st, ok := settingsByName[strings.ToLower(name)]; ok && st.kind == "fixed" {
		return errorf("55P02", "parameter \"%s\" cannot be changed", st.name)
	}
	return s.set(name, s.settings.initial(name), local)
}

// setTransactionCommand makes the command of SET TRANSACTION and SET SESSION CHARACTERISTICS AS TRANSACTION.
func setTransactionCommand(v *pg_query.VariableSetStmt) (*command, error) {
	modes, err := transactionModes(v.Args)
	if err != nil {
		return nil, err
	}
	switch v.Name {
	case "SESSION CHARACTERISTICS":
		return &command{run: func(s *session) (string, error) {
			for _, m := range modes {
				if err := s.set("default_"+m.name, m.value, v.IsLocal); err != nil {
					return "", err
				}
			}
			return "SET", nil
		}}, nil
	case "TRANSACTION":
		return &command{run: func(s *session) (string, error) {
			if !s.inBlock() {
				s.warnNoBlock("SET TRANSACTION")
			}
			return "SET", s.setTransaction(modes)
		}}, nil
	}
	return nil, unsupported("SET " + v.Name)
}

// transactionModes reads the modes of BEGIN and SET TRANSACTION.
func transactionModes(options []*pg_query.Node) ([]assignment, error) {
	var modes []assignment
	for _, n := range options {
		d := n.GetDefElem()
		value, err := settingValue(d.GetArg())
		if err != nil {
			return nil, err
		}
		if d.GetDefname() != "transaction_isolation" {
			value = onOff(value != "0") // the grammar has READ ONLY and DEFERRABLE as 1 and 0
		}
		modes = append(modes, assignment{d.GetDefname(), value})
	}
	return modes, nil
}

// setValue reads the values of SET as one text. Of the settings that are lists of names, names are quoted where they
// have to be.
func setValue(name string, args []*pg_query.Node) (string, error) {
	key := strings.ToLower(name)
	if key == "timezone" && len(args) == 1 {
		if zone, ok := zoneOfNumber(args[0].GetAConst()); ok {
			return zone, nil
		}
		if c := args[0].GetTypeCast(); lastName(c.GetTypeName().GetNames()) == "interval" {
			return zoneOfInterval(c.Arg.GetAConst().GetSval().GetSval())
		}
	}
	var values []string
	for _, n := range args {
		value, err := settingValue(n)
		if err != nil {
			return "", err
		}
		if key == "search_path" {
			value = quoteName(value)
		}
		values = append(values, value)
	}
	if len(values) > 1 && key != "search_path" && key != "datestyle" {
		return "", errorf("22023", "SET %s takes only one argument", name)
	}
	return strings.Join(values, ", "), nil
}

// settingValue reads one value of SET.
func settingValue(n *pg_query.Node) (string, error) {
	c := n.GetAConst()
	switch v := c.GetVal().(type) {
	case *pg_query.A_Const_Ival:
		return strconv.Itoa(int(v.Ival.GetIval())), nil
	case *pg_query.A_Const_Fval:
		return v.Fval.GetFval(), nil
	case *pg_query.A_Const_Sval:
		return v.Sval.GetSval(), nil
	case *pg_query.A_Const_Boolval:
		return strconv.FormatBool(v.Boolval.GetBoolval()), nil
	}
	return "", unsupported("SET to a value of this kind")
}

// zoneOfNumber is the time zone of SET TIME ZONE with a number: so many hours east of Greenwich.
func zoneOfNumber(c *pg_query.A_Const) (string, bool) {
	v, ok := c.GetVal().(*pg_query.A_Const_Ival)
	if !ok {
		return "", false
	}
	east := int(v.Ival.GetIval())
	if east < -24 || east > 24 {
		return "", false
	}
	return zoneEast(east < 0, fmt.Sprintf("%02d", max(east, -east))), true
}

// hoursAndMinutes is the form of an interval that SET TIME ZONE is sent with.
var hoursAndMinutes = regexp.MustCompile(`^([+-]?)([01]?[0-9]):([0-5][0-9])$`)

// zoneOfInterval is the time zone of SET TIME ZONE INTERVAL: so many hours and minutes east of Greenwich.
func zoneOfInterval(text string) (string, error) {
	parts := hoursAndMinutes.FindStringSubmatch(text)
	if parts == nil {
		return "", unsupported("a time zone of this form")
	}
	east := fmt.Sprintf("%02s", parts[2])
	if parts[3] != "00" {
		east += ":" + parts[3]
	}
	return zoneEast(parts[1] == "-", east), nil
}

// zoneEast writes a time zone east (or west) of Greenwich as POSIX does, which counts to the west.
func zoneEast(west bool, hours string) string {
	if west {
		return "<-" + hours + ">+" + hours
	}
	return "<+" + hours + ">-" + hours
}

// quoteName quotes a name unless it is one that SQL takes without quotes.
func quoteName(name string) string {
	plain := name != ""
	for i := range len(name) {
		c := name[i]
		plain = plain && (c >= 'a' && c <= 'z' || c == '_' || i > 0 && c >= '0' && c <= '9')
	}
	if plain {
		return name
	}
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}

// showCommand makes the command of SHOW.
func (s *session) showCommand(name string) (*command, error) {
	c := &command{returnsRows: true, tag: "SHOW"}
	texts := func(values ...string) []sqlrewrite.Expr {
		var row []sqlrewrite.Expr
		for _, v := range values {
			row = append(row, sqlrewrite.Expr{Kind: sqlrewrite.ExprConstant, Type: pgtype.TextOID, Text: v, Typmod: -1})
		}
		return row
	}
	column := func(name string) {
		c.columns = append(c.columns, answer.Column{Name: name, Type: pgtype.TextOID, Size: -1, Typmod: -1})
	}
	if name == "all" {
		for _, name := range []string{"name", "setting", "description"} {
			column(name)
		}
		c.rows = func(s *session, _ []answer.Param) ([][]sqlrewrite.Expr, error) {
			var rows [][]sqlrewrite.Expr
			for _, name := range settingNames {
				rows = append(rows, texts(name, s.settings.get(name), ""))
			}
			return rows, nil
		}
		return c, nil
	}
	if !s.settings.known(name) {
		return nil, errUnknownSetting(name)
	}
	column(name)
	if st, ok := settingsByName[strings.ToLower(name)]; ok {
		c.columns[0].Name = st.name
	}
	c.rows = func(s *session, _ []answer.Param) ([][]sqlrewrite.Expr, error) {
		return [][]sqlrewrite.Expr{texts(s.settings.get(name))}, nil
	}
	return c, nil
}

// isSchema reports whether a schema exists: here there are but these.
func isSchema(name string) bool {
	return name == "public" || name == "pg_catalog" || name == "information_schema"
}

// schemas are those of the search_path that exist, with pg_catalog where it is searched without being named.
func (s *session) schemas(implicit bool) []string {
	var found []string
	for _, name := range splitNames(s.settings.get("search_path")) {
		if isSchema(name) && !slices.Contains(found, name) {
			found = append(found, name)
		}
	}
	if implicit && !slices.Contains(found, "pg_catalog") {
		found = append([]string{"pg_catalog"}, found...)
	}
	return found
}

// currentSchema is the first schema of the search_path; nil when there is none.
func (s *session) currentSchema() any {
	if found := s.schemas(false); len(found) > 0 {
		return found[0]
	}
	return nil
}

// splitNames splits a list of names, some of which may be quoted.
func splitNames(list string) []string {
	var names []string
	for list != "" {
		list = strings.TrimLeft(list, " \t\n\r\f\v,")
		if !strings.HasPrefix(list, `"`) {
			name, rest, _ := strings.Cut(list, ",")
			if name = strings.ToLower(strings.TrimSpace(name)); name != "" {
				names = append(names, name)
			}
			list = rest
			continue
		}
		list = list[1:]
		var name strings.Builder
		for list != "" {
			part, rest, _ := strings.Cut(list, `"`)
			name.WriteString(part)
			list = rest
			if !strings.HasPrefix(list, `"`) {
				break
			}
			name.WriteByte('"')
			list = list[1:]
		}
		names = append(names, name.String())
	}
	return names
}
