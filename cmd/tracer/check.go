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
