package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"inferspan/probes/python"
	"inferspan/tests/child"
	"inferspan/tests/pythons"
)

func TestInspectCommand(t *testing.T) {
	exe := ""
	have := pythons.Find()
	for _, v := range pythons.Supported {
		if len(have[v]) > 0 {
			exe = have[v][0]
		}
	}
	if exe == "" {
		t.Skip("no Python on this machine")
	}
	p := child.Start(t, exec.Command(exe, "-u", "-c", "import sys; table = {'a': [1, None]}; print('ready'); sys.stdin.readline()"))
	p.Expect("ready")
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	pid := strconv.Itoa(p.PID())
	run := func(args ...string) (string, error) {
		root := newRoot()
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetErr(&out)
		root.SetArgs(append([]string{"inspect"}, args...))
		err := root.Execute()
		return out.String(), err
	}
	for _, c := range []struct {
		args string
		code int
		want string // of the output, or of the error
	}{
		{"--pid " + pid + " __main__.table", 0, "dict, 1 entries\n  'a': list, 2 elements\n"},
		{"--pid " + pid + " --depth 2 --max 1 __main__.table", 0, "dict, 1 entries\n  'a': list, 2 elements\n    [0]: int 1\n    ... 1 more\n"},
		{"--pid " + pid + " __main__.table['a'][0]", 0, "int 1\n"},
		{"--pid " + pid + " __main__.absent", exitFailure, "attribute absent of module: not found"},
		{"--pid " + pid + " a[", exitUsage, "malformed path"},
		{"--pid " + pid, exitUsage, "the path of an object is missing"},
		{"__main__", exitUsage, "--pid is missing"},
		{"--pid -4 __main__", exitUsage, "--pid -4"},
		{"--pid x __main__", exitUsage, "--pid x: want a whole number"},
		{"--pid " + pid + " --depth 99 __main__", exitUsage, "--depth 99: want 0 to 32"},
		{"--pid " + pid + " --max 0 __main__", exitUsage, "--max 0: want 1 to 100000"},
		{"--pid " + strconv.Itoa(gone.Process.Pid) + " __main__", exitTarget, "process is gone"},
		{"--pid self __main__", exitUsage, "--pid self: want a whole number"},
	} {
		out, err := run(strings.Fields(c.args)...)
		if c.code == 0 {
			if err != nil || out != c.want {
				t.Errorf("inspect %s: %q, %v; want %q", c.args, out, err, c.want)
			}
			continue
		}
		if err == nil || exitCode(err) != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("inspect %s: %v, want %q and the exit code %d", c.args, err, c.want, c.code)
		}
	}
	out, err := run("--pid", pid, "--json", "--depth", "2", "__main__.table")
	var n struct {
		Type  string
		Parts []struct {
			Key    struct{ Value string }
			Object struct{ Len int }
		}
	}
	if err == nil {
		err = json.Unmarshal([]byte(out), &n)
	}
	if err != nil || n.Type != "dict" || len(n.Parts) != 1 || n.Parts[0].Key.Value != "a" || n.Parts[0].Object.Len != 2 {
		t.Errorf("JSON: %s, %v", out, err)
	}
	// A process that is no Python.
	sleep := exec.Command("sleep", "60")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sleep.Process.Kill(); _ = sleep.Wait() }()
	if _, err := run("--pid", strconv.Itoa(sleep.Process.Pid), "sys"); err == nil || exitCode(err) != exitTarget || !strings.Contains(err.Error(), "not a Python process") {
		t.Errorf("inspect of sleep: %v", err)
	}
}

func TestPythonError(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
	}{
		{fmt.Errorf("reading: %w", unix.EPERM), exitHost},
		{fmt.Errorf("opening: %w", fs.ErrPermission), exitHost},
		{fmt.Errorf("a: %w", python.ErrUnsupported), exitTarget},
		{fmt.Errorf("a: %w", python.ErrGone), exitTarget},
		{fmt.Errorf("a: %w", python.ErrUnstable), exitFailure},
	} {
		if got := exitCode(pythonError(c.err)); got != c.code {
			t.Errorf("%v has the exit code %d, want %d", c.err, got, c.code)
		}
	}
}
