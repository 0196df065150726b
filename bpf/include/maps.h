/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * What all programs share: the ring, the loss counters, the watched processes,
 * and the constants that the loader sets.
 */
#pragma once

#include "event.h"
#include "limits.h"

/* Constants, set by the loader before the programs are loaded. */

/* Inode of the agent's PID namespace, 0 if that is the initial one. */
const volatile __u32 pidns_ino = 0;
/* The reader is woken each time the unread bytes pass a multiple of 1 << wake_shift. */
const volatile __u32 wake_shift = 18;
/* Copy whole responses (up to HTTP_COPY_MAX), not only their heads and tails. */
const volatile __u8 capture_content = 0;

enum target_role {
	ROLE_CORE = 1,    /* copy the ZeroMQ frames sent and received */
	ROLE_RECEIPT = 2, /* note the ZeroMQ frames received */
	ROLE_HTTP = 4,    /* copy the requests and responses of accepted TCP connections */
	ROLE_SEND = 8,    /* copy the ZeroMQ frames sent */
};

struct target {
	__u64 since; /* when the watch began; a call that was noted earlier is of an earlier watch */
	__u32 roles; /* enum target_role */
	__u32 nports;
	__u16 ports[PORTS_MAX]; /* TCP ports the process listens on */
};

/* Records on their way to the agent. The loader sets the size. When full, the
 * record is dropped and LOSS_RING_FULL counted. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 24);
} ring SEC(".maps");

/* Key: enum loss_reason. Value: count since load. Fixed size. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LOSS_REASONS);
	__type(key, __u32);
	__type(value, __u64);
} losses SEC(".maps");

/* Key: tgid in the agent's PID namespace. Value: what to look at there. A host
 * runs tens of engine processes; the agent, which alone inserts, reports when
 * the map is full. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct target);
} targets SEC(".maps");

/* Atomic: a uprobe program can be preempted by another one on its CPU. */
static __always_inline void lose(__u32 reason, __u64 n)
{
	__u64 *count = bpf_map_lookup_elem(&losses, &reason);

	if (count)
		__sync_fetch_and_add(count, n);
}

/* Flags for the submission of a record of size bytes: the reader is woken once
 * per 1 << wake_shift bytes, and otherwise looks by itself at intervals. */
static __always_inline __u64 wake_flags(__u64 size)
{
	__u64 unread = bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA);
	__u64 before = unread > size ? unread - size : 0;

	return unread >> wake_shift != before >> wake_shift ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
}

/* Number of a struct pid in the agent's PID namespace, 0 if it has none there. */
static __always_inline __u32 pid_here(struct pid *pid)
{
	__u32 level = BPF_CORE_READ(pid, level);
	const __u32 step = bpf_core_type_size(struct upid);
	void *at = (void *)pid + bpf_core_field_offset(pid->numbers);

	for (int i = 0; i < PIDNS_WALK; i++) {
		struct upid *upid = at;

		if (i > level)
			break;
		if (BPF_CORE_READ(upid, ns, ns.inum) == pidns_ino)
			return BPF_CORE_READ(upid, nr);
		at += step;
	}
	return 0;
}

/*
 * current_ids of an agent in a nested namespace. bpf_get_ns_current_pid_tgid does
 * not do: it knows a process only in the process's own namespace, so that the
 * agent would not see containers nested below it. Global, to be verified once
 * and not with every path of its callers.
 */
__noinline __u64 nested_ids(void)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	__u64 tgid = pid_here(BPF_CORE_READ(task, group_leader, thread_pid));

	if (!tgid)
		return 0;
	return tgid << 32 | pid_here(BPF_CORE_READ(task, thread_pid));
}

/* The running thread, tgid in the upper half and tid in the lower, as the agent
 * sees them; 0 if the agent does not see it. */
static __always_inline __u64 current_ids(void)
{
	return pidns_ino ? nested_ids() : bpf_get_current_pid_tgid();
}

static __always_inline struct target *target_of(__u64 ids)
{
	__u32 tgid = ids >> 32;

	return bpf_map_lookup_elem(&targets, &tgid);
}

static __always_inline void fill_header(struct rec_header *h, __u64 ts, __u32 kind, __u64 ids, __u32 len)
{
	h->ts = ts;
	h->kind = kind;
	h->pid = ids >> 32;
	h->tid = ids;
	h->len = len;
}

/*
 * The smallest of the slot sizes that holds n payload bytes. Records are reserved
 * in a few sizes, since a reservation's size must be a constant, and user memory
 * is read straight into them: no scratch buffer has to be shared or protected.
 */
#define SLOT_SIZES(n, use)              \
	do {                            \
		if ((n) <= 256)         \
			use(256);       \
		else if ((n) <= 1024)   \
			use(1024);      \
		else if ((n) <= 4096)   \
			use(4096);      \
		else if ((n) <= 16384)  \
			use(16384);     \
		else                    \
			use(CHUNK_MAX); \
	} while (0)

/*
 * Clamps n to a constant where the verifier can follow: in 64 bits, since without
 * 32-bit instructions (-mcpu=v2) the bounds would be those of a shifted copy, and
 * opaque to the compiler, which would drop a comparison it thinks it has made.
 */
static __always_inline __u64 clamp_to(__u64 n, __u64 max)
{
	asm volatile("" : "+r"(n));
	if (n > max)
		n = max;
	asm volatile("" : "+r"(n));
	return n;
}
