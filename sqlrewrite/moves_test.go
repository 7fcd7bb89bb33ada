package sqlrewrite

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMoves(t *testing.T) {
	names := func(list ...string) *Moves {
		m := &Moves{}
		for _, n := range list {
			m.Names = append(m.Names, Name{Name: n})
		}
		return m
	}
	all := &Moves{All: true}
	renames := func(m *Moves) *Moves { m.Renames = true; return m }
	for text, want := range map[string]*Moves{
		"ALTER SEQUENCE s RESTART":                   names("s"),
		"ALTER SEQUENCE a.s OWNED BY t.c":            {Names: []Name{{Schema: "a", Name: "s"}}},
		"ALTER SEQUENCE s RENAME TO r":               renames(names("s")),
		"ALTER TABLE t RENAME TO r":                  renames(names("t")),
		"ALTER TABLE t RENAME COLUMN a TO b":         nil,
		"ALTER SEQUENCE s SET SCHEMA x":              renames(names("s")),
		"ALTER TABLE t SET SCHEMA x":                 renames(names("t")),
		"ALTER SEQUENCE s OWNER TO r":                nil,
		"ALTER SEQUENCE s SET LOGGED":                names("s"),
		"DROP SEQUENCE s, r":                         names("s", "r"),
		"DROP TABLE IF EXISTS t CASCADE":             names("t"),
		"DROP FOREIGN TABLE t":                       names("t"),
		"DROP VIEW v":                                nil,
		"DROP INDEX i":                               nil,
		"DROP SCHEMA x, y CASCADE":                   {All: true, Schemas: []string{"x", "y"}},
		"ALTER SCHEMA x RENAME TO y":                 {All: true, Renames: true, Schemas: []string{"x"}},
		"DROP EXTENSION e":                           all,
		"ALTER EXTENSION e UPDATE":                   all,
		"ALTER EXTENSION e SET SCHEMA x":             all,
		"DROP TYPE d":                                nil,
		"DROP DOMAIN d CASCADE":                      all,
		"DROP OWNED BY r":                            all,
		"DROP DATABASE d":                            {Databases: []string{"d"}},
		"ALTER DATABASE d RENAME TO e":               {Databases: []string{"d"}},
		"CREATE DATABASE d TEMPLATE e":               {Databases: []string{"e"}},
		"CREATE DATABASE d":                          nil,
		"TRUNCATE t":                                 nil,
		"TRUNCATE t, u RESTART IDENTITY":             names("t", "u"),
		"TRUNCATE t RESTART IDENTITY CASCADE":        {All: true, Names: []Name{{Name: "t"}}},
		"TRUNCATE t CONTINUE IDENTITY":               nil,
		"ALTER TABLE t ALTER COLUMN c RESTART":       names("t"),
		"ALTER TABLE t ALTER c SET INCREMENT 5":      names("t"),
		"ALTER TABLE t ALTER c DROP IDENTITY":        names("t"),
		"ALTER TABLE t ADD x int, DROP COLUMN c":     names("t"),
		"ALTER TABLE t ALTER c TYPE bigint":          names("t"),
		"ALTER TABLE t ADD COLUMN c serial":          nil,
		"ALTER TABLE t ALTER c SET DEFAULT 1":        nil,
		"DO $$ BEGIN PERFORM setval('s', 1); END $$": all,
		"DO $$ BEGIN EXECUTE 'drop table t'; END $$": all,
		"DO $$ BEGIN PERFORM nextval('s'); END $$":   nil,
		"CREATE SEQUENCE s":                          nil,
		"CREATE TABLE t (id serial)":                 nil,
		"GRANT USAGE ON SEQUENCE s TO r":             nil,
		"COMMENT ON SEQUENCE s IS 'x'":               nil,
		"SELECT setval('s', 1)":                      nil,
	} {
		if st := plan(t, text); !assert.Equal(t, want, st.Moves, text) {
			continue
		}
		if want != nil {
			assert.NotZero(t, Scan(text, nil)&(HasMoves|HasCreate), text)
		}
	}
}

func TestDefaults(t *testing.T) {
	for text, want := range map[string]bool{
		"CREATE TABLE t (id int DEFAULT nextval('s'))":                  true,
		"ALTER TABLE t ALTER id SET DEFAULT nextval('s')":               true,
		"ALTER TABLE t ADD c int CHECK (nextval('s') > 0)":              true,
		"CREATE DOMAIN d AS int DEFAULT nextval('s')":                   true,
		"ALTER DOMAIN d SET DEFAULT nextval('s')":                       true,
		"CREATE FOREIGN TABLE t (id int DEFAULT nextval('s')) SERVER x": true,
		"CREATE VIEW v AS SELECT nextval('s')":                          true,
		"CREATE MATERIALIZED VIEW v AS SELECT nextval('s') FROM t":      true,
		"CREATE RULE r AS ON INSERT TO t DO ALSO SELECT nextval('s')":   true,
		"PREPARE p AS SELECT nextval('s')":                              false,
		"SELECT nextval('s')":                                           false,
	} {
		st := plan(t, text)
		if assert.Len(t, st.Calls, 1, text) {
			assert.Equal(t, want, st.Calls[0].Default, text)
		}
	}
}

func TestArgumentsOfTriggers(t *testing.T) {
	st := plan(t, "CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f(id, 'a.s', 'b.\"R\"', 1, '...')")
	require.Equal(t, []Name{{Name: "id"}, {Schema: "a", Name: "s"}, {Schema: "b", Name: "R"}, {Name: "1"}}, st.Arguments)
}
