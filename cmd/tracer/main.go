// Command inferspan traces LLM inference engines from outside: it attaches to a
// running vLLM or SGLang, changes nothing in it, and exports its requests as spans and metrics.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The second interrupt ends the process at once: the first one asks for an orderly end.
	context.AfterFunc(ctx, stop)
	err := newRoot().ExecuteContext(ctx)
	stop()
	if err != nil {
		var silent silentError
		if !errors.As(err, &silent) {
			// Several errors in one are lines to errors.Join: who reads logs wants one.
			fmt.Fprintf(os.Stderr, "inferspan: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
		}
		os.Exit(exitCode(err))
	}
}
