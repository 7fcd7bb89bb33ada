// Package standalone is a PostgreSQL backend without storage. A proxy that has no PostgreSQL behind it dials it as it
// would dial one, so that sessions work in one way only.
//
// It answers what clients, drivers and poolers need beside sequences: login, settings, transactions, prepared
// statements, and SELECT or VALUES of constants, parameters, casts and a few functions about the session. All of the
// protocol is there (simple and extended queries, portals with row limits, implicit transactions, skipping to Sync
// after an error), with PostgreSQL's messages and SQLSTATEs. Everything that would need storage is refused with 0A000
// and a hint. Sequences are the proxy's: a sequence function that gets here names a sequence that does not exist.
//
//	backend.go, conn.go    the backend and the connections to it
//	startup.go             startup packet, first answers
//	session.go             message loop, errors
//	simple.go, extended.go the two query protocols
//	prepare.go             SQL text -> command
//	select.go, expression.go, function.go, sequence.go, catalog.go   SELECT and VALUES
//	transaction.go, set.go, settings.go, setting.go, utility.go      the other commands
//
// Each session runs in one goroutine, which belongs to the Backend: Close ends and awaits all of them.
package standalone
