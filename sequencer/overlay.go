package sequencer

import (
	"maps"
	"sync"
	"sync/atomic"
)

// overlay is a map for many readers and few writers: a read takes no lock and allocates nothing. A write copies only the
// entries written of late, which are merged into the whole once in a while.
type overlay[K comparable, V comparable] struct {
	mu     sync.Mutex // writers
	layers atomic.Pointer[layers[K, V]]
}

// layers are immutable. A zero V in recent hides what base has.
type layers[K comparable, V comparable] struct {
	base, recent map[K]V
}

// mergeAt is the number of recent entries that are merged into the base.
const mergeAt = 256

// get returns the value of k, or zero.
func (o *overlay[K, V]) get(k K) (v V) {
	l := o.layers.Load()
	if l == nil {
		return v
	}
	if v, ok := l.recent[k]; ok {
		return v
	}
	return l.base[k]
}

// empty reports whether there is no key.
func (o *overlay[K, V]) empty() bool {
	l := o.layers.Load()
	if l == nil {
		return true
	}
	if len(l.recent) == 0 {
		return len(l.base) == 0
	}
	return len(o.all()) == 0
}

// set gives k a value; zero removes it.
func (o *overlay[K, V]) set(k K, v V) {
	o.mu.Lock()
	defer o.mu.Unlock()
	old := o.layers.Load()
	if old == nil {
		old = &layers[K, V]{}
	}
	recent := make(map[K]V, len(old.recent)+1)
	maps.Copy(recent, old.recent)
	recent[k] = v
	if len(recent) < mergeAt {
		o.layers.Store(&layers[K, V]{base: old.base, recent: recent})
		return
	}
	o.layers.Store(&layers[K, V]{base: merged(old.base, recent)})
}

// replace makes m the whole contents. The map belongs to the overlay from then on.
func (o *overlay[K, V]) replace(m map[K]V) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.layers.Store(&layers[K, V]{base: m})
}

// all returns a copy of the contents.
func (o *overlay[K, V]) all() map[K]V {
	l := o.layers.Load()
	if l == nil {
		return nil
	}
	return merged(l.base, l.recent)
}

func merged[K comparable, V comparable](base, recent map[K]V) map[K]V {
	var zero V
	m := make(map[K]V, len(base)+len(recent))
	maps.Copy(m, base)
	for k, v := range recent {
		if v == zero {
			delete(m, k)
		} else {
			m[k] = v
		}
	}
	return m
}
