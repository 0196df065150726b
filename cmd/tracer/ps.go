package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"inferspan/export/term"
	"inferspan/probes/host"
	"inferspan/probes/target"
)

func newPS() *cobra.Command {
	var asJSON, verbose bool
	c := &cobra.Command{
		Use:   "ps",
		Short: "List the inference engines on this host",
		Long: `Ps lists every engine with its processes: API servers, engine cores, workers. With
-v it says of each documented span, attribute and metric whether it can be had
exactly, derived, or not, and why.`,
		Example: "  sudo inferspan ps\n  sudo inferspan ps -v\n  sudo inferspan ps --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			engines, skipped, err := target.Find(cmd.Context())
			if err != nil {
				return withCode(exitHost, err)
			}
			var rep host.Report
			if verbose {
				rep = host.Check(cmd.Context())
			}
			if asJSON {
				err = printEnginesJSON(cmd.OutOrStdout(), engines, &rep, verbose)
			} else {
				err = printEngines(cmd.OutOrStdout(), engines, &rep, verbose)
			}
			if err != nil {
				return withCode(exitExport, err)
			}
			for _, s := range skipped {
				fmt.Fprintln(cmd.ErrOrStderr(), term.Clean(fmt.Sprintf("process %d: %s", s.PID, s.Reason)))
			}
			blind, nested := cannotLook(cmd.Context())
			switch {
			case len(engines) == 0 && blind:
				return withCode(exitHost, errors.New("no engine found, but processes of others could not be looked at: run as root, or with CAP_SYS_PTRACE"))
			case len(engines) == 0 && nested:
				return withCode(exitTarget, errors.New("no engine found in this PID namespace, which is not the host's: run in that (--pid=host, hostPID: true)"))
			case len(engines) == 0:
				return withCode(exitTarget, errors.New("no engine found on this host"))
			case blind:
				fmt.Fprintln(cmd.ErrOrStderr(), "processes of others could not be looked at: run as root, or with CAP_SYS_PTRACE")
			}
			return nil
		},
	}
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "say what can be traced of each engine")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// cannotLook reports whether the right to look at other processes is missing, and
// whether only those of a PID namespace are seen.
func cannotLook(ctx context.Context) (blind, nested bool) {
	rep := host.Checker{Passive: true}.Check(ctx)
	lacks := func(name string) bool {
		it := rep.Item(name)
		return it != nil && it.State != host.OK
	}
	return lacks("CAP_SYS_PTRACE"), lacks(host.PIDNamespace)
}

func printEngines(w io.Writer, engines []target.Engine, rep *host.Report, verbose bool) error {
	var b bytes.Buffer
	width := term.OptionsFor(w).Width
	if !isTerminal(w) {
		width = math.MaxInt32 // for other programs: whole lines
	}
	for i := range engines {
		e := &engines[i]
		if i > 0 {
			fmt.Fprintln(&b)
		}
		fmt.Fprintln(&b, term.Clean(engineLine(e)))
		printProcesses(&b, e, width)
		for _, p := range e.Problems {
			fmt.Fprintln(&b, term.Wrap("! "+p, "  ", width))
		}
		if verbose {
			printCapabilities(&b, target.Capabilities(e, *rep, nil), "  ")
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

// printProcesses fits the lines to the width by cutting the commands.
func printProcesses(w *bytes.Buffer, e *target.Engine, width int) {
	ps := e.Processes
	contained := slices.ContainsFunc(ps, func(p target.Process) bool { return p.ContainerID != "" })
	row := func(cells ...string) string {
		if !contained {
			cells = slices.Delete(cells, 4, 5)
		}
		return "  " + strings.Join(cells, "\t") + "\t"
	}
	var table bytes.Buffer
	t := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, row("PID", "ROLE", "PYTHON", "PORTS", "CONTAINER"))
	for i := range ps {
		p := &ps[i]
		fmt.Fprintln(t, row(strconv.Itoa(p.PID), roleText(e, p), pythonText(&p.Python), portsText(p.Ports), dash(short(p.ContainerID))))
	}
	t.Flush()
	for i := 0; ; i++ {
		line, err := table.ReadString('\n')
		if err != nil {
			return
		}
		line = strings.TrimSuffix(line, "\n")
		command := "COMMAND"
		if i > 0 {
			command = term.Clean(commandText(&ps[i-1]))
		}
		const least = 16
		fmt.Fprintln(w, line+term.Cut(command, max(width-len(line), least)))
	}
}

func engineLine(e *target.Engine) string {
	line := e.Kind
	if e.Version != "" {
		line += " " + e.Version
	}
	if m := modelName(e); m != "" {
		line += ", model " + m
		if e.Model != "" && e.Model != m {
			line += " (" + e.Model + ")"
		}
	}
	if e.PDRole != "" && e.PDRole != "none" {
		line += ", KV " + e.PDRole
	}
	return line
}

// roleText names the role of a process, with its number or its ranks where there are
// several.
func roleText(e *target.Engine, p *target.Process) string {
	s := target.RoleName(e.Kind, p.Role)
	if p.Ranks == (target.Ranks{}) {
		if p.Index > 0 {
			s += " " + strconv.Itoa(p.Index)
		}
		return s
	}
	for _, r := range []struct {
		name string
		of   func(*target.Process) *int
	}{
		{"DP", func(p *target.Process) *int { return p.Ranks.DP }},
		{"PP", func(p *target.Process) *int { return p.Ranks.PP }},
		{"TP", func(p *target.Process) *int { return p.Ranks.TP }},
	} {
		several := slices.ContainsFunc(e.Processes, func(p target.Process) bool { n := r.of(&p); return n != nil && *n > 0 })
		if n := r.of(p); n != nil && several {
			s += fmt.Sprintf(" %s%d", r.name, *n)
		}
	}
	return s
}

func pythonText(p *target.Python) string {
	if p.Version == "" {
		return "-"
	}
	s := p.Version
	if p.Linkage != "" {
		s += " " + p.Linkage
	}
	if p.Stripped {
		s += " stripped"
	}
	return s
}

// portsText lists ports; workers listen on many that say nothing.
func portsText(ports []int) string {
	const most = 2
	var out []string
	for i, p := range ports {
		if i == most {
			out = append(out, fmt.Sprintf("+%d", len(ports)-most))
			break
		}
		out = append(out, strconv.Itoa(p))
	}
	return dash(strings.Join(out, ","))
}

// commandText is the command line without folders.
func commandText(p *target.Process) string {
	var words []string
	for _, a := range p.Cmdline {
		if strings.HasPrefix(a, "/") {
			a = filepath.Base(a)
		}
		words = append(words, a)
	}
	s := strings.Join(words, " ")
	if s == "" {
		s = p.Comm
	}
	return s
}

func short(id string) string { return id[:min(len(id), 12)] }

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func printCapabilities(w io.Writer, caps []target.Capability, indent string) {
	kind, item := 0, 0
	name := func(c *target.Capability) string {
		if c.Of != "" {
			return "  " + c.Item
		}
		return c.Item
	}
	for i := range caps {
		kind, item = max(kind, len(caps[i].Kind)), max(item, len(name(&caps[i])))
	}
	for i := range caps {
		c := &caps[i]
		line := fmt.Sprintf("%s%-*s  %-*s  %-11s  %s", indent, kind, c.Kind, item, name(c), c.State, term.Clean(c.Reason))
		fmt.Fprintln(w, strings.TrimRight(line, " "))
	}
}

func printEnginesJSON(w io.Writer, engines []target.Engine, rep *host.Report, verbose bool) error {
	type engine struct {
		target.Engine
		Capabilities []target.Capability `json:"capabilities,omitempty"`
	}
	out := make([]engine, 0, len(engines))
	for i := range engines {
		e := engine{Engine: engines[i]}
		if verbose {
			e.Capabilities = target.Capabilities(&engines[i], *rep, nil)
		}
		out = append(out, e)
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(out)
}
