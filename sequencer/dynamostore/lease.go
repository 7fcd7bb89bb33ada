package dynamostore

import (
	"context"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/nextvald/nextvald/sequencer"
)

// leasable is the condition under which an item may be leased from, or given back to, by those who know its version.
const leasable = "fmt = :fmt AND #version = :version AND #state = :active AND #source = :store"

var leasableNames = map[string]string{"#version": "version", "#state": "state", "#source": "source"}

func leasableValues(version int64, more attributes) attributes {
	more[":fmt"] = number(1)
	more[":version"] = number(version)
	more[":active"] = text(string(sequencer.Active))
	more[":store"] = text(string(sequencer.FromStore))
	return more
}

// Lease implements sequencer.Leaser: one UpdateItem, or a further one when the item as the caller knew it led to a request
// that did not fit. A refusal carries the item, so no request is spent on reading.
//
// DynamoDB can add to pos, but it cannot take a maximum for high. There are two forms, each right whenever its condition
// holds: where pos is past high, high becomes the last value of the block; where the whole block lies within what was
// leased before (after a give-back or a setval), high stays. The block lies within a stretch that leases do not skip, as far
// as is known.
func (s *Store) Lease(ctx context.Context, item sequencer.Item, count int64) (sequencer.Lease, error) {
	known, want := item, item.Version
	if _, err := known.Grant(want, count); err != nil && len(known.Skips()) > 0 {
		// No stretch is known that a block could lie in: which ranges leases skip must be known of the item as it is.
		var err error
		if known, err = s.Get(ctx, item.Incarnation); err != nil {
			return sequencer.Lease{}, err
		}
		if _, err := known.Grant(want, count); err != nil {
			return sequencer.Lease{}, err
		}
	}
	for range leaseAttempts {
		form := plan(known, count)
		out, err := s.client.UpdateItem(ctx, form.request(s.table, s.itemKey(item.Incarnation), want))
		if err == nil {
			return form.lease(out.Attributes)
		}
		var conflict *sequencer.Conflict
		if err = s.written(item.Incarnation, err); !errors.As(err, &conflict) {
			return sequencer.Lease{}, err
		}
		known = conflict.Item
		if _, err := known.Grant(want, count); err != nil {
			return sequencer.Lease{}, err
		}
	}
	return sequencer.Lease{}, &sequencer.Conflict{Item: known}
}

// form is a request for a block.
type form struct {
	definition sequencer.Definition
	count      int64
	// least and greatest are the bounds of where the block may lie.
	least, greatest int64
	// within is high, where the block lies within what was leased before; nil where it begins past it.
	within *int64
}

// plan chooses the form that fits an item.
func plan(known sequencer.Item, count int64) form {
	d := known.Definition
	f := form{definition: d, count: 1, least: d.Min, greatest: d.Max}
	if least, greatest, ok := known.Stretch(known.Pos); ok {
		f.least, f.greatest = least, greatest
	}
	// Without room the request is made all the same: the item may have changed, and if not it is refused.
	if lease, err := known.Grant(known.Version, count); err == nil {
		f.count = lease.Count
	}
	if known.High != nil {
		// How many values lie between pos and high, high included.
		upToHigh := d
		upToHigh.Max = *known.High
		if d.Increment < 0 {
			upToHigh.Min, upToHigh.Max = *known.High, d.Max
		}
		known.Definition = upToHigh
		if lease, err := known.Grant(known.Version, f.count); err == nil {
			f.count, f.within = lease.Count, known.High
		}
	}
	return f
}

// request is the UpdateItem of a form.
func (f form) request(table *string, key attributes, version int64) *dynamodb.UpdateItemInput {
	d := f.definition
	// The first value of the block may be no further than this for the last one to be within the stretch.
	inc := sequencer.At(d.Increment)
	ahead := sequencer.Product(f.count, d.Increment)
	reach := ahead.Minus(inc)
	from, to := sequencer.At(f.least), sequencer.At(f.greatest).Minus(reach)
	if d.Increment < 0 {
		from, to = sequencer.At(f.least).Minus(reach), sequencer.At(f.greatest)
	}
	values := attributes{":ahead": position(ahead), ":one": number(1)}
	update := "SET pos = pos + :ahead, rev = rev + :one"
	condition := leasable + " AND pos BETWEEN :from AND :to"
	past := "high < pos"
	if d.Increment < 0 {
		past = "high > pos"
	}
	if f.within == nil {
		update += ", high = pos + :reach"
		values[":reach"] = position(reach)
		condition += " AND (attribute_not_exists(high) OR " + past + ")"
	} else {
		condition += " AND high = :high"
		values[":high"] = number(*f.within)
		edge := sequencer.At(*f.within).Minus(reach)
		if d.Increment > 0 && edge.Compare(to) < 0 {
			to = edge
		}
		if d.Increment < 0 && edge.Compare(from) > 0 {
			from = edge
		}
	}
	values[":from"], values[":to"] = position(from), position(to)
	return &dynamodb.UpdateItemInput{
		TableName:                           table,
		Key:                                 key,
		UpdateExpression:                    &update,
		ConditionExpression:                 aws.String(condition),
		ExpressionAttributeNames:            leasableNames,
		ExpressionAttributeValues:           leasableValues(version, values),
		ReturnValues:                        types.ReturnValueUpdatedNew,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}
}

// lease reads what the request changed.
func (f form) lease(changed attributes) (sequencer.Lease, error) {
	d := decoder{item: changed}
	l := sequencer.Lease{Count: f.count, Rev: d.int("rev"), Pos: d.position("pos"), High: f.within}
	if f.within == nil {
		high := d.int("high")
		l.High = &high
	}
	first, ok := l.Pos.Minus(sequencer.Product(f.count, f.definition.Increment)).Value()
	if d.err == nil && !ok {
		d.err = fmt.Errorf("pos %v after a lease of %d", l.Pos, f.count)
	}
	if d.err != nil {
		// It was made, but of what is not known.
		return sequencer.Lease{}, fmt.Errorf("%w: dynamostore: %w", sequencer.ErrUnknownOutcome, d.err)
	}
	l.First = first
	return l, nil
}
