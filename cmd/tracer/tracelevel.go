package main

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"inferspan/agent"
	"inferspan/correlate"
)

// followLevel lets SIGUSR1 raise the trace level by one and SIGUSR2 lower it, until
// stop is called, for an engine that has such levels. Each change is said on w. Of
// another engine the signals change nothing: by default they would end the run at once.
func followLevel(w io.Writer, kind string, p *agent.Pipeline, o agent.Options) (stop func()) {
	level := correlate.DefaultTraceLevel
	if o.TraceLevel.OK {
		level = o.TraceLevel.V
	}
	ch := make(chan os.Signal, 8)
	signal.Notify(ch, syscall.SIGUSR1, syscall.SIGUSR2)
	var done sync.WaitGroup
	done.Go(func() {
		for s := range ch {
			if kind != correlate.KindSGLang {
				say(w, fmt.Sprintf("%v changes nothing: %s has no trace levels", s, kind))
				continue
			}
			next := level + 1
			if s == syscall.SIGUSR2 {
				next = level - 1
			}
			if p.SetTraceLevel(next) {
				level = next
			}
			say(w, fmt.Sprintf("trace level %d for requests from now on", level))
		}
	})
	return func() {
		signal.Stop(ch)
		close(ch)
		done.Wait()
	}
}
