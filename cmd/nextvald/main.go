// Command nextvald is the proxy: see the README for what it does and docs/configuration.md for its settings.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	// The first signal ends the program in order, a second one at once.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		<-signals
		stop()
		if s, ok := (<-signals).(syscall.Signal); ok {
			os.Exit(128 + int(s)) // as a shell tells that a signal ended a program
		}
	}()
	os.Exit(run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

// run runs the program and returns its exit code. An error is one line on stderr.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{
		Use:               "nextvald",
		Short:             "A PostgreSQL proxy that answers sequences from a cache backed by DynamoDB",
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		// A suggestion would be a second line.
		DisableSuggestions: true,
	}
	root.AddCommand(serveCommand(environ, stderr), membersCommand(environ), evictCommand(environ), exportCommand(environ),
		importCommand(environ), adoptCommand(environ), releaseCommand(environ), checkCommand(environ), versionCommand())
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	if err := root.ExecuteContext(ctx); err != nil {
		_, _ = fmt.Fprintln(stderr, "nextvald:", oneLine(err))
		return 1
	}
	return 0
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "nextvald %s %s %s/%s\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

// version is what the go command recorded about the source.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

var urlPassword = regexp.MustCompile(`(://[^/?#\s:@]*):[^/?#\s]*@`)

// oneLine is an error's text in one line, without the password of any URL in it.
func oneLine(err error) string {
	return urlPassword.ReplaceAllString(strings.Join(strings.Fields(err.Error()), " "), "$1:***@")
}
