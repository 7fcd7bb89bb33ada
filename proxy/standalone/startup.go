package standalone

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"strings"

	"github.com/nextvald/nextvald/proxy/wire"
)

const (
	// startupLimit is PostgreSQL's MAX_STARTUP_PACKET_LENGTH.
	startupLimit = 10000

	codeCancel = 80877102
	codeSSL    = 80877103
	codeGSS    = 80877104

	protocolMajor = 3
	// protocolMinor is the newest minor version of the protocol that is spoken here.
	protocolMinor = 2
)

// errNoSession says that a connection ended before it became a session.
var errNoSession = errors.New("no session was asked for")

// startup reads the startup packet, and answers it up to the first ReadyForQuery. A refusal has been sent when it
// returns an error.
func (s *session) startup() error {
	for {
		packet, err := s.in.Startup(startupLimit)
		if err != nil {
			return err
		}
		switch code := binary.BigEndian.Uint32(packet[4:]); {
		case code == codeSSL || code == codeGSS:
			if _, err := s.conn.Write([]byte{'N'}); err != nil {
				return err
			}
		case code == codeCancel:
			return errNoSession // nothing here runs long enough to be cancelled
		case code>>16 != protocolMajor:
			return s.fatal(fatalf("0A000", "unsupported frontend protocol %d.%d: server supports %d.0 to %d.%d",
				code>>16, code&0xFFFF, protocolMajor, protocolMajor, protocolMinor))
		default:
			return s.login(int(code&0xFFFF), packet[8:])
		}
	}
}

// login answers the startup packet of a session: parameters are its body, pairs of strings.
func (s *session) login(minor int, parameters []byte) error {
	pairs, err := startupPairs(string(parameters))
	if err != nil {
		return s.fatal(err)
	}
	var foreign, assignments []string // foreign: protocol options that are not known here
	for i := 0; i < len(pairs); i += 2 {
		name, value := pairs[i], pairs[i+1]
		switch {
		case name == "user":
			s.user = value
		case name == "database":
			s.database = value
		case name == "replication":
			if on, err := parseBool(value); err != nil || on {
				return s.fatal(&wire.Error{Severity: wire.SeverityFatal, Code: "0A000",
					Message: "replication is not supported without an upstream", Hint: hintUpstream})
			}
		case name == "options":
			options, err := splitOptions(value)
			if err != nil {
				return s.fatal(err)
			}
			assignments = append(assignments, options...)
		case strings.HasPrefix(name, "_pq_."):
			foreign = append(foreign, name)
		default:
			assignments = append(assignments, name, value)
		}
	}
	if s.user == "" {
		return s.fatal(fatalf("28000", "no PostgreSQL user name specified in startup packet"))
	}
	if s.database == "" {
		s.database = s.user
	}
	s.settings = newSettings(s.user)
	for i := 0; i < len(assignments); i += 2 {
		if err := s.settings.start(assignments[i], assignments[i+1]); err != nil {
			err.Severity = wire.SeverityFatal
			return s.fatal(err)
		}
	}
	var out []byte
	if minor > protocolMinor || len(foreign) > 0 {
		out = appendNegotiation(out, foreign)
	}
	out = append(out, wire.TypeAuthentication, 0, 0, 0, 8, 0, 0, 0, 0)
	out = s.settings.appendReport(out)
	out = appendKey(out, s.pid, minor)
	s.send(wire.AppendReadyForQuery(out, statusIdle))
	return s.out.Flush()
}

// startupPairs splits the body of a startup packet into names and values.
func startupPairs(body string) ([]string, *wire.Error) {
	malformed := fatalf("08P01", "invalid startup packet layout: expected terminator as last byte")
	var pairs []string
	for {
		name, rest, ok := strings.Cut(body, "\x00")
		switch {
		case ok && name == "" && rest == "":
			return pairs, nil
		case !ok || name == "":
			return nil, malformed
		}
		value, rest, ok := strings.Cut(rest, "\x00")
		if !ok {
			return nil, malformed
		}
		pairs = append(pairs, name, value)
		body = rest
	}
}

// splitOptions reads the command line options of a session, `-c name=value` or `--name=value`, into names and values.
// A backslash keeps the blank or backslash behind it.
func splitOptions(options string) ([]string, *wire.Error) {
	var words []string
	var word strings.Builder
	inWord := false
	for i := 0; i < len(options); i++ {
		switch c := options[i]; {
		case strings.IndexByte(" \t\n\v\f\r", c) >= 0:
			if inWord {
				words = append(words, word.String())
				word.Reset()
			}
			inWord = false
			continue
		case c == '\\' && i+1 < len(options):
			i++
		}
		inWord = true
		word.WriteByte(options[i])
	}
	if inWord {
		words = append(words, word.String())
	}
	var pairs []string
	for i := 0; i < len(words); i++ {
		assignment := ""
		switch w := words[i]; {
		case w == "-c" && i+1 < len(words):
			i++
			assignment = words[i]
		case strings.HasPrefix(w, "-c"):
			assignment = w[len("-c"):]
		case strings.HasPrefix(w, "--"):
			assignment = w[len("--"):]
		}
		name, value, ok := strings.Cut(assignment, "=")
		if !ok || name == "" {
			return nil, fatalf("42601", "invalid command-line argument for server process: %s", words[i])
		}
		pairs = append(pairs, strings.ReplaceAll(name, "-", "_"), value)
	}
	return pairs, nil
}

// appendNegotiation appends NegotiateProtocolVersion: the newest version spoken here, and the options that are not
// known.
func appendNegotiation(dst []byte, foreign []string) []byte {
	body := binary.BigEndian.AppendUint32(nil, protocolMajor<<16|protocolMinor)
	body = binary.BigEndian.AppendUint32(body, uint32(len(foreign)))
	for _, name := range foreign {
		body = append(append(body, name...), 0)
	}
	dst = append(dst, wire.TypeNegotiateProtocol)
	dst = binary.BigEndian.AppendUint32(dst, uint32(4+len(body)))
	return append(dst, body...)
}

// appendKey appends BackendKeyData with a random key: 4 bytes, and 32 from protocol 3.2 on.
func appendKey(dst []byte, pid int32, minor int) []byte {
	size := 4
	if minor >= 2 {
		size = 32
	}
	key := make([]byte, size)
	_, _ = rand.Read(key) // never fails
	dst = append(dst, wire.TypeBackendKeyData)
	dst = binary.BigEndian.AppendUint32(dst, uint32(8+size))
	dst = binary.BigEndian.AppendUint32(dst, uint32(pid))
	return append(dst, key...)
}
