package proxy

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/pires/go-proxyproto"
)

const (
	// headerFixed is the length of the part of a PROXY header, version 2, that every one has:
	//
	//	| signature 12 | version and command 1 | family 1 | length of the rest 2 |
	headerFixed = 16
	// maxHeader bounds the rest: addresses, and what the sender adds about the connection.
	maxHeader = 4096
)

var errNoHeader = errors.New("the connection does not begin with a PROXY header of version 2, which setting proxy_protocol asks for")

// readHeader reads the PROXY header that a connection begins with, and nothing behind it. It returns the client's address,
// nil where the sender speaks for itself (a health check).
func readHeader(conn io.Reader) (net.Addr, error) {
	header := make([]byte, headerFixed)
	if _, err := io.ReadFull(conn, header); err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(header, proxyproto.SIGV2) {
		return nil, errNoHeader
	}
	size := int(binary.BigEndian.Uint16(header[headerFixed-2:]))
	if size > maxHeader {
		return nil, fmt.Errorf("a PROXY header of %d bytes", size)
	}
	header = append(header, make([]byte, size)...)
	if _, err := io.ReadFull(conn, header[headerFixed:]); err != nil {
		return nil, err
	}
	parsed, err := proxyproto.Read(bufio.NewReader(bytes.NewReader(header)))
	switch {
	case err != nil:
		return nil, err
	case parsed.Command.IsLocal():
		return nil, nil
	}
	return parsed.SourceAddr, nil
}
