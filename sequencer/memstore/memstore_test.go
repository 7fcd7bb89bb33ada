package memstore_test

import (
	"testing"

	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/memstore"
	"github.com/nextvald/nextvald/sequencer/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(testing.TB) storetest.Opener {
		namespaces := map[string]*memstore.Store{}
		return func(_ testing.TB, namespace string) sequencer.Store {
			if namespaces[namespace] == nil {
				namespaces[namespace] = memstore.New()
			}
			return namespaces[namespace]
		}
	})
}
