package faults

import (
	"sync"

	"github.com/nextvald/nextvald/integration/history"
)

// record is what clients got: by sequence, and by life of the process that gave it.
type record struct {
	mu    sync.Mutex
	draws map[string]map[int][]history.Draw
}

func (r *record) add(sequence string, life int, d history.Draw) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draws == nil {
		r.draws = map[string]map[int][]history.Draw{}
	}
	if r.draws[sequence] == nil {
		r.draws[sequence] = map[int][]history.Draw{}
	}
	r.draws[sequence][life] = append(r.draws[sequence][life], d)
}

// lives returns the draws of a sequence by life. It is for when nothing is added any more.
func (r *record) lives(sequence string) map[int][]history.Draw { return r.draws[sequence] }

// all returns the draws of a sequence. It is for when nothing is added any more.
func (r *record) all(sequence string) (all []history.Draw) {
	for _, draws := range r.draws[sequence] {
		all = append(all, draws...)
	}
	return all
}
