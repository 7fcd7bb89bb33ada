// Package answer computes the results of statements that need no upstream: target lists of constants, parameters,
// casts of those, sequence calls and named fields.
//
//	sqlrewrite.Answer -> Columns -> []Column   what RowDescription says
//	                  -> Constants             what PostgreSQL refuses at Parse
//	[]Param           -> Check                 what PostgreSQL refuses at Bind
//	row of the Answer -> Row -> DataRow frame  what Execute sends
//
// It knows the types bool, int2, int4, int8, oid, float8, numeric, text, varchar, bpchar, name and unknown in full, and
// timestamptz, name[] and void as results of fields. A statement with any other type is not answered: Columns says so
// and the caller leaves it to the upstream. Values, texts and errors are those of PostgreSQL.
//
// Nothing is kept between calls; all functions are safe for concurrent use.
package answer
