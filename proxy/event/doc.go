// Package event serves many connections with few goroutines: a connection that is idle has none, and no buffer.
//
//	           readiness                run (one goroutine at a time)
//	kernel ---------------> Loop ------------------------------------> handler of the Conn ---> Read, Write
//	  ^    epoll, by edges   ^                                            |
//	  |                      |            Detach: another goroutine       |
//	  +---- sockets          +------- takes the Loop over; the handler ---+
//	                                  may wait from here on
//
// A handler runs whenever its connection may have something to read, or has got rid of what was to be written. It runs on
// the loop's goroutine, so it must not wait there. TryRead and Write never do: what the peer does not take is kept, and
// Queued tells how much that is. A handler that has to wait for anything else calls Detach first: the loop goes on in
// another goroutine, and the handler has its own. While it runs, the handler is not run again; when it is done, and
// something has happened since it looked, it is run once more.
//
// Read waits, and detaches first if need be, so that a Conn serves as a net.Conn too.
//
// It exists for the price of a passed statement. With a goroutine for each direction Go's own poller parks and wakes two
// goroutines a statement, and reads each socket twice, once to learn that it is empty: about half as much again as the
// kernel's own work.
package event
