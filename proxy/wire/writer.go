package wire

import "io"

// Writer gathers frames for a connection. Its zero value is not usable.
type Writer struct {
	dst io.Writer
	buf []byte
	err error // the first failure; everything after it fails alike
}

// NewWriter returns a Writer to dst.
func NewWriter(dst io.Writer) *Writer {
	return &Writer{dst: dst, buf: make([]byte, 0, bufferSize)}
}

// Write appends p, and writes the buffer out when it is full.
func (w *Writer) Write(p []byte) (int, error) {
	if w.err != nil {
		return 0, w.err
	}
	if len(w.buf)+len(p) <= cap(w.buf) {
		w.buf = append(w.buf, p...)
		return len(p), nil
	}
	if err := w.Flush(); err != nil {
		return 0, err
	}
	if len(p) < cap(w.buf) {
		w.buf = append(w.buf, p...)
		return len(p), nil
	}
	if _, err := w.dst.Write(p); err != nil {
		w.err = err
		return 0, err
	}
	return len(p), nil
}

// Flush writes what was gathered.
func (w *Writer) Flush() error {
	if w.err != nil || len(w.buf) == 0 {
		return w.err
	}
	_, w.err = w.dst.Write(w.buf)
	w.buf = w.buf[:0]
	return w.err
}

// Available is the spare part of the buffer: append to it and Write the result to build a frame without a copy.
func (w *Writer) Available() []byte { return w.buf[len(w.buf):] }
