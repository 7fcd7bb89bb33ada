// Package sqlrewrite says what an SQL text means to sequences, and edits texts by position.
//
// It is pure: text in, plan out; no I/O and no knowledge of sessions, stores or which sequences exist. A cheap Scan
// decides whether a text needs to be parsed at all; Parse reads it with PostgreSQL's own grammar and returns a Plan;
// Apply replaces parts of the text and maps the upstream's error positions back.
//
//	text -> Scan -> Traits -> (few) Parse -> Plan -> (session chooses values) -> Apply -> text, Positions
//
// All functions are safe for concurrent use; plans are immutable and shared.
package sqlrewrite
