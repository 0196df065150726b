// Command inferspan traces LLM inference engines from outside: it attaches to a
// running vLLM or SGLang, changes nothing in it, and exports its requests as spans and metrics.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
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
			fmt.Fprintf(os.Stderr, "inferspan: %v\n", err)
		}
		os.Exit(exitCode(err))
	}
}
