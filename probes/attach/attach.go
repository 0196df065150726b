// Package attach puts probes into running processes by a table, and takes them out
// again.
//
// Every probe is a uprobe limited to one process, so that other processes that
// map the same library (an engine's workers) run without a breakpoint. A return
// is probed by uprobes at the function's return instructions: unlike a uretprobe
// these leave the stack alone and need no system call on the way back. Their price
// on x86-64 is that the kernel single-steps a return, where it emulates the push
// that most functions begin with.
package attach

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"inferspan/bpf"
	"inferspan/probes/elf"
	"inferspan/probes/procfs"
	"inferspan/probes/target"
)

// ErrExited is wrapped when the process ended before or while it was attached to.
var ErrExited = errors.New("process exited")

// ErrNothing is wrapped when there is nothing to see in a process of that role.
var ErrNothing = errors.New("nothing to attach to")

// Tracer is the part of bpf.Objects that is needed.
type Tracer interface {
	Program(bpf.Program) *ebpf.Program
	SetTarget(pid int, role bpf.Role, ports ...uint16) error
	RemoveTarget(pid int) error
}

// Status tells of one probe.
type Status struct {
	Probe    Probe
	Attached bool
	Points   int    // instructions probed
	Means    string // "uprobe", "uretprobe"
	Reason   string // why not attached
}

// Process is a process with its probes.
type Process struct {
	pid    int
	tracer Tracer
	target *target.Process
	report []Status
	done   chan struct{}

	mu     sync.Mutex
	links  [][]io.Closer // as report
	pidfd  *os.File
	closed bool
	err    error
}

// Attach attaches to p, of an engine of the kind, what Plan says. On an error nothing is left attached; it
// wraps ErrExited if the process is gone, ErrNothing, bpf.ErrPermission,
// elf.ErrNoSymbol, or says which required probe failed and why. The probes are
// taken out by Close, or when the process exits.
func Attach(t Tracer, kind string, p *target.Process) (*Process, error) {
	probes, role := Plan(kind, p)
	if role == 0 {
		return nil, fmt.Errorf("attaching to process %d: %w: role %s", p.PID, ErrNothing, p.Role)
	}
	return attach(t, p, probes, role)
}

func attach(t Tracer, p *target.Process, probes []Probe, role bpf.Role) (_ *Process, err error) {
	a := &Process{pid: p.PID, tracer: t, done: make(chan struct{})}
	defer func() {
		if err == nil {
			return
		}
		// Whatever failed, the exit of the process explains it.
		if (a.gone() || procfs.FS{}.Exiting(p.PID)) && !errors.Is(err, ErrExited) {
			err = fmt.Errorf("%w: %w", ErrExited, err)
		}
		err = fmt.Errorf("attaching to process %d (%s): %w", p.PID, p.Role, errors.Join(err, a.Close()))
	}()
	// The descriptor stands for this very process: its number cannot be taken
	// by another one from here on.
	if err := a.open(p); err != nil {
		return nil, err
	}
	a.target = p
	libs := libraries{}
	defer libs.close()
	for _, probe := range probes {
		s, links := a.attachProbe(probe, p, libs)
		a.report = append(a.report, s.Status)
		a.links = append(a.links, links)
		if s.err != nil && (probe.Required || a.gone()) {
			return nil, fmt.Errorf("probe %s: %w", probe, s.err)
		}
	}
	if err := t.SetTarget(p.PID, role, ports(p, role)...); err != nil {
		return nil, err
	}
	// Had it exited before SetTarget, its exit would have been missed.
	if a.gone() {
		return nil, ErrExited
	}
	go a.wait()
	return a, nil
}

// ports are the listening ports that matter for a role. A core that runs its worker
// in its own process listens on many, for the workers to meet, and serves nobody.
func ports(p *target.Process, role bpf.Role) []uint16 {
	if role&bpf.RoleHTTP == 0 {
		return nil
	}
	out := make([]uint16, 0, len(p.Ports))
	for _, port := range p.Ports {
		out = append(out, uint16(port))
	}
	return out
}

// open opens a descriptor of the process and checks that it is the one meant.
func (a *Process) open(p *target.Process) error {
	fd, err := unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return ErrExited
	}
	if err != nil {
		return fmt.Errorf("opening a descriptor of the process: %w", err)
	}
	a.pidfd = os.NewFile(uintptr(fd), "pidfd")
	stat, err := procfs.FS{}.Stat(p.PID)
	if errors.Is(err, procfs.ErrGone) || (err == nil && p.Start != 0 && stat.Start != p.Start) {
		return ErrExited
	}
	if err != nil {
		return err
	}
	return nil
}

// gone reports whether the process has exited: its descriptor is readable then.
func (a *Process) gone() bool {
	if a.pidfd == nil {
		return false
	}
	conn, err := a.pidfd.SyscallConn()
	if err != nil {
		return false
	}
	gone := false
	_ = conn.Control(func(fd uintptr) { gone = readable(fd) })
	return gone
}

func readable(fd uintptr) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if !errors.Is(err, unix.EINTR) {
			return err == nil && n > 0
		}
	}
}

// wait takes the probes out when the process exits. Close ends it.
func (a *Process) wait() {
	defer close(a.done)
	conn, err := a.pidfd.SyscallConn()
	if err != nil {
		return // closed
	}
	if conn.Read(readable) == nil {
		a.release()
	}
}

// DetachReceipts takes the probes on messages that a front end receives out, where
// something better tells when it has them; in other processes there are none.
func (a *Process) DetachReceipts() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var errs []error
	for n, links := range a.links {
		if a.receipt(n) {
			errs = append(errs, bpf.CloseAll(links)...)
			a.links[n] = nil
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("detaching receipts from process %d: %w", a.pid, err)
	}
	return nil
}

// AttachReceipts puts back what DetachReceipts took out. The error says which probe
// failed and why, or wraps ErrExited.
func (a *Process) AttachReceipts() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return fmt.Errorf("attaching receipts to process %d: %w", a.pid, ErrExited)
	}
	libs := libraries{}
	defer libs.close()
	for n, links := range a.links {
		if links != nil || !a.receipt(n) {
			continue
		}
		s, links := a.attachProbe(a.report[n].Probe, a.target, libs)
		if s.err != nil {
			return fmt.Errorf("attaching receipts to process %d: probe %s: %w", a.pid, s.Probe, s.err)
		}
		a.links[n] = links
	}
	return nil
}

// receipt tells whether probe n of the report is on messages that a front end receives.
func (a *Process) receipt(n int) bool {
	return a.report[n].Attached && a.report[n].Probe.Tap == target.TapReceipts
}

// Report tells of each probe of the plan. The result is not changed later.
func (a *Process) Report() []Status { return a.report }

// Done is closed after the process exited and its probes were taken out, or after Close.
func (a *Process) Done() <-chan struct{} { return a.done }

// Close takes the probes out and forgets the process. Calls after the first do
// nothing. Threads of the process that are in a probed function are not disturbed.
func (a *Process) Close() error {
	a.release()
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

// release undoes everything, once.
func (a *Process) release() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return
	}
	a.closed = true
	var errs []error
	errs = append(errs, a.tracer.RemoveTarget(a.pid))
	for _, links := range a.links {
		errs = append(errs, bpf.CloseAll(links)...)
	}
	a.links = nil
	if a.pidfd != nil {
		errs = append(errs, a.pidfd.Close())
	}
	a.err = errors.Join(errs...)
}

type outcome struct {
	Status
	err error
}

// attachProbe attaches one probe at all its points, or at none.
func (a *Process) attachProbe(probe Probe, p *target.Process, libs libraries) (outcome, []io.Closer) {
	o := outcome{Status: Status{Probe: probe}}
	fail := func(err error) (outcome, []io.Closer) {
		o.err, o.Reason = err, err.Error()
		return o, nil
	}
	where := probe.Library(p)
	if where == nil {
		return fail(fmt.Errorf("the process does not map %s", probe.LibraryName))
	}
	lib := libs[where.MapFile]
	if lib == nil {
		var err error
		if lib, err = OpenLibrary(where); err != nil {
			return fail(err)
		}
		libs[where.MapFile] = lib
	}
	prog := a.tracer.Program(probe.Program)
	if prog == nil {
		return fail(fmt.Errorf("no BPF program %s", probe.Program))
	}
	at, err := lib.Attach(Program{Program: prog}, probe.Symbol, probe.Where, p)
	if err != nil {
		return fail(err)
	}
	o.Attached, o.Points, o.Means = true, at.Points, at.Means
	return o, at.Links
}

func explain(err error) error {
	switch {
	case errors.Is(err, unix.ESRCH):
		return fmt.Errorf("%w: %w", ErrExited, err)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w: uprobes need CAP_SYS_ADMIN (on kernels before mid-2025 CAP_PERFMON and CAP_BPF will do): %w", bpf.ErrPermission, err)
	}
	return err
}

// libraries are open libraries of a process by the file mapped.
type libraries map[string]*Library

func (l libraries) close() {
	for _, lib := range l {
		_ = lib.Close()
	}
}

// Library is an open library of a process. Close must be called.
type Library struct {
	file *os.File
	elf  *elf.File
	exe  *link.Executable
}

// OpenLibrary opens a library by the file mapped. The error wraps elf.ErrFormat if
// that is none.
func OpenLibrary(where *target.Library) (*Library, error) {
	f, err := os.Open(where.MapFile)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", where.Path, err)
	}
	l := &Library{file: f}
	if l.elf, err = elf.New(f); err == nil {
		// By the descriptor: the path is gone when the process is.
		l.exe, err = link.OpenExecutable(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	}
	if err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("reading %s: %w", where.Path, err)
	}
	return l, nil
}

// Close closes the file; what was attached stays.
func (l *Library) Close() error { return l.file.Close() }

// Func finds a function by its name. The error wraps elf.ErrNoSymbol or elf.ErrFormat.
func (l *Library) Func(symbol string) (elf.Func, error) { return l.elf.Func(symbol) }

// Program is one that is attached to functions.
type Program struct {
	*ebpf.Program
	Multi bool // it was loaded for links of many points
}

// Attached is a program at a function of a process.
type Attached struct {
	Links   []io.Closer
	Points  int    // instructions probed
	Means   string // "uprobe", "uretprobe"
	Stepped bool   // the kernel does not emulate the instruction, or that is not certain
}

// AttachEntry is Attach at the entry for a program that reads the first args integer
// arguments and what lies on the stack, where its trap costs least.
func (l *Library) AttachEntry(prog Program, symbol string, args int, p *target.Process) (Attached, error) {
	fn, err := l.elf.Func(symbol)
	if err != nil {
		return Attached{}, err
	}
	at, emulated := l.elf.EmulatedKeeping(fn, args)
	a, err := l.attach(prog, symbol, []uint64{at}, "uprobe", p)
	a.Stepped = !emulated
	return a, err
}

// Attach has a program run at a function in the process p, or at all its returns. On an
// error nothing is left attached. It wraps ErrExited, bpf.ErrPermission, elf.ErrNoSymbol or
// elf.ErrFormat if that is the cause.
func (l *Library) Attach(prog Program, symbol string, where Where, p *target.Process) (Attached, error) {
	offsets, means, err := l.points(symbol, where, p)
	if err != nil {
		return Attached{}, err
	}
	return l.attach(prog, symbol, offsets, means, p)
}

// attach has a program run at each offset, or at none. There is a link for each, or one
// for all.
func (l *Library) attach(prog Program, symbol string, offsets []uint64, means string, p *target.Process) (Attached, error) {
	a := Attached{Points: len(offsets), Means: means, Stepped: true}
	if prog.Multi {
		put := l.exe.UprobeMulti
		if means == "uretprobe" {
			put = l.exe.UretprobeMulti
		}
		all, err := put(nil, prog.Program, &link.UprobeMultiOptions{Addresses: offsets, PID: uint32(p.PID)})
		if errors.Is(err, os.ErrNotExist) { // that is made of ESRCH
			err = fmt.Errorf("%w: %w", ErrExited, err)
		}
		if err != nil {
			return Attached{}, explain(err)
		}
		a.Links = []io.Closer{all}
		return a, nil
	}
	for _, off := range offsets {
		opts := &link.UprobeOptions{Address: off, PID: p.PID}
		put := l.exe.Uprobe
		if means == "uretprobe" {
			put = l.exe.Uretprobe
		}
		one, err := put(symbol, prog.Program, opts)
		if err != nil {
			return Attached{}, errors.Join(append([]error{explain(err)}, bpf.CloseAll(a.Links)...)...)
		}
		a.Links = append(a.Links, one)
	}
	return a, nil
}

// points returns the offsets in the file to probe, and by which means.
func (l *Library) points(symbol string, where Where, p *target.Process) ([]uint64, string, error) {
	fn, err := l.elf.Func(symbol)
	if err != nil {
		return nil, "", err
	}
	if where == Entry {
		return []uint64{fn.Offset}, "uprobe", nil
	}
	exits, err := l.elf.Exits(fn)
	if err == nil && exits.Complete() {
		return exits.Returns, "uprobe", nil
	}
	why := fmt.Sprintf("%d returns, %d jumps out of it, %d computed jumps", len(exits.Returns), exits.Outside, exits.Indirect)
	if err != nil {
		why = err.Error()
	}
	if p.Seccomp && uretprobeKills() {
		return nil, "", fmt.Errorf("the ends of %s are unclear (%s), and on this kernel a uretprobe would kill a process under seccomp", symbol, why)
	}
	return []uint64{fn.Offset}, "uretprobe", nil
}

// uretprobeKills reports whether the running kernel implements uretprobes by a
// system call that seccomp filters do not exempt: x86-64, 6.11 to 6.13
// (ff474a78cef5 "uprobe: Add uretprobe syscall to speed up return probe", exempted
// in 6.14).
func uretprobeKills() bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return true
	}
	return kernelUretprobeKills(unix.ByteSliceToString(u.Machine[:]), unix.ByteSliceToString(u.Release[:]))
}

func kernelUretprobeKills(machine, release string) bool {
	if machine != "x86_64" {
		return false
	}
	var major, minor int
	if _, err := fmt.Sscanf(strings.SplitN(release, "-", 2)[0], "%d.%d", &major, &minor); err != nil {
		return true
	}
	return major == 6 && minor >= 11 && minor <= 13
}
