package bpf

import (
	"errors"
	"math"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// cudaPrograms begins the names of programs for the CUDA driver and its runtime. They are
// put in and taken out again while a process is looked at, all at once.
const cudaPrograms = "cuda_"

// manyPoints tells whether the kernel has links of many points (6.6), which are of one
// process: at first they were of its first thread. That was mended in 6.10 and in stable
// releases (46ba0e49b642 "bpf: fix multi-uprobe PID filtering logic"), since when a process
// of an impossible number is not looked for.
var manyPoints = sync.OnceValue(func() bool {
	if features.HaveBPFLinkUprobeMulti() != nil {
		return false
	}
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.Kprobe, AttachType: ebpf.AttachTraceUprobeMulti, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		return false
	}
	defer prog.Close()
	exe, err := link.OpenExecutable("/proc/self/exe")
	if err != nil {
		return false
	}
	l, err := exe.UprobeMulti(nil, prog, &link.UprobeMultiOptions{Addresses: []uint64{1}, PID: math.MaxUint32})
	if err == nil {
		l.Close()
	}
	return errors.Is(err, unix.EINVAL)
})
