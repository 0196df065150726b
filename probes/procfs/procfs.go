// Package procfs reads what /proc says about processes. A process may be in
// other PID, mount and network namespaces than the reader: paths are resolved
// through the process's own root, network state through its own net directory.
//
// Everything read was written by the observed process or on its behalf, so sizes
// are bounded. All functions may be called concurrently.
package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// ErrGone says that the process does not exist, or ended while it was read.
var ErrGone = errors.New("process is gone")

// Sizes above these are cut. ARG_MAX allows 2 MiB of arguments and environment;
// a vLLM front end has some 4,000 mappings of about 150 bytes.
const (
	maxFile = 4 << 20
	maxMaps = 32 << 20
)

// FS is a proc file system by its mount point. The zero value is /proc.
type FS struct{ Root string }

func (f FS) path(pid int, elem ...string) string {
	root := f.Root
	if root == "" {
		root = "/proc"
	}
	p := root
	if pid != 0 {
		p = filepath.Join(root, strconv.Itoa(pid))
	}
	return filepath.Join(append([]string{p}, elem...)...)
}

// Path returns the path of a file in the process's directory.
func (f FS) Path(pid int, elem ...string) string { return f.path(pid, elem...) }

// readAll reads at most max bytes.
func readAll(path string, max int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, gone(err)
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, max))
	return b, gone(err)
}

// gone marks the errors that /proc gives for a process that has ended.
func gone(err error) error {
	if err != nil && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)) {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	return err
}

// PIDs lists the processes, in ascending order of their directory names.
func (f FS) PIDs() ([]int, error) {
	ents, err := os.ReadDir(f.path(0))
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	var pids []int
	for _, e := range ents {
		if n, err := strconv.Atoi(e.Name()); err == nil && n > 0 {
			pids = append(pids, n)
		}
	}
	return pids, nil
}

// Stat is the part of /proc/PID/stat that is needed.
type Stat struct {
	Comm  string
	State byte // 'R', 'S', 'Z' ...
	PPID  int
	Start uint64 // clock ticks after boot
	// Kernel: a kernel thread (PF_KTHREAD of the kernel's sched.h).
	Kernel bool
}

const pfKthread = 0x00200000

// Stat reads /proc/PID/stat.
func (f FS) Stat(pid int) (Stat, error) {
	b, err := readAll(f.path(pid, "stat"), maxFile)
	if err != nil {
		return Stat{}, fmt.Errorf("reading stat of process %d: %w", pid, err)
	}
	s, err := parseStat(b)
	if err != nil {
		return Stat{}, fmt.Errorf("reading stat of process %d: %w", pid, err)
	}
	return s, nil
}

func parseStat(b []byte) (Stat, error) {
	// The name may hold blanks and parentheses: it ends at the last ')'.
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return Stat{}, errors.New("no process name")
	}
	rest := bytes.Fields(b[end+1:])
	// Field 3 (state) is rest[0]; starttime is field 22.
	if len(rest) < 20 || len(rest[0]) != 1 {
		return Stat{}, fmt.Errorf("%d fields after the name, want at least 20", len(rest))
	}
	ppid, err := strconv.Atoi(string(rest[1]))
	if err != nil {
		return Stat{}, fmt.Errorf("parent: %w", err)
	}
	start, err := strconv.ParseUint(string(rest[19]), 10, 64)
	if err != nil {
		return Stat{}, fmt.Errorf("start time: %w", err)
	}
	flags, err := strconv.ParseUint(string(rest[6]), 10, 64)
	if err != nil {
		return Stat{}, fmt.Errorf("flags: %w", err)
	}
	return Stat{Comm: string(b[open+1 : end]), State: rest[0][0], PPID: ppid, Start: start, Kernel: flags&pfKthread != 0}, nil
}

// Status is the part of /proc/PID/status that is needed.
type Status struct {
	TGID    int
	NSPID   int // in the innermost PID namespace
	Nested  bool
	Seccomp int    // 0 off, 1 strict, 2 filter
	CapEff  uint64 // effective capabilities
	UID     int    // effective
}

// Status reads /proc/PID/status.
func (f FS) Status(pid int) (Status, error) {
	b, err := readAll(f.path(pid, "status"), maxFile)
	if err != nil {
		return Status{}, fmt.Errorf("reading status of process %d: %w", pid, err)
	}
	s, err := parseStatus(b)
	if err != nil {
		return Status{}, fmt.Errorf("reading status of process %d: %w", pid, err)
	}
	return s, nil
}

// maxTasks bounds the threads looked at in one process.
const maxTasks = 1 << 14

// Asleep reports whether a thread of a process, by its id in its own PID namespace, sleeps
// in the kernel and can be woken, and how often it had been switched away from by then: if
// it is asleep twice and that did not change, it did not run in between.
func (f FS) Asleep(pid, nstid int) (switches uint64, ok bool) {
	dir, err := os.Open(f.path(pid, "task"))
	if err != nil {
		return 0, false
	}
	defer dir.Close()
	names, err := dir.Readdirnames(maxTasks)
	if err != nil && err != io.EOF {
		return 0, false
	}
	for _, n := range names {
		b, err := readAll(f.path(pid, "task", n, "status"), maxFile)
		if err != nil {
			continue
		}
		if s, err := parseStatus(b); err == nil && s.NSPID == nstid {
			return parseAsleep(b)
		}
	}
	return 0, false
}

func parseAsleep(status []byte) (switches uint64, ok bool) {
	found := 0
	for line := range strings.Lines(string(status)) {
		key, val, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch val = strings.TrimSpace(val); key {
		case "State":
			ok = strings.HasPrefix(val, "S")
		case "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches":
			n, err := strconv.ParseUint(val, 10, 64)
			if err != nil {
				return 0, false
			}
			switches += n
			found++
		}
	}
	return switches, ok && found == 2
}

// parseStatus reads the text of a status file.
func parseStatus(b []byte) (Status, error) {
	var s Status
	for line := range strings.Lines(string(b)) {
		key, val, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok {
			continue
		}
		w := strings.Fields(val)
		if len(w) == 0 {
			continue
		}
		var err error
		switch key {
		case "Tgid":
			s.TGID, err = strconv.Atoi(w[0])
		case "NSpid":
			s.NSPID, err = strconv.Atoi(w[len(w)-1])
			s.Nested = len(w) > 1
		case "Seccomp":
			s.Seccomp, err = strconv.Atoi(w[0])
		case "CapEff":
			s.CapEff, err = strconv.ParseUint(w[0], 16, 64)
		case "Uid":
			if len(w) > 1 {
				s.UID, err = strconv.Atoi(w[1])
			}
		}
		if err != nil {
			return Status{}, fmt.Errorf("%s: %w", key, err)
		}
	}
	if s.TGID == 0 {
		return Status{}, errors.New("no Tgid")
	}
	if s.NSPID == 0 {
		s.NSPID = s.TGID // kernels without PID namespaces
	}
	return s, nil
}

// Cmdline reads the arguments of the process as it has them now: a process may
// overwrite them (setproctitle). It is empty for a kernel thread or a zombie.
func (f FS) Cmdline(pid int) ([]string, error) {
	b, err := readAll(f.path(pid, "cmdline"), maxFile)
	if err != nil {
		return nil, fmt.Errorf("reading the command line of process %d: %w", pid, err)
	}
	return splitNul(b), nil
}

// splitNul splits a NUL-terminated list and drops the padding that
// setproctitle leaves behind: blanks at the end of the one argument and
// empty arguments after it.
func splitNul(b []byte) []string {
	var out []string
	for s := range strings.SplitSeq(string(b), "\x00") {
		out = append(out, s)
	}
	for len(out) > 0 && strings.TrimSpace(out[len(out)-1]) == "" {
		out = out[:len(out)-1]
	}
	if len(out) == 1 {
		out[0] = strings.TrimRight(out[0], " ")
	}
	return out
}

// Env reads variables of the environment that the process was started with.
// Later changes by the process are not seen. Only the names asked for are kept.
func (f FS) Env(pid int, names ...string) (map[string]string, error) {
	b, err := readAll(f.path(pid, "environ"), maxFile)
	if err != nil {
		return nil, fmt.Errorf("reading the environment of process %d: %w", pid, err)
	}
	out := make(map[string]string)
	for kv := range strings.SplitSeq(string(b), "\x00") {
		k, v, ok := strings.Cut(kv, "=")
		if !ok {
			continue
		}
		for _, n := range names {
			if k == n {
				out[k] = v
			}
		}
	}
	return out, nil
}

// Exiting reports whether a process has ended or is about to: one that was killed
// gives up its memory some time before it counts as ended.
func (f FS) Exiting(pid int) bool {
	st, err := f.Stat(pid)
	if err != nil {
		return errors.Is(err, ErrGone)
	}
	if st.State == 'Z' || st.State == 'X' {
		return true
	}
	maps, err := f.Maps(pid)
	return errors.Is(err, ErrGone) || err == nil && len(maps) == 0 && !st.Kernel
}
