package boltstore

// Crash lets go of everything as the end of the process would: nothing is written any more, and the locks are free.
func (t *Tier) Crash() error {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.cancel()
	t.tasks.Wait()
	if t.witness != nil {
		_ = t.witness.f.Close()
	}
	return t.file.Close()
}
