package sequencer

import "context"

// database is what is known of a database's names once Load was called for it.
type database struct {
	name string
	// words are the names of sequences, without their schemas. A word may outlive its sequence until the next read.
	words overlay[string, bool]
	oids  overlay[uint32, Name]
	// readAt is the epoch at the start of the last complete read. Registry.mu guards it and added.
	readAt uint64
	// added are the entries added by this process since the read under way began.
	added []Entry
}

// add notes a name of this process's own making. Registry.mu is held.
func (d *database) add(e Entry) {
	d.added = append(d.added, e)
	d.words.set(e.Name.Name, true)
	d.oids.set(e.OID, e.Name)
}

// Load reads the names of a database and keeps them current from then on, for Known. Loading again does nothing.
func (r *Registry) Load(ctx context.Context, name string) error {
	r.mu.Lock()
	d := r.databases[name]
	r.mu.Unlock()
	if d != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.StoreTimeout)
	defer cancel()
	return r.read(ctx, &database{name: name})
}

// Known returns a function that reports whether a sequence of the database may have the given name, in any schema: it may
// err to true, and it errs to false only for the second that it takes to hear of what another process created. It does no
// I/O. Before Load every name may exist.
func (r *Registry) Known(name string) func(word string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.databases[name]
	if d == nil {
		return func(string) bool { return true }
	}
	return d.words.get
}

// Any reports whether the database may have a sequence, as Known does. It does no I/O.
func (r *Registry) Any(name string) bool {
	r.mu.Lock()
	d := r.databases[name]
	r.mu.Unlock()
	return d == nil || !d.words.empty()
}

// read reads all names of a database.
func (r *Registry) read(ctx context.Context, d *database) error {
	epoch := r.advance()
	r.mu.Lock()
	d.added = nil
	r.mu.Unlock()
	entries, err := r.store.Names(ctx, d.name)
	if err != nil {
		return storeFailure("list the sequences", err)
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	if known := r.databases[d.name]; known != nil && known != d {
		return nil // two loaded at the same time
	}
	r.databases[d.name] = d
	d.readAt = epoch
	words := make(map[string]bool, len(entries))
	oids := make(map[uint32]Name, len(entries))
	current := make(map[Name]string, len(entries))
	for _, e := range append(entries, d.added...) {
		words[e.Name.Name] = true
		oids[e.OID] = e.Name
		current[e.Name] = e.Incarnation
	}
	d.words.replace(words)
	d.oids.replace(oids)
	for name, b := range r.bindings.all() {
		if name.Database == d.name && b.epoch < epoch && current[name] != b.seq.incarnation {
			r.bindings.set(name, binding{}) // dropped, or renamed, elsewhere
		}
	}
	for name := range r.absent {
		if _, ok := current[name]; ok {
			delete(r.absent, name)
		}
	}
	return nil
}

func (r *Registry) loadedDatabases() []*database {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*database, 0, len(r.databases))
	for _, d := range r.databases {
		all = append(all, d)
	}
	return all
}
