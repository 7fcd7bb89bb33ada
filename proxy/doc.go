// Package proxy relays PostgreSQL sessions to an upstream and answers sequence statements itself.
//
// A session is one client connection with its upstream connection, and two sides, which run beside each other:
//
//	client --in--> [ client side: reads, decides, answers or forwards ] --up--> upstream
//	client <--out- [ upstream side: matches responses with the flight ] <-from- upstream
//
// The flight is the ordered queue of what the client is still owed: responses to forward, responses to our own
// questions, which are kept back, and local answers that wait their turn. The client side pushes, the upstream side pops.
// A local answer leaves at once when the flight is empty.
//
// Between two sockets the sides take turns on a loop (package event): an idle session has no buffers, and a turn that has to
// wait for anything but its socket goes on in a goroutine of its own. Otherwise (TLS, no upstream) each side is a goroutine.
//
// The proxy never makes up a ReadyForQuery while the upstream owes one, never adds a Sync to a client's batch, and
// raises an error of its own through the upstream whenever a transaction, explicit or implicit, is open there: a
// statement that always fails takes the place of the client's, and its ErrorResponse is replaced by ours. So the
// upstream's own rules abort the transaction.
package proxy
