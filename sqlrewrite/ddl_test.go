package sqlrewrite

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDDL(t *testing.T) {
	s := []Name{{Name: "s"}}
	for name, c := range map[string]struct {
		text string
		ddl  *DDL
	}{
		"create": {"CREATE SEQUENCE s", &DDL{Names: s, Tag: "CREATE SEQUENCE"}},
		"create with everything": {
			"CREATE SEQUENCE IF NOT EXISTS d.a.S AS smallint INCREMENT BY -2 MINVALUE -32768 MAXVALUE 7 START WITH 3 CACHE 5 CYCLE OWNED BY a.t.c",
			&DDL{Names: []Name{{"d", "a", "s"}}, IfExists: true, Tag: "CREATE SEQUENCE", Options: []Option{
				{Name: "as", Parts: []string{"pg_catalog", "int2"}, Start: 36, ValueStart: 39},
				{Name: "increment", Value: "-2", Start: 48}, {Name: "minvalue", Value: "-32768", Start: 64},
				{Name: "maxvalue", Value: "7", Start: 80}, {Name: "start", Value: "3", Start: 91}, {Name: "cache", Value: "5", Start: 104},
				{Name: "cycle", Start: 112}, {Name: "owned_by", Parts: []string{"a", "t", "c"}, Start: 118},
			}},
		},
		"create with the largest numbers": {
			"CREATE SEQUENCE s MINVALUE -9223372036854775808 MAXVALUE 9223372036854775807",
			&DDL{Names: s, Tag: "CREATE SEQUENCE", Options: []Option{
				{Name: "minvalue", Value: "-9223372036854775808", Start: 18}, {Name: "maxvalue", Value: "9223372036854775807", Start: 48},
			}},
		},
		"create with nothing of all": {
			"CREATE SEQUENCE s NO MINVALUE NO MAXVALUE NO CYCLE OWNED BY NONE",
			&DDL{Names: s, Tag: "CREATE SEQUENCE", Options: []Option{
				{Name: "minvalue", None: true, Start: 18}, {Name: "maxvalue", None: true, Start: 30}, {Name: "cycle", None: true, Start: 42},
				{Name: "owned_by", None: true, Parts: []string{"none"}, Start: 51},
			}},
		},
		"create temporary": {"CREATE TEMP SEQUENCE s", &DDL{Names: s, Temporary: true, Tag: "CREATE SEQUENCE"}},
		"create in pg_temp": {"CREATE SEQUENCE pg_temp.s",
			&DDL{Names: []Name{{Schema: "pg_temp", Name: "s"}}, Temporary: true, Tag: "CREATE SEQUENCE"}},
		"create unlogged": {"CREATE UNLOGGED SEQUENCE s", &DDL{Names: s, Unlogged: true, Tag: "CREATE SEQUENCE"}},
		"restart": {"ALTER SEQUENCE IF EXISTS s RESTART", &DDL{Verb: AlterSequence, Names: s, IfExists: true, Tag: "ALTER SEQUENCE",
			Options: []Option{{Name: "restart", None: true, Start: 27}}}},
		"restart with, twice": {"ALTER SEQUENCE s RESTART WITH 5 RESTART 6", &DDL{Verb: AlterSequence, Names: s, Tag: "ALTER SEQUENCE",
			Options: []Option{{Name: "restart", Value: "5", Start: 17}, {Name: "restart", Value: "6", Start: 32}}}},
		"drop": {"DROP SEQUENCE s", &DDL{Verb: DropSequence, Names: s, Tag: "DROP SEQUENCE"}},
		"drop several": {`DROP SEQUENCE IF EXISTS s, a."S" CASCADE`, &DDL{Verb: DropSequence, Names: []Name{{Name: "s"}, {Schema: "a", Name: "S"}},
			IfExists: true, Cascade: true, Tag: "DROP SEQUENCE"}},
		"rename":             {"ALTER SEQUENCE s RENAME TO u", &DDL{Verb: RenameSequence, Names: s, To: "u", Tag: "ALTER SEQUENCE"}},
		"rename as a table":  {"ALTER TABLE s RENAME TO u", &DDL{Verb: RenameSequence, Names: s, To: "u", Table: true, Tag: "ALTER TABLE"}},
		"rename as an index": {"ALTER INDEX s RENAME TO u", &DDL{Verb: RenameSequence, Names: s, To: "u", Table: true, Tag: "ALTER INDEX"}},
		"rename a view":      {"ALTER VIEW s RENAME TO u", nil},
		"rename a column":    {"ALTER TABLE s RENAME last_value TO u", nil},
		"set schema":         {"ALTER SEQUENCE s SET SCHEMA a", &DDL{Verb: SetSchema, Names: s, To: "a", Tag: "ALTER SEQUENCE"}},
		"set schema as a table": {"ALTER TABLE IF EXISTS s SET SCHEMA a",
			&DDL{Verb: SetSchema, Names: s, To: "a", IfExists: true, Table: true, Tag: "ALTER TABLE"}},
		"set schema of a view": {"ALTER VIEW s SET SCHEMA a", nil},
		"owner":                {`ALTER SEQUENCE s OWNER TO "Me"`, &DDL{Verb: OwnerTo, Names: s, To: "Me", Tag: "ALTER SEQUENCE"}},
		"owner as a table":     {"ALTER TABLE s OWNER TO CURRENT_USER", &DDL{Verb: OwnerTo, Names: s, To: "CURRENT_USER", Table: true, Tag: "ALTER TABLE"}},
		"owner of a view":      {"ALTER VIEW s OWNER TO me", nil},
		"parameters": {`ALTER SEQUENCE IF EXISTS s SET (nextvald.mode = strict, NextVald.max_lease = 500, other.x = -2.5, fillfactor), RESET (nextvald."Y")`,
			&DDL{Verb: SetParameters, Names: s, IfExists: true, Tag: "ALTER SEQUENCE", Parameters: []StorageParameter{
				{Namespace: "nextvald", Name: "mode", Value: "strict"}, {Namespace: "nextvald", Name: "max_lease", Value: "500"},
				{Namespace: "other", Name: "x", Value: "-2.5"}, {Name: "fillfactor", Value: "true"},
				{Namespace: "nextvald", Name: "Y", Reset: true},
			}}},
		"parameters as a table": {"ALTER TABLE s SET (nextvald.mode = 'strict')", &DDL{Verb: SetParameters, Names: s, Table: true, Tag: "ALTER TABLE",
			Parameters: []StorageParameter{{Namespace: "nextvald", Name: "mode", Value: "strict"}}}},
		"parameters and more":  {"ALTER TABLE s SET (nextvald.mode = strict), OWNER TO me", nil},
		"parameters of a view": {"ALTER VIEW s SET (security_barrier)", nil},
		"two commands":         {"ALTER TABLE s OWNER TO me, ADD COLUMN a int", nil},
		"drop table":           {"DROP TABLE s", nil},
		"grant":                {"GRANT USAGE ON SEQUENCE s TO me", nil},
	} {
		t.Run(name, func(t *testing.T) {
			st := plan(t, c.text)
			require.Equal(t, c.ddl, st.DDL)
			if c.ddl != nil {
				require.Equal(t, KindDDL, st.Kind)
			} else {
				require.Equal(t, KindPass, st.Kind)
			}
		})
	}
}
