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
// Speed: Next is an atomic addition in the block in hand, and a look at the clock. It allocates nothing and shares no lock with other sequences. The
// next block is leased in the background, before the one in hand ends. A strict sequence asks the store for every value;
// callers who wait at the same time share a request.
//
// Supply: a sequence's rate decides how much is held. After warm-up, while the store answers, that lasts for at least
// Config.BufferSeconds, and nobody waits; a process that is killed loses no more than Config.LeaseTarget's worth.
//
// Outages: while the store is down, values in hand are handed out. Then calls fail with ErrStore, after
// Config.StoreTimeout at the latest, and go on by themselves when the store is back.
//
// Changes: Set, Alter and Drop take effect in all processes. They raise the sequence's version, so that no block of an older
// one is leased, and every process that holds values drops them. One that moves the position back, turns its direction,
// makes it strict or drops it has three steps: the item is set to revoking; every member confirms that it dropped its
// blocks; the change is written. While a member does not confirm, within 5 s, it fails with ErrStore and a hint that names
// the member, and nothing is changed. Any other change cannot give out a value twice: it is written at once, waits at most
// a second for the members, and does not fail for them. A process that dies half way leaves an item that others set right
// after 10 s.
//
// Others in the process may hold values of sequences that have no item (Holder): changes of those are announced by a name
// alone, and confirmed by the members in the same way (Registry.Revoke).
//
// Members: a process that holds blocks is a member, by an item in the store, and follows the feed to hear of changes. One
// that cannot for Config.MaxOffline stops handing out values that it holds. After twice that time it does not count any
// more. Registry.Members lists them, Registry.Evict removes one that is known to be dead.
//
// A store that was set back, by a restored backup, is noticed by whoever knows more: a rev that falls stops the sequence
// with an error that says what to do.
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
//	f/<namespace>                -                 the feed: rev, names, t00 .. t63, i00 .. i63, oid
//	m/<namespace>                <member id>       a process that may hold blocks: token, seen, expires
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
//	def       type, start, increment, min, max, cache, cycle, owned_by, owner; policy: the sequence's own settings;
//	          and fresh: the position at which it counts as not yet called
//	oid       its OID
//	db_oid, rel_oid    of the upstream's sequence; absent for a virtual one, as the next three
//	fence              first and last of the block that the upstream's sequence is confined to
//	next_fence         the same of the block that it is about to be confined to
//	holes              the same of blocks that it was confined to; leases skip all three
//	created, changed                 times of creation and of the last change, for people
//
// A lease of n values is one conditional write that adds n x increment to pos. A give-back moves pos back, on the condition
// that nobody wrote since the lease. Whatever else changes an item replaces it on the condition of its rev.
//
// The feed's names counts changes of names, and t00 to t63 count changes of sequences, each for the incarnations whose
// 32-bit FNV-1a hash has that remainder by 64; i00 to i63 are the incarnations that counted last. oid is the last OID given;
// they count down from 4294967294.
//
// A member's seen is the feed's rev up to which it has dropped what is of an old version, expires the time in milliseconds
// since 1970 after which it does not count, and token tells it from another process of the same id.
package sequencer
