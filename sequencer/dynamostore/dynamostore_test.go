package dynamostore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/dynamostore"
	"github.com/nextvald/nextvald/sequencer/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// config is for a new table of a real DynamoDB Local.
func config(t testing.TB) dynamostore.Config {
	endpoint := os.Getenv("NEXTVALD_TEST_DYNAMODB")
	if endpoint == "" {
		t.Fatal("NEXTVALD_TEST_DYNAMODB is not set: run `make test`, or set it to the URL of a DynamoDB Local")
	}
	return dynamostore.Config{
		Table:       fmt.Sprintf("test-%016x", rand.Uint64()),
		Region:      "us-east-1",
		Endpoint:    endpoint,
		Namespace:   "default",
		Credentials: aws.NewCredentialsCache(credentials.NewStaticCredentialsProvider("test", "test", "")),
	}
}

func open(t testing.TB, cfg dynamostore.Config) *dynamostore.Store {
	s, err := dynamostore.Open(context.Background(), cfg)
	require.NoError(t, err)
	return s
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t testing.TB) storetest.Opener {
		cfg := config(t)
		return func(t testing.TB, namespace string) sequencer.Store {
			cfg.Namespace = namespace
			return open(t, cfg)
		}
	})
}

func TestOpenAtTheSameTime(t *testing.T) {
	cfg := config(t)
	failed := make(chan error)
	for range 4 {
		go func() {
			s, err := dynamostore.Open(context.Background(), cfg)
			if err == nil {
				err = s.Close()
			}
			failed <- err
		}()
	}
	for range 4 {
		require.NoError(t, <-failed)
	}
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, closed.Close())

	for name, c := range map[string]struct {
		change  func(*dynamostore.Config)
		message string
	}{
		"accepts and says nothing": {
			func(c *dynamostore.Config) { c.Endpoint = "http://" + silent.Addr().String() }, "no answer in time",
		},
		"nobody listens": {
			func(c *dynamostore.Config) { c.Endpoint = "http://" + closed.Addr().String() }, "connection refused",
		},
		"a bad name": {
			func(c *dynamostore.Config) { c.Table = "ab" }, "ValidationException",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(t)
			c.change(&cfg)
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			_, err := dynamostore.Open(ctx, cfg)
			require.ErrorContains(t, err, c.message)
			require.ErrorContains(t, err, "cannot use the DynamoDB table "+cfg.Table+" at "+cfg.Endpoint)
			require.NotContains(t, err.Error(), "\n")
			require.NoError(t, ctx.Err())
		})
	}
}
