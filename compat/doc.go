// Command compat runs SQL scripts on a plain PostgreSQL and through nextvald and compares all that a client can see:
//
//	go run ./compat -direct URL -proxy URL [-mode MODE] [-flow FLOW] [-keep] [-v] [FILE.sql ...]
//
// Both URLs are those of a superuser. Each script runs once for each flow, in a fresh database on each side, on one
// connection, statement by statement. Compared are columns with their types and formats, rows, command tags, errors and
// notices with all their fields but those of the server's source, COPY data, and the state of the transaction. What two
// servers never agree on is masked: see mask.go.
//
//	script (.sql)  --parseScript-->  entries  --session.run-->  lines  --\
//	corpus (.jsonl) --parseCorpus-->                                      compare -->  same | expected | different
//	                                 entries  --session.run-->  lines  --/
//
// Without files it runs those of testdata. A difference that has to be is listed with its reason in
// testdata/expected-MODE.txt; one that is listed there and does not differ any more counts as different. In mode mirrored a gap in
// the values of a sequence is expected too: see gaps.go. The last line is
//
//	entries N, same N, expected N, different N
//
// and the exit code is 1 when anything was different, 2 when it could not run.
package main
