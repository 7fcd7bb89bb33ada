package sqlrewrite

import lru "github.com/hashicorp/golang-lru/v2"

// cachedLength is the length of the longest text whose plan is kept. Longer ones are rarely sent twice.
const cachedLength = 8 << 10

// Cache keeps plans by text. It is safe for concurrent use.
type Cache struct {
	plans *lru.Cache[string, *Plan]
}

// NewCache returns a cache of the plans of the size texts that were used last.
func NewCache(size int) *Cache {
	plans, err := lru.New[string, *Plan](max(size, 1))
	if err != nil { // a size below 1
		panic(err)
	}
	return &Cache{plans: plans}
}

// Cached returns the plan of a text that was parsed before, or nil. It does not keep the text.
func (c *Cache) Cached(text string) *Plan {
	plan, _ := c.plans.Get(text)
	return plan
}

// Parse is Parse for a text that may have been parsed before.
func (c *Cache) Parse(text string) (*Plan, error) {
	if plan := c.Cached(text); plan != nil {
		return plan, nil
	}
	plan, err := Parse(text)
	if err == nil && len(text) <= cachedLength {
		c.plans.Add(text, plan)
	}
	return plan, err
}
