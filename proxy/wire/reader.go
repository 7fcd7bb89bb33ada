package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

const (
	// HeaderLen is the length of a message's type and length.
	HeaderLen = 5
	// MaxMessage is PostgreSQL's limit of a message's length field (PQ_LARGE_MESSAGE_LIMIT: MaxAllocSize - 1).
	MaxMessage = 1<<30 - 2
	// bufferSize is what a connection reads or writes at once.
	bufferSize = 16 << 10
	// keepSize is the largest buffer that is kept after a large message.
	keepSize = 64 << 10
)

// ErrLength says that a length field is impossible. The stream cannot be read further.
var ErrLength = errors.New("invalid message length")

// Reader reads frames from a connection.
type Reader struct {
	src  io.Reader
	buf  []byte
	r, w int // buf[r:w] is unread
	// try, when set, reads from src without a wait; again is the error by which it says that there is nothing.
	try   func([]byte) (int, error)
	again error
	rest  int // bytes of a message that is being forwarded which have not come yet
	// beforeRead, when set, runs before every read of the connection, which may block: what was gathered for others
	// has to leave first.
	beforeRead func() error
	// onTimeout, when set, decides about a read whose deadline has passed: nil is to read again.
	onTimeout func() error
}

// NewReader returns a Reader of src. beforeRead may be nil.
func NewReader(src io.Reader, beforeRead func() error) *Reader {
	return &Reader{src: src, beforeRead: beforeRead}
}

// TryReader reads without a wait.
type TryReader interface {
	io.Reader
	TryRead(p []byte) (int, error)
}

// SetSource changes the source to one that need not be waited for: Poll looks for a message, and Forward leaves to Continue
// what of a large one is not here yet. again is the error by which TryRead says that there is nothing.
func (r *Reader) SetSource(src TryReader, again error) {
	r.src, r.try, r.again = src, src.TryRead, again
}

// Poll reads what is there, and reports whether something can be done without a wait: the next message is here, or as much of
// it as the buffer takes at once; or more has come of the one that Continue forwards.
func (r *Reader) Poll() (bool, error) {
	for {
		n := r.Buffered()
		switch {
		case r.rest > 0:
			if n > 0 {
				return true, nil
			}
		case n >= HeaderLen:
			size := int64(binary.BigEndian.Uint32(r.buf[r.r+1:])) + 1
			if int64(n) >= min(size, bufferSize) || size > 1+MaxMessage {
				return true, nil
			}
		}
		switch err := r.readFrom(r.try); {
		case err == nil:
		case err == r.again:
			return false, nil
		case errors.Is(err, io.EOF) && (n > 0 || r.rest > 0):
			return false, io.ErrUnexpectedEOF
		default:
			return false, err
		}
	}
}

// Pending reports whether Continue has something to do before the next message.
func (r *Reader) Pending() bool { return r.rest > 0 }

// Continue forwards what is here of the message that Forward began.
func (r *Reader) Continue(w *Writer) error {
	part := r.buf[r.r:min(r.w, r.r+r.rest)]
	r.r += len(part)
	r.rest -= len(part)
	_, err := w.Write(part)
	return err
}

// Release frees the buffer of a Reader from which everything was read, until it reads again.
func (r *Reader) Release() {
	if r.r == r.w && r.buf != nil {
		putBuffer(r.buf)
		r.buf, r.r, r.w = nil, 0, 0
	}
}

// Buffered is the number of bytes that were read from the connection and not yet handed out.
func (r *Reader) Buffered() int { return r.w - r.r }

// Next waits for a message's header and tells its type and the length of its body, without consuming either.
func (r *Reader) Next() (typ byte, body int, err error) {
	if err := r.fill(HeaderLen); err != nil {
		return 0, 0, err
	}
	typ = r.buf[r.r]
	n := int64(binary.BigEndian.Uint32(r.buf[r.r+1:]))
	if n < 4 || n > MaxMessage {
		return typ, 0, fmt.Errorf("%w: %d of type %q", ErrLength, n, typ)
	}
	return typ, int(n) - 4, nil
}

// Frame consumes the message whose header Next told and returns it whole, header included. The slice belongs to the
// Reader and is valid until its next call. Memory grows with what arrives, not with what the header claims.
func (r *Reader) Frame(body int) ([]byte, error) {
	n := HeaderLen + body
	if err := r.fill(n); err != nil {
		return nil, err
	}
	frame := r.buf[r.r : r.r+n]
	r.r += n
	return frame, nil
}

// Forward consumes the message whose header Next told and appends it to w. A message larger than the buffer is
// streamed, without the beforeRead hook: the caller may hold w's lock.
func (r *Reader) Forward(w *Writer, body int) error {
	n := HeaderLen + body
	for n > 0 {
		if r.r == r.w {
			if r.try != nil {
				r.rest = n
				return nil
			}
			if err := r.read(); err != nil {
				return err
			}
		}
		part := r.buf[r.r:min(r.w, r.r+n)]
		if _, err := w.Write(part); err != nil {
			return err
		}
		r.r += len(part)
		n -= len(part)
	}
	return nil
}

// Types is a set of types of messages.
type Types [256]bool

// TypesOf is the set of these.
func TypesOf(types ...byte) *Types {
	t := &Types{}
	for _, typ := range types {
		t[typ] = true
	}
	return t
}

// Run consumes the messages at hand as long as they are of those types and whole, and returns them as they came. The slice
// belongs to the Reader and is valid until its next call.
func (r *Reader) Run(of *Types) []byte {
	end := r.r
	for r.w-end >= HeaderLen && of[r.buf[end]] {
		n := int64(binary.BigEndian.Uint32(r.buf[end+1:])) + 1
		if n < HeaderLen || n > int64(r.w-end) {
			break
		}
		end += int(n)
	}
	run := r.buf[r.r:end]
	r.r = end
	return run
}

// Discard consumes the message whose header Next told.
func (r *Reader) Discard(body int) error {
	n := HeaderLen + body
	for n > 0 {
		if r.r == r.w {
			if err := r.read(); err != nil {
				return err
			}
		}
		part := min(r.w-r.r, n)
		r.r += part
		n -= part
	}
	return nil
}

// Peek1 waits for the first byte of what comes next, without consuming it.
func (r *Reader) Peek1() (byte, error) {
	if err := r.fill(1); err != nil {
		return 0, err
	}
	return r.buf[r.r], nil
}

// Startup reads an untyped first packet, of at most limit bytes, and returns it whole; the slice is valid until the
// next call.
func (r *Reader) Startup(limit int) ([]byte, error) {
	if err := r.fill(4); err != nil {
		return nil, err
	}
	n := int64(binary.BigEndian.Uint32(r.buf[r.r:]))
	if n < 8 || n > int64(limit) {
		return nil, fmt.Errorf("%w: startup packet of %d", ErrLength, n)
	}
	if err := r.fill(int(n)); err != nil {
		return nil, err
	}
	packet := r.buf[r.r : r.r+int(n)]
	r.r += int(n)
	return packet, nil
}

// SetBeforeRead changes the hook that NewReader was given.
func (r *Reader) SetBeforeRead(hook func() error) { r.beforeRead = hook }

// SetOnTimeout sets a hook that decides about a read whose deadline has passed: when it returns nil the read goes on, else
// the read fails with its error.
func (r *Reader) SetOnTimeout(hook func() error) { r.onTimeout = hook }

// Rest is everything that was not yet handed out, as a plain stream. The Reader must not be used any more.
func (r *Reader) Rest() io.Reader {
	return io.MultiReader(bytes.NewReader(r.buf[r.r:r.w]), r.src)
}

// Await waits until the message whose header Next told is here whole, unless it is larger than the buffer. After it
// Forward runs without a wait for all but large messages.
func (r *Reader) Await(body int) error {
	if n := HeaderLen + body; n <= bufferSize {
		return r.fill(n)
	}
	return nil
}

// fill reads until n bytes are unread in the buffer.
func (r *Reader) fill(n int) error {
	for r.w-r.r < n {
		if r.beforeRead != nil {
			if err := r.beforeRead(); err != nil {
				return err
			}
		}
		if err := r.read(); err != nil {
			if errors.Is(err, io.EOF) && r.w > r.r {
				return io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// read reads once from the connection.
func (r *Reader) read() error { return r.readFrom(r.src.Read) }

// readFrom reads once, making room for it first.
func (r *Reader) readFrom(read func([]byte) (int, error)) error {
	switch {
	case r.r == r.w:
		r.r, r.w = 0, 0
		if r.buf == nil || len(r.buf) > keepSize {
			r.buf = getBuffer()
		}
	case r.w == len(r.buf) && r.r > 0:
		r.w = copy(r.buf, r.buf[r.r:r.w])
		r.r = 0
	}
	if r.w == len(r.buf) {
		grown := make([]byte, 2*len(r.buf))
		r.w = copy(grown, r.buf[r.r:r.w])
		r.r = 0
		r.buf = grown
	}
	for {
		n, err := read(r.buf[r.w:])
		r.w += n
		switch {
		case n > 0:
			return nil
		case err == nil:
			return io.ErrNoProgress
		case r.onTimeout == nil || !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		}
		if err := r.onTimeout(); err != nil {
			return err
		}
	}
}

// Peek returns the first n bytes of the frame whose header Next told, or the whole frame when it is shorter, without
// consuming them.
func (r *Reader) Peek(body, n int) ([]byte, error) {
	n = min(n, HeaderLen+body)
	if err := r.fill(n); err != nil {
		return nil, err
	}
	return r.buf[r.r : r.r+n], nil
}
