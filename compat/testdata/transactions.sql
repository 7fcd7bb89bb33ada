CREATE SEQUENCE s;

CREATE TABLE t (id bigint);

BEGIN;

INSERT INTO t VALUES (nextval('s'));

SELECT nextval('s');

ROLLBACK;

SELECT nextval('s');

SELECT count(*) FROM t;

BEGIN;

INSERT INTO t VALUES (nextval('s'));

SELECT nextval('absent');

SELECT nextval('s');

SELECT 1;

COMMIT;

SELECT count(*) FROM t;

SELECT nextval('s');

BEGIN;

SAVEPOINT p;

SELECT nextval('s');

SELECT setval('s', -1);

SELECT lastval();

ROLLBACK TO p;

SELECT nextval('s'), currval('s');

RELEASE p;

COMMIT;

BEGIN READ ONLY;

SELECT currval('s');

SELECT last_value, is_called FROM s;

SELECT nextval('s');

ROLLBACK;

BEGIN;

SET TRANSACTION READ ONLY;

SELECT setval('s', 50);

END;

SET default_transaction_read_only = on;

SELECT nextval('s');

CREATE SEQUENCE refused;

RESET default_transaction_read_only;

SELECT nextval('s');

START TRANSACTION ISOLATION LEVEL SERIALIZABLE;

SELECT nextval('s');

COMMIT AND CHAIN;

SELECT currval('s');

ROLLBACK;

COMMIT;
