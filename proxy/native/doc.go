// Package native hands out values of the upstream's own sequences, and hands sequences over between the upstream and the
// store, on connections of nextvald's own: as the role of the upstream's URL.
//
//	Manager ── what sessions ask
//	   ├─ tally    ── how often names are called: who is called seldom is passed
//	   └─ database ── one per database: the connection that draws, and a goroutine
//	         └─ drawn ── one per sequence that was called often: the blocks in hand
//
// # Values of a sequence that stays the upstream's
//
// The native sequence is the truth, and nextvald one of its callers: it calls nextval n times in one statement, keeps the
// values as a block, and hands them out. So defaults, triggers and direct connections get other values by construction.
// Values are lost, and nothing else, when they are not called for within a second.
//
// Unique: a value is used only when the transaction in which it was drawn is on disk, so that a server that crashes does
// not give it to others after. A block is not used any more blockLife after it was asked for, by a clock that goes on while
// the process is stopped; this is looked at after each claim. So whatever is done to a sequence past nextvald repeats values
// for no longer. What is done to it through any nextvald of the namespace is announced first (revoke.go).
//
// Order: the values of all sessions of a process grow (or fall) in the order of the calls, those that are passed while
// calls are few included: a call that is passed ends the blocks drawn before it. A call that was passed and is answered by
// the upstream later than settleTime, while calls become frequent, may get a greater value than one that begins after.
//
// Another server: when the connection that draws was lost and the server that answers then is another one, or the same
// one started again, it may know less than the one before (a standby, a backup that was restored). Calls of what was drawn
// before wait until the sequence is past all that was drawn (server.go).
package native
