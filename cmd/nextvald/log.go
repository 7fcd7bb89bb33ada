package main

import (
	"bytes"
	"io"
	stdlog "log"
	"log/slog"
	"sync"
)

// startLog keeps what is logged while the program starts, so that a failure to start is one line and nothing else.
type startLog struct {
	mu   sync.Mutex
	w    io.Writer
	kept *bytes.Buffer // nil once started
}

func newStartLog(w io.Writer) *startLog { return &startLog{w: w, kept: new(bytes.Buffer)} }

func (l *startLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kept != nil {
		return l.kept.Write(p)
	}
	return l.w.Write(p)
}

// started writes what was kept, and lets through what follows.
func (l *startLog) started() {
	l.mu.Lock()
	defer l.mu.Unlock()
	// Nobody can be told that the log itself fails.
	_, _ = l.kept.WriteTo(l.w)
	l.kept = nil
}

// newLogger makes the program's log, whose level may change. What libraries say by package log goes there too, for the
// curious.
func newLogger(w io.Writer, s *settings, level *slog.LevelVar) *slog.Logger {
	level.Set(s.logLevel)
	logger := slog.New(newHandler(w, s.logFormat, level))
	stdlog.SetFlags(0)
	stdlog.SetOutput(slog.NewLogLogger(logger.Handler(), slog.LevelDebug).Writer())
	return logger
}

func newHandler(w io.Writer, format string, level slog.Leveler) slog.Handler {
	options := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.NewJSONHandler(w, options)
	}
	return slog.NewTextHandler(w, options)
}
