// Package sequencer hands out the values of PostgreSQL sequences from blocks that it leases from a store. It is the library
// inside nextvald, and can be used without it: it knows nothing of SQL or of PostgreSQL's protocol.
//
//	Registry ── one per process: names, the feed, closing
//	   └─ Sequence ── one per sequence in use: the blocks in hand, the rate, the refill
//	         └─ Store ── where the truth is: memstore, boltstore, dynamostore
//
// # Guarantees
//
// Unique: no two calls of Next get the same value of a sequence, in any process, whatever fails. A value counts as the same
// within one incarnation (one life of the sequence: DROP and CREATE give another), between two changes of its position
// (Set, RESTART), and within one round of a CYCLE. What a fault can cause is a gap: a block whose lease was not answered is
// never used, and a process that is killed takes its blocks with it.
//
// Order: within one process values grow (or fall, by the sign of INCREMENT) in the order of the calls. Between processes
// there is no order, unless the sequence is strict (CACHE 1): then values come in the order of the calls across all
// processes, without gaps but for crashes and lost answers.
//
// Speed: Next is an atomic addition in the block in hand. It allocates nothing and shares no lock with other sequences. The
// next block is leased in the background, before the one in hand ends. A strict sequence asks the store for every value;
// callers who wait at the same time share a request.
//
// Outages: while the store is down, values in hand are handed out. Then calls fail with ErrStore, after
// Config.StoreTimeout at the latest, and go on by themselves when the store is back.
//
// A change (Set, Alter) raises the sequence's version, and no block of an older version is leased any more. In this process
// it takes effect at once. Another process that holds a block of the old version uses it up first.
//
// All exported methods are safe for concurrent use.
//
// # The stored format
//
// Every store keeps four kinds of items. An item has a key of two parts, the second one a minus sign where the first one
// says it all. The parts of a key are percent-encoded as in the path of a URL. Numbers are decimals.
//
//	n/<namespace>/<database>     <schema>/<name>   a name: incarnation, oid
//	s/<namespace>/<incarnation>  -                 a sequence, below
//	f/<namespace>                -                 the feed: rev, names, t00 .. t63, oid
//	m/<namespace>                <member id>       a process that may hold blocks (reserved)
//
// A sequence:
//
//	fmt       1: this format
//	rev       counts the writes of the item
//	version   counts the changes of definition or position, but for leases
//	state     active, or revoking: a change is under way and every lease is refused
//	source    who hands out ranges: store, upstream, or moving
//	kind      virtual: only nextvald knows the sequence, or mirrored: the upstream has one of its name
//	mode      cached or strict
//	pos       the next value to lease, up to 128 bits: one increment past the bound when the sequence is exhausted
//	high      the furthest value ever leased in this incarnation; absent before the first lease
//	def       type, start, increment, min, max, cache, cycle, owned_by, owner, and fresh: the position at which
//	          the sequence counts as not yet called
//	oid       its OID
//	db_oid, rel_oid, fence, holes    for a sequence that the upstream has too; absent for a virtual one
//	created, changed                 times of creation and of the last change, for people
//
// A lease of n values is one conditional write that adds n x increment to pos. A give-back moves pos back, on the condition
// that nobody wrote since the lease. Whatever else changes an item replaces it on the condition of its rev.
//
// The feed's names counts changes of names, and t00 to t63 count changes of sequences, each for the incarnations whose
// 32-bit FNV-1a hash has that remainder by 64. oid is the last OID given; they count down from 4294967294.
package sequencer
