CREATE SEQUENCE s;

SELECT nextval('s'), nextval('s'), nextval('s');

ALTER SEQUENCE s INCREMENT 10;

SELECT last_value, is_called FROM s;

SELECT nextval('s');

ALTER SEQUENCE s RESTART;

SELECT nextval('s');

ALTER SEQUENCE s RESTART WITH 500;

SELECT last_value, is_called FROM s;

SELECT nextval('s');

ALTER SEQUENCE s RESTART 7 INCREMENT 1;

SELECT nextval('s'), nextval('s');

ALTER SEQUENCE s MAXVALUE 5;

ALTER SEQUENCE s MINVALUE 100;

ALTER SEQUENCE s START 0;

ALTER SEQUENCE s START 42;

ALTER SEQUENCE s RESTART WITH 0;

ALTER SEQUENCE s RESTART WITH 43 MAXVALUE 44;

SELECT nextval('s'), nextval('s');

SELECT nextval('s');

ALTER SEQUENCE s CYCLE;

SELECT nextval('s');

ALTER SEQUENCE s NO CYCLE NO MAXVALUE;

SELECT nextval('s'), nextval('s'), nextval('s'), nextval('s');

SELECT last_value, is_called FROM s;

ALTER SEQUENCE s AS smallint;

SELECT setval('s', 32767), nextval('s');

SELECT setval('s', 32767);

SELECT nextval('s');

ALTER SEQUENCE s AS integer;

SELECT nextval('s');

ALTER SEQUENCE s INCREMENT -1;

SELECT nextval('s');

ALTER SEQUENCE s INCREMENT 0;

ALTER SEQUENCE s CACHE 0;

ALTER SEQUENCE s RESTART RESTART 5;

ALTER SEQUENCE s AS varchar;

ALTER SEQUENCE s;

ALTER SEQUENCE absent RESTART;

ALTER SEQUENCE IF EXISTS absent RESTART;

ALTER SEQUENCE s RENAME TO moved;

SELECT nextval('s');

SELECT nextval('moved');

CREATE SCHEMA other;

ALTER SEQUENCE moved SET SCHEMA other;

SELECT nextval('moved');

SELECT nextval('other.moved');

ALTER SEQUENCE other.moved SET SCHEMA absent;

ALTER SEQUENCE other.moved SET SCHEMA public;

CREATE TABLE taken (id int);

ALTER SEQUENCE moved RENAME TO taken;

ALTER SEQUENCE IF EXISTS absent RENAME TO x;

ALTER SEQUENCE moved OWNER TO absent_role;

ALTER SEQUENCE moved OWNER TO CURRENT_USER;

ALTER TABLE moved RENAME TO again;

ALTER SEQUENCE again OWNED BY NONE;

SELECT nextval('again');

CREATE TABLE owner (id int);

ALTER SEQUENCE again OWNED BY owner.id;

ALTER SEQUENCE again OWNED BY owner.absent;
