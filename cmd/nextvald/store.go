package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/boltstore"
	"github.com/nextvald/nextvald/sequencer/dynamostore"
	"github.com/nextvald/nextvald/sequencer/memstore"
	"github.com/nextvald/nextvald/sequencer/peerstore"
)

// storeURL is a checked store URL.
type storeURL struct {
	text string // without secrets, for the log
	open storeOpener
	// tier: it is a file over another store. A file belongs to one process, so whoever only looks at the store opens the
	// one beneath.
	tier    bool
	beneath storeOpener
}

// storeOpener opens a store for a namespace. The log gets what happens in the background.
type storeOpener func(ctx context.Context, namespace string, log *slog.Logger) (sequencer.Store, error)

// look opens the store for whoever hands out no values.
func (s storeURL) look(ctx context.Context, namespace string) (sequencer.Store, error) {
	open := s.open
	if s.tier {
		open = s.beneath
	}
	return open(ctx, namespace, slog.New(slog.DiscardHandler))
}

// storeOptions are what may stand after the question mark, by scheme.
var storeOptions = map[string][]string{
	"bolt":     {"over", "witness"},
	"dynamodb": {"region", "endpoint"},
}

// parseStore checks a store URL. It does not connect.
func parseStore(v string) (storeURL, error) {
	scheme, rest, ok := strings.Cut(v, ":")
	if !ok {
		return storeURL{}, errors.New("is not a store URL: use memory:, bolt:PATH, dynamodb:TABLE or peer:URL")
	}
	if scheme == "peer" {
		return parsePeer(rest)
	}
	name, query, _ := strings.Cut(rest, "?")
	options, err := url.ParseQuery(query)
	if err != nil {
		return storeURL{}, errors.New("the part after the question mark is malformed")
	}
	for key, values := range options {
		if !slices.Contains(storeOptions[scheme], key) {
			return storeURL{}, fmt.Errorf("a %s store has no option %q", scheme, key)
		}
		if len(values) > 1 || values[0] == "" {
			return storeURL{}, fmt.Errorf("option %s needs one value", key)
		}
	}

	s := storeURL{text: v}
	switch scheme {
	case "bolt":
		if name == "" {
			return s, errors.New("bolt: needs the path of a file")
		}
		if options.Has("over") {
			return parseTier(s, name, options)
		}
		if options.Has("witness") {
			return s, errors.New("option witness is of a bolt file over another store")
		}
		s.open = func(_ context.Context, namespace string, _ *slog.Logger) (sequencer.Store, error) {
			return boltstore.Open(name, namespace)
		}
	case "dynamodb":
		cfg := dynamostore.Config{Table: name, Region: options.Get("region"), Endpoint: options.Get("endpoint")}
		if err := checkTable(cfg.Table, cfg.Endpoint); err != nil {
			return s, err
		}
		s.open = func(ctx context.Context, namespace string, _ *slog.Logger) (sequencer.Store, error) {
			cfg := cfg
			cfg.Namespace = namespace
			return dynamostore.Open(ctx, cfg)
		}
	case "memory":
		if name != "" {
			return s, errors.New("memory: takes nothing after the colon")
		}
		s.open = func(context.Context, string, *slog.Logger) (sequencer.Store, error) { return memstore.New(), nil }
	default:
		return s, fmt.Errorf("there is no store %q: use memory:, bolt:PATH, dynamodb:TABLE or peer:URL", scheme)
	}
	return s, nil
}

// parseTier makes s a bolt file over another store.
func parseTier(s storeURL, path string, options url.Values) (storeURL, error) {
	over, err := parseStore(options.Get("over"))
	if err != nil {
		return s, fmt.Errorf("the store that the bolt file is over: %w", err)
	}
	if over.tier {
		return s, errors.New("a bolt file over a bolt file over a store: one of them is enough")
	}
	if strings.HasPrefix(over.text, "peer:") {
		return s, errors.New("a bolt file over a peer is not supported: give the peer one")
	}
	s.text = "bolt:" + path + "?over=" + url.QueryEscape(over.text)
	s.open = func(ctx context.Context, namespace string, log *slog.Logger) (sequencer.Store, error) {
		beneath, err := over.open(ctx, namespace, log)
		if err != nil {
			return nil, err
		}
		tier, err := boltstore.OpenTier(ctx, path, beneath, boltstore.TierConfig{
			Logger: log, WitnessFolder: options.Get("witness"),
		})
		if err != nil {
			return nil, errors.Join(err, beneath.Close())
		}
		return tier, nil
	}
	s.tier, s.beneath = true, over.open
	return s, nil
}

// parsePeer checks the URL of a nextvald to lease from, which may be percent-encoded as a whole. Its errors never hold it: it
// may have a password.
func parsePeer(v string) (storeURL, error) {
	wrong := errors.New("peer: needs the URL of another nextvald, such as postgres://user@host:6432/")
	if !strings.Contains(v, "://") {
		decoded, err := url.PathUnescape(v)
		if err != nil {
			return storeURL{}, wrong
		}
		v = decoded
	}
	if !strings.HasPrefix(v, "postgres://") && !strings.HasPrefix(v, "postgresql://") {
		return storeURL{}, wrong
	}
	if _, err := peerstore.Parse(v); err != nil {
		return storeURL{}, fmt.Errorf("peer: not a PostgreSQL URL: %w", parseCause(err))
	}
	shown, err := url.Parse(v)
	if err != nil {
		return storeURL{}, wrong
	}
	shown.User, shown.RawQuery = url.User(shown.User.Username()), "" // which may hold a password too
	return storeURL{
		text: "peer:" + shown.String(),
		open: func(ctx context.Context, namespace string, _ *slog.Logger) (sequencer.Store, error) {
			return peerstore.Open(ctx, peerstore.Config{URL: v, Namespace: namespace})
		},
	}, nil
}

// tableName is DynamoDB's rule for the names of tables.
var tableName = regexp.MustCompile(`^[a-zA-Z0-9_.-]{3,255}$`)

func checkTable(name, endpoint string) error {
	if name == "" {
		return errors.New("dynamodb: needs the name of a table")
	}
	if !tableName.MatchString(name) {
		return fmt.Errorf("%q is not a name for a DynamoDB table: 3 to 255 letters, digits, and _ . -", name)
	}
	if endpoint == "" {
		return nil
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil {
		return errors.New("the endpoint is not a URL such as http://127.0.0.1:8000")
	}
	return nil
}
