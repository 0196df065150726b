package bpf

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// attachHTTP attaches the socket tap, once. Called with mu held.
func (o *Objects) attachHTTP() error {
	if o.http {
		return nil
	}
	p := &o.objs.tracerPrograms
	before := len(o.links)
	for _, t := range []struct {
		name string
		prog *ebpf.Program
	}{
		// Exits first: a call that enters in between is not left over.
		{"sys_exit_read", p.HttpExitRead}, {"sys_exit_readv", p.HttpExitReadv},
		{"sys_exit_recvfrom", p.HttpExitRecvfrom}, {"sys_exit_recvmsg", p.HttpExitRecvmsg},
		{"sys_exit_write", p.HttpExitWrite}, {"sys_exit_writev", p.HttpExitWritev},
		{"sys_exit_sendto", p.HttpExitSendto}, {"sys_exit_sendmsg", p.HttpExitSendmsg},
		{"sys_enter_close", p.HttpEnterClose},
		{"sys_exit_accept", p.HttpExitAccept}, {"sys_exit_accept4", p.HttpExitAccept4},
		{"sys_enter_read", p.HttpEnterRead}, {"sys_enter_readv", p.HttpEnterReadv},
		{"sys_enter_recvfrom", p.HttpEnterRecvfrom}, {"sys_enter_recvmsg", p.HttpEnterRecvmsg},
		{"sys_enter_write", p.HttpEnterWrite}, {"sys_enter_writev", p.HttpEnterWritev},
		{"sys_enter_sendto", p.HttpEnterSendto}, {"sys_enter_sendmsg", p.HttpEnterSendmsg},
	} {
		if err := o.attachTracepoint("syscalls", t.name, t.prog); err != nil {
			err = errors.Join(append([]error{err}, CloseAll(o.links[before:])...)...)
			o.links = o.links[:before]
			return err
		}
	}
	o.http = true
	return nil
}

// SetTarget starts to watch the process pid (in the agent's PID namespace), or
// changes what is watched of it. ports are the TCP ports that it listens on: they
// tell connections accepted before now from those that the process made itself.
// More than 32 give an error. The first target with RoleHTTP
// attaches the socket tap to the host's system calls, where it stays until Close.
func (o *Objects) SetTarget(pid int, role Role, ports ...uint16) error {
	if len(ports) > maxPorts {
		return fmt.Errorf("watching process %d: %d listening ports, at most %d are supported", pid, len(ports), maxPorts)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return os.ErrClosed
	}
	if role&RoleHTTP != 0 {
		if err := o.attachHTTP(); err != nil {
			return fmt.Errorf("watching process %d: %w", pid, err)
		}
	}
	t := tracerTarget{Since: Monotonic()}
	var old tracerTarget
	switch err := o.objs.Targets.Lookup(uint32(pid), &old); {
	case err == nil:
		t.Since = old.Since
	case !errors.Is(err, ebpf.ErrKeyNotExist):
		return fmt.Errorf("watching process %d: %w", pid, err)
	default:
		if err := o.forgetNotes(uint32(pid)); err != nil {
			return fmt.Errorf("watching process %d: %w", pid, err)
		}
	}
	t.Roles, t.Nports = uint32(role), uint32(len(ports))
	copy(t.Ports[:], ports)
	if err := o.objs.Targets.Put(uint32(pid), t); err != nil {
		if errors.Is(err, unix.E2BIG) {
			return fmt.Errorf("watching process %d: too many watched processes (%d): %w", pid, o.objs.Targets.MaxEntries(), err)
		}
		return fmt.Errorf("watching process %d: %w", pid, err)
	}
	if err := o.serves(uint32(pid), role&RoleHTTP != 0); err != nil {
		return fmt.Errorf("watching process %d: %w", pid, err)
	}
	return nil
}

// serves notes whether a process is looked at for HTTP, which the programs tell by a bit.
// Called with mu held.
func (o *Objects) serves(pid uint32, yes bool) error {
	if o.servers[pid] == yes {
		return nil
	}
	if yes {
		if o.servers == nil {
			o.servers = make(map[uint32]bool)
		}
		o.servers[pid] = true
	} else {
		delete(o.servers, pid)
		o.ended++ // it is in targets no longer, or not for HTTP
	}
	bits := tracerServerBits{Ended: o.ended}
	for pid := range o.servers {
		bits.Words[int(pid/64)%len(bits.Words)] |= 1 << (pid % 64)
	}
	return o.objs.Servers.Put(uint32(0), bits)
}

// forgetNotes forgets what the programs noted of the descriptors of a process that had the
// number of this one before.
func (o *Objects) forgetNotes(pid uint32) error {
	for at := range o.objs.FdNotes.MaxEntries() {
		var note tracerFdNote
		if err := o.objs.FdNotes.Lookup(at, &note); err != nil {
			return err
		}
		if uint32(note.Fdkey>>32) != pid {
			continue
		}
		if err := o.objs.FdNotes.Put(at, tracerFdNote{}); err != nil {
			return err
		}
	}
	return nil
}

// RemoveTarget stops to watch a process and forgets its connections. It is to be
// called after the process's exit record, too. An unknown pid is no error.
func (o *Objects) RemoveTarget(pid int) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil
	}
	if err := o.objs.Targets.Delete(uint32(pid)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("forgetting process %d: %w", pid, err)
	}
	if err := o.serves(uint32(pid), false); err != nil {
		return fmt.Errorf("forgetting process %d: %w", pid, err)
	}
	var conn tracerConn
	if err := sweep(o.objs.Conns, uint32(pid), &conn); err != nil {
		return fmt.Errorf("forgetting the connections of process %d: %w", pid, err)
	}
	var tail tracerTail
	if err := sweep(o.objs.Tails, uint32(pid), &tail); err != nil {
		return fmt.Errorf("forgetting the responses of process %d: %w", pid, err)
	}
	return nil
}

// sweep deletes the entries of a map whose key has pid in its upper half. value
// is room for one entry.
func sweep(m *ebpf.Map, pid uint32, value any) error {
	var key uint64
	var stale []uint64
	it := m.Iterate()
	for it.Next(&key, value) {
		if uint32(key>>32) == pid {
			stale = append(stale, key)
		}
	}
	if err := it.Err(); err != nil {
		return err
	}
	for _, k := range stale {
		if err := m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
	return nil
}
