CREATE SEQUENCE a;

CREATE SEQUENCE a;

CREATE SEQUENCE IF NOT EXISTS a START 5;

SELECT nextval('a');

-- differs: a call for each row of a sequence is refused
SELECT nextval('a'), last_value FROM a;

CREATE SEQUENCE b AS smallint;

SELECT last_value, is_called FROM b;

SELECT nextval('b');

SELECT last_value, is_called FROM b;

SELECT b.last_value AS l, b.is_called AS "C" FROM public.b;

SELECT q.last_value FROM b q;

CREATE SEQUENCE c AS integer INCREMENT BY 5 MINVALUE 10 MAXVALUE 20 START WITH 12 CACHE 7 NO CYCLE;

SELECT nextval('c'), nextval('c');

SELECT nextval('c');

CREATE SEQUENCE d INCREMENT -1;

SELECT nextval('d'), nextval('d');

CREATE SEQUENCE e INCREMENT BY -3 MAXVALUE 5 MINVALUE -3 CYCLE;

SELECT nextval('e'), nextval('e'), nextval('e'), nextval('e');

CREATE SEQUENCE f NO MINVALUE NO MAXVALUE OWNED BY NONE;

SELECT nextval('f');

CREATE SEQUENCE g CACHE 0;

CREATE SEQUENCE g CACHE -1;

CREATE SEQUENCE g INCREMENT 0;

CREATE SEQUENCE g START 0;

CREATE SEQUENCE g START 11 MAXVALUE 10;

CREATE SEQUENCE g MINVALUE 10 MAXVALUE 10;

CREATE SEQUENCE g MINVALUE 10 MAXVALUE 5;

CREATE SEQUENCE g AS smallint MAXVALUE 32768;

CREATE SEQUENCE g AS smallint MINVALUE -32769;

CREATE SEQUENCE g AS int MAXVALUE 2147483648;

CREATE SEQUENCE g AS text;

CREATE SEQUENCE g AS absent;

CREATE SEQUENCE g START 1 START 2;

CREATE SEQUENCE g CYCLE NO CYCLE;

CREATE SEQUENCE g MAXVALUE 9223372036854775808;

CREATE SEQUENCE g MINVALUE -9223372036854775809;

CREATE SEQUENCE g INCREMENT 1.5;

CREATE SEQUENCE g OWNED BY absent;

CREATE SEQUENCE g OWNED BY absent.x;

CREATE SEQUENCE g RESTART;

CREATE SEQUENCE absent.g;

CREATE SEQUENCE g BOGUS;

CREATE TABLE taken (id int);

CREATE SEQUENCE taken;

CREATE SEQUENCE IF NOT EXISTS taken;

-- differs: the error has a hint
CREATE TABLE a (id int);

-- differs: the error has a hint
CREATE VIEW a AS SELECT 1;

-- differs: refused, since nextvald does not know what is there already
CREATE TABLE IF NOT EXISTS a (id int);

SELECT last_value FROM absent;

SELECT bogus FROM a;

DROP SEQUENCE absent;

DROP SEQUENCE IF EXISTS absent;

DROP SEQUENCE IF EXISTS a, b;

SELECT nextval('a');

DROP SEQUENCE c;

DROP SEQUENCE IF EXISTS c;

DROP SEQUENCE taken;

-- differs: the upstream does not know the sequence
DROP TABLE e;

-- differs: sequences of nextvald and others are not dropped together
DROP SEQUENCE d, absent;

-- differs: sequences of nextvald and others are not dropped together
DROP SEQUENCE IF EXISTS d, absent;
