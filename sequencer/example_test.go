package sequencer_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/memstore"
)

func Example() {
	ctx := context.Background()
	// In earnest: dynamostore.Open or boltstore.Open.
	registry, err := sequencer.Open(ctx, memstore.New(), sequencer.Config{})
	if err != nil {
		log.Fatal(err)
	}
	// Closing gives back what was leased and not handed out.
	defer func() { _ = registry.Close(ctx) }()
	client, err := sequencer.NewClient(ctx, registry, "shop")
	if err != nil {
		log.Fatal(err)
	}

	start, increment := int64(1000), int64(10)
	_, err = client.Create(ctx, "orders_seq", sequencer.Options{Start: &start, Increment: &increment})
	if err != nil && !errors.Is(err, sequencer.ErrDuplicate) {
		log.Fatal(err)
	}
	for range 3 {
		id, err := client.Next(ctx, "orders_seq")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(id)
	}

	// Output:
	// 1000
	// 1010
	// 1020
}

// Many values at once come as ranges.
func ExampleSequence_NextN() {
	ctx := context.Background()
	registry, err := sequencer.Open(ctx, memstore.New(), sequencer.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = registry.Close(ctx) }()
	definition, err := sequencer.Define(sequencer.Options{})
	if err != nil {
		log.Fatal(err)
	}
	name := sequencer.Name{Database: "shop", Schema: "public", Name: "lines_seq"}
	lines, err := registry.Create(ctx, name, definition)
	if err != nil {
		log.Fatal(err)
	}
	blocks, err := lines.NextN(ctx, 5000)
	if err != nil {
		log.Fatal(err)
	}
	for _, b := range blocks {
		fmt.Println(b.First, "to", b.Last())
	}

	// Output:
	// 1 to 5000
}
