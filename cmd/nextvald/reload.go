package main

import (
	"log/slog"
	"os"
	"slices"

	"github.com/coreos/go-systemd/v22/daemon"
)

// reload is a part of the running program that SIGHUP renews.
type reload struct {
	what string
	keys []string // the settings that it puts in force
	// run takes over new settings, and reads again what they name. When it fails everything stays as it was.
	run func(*settings) error
}

// reloads carries out SIGHUP.
type reloads struct {
	log     *slog.Logger
	read    func() (*settings, error)
	current *settings
	parts   []reload
}

// add adds a part, for settings of the given keys.
func (r *reloads) add(what string, run func(*settings) error, keys ...string) {
	r.parts = append(r.parts, reload{what, keys, run})
}

// serve reloads at each signal, until stopped is closed.
func (r *reloads) serve(signals <-chan os.Signal, stopped <-chan struct{}) error {
	for {
		select {
		case <-signals:
			notify(r.log, daemon.SdNotifyReloading+"\n"+daemon.SdNotifyMonotonicUsec())
			r.reload()
			notify(r.log, daemon.SdNotifyReady)
		case <-stopped:
			return nil
		}
	}
}

// reload reads the settings again and has every part take them over. Settings that are wrong leave everything as it is; a
// part that fails stays as it was, and the others go on.
func (r *reloads) reload() {
	read, err := r.read()
	if err != nil {
		r.log.Error("the settings cannot be read again: those of before stay in force", "error", oneLine(err))
		return
	}
	live := map[string]bool{}
	for _, part := range r.parts {
		err := part.run(read)
		for _, key := range part.keys {
			live[key] = true
			if err != nil {
				read.texts[key] = r.current.texts[key] // the change is still to come
			}
		}
		if err != nil {
			r.log.Error("not reloaded: what was read before stays in force", "what", part.what, "error", oneLine(err))
		}
	}
	var keys []string
	for key := range read.texts {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		before, now := r.current.texts[key], read.texts[key]
		switch {
		case before == now:
		case live[key]:
			r.log.Info("a setting has changed", "setting", key, "from", before, "to", now)
		default: // its value may hold a password
			r.log.Warn("a setting that has changed counts after a restart", "setting", key)
			read.texts[key] = before
		}
	}
	r.current = read
	r.log.Info("nextvald has reloaded")
}

// notify tells systemd, where that started the program.
func notify(log *slog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn("cannot notify systemd", "error", err)
	}
}
