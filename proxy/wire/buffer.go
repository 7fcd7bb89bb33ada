package wire

import "sync"

// buffers are those of connections that read and write nothing at the moment.
var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

func getBuffer() []byte { return buffers.Get().(*[bufferSize]byte)[:] }

// putBuffer takes back what getBuffer gave; other buffers are left to the garbage collector.
func putBuffer(b []byte) {
	if cap(b) == bufferSize {
		buffers.Put((*[bufferSize]byte)(b[:bufferSize]))
	}
}
