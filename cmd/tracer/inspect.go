package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"inferspan/probes/procfs"
	"inferspan/probes/python"
	"inferspan/probes/python/inspect"
)

// Bounds on what "inspect" prints.
const (
	maxInspectDepth = 32
	maxInspectParts = 100_000
	inspectText     = 1000
)

func newInspect() *cobra.Command {
	var pid, depth, limit int
	var asJSON bool
	c := &cobra.Command{
		Use:   "inspect --pid N PATH",
		Short: "Print an object of a running Python process",
		Long: `Inspect reads an object of a Python process without stopping it and prints it with
its types. PATH begins with the name of a module that the program has imported;
attributes (.name), indices and int keys ([3], [-1]) and str keys (['name']) follow.

No code of the process runs: an attribute that Python would compute, as a property
does, is an error. The process runs on while it is read: each object is shown as of
one moment, not all of them together. What changes all the time is an error, too.

It prints what is there, which may be prompts or keys.`,
		Example: `  sudo inferspan inspect --pid 4242 vllm.version.__version__
  sudo inferspan inspect --pid 4242 --depth 2 "sys.modules['os'].environ"
  sudo inferspan inspect --pid 4242 time.monotonic`,
		Args: one("path of an object"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkInspect(pid, depth, limit); err != nil {
				return withCode(exitUsage, err)
			}
			path, err := inspect.ParsePath(args[0])
			if err != nil {
				return withCode(exitUsage, err)
			}
			n, err := inspectObject(pid, path, inspect.Options{Depth: depth, Max: limit, Text: inspectText})
			if err != nil {
				return pythonError(err)
			}
			if asJSON {
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetIndent("", "  ")
				e.SetEscapeHTML(false)
				err = e.Encode(n)
			} else {
				err = inspect.Print(cmd.OutOrStdout(), n)
			}
			if err != nil {
				return withCode(exitExport, fmt.Errorf("writing: %w", err))
			}
			return nil
		},
	}
	pidFlag(c, &pid)
	c.Flags().Lookup("pid").Usage = "the Python process"
	c.Flags().IntVar(&depth, "depth", 1, "levels of objects in objects to print")
	c.Flags().IntVar(&limit, "max", 50, "elements, entries or attributes of an object to print")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func checkInspect(pid, depth, limit int) error {
	switch {
	case pid == 0:
		return errors.New(`--pid is missing: the Python process to look into`)
	case pid < 0:
		return fmt.Errorf("--pid %d: want the id of a process", pid)
	case depth < 0 || depth > maxInspectDepth:
		return fmt.Errorf("--depth %d: want 0 to %d", depth, maxInspectDepth)
	case limit < 1 || limit > maxInspectParts:
		return fmt.Errorf("--max %d: want 1 to %d", limit, maxInspectParts)
	}
	return nil
}

func inspectObject(pid int, path inspect.Path, o inspect.Options) (*inspect.Node, error) {
	in, err := python.Open(pid)
	if err != nil {
		return nil, err
	}
	v, err := path.Resolve(in)
	if err != nil {
		return nil, err
	}
	if o.Maps, err = (procfs.FS{}).Maps(pid); err != nil {
		return nil, err
	}
	n := inspect.Describe(v, o)
	return &n, nil
}

// pythonError gives an error of reading a Python process its exit code.
func pythonError(err error) error {
	switch {
	case errors.Is(err, os.ErrPermission):
		return withCode(exitHost, fmt.Errorf("%w; reading another process needs root, or CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH", err))
	case errors.Is(err, python.ErrNotPython), errors.Is(err, python.ErrUnsupported), errors.Is(err, python.ErrGone):
		return withCode(exitTarget, err)
	}
	return err
}
