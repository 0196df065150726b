package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

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
			} else {
				printCheck(cmd.OutOrStdout(), &r)
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

func printCheck(w io.Writer, r *host.Report) {
	fmt.Fprintf(w, "kernel %s, %s\n\n", r.Kernel, r.Arch)
	width := 0
	for i := range r.Items {
		width = max(width, len(r.Items[i].Name))
	}
	for i := range r.Items {
		it := &r.Items[i]
		fmt.Fprintf(w, "%-*s  %-8s  %s\n", width, it.Name, it.State, it.Detail)
		if it.State == host.OK {
			continue
		}
		indent := strings.Repeat(" ", width+12)
		if it.NeededFor != "" {
			need := "for"
			if it.Required {
				need = "required for"
			}
			fmt.Fprintf(w, "%s%s: %s\n", indent, need, it.NeededFor)
		}
		if it.Fix != "" {
			fmt.Fprintf(w, "%sfix: %s\n", indent, it.Fix)
		}
	}
}
