package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

const recordings = "../../tests/captures/"

// run runs the program as from the command line.
func run(ctx context.Context, args ...string) (stdout string, err error) {
	var out bytes.Buffer
	root := newRoot()
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(args)
	err = root.ExecuteContext(ctx)
	return out.String(), err
}

// entries are the names of what is in a folder.
func entries(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// What the command line has wrong is said in one line that names it, with an exit code of
// its kind, before an engine is looked at (the process named here is none), and leaves no file.
func TestWrongUse(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	dir := t.TempDir()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := closed.Addr().String()
	closed.Close()
	pid := strconv.Itoa(os.Getpid())
	chat := recordings + "chat.isr"
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"atach"}, exitUsage, `unknown command "atach", is it attach?`},
		{[]string{"zzz"}, exitUsage, `unknown command "zzz"; see "inferspan --help"`},
		{[]string{"ps", "all"}, exitUsage, `"all": no argument is wanted here`},
		{[]string{"replay"}, exitUsage, "the recording is missing"},
		{[]string{"replay", chat, "b.isr"}, exitUsage, `"b.isr": one recording is wanted, not 2`},
		{[]string{"inspect", "--pid", pid}, exitUsage, "the path of an object is missing"},
		{[]string{"attach"}, exitUsage, "--pid is missing"},
		{[]string{"attach", "--pid", "abc"}, exitUsage, `--pid abc: want a whole number; see "inferspan attach --help"`},
		{[]string{"attach", "--pid", pid, "--probe-work", "x"}, exitUsage, "--probe-work x: want a number;"},
		{[]string{"profile", "--pid", pid, "--duration", "10"}, exitUsage, "--duration 10: want a duration, as 30s or 1m30s"},
		{[]string{"record", "-o", dir + "/r.isr"}, exitUsage, "--pid is missing"},
		{[]string{"attach", "--pid", pid, "--otlp-endpoint", ""}, exitUsage, "--otlp-endpoint is empty"},
		{[]string{"attach", "--pid", pid, "--jsonl="}, exitUsage, "--jsonl is empty"},
		{[]string{"attach", "--pid", pid, "--prometheus="}, exitUsage, "--prometheus is empty"},
		{[]string{"profile", "--pid", pid, "--out="}, exitUsage, "--out is empty"},
		{[]string{"replay", chat, "--to", "otlp", "--otlp-endpoint="}, exitUsage, "--otlp-endpoint is empty"},
		{[]string{"attach", "--pid", pid, "--probe-wait", "-1us"}, exitUsage, "--probe-wait -1"},
		{[]string{"attach", "--pid", pid, "--otlp-endpoint", nobody}, exitUsage, `it must begin with http:// or https://`},
		{[]string{"attach", "--pid", pid, "--otlp-endpoint", "http://" + nobody}, exitExport, "connection refused"},
		{[]string{"attach", "--pid", pid, "--prometheus", busy.Addr().String()}, exitExport, "address already in use"},
		{[]string{"profile", "--pid", pid, "--prometheus", busy.Addr().String(), "--out", dir + "/a/b"}, exitExport, "address already in use"},
		{[]string{"attach", "--pid", pid, "--jsonl", dir + "/none/x"}, exitExport, "creating " + dir + "/none/x: no such file or directory"},
		{[]string{"attach", "--pid", pid, "--jsonl", dir}, exitExport, "is a directory"},
		{[]string{"record", "--pid", pid, "-o", dir + "/none/x"}, exitExport, "creating " + dir + "/none/x: no such file or directory"},
		{[]string{"attach", "--pid", pid, "--jsonl", dir + "/x"}, exitTarget, "not an engine"},
		{[]string{"profile", "--pid", pid, "--out", dir + "/a/b"}, exitTarget, "not an engine"},
		{[]string{"record", "--pid", pid, "-o", dir + "/x"}, exitTarget, "not an engine"},
	} {
		_, err := run(t.Context(), c.args...)
		if err == nil || !strings.Contains(err.Error(), c.want) || exitCode(err) != c.code || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: code %d, %v, want %d, %q", c.args, exitCode(err), err, c.code, c.want)
		}
		if left := entries(t, dir); len(left) > 0 {
			t.Fatalf("%q leaves %q", c.args, left)
		}
	}
}

// A file of an earlier run outlives a run that does not begin.
func TestSpansKept(t *testing.T) {
	name := filepath.Join(t.TempDir(), "spans.jsonl")
	if err := os.WriteFile(name, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := run(t.Context(), "attach", "--pid", strconv.Itoa(os.Getpid()), "--jsonl", name); exitCode(err) != exitTarget {
		t.Fatalf("attaching to this test: %v", err)
	}
	if b, err := os.ReadFile(name); err != nil || string(b) != "{}\n" {
		t.Errorf("%q, %v", b, err)
	}
}

func TestReplayInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, to := range []string{"summary", "prom", "jsonl"} {
		dir := t.TempDir()
		out, err := run(ctx, "replay", recordings+"chat.isr", "--to", to, "-o", filepath.Join(dir, "x"))
		if err == nil || !strings.HasSuffix(err.Error(), "interrupted") || exitCode(err) != exitFailure {
			t.Errorf("--to %s: code %d, %v", to, exitCode(err), err)
		}
		if left := entries(t, dir); len(left) > 0 || out != "" {
			t.Errorf("--to %s leaves %q and prints %q", to, left, out)
		}
	}
}

// The summary of a damaged recording says that there was more.
func TestReplayDamaged(t *testing.T) {
	whole, err := os.ReadFile(recordings + "preempt.isr")
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "half.isr")
	if err := os.WriteFile(name, whole[:len(whole)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := run(t.Context(), "replay", name)
	if exitCode(err) != exitRecording {
		t.Errorf("code %d, %v", exitCode(err), err)
	}
	if got := strings.Join(strings.Fields(out), " "); !strings.Contains(got, "what follows is not in this summary") || !strings.Contains(got, "cut off at byte") {
		t.Errorf("summary:\n%s", out)
	}
}

// The summary begins with where the recording comes from.
func TestReplayOrigin(t *testing.T) {
	out, err := run(t.Context(), "replay", recordings+"chat.isr")
	if err != nil {
		t.Fatal(err)
	}
	head, _, _ := strings.Cut(out, "\n\n")
	for _, want := range []string{"recorded 2026-", " on Linux ", " by inferspan ", ", redacted: chat, seed 7"} {
		if got := strings.Join(strings.Fields(head), " "); !strings.Contains(got, want) {
			t.Errorf("%q does not say %q", got, want)
		}
	}
}

// SGLang 0.5.5 keeps no times in its front end: what a request took is from messages.
func TestReplayDerivedTimes(t *testing.T) {
	out, err := run(t.Context(), "replay", recordings+"sglang-0.5.5.isr")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"time to first token (TTFT)          -\n", "\nend to end * ", "\n* some are worked out from"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// README.md shows what the program prints of a recording: "..." stands for lines left out.
func TestReadme(t *testing.T) {
	zone := time.Local
	defer func() { time.Local = zone }()
	time.Local = time.UTC
	t.Setenv("COLUMNS", "80")
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, shown, ok := strings.Cut(string(text), "$ bin/inferspan replay tests/captures/preempt.isr\n")
	shown, _, end := strings.Cut(shown, "```")
	if !ok || !end {
		t.Fatal("README.md shows no summary")
	}
	out, err := run(t.Context(), "replay", recordings+"preempt.isr")
	if err != nil {
		t.Fatal(err)
	}
	for part := range strings.SplitSeq(strings.TrimPrefix(shown, "...\n"), "...\n") {
		_, rest, ok := strings.Cut(out, part)
		if !ok {
			t.Fatalf("README.md shows\n%s\nwhich the program does not print; what is left of its output:\n%s", part, out)
		}
		out = rest
	}
}

// What the documents say to type has commands and flags that there are.
func TestDocumentedFlags(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	flag := regexp.MustCompile(`(^|\s)--([a-z-]+)`)
	line := regexp.MustCompile(`\binferspan (attach|profile|record|replay|ps|check|inspect)\b[^` + "`" + `#\n]*`)
	n := 0
	for _, name := range append(files, "../../README.md", "../../tests/captures/README.md", "../../Dockerfile") {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range line.FindAllStringSubmatch(string(text), -1) {
			c, _, err := newRoot().Find([]string{m[1]})
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range flag.FindAllStringSubmatch(m[0], -1) {
				n++
				if c.Flags().Lookup(f[2]) == nil && f[2] != "help" {
					t.Errorf("%s: %s: there is no --%s", filepath.Base(name), m[0], f[2])
				}
			}
		}
	}
	if n == 0 {
		t.Error("the documents name no flag")
	}
}

// A recording that may be shared is one that others may read.
func TestFileMode(t *testing.T) {
	dir := t.TempDir()
	for _, mode := range []os.FileMode{0o600, 0o644} {
		f, err := newFile(filepath.Join(dir, "x"), mode)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.end(nil); err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(filepath.Join(dir, "x"))
		if err != nil || st.Mode().Perm()&^mode != 0 || st.Mode().Perm()&0o600 != 0o600 {
			t.Errorf("%v, %v, want %v", st.Mode(), err, mode)
		}
	}
	if left := entries(t, dir); len(left) != 1 {
		t.Errorf("left: %q", left)
	}
}

// Help fits a terminal of 80 columns, and the version can be asked for in both ways.
func TestHelp(t *testing.T) {
	t.Setenv("COLUMNS", "80")
	for _, c := range newRoot().Commands() {
		out, err := run(t.Context(), c.Name(), "--help")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out) {
			if n := len([]rune(strings.TrimRight(line, "\n"))); n > 85 { // the library fills a line by up to 5 more
				t.Errorf("%s --help: %d columns: %s", c.Name(), n, line)
			}
		}
	}
	command, err := run(t.Context(), "version")
	if err != nil {
		t.Fatal(err)
	}
	if flag, err := run(t.Context(), "--version"); err != nil || flag != command {
		t.Errorf("--version prints %q, %v, version %q", flag, err, command)
	}
}
