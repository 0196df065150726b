package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"inferspan/export/term"
	"inferspan/gpu/nvml"
	"inferspan/probes/host"
)

func newCheck() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "check",
		Short: "Say what this host allows, and what is missing for what",
		Long: `Check looks at the kernel, its type information, the file systems, the rights of
this process and the probe types, by trying them out on itself. The exit code is 4
when something that everything needs is missing.`,
		Example: "  sudo inferspan check\n  sudo inferspan check --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			r := host.Check(cmd.Context())
			checkNVML(&r, nvml.Open)
			if asJSON {
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetIndent("", "  ")
				if err := e.Encode(r); err != nil {
					return err
				}
			} else if err := printCheck(cmd.OutOrStdout(), &r); err != nil {
				return err
			}
			if !r.Usable() {
				return withCode(exitHost, errors.New("this host does not allow tracing: see the items marked as required"))
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// checkNVML completes the item of the library, which is only looked for there, with what
// comes of loading it.
func checkNVML(r *host.Report, open func() (nvml.Library, error)) {
	it := r.Item(host.NVML)
	if it == nil {
		return
	}
	s := nvml.Check(open)
	switch {
	case s.GPUs > 0 && s.Err == nil:
		it.State, it.Fix = host.OK, ""
		it.Detail = fmt.Sprintf("driver %s, GPUs: %d", s.Driver, s.GPUs)
	case s.GPUs > 0:
		it.State, it.Fix = host.Degraded, s.Fix
		it.Detail = fmt.Sprintf("driver %s, GPUs: %d; %v", s.Driver, s.GPUs, s.Err)
	case errors.Is(s.Err, nvml.ErrNoCgo):
		// Whether the library is there is known all the same.
		if it.State == host.OK {
			it.State, it.Fix = host.Missing, s.Fix
		}
		it.Detail += "; " + s.Err.Error()
	default:
		it.State, it.Fix = host.Missing, s.Fix
		it.Detail += "; " + s.Err.Error()
	}
}

func printCheck(w io.Writer, r *host.Report) error {
	var b bytes.Buffer
	columns := term.OptionsFor(w).Width
	fmt.Fprintf(&b, "kernel %s, %s\n\n", r.Kernel, r.Arch)
	name := 0
	for i := range r.Items {
		name = max(name, len(r.Items[i].Name))
	}
	indent := strings.Repeat(" ", name+12)
	more := func(text string) { fmt.Fprintln(&b, term.Wrap(text, indent, columns)) }
	for i := range r.Items {
		it := &r.Items[i]
		head := fmt.Sprintf("%-*s  %-8s  ", name, it.Name, it.State)
		line := head + strings.TrimPrefix(term.Wrap(it.Detail, indent, columns), indent)
		fmt.Fprintln(&b, strings.TrimRight(line, " "))
		if it.State == host.OK {
			continue
		}
		if it.NeededFor != "" {
			need := "for: "
			if it.Required {
				need = "required for: "
			}
			more(need + it.NeededFor)
		}
		if it.Fix != "" {
			more("fix: " + it.Fix)
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}
