package main

import (
	"fmt"
	"io"
	"slices"
	"sort"
	"strings"
	"text/tabwriter"
	"time"

	"inferspan/agent"
	"inferspan/bpf"
	"inferspan/correlate"
	"inferspan/probes/target"
	"inferspan/probes/tokenizer"
)

// notExact says in a few lines what cannot be had exactly of an engine, the
// items that share a reason together. What the engine has not is not missing.
func notExact(e *target.Engine, caps []target.Capability) []string {
	type group struct {
		state, reason string
	}
	items := make(map[group][]string)
	var order []group
	gone := make(map[string]bool) // spans that are left out: their attributes go without saying
	for _, c := range caps {
		if c.Kind == target.KindSpan && c.State == target.Unavailable {
			gone[c.Item] = true
		}
	}
	for _, c := range caps {
		if c.State == target.Exact || gone[c.Of] || c.State == target.Unavailable && !c.Missing() {
			continue
		}
		g := group{string(c.State), c.Reason}
		if items[g] == nil {
			order = append(order, g)
		}
		if !slices.Contains(items[g], c.Item) { // events are listed with each span that has them
			items[g] = append(items[g], c.Item)
		}
	}
	sort.SliceStable(order, func(i, j int) bool { return order[i].state < order[j].state })
	var out []string
	for _, g := range order {
		names := items[g]
		more := ""
		if len(names) > 3 {
			more = fmt.Sprintf(" and %d more", len(names)-3)
			names = names[:3]
		}
		out = append(out, fmt.Sprintf("%s: %s%s: %s", g.state, strings.Join(names, ", "), more, g.reason))
	}
	return append(out, e.Problems...)
}

// loadTokens gives the pipeline the engine's token table when token texts are wanted.
func loadTokens(e *target.Engine, p *agent.Pipeline, o agent.Options) {
	if o.Precision < 2 || o.Content == correlate.ContentNone || e.Tokenizer == "" {
		return
	}
	f, err := target.OpenTokenizer(e)
	if err == nil {
		defer f.Close()
		var t *tokenizer.Table
		if t, err = tokenizer.Load(f); err == nil {
			p.Tokenizer(t)
			return
		}
	}
	e.Problems = append(e.Problems, fmt.Sprintf("token texts are not available: %v", err))
}

// printTraps prints how often the probes ran, per step of the engine where that means something.
func printTraps(w io.Writer, stats map[string]bpf.ProgramStats, steps uint64) {
	names := make([]string, 0, len(stats))
	for n, s := range stats {
		if s.Runs > 0 {
			names = append(names, n)
		}
	}
	sort.Strings(names)
	fmt.Fprintf(w, "\nTraps and BPF run time, %d engine steps\n", steps)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "program\truns\tper step\tns per run\t")
	for _, n := range names {
		s := stats[n]
		per := "-"
		if steps > 0 && isTrap(n) {
			per = fmt.Sprintf("%.2f", float64(s.Runs)/float64(steps))
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%d\t\n", n, s.Runs, per, s.Runtime/time.Duration(s.Runs))
	}
	t.Flush()
}

// isTrap tells probes in the engine from tracepoints, which are no traps and run for the whole host.
func isTrap(program string) bool {
	return !strings.HasPrefix(program, "http_") && program != "process_exit"
}
