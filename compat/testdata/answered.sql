CREATE SEQUENCE s START 1000 INCREMENT 10;

CREATE SEQUENCE "Mixed Case";

CREATE SEQUENCE "it's";

SELECT nextval('s');

select NEXTVAL('s'), currval('s'), lastval();

SELECT nextval ( 's' ) AS id;

SELECT/* a comment */nextval/* another */(
    's' -- and one more
);

SELECT pg_catalog.nextval('public.s'::regclass);

SELECT "nextval"('s'::text::regclass);

SELECT nextval(CAST('s' AS regclass));

SELECT nextval(regclass 's');

SELECT nextval(E'\x73');

SELECT nextval($$s$$), nextval($tag$s$tag$);

SELECT nextval('S');

SELECT nextval('  s  ');

SELECT nextval('public . s');

SELECT nextval('"Mixed Case"'), nextval('public."Mixed Case"');

SELECT nextval('"it''s"');

SELECT nextval('s')::int, nextval('s')::text, nextval('s')::numeric AS n, CAST(nextval('s') AS smallint);

SELECT nextval('s'), 1, 'x', NULL, true, 1.5, -7, 'y'::text AS t, '12'::int4, DATE '2020-01-02';

SELECT 2147483648, 9223372036854775807, 9223372036854775808, nextval('s');

VALUES (nextval('s'), nextval('s'));

VALUES (nextval('s')), (nextval('s'));

SELECT * FROM nextval('s');

SELECT * FROM nextval('s') AS x;

SELECT * FROM nextval('s') AS x(y);

SELECT x FROM nextval('s') x;

SELECT setval('s', 2000);

SELECT nextval('s'), currval('s');

SELECT setval('s', 3000, false);

SELECT currval('s'), lastval();

SELECT nextval('s'), lastval();

SELECT setval('s', 4000, true), setval('s', 5000), setval('s', 6000, 'f');

SELECT setval('s', '7000');

SELECT * FROM setval('s', 8000, false);

SELECT nextval('s');

SELECT pg_catalog.setval('public.s', 8100, true), pg_catalog.currval('s'), pg_catalog.lastval();

SELECT setval('"Mixed Case"', nextval('s'));

SELECT nextval('"Mixed Case"');

SELECT setval('s', NULL), setval(NULL, 1), nextval(NULL), currval(NULL);

SELECT nextval('s');

SELECT setval('s', 0);

SELECT setval('s', 9223372036854775807);

SELECT nextval('s');

SELECT setval('s', 9223372036854775808);

SELECT setval('s', 1.5);

SELECT setval('s', 'many');

SELECT setval('s', 100, 7);

SELECT nextval('absent');

SELECT nextval('absent.s');

SELECT nextval('');

SELECT nextval('a.b.c.d');

SELECT nextval('other.public.s');

SELECT nextval('"s');

SELECT nextval('pg_class');

SELECT nextval(1);

SELECT nextval();

SELECT nextval('s', 1);

SELECT nextval('s') FROM absent;

SELECT currval('"it''s"');

SELECT currval('absent');

SELECT setval('absent', 1);

DISCARD SEQUENCES;

SELECT currval('s');

SELECT lastval();
