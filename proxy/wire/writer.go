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
	return &Writer{dst: dst}
}

// Write appends p, and writes the buffer out when it is full.
func (w *Writer) Write(p []byte) (int, error) {
	if w.err != nil {
		return 0, w.err
	}
	if len(w.buf)+len(p) > bufferSize {
		if err := w.Flush(); err != nil {
			return 0, err
		}
	}
	if len(p) > bufferSize {
		return w.through(p)
	}
	w.buf = append(w.buffer(), p...)
	return len(p), nil
}

// through writes p itself out.
func (w *Writer) through(p []byte) (int, error) {
	_, w.err = w.dst.Write(p)
	if w.err != nil {
		return 0, w.err
	}
	return len(p), nil
}

// Flush writes what was gathered, and frees the buffer until something is written again.
func (w *Writer) Flush() error {
	if w.err != nil || len(w.buf) == 0 {
		return w.err
	}
	_, w.err = w.dst.Write(w.buf)
	putBuffer(w.buf)
	w.buf = nil
	return w.err
}

// Available is the spare part of the buffer: append to it and Write the result to build a frame without a copy.
func (w *Writer) Available() []byte {
	w.buf = w.buffer()
	return w.buf[len(w.buf):]
}

func (w *Writer) buffer() []byte {
	if w.buf == nil {
		return getBuffer()[:0]
	}
	return w.buf
}

// Fail makes everything that is written from now on fail with err. What was gathered and not flushed is lost.
func (w *Writer) Fail(err error) {
	if w.err == nil {
		w.err = err
	}
}
