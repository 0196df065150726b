// Package vm holds the tests that run.sh takes to other kernels: each Debian kernel
// boots in an emulator with the test binary of this package for its init, which
// loads the embedded BPF programs, attaches them to processes and sockets of its
// own, and compares what comes with what was sent.
//
// Under "go test" the tests are left out; tests/bpf is the wider set for the
// kernel that is running.
package vm
