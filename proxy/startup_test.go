package proxy

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzParseStart reads any startup packet. What a server would cut off a name is cut off.
func FuzzParseStart(f *testing.F) {
	for _, body := range []string{"", "\x00", "user\x00me\x00\x00", "user\x00me\x00database\x00\x00replication\x00no\x00\x00", "user\x00\x00\x00x", "user",
		"user\x00" + strings.Repeat("\u00e4", 40) + "\x00\x00"} {
		f.Add([]byte("\x00\x00\x00\x00\x00\x03\x00\x00" + body))
	}
	f.Fuzz(func(t *testing.T, packet []byte) {
		if len(packet) < 8 {
			return // the reader lets none such pass
		}
		st, err := parseStart(packet)
		if err != nil {
			return
		}
		require.Equal(t, packet, st.packet)
		require.LessOrEqual(t, len(st.user), maxName)
		require.LessOrEqual(t, len(st.database), maxName)
		require.NotContains(t, st.user+st.database, "\x00")
		require.True(t, st.database != "" || st.user == "")
	})
}
