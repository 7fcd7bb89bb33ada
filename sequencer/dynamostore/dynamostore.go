// Package dynamostore keeps sequences in an Amazon DynamoDB table.
//
// Every write is one conditional write of one item, sent once: the SDK's own retries are off, since a write that is sent
// again after its answer was lost may find its own work and report a refusal. Every read is strongly consistent. The table
// is created when it does not exist: on-demand capacity, deletion protection.
package dynamostore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/logging"
	"golang.org/x/sync/errgroup"

	"github.com/nextvald/nextvald/sequencer"
	"github.com/nextvald/nextvald/sequencer/internal/layout"
)

// Config says which table, and how to reach it.
type Config struct {
	// Table is the table's name.
	Table string
	// Region is the AWS region. Default: as the SDK finds it.
	Region string
	// Endpoint is the URL of a service other than AWS's own, such as DynamoDB Local.
	Endpoint string
	// Namespace separates the deployments that share a table.
	Namespace string
	// Transport, when set, may change the HTTP transport of the requests before it is used.
	Transport func(*http.Transport)
	// Credentials sign the requests. Default: as the SDK finds them (environment, shared files, roles).
	Credentials aws.CredentialsProvider
}

const (
	// requestTimeout bounds each request of Open, credentials included.
	requestTimeout = 8 * time.Second
	dialTimeout    = 3 * time.Second
	// idleConnections is how many connections are kept for the next requests.
	idleConnections = 64
	// createTimeout bounds the wait for a new table.
	createTimeout = time.Minute
	// pollTable is how often a table that is not active yet is looked at.
	pollTable = 200 * time.Millisecond
	// leaseAttempts bounds the requests of one Lease. Each one after the first follows a refusal that told what to ask for.
	leaseAttempts = 8
	// batchKeys is how many items a BatchGetItem may ask for, and batches how many of these are sent at once.
	batchKeys, batches = 100, 8
	// batchPause is the pause before what a BatchGetItem did not answer is asked for again.
	batchPause = 20 * time.Millisecond
)

// client is what is used of the SDK.
type client interface {
	DescribeTable(context.Context, *dynamodb.DescribeTableInput, ...func(*dynamodb.Options)) (*dynamodb.DescribeTableOutput, error)
	CreateTable(context.Context, *dynamodb.CreateTableInput, ...func(*dynamodb.Options)) (*dynamodb.CreateTableOutput, error)
	GetItem(context.Context, *dynamodb.GetItemInput, ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error)
	PutItem(context.Context, *dynamodb.PutItemInput, ...func(*dynamodb.Options)) (*dynamodb.PutItemOutput, error)
	UpdateItem(context.Context, *dynamodb.UpdateItemInput, ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error)
	DeleteItem(context.Context, *dynamodb.DeleteItemInput, ...func(*dynamodb.Options)) (*dynamodb.DeleteItemOutput, error)
	BatchGetItem(context.Context, *dynamodb.BatchGetItemInput, ...func(*dynamodb.Options)) (*dynamodb.BatchGetItemOutput, error)
	Query(context.Context, *dynamodb.QueryInput, ...func(*dynamodb.Options)) (*dynamodb.QueryOutput, error)
}

// Store is a sequencer.Store in a DynamoDB table.
type Store struct {
	client    client
	transport *http.Transport
	table     *string
	namespace string
}

var _ sequencer.Store = (*Store)(nil)

// Open connects to the table, and creates it when it does not exist. It refuses a global table whose replicas are only
// eventually consistent, on which two regions could lease the same values. A service that does not answer is an error
// within 8 s, a new table that does not become active within a minute as well.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	var options []func(*config.LoadOptions) error
	if cfg.Region != "" {
		options = append(options, config.WithRegion(cfg.Region))
	}
	if cfg.Credentials != nil {
		options = append(options, config.WithCredentialsProvider(cfg.Credentials))
	}
	options = append(options,
		config.WithHTTPClient(awshttp.NewBuildableClient().WithDialerOptions(func(d *net.Dialer) { d.Timeout = dialTimeout })),
		config.WithRetryer(func() aws.Retryer { return aws.NopRetryer{} }),
		// The SDK would write warnings to stderr past the program's log, such as about the checksum that DynamoDB Local
		// leaves out of its refusals. What matters comes back as an error.
		config.WithLogger(logging.Nop{}))
	load, stop := context.WithTimeout(ctx, requestTimeout)
	defer stop()
	sdk, err := config.LoadDefaultConfig(load, options...)
	if err != nil {
		return nil, fmt.Errorf("cannot load the AWS configuration: %w", err)
	}
	if sdk.Region == "" {
		return nil, errors.New("no AWS region is given for DynamoDB")
	}
	// The SDK's transport, with the certificates that its configuration names, made our own so that Close can end it.
	transport := sdk.HTTPClient.(*awshttp.BuildableClient).GetTransport()
	transport.MaxIdleConnsPerHost = idleConnections
	if cfg.Transport != nil {
		cfg.Transport(transport)
	}
	s := &Store{
		transport: transport,
		client: dynamodb.NewFromConfig(sdk, func(o *dynamodb.Options) {
			o.HTTPClient = &http.Client{
				Transport:     transport,
				CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			}
			if cfg.Endpoint != "" {
				o.BaseEndpoint = &cfg.Endpoint
			}
		}),
		table:     &cfg.Table,
		namespace: cfg.Namespace,
	}
	if err := s.open(ctx); err != nil {
		_ = s.Close()
		where := "region " + sdk.Region
		if cfg.Endpoint != "" {
			where = cfg.Endpoint
		}
		return nil, fmt.Errorf("cannot use the DynamoDB table %s at %s: %w", cfg.Table, where, shorten(err))
	}
	return s, nil
}

// Close implements sequencer.Store.
func (s *Store) Close() error {
	s.transport.CloseIdleConnections()
	return nil
}

// open makes sure that the table is there and fit for use.
func (s *Store) open(ctx context.Context) error {
	table, err := s.describe(ctx)
	var missing *types.ResourceNotFoundException
	if errors.As(err, &missing) {
		if err := s.create(ctx); err != nil {
			return err
		}
		table, err = s.describe(ctx)
	}
	for deadline := time.Now().Add(createTimeout); err == nil && table.TableStatus == types.TableStatusCreating; {
		if time.Now().After(deadline) {
			return errors.New("it is not active after " + createTimeout.String())
		}
		select {
		case <-time.After(pollTable):
		case <-ctx.Done():
			return ctx.Err()
		}
		table, err = s.describe(ctx)
	}
	if err != nil {
		return err
	}
	return fit(table)
}

func (s *Store) describe(ctx context.Context) (*types.TableDescription, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	out, err := s.client.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: s.table})
	if err != nil {
		return nil, err
	}
	return out.Table, nil
}

// create makes the table. Another process may be making it too.
func (s *Store) create(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err := s.client.CreateTable(ctx, &dynamodb.CreateTableInput{
		TableName: s.table,
		AttributeDefinitions: []types.AttributeDefinition{
			{AttributeName: aws.String("pk"), AttributeType: types.ScalarAttributeTypeS},
			{AttributeName: aws.String("sk"), AttributeType: types.ScalarAttributeTypeS},
		},
		KeySchema: []types.KeySchemaElement{
			{AttributeName: aws.String("pk"), KeyType: types.KeyTypeHash},
			{AttributeName: aws.String("sk"), KeyType: types.KeyTypeRange},
		},
		BillingMode:               types.BillingModePayPerRequest,
		DeletionProtectionEnabled: aws.Bool(true),
	})
	var inUse *types.ResourceInUseException
	if errors.As(err, &inUse) {
		return nil
	}
	return err
}

// fit refuses a table that cannot keep the promises.
func fit(t *types.TableDescription) error {
	if t.TableStatus != types.TableStatusActive && t.TableStatus != types.TableStatusUpdating {
		return fmt.Errorf("its status is %s", t.TableStatus)
	}
	for _, k := range t.KeySchema {
		want := map[string]types.KeyType{"pk": types.KeyTypeHash, "sk": types.KeyTypeRange}[aws.ToString(k.AttributeName)]
		if len(t.KeySchema) != 2 || k.KeyType != want {
			return errors.New("its key is not pk (partition) and sk (sort): it is not a table of nextvald's")
		}
	}
	if len(t.Replicas) > 0 && t.MultiRegionConsistency != types.MultiRegionConsistencyStrong {
		return errors.New("it is a global table with eventual consistency, on which values would repeat; " +
			"use a table of one region, or one with multi-region strong consistency")
	}
	return nil
}

// attributes is an item, or a part of one, as DynamoDB has it.
type attributes = map[string]types.AttributeValue

func key(partition, sort string) attributes {
	return attributes{"pk": text(partition), "sk": text(sort)}
}

func (s *Store) itemKey(incarnation string) attributes {
	return key(layout.Item(s.namespace, incarnation), layout.Only)
}

func (s *Store) nameKey(n sequencer.Name) attributes {
	return key(layout.Names(s.namespace, n.Database), layout.Name(n))
}

func (s *Store) feedKey() attributes { return key(layout.Feed(s.namespace), layout.Only) }

// Get implements sequencer.Store.
func (s *Store) Get(ctx context.Context, incarnation string) (sequencer.Item, error) {
	got, err := s.get(ctx, s.itemKey(incarnation))
	if err != nil {
		return sequencer.Item{}, err
	}
	return decodeItem(incarnation, got)
}

func (s *Store) get(ctx context.Context, key attributes) (attributes, error) {
	out, err := s.client.GetItem(ctx, &dynamodb.GetItemInput{TableName: s.table, Key: key, ConsistentRead: aws.Bool(true)})
	if err != nil {
		return nil, shorten(err)
	}
	if len(out.Item) == 0 {
		return nil, sequencer.ErrNotFound
	}
	return out.Item, nil
}

// GetAll implements sequencer.Store.
func (s *Store) GetAll(ctx context.Context, incarnations []string) (map[string]sequencer.Item, error) {
	var (
		mu    sync.Mutex
		items = make(map[string]sequencer.Item, len(incarnations))
	)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(batches)
	for batch := range slices.Chunk(incarnations, batchKeys) {
		g.Go(func() error {
			return s.getBatch(ctx, batch, func(item sequencer.Item) {
				mu.Lock()
				defer mu.Unlock()
				items[item.Incarnation] = item
			})
		})
	}
	return items, g.Wait()
}

// getBatch reads up to batchKeys items. The service answers for as many of them at a time as it likes.
func (s *Store) getBatch(ctx context.Context, incarnations []string, found func(sequencer.Item)) error {
	asked := make(map[string]string, len(incarnations))
	keys := make([]attributes, len(incarnations))
	for i, incarnation := range incarnations {
		keys[i] = s.itemKey(incarnation)
		asked[layout.Item(s.namespace, incarnation)] = incarnation
	}
	for len(keys) > 0 {
		out, err := s.client.BatchGetItem(ctx, &dynamodb.BatchGetItemInput{RequestItems: map[string]types.KeysAndAttributes{
			*s.table: {Keys: keys, ConsistentRead: aws.Bool(true)},
		}})
		if err != nil {
			return shorten(err)
		}
		for _, got := range out.Responses[*s.table] {
			pk, _ := got["pk"].(*types.AttributeValueMemberS)
			if pk == nil {
				return errors.New("dynamostore: an item without a key")
			}
			item, err := decodeItem(asked[pk.Value], got)
			if err != nil {
				return err
			}
			found(item)
		}
		keys = out.UnprocessedKeys[*s.table].Keys
		if len(keys) == 0 {
			break
		}
		select { // it is overloaded
		case <-time.After(batchPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Put implements sequencer.Store.
func (s *Store) Put(ctx context.Context, item sequencer.Item, ifRev int64) error {
	item.Rev = ifRev + 1
	if err := item.Check(); err != nil {
		return err
	}
	put := encodeItem(item)
	for k, v := range s.itemKey(item.Incarnation) {
		put[k] = v
	}
	in := &dynamodb.PutItemInput{
		TableName:                           s.table,
		Item:                                put,
		ConditionExpression:                 aws.String("attribute_not_exists(pk)"),
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}
	if ifRev != 0 {
		in.ConditionExpression = aws.String("rev = :rev")
		in.ExpressionAttributeValues = attributes{":rev": number(ifRev)}
	}
	_, err := s.client.PutItem(ctx, in)
	return s.written(item.Incarnation, err)
}

// Delete implements sequencer.Store.
func (s *Store) Delete(ctx context.Context, incarnation string, ifRev int64) error {
	_, err := s.client.DeleteItem(ctx, &dynamodb.DeleteItemInput{
		TableName:                           s.table,
		Key:                                 s.itemKey(incarnation),
		ConditionExpression:                 aws.String("rev = :rev"),
		ExpressionAttributeValues:           attributes{":rev": number(ifRev)},
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	})
	return s.written(incarnation, err)
}

// GiveBack implements sequencer.Leaser.
func (s *Store) GiveBack(ctx context.Context, g sequencer.GiveBack) error {
	_, err := s.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName:                s.table,
		Key:                      s.itemKey(g.Incarnation),
		UpdateExpression:         aws.String("SET pos = :pos, rev = rev + :one"),
		ConditionExpression:      aws.String("rev = :rev AND " + leasable),
		ExpressionAttributeNames: leasableNames,
		ExpressionAttributeValues: leasableValues(g.Version, attributes{
			":pos": position(g.Pos), ":rev": number(g.Rev), ":one": number(1),
		}),
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	})
	return s.written(g.Incarnation, err)
}

// Revoke implements sequencer.Store.
func (s *Store) Revoke(ctx context.Context, incarnation string, version int64, changed string) (sequencer.Item, error) {
	out, err := s.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName:                s.table,
		Key:                      s.itemKey(incarnation),
		UpdateExpression:         aws.String("SET #state = :revoking, #version = #version + :one, rev = rev + :one, changed = :changed"),
		ConditionExpression:      aws.String(leasable),
		ExpressionAttributeNames: leasableNames,
		ExpressionAttributeValues: leasableValues(version, attributes{
			":revoking": text(string(sequencer.Revoking)), ":changed": text(changed), ":one": number(1),
		}),
		ReturnValues:                        types.ReturnValueAllNew,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	})
	if err != nil {
		return sequencer.Item{}, s.written(incarnation, err)
	}
	return decodeItem(incarnation, out.Attributes)
}

// written turns the answer to a conditional write of a sequence item into the errors of sequencer.Store.
func (s *Store) written(incarnation string, err error) error {
	var refused *types.ConditionalCheckFailedException
	if !errors.As(err, &refused) {
		return outcome(err)
	}
	if len(refused.Item) == 0 {
		return sequencer.ErrNotFound
	}
	item, err := decodeItem(incarnation, refused.Item)
	if err != nil {
		return err
	}
	return &sequencer.Conflict{Item: item}
}

// Resolve implements sequencer.Store.
func (s *Store) Resolve(ctx context.Context, name sequencer.Name) (sequencer.Entry, error) {
	got, err := s.get(ctx, s.nameKey(name))
	if err != nil {
		return sequencer.Entry{}, err
	}
	return decodeEntry(name, got)
}

// Names implements sequencer.Store.
func (s *Store) Names(ctx context.Context, database string) ([]sequencer.Entry, error) {
	var entries []sequencer.Entry
	err := s.query(ctx, layout.Names(s.namespace, database), func(sort string, got attributes) error {
		name, err := layout.ParseName(database, sort)
		if err != nil {
			return fmt.Errorf("dynamostore: %w", err)
		}
		e, err := decodeEntry(name, got)
		entries = append(entries, e)
		return err
	})
	return entries, err
}

// query reads a partition: each gets the second half of the key and the item.
func (s *Store) query(ctx context.Context, partition string, each func(sort string, got attributes) error) error {
	pages := dynamodb.NewQueryPaginator(s.client, &dynamodb.QueryInput{
		TableName:                 s.table,
		KeyConditionExpression:    aws.String("pk = :pk"),
		ExpressionAttributeValues: attributes{":pk": text(partition)},
		ConsistentRead:            aws.Bool(true),
	})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return shorten(err)
		}
		for _, got := range page.Items {
			sort, _ := got["sk"].(*types.AttributeValueMemberS)
			if sort == nil {
				return errors.New("dynamostore: an item without a key")
			}
			if err := each(sort.Value, got); err != nil {
				return err
			}
		}
	}
	return nil
}

// PutName implements sequencer.Store.
func (s *Store) PutName(ctx context.Context, e sequencer.Entry) error {
	put := s.nameKey(e.Name)
	put["incarnation"] = text(e.Incarnation)
	put["oid"] = number(int64(e.OID))
	_, err := s.client.PutItem(ctx, &dynamodb.PutItemInput{
		TableName:           s.table,
		Item:                put,
		ConditionExpression: aws.String("attribute_not_exists(pk)"),
	})
	var refused *types.ConditionalCheckFailedException
	if errors.As(err, &refused) {
		return sequencer.ErrExists
	}
	return outcome(err)
}

// DeleteName implements sequencer.Store.
func (s *Store) DeleteName(ctx context.Context, name sequencer.Name, incarnation string) error {
	_, err := s.client.DeleteItem(ctx, &dynamodb.DeleteItemInput{
		TableName:                 s.table,
		Key:                       s.nameKey(name),
		ConditionExpression:       aws.String("incarnation = :incarnation"),
		ExpressionAttributeValues: attributes{":incarnation": text(incarnation)},
	})
	return foundOr(err)
}

// Feed implements sequencer.Store.
func (s *Store) Feed(ctx context.Context) (sequencer.Feed, error) {
	got, err := s.get(ctx, s.feedKey())
	if errors.Is(err, sequencer.ErrNotFound) {
		return sequencer.Feed{}, nil // a new namespace
	}
	if err != nil {
		return sequencer.Feed{}, err
	}
	return decodeFeed(got)
}

// Announce implements sequencer.Store.
func (s *Store) Announce(ctx context.Context, a sequencer.Announcement) (int64, error) {
	update, names, values := "ADD rev :one", map[string]string(nil), attributes{":one": number(1)}
	if a.Names {
		update += ", #names :one"
		names = map[string]string{"#names": "names"}
	}
	if a.Incarnation != "" {
		topic := sequencer.Topic(a.Incarnation)
		update += ", " + layout.Topic(topic) + " :one SET " + layout.Latest(topic) + " = :incarnation"
		values[":incarnation"] = text(a.Incarnation)
	}
	return s.addToFeed(ctx, update, "rev", names, values)
}

// Members implements sequencer.Store.
func (s *Store) Members(ctx context.Context) ([]sequencer.Member, error) {
	var members []sequencer.Member
	err := s.query(ctx, layout.Members(s.namespace), func(sort string, got attributes) error {
		id, err := layout.ParseMember(sort)
		if err != nil {
			return fmt.Errorf("dynamostore: %w", err)
		}
		m, err := decodeMember(id, got)
		members = append(members, m)
		return err
	})
	return members, err
}

func (s *Store) memberKey(id string) attributes {
	return key(layout.Members(s.namespace), layout.Member(id))
}

// ofToken is the condition on a member's token. The word is reserved in DynamoDB.
const ofToken = "#token = :token"

// follows is the condition that sequencer.Member.Follows states.
const follows = "(#token <> :own OR expires <= :expires)"

var tokenName = map[string]string{"#token": "token"}

// PutMember implements sequencer.Store.
func (s *Store) PutMember(ctx context.Context, m sequencer.Member, ifToken string) error {
	put := s.memberKey(m.ID)
	put["token"] = text(m.Token)
	put["seen"] = number(m.Seen)
	put["expires"] = number(m.Expires)
	in := &dynamodb.PutItemInput{
		TableName:                 s.table,
		Item:                      put,
		ConditionExpression:       aws.String("attribute_not_exists(pk) OR " + follows),
		ExpressionAttributeNames:  tokenName,
		ExpressionAttributeValues: attributes{":own": text(m.Token), ":expires": number(m.Expires)},
	}
	if ifToken != "" {
		in.ConditionExpression = aws.String(ofToken + " AND " + follows)
		in.ExpressionAttributeValues[":token"] = text(ifToken)
	}
	_, err := s.client.PutItem(ctx, in)
	return foundOr(err)
}

// DeleteMember implements sequencer.Store.
func (s *Store) DeleteMember(ctx context.Context, id, token string) error {
	_, err := s.client.DeleteItem(ctx, &dynamodb.DeleteItemInput{
		TableName:                 s.table,
		Key:                       s.memberKey(id),
		ConditionExpression:       aws.String(ofToken),
		ExpressionAttributeNames:  tokenName,
		ExpressionAttributeValues: attributes{":token": text(token)},
	})
	return foundOr(err)
}

// foundOr turns the answer to a write of something that must exist into the errors of sequencer.Store.
func foundOr(err error) error {
	var refused *types.ConditionalCheckFailedException
	if errors.As(err, &refused) {
		return sequencer.ErrNotFound
	}
	return outcome(err)
}

// NextOID implements sequencer.Store.
func (s *Store) NextOID(ctx context.Context) (uint32, error) {
	oid, err := s.addToFeed(ctx, "SET oid = if_not_exists(oid, :start) - :one ADD rev :one", "oid", nil,
		attributes{":start": number(sequencer.MaxOID + 1), ":one": number(1)})
	if err != nil {
		return 0, err
	}
	return sequencer.CheckOID(oid)
}

// addToFeed updates the feed and returns one of the attributes that it changed.
func (s *Store) addToFeed(ctx context.Context, update, result string, names map[string]string, values attributes) (int64, error) {
	out, err := s.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName:                 s.table,
		Key:                       s.feedKey(),
		UpdateExpression:          &update,
		ExpressionAttributeNames:  names,
		ExpressionAttributeValues: values,
		ReturnValues:              types.ReturnValueUpdatedNew,
	})
	if err != nil {
		return 0, outcome(err)
	}
	d := decoder{item: out.Attributes}
	v := d.int(result)
	return v, d.err
}

// outcome tells whether a write that failed had no effect. Only an answer that says so is believed.
func outcome(err error) error {
	var answer interface{ HTTPStatusCode() int }
	var api smithy.APIError
	var dial *net.OpError
	var dns *net.DNSError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &api) && errors.As(err, &answer) && answer.HTTPStatusCode() >= 400 && answer.HTTPStatusCode() < 500:
		return shorten(err) // refused: a throttled request, no permission, no table
	case errors.As(err, &dial) && dial.Op == "dial", errors.As(err, &dns):
		return shorten(err) // never sent
	}
	return fmt.Errorf("%w: %w", sequencer.ErrUnknownOutcome, shorten(err))
}

// shorten takes the SDK's wrapping off an error, which says the same thing several times over.
func shorten(err error) error {
	var api smithy.APIError
	var op *net.OpError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer in time: %w", context.DeadlineExceeded)
	case errors.Is(err, context.Canceled):
		return context.Canceled
	case errors.As(err, &api):
		return fmt.Errorf("%s: %s", api.ErrorCode(), api.ErrorMessage())
	case errors.As(err, &op):
		return op // with the address
	}
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}

func text(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }

func number(n int64) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: strconv.FormatInt(n, 10)}
}

func position(p sequencer.Position) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: p.String()}
}
