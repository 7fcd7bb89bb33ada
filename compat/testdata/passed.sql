CREATE TABLE t (id serial PRIMARY KEY, v text);

INSERT INTO t (v) VALUES ('a'), ('b') RETURNING id;

SELECT nextval('t_id_seq'), currval('t_id_seq'), lastval();

SELECT setval('t_id_seq', 10, false);

INSERT INTO t DEFAULT VALUES RETURNING id;

SELECT last_value, is_called FROM t_id_seq;

SELECT setval('t_id_seq', (SELECT max(id) FROM t));

SELECT setval(pg_get_serial_sequence('t', 'id'), coalesce(max(id), 1), max(id) IS NOT null) FROM t;

SELECT nextval('t_id_seq') FROM generate_series(1, 3);

SELECT id, v FROM t ORDER BY id;

SELECT 'nextval(''s'')', $$currval$$ AS "lastval" -- nextval('t_id_seq')
;

SELEC 1;

SELECT 1 +;

SELECT absent;

SELECT * FROM t WHERE v = 'nextval' AND absent;

DO $$ BEGIN RAISE NOTICE 'hello %', 1; RAISE WARNING 'there' USING HINT = 'act', ERRCODE = '01XXX'; END $$;

DO $$ BEGIN RAISE EXCEPTION 'no' USING DETAIL = 'why', HINT = 'act', ERRCODE = 'P1234'; END $$;

CREATE FUNCTION f(i int) RETURNS int LANGUAGE sql AS 'SELECT $1 + 1';

SELECT f(1);

SHOW server_version;

ALTER SEQUENCE t_id_seq RESTART 90;

SELECT nextval('t_id_seq');

DROP SEQUENCE t_id_seq;

DROP TABLE t;

CREATE TEMP SEQUENCE own;

SELECT nextval('own'), currval('pg_temp.own');

DROP SEQUENCE own;

TRUNCATE absent;
