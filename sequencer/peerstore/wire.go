package peerstore

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/nextvald/nextvald/sequencer"
)

// The operations of nextvald.store. Their names are those of sequencer.Request.
const (
	opOpen         = "open" // does the centre keep that namespace?
	opLease        = "lease"
	opGiveBack     = "give_back"
	opGet          = "get"
	opPut          = "put"
	opDelete       = "delete"
	opRevoke       = "revoke"
	opResolve      = "resolve"
	opNames        = "names"
	opPutName      = "put_name"
	opDeleteName   = "delete_name"
	opAnnounce     = "announce"
	opMembers      = "members"
	opPutMember    = "put_member"
	opDeleteMember = "delete_member"
	opNextOID      = "next_oid"
)

// message is the argument of an operation, and its result: each uses some of the fields.
type message struct {
	Item         *sequencer.Item         `json:",omitempty"`
	Incarnation  string                  `json:",omitempty"`
	Version      int64                   `json:",omitempty"`
	Rev          int64                   `json:",omitempty"` // also: the condition of a write
	Count        int64                   `json:",omitempty"`
	Changed      string                  `json:",omitempty"`
	Lease        *sequencer.Lease        `json:",omitempty"`
	GiveBack     *sequencer.GiveBack     `json:",omitempty"`
	Name         *name                   `json:",omitempty"`
	Entry        *entry                  `json:",omitempty"`
	Entries      []entry                 `json:",omitempty"`
	Announcement *sequencer.Announcement `json:",omitempty"`
	Member       *sequencer.Member       `json:",omitempty"`
	Members      []sequencer.Member      `json:",omitempty"`
	Token        string                  `json:",omitempty"` // the condition of a member's write
	OID          uint32                  `json:",omitempty"`
	Namespace    string                  `json:",omitempty"`
	// Refusal says why an operation was not carried out, in words for people in Reason; a refusal's item is in Item.
	Refusal string `json:",omitempty"`
	Reason  string `json:",omitempty"`
}

// Refusals.
const (
	refusedConflict = "conflict"
	refusedNotFound = "not_found"
	refusedExists   = "exists"
	refusedUnknown  = "unknown" // it may have been carried out
	refusedFailed   = "failed"  // it had no effect
)

// name is a name in JSON: database/schema/name, each percent-encoded, since they may hold what JSON cannot.
type name sequencer.Name

func (n name) MarshalText() ([]byte, error) {
	return []byte(url.PathEscape(n.Database) + "/" + url.PathEscape(n.Schema) + "/" + url.PathEscape(n.Name)), nil
}

func (n *name) UnmarshalText(text []byte) error {
	parts := strings.Split(string(text), "/")
	if len(parts) != 3 {
		return fmt.Errorf("%q is not the name of a sequence", text)
	}
	for i, to := range []*string{&n.Database, &n.Schema, &n.Name} {
		part, err := url.PathUnescape(parts[i])
		if err != nil {
			return err
		}
		*to = part
	}
	return nil
}

// entry is a sequencer.Entry in JSON.
type entry struct {
	Name        name
	Incarnation string
	OID         uint32
}

func entryOf(e sequencer.Entry) entry { return entry{name(e.Name), e.Incarnation, e.OID} }

func (e entry) entry() sequencer.Entry {
	return sequencer.Entry{Name: sequencer.Name(e.Name), Incarnation: e.Incarnation, OID: e.OID}
}

// topics are the counters of the feed in JSON.
type topics struct {
	Topics [sequencer.Topics]int64
	Latest [sequencer.Topics]string
}

// encode cannot fail for what is sent here.
func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// decode refuses what this version does not know: it could be lost in a write.
func decode(text string, v any) error {
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	return d.Decode(v)
}

// refuse puts an error of a store into a result.
func refuse(err error) message {
	var conflict *sequencer.Conflict
	switch {
	case err == nil:
		return message{}
	case errors.As(err, &conflict):
		return message{Refusal: refusedConflict, Item: &conflict.Item}
	case errors.Is(err, sequencer.ErrNotFound):
		return message{Refusal: refusedNotFound}
	case errors.Is(err, sequencer.ErrExists):
		return message{Refusal: refusedExists}
	case errors.Is(err, sequencer.ErrUnknownOutcome):
		return message{Refusal: refusedUnknown, Reason: err.Error()}
	}
	return message{Refusal: refusedFailed, Reason: err.Error()}
}

// err is the error that a result holds; nil when it is none.
func (m message) err() error {
	switch m.Refusal {
	case "":
		return nil
	case refusedConflict:
		if m.Item == nil {
			return fmt.Errorf("%w: the centre's answer has no item", sequencer.ErrUnknownOutcome)
		}
		return &sequencer.Conflict{Item: *m.Item}
	case refusedNotFound:
		return sequencer.ErrNotFound
	case refusedExists:
		return sequencer.ErrExists
	case refusedFailed:
		return fmt.Errorf("the centre's store: %s", m.Reason)
	}
	return fmt.Errorf("the centre's store: %w: %s", sequencer.ErrUnknownOutcome, m.Reason)
}
