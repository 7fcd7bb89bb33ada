CREATE SCHEMA one;

CREATE SCHEMA two;

CREATE SEQUENCE one.s START 100;

CREATE SEQUENCE two.s START 200;

CREATE SEQUENCE two.only START 300;

SELECT nextval('s');

SET search_path = one, two;

SELECT nextval('s'), nextval('only');

SET search_path TO two, one;

SELECT nextval('s'), currval('one.s');

SELECT last_value FROM s;

CREATE SEQUENCE s;

CREATE SEQUENCE fresh;

SELECT nextval('two.fresh');

BEGIN;

SET LOCAL search_path = one;

SELECT nextval('s');

ROLLBACK;

SELECT nextval('s');

SET search_path = absent;

SELECT nextval('s');

CREATE SEQUENCE nowhere;

SET search_path = '';

SELECT nextval('s');

SELECT nextval('one.s');

SELECT set_config('search_path', 'one', false);

SELECT nextval('s');

RESET search_path;

SELECT nextval('s');

DROP SEQUENCE one.s, two.s;

CREATE SEQUENCE "Quoted.Name";

SELECT nextval('"Quoted.Name"'), nextval('public."Quoted.Name"');

SELECT nextval('Quoted.Name');

CREATE SEQUENCE a23456789_123456789_123456789_123456789_123456789_123456789_123456789;

SELECT nextval('a23456789_123456789_123456789_123456789_123456789_123456789_123456789');

PREPARE p AS SELECT 1 AS one;

EXECUTE p;

DEALLOCATE p;
