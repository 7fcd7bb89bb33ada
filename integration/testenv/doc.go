// Package testenv is what integration tests share: the servers that with-servers started, and nextvald processes.
package testenv
