package attach

import (
	"os"

	"github.com/cilium/ebpf/link"

	"inferspan/probes/elf"
	"inferspan/probes/procfs"
)

// OwnFunction is a function of this process, to measure probes on.
type OwnFunction struct {
	Executable    *link.Executable
	Entry, Return uint64 // offsets in its file, of the first instruction and of a RET
}

// Own finds the function at an address of this process.
func Own(addr uint64) (OwnFunction, error) {
	const self = "/proc/self/exe"
	var fn OwnFunction
	entry, err := procfs.FS{}.FileOffset(os.Getpid(), addr)
	if err != nil {
		return fn, err
	}
	f, err := os.Open(self)
	if err != nil {
		return fn, err
	}
	defer f.Close()
	e, err := elf.New(f)
	if err != nil {
		return fn, err
	}
	ret, err := e.FirstReturn(entry)
	if err != nil {
		return fn, err
	}
	exe, err := link.OpenExecutable(self)
	if err != nil {
		return fn, err
	}
	return OwnFunction{exe, entry, ret}, nil
}
