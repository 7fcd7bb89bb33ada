// Package faults holds the tests of what must hold while everything fails: real processes and real clients, on a DynamoDB
// Local that is killed, behind gates that lose, delay and refuse requests and answers.
//
//	clients ── nextvald ── gate ──┐
//	clients ── nextvald ── gate ──┼── DynamoDB Local
//	clients ── nextvald ── gate ──┘
//
// TestFaults runs a while with every `go test`; `make soak` runs it for as long as it is told.
package faults
