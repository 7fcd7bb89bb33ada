// Package peerstore leases from another nextvald, the centre, over PostgreSQL's protocol: processes beside their
// applications (sidecars) share the centre's blocks, and the store behind sees the centre alone.
//
//	application ── sidecar ── Store ══ SQL ══ Centre ── registry ── dynamostore, boltstore, ...
//	               blocks                              blocks       the truth
//
// # The functions of schema nextvald
//
// The centre answers them to the user that its setting peer_role names. The database is that of the connection.
//
//	SELECT first, count, increment, incarnation, version, rev
//	  FROM nextvald.lease(schema, name, count, member [, incarnation, version, told])
//	SELECT rev, names, topics FROM nextvald.changes(rev)
//	SELECT confirm FROM nextvald.confirm(member, rev [, token, expires])
//	SELECT store FROM nextvald.store(operation, argument)
//
// lease takes at least one and at most count values out of the centre's own blocks. The member id must be one of the store's
// members. With incarnation and version it leases of these alone (else 55000, and nothing was leased); told is the rev up to
// which the caller was told of changes, and the centre leases nothing before it has come as far.
//
// changes is the feed, read after the call from the store and followed by the centre before it answers. topics is JSON, and
// NULL when the feed's rev still is the one given.
//
// confirm is a member's word that it dropped everything older than the feed's rev. A member that keeps a token says which,
// and until when it counts.
//
// store runs any other operation of sequencer.Store at the store behind the centre; argument and result are JSON, in which a
// result that is a refusal is a field. Sidecar and centre must be of one version: a field that one does not know is refused.
//
// # Guarantees
//
// A sidecar is a member of the store. It hears of changes through the centre and confirms them, so a setval, RESTART, ALTER
// or DROP anywhere waits for its word as for any process's. What the centre was given and did not hand on at its end is given
// back; what a sidecar did not hand out when it stops is a gap, since others may have leased behind it.
//
// A sequence whose name cannot be said in SQL, or that the centre does not find by the name and version that the sidecar
// knows, is leased at the store behind the centre, as by a process beside it.
package peerstore
