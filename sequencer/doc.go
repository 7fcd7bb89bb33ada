// Package sequencer hands out the values of PostgreSQL sequences from blocks that it leases from a store. It knows nothing
// of SQL or of PostgreSQL's protocol.
package sequencer
