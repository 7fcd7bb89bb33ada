package boltstore

import (
	"encoding/json"
	"fmt"

	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/internal/layout"
)

// itemValue is a sequence item; the fields are the stored format's attributes.
type itemValue struct {
	Fmt     int                 `json:"fmt"`
	Rev     int64               `json:"rev"`
	Version int64               `json:"version"`
	State   sequencer.ItemState `json:"state"`
	Source  sequencer.Source    `json:"source"`
	Kind    sequencer.Kind      `json:"kind"`
	Mode    sequencer.Mode      `json:"mode"`
	Pos     sequencer.Position  `json:"pos"`
	High    *int64              `json:"high,omitempty"`
	Def     defValue            `json:"def"`
	OID     uint32              `json:"oid"`
	DBOID   uint32              `json:"db_oid,omitempty"`
	RelOID  uint32              `json:"rel_oid,omitempty"`
	Fence   *rangeValue         `json:"fence,omitempty"`
	Next    *rangeValue         `json:"next_fence,omitempty"`
	Holes   []rangeValue        `json:"holes,omitempty"`
	Created string              `json:"created"`
	Changed string              `json:"changed"`
}

type defValue struct {
	Type      string            `json:"type"`
	Start     int64             `json:"start"`
	Increment int64             `json:"increment"`
	Min       int64             `json:"min"`
	Max       int64             `json:"max"`
	Cache     int64             `json:"cache,omitempty"`
	Cycle     bool              `json:"cycle,omitempty"`
	OwnedBy   string            `json:"owned_by,omitempty"`
	Owner     string            `json:"owner,omitempty"`
	Fresh     *int64            `json:"fresh,omitempty"`
	Policy    map[string]string `json:"policy,omitempty"`
}

type rangeValue struct {
	First int64 `json:"first"`
	Last  int64 `json:"last"`
}

func encodeItem(it sequencer.Item) ([]byte, error) {
	d := it.Definition
	v := itemValue{
		Fmt: layout.Format, Rev: it.Rev, Version: it.Version, State: it.State, Source: it.Source, Kind: it.Kind,
		Mode: it.Mode, Pos: it.Pos, High: it.High,
		Def: defValue{
			Type: d.Type.String(), Start: d.Start, Increment: d.Increment, Min: d.Min, Max: d.Max,
			Cache: d.Cache, Cycle: d.Cycle, OwnedBy: d.OwnedBy, Owner: d.Owner, Fresh: it.Fresh,
		},
		OID: it.OID, DBOID: it.DBOID, RelOID: it.RelOID, Fence: (*rangeValue)(it.Fence), Next: (*rangeValue)(it.NextFence),
		Created: it.Created, Changed: it.Changed,
	}
	for _, h := range it.Holes {
		v.Holes = append(v.Holes, rangeValue(h))
	}
	for _, setting := range d.Policy.Settings() {
		if v.Def.Policy == nil {
			v.Def.Policy = map[string]string{}
		}
		v.Def.Policy[setting.Key] = setting.Value
	}
	return json.Marshal(v)
}

func decodeItem(incarnation string, value []byte) (sequencer.Item, error) {
	var v itemValue
	err := json.Unmarshal(value, &v)
	if err == nil && v.Fmt != layout.Format {
		err = fmt.Errorf("format %d is not known to this version", v.Fmt)
	}
	var it sequencer.Item
	if err == nil {
		it, err = v.item(incarnation)
	}
	if err != nil {
		return sequencer.Item{}, fmt.Errorf("boltstore: item of incarnation %s: %w", incarnation, err)
	}
	return it, nil
}

func (v itemValue) item(incarnation string) (sequencer.Item, error) {
	t, err := sequencer.ParseDataType(v.Def.Type)
	if err != nil {
		return sequencer.Item{}, err
	}
	it := sequencer.Item{
		Incarnation: incarnation, Rev: v.Rev, Version: v.Version, State: v.State, Source: v.Source, Kind: v.Kind,
		Mode: v.Mode, Pos: v.Pos, High: v.High, Fresh: v.Def.Fresh,
		Definition: sequencer.Definition{
			Type: t, Start: v.Def.Start, Increment: v.Def.Increment, Min: v.Def.Min, Max: v.Def.Max,
			Cache: v.Def.Cache, Cycle: v.Def.Cycle, OwnedBy: v.Def.OwnedBy, Owner: v.Def.Owner,
		},
		OID: v.OID, DBOID: v.DBOID, RelOID: v.RelOID, Fence: (*sequencer.Range)(v.Fence), NextFence: (*sequencer.Range)(v.Next),
		Created: v.Created, Changed: v.Changed,
	}
	for _, h := range v.Holes {
		it.Holes = append(it.Holes, sequencer.Range(h))
	}
	for key, value := range v.Def.Policy {
		if err := it.Definition.Policy.Set(sequencer.Setting{Key: key, Value: value}); err != nil {
			return sequencer.Item{}, err
		}
	}
	return it, it.Check()
}

// entryValue is a name item.
type entryValue struct {
	Incarnation string `json:"incarnation"`
	OID         uint32 `json:"oid"`
}

func encodeEntry(e sequencer.Entry) ([]byte, error) {
	return json.Marshal(entryValue{Incarnation: e.Incarnation, OID: e.OID})
}

func decodeEntry(name sequencer.Name, value []byte) (sequencer.Entry, error) {
	var v entryValue
	if err := json.Unmarshal(value, &v); err != nil {
		return sequencer.Entry{}, fmt.Errorf("boltstore: name %v: %w", name, err)
	}
	return sequencer.Entry{Name: name, Incarnation: v.Incarnation, OID: v.OID}, nil
}

// memberValue is a member item.
type memberValue struct {
	Token   string `json:"token"`
	Seen    int64  `json:"seen"`
	Expires int64  `json:"expires"`
}

func encodeMember(m sequencer.Member) ([]byte, error) {
	return json.Marshal(memberValue{Token: m.Token, Seen: m.Seen, Expires: m.Expires})
}

func decodeMember(id string, value []byte) (sequencer.Member, error) {
	var v memberValue
	if err := json.Unmarshal(value, &v); err != nil {
		return sequencer.Member{}, fmt.Errorf("boltstore: member %s: %w", id, err)
	}
	return sequencer.Member{ID: id, Token: v.Token, Seen: v.Seen, Expires: v.Expires}, nil
}

// feedValue is the feed item.
type feedValue struct {
	Rev    int64             `json:"rev"`
	Names  int64             `json:"names"`
	OID    int64             `json:"oid"` // the last one given
	Topics map[string]int64  `json:"topics"`
	Latest map[string]string `json:"latest"`
}

func (f feedValue) feed() sequencer.Feed {
	feed := sequencer.Feed{Rev: f.Rev, Names: f.Names}
	for i := range feed.Topics {
		feed.Topics[i] = f.Topics[layout.Topic(i)]
		feed.Latest[i] = f.Latest[layout.Latest(i)]
	}
	return feed
}

func encodeFeed(f feedValue) ([]byte, error) { return json.Marshal(f) }

// decodeFeed reads the feed; there is none in a new namespace.
func decodeFeed(value []byte) (feedValue, error) {
	f := feedValue{OID: sequencer.MaxOID + 1}
	if value != nil {
		if err := json.Unmarshal(value, &f); err != nil {
			return feedValue{}, fmt.Errorf("boltstore: feed: %w", err)
		}
	}
	if f.Topics == nil {
		f.Topics = map[string]int64{}
	}
	if f.Latest == nil {
		f.Latest = map[string]string{}
	}
	return f, nil
}
