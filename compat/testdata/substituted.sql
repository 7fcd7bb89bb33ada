CREATE SEQUENCE s;

CREATE SEQUENCE u START 100;

CREATE TABLE t (id bigint, v text);

INSERT INTO t VALUES (nextval('s'), 'one');

INSERT INTO t (v, id) VALUES ('two', nextval('s')), ('three', nextval('s') * 100), ('four', -nextval('s'))
RETURNING id, v;

INSERT INTO t SELECT nextval('s'), 'five';

INSERT INTO t VALUES (nextval('s'), 'six') ON CONFLICT DO NOTHING RETURNING id AS "number";

INSERT INTO t (id, v) VALUES (currval('s'), currval('s')::text) RETURNING *;

UPDATE t SET id = (SELECT nextval('s')) WHERE v IN ('one', 'two') RETURNING id, v;

DELETE FROM t WHERE id = (SELECT currval('s')) RETURNING v;

WITH n AS (SELECT nextval('s') AS id) INSERT INTO t SELECT id, 'cte' FROM n RETURNING id;

SELECT nextval('s') + 1, nextval('s') || 'x', abs(nextval('s')), ARRAY[nextval('s'), nextval('u')];

SELECT CASE WHEN true THEN nextval('u') END, coalesce(NULL, nextval('u'));

SELECT (SELECT nextval('s')), (SELECT nextval('u') AS other);

SELECT * FROM (SELECT nextval('s') AS a, 'x' AS b) AS q;

SELECT nextval('s') AS a UNION ALL SELECT nextval('s') ORDER BY a;

SELECT t.v FROM t WHERE t.id > (SELECT nextval('s')) ORDER BY v;

SELECT id, v FROM t ORDER BY id, v;

SELECT nextval('s') IS NOT NULL, nextval('s')::text::int % 2 = 0 AS even;

SELECT nextval('s') LIMIT 1;

SELECT nextval('s') WHERE true;

SELECT DISTINCT nextval('s');

SELECT to_char(nextval('s'), 'FM000'), row(nextval('s'), 2), nextval('s')::text COLLATE "C";

SELECT 1 / 0, nextval('s');

SELECT nextval('s') + absent FROM t;

SELECT nextval('s'), 'ä', absent;

INSERT INTO t VALUES (nextval('s'), 'a', 'too many');

INSERT INTO t VALUES (nextval('absent'), 'x');

EXPLAIN (COSTS OFF) SELECT 1;

COPY (SELECT nextval('u'), 'x') TO STDOUT;

SELECT setval('u', 500);

SELECT setval('s', 25);

CREATE TABLE made AS SELECT nextval('s') IS NOT NULL AS ok;

SELECT * FROM made;

DECLARE c CURSOR WITH HOLD FOR SELECT nextval('u') IS NULL AS gone;

FETCH ALL FROM c;

CLOSE c;

INSERT INTO t (id, v) VALUES (currval('s'), lastval()::text) RETURNING *;
