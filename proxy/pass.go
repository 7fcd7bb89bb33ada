package proxy

import (
	"errors"
	"io"
	"time"

	"github.com/nextvald/nextvald/proxy/wire"
)

// pass relays a replication session, whose bytes are not looked at. Of what the upstream says in a login the key for cancel
// requests is noted.
func (x *session) pass() error {
	done := make(chan error, 1)
	go func() {
		err := x.passLogin()
		if err == nil {
			_, err = io.Copy(x.client, x.from.Rest())
		}
		x.wake() // the client has nobody to talk to
		done <- err
	}()
	_, err := io.Copy(x.upstream, x.in.Rest())
	if c, ok := x.upstream.(interface{ CloseWrite() error }); ok && err == nil {
		_ = c.CloseWrite()
	} else {
		_ = x.upstream.Close()
	}
	return errors.Join(err, <-done)
}

// passLogin relays the upstream's messages of a login.
func (x *session) passLogin() error {
	x.from.SetBeforeRead(x.out.Flush)
	for loggedIn := false; !loggedIn; {
		typ, body, err := x.from.Next()
		if err != nil {
			return errors.Join(err, x.out.Flush())
		}
		switch typ {
		case wire.TypeAuthentication:
			if err := x.relayAuthentication(body); err != nil {
				return err
			}
			continue
		case wire.TypeBackendKeyData:
			frame, err := x.from.Peek(body, wire.HeaderLen+body)
			if err != nil {
				return err
			}
			x.srv.remember(x, string(frame[wire.HeaderLen:]))
		case wire.TypeReadyForQuery:
			loggedIn = true
		}
		if err := x.from.Forward(x.out, body); err != nil {
			return err
		}
	}
	if err := x.client.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	if x.srv.draining.Load() {
		x.wake()
	}
	return x.out.Flush()
}
