package testenv

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// variable is the value of a variable that with-servers sets.
func variable(t testing.TB, name string) string {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		t.Fatalf("%s is not set: run `make test`, or name an existing server in it", name)
	}
	return v
}

// Upstream is the URL of a PostgreSQL without nextvald, as a superuser.
func Upstream(t testing.TB) string {
	t.Helper()
	return variable(t, "NEXTVALD_TEST_UPSTREAM")
}

// unique makes a name that no other test has, of lower-case letters, digits and dashes.
func unique(prefix string) string { return prefix + strings.ToLower(rand.Text()[:12]) }

// Database creates an empty database in the upstream, dropped when the test ends, and returns its URL.
func Database(t testing.TB) string {
	t.Helper()
	admin := Upstream(t)
	name := unique("test_")
	Exec(t, admin, "CREATE DATABASE "+name)
	t.Cleanup(func() { Exec(t, admin, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)") })
	u, err := url.Parse(admin)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	return u.String()
}

// Table is the store URL of a DynamoDB table that does not exist yet. What is made of it stays until the server ends.
func Table(t testing.TB) string {
	t.Helper()
	return TableAt(unique("test-"), variable(t, "NEXTVALD_TEST_DYNAMODB"))
}

// TableAt is the store URL of a DynamoDB table at an endpoint.
func TableAt(table, endpoint string) string {
	return fmt.Sprintf("dynamodb:%s?region=us-east-1&endpoint=%s", table, url.QueryEscape(endpoint))
}

// Exec runs statements on a connection of their own.
func Exec(t testing.TB, url string, statements ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	for _, sql := range statements {
		_, err := conn.Exec(ctx, sql)
		var said *pgconn.PgError
		if errors.As(err, &said) {
			err = fmt.Errorf("%w: %s", err, said.Detail)
		}
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}
