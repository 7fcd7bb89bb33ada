package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/nextvald/nextvald/proxy/auth"
)

// users is where the users of auth scram are looked up: in the file first, then by the query.
type users struct {
	file  *auth.File // nil: none
	query *userQuery // nil: none
}

var _ auth.Users = (*users)(nil)

// openUsers reads the file. The query's connection is made when somebody logs in.
func (s *settings) openUsers() (*users, error) {
	u := &users{}
	if s.users != "" {
		var err error
		if u.file, err = auth.LoadFile(s.users); err != nil {
			return nil, s.fault("users", err)
		}
	}
	if s.authQuery != "" {
		u.query = newUserQuery(s.authQuery, s.upstream)
	}
	return u, nil
}

// all is what a proxy is given: nil when the upstream knows the users.
func (u *users) all() auth.Users {
	if u.file == nil && u.query == nil {
		return nil
	}
	return u
}

// Secret implements auth.Users.
func (u *users) Secret(ctx context.Context, user string) (*auth.Secret, error) {
	if u.file != nil {
		if secret, err := u.file.Secret(ctx, user); secret != nil || err != nil {
			return secret, err
		}
	}
	if u.query != nil {
		return u.query.Secret(ctx, user)
	}
	return nil, nil
}

// reload reads the file again.
func (u *users) reload() error {
	if u.file == nil {
		return nil
	}
	return u.file.Reload()
}

func (u *users) close() {
	if u.query != nil {
		u.query.close()
	}
}

// userQuery asks the upstream for secrets, on one control connection, which is made again when it broke.
type userQuery struct {
	sql      string
	upstream *upstream
	slot     chan *pgconn.PgConn // holds the connection while nobody asks; nil: not made yet
}

var _ auth.Users = (*userQuery)(nil)

func newUserQuery(sql string, upstream *upstream) *userQuery {
	q := &userQuery{sql: sql, upstream: upstream, slot: make(chan *pgconn.PgConn, 1)}
	q.slot <- nil
	return q
}

// Secret implements auth.Users.
func (q *userQuery) Secret(ctx context.Context, user string) (*auth.Secret, error) {
	ctx, cancel := context.WithTimeout(ctx, upstreamTimeout)
	defer cancel()
	var conn *pgconn.PgConn
	select {
	case conn = <-q.slot:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { q.slot <- conn }()

	fresh := conn == nil || conn.IsClosed()
	for {
		if fresh {
			var err error
			if conn, err = q.upstream.connect(ctx); err != nil {
				return nil, err
			}
		}
		result := conn.ExecParams(ctx, q.sql, [][]byte{[]byte(user)}, nil, nil, nil).Read()
		var refused *pgconn.PgError
		switch {
		case result.Err == nil:
			return secretOf(user, result)
		case errors.As(result.Err, &refused) && !conn.IsClosed():
			return nil, refused
		case fresh:
			return nil, connectCause(result.Err)
		}
		fresh = true // the connection may have ended long ago, unseen
	}
}

// secretOf reads the row of a user.
func secretOf(user string, result *pgconn.Result) (*auth.Secret, error) {
	if len(result.Rows) == 0 {
		return nil, nil
	}
	row := result.Rows[0]
	switch {
	case len(result.Rows) > 1 || len(row) < 2:
		return nil, errors.New("auth_query does not return one row of name and secret")
	case string(row[0]) != user:
		return nil, fmt.Errorf("auth_query returns another user than %q", user)
	}
	return auth.ParseSecret(user, string(row[1]))
}

func (q *userQuery) close() {
	conn := <-q.slot
	if conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), upstreamTimeout)
	defer cancel()
	_ = conn.Close(ctx)
}
