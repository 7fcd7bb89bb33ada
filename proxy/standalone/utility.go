package standalone

import (
	pg_query "github.com/pganalyze/pg_query_go/v5"
)

func discardCommand(target pg_query.DiscardMode) (*command, error) {
	switch target {
	case pg_query.DiscardMode_DISCARD_PLANS:
		return tagCommand("DISCARD PLANS"), nil
	case pg_query.DiscardMode_DISCARD_SEQUENCES:
		return tagCommand("DISCARD SEQUENCES"), nil // currval and lastval are the proxy's
	case pg_query.DiscardMode_DISCARD_TEMP:
		return tagCommand("DISCARD TEMP"), nil
	}
	return &command{run: func(s *session) (string, error) {
		if s.inBlock() {
			return "", errorf("25001", "DISCARD ALL cannot run inside a transaction block")
		}
		s.settings.resetAll()
		clear(s.statements)
		clear(s.portals)
		return "DISCARD ALL", nil
	}}, nil
}

// deallocateCommand is DEALLOCATE; an empty name means ALL.
func deallocateCommand(name string) *command {
	return &command{run: func(s *session) (string, error) {
		if name == "" {
			clear(s.statements)
			return "DEALLOCATE ALL", nil
		}
		if _, ok := s.statements[name]; !ok {
			return "", errNoStatement(name)
		}
		delete(s.statements, name)
		return "DEALLOCATE", nil
	}}
}

// closeCommand is CLOSE; an empty name means ALL.
func closeCommand(name string) *command {
	return &command{run: func(s *session) (string, error) {
		if name == "" {
			clear(s.portals)
			return "CLOSE CURSOR ALL", nil
		}
		if _, ok := s.portals[name]; !ok {
			return "", errorf("34000", "cursor \"%s\" does not exist", name)
		}
		delete(s.portals, name)
		return "CLOSE CURSOR", nil
	}}
}
