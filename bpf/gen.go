package bpf

// The objects are committed, so that building needs no C compiler. Generation
// needs clang, llvm-strip and the headers of libbpf 1.1 or later.
//go:generate go tool bpf2go -tags linux -target amd64,arm64 -cc clang -strip llvm-strip -cflags "-O2 -g -Wall -Werror -mcpu=v2" tracer tracer.bpf.c -- -Iinclude
