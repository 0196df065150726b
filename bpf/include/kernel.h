/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * The few kernel types and constants that the programs touch, so that neither a
 * generated vmlinux.h nor kernel headers are needed. Types under
 * preserve_access_index are relocated by the loader through the running
 * kernel's BTF: only the names of the fields count here, not their places.
 */
#pragma once

/* Tells bpf_tracing.h to use the kernel's names of the registers. */
#define __VMLINUX_H__

typedef unsigned char __u8;
typedef signed char __s8;
typedef unsigned short __u16;
typedef short __s16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef _Bool bool;
#define true 1
#define false 0

/* From include/uapi/linux/bpf.h; part of the kernel's stable interface. */
enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_LRU_PERCPU_HASH = 10,
	BPF_MAP_TYPE_RINGBUF = 27,
};

/* Helpers that not all kernels have; the loader looks for the name. */
enum bpf_func_id {
	BPF_FUNC_get_current_task_btf = 158,
};

enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
	BPF_EXIST = 2,
};

enum {
	BPF_RB_NO_WAKEUP = 1,
	BPF_RB_FORCE_WAKEUP = 2,
	BPF_RB_AVAIL_DATA = 0,
};

/* Register frames at a uprobe; fixed by the architectures' ABI, not relocated. */
#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8;
	unsigned long ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};
#elif defined(__TARGET_ARCH_arm64)
struct user_pt_regs {
	__u64 regs[31];
	__u64 sp;
	__u64 pc;
	__u64 pstate;
};
struct pt_regs;
#else
#error "no register frame for this architecture"
#endif

#define EPIPE         32
#define ECONNRESET    104
#define MSG_PEEK      2
#define AF_INET       2
#define AF_INET6      10
#define IPPROTO_TCP   6
#define IPPROTO_MPTCP 262
#define S_IFMT        0170000
#define S_IFSOCK      0140000
/* include/linux/sched/signal.h: the exit code is that of the whole group. */
#define SIGNAL_GROUP_EXIT 4

/* User-space structs of the system calls; fixed by the 64-bit ABIs. */
struct iovec {
	__u64 base;
	__u64 len;
};

struct user_msghdr {
	__u64 name;
	__u64 namelen;
	__u64 iov;
	__u64 iovlen;
	__u64 control;
	__u64 controllen;
	__u64 flags;
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct ns_common {
	unsigned int inum;
};

struct pid_namespace {
	struct ns_common ns;
};

struct upid {
	int nr;
	struct pid_namespace *ns;
};

struct pid {
	unsigned int level;
	struct upid numbers[1];
};

struct atomic_count {
	int counter;
};

struct signal_struct {
	struct atomic_count live;
	int group_exit_code;
	unsigned int flags;
};

struct inode {
	unsigned short i_mode;
};

struct file {
	struct inode *f_inode;
	void *private_data;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct task_struct {
	int exit_code;
	struct task_struct *group_leader;
	struct pid *thread_pid;
	struct files_struct *files;
	struct signal_struct *signal;
	unsigned long nvcsw;
};

struct sock_common {
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
};

struct sock {
	struct sock_common __sk_common;
	__u16 sk_protocol;
};

struct socket {
	struct sock *sk;
};

struct tcp_sock {
	__u32 rcv_nxt;
	__u32 copied_seq;
	__u32 snd_una;
	__u32 write_seq;
	__u64 bytes_received;
	__u64 bytes_acked;
};

struct trace_event_raw_sys_enter {
	unsigned long args[6];
};

struct trace_event_raw_sys_exit {
	long ret;
};

#pragma clang attribute pop
