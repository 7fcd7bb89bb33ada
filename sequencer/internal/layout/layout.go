// Package layout names the items and attributes of the stored format, which the durable stores share. The format itself
// is drawn in the sequencer's documentation.
package layout

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/nextvald/nextvald/sequencer"
)

// Format is the version of the format, in the attribute fmt of every sequence item.
const Format = 1

// Only is the second half of the key of items that have a partition to themselves.
const Only = "-"

// Item is the partition of a sequence item.
func Item(namespace, incarnation string) string {
	return "s/" + escape(namespace) + "/" + escape(incarnation)
}

// Names is the partition that holds the names of a database.
func Names(namespace, database string) string {
	return "n/" + escape(namespace) + "/" + escape(database)
}

// Feed is the partition of the feed.
func Feed(namespace string) string { return "f/" + escape(namespace) }

// Name is the key of a name in the partition of its database.
func Name(n sequencer.Name) string { return escape(n.Schema) + "/" + escape(n.Name) }

// ParseName reads what Name wrote.
func ParseName(database, key string) (sequencer.Name, error) {
	schema, name, ok := strings.Cut(key, "/")
	if ok {
		s, err1 := url.PathUnescape(schema)
		n, err2 := url.PathUnescape(name)
		if err1 == nil && err2 == nil {
			return sequencer.Name{Database: database, Schema: s, Name: n}, nil
		}
	}
	return sequencer.Name{}, fmt.Errorf("key %q is not that of a name", key)
}

// Members is the partition that holds the members.
func Members(namespace string) string { return "m/" + escape(namespace) }

// Member is the key of a member in the partition of its namespace.
func Member(id string) string { return escape(id) }

// ParseMember reads what Member wrote.
func ParseMember(key string) (id string, err error) {
	if id, err = url.PathUnescape(key); err != nil {
		return "", fmt.Errorf("key %q is not that of a member", key)
	}
	return id, nil
}

// Topic is the attribute of one of the feed's counters.
func Topic(i int) string { return fmt.Sprintf("t%02d", i) }

// Latest is the attribute of the incarnation that was counted last by a counter.
func Latest(i int) string { return fmt.Sprintf("i%02d", i) }

// escape encodes what could be taken for a separator, and every byte that is not ASCII.
func escape(part string) string { return url.PathEscape(part) }
