-- Parameters, as libpq sends them: texts without a type.
CREATE SEQUENCE s;
CREATE SEQUENCE "Quoted ""S";
CREATE TABLE t (id bigint, v text);
CREATE TABLE d (id serial, v text);
SELECT nextval($1) \bind s \g
SELECT nextval($1) \bind public.s \g
SELECT nextval($1) \bind S \g
SELECT nextval($1) \bind '"Quoted ""S"' \g
SELECT nextval($1::regclass) \bind s \g
SELECT nextval($1::text) \bind s \g
SELECT nextval($1::text::regclass) AS id \bind s \g
SELECT nextval($1), currval($1) \bind s \g
SELECT nextval($1), nextval($2) \bind s s \g
SELECT nextval($1) \bind nosuch \g
SELECT nextval($1) \bind '' \g
SELECT nextval($1) \bind '"' \g
SELECT nextval($1) \bind t \g
SELECT currval($1), lastval() \bind s \g
SELECT setval($1, $2) \bind s 100 \g
SELECT setval($1, $2, $3) \bind s 200 f \g
SELECT nextval($1) \bind s \g
SELECT setval($1, $2, $3) \bind s 300 true \g
SELECT setval('s', $1) \bind 0 \g
SELECT setval('s', $1) \bind x \g
SELECT setval('s', $1::int) \bind 400 \g
SELECT setval('s', $1 + 1) \bind 400 \g
SELECT nextval('s'), $1 \bind x \g
SELECT $1::int, nextval('s'), $2::text \bind 7 x \g
SELECT $2::text, nextval($1) \bind s x \g
SELECT nextval('s') + $1::bigint \bind 1000 \g
SELECT nextval('s') WHERE $1::bool \bind f \g
SELECT nextval('s') \bind x \g
SELECT nextval($1) \bind \g
SELECT setval('s', 405);
SELECT * FROM nextval($1) \bind s \g
SELECT * FROM nextval($1) AS result \bind s \g
select * from setval($1, $2, $3) as result \bind s 500 t \g
VALUES (nextval($1)) \bind s \g
INSERT INTO t VALUES (nextval('s'), $1) RETURNING id, v \bind a \g
INSERT INTO t VALUES (nextval($1), $2) RETURNING id, v \bind s b \g
INSERT INTO t (v, id) VALUES ($1, nextval('s')), ($2, nextval('s')) RETURNING id \bind c d \g
INSERT INTO t SELECT nextval('s'), $1 RETURNING id \bind e \g
INSERT INTO t SELECT nextval('s'), g::text FROM generate_series(1, $1) g RETURNING id \bind 3 \g
INSERT INTO t VALUES (nextval('s'), $1) ON CONFLICT DO NOTHING \bind f \g
INSERT INTO d (v) VALUES ($1) RETURNING id \bind a \g
SELECT currval(pg_get_serial_sequence($1, $2)) \bind d id \g
SELECT setval(pg_get_serial_sequence($1, $2), coalesce(max(id), 1), max(id) IS NOT NULL) FROM d \bind d id \g
SELECT nextval(pg_get_serial_sequence($1, $2)) \bind d id \g
UPDATE t SET id = nextval('s') WHERE v = $1 RETURNING v \bind a \g
UPDATE t SET id = (SELECT nextval($1)) WHERE v = $2 RETURNING v \bind s a \g
SELECT id FROM t WHERE id = currval($1) \bind s \g
SELECT last_value > $1::bigint FROM s \bind 5 \g
SELECT nextval('s') FROM generate_series(1, $1::int) \bind 3 \g
SELECT nextval($1) FROM generate_series(1, $2::int) \bind s 3 \g
SELECT to_regclass($1)::text \bind s \g
SELECT $1::regclass::text \bind s \g
WITH n AS (SELECT nextval($1) AS id) INSERT INTO t SELECT id, $2 FROM n RETURNING id \bind s g \g
SELECT nextval('s'), nosuch, $1 \bind x \g
SELECT nextval('s'), $1 + 'x' \bind x \g
CREATE SEQUENCE made START 5 \bind \g
SELECT nextval($1) \bind made \g
DROP SEQUENCE made \bind \g
SELECT nextval($1) \bind made \g
