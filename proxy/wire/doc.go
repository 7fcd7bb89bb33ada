// Package wire frames the PostgreSQL protocol, version 3.
//
//	startup    | length int32 | code or version int32 | body ...     (first packet of a connection, untyped)
//	message    | type byte    | length int32          | body ...     (length counts itself, not the type)
//
// Reader peeks at a header, checks the length, and then hands the frame out whole or forwards it without holding it.
// Writer gathers frames and writes them in one system call. Only messages that the proxy inspects are decoded, by
// bounded decoders of our own: pgproto3's panic on some hostile input. Messages that the proxy makes are encoded by
// pgproto3, except the few of the hot path.
//
// Readers and Writers belong to one goroutine at a time.
package wire
