// Package auth holds the two sides of a login that nextvald terminates: it is the server towards the client and the client
// towards the upstream. It reads and writes no connection.
//
//	client                       nextvald                       upstream
//	  │   n,,n=,r=...  ────────▶  Server.First
//	  │  ◀──────── r=...,s=...,i=...   of the user's verifier
//	  │   c=...,r=...,p=...  ──▶  Server.Final
//	  │                             │ Credentials: the client key,
//	  │                             ▼ recovered from the proof
//	  │                           Client.First  ─────────────▶     │
//	  │                           Client.Final  ◀── r, s, i ──     │
//	  │  ◀──────────────────────────────────────── AuthenticationOk
//
// A verifier alone logs nobody in: only a client who knows the password lets the client key be recovered, and that key serves
// at the upstream where the same verifier is stored. A secret that is a password serves with every method of the upstream.
//
// Nothing here puts a password, a hash, a key or a proof into an error.
package auth
