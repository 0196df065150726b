package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

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
				return printEnginesJSON(cmd.OutOrStdout(), engines, &rep, verbose)
			}
			printEngines(cmd.OutOrStdout(), engines, &rep, verbose)
			for _, s := range skipped {
				fmt.Fprintf(cmd.ErrOrStderr(), "process %d: %s\n", s.PID, s.Reason)
			}
			if len(engines) == 0 {
				return withCode(exitTarget, errors.New("no engine found on this host"))
			}
			return nil
		},
	}
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "say what can be traced of each engine")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func printEngines(w io.Writer, engines []target.Engine, rep *host.Report, verbose bool) {
	for i := range engines {
		e := &engines[i]
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintln(w, engineLine(e))
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "  PID\tROLE\tPYTHON\tPORTS\tCONTAINER\tCOMMAND")
		for j := range e.Processes {
			p := &e.Processes[j]
			fmt.Fprintf(t, "  %d\t%s\t%s\t%s\t%s\t%s\n", p.PID, roleText(p), pythonText(&p.Python), portsText(p.Ports), dash(short(p.ContainerID)), commandText(p))
		}
		t.Flush()
		for _, p := range e.Problems {
			fmt.Fprintf(w, "  ! %s\n", p)
		}
		if verbose {
			printCapabilities(w, target.Capabilities(e, *rep, nil), "  ")
		}
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

func roleText(p *target.Process) string {
	if p.Index > 0 {
		return fmt.Sprintf("%s %d", p.Role, p.Index)
	}
	return string(p.Role)
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
	const most = 3
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

// commandText is the command line without folders, cut to what tells processes apart.
func commandText(p *target.Process) string {
	const most = 60
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
	if len(s) > most {
		s = s[:most-3] + "..."
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
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for i := range caps {
		c := &caps[i]
		item := c.Item
		if c.Of != "" {
			item = "  " + item
		}
		fmt.Fprintf(t, "%s%s\t%s\t%s\t%s\n", indent, c.Kind, item, c.State, c.Reason)
	}
	t.Flush()
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
