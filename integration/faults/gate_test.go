package faults

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// gate stands between one nextvald and the store. It sees requests rather than bytes, so that it can tell one that took
// place, and whose answer it loses, from one that did not, and can refuse in the store's name.
type gate struct {
	server *httptest.Server
	store  string
	ledger *ledger
	client *http.Client
	end    chan struct{} // closed when the test ends

	mu      sync.Mutex
	rng     *rand.Rand
	percent int // of requests that go wrong in a way of their own
	state   gateState
	life    int           // that the nextvald behind is in
	changed chan struct{} // closed and replaced when state changes
}

// gateState is what happens to all requests.
type gateState int

const (
	open   gateState = iota
	broken           // connections are reset
	silent           // requests and answers vanish
)

// fate is what happens to one request.
type fate int

const (
	passes      fate = iota
	isLate           // it comes to the store late, perhaps after its sender gave up
	answersLate      // its answer does
	isLost           // it never comes to the store, and the connection is reset
	losesAnswer      // it takes place, and the connection is reset
	tearsAnswer      // the same in the middle of the answer
	throttled        // the store refuses it
	fails            // it takes place, and the store says that it failed
	fates
)

// maxLate bounds how late a request or an answer is.
const maxLate = 5 * time.Second

func newGate(t testing.TB, store string, l *ledger, rng *rand.Rand) *gate {
	g := &gate{
		store: store, ledger: l, rng: rng, end: make(chan struct{}), changed: make(chan struct{}),
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}},
	}
	g.server = httptest.NewServer(g)
	t.Cleanup(func() {
		close(g.end)
		g.server.CloseClientConnections()
		g.server.Close()
		g.client.CloseIdleConnections()
	})
	return g
}

// spoil makes so many of a hundred requests go wrong.
func (g *gate) spoil(percent int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.percent = percent
}

// turn changes what happens to all requests, also to those under way.
func (g *gate) turn(to gateState) {
	g.mu.Lock()
	g.state = to
	close(g.changed)
	g.changed = make(chan struct{})
	g.mu.Unlock()
	if to == broken {
		g.server.CloseClientConnections()
	}
}

// lives says which life of its process the requests from now on are of.
func (g *gate) lives(life int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.life = life
}

// roll decides about a request.
func (g *gate) roll() (f fate, late time.Duration, life int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.rng.IntN(100) < g.percent {
		f = 1 + fate(g.rng.IntN(int(fates)-1))
		late = time.Duration(g.rng.Int64N(int64(maxLate)))
	}
	return f, late, g.life
}

// ServeHTTP passes a request on, or makes it go wrong.
func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil || !g.passable() {
		reset(w)
		return
	}
	f, late, life := g.roll()
	arrived := time.Now()
	switch f {
	case isLost:
		reset(w)
		return
	case throttled:
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"__type":"com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException","message":"slow down"}`)
		return
	case isLate:
		g.wait(late)
	}
	lease := g.ledger.sent(r, body, life, arrived)
	status, header, answer, err := g.forward(r, body)
	if err != nil {
		reset(w) // whether it took place is not known
		return
	}
	g.ledger.tookPlace(lease, status, answer)
	if f == answersLate {
		g.wait(late)
	}
	if f == losesAnswer || !g.passable() || r.Context().Err() != nil {
		reset(w)
		return
	}
	for _, name := range []string{"Content-Type", "X-Amz-Crc32", "X-Amzn-Requestid"} {
		if v := header.Get(name); v != "" {
			w.Header().Set(name, v)
		}
	}
	switch f {
	case fails:
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, `{"__type":"com.amazonaws.dynamodb.v20120810#InternalServerError","message":"it failed"}`)
		return
	case tearsAnswer:
		w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
		_, _ = w.Write(answer[:len(answer)/2])
		reset(w)
		return
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
	w.WriteHeader(status)
	if _, err := w.Write(answer); err == nil {
		g.ledger.answered(lease)
	}
}

// forward sends a request to the store, whether or not its sender still waits.
func (g *gate) forward(r *http.Request, body []byte) (status int, header http.Header, answer []byte, err error) {
	to, err := http.NewRequest(r.Method, g.store+r.URL.Path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, nil, err
	}
	to.Header = r.Header.Clone()
	to.Host = r.Host // which is signed
	got, err := g.client.Do(to)
	if err != nil {
		return 0, nil, nil, err
	}
	defer func() { _ = got.Body.Close() }()
	answer, err = io.ReadAll(got.Body)
	return got.StatusCode, got.Header, answer, err
}

// passable waits while the gate is silent, and reports whether it is open.
func (g *gate) passable() bool {
	for {
		g.mu.Lock()
		state, changed := g.state, g.changed
		g.mu.Unlock()
		if state != silent {
			return state == open
		}
		select {
		case <-changed:
			return false // what was sent meanwhile is lost
		case <-g.end:
			return false
		}
	}
}

func (g *gate) wait(d time.Duration) {
	select {
	case <-time.After(d):
	case <-g.end:
	}
}

// reset ends the connection at once, without a word.
func reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	_ = conn.(*net.TCPConn).SetLinger(0)
	_ = conn.Close()
}

// ledger knows the leases that took place, and which of them the process behind the gate heard of.
type ledger struct {
	mu     sync.Mutex
	leases []*lease
	items  map[string]string // the keys of sequences' items, by name
}

// lease is a request for values of a sequence.
type lease struct {
	item        string // the key of the sequence's item
	life        int
	sent, ended time.Time
	ahead       int64 // how far it moves the position
	pos         int64 // the position after it, 0: whether it took place is not known
	refused     bool  // it did not take place
	heard       bool  // the answer was passed on
}

// sent notes a request to be sent, and returns nil when it is for no lease.
func (l *ledger) sent(r *http.Request, body []byte, life int, arrived time.Time) *lease {
	var request struct {
		Key                       struct{ PK struct{ S string } }
		Item                      struct{ PK, SK, Incarnation struct{ S string } }
		ExpressionAttributeValues map[string]struct{ N string }
	}
	if json.Unmarshal(body, &request) != nil {
		return nil
	}
	// A name, n/<namespace>/<database> and <schema>/<name>, that points to an item, s/<namespace>/<incarnation>.
	if names, ok := strings.CutPrefix(request.Item.PK.S, "n/"); ok && request.Item.Incarnation.S != "" {
		namespace, _, _ := strings.Cut(names, "/")
		_, name, _ := strings.Cut(request.Item.SK.S, "/")
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.items == nil {
			l.items = map[string]string{}
		}
		l.items[name] = "s/" + namespace + "/" + request.Item.Incarnation.S
		return nil
	}
	ahead, err := strconv.ParseInt(request.ExpressionAttributeValues[":ahead"].N, 10, 64)
	if err != nil {
		return nil
	}
	made := &lease{item: request.Key.PK.S, life: life, sent: arrived, ahead: ahead}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leases = append(l.leases, made)
	return made
}

// tookPlace notes the store's answer.
func (l *ledger) tookPlace(made *lease, status int, answer []byte) {
	if made == nil {
		return
	}
	var response struct {
		Attributes struct{ Pos struct{ N string } }
	}
	_ = json.Unmarshal(answer, &response)
	l.mu.Lock()
	defer l.mu.Unlock()
	made.refused = status/100 == 4
	made.pos, _ = strconv.ParseInt(response.Attributes.Pos.N, 10, 64)
}

// answered notes that the answer was passed on.
func (l *ledger) answered(made *lease) {
	if made == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	made.heard, made.ended = true, time.Now()
}

// itemOf returns the key of a sequence's item.
func (l *ledger) itemOf(sequence string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.items[sequence]
}

// of returns the leases of an item.
func (l *ledger) of(item string) (leases []lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, made := range l.leases {
		if made.item == item {
			leases = append(leases, *made)
		}
	}
	return leases
}
