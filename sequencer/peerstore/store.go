package peerstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nextvald/nextvald/sequencer"
)

const (
	// connectTimeout bounds a connection to the centre with its login.
	connectTimeout = 5 * time.Second
	// maxConns bounds the connections for one database. A request waits for a free one.
	maxConns = 4
	// idleTime is after how long a connection that is not used is closed.
	idleTime = 5 * time.Minute
	// ownDatabase is connected to for what concerns no database, when the URL names none. Every PostgreSQL has it.
	ownDatabase = "postgres"
)

// Config says where the centre is.
type Config struct {
	// URL is that of the centre, as of any PostgreSQL: user, password, host, port, and the database that is connected to for
	// what concerns none.
	URL string
	// Namespace must be the centre's.
	Namespace string
	// Dial makes the connections. Default: net.Dialer's DialContext.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Store is a sequencer.Store that leases from another nextvald.
type Store struct {
	conn *pgxpool.Config

	mu     sync.Mutex
	closed bool
	pools  map[string]*pgxpool.Pool  // by database
	names  map[string]sequencer.Name // by incarnation
	member string                    // the id by which the process is a member, empty while it is none
	feed   sequencer.Feed            // as it was told last

	// told is the greatest rev of the feed that anybody here was told.
	told atomic.Int64
}

var _ sequencer.Store = (*Store)(nil)

// Parse checks a Config's URL. It does not connect. Its error may hold parts of the URL.
func Parse(url string) (*pgxpool.Config, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	conn := cfg.ConnConfig
	if conn.Database == "" {
		conn.Database = ownDatabase
	}
	if conn.RuntimeParams["application_name"] == "" {
		conn.RuntimeParams["application_name"] = "nextvald"
	}
	conn.ConnectTimeout = connectTimeout
	// One round trip, and no statement that a connection has to know.
	conn.DefaultQueryExecMode = pgx.QueryExecModeExec
	conn.StatementCacheCapacity, conn.DescriptionCacheCapacity = 0, 0
	cfg.MaxConns, cfg.MaxConnIdleTime = maxConns, idleTime
	return cfg, nil
}

// Open connects to the centre, and asks whether it keeps the namespace. An error holds no password.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	conn, err := Parse(cfg.URL)
	if err != nil {
		return nil, fmt.Errorf("peerstore: the URL is malformed")
	}
	if cfg.Dial != nil {
		conn.ConnConfig.DialFunc = cfg.Dial
	}
	s := &Store{conn: conn, pools: map[string]*pgxpool.Pool{}, names: map[string]sequencer.Name{}}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if _, err := s.read(ctx, opOpen, message{Namespace: cfg.Namespace}); err != nil {
		_ = s.Close() // there is nothing to lose
		return nil, fmt.Errorf("peerstore: the nextvald at %s:%d: %w", conn.ConnConfig.Host, conn.ConnConfig.Port, err)
	}
	return s, nil
}

// pool returns the connections for a database; "" stands for any.
func (s *Store) pool(database string) (*pgxpool.Pool, error) {
	if database == "" {
		database = s.conn.ConnConfig.Database
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.New("the store is closed")
	}
	if p := s.pools[database]; p != nil {
		return p, nil
	}
	cfg := s.conn.Copy()
	cfg.ConnConfig.Database = database
	p, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err == nil {
		s.pools[database] = p
	}
	return p, err
}

// query runs a statement that returns one row. begun says that the centre may have seen it.
func (s *Store) query(ctx context.Context, database, sql string, arguments, row []any) (begun bool, err error) {
	p, err := s.pool(database)
	if err != nil {
		return false, err
	}
	c, err := p.Acquire(ctx)
	if err != nil {
		return false, fmt.Errorf("cannot connect to the centre: %w", err)
	}
	defer c.Release()
	err = c.QueryRow(ctx, sql, arguments...).Scan(row...)
	return err != nil && !pgconn.SafeToRetry(err), err
}

// outcome is the error of a write whose statement ended so.
func outcome(begun bool, err error) error {
	var refused *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case !begun:
		return err
	case errors.As(err, &refused) && refused.Severity == "ERROR" && refused.Code != codeUnknownOutcome:
		return err // nothing was done
	}
	return fmt.Errorf("%w: the centre's answer is lost: %w", sequencer.ErrUnknownOutcome, err)
}

// run carries out an operation at the store behind the centre.
func (s *Store) run(ctx context.Context, op string, in message) (out message, begun bool, err error) {
	var text string
	begun, err = s.query(ctx, "", "SELECT store FROM nextvald.store($1, $2)", []any{op, encode(in)}, []any{&text})
	if err == nil {
		begun, err = true, decode(text, &out)
	}
	return out, begun, err
}

// read carries out an operation that changes nothing.
func (s *Store) read(ctx context.Context, op string, in message) (message, error) {
	out, _, err := s.run(ctx, op, in)
	if err == nil {
		err = out.err()
	}
	return out, err
}

// write carries out any other.
func (s *Store) write(ctx context.Context, op string, in message) (message, error) {
	out, begun, err := s.run(ctx, op, in)
	if err != nil {
		return out, outcome(begun, err)
	}
	return out, out.err()
}

// item reads an item of an answer, which may be of a version that does things otherwise.
func (m message) item() (sequencer.Item, error) {
	it := orZero(m.Item)
	if err := it.Check(); err != nil {
		return sequencer.Item{}, fmt.Errorf("peerstore: item of incarnation %s: %w", it.Incarnation, err)
	}
	return it, nil
}

// learn remembers what an incarnation is called.
func (s *Store) learn(entries ...sequencer.Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range entries {
		s.names[e.Incarnation] = e.Name
	}
}

// forget is for an incarnation that has lost that name, or that is gone.
func (s *Store) forget(incarnation string, n *sequencer.Name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n == nil || s.names[incarnation] == *n {
		delete(s.names, incarnation)
	}
}

// known returns an incarnation's name, and the id of this process.
func (s *Store) known(incarnation string) (n sequencer.Name, member string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, ok = s.names[incarnation]
	return n, s.member, ok
}

// SQLSTATEs by which the centre says that its blocks cannot serve a lease. The store behind it decides then.
var elsewhere = []string{
	sequencer.ErrUndefined.Code, sequencer.ErrExhausted.Code, sequencer.ErrPeerBehind.Code,
}

// Lease implements sequencer.Leaser: out of the centre's blocks, or of the store behind it.
func (s *Store) Lease(ctx context.Context, known sequencer.Item, count int64) (sequencer.Lease, error) {
	if n, member, ok := s.known(known.Incarnation); ok && sayable(n) {
		lease, err := s.leaseHeld(ctx, n, member, known, count)
		if err == nil || !refusedBy(err, elsewhere...) {
			return lease, err
		}
	}
	out, err := s.write(ctx, opLease, message{Item: &known, Count: count})
	if err != nil {
		return sequencer.Lease{}, err
	}
	return orZero(out.Lease), nil
}

// leaseHeld leases out of the centre's blocks. The lease's Rev is 0: it says nothing of the item.
func (s *Store) leaseHeld(ctx context.Context, n sequencer.Name, member string, known sequencer.Item, count int64) (sequencer.Lease, error) {
	var got struct {
		first, count, increment, version, rev int64
		incarnation                           string
	}
	begun, err := s.query(ctx, n.Database,
		"SELECT first, count, increment, incarnation, version, rev FROM nextvald.lease($1, $2, $3::bigint, $4, $5, $6, $7)",
		[]any{n.Schema, n.Name, count, member, known.Incarnation, known.Version, s.told.Load()},
		[]any{&got.first, &got.count, &got.increment, &got.incarnation, &got.version, &got.rev})
	if err != nil {
		return sequencer.Lease{}, outcome(begun, err)
	}
	if got.incarnation != known.Incarnation || got.version != known.Version || got.increment != known.Definition.Increment ||
		got.count < 1 || got.count > count {
		return sequencer.Lease{}, fmt.Errorf("peerstore: the centre gave a block that was not asked for: %+v", got)
	}
	return sequencer.Lease{First: got.first, Count: got.count, Held: true}, nil
}

// sayable reports whether SQL can name the sequence.
func sayable(n sequencer.Name) bool {
	for _, part := range []string{n.Database, n.Schema, n.Name} {
		if !utf8.ValidString(part) || strings.ContainsRune(part, 0) || part == "" {
			return false
		}
	}
	return true
}

// refusedBy reports whether an error is the centre's, with one of the SQLSTATEs.
func refusedBy(err error, codes ...string) bool {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		for _, code := range codes {
			if refused.Code == code {
				return true
			}
		}
	}
	return false
}

// GiveBack implements sequencer.Leaser, for what was leased at the store behind the centre.
func (s *Store) GiveBack(ctx context.Context, g sequencer.GiveBack) error {
	_, err := s.write(ctx, opGiveBack, message{GiveBack: &g})
	return err
}

// Get implements sequencer.Store.
func (s *Store) Get(ctx context.Context, incarnation string) (sequencer.Item, error) {
	out, err := s.read(ctx, opGet, message{Incarnation: incarnation})
	if err != nil {
		return sequencer.Item{}, err
	}
	return out.item()
}

// GetAll implements sequencer.Store.
func (s *Store) GetAll(ctx context.Context, incarnations []string) (map[string]sequencer.Item, error) {
	return sequencer.GetEach(ctx, incarnations, s.Get)
}

// Put implements sequencer.Store.
func (s *Store) Put(ctx context.Context, item sequencer.Item, ifRev int64) error {
	_, err := s.write(ctx, opPut, message{Item: &item, Rev: ifRev})
	return err
}

// Delete implements sequencer.Store.
func (s *Store) Delete(ctx context.Context, incarnation string, ifRev int64) error {
	_, err := s.write(ctx, opDelete, message{Incarnation: incarnation, Rev: ifRev})
	if err == nil {
		s.forget(incarnation, nil)
	}
	return err
}

// Revoke implements sequencer.Store.
func (s *Store) Revoke(ctx context.Context, incarnation string, version int64, changed string) (sequencer.Item, error) {
	out, err := s.write(ctx, opRevoke, message{Incarnation: incarnation, Version: version, Changed: changed})
	if err != nil {
		return sequencer.Item{}, err
	}
	return out.item()
}

// Resolve implements sequencer.Store.
func (s *Store) Resolve(ctx context.Context, n sequencer.Name) (sequencer.Entry, error) {
	asked := name(n)
	out, err := s.read(ctx, opResolve, message{Name: &asked})
	if err != nil {
		return sequencer.Entry{}, err
	}
	e := orZero(out.Entry).entry()
	s.learn(e)
	return e, nil
}

// Names implements sequencer.Store.
func (s *Store) Names(ctx context.Context, database string) ([]sequencer.Entry, error) {
	out, err := s.read(ctx, opNames, message{Name: &name{Database: database}})
	if err != nil {
		return nil, err
	}
	entries := make([]sequencer.Entry, len(out.Entries))
	for i, e := range out.Entries {
		entries[i] = e.entry()
	}
	s.learn(entries...)
	return entries, nil
}

// PutName implements sequencer.Store.
func (s *Store) PutName(ctx context.Context, e sequencer.Entry) error {
	put := entryOf(e)
	_, err := s.write(ctx, opPutName, message{Entry: &put})
	if err == nil {
		s.learn(e)
	}
	return err
}

// DeleteName implements sequencer.Store.
func (s *Store) DeleteName(ctx context.Context, n sequencer.Name, incarnation string) error {
	gone := name(n)
	_, err := s.write(ctx, opDeleteName, message{Name: &gone, Incarnation: incarnation})
	if err == nil {
		s.forget(incarnation, &n)
	}
	return err
}

// Feed implements sequencer.Store. The centre answers with the next reading that it makes for itself, within about its
// sequencer.Config.PollInterval.
func (s *Store) Feed(ctx context.Context) (sequencer.Feed, error) {
	s.mu.Lock()
	last := s.feed
	s.mu.Unlock()
	feed := sequencer.Feed{}
	var changed *string
	_, err := s.query(ctx, "", "SELECT rev, names, topics FROM nextvald.changes($1)",
		[]any{last.Rev}, []any{&feed.Rev, &feed.Names, &changed})
	if err != nil {
		return sequencer.Feed{}, err
	}
	switch {
	case changed != nil:
		var t topics
		if err := decode(*changed, &t); err != nil {
			return sequencer.Feed{}, fmt.Errorf("peerstore: the feed: %w", err)
		}
		feed.Topics, feed.Latest = t.Topics, t.Latest
	case feed.Rev == last.Rev:
		feed.Topics, feed.Latest = last.Topics, last.Latest
	default:
		return sequencer.Feed{}, errors.New("peerstore: the centre told no changes")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.feed = feed
	// Before the caller knows: whatever it leases from now on, it is told of this.
	s.told.Store(max(s.told.Load(), feed.Rev))
	return feed, nil
}

// Announce implements sequencer.Store.
func (s *Store) Announce(ctx context.Context, a sequencer.Announcement) (int64, error) {
	out, err := s.write(ctx, opAnnounce, message{Announcement: &a})
	return out.Rev, err
}

// Members implements sequencer.Store.
func (s *Store) Members(ctx context.Context) ([]sequencer.Member, error) {
	out, err := s.read(ctx, opMembers, message{})
	return out.Members, err
}

// PutMember implements sequencer.Store, for the process itself.
func (s *Store) PutMember(ctx context.Context, m sequencer.Member, ifToken string) (err error) {
	if ifToken != "" && ifToken == m.Token {
		var seen int64
		begun, failure := s.query(ctx, "", "SELECT confirm FROM nextvald.confirm($1, $2, $3, $4)",
			[]any{m.ID, m.Seen, m.Token, m.Expires}, []any{&seen})
		if err = outcome(begun, failure); refusedBy(err, codeNoMember) {
			err = fmt.Errorf("%w: %w", sequencer.ErrNotFound, err)
		}
	} else {
		_, err = s.write(ctx, opPutMember, message{Member: &m, Token: ifToken})
	}
	if err == nil {
		s.mu.Lock()
		s.member = m.ID
		s.mu.Unlock()
	}
	return err
}

// DeleteMember implements sequencer.Store.
func (s *Store) DeleteMember(ctx context.Context, id, token string) error {
	_, err := s.write(ctx, opDeleteMember, message{Member: &sequencer.Member{ID: id, Token: token}})
	return err
}

// NextOID implements sequencer.Store.
func (s *Store) NextOID(ctx context.Context) (uint32, error) {
	out, err := s.write(ctx, opNextOID, message{})
	return out.OID, err
}

// Close implements sequencer.Store.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	pools := s.pools
	s.pools = nil
	s.mu.Unlock()
	for _, p := range pools {
		p.Close()
	}
	return nil
}
