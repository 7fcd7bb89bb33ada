package answer

import (
	"encoding/binary"
	"errors"
	"math"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"
)

// blanks are what C's isspace skips.
const blanks = " \t\n\v\f\r"

func parseBool(s string) (int64, error) {
	word := strings.ToLower(strings.Trim(s, blanks))
	prefix := func(of string, least int) bool { return len(word) >= least && strings.HasPrefix(of, word) }
	switch {
	case prefix("true", 1), prefix("yes", 1), word == "on", word == "1":
		return 1, nil
	case prefix("false", 1), prefix("no", 1), prefix("off", 2), word == "0":
		return 0, nil
	}
	return 0, errSyntax(pgtype.BoolOID, s)
}

func intBits(typ uint32) int {
	switch typ {
	case pgtype.Int2OID:
		return 16
	case pgtype.Int4OID:
		return 32
	}
	return 64
}

func parseInt(typ uint32, s string) (int64, error) {
	digits := strings.Trim(s, blanks)
	// ParseInt tells a bad digit before a number that is too large; a real server tells what it meets first.
	n := leadingDigits(digits)
	v, err := strconv.ParseInt(digits[:n], 10, intBits(typ))
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, errTextOutOfRange(typ, s)
	case err != nil || n < len(digits):
		return 0, errSyntax(typ, s)
	}
	return v, nil
}

// leadingDigits is the length of the sign and digits at the start of s.
func leadingDigits(s string) int {
	for i := range len(s) {
		if (s[i] < '0' || s[i] > '9') && (i > 0 || s[i] != '-' && s[i] != '+') {
			return i
		}
	}
	return len(s)
}

// parseOID reads an oid; a negative number means its two's complement, as strtoul has it.
func parseOID(s string) (int64, error) {
	digits := strings.Trim(s, blanks)
	v, err := strconv.ParseInt(digits, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, errTextOutOfRange(pgtype.OIDOID, s)
	case err != nil:
		return 0, errSyntax(pgtype.OIDOID, s)
	case v < math.MinInt32 || v > math.MaxUint32:
		return 0, errTextOutOfRange(pgtype.OIDOID, s)
	}
	return int64(uint32(v)), nil
}

func parseFloat(s string) (float64, error) {
	digits := strings.Trim(s, blanks)
	if strings.ContainsAny(digits, "xX_pP") {
		return 0, errSyntax(pgtype.Float8OID, s)
	}
	f, err := strconv.ParseFloat(digits, 64)
	switch {
	case errors.Is(err, strconv.ErrRange), f == 0 && strings.ContainsAny(mantissa(digits), "123456789"):
		return 0, errorf(codeNumericOutOfRange, "\"%s\" is out of range for type double precision", digits)
	case err != nil:
		return 0, errSyntax(pgtype.Float8OID, s)
	}
	return f, nil
}

func mantissa(number string) string {
	if i := strings.IndexAny(number, "eE"); i >= 0 {
		return number[:i]
	}
	return number
}

// appendFloat prints the shortest digits that give f back, with an exponent where PostgreSQL prints one.
func appendFloat(dst []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, "NaN"...)
	case math.IsInf(f, 1):
		return append(dst, "Infinity"...)
	case math.IsInf(f, -1):
		return append(dst, "-Infinity"...)
	}
	var buf [32]byte
	short := strconv.AppendFloat(buf[:0], f, 'e', -1, 64)
	at := strings.IndexByte(string(short), 'e')
	exponent, err := strconv.Atoi(string(short[at+1:]))
	if err == nil && (exponent < -4 || exponent >= 15) {
		return append(dst, short...)
	}
	return strconv.AppendFloat(dst, f, 'f', -1, 64)
}

// maxNumericDigits bounds a numeric on either side of its point: the largest precision that can be declared. An
// exponent of a few characters would otherwise make megabytes.
const maxNumericDigits = 1000

func errNumericOverflow() error {
	return errorf(codeNumericOutOfRange, "value overflows numeric format")
}

// parseNumeric returns the number in the form in which PostgreSQL prints it, or NaN, Infinity, -Infinity.
func parseNumeric(s string) (string, error) {
	text := strings.Trim(s, blanks)
	switch strings.ToLower(text) {
	case "nan":
		return "NaN", nil
	case "inf", "+inf", "infinity", "+infinity":
		return "Infinity", nil
	case "-inf", "-infinity":
		return "-Infinity", nil
	}
	number, exponent, hasExponent := strings.Cut(strings.ReplaceAll(text, "E", "e"), "e")
	shift := 0
	if hasExponent {
		e, err := strconv.ParseInt(exponent, 10, 32)
		switch {
		case errors.Is(err, strconv.ErrRange) || err == nil && (e > maxNumericDigits || e < -maxNumericDigits):
			return "", errNumericOverflow()
		case err != nil:
			return "", errSyntax(pgtype.NumericOID, s)
		}
		shift = int(e)
	}
	unsigned := strings.TrimPrefix(number, "-")
	negative := len(unsigned) < len(number)
	if !negative {
		unsigned = strings.TrimPrefix(number, "+")
	}
	whole, fraction, _ := strings.Cut(unsigned, ".")
	if whole+fraction == "" || strings.Trim(whole+fraction, "0123456789") != "" {
		return "", errSyntax(pgtype.NumericOID, s)
	}
	whole, fraction = movePoint(whole, fraction, shift)
	if len(whole) > maxNumericDigits || len(fraction) > 2*maxNumericDigits {
		return "", errNumericOverflow()
	}
	return numericText(negative, whole, fraction), nil
}

// movePoint moves the decimal point by shift digits to the right.
func movePoint(whole, fraction string, shift int) (string, string) {
	switch {
	case shift > 0:
		if missing := shift - len(fraction); missing > 0 {
			fraction += strings.Repeat("0", missing)
		}
		return whole + fraction[:shift], fraction[shift:]
	case shift < 0:
		if missing := -shift - len(whole); missing > 0 {
			whole = strings.Repeat("0", missing) + whole
		}
		return whole[:len(whole)+shift], whole[len(whole)+shift:] + fraction
	}
	return whole, fraction
}

// numericText joins the parts of a decimal number: no leading zeros, no negative zero.
func numericText(negative bool, whole, fraction string) string {
	whole = strings.TrimLeft(whole, "0")
	if negative && whole == "" && strings.Trim(fraction, "0") == "" {
		negative = false
	}
	text := whole
	if text == "" {
		text = "0"
	}
	if fraction != "" {
		text += "." + fraction
	}
	if negative {
		text = "-" + text
	}
	return text
}

// roundNumeric gives the nearest integer of a numeric's text, halves away from zero.
func roundNumeric(typ uint32, text string) (int64, error) {
	switch text {
	case "NaN":
		return 0, errorf(codeFeatureNotSupported, "cannot convert NaN to %s", TypeName(typ))
	case "Infinity", "-Infinity":
		return 0, errorf(codeFeatureNotSupported, "cannot convert infinity to %s", TypeName(typ))
	}
	whole, fraction, _ := strings.Cut(text, ".")
	v, err := strconv.ParseInt(whole, 10, 64)
	if err != nil {
		return 0, errOutOfRange(typ)
	}
	if fraction != "" && fraction[0] >= '5' {
		switch {
		case strings.HasPrefix(text, "-") && v > math.MinInt64:
			v--
		case !strings.HasPrefix(text, "-") && v < math.MaxInt64:
			v++
		default:
			return 0, errOutOfRange(typ)
		}
	}
	return narrow(typ, v)
}

// narrow checks that v fits the integer type.
func narrow(typ uint32, v int64) (int64, error) {
	switch {
	case typ == pgtype.Int2OID && int64(int16(v)) != v,
		typ == pgtype.Int4OID && int64(int32(v)) != v,
		typ == pgtype.OIDOID && int64(uint32(v)) != v:
		return 0, errOutOfRange(typ)
	}
	return v, nil
}

// Signs of a binary numeric.
const (
	numericPositive    = 0
	numericNegative    = 0x4000
	numericNaN         = 0xC000
	numericInfinity    = 0xD000
	numericNegInfinity = 0xF000
)

// appendBinaryNumeric appends the binary form of a numeric's text: count of digits, weight of the first, sign and
// scale, then the digits, which are of base 10,000, without zeros at either end.
func appendBinaryNumeric(dst []byte, text string) []byte {
	unsigned := strings.TrimPrefix(text, "-")
	sign := numericPositive
	switch {
	case text == "NaN":
		sign, unsigned = numericNaN, ""
	case text == "Infinity":
		sign, unsigned = numericInfinity, ""
	case text == "-Infinity":
		sign, unsigned = numericNegInfinity, ""
	case len(unsigned) < len(text):
		sign = numericNegative
	}
	whole, fraction, _ := strings.Cut(unsigned, ".")
	scale := len(fraction)
	whole = strings.Repeat("0", -len(whole)&3) + whole
	fraction += strings.Repeat("0", -len(fraction)&3)
	all := whole + fraction
	weight := len(whole)/4 - 1
	for strings.HasPrefix(all, "0000") {
		all = all[4:]
		weight--
	}
	for strings.HasSuffix(all, "0000") {
		all = all[:len(all)-4]
	}
	if all == "" {
		weight = 0
	}
	for _, n := range []int{len(all) / 4, weight, sign, scale} {
		dst = binary.BigEndian.AppendUint16(dst, uint16(n))
	}
	for ; all != ""; all = all[4:] {
		var digit uint16
		for _, c := range []byte(all[:4]) {
			digit = digit*10 + uint16(c-'0')
		}
		dst = binary.BigEndian.AppendUint16(dst, digit)
	}
	return dst
}

// parseBinaryNumeric checks the claims of the header (digits, weight, sign, scale; two bytes each) before anything of
// that size is made.
func parseBinaryNumeric(b []byte, number int) (string, error) {
	const header = 8
	if len(b) < header {
		return "", errorf(codeProtocolViolation, "insufficient data left in message")
	}
	digits := int(binary.BigEndian.Uint16(b))
	weight := int(int16(binary.BigEndian.Uint16(b[2:])))
	scale := int(int16(binary.BigEndian.Uint16(b[6:])))
	if err := checkSize(b, header+2*digits, number); err != nil {
		return "", err
	}
	if weight > maxNumericDigits/4 || weight < -maxNumericDigits/4 || scale > 2*maxNumericDigits || scale < 0 || digits > maxNumericDigits {
		return "", errNumericOverflow()
	}
	for at := header; at < len(b); at += 2 {
		if binary.BigEndian.Uint16(b[at:]) >= 10_000 {
			return "", errorf(codeInvalidBinary, "invalid digit in external \"numeric\" value")
		}
	}
	switch sign := binary.BigEndian.Uint16(b[4:]); sign {
	case numericPositive, numericNegative:
		return numericOfDigits(sign == numericNegative, b[header:], weight, scale), nil
	case numericNaN:
		return "NaN", nil
	case numericInfinity:
		return "Infinity", nil
	case numericNegInfinity:
		return "-Infinity", nil
	}
	return "", errorf(codeInvalidBinary, "invalid sign in external \"numeric\" value")
}

// numericOfDigits prints digits of base 10,000, the first of which counts 10,000^weight.
func numericOfDigits(negative bool, digits []byte, weight, scale int) string {
	var all strings.Builder
	for at := 0; at < len(digits); at += 2 {
		d := strconv.Itoa(int(binary.BigEndian.Uint16(digits[at:])))
		all.WriteString(strings.Repeat("0", 4-len(d)) + d)
	}
	whole, fraction := movePoint("", all.String(), 4*(weight+1))
	if len(fraction) < scale {
		fraction += strings.Repeat("0", scale-len(fraction))
	}
	return numericText(negative, whole, fraction[:scale])
}
