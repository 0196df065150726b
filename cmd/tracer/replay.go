package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"inferspan/agent"
	"inferspan/correlate/trace"
	"inferspan/export"
	"inferspan/export/jsonl"
	"inferspan/export/prom"
	"inferspan/export/term"
	"inferspan/recording"
)

// replayTargets are the values of --to.
var replayTargets = []string{"jsonl", "otlp", "summary", "prom"}

func newReplay() *cobra.Command {
	var (
		to     string
		output string
		d      detail
		o      outputs
	)
	c := &cobra.Command{
		Use:   "replay FILE",
		Short: "Turn a recording into spans, metrics or a summary",
		Long: `Replay feeds a recording through the code of a live run. The same recording gives
the same spans, with the same ids. Of a damaged file everything before the fault is
used; the exit code is then 5.`,
		Example: `  inferspan replay run.isr --to summary
  inferspan replay run.isr --to jsonl > spans.jsonl
  inferspan replay run.isr --to otlp --otlp-endpoint http://127.0.0.1:4318
  inferspan replay run.isr --to prom`,
		Args: one("recording"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			opt, err := d.options()
			if err != nil {
				return err
			}
			if !slices.Contains(replayTargets, to) {
				return withCode(exitUsage, fmt.Errorf("--to %q: want one of %s", to, strings.Join(replayTargets, ", ")))
			}
			if err := noEmpty(cmd, "output", "otlp-endpoint"); err != nil {
				return err
			}
			switch {
			case to != "otlp" && o.endpoint != "":
				return withCode(exitUsage, fmt.Errorf("--otlp-endpoint goes with --to otlp, not with --to %s", to))
			case to == "otlp" && output != "":
				return withCode(exitUsage, errors.New("--output does not go with --to otlp, which writes no file"))
			}
			f, err := os.Open(args[0])
			if err != nil {
				return withCode(exitRecording, fmt.Errorf("opening the recording: %w", err))
			}
			defer f.Close()
			r, err := recording.NewReader(interruptible{cmd.Context(), f})
			if err != nil {
				return replayError(args[0], err)
			}
			w := cmd.OutOrStdout()
			if output != "" {
				of, err := newFile(output, 0o600)
				if err != nil {
					return err
				}
				defer func() { err = of.end(err) }()
				w = of
			}
			run := func(tree func(*trace.Tree)) (*agent.Pipeline, error) {
				p := agent.NewPipeline(opt, tree)
				notes, err := agent.Replay(r, p)
				for _, n := range notes {
					fmt.Fprintf(cmd.ErrOrStderr(), "inferspan: note: %s\n", n)
				}
				return p, replayError(args[0], err)
			}
			switch to {
			case "jsonl":
				defaults, err := export.DefaultsFromEnv(o.service, os.Getenv)
				if err != nil {
					return withCode(exitUsage, err)
				}
				return replayJSONL(cmd, w, defaults, run)
			case "prom":
				p, rerr := run(func(*trace.Tree) {})
				if errors.Is(rerr, errInterrupted) {
					return rerr
				}
				defaults, err := export.DefaultsFromEnv(o.service, os.Getenv)
				if err != nil {
					return withCode(exitUsage, err)
				}
				m := p.Metrics()
				if err := prom.WriteText(w, &m, defaults); err != nil {
					return withCode(exitExport, err)
				}
				return rerr
			case "summary":
				opt.StepRecords = true
				style := term.OptionsFor(w)
				if _, err := fmt.Fprintf(w, "%s\n\n", term.Wrap(recordedLine(r.Meta()), "", style.Width)); err != nil {
					return withCode(exitExport, fmt.Errorf("writing the summary: %w", err))
				}
				sum := term.NewSummary(style)
				p, rerr := run(sum.Tree)
				if errors.Is(rerr, errInterrupted) {
					return rerr // a summary of some part would pass for one of the whole
				}
				for _, n := range p.Notes() {
					sum.Note(n.Text)
				}
				sum.SetLosses(p.Lost())
				sum.SetGPUs(p.GPUs())
				sum.SetGPUWork(p.GPUWork())
				sum.SetKernels(p.Kernels())
				if rerr != nil {
					sum.Note(fmt.Sprintf("what follows is not in this summary: %v", rerr))
				}
				if err := sum.Write(w); err != nil {
					return withCode(exitExport, err)
				}
				return rerr
			case "otlp":
				o.otlp = true
				var out *sinks
				if out, err = o.open(cmd.Context(), cmd, nil); err != nil {
					return err
				}
				p, rerr := run(func(t *trace.Tree) { out.wait(cmd.Context(), t) })
				out.metrics(p.Metrics())
				if err := out.close(cmd.Context()); err != nil {
					return err
				}
				return rerr
			}
			return nil
		},
	}
	c.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return []string{"isr"}, cobra.ShellCompDirectiveFilterFileExt
	}
	f := c.Flags()
	f.StringVar(&to, "to", "summary", "what to make of it: "+strings.Join(replayTargets, ", "))
	f.StringVarP(&output, "output", "o", "", "file to write instead of standard output")
	f.StringVar(&o.endpoint, "otlp-endpoint", "", "OTLP base URL; otherwise OTEL_EXPORTER_OTLP_* say where")
	f.StringVar(&o.service, "service-name", "", "service.name of engines that do not set their own")
	d.flags(c)
	must(c.RegisterFlagCompletionFunc("to", cobra.FixedCompletions(replayTargets, cobra.ShellCompDirectiveNoFileComp)))
	return c
}

// recordedLine says where a recording comes from.
func recordedLine(m recording.Meta) string {
	line := "recorded " + m.Started.Local().Format("2006-01-02 15:04:05")
	if m.Kernel != "" {
		line += " on Linux " + m.Kernel
	}
	if m.Arch != "" {
		line += " " + m.Arch
	}
	if m.Tool != "" {
		line += " by inferspan " + m.Tool
	}
	if m.Redacted {
		line += ", redacted"
	}
	if m.Content {
		line += ", with whole responses"
	}
	if m.Note != "" {
		line += ": " + m.Note
	}
	return term.Clean(line)
}

// errInterrupted ends a replay whose context has ended.
var errInterrupted = errors.New("interrupted")

// replayError gives an error of reading a recording its exit code. Of an interrupt
// the recording is not to blame.
func replayError(name string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errInterrupted):
		return fmt.Errorf("replaying %s: %w", name, errInterrupted)
	}
	return withCode(exitRecording, fmt.Errorf("%s: %w", name, err))
}

// interruptible is a reader that fails with errInterrupted once its context has ended.
type interruptible struct {
	ctx context.Context
	r   io.Reader
}

func (i interruptible) Read(b []byte) (int, error) {
	if i.ctx.Err() != nil {
		return 0, errInterrupted
	}
	return i.r.Read(b)
}

// replayJSONL writes spans without a queue: a replay can wait for its output.
func replayJSONL(cmd *cobra.Command, w io.Writer, defaults export.Defaults, run func(func(*trace.Tree)) (*agent.Pipeline, error)) error {
	sink := jsonl.New(w)
	sink.SetDefaults(defaults)
	var werr error
	_, rerr := run(func(t *trace.Tree) {
		if werr == nil {
			werr = sink.Write(t)
		}
	})
	if err := sink.Close(cmd.Context()); werr == nil {
		werr = err
	}
	if werr != nil {
		return withCode(exitExport, werr)
	}
	return rerr
}
