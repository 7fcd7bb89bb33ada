package native

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/nextvald/nextvald/proxy"
	"github.com/nextvald/nextvald/sequencer"
)

const (
	// lookEvery is how often the connection that draws is looked at while nothing is drawn.
	lookEvery = 250 * time.Millisecond
	// idleDraw is how long it is kept then.
	idleDraw = time.Minute
	// drawTimeout bounds a draw.
	drawTimeout = 3 * time.Second
)

// prepareDraw bounds how long a draw makes others wait: nextval waits for whoever alters the sequence.
const prepareDraw = `SELECT set_config('lock_timeout', '100ms', false), set_config('statement_timeout', '2s', false)`

// shards is the number of maps over which sequences are spread, so that adding one copies few.
const shards = 64

// database draws values of the sequences of one database, one after the other, on one connection.
type database struct {
	m           *Manager
	name        string
	incarnation string
	sequences   [shards]atomic.Pointer[map[uint32]*drawn]
	// passed is when calls are no longer passed, by Manager.elapsed; revoking counts the changes of everything under way of
	// this process; doubted counts sequences in doubt.
	passed   atomic.Int64
	revoking atomic.Int32
	doubted  atomic.Int32
	// leaving: the connection is to be closed, since the database may be about to be dropped; left is closed and replaced
	// when it is.
	leaving atomic.Bool
	// discard: the connection may have values cached (CACHE) that must not be used.
	discard atomic.Bool

	mu      sync.Mutex // writers of sequences
	running bool
	queue   []*drawn
	work    chan struct{} // gets a token when there is something to do
	left    chan struct{}
	changes map[uint32]int32

	// Of run alone.
	conn   *pgx.Conn
	server *server // that was drawn from last
	moved  bool    // it is another system than one before, so that OIDs need not mean the same
	usedAt time.Time
	deaf   bool // the last attempt to connect failed
}

func newDatabase(m *Manager, name string) *database {
	d := &database{m: m, name: name, incarnation: incarnation(name, 0), work: make(chan struct{}, 1), left: make(chan struct{}), changes: map[uint32]int32{}}
	for i := range d.sequences {
		d.sequences[i].Store(&map[uint32]*drawn{})
	}
	return d
}

// find returns a sequence that is known, or nil.
func (d *database) find(oid uint32) *drawn { return (*d.sequences[oid%shards].Load())[oid] }

// all returns the sequences that are known.
func (d *database) all() []*drawn {
	var all []*drawn
	for i := range d.sequences {
		for _, s := range *d.sequences[i].Load() {
			all = append(all, s)
		}
	}
	return all
}

// Drawn implements proxy.Native.
func (m *Manager) Drawn(database string, oid uint32, name sequencer.Name) proxy.Sequence {
	d := m.database(database)
	s := d.find(oid)
	if s == nil || s.name != name && s.misnamed.Load() {
		s = d.add(oid, name)
	}
	now := m.cfg.Clock.Now()
	often := s.calls.often(now, m.cfg.HotCalls)
	switch {
	case s.doubted.Load():
		return s
	case s.name == name && often && !s.passes(now):
		return s
	case often:
		m.join()
		if s.name != name {
			s.verify(m.elapsed(now))
		}
	}
	s.gate.pass(m.elapsed(now))
	return nil
}

// add makes a sequence known, by another name than the one that was wrong.
func (d *database) add(oid uint32, name sequencer.Name) *drawn {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := d.find(oid)
	if old != nil && (old.name == name || !old.misnamed.Load()) {
		return old
	}
	s := newDrawn(d, oid, name)
	s.revoking.Store(d.changes[oid])
	if old != nil {
		s.passed.Store(old.passed.Load())
		old.mu.Lock()
		s.furthest, s.filenode = old.furthest, old.filenode
		failed := old.failed
		old.mu.Unlock()
		if old.doubted.Load() {
			s.doubt(failed)
			old.trust()
		}
	}
	shard := &d.sequences[oid%shards]
	known := make(map[uint32]*drawn, len(*shard.Load())+1)
	for oid, s := range *shard.Load() {
		known[oid] = s
	}
	known[oid] = s
	shard.Store(&known)
	raise(&s.passed, d.m.feed.holds(s.incarnation)) // after it is there, so that none that is heard now is missed
	return s
}

// want puts a sequence into the queue of those to draw.
func (d *database) want(s *drawn) {
	d.mu.Lock()
	d.queue = append(d.queue, s)
	start := !d.running
	d.running = true
	d.mu.Unlock()
	if start {
		d.m.spawn(d.run)
	}
	d.signal()
}

// signal makes run look for something to do.
func (d *database) signal() {
	select {
	case d.work <- struct{}{}:
	default:
	}
}

// leave asks for the connection to be closed, and returns a channel that is closed then.
func (d *database) leave() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.running {
		closed := make(chan struct{})
		close(closed)
		return closed
	}
	d.leaving.Store(true)
	d.signal()
	return d.left
}

// next takes a sequence from the queue, nil when it is empty.
func (d *database) next() *drawn {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.queue) == 0 {
		return nil
	}
	s := d.queue[0]
	d.queue = d.queue[1:]
	return s
}

// run draws until the manager is closed.
func (d *database) run() {
	defer d.hangUp()
	for d.m.ctx.Err() == nil {
		if d.leaving.Swap(false) {
			d.hangUp()
			d.mu.Lock()
			close(d.left)
			d.left = make(chan struct{})
			d.mu.Unlock()
		}
		for s := d.next(); s != nil && d.m.ctx.Err() == nil; s = d.next() {
			d.draw(s)
		}
		var elapsed <-chan time.Time
		stop := func() {}
		if d.conn != nil || d.doubted.Load() > 0 {
			elapsed, stop = d.m.cfg.Clock.After(lookEvery)
		}
		select {
		case <-d.work:
		case <-elapsed:
			d.look()
		case <-d.m.ctx.Done():
		}
		stop()
	}
}

// look finds out whether the connection is still there, and settles what is in doubt.
func (d *database) look() {
	now := d.m.cfg.Clock.Now()
	if d.doubted.Load() == 0 && now.Sub(d.usedAt) > idleDraw {
		d.hangUp()
		return
	}
	ctx, cancel := context.WithTimeout(d.m.ctx, drawTimeout)
	defer cancel()
	if d.conn != nil && d.conn.Ping(ctx) != nil {
		d.lost()
	}
	d.reread(ctx)
	switch open := d.conn != nil; {
	case d.doubted.Load() == 0:
	case open:
		d.settle() // what is behind may have been moved
	default:
		_ = d.connect(ctx)
	}
}

// hangUp closes the connection that draws.
func (d *database) hangUp() {
	if d.conn != nil {
		closeControl(d.conn)
		d.conn = nil
	}
}

// lost notes that the connection broke: what was drawn is in doubt, as another server may answer now.
func (d *database) lost() {
	d.hangUp()
	d.doubtAll()
}

// doubtAll puts into doubt whatever was drawn.
func (d *database) doubtAll() {
	for _, s := range d.all() {
		s.mu.Lock()
		drawn := s.furthest != nil
		s.mu.Unlock()
		if drawn && !s.doubted.Load() {
			s.doubt(nil)
		}
	}
}

// connect opens the connection that draws, if it is not open, and finds out which server answers. When it is another one
// than before, all that was drawn is in doubt.
func (d *database) connect(ctx context.Context) error {
	if d.conn != nil {
		return nil
	}
	conn, found, err := d.open(ctx)
	if err != nil {
		if !d.deaf && d.m.ctx.Err() == nil {
			d.deaf = true
			d.m.cfg.Logger.Warn("cannot open a control connection to the upstream; its sequences are not cached", "database", d.name, "error", err)
		}
		return err
	}
	d.deaf = false
	d.conn = conn
	d.usedAt = d.m.cfg.Clock.Now()
	d.discard.Store(false)
	before := d.server
	d.server = &found
	if before == nil || *before == found {
		for _, s := range d.all() {
			s.mu.Lock()
			unknown := s.doubted.Load() && s.failed == nil
			s.mu.Unlock()
			if unknown {
				s.trust()
			}
		}
		return nil
	}
	d.m.cfg.Logger.Warn("another server of the upstream answers, or the same one started again", "database", d.name)
	if before.system != "" && before.system == found.system && before.database != found.database {
		for _, s := range d.all() {
			s.forget() // the database was dropped, and is another one of the same name
		}
		return nil
	}
	if before.system != found.system {
		d.moved = true
	}
	d.doubtAll()
	d.settle()
	return nil
}

func (d *database) open(ctx context.Context) (*pgx.Conn, server, error) {
	conn, err := openControl(ctx, d.m.cfg.Upstream, d.name)
	if err != nil {
		return nil, server{}, err
	}
	_, err = conn.Exec(ctx, prepareDraw)
	var found server
	if err == nil {
		found, err = identify(ctx, conn)
	}
	if err != nil {
		closeControl(conn)
		return nil, server{}, err
	}
	return conn, found, nil
}
