package proxy

import (
	"context"
	"fmt"

	"github.com/nextvald/nextvald/proxy/answer"
	"github.com/nextvald/nextvald/proxy/wire"
)

// Peers answers the functions of the schema nextvald, by which other processes lease from this one.
type Peers interface {
	// Call returns the one row of a function, by its columns: int64, string, or nil for NULL. The arguments are int64,
	// string, or nil too.
	Call(ctx context.Context, database, function string, arguments []any) (row map[string]any, err error)
}

// errNoFunction is PostgreSQL's for a function that does not exist, by its signature.
func (x *session) errNoFunction(signature string, at int) *wire.Error {
	return &wire.Error{
		Code: "42883", Message: fmt.Sprintf("function %s does not exist", signature),
		Hint:     "No function matches the given name and argument types. You might need to add explicit type casts.",
		Position: x.position(at),
	}
}

// errPeerShape is the error for a call where it cannot be answered.
func errPeerShape() *wire.Error {
	return notSupported("Send the statement by itself.", "a function of schema nextvald together with other statements is not supported")
}

// callPeer carries out the call of a statement that selects from a function of the schema.
func (x *session) callPeer(u *use) (err error) {
	p := u.statement.Peer
	if role := x.srv.cfg.PeerRole; role == "" || x.user != role {
		return &wire.Error{
			Code: "42501", Message: fmt.Sprintf("permission denied for function %s", p.Function),
			Hint: "Only the user that this nextvald's setting peer_role names may call it.",
		}
	}
	arguments := make([]any, len(p.Arguments))
	for i := range p.Arguments {
		a := &p.Arguments[i]
		r, err := answer.Evaluate(a, u.params, nil, nil)
		switch {
		case err != nil:
			return err
		case r.Null():
		case a.Type == oidInt8:
			arguments[i] = r.Int()
		default:
			arguments[i] = r.Text()
		}
	}
	ctx := x.wait()
	defer x.waited()
	u.row, err = x.srv.cfg.Peers.Call(ctx, x.database, p.Function, arguments)
	return err
}
