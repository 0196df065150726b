// Package bpf loads the agent's BPF programs and reads their records.
//
// The C side is in this folder: tracer.bpf.c joins the taps (wire.bpf.c for
// libzmq, http.bpf.c for sockets) into one object. Records are laid out in
// include/event.h and decoded by package event.
//
// Kernel 5.10 or later with BTF. Loading needs CAP_BPF and CAP_PERFMON, or
// CAP_SYS_ADMIN; attaching uprobes needs CAP_SYS_ADMIN on kernels from 6.16 and on
// the stable ones since mid-2025 (5.10.240, 5.15.189, 6.1.146, 6.6.99, 6.12.39).
package bpf
