package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"inferspan/agent"
	"inferspan/bpf"
	"inferspan/export/term"
	"inferspan/gpu/cuda"
	"inferspan/probes/attach"
	"inferspan/probes/attach/governor"
	"inferspan/probes/target"
)

func pidFlag(c *cobra.Command, pid *int) {
	c.Flags().IntVarP(pid, "pid", "p", 0, "any process of the engine (see inferspan ps)")
	must(c.RegisterFlagCompletionFunc("pid", completePID))
}

// budget is what probes on interpreters and on the CUDA driver may cost each process.
type budget struct {
	work   float64 // percent of a core, 0: no limit
	wait   time.Duration
	sample int           // one request in so many has its tokens timed, 0: none
	source string        // of steps
	cuda   string        // mode
	gpu    time.Duration // 0: GPUs are not read
}

func (b *budget) flags(c *cobra.Command) {
	d := governor.DefaultBudget
	c.Flags().Float64Var(&b.work, "probe-work", 100*d.Work, "percent of a core that probes on the Python interpreter and on the CUDA driver may cost a process, else what costs most is taken out, or looks at less, for a while (0: no limit)")
	c.Flags().DurationVar(&b.wait, "probe-wait", d.Wait, "by how much probes may delay the wake-up of a loop that waits (0: no limit)")
	c.Flags().StringVar(&b.source, "step-source", agent.SourceAuto, "how scheduler steps are seen: clock (start, end, state of the scheduler), dispatch (when workers are told of a step; no trap of its own), or auto: dispatch where workers are processes of their own, else clock")
	c.Flags().DurationVar(&b.gpu, "gpu-interval", agent.DefaultGPUInterval, "how often NVIDIA GPUs are read, 100ms to 1s (0: never)")
	must(c.RegisterFlagCompletionFunc("step-source", cobra.FixedCompletions(stepSources, cobra.ShellCompDirectiveNoFileComp)))
	c.Flags().StringVar(&b.cuda, "cuda", string(cuda.Graph), "the most that is looked at of an engine core's calls of the CUDA driver, where it has one, within --probe-work: off, graph (launches of graphs, waits for the GPU: a few traps per step), all (every kernel and copy too, one trap each), or sampled (graph, and all for a second every 10 s)")
	must(c.RegisterFlagCompletionFunc("cuda", cobra.FixedCompletions(cudaModes, cobra.ShellCompDirectiveNoFileComp)))
	c.Flags().IntVar(&b.sample, "detokenize-sample", 0, "time each token of one request in N as it becomes text, at the price of two traps per token of all requests that run meanwhile (0: of none, the time is worked out from what a token costs on average)")
}

// options checks the budget and makes the options of a live run.
func (b *budget) options(content bool) (agent.LiveOptions, error) {
	if b.work < 0 || math.IsNaN(b.work) {
		return agent.LiveOptions{}, withCode(exitUsage, fmt.Errorf("--probe-work %v: want 0 or more", b.work))
	}
	if b.wait < 0 {
		return agent.LiveOptions{}, withCode(exitUsage, fmt.Errorf("--probe-wait %v: want 0 or more", b.wait))
	}
	if b.sample < 0 {
		return agent.LiveOptions{}, withCode(exitUsage, fmt.Errorf("--detokenize-sample %d: want 0 or more", b.sample))
	}
	if !slices.Contains(stepSources, b.source) {
		return agent.LiveOptions{}, withCode(exitUsage, fmt.Errorf("--step-source %q: want %s", b.source, strings.Join(stepSources, ", ")))
	}
	if b.gpu != 0 && (b.gpu < 100*time.Millisecond || b.gpu > time.Second) {
		return agent.LiveOptions{}, withCode(exitUsage, fmt.Errorf("--gpu-interval %s: want 100ms to 1s, or 0 for never", b.gpu))
	}
	if !slices.Contains(cudaModes, b.cuda) {
		return agent.LiveOptions{}, withCode(exitUsage, fmt.Errorf("--cuda %q: want %s", b.cuda, strings.Join(cudaModes, ", ")))
	}
	o := agent.LiveOptions{Content: content, CUDA: cuda.Mode(b.cuda), StepSource: b.source, DetokenizeSample: b.sample, Budget: governor.Budget{Work: b.work / 100, Wait: b.wait}}
	if o.GPUInterval = b.gpu; b.gpu == 0 {
		o.GPUInterval = -1
	}
	if b.work == 0 {
		o.Budget.Work = math.Inf(1)
	}
	if b.wait == 0 {
		o.Budget.Wait = math.MaxInt64
	}
	return o, nil
}

var cudaModes = []string{string(cuda.Off), string(cuda.Graph), string(cuda.Sampled), string(cuda.All)}

var stepSources = []string{agent.SourceAuto, agent.SourceClock, agent.SourceDispatch}

// completePID offers the engines of this host.
func completePID(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	engines, _, err := target.Find(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var out []string
	for i := range engines {
		if len(engines[i].Processes) > 0 {
			out = append(out, fmt.Sprintf("%d\t%s %s", engines[i].Processes[0].PID, engines[i].Kind, engines[i].Model))
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// checkPID finds a process id that can be none.
func checkPID(pid int) error {
	if pid == 0 {
		return withCode(exitUsage, errors.New(`--pid is missing; "inferspan ps" lists the engines of this host`))
	}
	if pid < 0 {
		return withCode(exitUsage, fmt.Errorf("--pid %d: want the id of a process", pid))
	}
	return nil
}

// openLive attaches and gives errors their exit codes.
func openLive(ctx context.Context, pid int, o agent.LiveOptions) (*agent.Live, error) {
	l, err := agent.Open(ctx, pid, o)
	if err != nil {
		return nil, liveError(err)
	}
	return l, nil
}

// liveError gives an error of finding or attaching its exit code and says what to do next.
func liveError(err error) error {
	switch {
	case errors.Is(err, context.Canceled):
		return errors.New("interrupted before tracing began")
	case errors.Is(err, bpf.ErrNoBTF), errors.Is(err, bpf.ErrPermission), errors.Is(err, os.ErrPermission):
		return withCode(exitHost, fmt.Errorf(`%w; "inferspan check" says what is missing`, err))
	case errors.Is(err, target.ErrNoProcess), errors.Is(err, target.ErrNotEngine), errors.Is(err, target.ErrGone),
		errors.Is(err, attach.ErrExited), errors.Is(err, attach.ErrNothing):
		return withCode(exitTarget, err)
	}
	return withCode(exitHost, err)
}

// runEnd gives the end of a run its exit code. A run that ended by its time or an interrupt is no error.
func runEnd(err error) error {
	if errors.Is(err, agent.ErrEngineExited) {
		return withCode(exitTarget, err)
	}
	return err
}

// attachedLine says what the run looks at, in one line.
func attachedLine(l *agent.Live) string {
	var roles []string
	count := make(map[target.Role]int)
	for i := range l.Engine.Processes {
		p := &l.Engine.Processes[i]
		if l.Attached(p.PID) {
			count[p.Role]++
		}
	}
	for role, n := range count {
		roles = append(roles, fmt.Sprintf("%d %s", n, target.RoleName(l.Engine.Kind, role)))
	}
	sort.Strings(roles)
	name := l.Engine.Kind
	if l.Engine.Version != "" {
		name += " " + l.Engine.Version
	}
	if m := modelName(l.Engine); m != "" {
		name += ", " + m
	}
	return fmt.Sprintf("attached to %s (%s)", term.Clean(name), strings.Join(roles, ", "))
}

// attachLines has the run say when the probes are in, what it waits for if that
// takes long, and which processes the engine has started later. then is what follows; nil is nothing.
func attachLines(w io.Writer, o *agent.LiveOptions, live **agent.Live, then func()) {
	names := func(left []agent.Awaited) string {
		var out []string
		for _, a := range left {
			out = append(out, a.String())
		}
		return strings.Join(out, ", ")
	}
	o.Joined = func(j agent.Joined) {
		line := fmt.Sprintf("attached to process %d (%s), which the engine has started", j.PID, target.RoleName((*live).Engine.Kind, j.Role))
		if j.Err != nil {
			line = fmt.Sprintf("the engine has started process %d (%s), which is not traced: %v", j.PID, target.RoleName((*live).Engine.Kind, j.Role), j.Err)
		}
		say(w, line)
	}
	o.Waiting = func(left []agent.Awaited) {
		say(w, "waiting for the probes on the interpreter of "+names(left))
	}
	o.Attached = func(left []agent.Awaited) {
		say(w, attachedLine(*live))
		starting := func(a agent.Awaited) bool { return a.Starting }
		if late := slices.DeleteFunc(slices.Clone(left), starting); len(late) > 0 {
			fmt.Fprintf(w, "  no probes on the interpreter of %s yet: until then steps and exact times are not seen\n", names(late))
		}
		if some := slices.DeleteFunc(left, func(a agent.Awaited) bool { return !a.Starting }); len(some) > 0 {
			fmt.Fprintf(w, "  still starting: %s\n", names(some))
		}
		if then != nil {
			then()
		}
	}
}

// say writes a line while a run goes on, which may show how it goes in the last line
// of the terminal: that one comes again with the next record.
func say(w io.Writer, line string) {
	if isTerminal(w) {
		line = "\r\x1b[K" + line
	}
	fmt.Fprintln(w, line)
}

// endLine ends what a terminal shows of an interrupt ("^C") before the next line.
func endLine(w io.Writer) {
	if isTerminal(w) {
		fmt.Fprintln(w)
	}
}

// and joins the texts that are not empty.
func and(texts ...string) string {
	var out []string
	for _, t := range texts {
		if t != "" {
			out = append(out, t)
		}
	}
	return strings.Join(out, "; ")
}

func modelName(e *target.Engine) string {
	if len(e.ServedNames) > 0 {
		return e.ServedNames[0]
	}
	return e.Model
}

func bytesText(n int64) string {
	switch {
	case n < 10<<10:
		return strconv.FormatInt(n, 10) + " B"
	case n < 10<<20:
		return strconv.FormatInt(n>>10, 10) + " KiB"
	}
	return strconv.FormatInt(n>>20, 10) + " MiB"
}
