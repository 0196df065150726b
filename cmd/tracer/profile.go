package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"inferspan/agent"
	"inferspan/bpf"
	"inferspan/correlate"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
	"inferspan/export"
	"inferspan/export/jsonl"
	"inferspan/export/prom"
	"inferspan/export/term"
	"inferspan/probes/host"
	"inferspan/probes/target"
)

func newProfile() *cobra.Command {
	var (
		pid      int
		cost     budget
		duration time.Duration
		dir      string
		traps    bool
		d        detail
		o        outputs
	)
	c := &cobra.Command{
		Use:   "profile --pid PID",
		Short: "Trace an engine for a while and print a summary",
		Long: `Profile traces an engine for a while, shows how it goes, and prints a summary:
requests, time to first token, time per output token, queue, prefill and decode
percentiles, the slowest requests, losses, and what could not be had exactly.

With --out it also writes, to a folder:
  spans.jsonl   every span
  metrics.prom  every metric, as Prometheus text
  summary.txt   the summary
  report.json   target, capabilities, losses, traps, kernels launched`,
		Example: `  inferspan profile --pid 4242 --duration 30s
  inferspan profile --pid 4242 --duration 2m --out /tmp/run1 --precision 2`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opt, err := d.options()
			if err != nil {
				return err
			}
			if duration <= 0 {
				return withCode(exitUsage, fmt.Errorf("--duration %s: want more than 0", duration))
			}
			o.steps = opt.Steps > 0
			opt.StepRecords = true // the summary tells of them in any case
			if err := o.check(cmd); err != nil {
				return err
			}
			if err := noEmpty(cmd, "out"); err != nil {
				return err
			}
			if err := checkPID(pid); err != nil {
				return err
			}
			defaults, err := export.DefaultsFromEnv(o.service, os.Getenv)
			if err != nil {
				return withCode(exitUsage, err)
			}
			var files *outFiles
			if dir != "" {
				if files, err = newOutFiles(dir, defaults); err != nil {
					return err
				}
				defer files.discard()
			}
			lo, err := cost.options(opt.Content != correlate.ContentNone)
			if err != nil {
				return err
			}
			var live *agent.Live
			attachLines(cmd.ErrOrStderr(), &lo, &live, nil)
			var (
				out *sinks
				sum = term.NewSummary(term.OptionsFor(cmd.OutOrStdout()))
				n   int
			)
			p := agent.NewPipeline(opt, func(t *trace.Tree) {
				if len(t.Spans) > 0 {
					n++
				}
				sum.Tree(t)
				out.tree(t)
				if files != nil && (o.steps || len(t.Spans) > 0) {
					files.tree(t)
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
			if traps {
				stats, err := bpf.EnableStats()
				if err != nil {
					return withCode(exitHost, fmt.Errorf("counting traps: %w", err))
				}
				defer stats.Close()
			}
			if err := out.file(&o, cmd); err != nil {
				return err
			}
			loadTokens(live.Engine, p, opt)
			defer followLevel(cmd.ErrOrStderr(), live.Engine.Kind, p, opt)()
			caps := p.Capabilities(live.Engine, host.Report{}, live.Probes())
			ctx, cancel := runContext(cmd.Context(), duration)
			defer cancel()
			start := time.Now()
			show := &progress{w: cmd.ErrOrStderr(), line: func() string {
				left := max(0, duration-time.Since(start)).Round(time.Second)
				return and(fmt.Sprintf("profiling process %d: %d requests, %s left", pid, n, left), term.Losses(p.Lost()))
			}}
			rerr := live.Run(ctx, p, &exporter{out: out, p: p, every: uint64(o.every)}, show)
			show.done()
			p.Detach()
			elapsed := time.Since(start)
			out.metrics(p.Metrics())
			// Before the summary, which says what was not delivered.
			cerr := out.close(cmd.Context())
			sum.SetLosses(p.Lost())
			sum.SetGPUs(p.GPUs())
			sum.SetGPUWork(p.GPUWork())
			sum.SetKernels(p.Kernels())
			sum.SetElapsed(elapsed)
			sum.SetExports(out.stats())
			for _, n := range p.Notes() {
				sum.Note(n.Text)
			}
			for _, line := range notExact(live.Engine, caps) {
				sum.Note(line)
			}
			if err := sum.Write(cmd.OutOrStdout()); err != nil {
				return withCode(exitExport, err)
			}
			var stats map[string]bpf.ProgramStats
			if traps {
				if stats, err = live.Traps(); err == nil {
					printTraps(cmd.OutOrStdout(), stats, p.Steps())
				}
			}
			if files != nil {
				m := p.Metrics()
				var text, plain bytes.Buffer
				if werr := prom.WriteText(&text, &m, defaults); werr != nil {
					return withCode(exitExport, werr)
				}
				if werr := sum.Write(&plain); werr != nil {
					return withCode(exitExport, werr)
				}
				report := profileReport{Engine: live.Engine, Capabilities: caps, Lost: p.Lost(), Traps: stats, Kernels: p.Kernels(), Seconds: elapsed.Seconds()}
				if werr := files.finish(text.Bytes(), plain.Bytes(), &report); werr != nil {
					return errors.Join(werr, cerr)
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "written to %s\n", dir)
			}
			if cerr != nil {
				return cerr
			}
			return runEnd(rerr)
		},
	}
	pidFlag(c, &pid)
	cost.flags(c)
	f := c.Flags()
	f.DurationVarP(&duration, "duration", "d", 30*time.Second, "how long")
	f.StringVar(&dir, "out", "", "folder to write files to")
	f.BoolVar(&traps, "traps", false, "count and time the probes' runs (costs some 20 ns per BPF run on the host)")
	d.flags(c)
	o.flags(c)
	return c
}

// profileReport is report.json.
type profileReport struct {
	Engine       *target.Engine              `json:"engine"`
	Capabilities []target.Capability         `json:"capabilities"`
	Lost         []signal.LossCount          `json:"lost"`
	Traps        map[string]bpf.ProgramStats `json:"traps,omitempty"`
	Kernels      []correlate.EngineKernels   `json:"kernels,omitempty"`
	Seconds      float64                     `json:"seconds"`
}

// outFiles are the files of --out. They appear together, at the end: a run that
// fails leaves the folder as it was, and makes none.
type outFiles struct {
	dir, tmp string
	made     []string // folders that were not there before, the innermost first
	spans    *jsonl.Sink
	err      error // of the first failed write
}

func newOutFiles(dir string, defaults export.Defaults) (*outFiles, error) {
	fail := func(err error) (*outFiles, error) {
		return nil, withCode(exitExport, fmt.Errorf("preparing --out %s: %w", dir, err))
	}
	f := &outFiles{dir: dir}
	for d := filepath.Clean(dir); ; d = filepath.Dir(d) {
		if _, err := os.Lstat(d); !errors.Is(err, os.ErrNotExist) {
			break
		}
		f.made = append(f.made, d)
	}
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		f.tmp, err = os.MkdirTemp(dir, ".inferspan-")
	}
	if err == nil {
		f.spans, err = jsonl.Create(filepath.Join(f.tmp, "spans.jsonl"))
	}
	if err != nil {
		f.discard()
		return fail(err)
	}
	f.spans.SetDefaults(defaults)
	return f, nil
}

func (f *outFiles) tree(t *trace.Tree) {
	if f.err == nil {
		f.err = f.spans.Write(t)
	}
}

// finish writes the other files and moves all of them to the folder.
func (f *outFiles) finish(metrics, summary []byte, report *profileReport) error {
	if err := f.spans.Close(context.Background()); f.err == nil {
		f.err = err
	}
	text, err := json.MarshalIndent(report, "", "  ")
	if f.err == nil {
		f.err = err
	}
	for _, file := range []struct {
		name string
		data []byte
	}{{"metrics.prom", metrics}, {"summary.txt", summary}, {"report.json", append(text, '\n')}} {
		if f.err == nil {
			f.err = os.WriteFile(filepath.Join(f.tmp, file.name), file.data, 0o644)
		}
	}
	for _, name := range []string{"spans.jsonl", "metrics.prom", "summary.txt", "report.json"} {
		if f.err == nil {
			f.err = os.Rename(filepath.Join(f.tmp, name), filepath.Join(f.dir, name))
		}
	}
	f.discard()
	if f.err != nil {
		return withCode(exitExport, fmt.Errorf("writing to --out %s: %w", f.dir, f.err))
	}
	return nil
}

// discard removes what did not get its place, and folders that were made for it.
func (f *outFiles) discard() {
	if f.tmp != "" {
		os.RemoveAll(f.tmp)
	}
	for _, d := range f.made {
		os.Remove(d) // not if something is in it
	}
}
