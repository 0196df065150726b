// Package bpf loads the agent's BPF programs and reads their records.
//
// The C side is in this folder: tracer.bpf.c joins the taps (wire.bpf.c for
// libzmq, http.bpf.c for sockets) into one object. Records are laid out in
// include/event.h and decoded by package event.
//
// Kernel 5.10 or later with BTF, CAP_BPF and CAP_PERFMON (or CAP_SYS_ADMIN).
package bpf
