package main

import (
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"
)

// What differs between two runs on any server is masked:
//
//   - OIDs of what is not built in, in columns of type oid, in messages, and the table of a column;
//   - values of the types xid, xid8, cid, tid, pg_lsn, timestamp and timestamptz;
//   - columns named log_cnt or like process ids;
//   - the times and memory of EXPLAIN ANALYZE;
//   - the name of the database.

// firstOwnOID is the first that PostgreSQL gives to what users create.
const firstOwnOID = 16384

var maskedTypes = map[uint32]string{
	28: "<xid>", 5069: "<xid>", 29: "<cid>", pgtype.TIDOID: "<tid>", 3220: "<lsn>",
	pgtype.TimestampOID: "<time>", pgtype.TimestamptzOID: "<time>",
}

var maskedColumns = map[string]string{
	"log_cnt": "<log_cnt>", "pid": "<pid>", "pg_backend_pid": "<pid>", "procpid": "<pid>", "relfilenode": "<relfilenode>",
}

var maskedTexts = []struct {
	pattern *regexp.Regexp
	mask    string
}{
	{regexp.MustCompile(`\bOID \d{5,}`), "OID <oid>"},
	{regexp.MustCompile(`\bpg_(toast_)?temp_\d+`), "pg_${1}temp_<n>"},
	{regexp.MustCompile(`\bpg_toast_\d+`), "pg_toast_<oid>"},
	{regexp.MustCompile(`\bprocess \d+`), "process <pid>"},
	{regexp.MustCompile(`actual time=[\d.]+\.\.[\d.]+`), "actual time=<t>"},
	{regexp.MustCompile(`(Planning|Execution) Time: [\d.]+ ms`), "$1 Time: <t>"},
	{regexp.MustCompile(`Memory: \d+kB`), "Memory: <n>kB"},
}

// maskText masks a message or a value.
func (s *session) maskText(text string) string {
	text = strings.ReplaceAll(text, s.database, "DATABASE")
	for _, m := range maskedTexts {
		text = m.pattern.ReplaceAllString(text, m.mask)
	}
	return text
}

// maskOID masks the OID of what users created.
func maskOID(oid int64) (string, bool) { return "<oid>", oid >= firstOwnOID }
