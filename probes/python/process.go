package python

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Process reads the memory of a live process. It may be used by several
// goroutines at once.
type Process struct{ PID int }

// maxIOV is the kernel's limit on the parts of one call (UIO_MAXIOV).
const maxIOV = 1024

// ReadAt implements Memory.
func (p Process) ReadAt(addr uint64, buf []byte) error {
	if len(buf) == 0 {
		return nil
	}
	local := []unix.Iovec{{Base: &buf[0]}}
	local[0].SetLen(len(buf))
	remote := []unix.RemoteIovec{{Base: uintptr(addr), Len: len(buf)}}
	n, err := unix.ProcessVMReadv(p.PID, local, remote, 0)
	if err != nil {
		return p.fault(addr, err)
	}
	if n != len(buf) {
		return fmt.Errorf("reading %d bytes at %#x: %w", len(buf), addr, ErrUnmapped)
	}
	return nil
}

// ReadBatch reads many small parts in few system calls.
func (p Process) ReadBatch(addrs []uint64, size int, buf []byte) (int, error) {
	done := 0
	remote := make([]unix.RemoteIovec, min(len(addrs), maxIOV))
	for done < len(addrs) {
		part := addrs[done:min(len(addrs), done+maxIOV)]
		for i, a := range part {
			remote[i] = unix.RemoteIovec{Base: uintptr(a), Len: size}
		}
		b := buf[done*size : (done+len(part))*size]
		local := []unix.Iovec{{Base: &b[0]}}
		local[0].SetLen(len(b))
		n, err := unix.ProcessVMReadv(p.PID, local, remote[:len(part)], 0)
		if err != nil {
			if errors.Is(err, unix.EFAULT) {
				return done, nil
			}
			return done, p.fault(part[0], err)
		}
		done += n / size
		if n != len(b) {
			return done, nil
		}
	}
	return done, nil
}

func (p Process) fault(addr uint64, err error) error {
	switch {
	case errors.Is(err, unix.ESRCH):
		return fmt.Errorf("reading process %d: %w", p.PID, ErrGone)
	case errors.Is(err, unix.EFAULT), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("reading at %#x: %w", addr, ErrUnmapped)
	}
	return fmt.Errorf("reading the memory of process %d: %w", p.PID, err)
}
