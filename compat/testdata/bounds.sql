CREATE SEQUENCE up AS bigint START 9223372036854775806;

SELECT nextval('up'), nextval('up');

SELECT nextval('up');

SELECT nextval('up');

SELECT last_value, is_called FROM up;

ALTER SEQUENCE up CYCLE;

SELECT nextval('up'), nextval('up');

CREATE SEQUENCE down AS bigint INCREMENT -1 MINVALUE -9223372036854775808 START -9223372036854775807;

SELECT nextval('down'), nextval('down');

SELECT nextval('down');

CREATE SEQUENCE giant INCREMENT 9223372036854775807 MINVALUE -9223372036854775807 START -9223372036854775807;

SELECT nextval('giant'), nextval('giant'), nextval('giant');

SELECT nextval('giant');

CREATE SEQUENCE plunge INCREMENT -9223372036854775808 MINVALUE -9223372036854775808 MAXVALUE 9223372036854775807 START 9223372036854775807;

SELECT nextval('plunge'), nextval('plunge');

SELECT nextval('plunge');

CREATE SEQUENCE small AS smallint START 32766;

SELECT nextval('small');

SELECT nextval('small');

SELECT nextval('small');

CREATE SEQUENCE tiny MINVALUE -2 MAXVALUE 1 CYCLE;

SELECT nextval('tiny'), nextval('tiny'), nextval('tiny'), nextval('tiny'), nextval('tiny'), nextval('tiny');

SELECT setval('tiny', 1), nextval('tiny');

SELECT setval('tiny', 2);

SELECT setval('tiny', -3);

CREATE SEQUENCE one MINVALUE 5 MAXVALUE 6 INCREMENT 2;

SELECT nextval('one');

SELECT nextval('one');

SELECT last_value, is_called FROM one;

SELECT setval('one', 6, false);

SELECT nextval('one');

SELECT nextval('one');

CREATE SEQUENCE descending AS smallint INCREMENT -1;

SELECT nextval('descending'), nextval('descending');

SELECT setval('descending', -32768);

SELECT nextval('descending');

ALTER SEQUENCE descending CYCLE;

SELECT nextval('descending');
