package dynamostore

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/sequencer"
)

func sample(t testing.TB) attributes {
	high := int64(41)
	d, err := sequencer.Define(sequencer.Options{})
	require.NoError(t, err)
	return encodeItem(sequencer.Item{
		Incarnation: "a", Rev: 3, Version: 1, State: sequencer.Active, Source: sequencer.FromStore, Kind: sequencer.Virtual,
		Mode: sequencer.Cached, Pos: sequencer.At(42), High: &high, Fresh: &high, Definition: d, OID: 4294967294,
		DBOID: 5, RelOID: 6, Fence: &sequencer.Range{First: 1, Last: 2}, Holes: []sequencer.Range{{First: 5, Last: 9}},
	})
}

// Whatever one attribute holds, the item is refused or makes sense.
func FuzzDecodeItem(f *testing.F) {
	for name := range sample(f) {
		for kind := range uint8(6) {
			f.Add(name, kind, "1")
		}
	}
	f.Add("pos", uint8(1), "99999999999999999999999999999999999999999")
	f.Add("pos", uint8(1), "1E+5")
	f.Add("fmt", uint8(1), "2")
	f.Fuzz(func(t *testing.T, name string, kind uint8, value string) {
		item := sample(t)
		m := attributes{"first": number(1), "last": text(value), value: number(1)}
		switch kind % 7 {
		case 0:
			item[name] = text(value)
		case 1:
			item[name] = &types.AttributeValueMemberN{Value: value}
		case 2:
			item[name] = &types.AttributeValueMemberM{Value: m}
		case 3:
			item[name] = &types.AttributeValueMemberL{Value: []types.AttributeValue{&types.AttributeValueMemberM{Value: m}, text(value)}}
		case 4:
			item[name] = &types.AttributeValueMemberNULL{Value: true}
		case 5:
			delete(item, name)
		case 6:
			item["def"].(*types.AttributeValueMemberM).Value[name] = &types.AttributeValueMemberN{Value: value}
		}
		it, err := decodeItem("a", item)
		if err == nil {
			require.NoError(t, it.Check())
			again, err := decodeItem("a", encodeItem(it))
			require.NoError(t, err)
			require.Equal(t, it, again)
		}
		_, _ = decodeFeed(item)
		_, _ = decodeEntry(sequencer.Name{}, item)
	})
}

func TestEveryAttributeIsChecked(t *testing.T) {
	whole := sample(t)
	_, err := decodeItem("a", whole)
	require.NoError(t, err)
	optional := map[string]bool{"high": true, "db_oid": true, "rel_oid": true, "fence": true, "holes": true}
	for name := range whole {
		if optional[name] {
			continue
		}
		item := sample(t)
		delete(item, name)
		_, err := decodeItem("a", item)
		require.ErrorContains(t, err, name)
	}
}

// Only an answer that says so, or a request that was never sent, is believed to have had no effect.
func TestOutcome(t *testing.T) {
	answer := func(status int, code string) error {
		return &smithy.OperationError{ServiceID: "DynamoDB", OperationName: "UpdateItem", Err: &smithyhttp.ResponseError{
			Response: &smithyhttp.Response{Response: &http.Response{StatusCode: status}},
			Err:      &smithy.GenericAPIError{Code: code, Message: "no"},
		}}
	}
	for name, c := range map[string]struct {
		err     error
		unknown bool
	}{
		"throttled":          {answer(400, "ThrottlingException"), false},
		"no permission":      {answer(400, "AccessDeniedException"), false},
		"internal error":     {answer(500, "InternalServerError"), true},
		"unavailable":        {answer(503, "ServiceUnavailable"), true},
		"connection refused": {fmt.Errorf("send: %w", &net.OpError{Op: "dial", Err: errors.New("connection refused")}), false},
		"connection reset":   {fmt.Errorf("send: %w", &net.OpError{Op: "read", Err: errors.New("connection reset by peer")}), true},
		"no such host":       {fmt.Errorf("send: %w", &net.DNSError{Err: "no such host"}), false},
		"anything else":      {errors.New("what"), true},
	} {
		require.Equal(t, c.unknown, errors.Is(outcome(c.err), sequencer.ErrUnknownOutcome), name)
	}
	require.NoError(t, outcome(nil))
}

func TestFit(t *testing.T) {
	key := []types.KeySchemaElement{
		{AttributeName: ptr("pk"), KeyType: types.KeyTypeHash}, {AttributeName: ptr("sk"), KeyType: types.KeyTypeRange},
	}
	replica := []types.ReplicaDescription{{RegionName: ptr("eu-central-1")}}
	for name, c := range map[string]struct {
		table types.TableDescription
		err   string
	}{
		"plain":               {types.TableDescription{TableStatus: "ACTIVE", KeySchema: key}, ""},
		"strong replicas":     {types.TableDescription{TableStatus: "ACTIVE", KeySchema: key, Replicas: replica, MultiRegionConsistency: "STRONG"}, ""},
		"eventual replicas":   {types.TableDescription{TableStatus: "ACTIVE", KeySchema: key, Replicas: replica, MultiRegionConsistency: "EVENTUAL"}, "eventual consistency"},
		"replicas, not said":  {types.TableDescription{TableStatus: "ACTIVE", KeySchema: key, Replicas: replica}, "eventual consistency"},
		"it is being deleted": {types.TableDescription{TableStatus: "DELETING", KeySchema: key}, "its status is DELETING"},
		"no sort key":         {types.TableDescription{TableStatus: "ACTIVE", KeySchema: key[:1]}, "not a table of nextvald's"},
		"another key":         {types.TableDescription{TableStatus: "ACTIVE", KeySchema: []types.KeySchemaElement{{AttributeName: ptr("id"), KeyType: types.KeyTypeHash}, key[1]}}, "not a table of nextvald's"},
	} {
		err := fit(&c.table)
		if c.err == "" {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, c.err, name)
		}
	}
}

func ptr[T any](v T) *T { return &v }
