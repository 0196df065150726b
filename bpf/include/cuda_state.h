/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * What is kept of processes and threads that call the CUDA driver, and of the events that
 * they record.
 */
#pragma once

#include "maps.h"

/* What is looked at in a process; gpu/cuda in Go sets it when all probes are in. */
struct cuda_process {
	__u32 epoch;
	__u32 flags; /* GPU_LAUNCHES, GPU_CONTINUES */
	/* The runtime's calls that were compared with the driver's, and those under
	 * which the driver was not seen to be called. */
	__u64 compared[GPU_PAIRS];
	__u64 missed[GPU_PAIRS];
	__u64 hits[GPU_HITS]; /* of programs */
	__u64 marks;
	__u64 paired;  /* the runtime's launches that were looked at for their functions */
	__u64 beyond;  /* launches that are not counted by function: there are too many */
	__u64 unnoted; /* names that were not noted: there were too many at once */
	/* Launches of graphs, while launches are counted, whose functions are not known. */
	__u64 unnamed[GPU_UNNAMED];
	__u64 edited; /* when a node was last changed of which the graph is not told */
};

/* Key: tgid in the agent's PID namespace. One entry per process that uses a GPU. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, struct cuda_process);
} cuda_processes SEC(".maps");

/* A call whose return is of interest. */
struct cuda_call {
	__u64 object;
	__u64 entry;
	__u64 out; /* address that the call writes a handle to */
	__u64 recorded;
	__u64 switches; /* voluntary context switches of the thread */
	__u32 recorder;
	__u32 what; /* enum gpu_what, 0: none under way */
};

struct cuda_thread {
	__u64 counts[GPU_COUNTS];
	__u64 first;
	__u64 last;
	__u64 marks;
	/* For the comparison of levels. */
	__u64 driver[GPU_PAIRS];  /* calls of the driver */
	__u64 runtime[GPU_PAIRS]; /* driver, and one, when the runtime's last call began; 0 if there was none */
	__u64 epoch;              /* of runtime */
	__u64 under;              /* function of the runtime's launch under way, 0 if it is not looked at */
	/* Since the last mark: how many there were, the first ones, and that the next launch
	 * begins another. */
	__u64 bursts;
	struct gpu_burst burst[GPU_BURSTS];
	__u64 apart;
	struct cuda_call call;
};

/* Key: thread (global tgid and tid). Threads that called the driver while it was
 * looked at, or had a capture: one to three of a worker, tens where there are
 * helpers. Deleted at the thread's exit. When full, LOSS_MAP_FULL is counted. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2048);
	__type(key, __u64);
	__type(value, struct cuda_thread);
} cuda_threads SEC(".maps");

/* A handle in a process: the driver's, or the runtime's. */
struct cuda_key {
	__u64 handle;
	__u32 tgid;
	__u32 runtime;
};

struct cuda_record {
	__u64 at; /* 0: in a capture */
	__u32 tid;
	__u32 pad;
	/* The capture: of which stream, and when it began. */
	__u64 origin;
	__u64 begun;
};

/* Value: when and by whom an event was recorded last. LRU: events are destroyed
 * unseen. torch keeps pools of some hundred; one that is evicted before it is waited
 * for leaves a synchronise of which it is not known what it ended. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct cuda_key);
	__type(value, struct cuda_record);
} cuda_events SEC(".maps");

static const struct cuda_thread cuda_nothing = {};

/* State of the running thread, which is made if need be; 0 if its process is not looked at. */
static __always_inline struct cuda_thread *cuda_self(__u64 ids)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct cuda_thread *t = bpf_map_lookup_elem(&cuda_threads, &thread);
	__u32 tgid = ids >> 32;

	if (t)
		return t;
	if (!bpf_map_lookup_elem(&cuda_processes, &tgid))
		return 0;
	if (bpf_map_update_elem(&cuda_threads, &thread, &cuda_nothing, BPF_NOEXIST)) {
		lose(LOSS_MAP_FULL, 1);
		return 0;
	}
	return bpf_map_lookup_elem(&cuda_threads, &thread);
}

/* Counts a run of a program, for what the probes cost. */
static __always_inline struct cuda_process *cuda_hit(__u64 ids, __u32 hit)
{
	__u32 tgid = ids >> 32;
	struct cuda_process *p = bpf_map_lookup_elem(&cuda_processes, &tgid);

	if (p)
		__sync_fetch_and_add(&p->hits[hit], 1);
	return p;
}

/* A call that gives a handle to *out; object is what it is made of. */
static __always_inline int cuda_making(__u64 object, __u64 out)
{
	struct cuda_thread *t = cuda_self(current_ids());

	if (!t)
		return 0;
	t->call.what = 0;
	t->call.object = object;
	t->call.out = out;
	return 0;
}

/* The handle that a call gave, 0 if it failed. */
static __always_inline __u64 cuda_made(struct cuda_thread *t, __u32 result)
{
	__u64 handle = 0;

	if (result || !t->call.out)
		return 0;
	if (bpf_probe_read_user(&handle, sizeof(handle), (void *)t->call.out))
		lose(LOSS_FAULT, 1);
	return handle;
}
