package wire

import (
	"encoding/binary"
	"slices"
)

// Codes of the Authentication messages that a server sends.
const (
	AuthenticationOK           = 0
	AuthenticationCleartext    = 3
	AuthenticationMD5          = 5
	AuthenticationSASL         = 10
	AuthenticationSASLContinue = 11
	AuthenticationSASLFinal    = 12
)

// AppendAuthentication appends an Authentication message.
func AppendAuthentication(dst []byte, code uint32, data []byte) []byte {
	dst, at := begin(dst, TypeAuthentication)
	dst = binary.BigEndian.AppendUint32(dst, code)
	return finish(append(dst, data...), at)
}

// DecodeAuthentication returns the code of an Authentication body, and the rest, which points into it.
func DecodeAuthentication(body []byte) (code uint32, data []byte, err error) {
	d := decoder{body}
	code = d.uint32()
	if d.rest == nil {
		return 0, nil, ErrFormat
	}
	return code, d.rest, nil
}

// Mechanisms makes the data of an AuthenticationSASL message.
func Mechanisms(names []string) []byte {
	var data []byte
	for _, name := range names {
		data = appendText(data, name)
	}
	return append(data, 0)
}

// DecodeMechanisms returns the names in the data of an AuthenticationSASL message.
func DecodeMechanisms(data []byte) ([]string, error) {
	d := decoder{data}
	var names []string
	for {
		switch name := d.text(); {
		case d.rest == nil:
			return nil, ErrFormat
		case name == "":
			return names, d.end()
		default:
			names = append(names, name)
		}
	}
}

// WithoutMechanism returns an Authentication frame without a mechanism, the same frame when it does not offer it or is none
// of SASL.
func WithoutMechanism(frame []byte, mechanism string) []byte {
	code, data, err := DecodeAuthentication(frame[HeaderLen:])
	if err != nil || code != AuthenticationSASL {
		return frame
	}
	offered, err := DecodeMechanisms(data)
	if err != nil || !slices.Contains(offered, mechanism) {
		return frame
	}
	rest := slices.DeleteFunc(offered, func(name string) bool { return name == mechanism })
	return AppendAuthentication(nil, code, Mechanisms(rest))
}

// AppendSASLInitial appends a SASLInitialResponse message, of the mechanism alone when message is nil.
func AppendSASLInitial(dst []byte, mechanism string, message []byte) []byte {
	dst, at := begin(dst, TypePassword)
	dst = appendText(dst, mechanism)
	return finish(appendValue(dst, message), at)
}

// DecodeSASLInitial decodes the body of a SASLInitialResponse. The message points into it, and is nil when there is none.
func DecodeSASLInitial(body []byte) (mechanism string, message []byte, err error) {
	d := decoder{body}
	mechanism, message = d.text(), d.value()
	return mechanism, message, d.end()
}

// AppendPassword appends a PasswordMessage or SASLResponse with a body.
func AppendPassword(dst, body []byte) []byte {
	dst, at := begin(dst, TypePassword)
	return finish(append(dst, body...), at)
}

// DecodePassword returns the text of a PasswordMessage body.
func DecodePassword(body []byte) (string, error) { return DecodeQuery(body) }
