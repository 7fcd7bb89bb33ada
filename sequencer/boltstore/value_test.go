package boltstore

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/sequencer"
)

// Whatever the file holds is refused or makes sense, and reads the same when it is written again.
func FuzzDecodeItem(f *testing.F) {
	high := int64(41)
	d, err := sequencer.Define(sequencer.Options{})
	require.NoError(f, err)
	whole, err := encodeItem(sequencer.Item{
		Incarnation: "a", Rev: 3, Version: 1, State: sequencer.Active, Source: sequencer.FromStore, Kind: sequencer.Virtual,
		Mode: sequencer.Cached, Pos: sequencer.At(42), High: &high, Fresh: &high, Definition: d, OID: 4294967294,
		Fence: &sequencer.Range{First: 1, Last: 2}, Holes: []sequencer.Range{{First: 5, Last: 9}},
	})
	require.NoError(f, err)
	f.Add(whole)
	f.Add([]byte(`{"fmt":2}`))
	f.Add([]byte(`{"fmt":1,"rev":1,"version":1,"pos":99999999999999999999}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, value []byte) {
		it, err := decodeItem("a", value)
		if err != nil {
			return
		}
		require.NoError(t, it.Check())
		again, err := encodeItem(it)
		require.NoError(t, err)
		read, err := decodeItem("a", again)
		require.NoError(t, err)
		require.Equal(t, it, read)
		if _, err := it.Grant(it.Version, 1<<40); err != nil {
			require.ErrorAs(t, err, new(*sequencer.Conflict))
		}
	})
}
