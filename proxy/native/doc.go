// Package native deals with the upstream's own sequences, on connections of nextvald's own.
package native
