package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"inferspan/agent"
	"inferspan/bpf/event"
	"inferspan/correlate"
	"inferspan/correlate/trace"
	"inferspan/export/term"
	"inferspan/probes/host"
	"inferspan/probes/target"
)

func newAttach() *cobra.Command {
	var (
		pid   int
		cost  budget
		quiet bool
		d     detail
		o     outputs
	)
	c := &cobra.Command{
		Use:   "attach --pid PID",
		Short: "Trace an engine until interrupted",
		Long: `Attach traces an engine until it is interrupted (Ctrl-C) or the engine exits, and
exports its requests as they finish. Without an output it prints a line per request.
Of SGLang, SIGUSR1 raises the trace level by one meanwhile, and SIGUSR2 lowers it.`,
		Example: `  inferspan attach --pid 4242
  inferspan attach --pid 4242 --otlp-endpoint http://127.0.0.1:4318
  inferspan attach --pid 4242 --jsonl spans.jsonl --precision 2
  inferspan attach --pid 4242 --prometheus :9464`,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			opt, err := d.options()
			if err != nil {
				return err
			}
			o.steps = opt.Steps > 0
			if err := o.check(cmd); err != nil {
				return err
			}
			if quiet && !o.any() {
				return withCode(exitUsage, errors.New("--quiet without an output leaves nothing to do: add --otlp, --jsonl or --prometheus"))
			}
			lo, err := cost.options(opt.Content != correlate.ContentNone)
			if err != nil {
				return err
			}
			var (
				live *agent.Live
				caps []target.Capability
			)
			attachLines(cmd.ErrOrStderr(), &lo, &live, func() {
				width := term.OptionsFor(cmd.ErrOrStderr()).Width
				for _, line := range notExact(live.Engine, caps) {
					fmt.Fprintln(cmd.ErrOrStderr(), term.Wrap(line, "  ", width))
				}
			})
			if err := checkPID(pid); err != nil {
				return err
			}
			var (
				out             *sinks
				lines           *term.Stream
				requests, spans int
			)
			if !quiet && o.jsonl != "-" {
				lines = term.NewStream(cmd.OutOrStdout(), term.OptionsFor(cmd.OutOrStdout()))
			}
			p := agent.NewPipeline(opt, func(t *trace.Tree) {
				if len(t.Spans) > 0 {
					requests++
					spans += len(t.Spans)
				}
				out.tree(t)
				if lines != nil {
					lines.Tree(t)
				}
			})
			if out, err = o.open(cmd.Context(), cmd, p.Metrics); err != nil {
				return err
			}
			defer out.close(cmd.Context())
			if live, err = openLive(cmd.Context(), pid, lo); err != nil {
				return err
			}
			defer live.Close()
			if err := out.file(&o, cmd); err != nil {
				return err
			}
			caps = target.Capabilities(live.Engine, host.Report{}, live.Probes())
			loadTokens(live.Engine, p, opt)
			defer followLevel(cmd.ErrOrStderr(), live.Engine.Kind, p, opt)()
			err = live.Run(cmd.Context(), p, &exporter{out: out, p: p, every: uint64(o.every)})
			p.Detach()
			out.metrics(p.Metrics())
			endLine(cmd.ErrOrStderr())
			fmt.Fprintln(cmd.ErrOrStderr(), and(fmt.Sprintf("detached: %d requests, %d spans", requests, spans), term.Losses(p.Lost())))
			if cerr := out.close(cmd.Context()); cerr != nil {
				return cerr
			}
			return runEnd(err)
		},
	}
	pidFlag(c, &pid)
	cost.flags(c)
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "print no line per request")
	d.flags(c)
	o.flags(c)
	return c
}

// exporter is a consumer that sends the metrics on from time to time. It goes by
// the records' time: there is one at least every second.
type exporter struct {
	out   *sinks
	p     *agent.Pipeline
	every uint64 // ns
	next  uint64
}

func (e *exporter) Engine(*target.Engine) error { return nil }

func (e *exporter) Record(r *event.Record) error {
	if r.Kind != event.KindClock || r.Time < e.next {
		return nil
	}
	if e.next != 0 {
		e.out.metrics(e.p.Metrics())
	}
	e.next = r.Time + max(e.every, uint64(time.Second))
	return nil
}
