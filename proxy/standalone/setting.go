package standalone

import (
	_ "embed"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // clients name time zones on machines that have no database of them

	"github.com/nextvald/nextvald/proxy/answer"
	"github.com/nextvald/nextvald/proxy/wire"
)

// serverVersion is what clients parse to learn what the server can do.
const serverVersion = "15.0 (nextvald)"

// setting is one configuration parameter, as pg_settings describes it.
type setting struct {
	name string // as SHOW writes it
	// kind is "bool", "enum", "integer", "real", "string", or "fixed" for one that cannot be changed.
	kind string
	// unit is that of an integer without one: "ms", "s", "kB", "8kB", or empty.
	unit        string
	initial     string
	least, most int64
	values      []string // of an enum
}

//go:embed settings.tsv
var settingsTable string

// settingNames lists all settings in the order of SHOW ALL; settingsByName finds them by their name in lower case.
var settingNames, settingsByName = readSettings(settingsTable)

// readSettings reads the table: a line each, of columns parted by tabs; the last ones may be missing.
func readSettings(table string) ([]string, map[string]*setting) {
	var names []string
	byName := make(map[string]*setting)
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		columns := append(strings.Split(strings.TrimSuffix(line, "\n"), "\t"), "", "", "", "", "", "")
		st := &setting{
			name: columns[0], kind: columns[1], unit: columns[2], initial: columns[3],
			least: tableNumber(columns[4]), most: tableNumber(columns[5]),
		}
		if columns[6] != "" {
			st.values = strings.Split(columns[6], ",")
		}
		if n, err := strconv.ParseInt(st.initial, 10, 64); err == nil && st.kind == "integer" {
			st.initial = st.display(n)
		}
		names = append(names, st.name)
		byName[strings.ToLower(st.name)] = st
	}
	return names, byName
}

// tableNumber reads a number; 0 for none.
func tableNumber(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// unit is one that a setting's value may be written in.
type unit struct {
	name string
	size float64 // in bytes or microseconds
}

// Units from the largest to the smallest.
var (
	memoryUnits = []unit{{"TB", 1 << 40}, {"GB", 1 << 30}, {"MB", 1 << 20}, {"kB", 1 << 10}, {"B", 1}}
	timeUnits   = []unit{{"d", 86400e6}, {"h", 3600e6}, {"min", 60e6}, {"s", 1e6}, {"ms", 1e3}, {"us", 1}}
)

// scale returns the units of a setting and the size of its own unit in the smallest of them.
func (st *setting) scale() ([]unit, float64) {
	switch st.unit {
	case "ms":
		return timeUnits, 1e3
	case "s":
		return timeUnits, 1e6
	case "kB":
		return memoryUnits, 1 << 10
	case "8kB":
		return memoryUnits, 8 << 10
	}
	return nil, 1
}

// display writes a number as SHOW does: in the largest unit that needs no fraction.
func (st *setting) display(n int64) string {
	units, size := st.scale()
	if n > 0 {
		for _, u := range units {
			if total := float64(n) * size; math.Mod(total, u.size) == 0 {
				return strconv.FormatFloat(total/u.size, 'f', 0, 64) + u.name
			}
		}
	}
	return strconv.FormatInt(n, 10)
}

func errInvalidValue(name, value string) *wire.Error {
	return errorf("22023", "invalid value for parameter \"%s\": \"%s\"", name, value)
}

// canonical checks a value and returns it as SHOW writes it.
func (st *setting) canonical(value string) (string, *wire.Error) {
	switch st.kind {
	case "fixed":
		return "", errorf("55P02", "parameter \"%s\" cannot be changed", st.name)
	case "bool":
		on, err := parseBool(value)
		if err != nil {
			return "", errorf("22023", "parameter \"%s\" requires a Boolean value", st.name)
		}
		return onOff(on), nil
	case "enum":
		return st.canonicalEnum(value)
	case "integer":
		return st.canonicalInteger(value)
	case "real":
		f, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		switch {
		case err != nil || math.IsNaN(f):
			return "", errInvalidValue(st.name, value)
		case f < 0 || math.IsInf(f, 0):
			return "", errorf("22023", "%s is outside the valid range for parameter \"%s\" (0 .. 1.79769e+308)", formatReal(f), st.name)
		}
		return formatReal(f), nil
	}
	if check := stringChecks[strings.ToLower(st.name)]; check != nil {
		return check(st.name, value)
	}
	return value, nil
}

func formatReal(f float64) string { return strconv.FormatFloat(f, 'g', 6, 64) }

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// parseBool reads a boolean as settings have it.
func parseBool(value string) (bool, error) {
	v, _, err := answer.Bool(answer.Param{Value: []byte(value)})
	return v, err
}

func (st *setting) canonicalEnum(value string) (string, *wire.Error) {
	for _, v := range st.values {
		if strings.EqualFold(v, value) {
			return v, nil
		}
	}
	if on, err := parseBool(value); err == nil && slices.Contains(st.values, "on") {
		return onOff(on), nil
	}
	if strings.EqualFold(value, "debug") && slices.Contains(st.values, "debug2") {
		return "debug2", nil
	}
	e := errInvalidValue(st.name, value)
	e.Hint = "Available values: " + strings.Join(st.values, ", ") + "."
	return "", e
}

var number = regexp.MustCompile(`^\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*([a-zA-Z]*)\s*$`)

func (st *setting) canonicalInteger(value string) (string, *wire.Error) {
	parts := number.FindStringSubmatch(value)
	if parts == nil {
		return "", errInvalidValue(st.name, value)
	}
	f, err := strconv.ParseFloat(parts[1], 64)
	if err != nil {
		return "", errInvalidValue(st.name, value)
	}
	units, own := st.scale()
	if parts[2] != "" {
		i := slices.IndexFunc(units, func(u unit) bool { return u.name == parts[2] })
		if i < 0 {
			e := errInvalidValue(st.name, value)
			if units != nil {
				e.Hint = "Valid units for this parameter are " + unitList(units) + "."
			}
			return "", e
		}
		f = f * units[i].size / own
	}
	f = math.RoundToEven(f)
	if f < math.MinInt32 || f > math.MaxInt32 {
		e := errInvalidValue(st.name, value)
		e.Hint = "Value exceeds integer range."
		return "", e
	}
	n := int64(f)
	if n < st.least || n > st.most {
		blank := ""
		if st.unit != "" {
			blank = " " + st.unit
		}
		return "", errorf("22023", "%d%s is outside the valid range for parameter \"%s\" (%d .. %d)", n, blank, st.name, st.least, st.most)
	}
	return st.display(n), nil
}

// unitList lists units from the smallest, as the hint does.
func unitList(units []unit) string {
	var quoted []string
	for _, u := range slices.Backward(units) {
		quoted = append(quoted, fmt.Sprintf("%q", u.name))
	}
	last := len(quoted) - 1
	return strings.Join(quoted[:last], ", ") + ", and " + quoted[last]
}

// stringChecks check and normalize settings whose values are neither numbers nor listed in the table.
var stringChecks = map[string]func(name, value string) (string, *wire.Error){
	"client_encoding":  checkClientEncoding,
	"datestyle":        checkDateStyle,
	"timezone":         checkTimeZone,
	"application_name": checkApplicationName,
}

// encodings are the names that client_encoding may have, by their letters and digits. Only UTF8 is understood in full.
var encodings = map[string]string{
	"utf8": "UTF8", "unicode": "UTF8", "sqlascii": "SQL_ASCII", "latin1": "LATIN1", "iso88591": "LATIN1",
	"latin9": "LATIN9", "iso885915": "LATIN9", "win1252": "WIN1252", "windows1252": "WIN1252",
}

func checkClientEncoding(name, value string) (string, *wire.Error) {
	letters := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return -1
	}, strings.ToLower(value))
	if encoding, ok := encodings[letters]; ok {
		return encoding, nil
	}
	return "", errInvalidValue(name, value)
}

func checkDateStyle(name, value string) (string, *wire.Error) {
	style, order := "ISO", "MDY"
	for word := range strings.SplitSeq(value, ",") {
		word = strings.TrimSpace(word)
		switch w := strings.ToUpper(word); {
		case w == "ISO" || w == "SQL":
			style = w
		case strings.HasPrefix(w, "POSTGRES"):
			style = "Postgres"
		case w == "GERMAN":
			style = "German"
			if !strings.Contains(value, ",") {
				order = "DMY"
			}
		case w == "YMD" || w == "DMY" || w == "MDY":
			order = w
		case strings.HasPrefix(w, "EURO"):
			order = "DMY"
		case w == "US" || strings.HasPrefix(w, "NONEURO"):
			order = "MDY"
		case w == "DEFAULT":
			style, order = "ISO", "MDY"
		default:
			e := errInvalidValue(name, value)
			e.Detail = fmt.Sprintf("Unrecognized key word: \"%s\".", strings.ToLower(word))
			return "", e
		}
	}
	return style + ", " + order, nil
}

func checkTimeZone(name, value string) (string, *wire.Error) {
	zone, _, ok := findZone(value)
	if !ok {
		return "", errInvalidValue(name, value)
	}
	return zone, nil
}

// posixZone is a zone without rules: a name and the hours (and minutes) west of Greenwich.
var posixZone = regexp.MustCompile(`^(?:[A-Za-z]{3,}|<[A-Za-z0-9:+-]+>)([+-]?[0-9]{1,2})(?::([0-9]{2}))?$`)

// findZone finds a time zone by its name in any case, or as POSIX writes one.
func findZone(value string) (name string, zone *time.Location, ok bool) {
	if len(value) > 100 || value == "" || strings.EqualFold(value, "local") {
		return "", nil, false
	}
	for _, name := range []string{value, strings.ToUpper(value), titleZone(value)} {
		if zone, err := time.LoadLocation(name); err == nil {
			return name, zone, true
		}
	}
	parts := posixZone.FindStringSubmatch(value)
	if parts == nil {
		return "", nil, false
	}
	hours, err := strconv.Atoi(parts[1])
	if err != nil || hours < -24 || hours > 24 {
		return "", nil, false
	}
	minutes := int(tableNumber(parts[2]))
	if strings.HasPrefix(parts[1], "-") {
		minutes = -minutes
	}
	return value, time.FixedZone("", -(hours*3600 + minutes*60)), true
}

// titleZone writes a zone's name as most of them are written: Europe/Berlin.
func titleZone(value string) string {
	name := []byte(strings.ToLower(value))
	for i := range name {
		if (i == 0 || name[i-1] == '/' || name[i-1] == '_' || name[i-1] == '-') && name[i] >= 'a' && name[i] <= 'z' {
			name[i] -= 'a' - 'A'
		}
	}
	return string(name)
}

// checkApplicationName keeps printable ASCII, as PostgreSQL does.
func checkApplicationName(_, value string) (string, *wire.Error) {
	const limit = 63
	name := []byte(value[:min(len(value), limit)])
	for i, c := range name {
		if c < 32 || c > 126 {
			name[i] = '?'
		}
	}
	return string(name), nil
}
