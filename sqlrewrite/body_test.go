package sqlrewrite

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBodies(t *testing.T) {
	type call struct {
		function Function
		name     string
	}
	for name, c := range map[string]struct {
		text  string
		calls []call
	}{
		"function": {"CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN NEW.id := nextval('a.s'); RETURN NEW; END$$", []call{{Nextval, "a.s"}}},
		"quoted":   {"CREATE FUNCTION f() RETURNS bigint LANGUAGE sql AS 'SELECT NEXTVAL(''s''), setval(E''\\x73'', 1)'", []call{{Nextval, "s"}, {Setval, "s"}}},
		"do":       {"DO $$BEGIN PERFORM pg_catalog . nextval /* x */ ('s'::regclass); END$$", []call{{Nextval, "s"}}},
		"casts":    {`DO $$BEGIN PERFORM "currval"(CAST('s' AS regclass)), nextval(regclass 't'), nextval(('u')); END$$`, []call{{Currval, "s"}, {Nextval, "t"}, {Nextval, "u"}}},
		"procedure": {"CREATE PROCEDURE p() LANGUAGE plpgsql AS $a$ BEGIN PERFORM nextval($b$s$b$); END $a$",
			[]call{{Nextval, "s"}}},
		"other schema":   {"DO $$BEGIN PERFORM mine.nextval('s'); END$$", nil},
		"other argument": {"DO $$BEGIN PERFORM nextval(name), nextval(format('%I', 's')), nextval(; END$$", nil},
		"other word":     {"DO $$BEGIN nextval := 's'; next_val('s'); END$$", nil},
		"other language": {"CREATE FUNCTION f() RETURNS int LANGUAGE plpython3u AS $$ return nextval('s'), 'it\\'s' $$", nil},
		"object file":    {"CREATE FUNCTION f() RETURNS int LANGUAGE c AS 'lib', 'nextval'", nil},
		"ends within":    {"DO 'nextval('", nil},
	} {
		t.Run(name, func(t *testing.T) {
			st := plan(t, c.text)
			var found []call
			for _, k := range st.Calls {
				require.True(t, k.Body)
				require.Equal(t, Later, k.Evaluation)
				require.Nil(t, st.Answer)
				found = append(found, call{k.Function, k.Name.Value})
			}
			require.Equal(t, c.calls, found)
		})
	}
}
