package main

import (
	"log/slog"

	"github.com/nextvald/nextvald/proxy"
	"github.com/nextvald/nextvald/proxy/native"
	"github.com/nextvald/nextvald/sequencer"
)

// mirrored is what sessions need of the upstream's own sequences: values are drawn of them, and they are handed over.
type mirrored struct {
	*native.Manager
	*native.Handovers
}

var _ proxy.Native = mirrored{}

// openMirrored starts both. They are closed before the registry.
func openMirrored(s *settings, registry *sequencer.Registry, log *slog.Logger) mirrored {
	manager := native.New(native.Config{Logger: log, Upstream: s.upstream, Members: registry, HotCalls: s.hotCalls})
	m := mirrored{manager, manager.NewHandovers(registry, log)}
	m.Start()
	return m
}

func (m mirrored) close() {
	m.Manager.Close()
	m.Handovers.Close()
}

// stats are the registry's, with what was drawn.
func (m mirrored) stats(registry *sequencer.Registry) sequencer.Stats {
	s := registry.Stats()
	m.Stats(&s)
	return s
}
