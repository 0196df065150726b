package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"inferspan/export/term"
)

// version is set by the linker for a release (-X main.version=...).
var version = "dev"

const rootLong = `Inferspan traces LLM inference engines from outside.

It attaches to a vLLM or SGLang that is already running, changes nothing in it,
and exports every request as a tree of spans (what the client asked for, and the
engine's stages: queue, prefill, decode) with the engine's and the GPUs' metrics:
to OpenTelemetry, Prometheus, JSON lines or the terminal.

Exit codes:
  0  done
  1  something went wrong that has no code of its own
  2  unknown command, flag or value
  3  no such process, not an engine, or it exited
  4  the host or the privileges do not allow tracing ("inferspan check" says what is missing)
  5  the recording cannot be read or is damaged; what came before the fault was used
  6  results could not be delivered or written`

const rootExample = `  inferspan check                          what this host allows
  inferspan ps                             engines on this host
  inferspan profile --pid 4242             30 s of it, then a summary
  inferspan attach --pid 4242 --otlp-endpoint http://127.0.0.1:4318
  inferspan record --pid 4242 -o run.isr --duration 1m --redact
  inferspan replay run.isr --to summary`

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "inferspan",
		Short:         "Trace LLM inference engines from outside",
		Long:          rootLong,
		Example:       rootExample,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version,
		Args:          noCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SuggestionsMinimumDistance = 2
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return withCode(exitUsage, fmt.Errorf("%w; see %q", flagError(err), cmd.CommandPath()+" --help"))
	})
	var v bytes.Buffer
	printVersion(&v)
	root.SetVersionTemplate(v.String())
	// Flags' descriptions in the width of the terminal, with their later lines below the first.
	width := max(60, min(term.OptionsFor(os.Stdout).Width, 120))
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages ", fmt.Sprintf(".FlagUsagesWrapped %d ", width)))
	root.AddCommand(newPS(), newCheck(), newAttach(), newProfile(), newRecord(), newReplay(), newInspect(), newVersion())
	for _, c := range root.Commands() {
		usageErrors(c)
	}
	usageErrors(root)
	return root
}

// flagError says what a flag wants whose value cannot be read.
func flagError(err error) error {
	var bad *pflag.InvalidValueError
	if !errors.As(err, &bad) {
		return err
	}
	want := map[string]string{"int": "a whole number", "float64": "a number", "duration": "a duration, as 30s or 1m30s", "bool": "true or false"}[bad.GetFlag().Value.Type()]
	if want == "" {
		return err
	}
	return fmt.Errorf("--%s %s: want %s", bad.GetFlag().Name, bad.GetValue(), want)
}

// usageErrors gives wrong arguments the exit code of wrong usage.
func usageErrors(c *cobra.Command) {
	check := c.Args
	if check == nil {
		check = none
	}
	c.Args = func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return withCode(exitUsage, fmt.Errorf("%w; see %q", err, cmd.CommandPath()+" --help"))
		}
		return nil
	}
}

// none wants no argument.
func none(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%q: no argument is wanted here", args[0])
	}
	return nil
}

// one wants one argument, which what names.
func one(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch len(args) {
		case 0:
			return fmt.Errorf("the %s is missing", what)
		case 1:
			return nil
		}
		return fmt.Errorf("%q: one %s is wanted, not %d", args[1], what, len(args))
	}
}

// noCommand is for the root, whose arguments are names of commands that there are not.
func noCommand(root *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if like := root.SuggestionsFor(args[0]); len(like) > 0 {
		return fmt.Errorf("unknown command %q, is it %s?", args[0], strings.Join(like, " or "))
	}
	return fmt.Errorf("unknown command %q", args[0])
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this build",
		RunE: func(cmd *cobra.Command, _ []string) error {
			printVersion(cmd.OutOrStdout())
			return nil
		},
	}
}

func printVersion(w io.Writer) {
	fmt.Fprintf(w, "inferspan %s %s/%s %s", version, runtime.GOOS, runtime.GOARCH, runtime.Version())
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				fmt.Fprintf(w, " %.12s", s.Value)
			}
			if s.Key == "vcs.modified" && s.Value == "true" {
				fmt.Fprint(w, " (modified)")
			}
		}
	}
	fmt.Fprintln(w)
}
