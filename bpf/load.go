package bpf

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"inferspan/bpf/event"
)

// Errors that Load wraps.
var (
	// ErrNoBTF: the kernel does not describe its types, or not where expected.
	ErrNoBTF = errors.New("kernel has no BTF type information (CONFIG_DEBUG_INFO_BTF)")
	// ErrPermission: a capability is missing, or a security module refuses.
	ErrPermission = errors.New("not permitted")
)

// Defaults of Options.
const (
	DefaultRingBytes     = 8 << 20
	DefaultWakeBytes     = 256 << 10
	DefaultFlushInterval = 50 * time.Millisecond
)

// Options of Load. The zero value is usable.
type Options struct {
	// RingBytes is the size of the ring, rounded up to a power of two of at least
	// one page; 0 means DefaultRingBytes. The kernel maps a ring twice in a row, so
	// that it counts twice in the agent's resident memory.
	RingBytes int
	// WakeBytes is how many unread bytes wake the reader, rounded up to a power of
	// two and at most half the ring; 0 means DefaultWakeBytes.
	WakeBytes int
	// FlushInterval is how long a record may lie on the ring when fewer bytes
	// than WakeBytes come; 0 means DefaultFlushInterval.
	FlushInterval time.Duration
	// CaptureContent has whole responses copied, up to 256 KiB each, instead of
	// their heads and tails.
	CaptureContent bool
	// BTFPath is a file with the kernel's BTF, "" for /sys/kernel/btf/vmlinux.
	BTFPath string
	// SingleUprobes has each point attached by a link of its own, as kernels before 6.6 do,
	// where links of many points would be used.
	SingleUprobes bool
}

// Role says what is looked at in a process. Roles combine.
type Role uint32

// Roles; the values of enum target_role.
const (
	RoleCore    Role = 1 // copy the ZeroMQ frames sent and received
	RoleReceipt Role = 2 // note the ZeroMQ frames received
	RoleHTTP    Role = 4 // copy HTTP over accepted TCP connections
	RoleSend    Role = 8 // copy the ZeroMQ frames sent
	// RoleAPI is an API server: its responses go out over HTTP, its tokens come
	// in over ZeroMQ.
	RoleAPI = RoleReceipt | RoleHTTP
)

// maxPorts is PORTS_MAX of include/limits.h.
const maxPorts = len(tracerTarget{}.Ports)

// Objects are the loaded programs and maps. Methods may be called from several
// goroutines. Close must be called.
type Objects struct {
	opts Options
	objs tracerObjects

	mu    sync.Mutex
	links []link.Link // tracepoints
	http  bool        // socket tap attached
	// servers are the processes that are looked at for HTTP, ended counts those that are no longer.
	servers map[uint32]bool
	ended   uint64

	interpreters        map[int]*interpreter // by process
	plans               map[uint32]bool      // places of plans in use
	lastPlan, lastProbe uint32
	epochs              map[int]uint32 // latest of SetCUDA, by process
	launches            functionLook   // the latest

	reader *Reader
	closed bool
	multi  bool // programs for the CUDA driver are for links of many points
}

// Load loads the programs and starts to watch for exits of targets. No target is
// set yet. The error wraps ErrNoBTF or ErrPermission when that is the cause.
func Load(opts Options) (*Objects, error) {
	setDefaults(&opts)
	if missing := missingCapabilities(); len(missing) > 0 {
		return nil, fmt.Errorf("loading BPF programs: %w: missing %s (or CAP_SYS_ADMIN)", ErrPermission, strings.Join(missing, ", "))
	}
	kernel, err := kernelTypes(opts.BTFPath)
	if err != nil {
		return nil, err
	}
	// Before 5.11 maps count against RLIMIT_MEMLOCK; later this does nothing.
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("raising RLIMIT_MEMLOCK (kernels before 5.11 need CAP_SYS_RESOURCE for it): %w", permission(err))
	}
	spec, err := loadTracer()
	if err != nil {
		return nil, fmt.Errorf("parsing the embedded BPF object: %w", err)
	}
	if err := configure(spec, opts); err != nil {
		return nil, err
	}
	o := &Objects{opts: opts, multi: !opts.SingleUprobes && manyPoints()}
	if o.multi {
		for name, p := range spec.Programs {
			if strings.HasPrefix(name, cudaPrograms) {
				p.AttachType = ebpf.AttachTraceUprobeMulti
			}
		}
	}
	err = spec.LoadAndAssign(&o.objs, &ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{KernelTypes: kernel}})
	if err != nil {
		return nil, fmt.Errorf("loading BPF programs: %w", permission(err))
	}
	if err := o.attachTracepoint("sched", "sched_process_exit", o.objs.ProcessExit); err != nil {
		return nil, errors.Join(err, o.Close())
	}
	o.reader, err = newReader(o.objs.Ring, opts.FlushInterval)
	if err != nil {
		return nil, errors.Join(err, o.Close())
	}
	return o, nil
}

func setDefaults(o *Options) {
	if o.RingBytes <= 0 {
		o.RingBytes = DefaultRingBytes
	}
	o.RingBytes = powerOfTwo(max(o.RingBytes, os.Getpagesize()))
	if o.WakeBytes <= 0 {
		o.WakeBytes = DefaultWakeBytes
	}
	o.WakeBytes = min(powerOfTwo(o.WakeBytes), o.RingBytes/2)
	if o.FlushInterval <= 0 {
		o.FlushInterval = DefaultFlushInterval
	}
}

// powerOfTwo rounds n up to a power of two.
func powerOfTwo(n int) int {
	p := 1
	for p < n {
		p <<= 1
	}
	return p
}

func kernelTypes(path string) (*btf.Spec, error) {
	if path == "" {
		s, err := btf.LoadKernelSpec()
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, ebpf.ErrNotSupported) {
			return nil, fmt.Errorf("reading kernel types: %w", ErrNoBTF)
		}
		if err != nil {
			return nil, fmt.Errorf("reading kernel types: %w", permission(err))
		}
		return s, nil
	}
	s, err := btf.LoadSpec(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("reading kernel types from %s: %w", path, ErrNoBTF)
	}
	if err != nil {
		return nil, fmt.Errorf("reading kernel types from %s: %w", path, err)
	}
	return s, nil
}

// configure sets the constants and sizes of the object.
func configure(spec *ebpf.CollectionSpec, opts Options) error {
	spec.Maps["ring"].MaxEntries = uint32(opts.RingBytes)
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return fmt.Errorf("counting CPUs: %w", err)
	}
	spec.Maps["py_states"].MaxEntries *= uint32(cpus) // is that of one CPU
	var shift uint32
	for 1<<shift < opts.WakeBytes {
		shift++
	}
	var content uint8
	if opts.CaptureContent {
		content = 1
	}
	ns, err := pidNamespace()
	if err != nil {
		return err
	}
	for name, v := range map[string]any{"wake_shift": shift, "capture_content": content, "pidns_ino": ns} {
		if err := spec.Variables[name].Set(v); err != nil {
			return fmt.Errorf("setting %s: %w", name, err)
		}
	}
	return nil
}

// initPIDNamespace is the inode of the initial PID namespace
// (include/linux/proc_ns.h, PROC_PID_INIT_INO).
const initPIDNamespace = 0xEFFFFFFC

// pidNamespace returns the inode of the agent's PID namespace, 0 for the initial one.
func pidNamespace() (uint32, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		return 0, fmt.Errorf("reading the agent's PID namespace: %w", err)
	}
	if st.Ino == initPIDNamespace {
		return 0, nil
	}
	return uint32(st.Ino), nil
}

// permission adds ErrPermission to an error that is about privileges.
func permission(err error) error {
	if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES) {
		return err
	}
	// The verifier answers EACCES too, with a log.
	var verifier *ebpf.VerifierError
	if errors.As(err, &verifier) && len(verifier.Log) > 0 && !errors.Is(err, unix.EPERM) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrPermission, err)
}

// missingCapabilities names the capabilities that the process lacks to load and
// attach BPF programs. CAP_SYS_ADMIN stands for all of them.
func missingCapabilities() []string {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&hdr, &data[0]) != nil {
		return nil
	}
	has := func(c int) bool { return data[c/32].Effective&(1<<(c%32)) != 0 }
	if has(unix.CAP_SYS_ADMIN) {
		return nil
	}
	var missing []string
	for _, c := range []struct {
		bit  int
		name string
	}{{unix.CAP_BPF, "CAP_BPF"}, {unix.CAP_PERFMON, "CAP_PERFMON"}} {
		if !has(c.bit) {
			missing = append(missing, c.name)
		}
	}
	return missing
}

func (o *Objects) attachTracepoint(group, name string, prog *ebpf.Program) error {
	l, err := link.Tracepoint(group, name, prog, nil)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("attaching to tracepoint %s:%s: not found (is tracefs mounted and CONFIG_FTRACE_SYSCALLS set?): %w", group, name, err)
	}
	if err != nil {
		return fmt.Errorf("attaching to tracepoint %s:%s: %w", group, name, permission(err))
	}
	o.links = append(o.links, l)
	return nil
}

// Program is a BPF program to attach to a function of a target.
type Program string

// Programs for uprobes.
const (
	ProgWireSend      Program = "wire_send"       // entry of zmq_msg_send
	ProgWireRecvEnter Program = "wire_recv_enter" // entry of zmq_msg_recv
	ProgWireRecvExit  Program = "wire_recv_exit"  // returns of zmq_msg_recv
)

// Program returns a loaded program; it belongs to Objects. Nil if there is no
// such program.
func (o *Objects) Program(name Program) *ebpf.Program {
	return o.programs()[string(name)]
}

// Multi tells that a program is to be attached by a link of many points
// (BPF_TRACE_UPROBE_MULTI), not by one for each.
func (o *Objects) Multi(name Program) bool {
	return o.multi && strings.HasPrefix(string(name), cudaPrograms)
}

func (o *Objects) programs() map[string]*ebpf.Program {
	p := &o.objs.tracerPrograms
	return map[string]*ebpf.Program{
		"wire_send": p.WireSend, "wire_recv_enter": p.WireRecvEnter, "wire_recv_exit": p.WireRecvExit,
		"py_hit":       p.PyHit,
		"py_entry":     p.PyEntry,
		"process_exit": p.ProcessExit,
		"cuda_launch":  p.CudaLaunch, "cuda_launch_coop": p.CudaLaunchCoop, "cuda_launch_ex": p.CudaLaunchEx, "cuda_launch_graph": p.CudaLaunchGraph,
		"cuda_runtime_compare": p.CudaRuntimeCompare, "cuda_runtime_compare_ex": p.CudaRuntimeCompareEx,
		"cuda_pair_begin": p.CudaPairBegin, "cuda_pair_begin_ex": p.CudaPairBeginEx, "cuda_pair_end": p.CudaPairEnd,
		"cuda_name_begin": p.CudaNameBegin, "cuda_name_end": p.CudaNameEnd, "cuda_alias_begin": p.CudaAliasBegin, "cuda_alias_end": p.CudaAliasEnd,
		"cuda_runtime_compare_graph": p.CudaRuntimeCompareGraph, "cuda_runtime_compare_record": p.CudaRuntimeCompareRecord,
		"cuda_runtime_compare_event": p.CudaRuntimeCompareEvent, "cuda_runtime_compare_stream": p.CudaRuntimeCompareStream,
		"cuda_runtime_compare_context": p.CudaRuntimeCompareContext,
		"cuda_runtime_launch":          p.CudaRuntimeLaunch, "cuda_runtime_launch_ex": p.CudaRuntimeLaunchEx,
		"cuda_copy_in": p.CudaCopyIn, "cuda_copy_out": p.CudaCopyOut, "cuda_copy_device": p.CudaCopyDevice, "cuda_copy_other": p.CudaCopyOther,
		"cuda_event_record": p.CudaEventRecord, "cuda_event_record_flags": p.CudaEventRecordFlags, "cuda_wait_event": p.CudaWaitEvent,
		"cuda_sync_event": p.CudaSyncEvent, "cuda_sync_stream": p.CudaSyncStream, "cuda_sync_context": p.CudaSyncContext, "cuda_sync_exit": p.CudaSyncExit,
		"cuda_capture_begin": p.CudaCaptureBegin, "cuda_capture_end": p.CudaCaptureEnd, "cuda_capture_ended": p.CudaCaptureEnded,
		"cuda_instantiate": p.CudaInstantiate, "cuda_instantiated": p.CudaInstantiated,
		"cuda_capture_into": p.CudaCaptureInto, "cuda_graph_edited": p.CudaGraphEdited, "cuda_node_edited": p.CudaNodeEdited,
		"cuda_exec_edited": p.CudaExecEdited, "cuda_exec_changed": p.CudaExecChanged, "cuda_graph_gone": p.CudaGraphGone,
		"http_enter_read": p.HttpEnterRead, "http_exit_read": p.HttpExitRead,
		"http_enter_readv": p.HttpEnterReadv, "http_exit_readv": p.HttpExitReadv,
		"http_enter_recvfrom": p.HttpEnterRecvfrom, "http_exit_recvfrom": p.HttpExitRecvfrom,
		"http_enter_recvmsg": p.HttpEnterRecvmsg, "http_exit_recvmsg": p.HttpExitRecvmsg,
		"http_enter_write": p.HttpEnterWrite, "http_exit_write": p.HttpExitWrite,
		"http_enter_writev": p.HttpEnterWritev, "http_exit_writev": p.HttpExitWritev,
		"http_enter_sendto": p.HttpEnterSendto, "http_exit_sendto": p.HttpExitSendto,
		"http_enter_sendmsg": p.HttpEnterSendmsg, "http_exit_sendmsg": p.HttpExitSendmsg,
		"http_enter_close": p.HttpEnterClose,
		"http_exit_accept": p.HttpExitAccept, "http_exit_accept4": p.HttpExitAccept4,
	}
}

// Reader returns the reader of the ring; there is one, and it is closed with o.
func (o *Objects) Reader() *Reader { return o.reader }

// Losses returns how many records, or parts of one, were lost since Load.
func (o *Objects) Losses() ([event.LossReasons]uint64, error) {
	var lost [event.LossReasons]uint64
	for i := range lost {
		var perCPU []uint64
		if err := o.objs.Losses.Lookup(uint32(i), &perCPU); err != nil {
			return lost, fmt.Errorf("reading loss counters: %w", err)
		}
		for _, n := range perCPU {
			lost[i] += n
		}
	}
	return lost, nil
}

// ProgramStats is what the kernel counted of a program while EnableStats was in effect.
type ProgramStats struct {
	Runs    uint64
	Runtime time.Duration
	Missed  uint64 // runs left out because the program was running on that CPU
}

// Stats returns the counts of all programs by name.
func (o *Objects) Stats() (map[string]ProgramStats, error) {
	out := map[string]ProgramStats{}
	for name, p := range o.programs() {
		s, err := p.Stats()
		if err != nil {
			return nil, fmt.Errorf("reading statistics of program %s: %w", name, err)
		}
		out[name] = ProgramStats{Runs: s.RunCount, Runtime: s.Runtime, Missed: s.RecursionMisses}
	}
	return out, nil
}

// EnableStats makes the kernel count and time the runs of all BPF programs of the
// host until the result is closed. It costs some 20 ns per run.
func EnableStats() (io.Closer, error) {
	c, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return nil, fmt.Errorf("enabling BPF statistics: %w", permission(err))
	}
	return c, nil
}

// Close detaches and unloads everything and ends a Read in progress. Calls after
// the first do nothing.
func (o *Objects) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil
	}
	o.closed = true
	errs := CloseAll(o.links)
	if o.reader != nil {
		errs = append(errs, o.reader.Close())
	}
	errs = append(errs, o.objs.Close())
	return errors.Join(errs...)
}

// CloseAll closes links at the same time: each waits for the kernel to be sure that
// no CPU runs the program, some 50 ms. There is one error, or nil, for each.
func CloseAll[C io.Closer](links []C) []error {
	errs := make([]error, len(links))
	var wg sync.WaitGroup
	for i, l := range links {
		wg.Go(func() { errs[i] = l.Close() })
	}
	wg.Wait()
	return errs
}

// Monotonic returns the time of the clock that stamps records, ns.
func Monotonic() uint64 {
	var ts unix.Timespec
	// Fails for unknown clocks only.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return uint64(syscall.TimespecToNsec(syscall.Timespec{Sec: ts.Sec, Nsec: ts.Nsec}))
}
