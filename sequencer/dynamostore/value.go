package dynamostore

import (
	"fmt"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/internal/layout"
)

// encodeItem is a sequence item without its key.
func encodeItem(it sequencer.Item) attributes {
	d := it.Definition
	def := attributes{
		"type":      text(d.Type.String()),
		"start":     number(d.Start),
		"increment": number(d.Increment),
		"min":       number(d.Min),
		"max":       number(d.Max),
		"cache":     number(d.Cache),
		"cycle":     &types.AttributeValueMemberBOOL{Value: d.Cycle},
		"owned_by":  text(d.OwnedBy),
		"owner":     text(d.Owner),
	}
	if it.Fresh != nil {
		def["fresh"] = number(*it.Fresh)
	}
	if settings := d.Policy.Settings(); len(settings) > 0 {
		policy := attributes{}
		for _, setting := range settings {
			policy[setting.Key] = text(setting.Value)
		}
		def["policy"] = &types.AttributeValueMemberM{Value: policy}
	}
	item := attributes{
		"fmt":     number(layout.Format),
		"rev":     number(it.Rev),
		"version": number(it.Version),
		"state":   text(string(it.State)),
		"source":  text(string(it.Source)),
		"kind":    text(string(it.Kind)),
		"mode":    text(string(it.Mode)),
		"pos":     position(it.Pos),
		"def":     &types.AttributeValueMemberM{Value: def},
		"oid":     number(int64(it.OID)),
		"created": text(it.Created),
		"changed": text(it.Changed),
	}
	if it.High != nil {
		item["high"] = number(*it.High)
	}
	if it.DBOID != 0 {
		item["db_oid"] = number(int64(it.DBOID))
	}
	if it.RelOID != 0 {
		item["rel_oid"] = number(int64(it.RelOID))
	}
	if it.Fence != nil {
		item["fence"] = encodeRange(*it.Fence)
	}
	if it.NextFence != nil {
		item["next_fence"] = encodeRange(*it.NextFence)
	}
	if len(it.Holes) > 0 {
		var holes []types.AttributeValue
		for _, h := range it.Holes {
			holes = append(holes, encodeRange(h))
		}
		item["holes"] = &types.AttributeValueMemberL{Value: holes}
	}
	return item
}

func encodeRange(r sequencer.Range) types.AttributeValue {
	return &types.AttributeValueMemberM{Value: attributes{"first": number(r.First), "last": number(r.Last)}}
}

// decodeItem reads what encodeItem wrote.
func decodeItem(incarnation string, got attributes) (sequencer.Item, error) {
	d := decoder{item: got}
	if format := d.int("fmt"); d.err == nil && format != layout.Format {
		d.err = fmt.Errorf("format %d is not known to this version", format)
	}
	def := decoder{item: d.dict("def"), err: d.err}
	it := sequencer.Item{
		Incarnation: incarnation,
		Rev:         d.int("rev"),
		Version:     d.int("version"),
		State:       sequencer.ItemState(d.text("state")),
		Source:      sequencer.Source(d.text("source")),
		Kind:        sequencer.Kind(d.text("kind")),
		Mode:        sequencer.Mode(d.text("mode")),
		Pos:         d.position("pos"),
		High:        d.optional("high"),
		Fresh:       def.optional("fresh"),
		Definition: sequencer.Definition{
			Start: def.int("start"), Increment: def.int("increment"), Min: def.int("min"), Max: def.int("max"),
			Cache: def.int("cache"), Cycle: def.bool("cycle"), OwnedBy: def.text("owned_by"), Owner: def.text("owner"),
		},
		OID:     d.oid("oid"),
		Created: d.text("created"),
		Changed: d.text("changed"),
	}
	if got["db_oid"] != nil {
		it.DBOID = d.oid("db_oid")
	}
	if got["rel_oid"] != nil {
		it.RelOID = d.oid("rel_oid")
	}
	if got["fence"] != nil {
		fence := d.rangeOf(got["fence"])
		it.Fence = &fence
	}
	if got["next_fence"] != nil {
		next := d.rangeOf(got["next_fence"])
		it.NextFence = &next
	}
	if holes, ok := got["holes"].(*types.AttributeValueMemberL); ok {
		for _, h := range holes.Value {
			it.Holes = append(it.Holes, d.rangeOf(h))
		}
	}
	if def.item["policy"] != nil {
		policy := decoder{item: def.dict("policy"), err: def.err}
		for key := range policy.item {
			if value := policy.text(key); policy.err == nil {
				policy.err = it.Definition.Policy.Set(sequencer.Setting{Key: key, Value: value})
			}
		}
		def.err = policy.err
	}
	err := d.err
	if err == nil {
		err = def.err
	}
	if err == nil {
		it.Definition.Type, err = sequencer.ParseDataType(def.text("type"))
	}
	if err == nil {
		err = it.Check()
	}
	if err != nil {
		return sequencer.Item{}, fmt.Errorf("dynamostore: item of incarnation %s: %w", incarnation, err)
	}
	return it, nil
}

// decodeEntry reads a name item.
func decodeEntry(name sequencer.Name, got attributes) (sequencer.Entry, error) {
	d := decoder{item: got}
	e := sequencer.Entry{Name: name, Incarnation: d.text("incarnation"), OID: d.oid("oid")}
	if d.err != nil {
		return sequencer.Entry{}, fmt.Errorf("dynamostore: name %v: %w", name, d.err)
	}
	return e, nil
}

// decodeMember reads a member item.
func decodeMember(id string, got attributes) (sequencer.Member, error) {
	d := decoder{item: got}
	m := sequencer.Member{ID: id, Token: d.text("token"), Seen: d.int("seen"), Expires: d.int("expires")}
	if d.err != nil {
		return sequencer.Member{}, fmt.Errorf("dynamostore: member %s: %w", id, d.err)
	}
	return m, nil
}

// decodeFeed reads the feed item. A counter that nothing was added to is absent.
func decodeFeed(got attributes) (sequencer.Feed, error) {
	d := decoder{item: got}
	feed := sequencer.Feed{Rev: d.int("rev")}
	if got["names"] != nil {
		feed.Names = d.int("names")
	}
	for i := range feed.Topics {
		if name := layout.Topic(i); got[name] != nil {
			feed.Topics[i] = d.int(name)
			feed.Latest[i] = d.text(layout.Latest(i))
		}
	}
	if d.err != nil {
		return sequencer.Feed{}, fmt.Errorf("dynamostore: feed: %w", d.err)
	}
	return feed, nil
}

// decoder reads attributes, and remembers the first one that is not what it should be.
type decoder struct {
	item attributes
	err  error
}

// attribute gets an attribute of type T.
func attribute[T types.AttributeValue](d *decoder, name string) (v T, ok bool) {
	v, ok = d.item[name].(T)
	if !ok && d.err == nil {
		d.err = fmt.Errorf("attribute %s is missing or of another type", name)
	}
	return v, ok
}

func (d *decoder) text(name string) string {
	if v, ok := attribute[*types.AttributeValueMemberS](d, name); ok {
		return v.Value
	}
	return ""
}

func (d *decoder) bool(name string) bool {
	v, ok := attribute[*types.AttributeValueMemberBOOL](d, name)
	return ok && v.Value
}

func (d *decoder) dict(name string) attributes {
	if v, ok := attribute[*types.AttributeValueMemberM](d, name); ok {
		return v.Value
	}
	return nil
}

func (d *decoder) int(name string) int64 {
	v, ok := attribute[*types.AttributeValueMemberN](d, name)
	if !ok {
		return 0
	}
	n, err := strconv.ParseInt(v.Value, 10, 64)
	d.note(name, err)
	return n
}

func (d *decoder) optional(name string) *int64 {
	if d.item[name] == nil {
		return nil
	}
	n := d.int(name)
	return &n
}

func (d *decoder) oid(name string) uint32 {
	v, ok := attribute[*types.AttributeValueMemberN](d, name)
	if !ok {
		return 0
	}
	n, err := strconv.ParseUint(v.Value, 10, 32)
	d.note(name, err)
	return uint32(n)
}

func (d *decoder) position(name string) sequencer.Position {
	v, ok := attribute[*types.AttributeValueMemberN](d, name)
	if !ok {
		return sequencer.Position{}
	}
	p, err := sequencer.ParsePosition(v.Value)
	d.note(name, err)
	return p
}

// rangeOf reads a range.
func (d *decoder) rangeOf(v types.AttributeValue) sequencer.Range {
	m, _ := v.(*types.AttributeValueMemberM)
	if m == nil {
		d.note("fence, next_fence or holes", fmt.Errorf("not a map"))
		return sequencer.Range{}
	}
	in := decoder{item: m.Value}
	r := sequencer.Range{First: in.int("first"), Last: in.int("last")}
	d.note("fence, next_fence or holes", in.err)
	return r
}

func (d *decoder) note(name string, err error) {
	if err != nil && d.err == nil {
		d.err = fmt.Errorf("attribute %s: %w", name, err)
	}
}
