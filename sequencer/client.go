package sequencer

import (
	"context"
	"strings"
)

// Client uses the sequences of one database by their names in SQL: "orders_seq", which is in the schema public, or
// "billing.orders_seq". Names are taken as they are, without quoting or folding of case.
type Client struct {
	registry *Registry
	database string
}

// NewClient returns a client for a database of the registry's namespace. It reads the names of its sequences.
func NewClient(ctx context.Context, r *Registry, database string) (*Client, error) {
	if err := r.Load(ctx, database); err != nil {
		return nil, err
	}
	return &Client{registry: r, database: database}, nil
}

// Name returns the full name that the client means by name.
func (c *Client) Name(name string) Name {
	if schema, rest, ok := strings.Cut(name, "."); ok {
		return Name{Database: c.database, Schema: schema, Name: rest}
	}
	return Name{Database: c.database, Schema: "public", Name: name}
}

// Create adds a sequence: CREATE SEQUENCE. ErrDuplicate: the name is taken.
func (c *Client) Create(ctx context.Context, name string, o Options) (*Sequence, error) {
	d, err := Define(o)
	if err != nil {
		return nil, err
	}
	return c.registry.Create(ctx, c.Name(name), d)
}

// Sequence finds a sequence. ErrUndefined.
func (c *Client) Sequence(ctx context.Context, name string) (*Sequence, error) {
	return c.registry.Lookup(ctx, c.Name(name))
}

// Next returns the next value of a sequence; see Sequence.Next.
func (c *Client) Next(ctx context.Context, name string) (int64, error) {
	s, err := c.Sequence(ctx, name)
	if err != nil {
		return 0, err
	}
	return s.Next(ctx)
}

// NextN returns the next n values of a sequence; see Sequence.NextN.
func (c *Client) NextN(ctx context.Context, name string, n int64) ([]Block, error) {
	s, err := c.Sequence(ctx, name)
	if err != nil {
		return nil, err
	}
	return s.NextN(ctx, n)
}

// Set moves a sequence; see Sequence.Set.
func (c *Client) Set(ctx context.Context, name string, value int64, called bool) error {
	s, err := c.Sequence(ctx, name)
	if err != nil {
		return err
	}
	return s.Set(ctx, value, called)
}

// Alter changes a sequence: ALTER SEQUENCE.
func (c *Client) Alter(ctx context.Context, name string, o Options) error {
	return c.registry.Alter(ctx, c.Name(name), o)
}

// Drop removes a sequence: DROP SEQUENCE.
func (c *Client) Drop(ctx context.Context, name string) error {
	return c.registry.Drop(ctx, c.Name(name))
}
