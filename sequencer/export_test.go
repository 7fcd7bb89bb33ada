package sequencer

// Held is the number of values that this process would lose if it were killed now.
func (s *Sequence) Held() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left()
}

// Runway is how many seconds they last; ok is false for a sequence that is not used.
func (s *Sequence) Runway() (seconds float64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runway()
}
