package standalone

import (
	"maps"
	"regexp"
	"strings"
	"time"

	"github.com/nextvald/nextvald/proxy/wire"
)

// reportedSettings are those that a client is told of, at login and when they change, in PostgreSQL's order.
var reportedSettings = []string{
	"application_name", "client_encoding", "DateStyle", "default_transaction_read_only", "in_hot_standby",
	"integer_datetimes", "IntervalStyle", "is_superuser", "server_encoding", "server_version", "session_authorization",
	"standard_conforming_strings", "TimeZone",
}

// settings are the configuration parameters of a session. Names are kept in lower case.
type settings struct {
	user     string
	atLogin  map[string]string   // what the startup packet set: where RESET goes back to
	values   map[string]assigned // what was set since
	reported map[string]string
}

// assigned is the value that a session gave a setting, and that of the transaction alone (SET LOCAL).
type assigned struct {
	value, local       string
	hasValue, hasLocal bool
}

// snapshot is what a ROLLBACK goes back to.
type snapshot map[string]assigned

func newSettings(user string) *settings {
	return &settings{user: user, atLogin: make(map[string]string), values: make(map[string]assigned), reported: make(map[string]string)}
}

func errUnknownSetting(name string) *wire.Error {
	return errorf("42704", "unrecognized configuration parameter \"%s\"", name)
}

var customName = regexp.MustCompile(`^[A-Za-z_\x80-\xff][A-Za-z0-9_$\x80-\xff]*(\.[A-Za-z_\x80-\xff][A-Za-z0-9_$\x80-\xff]*)+$`)

// isCustom reports whether a name is one of an extension's settings, which any session may make up.
func isCustom(name string) bool { return customName.MatchString(name) }

// check checks that a setting may have a value, and returns the value as SHOW writes it.
func (s *settings) check(name, value string) (string, *wire.Error) {
	key := strings.ToLower(name)
	st, ok := settingsByName[key]
	switch {
	case !ok && isCustom(name):
		return value, nil
	case !ok && strings.Contains(name, "."):
		e := errorf("42602", "invalid configuration parameter name \"%s\"", name)
		e.Detail = "Custom parameter names must be two or more simple identifiers separated by dots."
		return "", e
	case !ok:
		return "", errUnknownSetting(name)
	case key == "session_authorization" && value != s.user, key == "role" && value != "none" && value != s.user:
		return "", errorf("22023", "role \"%s\" does not exist", value)
	}
	return st.canonical(value)
}

// start sets a value of the startup packet.
func (s *settings) start(name, value string) *wire.Error {
	canonical, err := s.check(name, value)
	if err == nil {
		s.atLogin[strings.ToLower(name)] = canonical
	}
	return err
}

// set sets a value, of the transaction alone when local.
func (s *settings) set(name, value string, local bool) *wire.Error {
	canonical, err := s.check(name, value)
	if err != nil {
		return err
	}
	key := strings.ToLower(name)
	a := s.values[key]
	if local {
		a.local, a.hasLocal = canonical, true
	} else {
		a = assigned{value: canonical, hasValue: true}
	}
	s.values[key] = a
	return nil
}

// known reports whether there is a setting of that name; custom ones are known once they were set.
func (s *settings) known(name string) bool {
	key := strings.ToLower(name)
	_, inTable := settingsByName[key]
	_, set := s.values[key]
	_, login := s.atLogin[key]
	return inTable || set || login
}

// get returns the value in effect.
func (s *settings) get(name string) string {
	key := strings.ToLower(name)
	a := s.values[key]
	switch {
	case a.hasLocal:
		return a.local
	case a.hasValue:
		return a.value
	}
	return s.initial(name)
}

// initial returns the value that RESET goes back to.
func (s *settings) initial(name string) string {
	key := strings.ToLower(name)
	if value, ok := s.atLogin[key]; ok {
		return value
	}
	switch key {
	case "session_authorization":
		return s.user
	case "transaction_isolation", "transaction_read_only", "transaction_deferrable":
		return s.get("default_" + key)
	}
	if st, ok := settingsByName[key]; ok {
		return st.initial
	}
	return ""
}

// resetAll undoes everything that was set; custom settings stay known, without a value.
func (s *settings) resetAll() {
	for key := range s.values {
		if _, ok := settingsByName[key]; ok {
			delete(s.values, key)
		} else {
			s.values[key] = assigned{}
		}
	}
}

func (s *settings) snapshot() snapshot { return maps.Clone(s.values) }

func (s *settings) restore(before snapshot) {
	custom := s.values
	s.values = maps.Clone(before)
	for key := range custom {
		if _, ok := s.values[key]; !ok && isCustom(key) {
			s.values[key] = assigned{}
		}
	}
}

// commit ends what was set for the transaction alone.
func (s *settings) commit() {
	for key, a := range s.values {
		if a.hasLocal {
			a.local, a.hasLocal = "", false
			s.values[key] = a
		}
	}
}

// assignment is a setting with its new value.
type assignment struct{ name, value string }

// modes are the settings of the transaction, for a chained one.
func (s *settings) modes() []assignment {
	var modes []assignment
	for _, name := range []string{"transaction_isolation", "transaction_read_only", "transaction_deferrable"} {
		modes = append(modes, assignment{name, s.get(name)})
	}
	return modes
}

// appendReport appends a ParameterStatus for every reported setting that differs from what the client was told last.
func (s *settings) appendReport(dst []byte) []byte {
	for _, name := range reportedSettings {
		value := s.get(name)
		if told, ok := s.reported[name]; !ok || told != value {
			dst = wire.AppendParameterStatus(dst, name, value)
			s.reported[name] = value
		}
	}
	return dst
}

// localTime puts a time into the session's time zone. Only DateStyle ISO is printed here.
func (s *settings) localTime(t time.Time) (any, error) {
	if !strings.HasPrefix(s.get("DateStyle"), "ISO") {
		return nil, &wire.Error{Code: "0A000", Message: "times in DateStyle " + s.get("DateStyle") + " are not supported without an upstream",
			Hint: "Set DateStyle to ISO."}
	}
	_, zone, ok := findZone(s.get("TimeZone"))
	if !ok {
		zone = time.UTC
	}
	return t.Round(0).Truncate(time.Microsecond).In(zone), nil
}
