package boltstore_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/boltstore"
	"github.com/nextvald/nextvald/sequencer/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStore(t *testing.T) {
	storetest.Run(t, func(t testing.TB) storetest.Opener {
		path := filepath.Join(t.TempDir(), "a", "b", "nextvald.db")
		return func(t testing.TB, namespace string) sequencer.Store {
			s, err := boltstore.Open(path, namespace)
			require.NoError(t, err)
			return s
		}
	})
}

func TestTheFileIsPrivate(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "data")
	path := filepath.Join(folder, "nextvald.db")
	s, err := boltstore.Open(path, "default")
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	for name, mode := range map[string]os.FileMode{folder: 0o700, path: 0o600} {
		info, err := os.Stat(name)
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode().Perm())
	}
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	folder := t.TempDir()
	held := filepath.Join(folder, "held.db")
	s, err := boltstore.Open(held, "default")
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	other := filepath.Join(folder, "other.db")
	require.NoError(t, os.WriteFile(other, make([]byte, 10_000), 0o600))

	for name, c := range map[string]struct{ path, message string }{
		"held":          {held, "the bolt file " + held + " is held by another process"},
		"no bolt file":  {other, "cannot open the bolt file " + other},
		"a folder":      {folder, "cannot open the bolt file " + folder},
		"below no path": {filepath.Join(other, "x.db"), "cannot create the folder of the bolt file"},
	} {
		_, err := boltstore.Open(c.path, "default")
		require.ErrorContains(t, err, c.message, name)
	}
}

func TestClosed(t *testing.T) {
	ctx := context.Background()
	s, err := boltstore.Open(filepath.Join(t.TempDir(), "nextvald.db"), "default")
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	_, err = s.NextOID(ctx)
	require.Error(t, err)
	_, err = s.Feed(ctx)
	require.Error(t, err)
}

// A process that was killed is not waited for: nobody else had the file.
func TestMembersOfAnEarlierProcess(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "nextvald.db")
	s, err := boltstore.Open(path, "default")
	require.NoError(t, err)
	for _, id := range []string{"a", "b"} {
		require.NoError(t, s.PutMember(ctx, sequencer.Member{ID: id, Token: "1", Expires: 1 << 50}, ""))
	}
	mark := sequencer.Member{ID: "the mark of a tier", Token: "1"}
	require.NoError(t, s.PutMember(ctx, mark, ""))
	require.NoError(t, s.Close())
	s, err = boltstore.Open(path, "default")
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	members, err := s.Members(ctx)
	require.NoError(t, err)
	require.Equal(t, []sequencer.Member{mark}, members)
}
