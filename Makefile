# Everything a maintainer runs. `make` alone lists it.

GO ?= go
SERVERS = integration/testenv/with-servers
FUZZTIME ?= 5s
DURATION ?= 1h
SEED ?= 0

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build ./nextvald
	@echo "building nextvald (PostgreSQL's parser is compiled the first time, which takes a minute)"
	$(GO) build -o nextvald ./cmd/nextvald

run: build ## build and start it alone, on the embedded store in ./nextvald-data
	exec ./nextvald serve

test: ## run every test beside a PostgreSQL and a DynamoDB Local of their own
	$(SERVERS) $(GO) test -race -timeout 20m ./...

proof: ## draw a million values through three processes, one of them killed, and print the count
	$(SERVERS) $(GO) test -count=1 -v -run '^TestMillionValuesAcrossACrash$$' ./integration/faults

soak: ## let everything fail at random for DURATION (1h), with SEED (another one each time), and judge what clients got
	$(SERVERS) $(GO) test -count=1 -v -timeout 0 -run '^TestFaults$$' ./integration/faults -duration $(DURATION) -seed $(SEED)

compat: ## run SQL scripts on a plain PostgreSQL and through nextvald, and compare; ARGS are flags and files
	$(SERVERS) $(GO) test -count=1 -v -timeout 0 -run '^TestComparedWithPostgreSQL$$' ./compat -args -- $(ARGS)

hostile: ## a million mutated sessions, of which none may end the process, leak or disturb another
	$(SERVERS) $(GO) test -count=1 -v -timeout 0 -run '^TestHostileSessions$$' ./integration -hostile-sessions 250000

bench: ## compare with PostgreSQL, PgBouncer and a program that only answers, for about half an hour
	$(SERVERS) $(GO) test -count=1 -v -timeout 0 ./integration/bench -rounds 5 -length 3s -clients 1,8,64 -idle 5000 -bulk 100 -rows 1000,1000000

simulate: ## an hour of 10,000 sequences in virtual time: writes to the store, waits, runway, what a kill loses; SEED
	$(GO) test -count=1 -v -timeout 2h -run '^TestSimulation$$' ./sequencer -simulate -seed $(or $(SEED),0)

peers: ## measure what sidecars hand out from memory, and what costs a request to the centre or the store
	$(GO) test -count=1 -v -timeout 60m -run '^TestShares$$' ./sequencer/peerstore -args -peers.sequences 10000 -peers.rate 50000

lint: ## check formatting, vet, staticcheck and the import directions
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); \
		if [ -n "$$unformatted" ]; then echo "not formatted by gofmt:" $$unformatted; exit 1; fi
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(GO) test -count=1 -run '^TestImport' .

fuzz-short: ## fuzz every fuzz target for FUZZTIME (5s)
	@set -e; for file in $$(git grep -l '^func Fuzz' -- '*_test.go'); do \
		for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' $$file); do \
			echo "$$(dirname $$file) $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) ./$$(dirname $$file); \
		done; \
	done

clean: ## remove what was built and fetched
	rm -rf nextvald .cache

.PHONY: help build run test proof soak compat hostile bench simulate peers lint fuzz-short clean
