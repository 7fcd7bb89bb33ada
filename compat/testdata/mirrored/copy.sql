-- COPY in and out.
CREATE SEQUENCE s START 10;
CREATE TABLE t (id serial, v text);
COPY t (v) FROM stdin;
a
b
\.
SELECT id, v FROM t ORDER BY id;
SELECT nextval('t_id_seq'), lastval();
COPY t FROM stdin WITH (FORMAT csv);
100,c
101,"d;e"
\.
COPY t TO stdout;
COPY (SELECT nextval('t_id_seq'), 'x') TO stdout;
COPY (SELECT nextval('t_id_seq') FROM generate_series(1, 3)) TO stdout WITH (FORMAT csv, HEADER);
COPY (SELECT nextval('s'), nextval('s')) TO stdout;
COPY (INSERT INTO t (id, v) VALUES (nextval('s'), 'f') RETURNING id) TO stdout;
SELECT nextval('s');
COPY t FROM stdin;
not a number	x
\.
COPY t (nosuch) FROM stdin;
x
\.
COPY s TO stdout;
COPY s FROM stdin;
1
\.
COPY (SELECT nextval('nosuch')) TO stdout;
COPY (SELECT last_value, is_called FROM s) TO stdout;
SELECT nextval('s');
