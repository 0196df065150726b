/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Launches by function, and which function of the runtime leads to which of the driver.
 */
#pragma once

#include "cuda_state.h"

/* Launches of a function, those of graphs' nodes left out: of one that is launched in
 * captures alone there are none. */
struct cuda_function {
	__u64 launches;
	__u64 under; /* the runtime's function in whose launch it was launched, 0: not known */
	__u32 bare;  /* launches in no launch of the runtime's, while these were looked at */
	__u32 mixed; /* it was launched in launches of different functions */
};

/* Key: the function that was launched. Torch has 22,000 kernels and an engine launches
 * some hundreds, a worker each; a launch that has no room is counted in cuda_process. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct cuda_key);
	__type(value, struct cuda_function);
} cuda_functions SEC(".maps");

/* Processes whose launches by the runtime are looked at. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, __u32);
} cuda_pairing SEC(".maps");

/* Calls outside of the runtime that settle that a function is not launched by it; some may
 * have begun before the look at the runtime did. */
#define CUDA_BARE 4

/* Counts a launch by its function, if it is no node; under is the runtime's, 0 if there is
 * none. */
static __always_inline void cuda_by_function(struct cuda_process *p, const struct cuda_key *key, __u64 under,
					     bool node)
{
	struct cuda_function *f = bpf_map_lookup_elem(&cuda_functions, key);
	struct cuda_function none = {};

	if (!f) {
		/* Another thread may have been first. */
		bpf_map_update_elem(&cuda_functions, key, &none, BPF_NOEXIST);
		f = bpf_map_lookup_elem(&cuda_functions, key);
	}
	if (!f) {
		if (!node)
			__sync_fetch_and_add(&p->beyond, 1);
		return;
	}
	if (!node)
		__sync_fetch_and_add(&f->launches, 1);
	if (key->runtime)
		return;
	if (under) {
		if (f->under && f->under != under)
			f->mixed = 1;
		f->under = under;
	} else if (!f->under && f->bare < CUDA_BARE && bpf_map_lookup_elem(&cuda_pairing, &key->tgid)) {
		f->bare++;
	}
}

/* Which function of the runtime leads to which of the driver: what the driver launches
 * first between the entry of the runtime's launch and its return. */
static __always_inline int cuda_pair(__u64 function)
{
	__u64 ids = current_ids();
	struct cuda_thread *t = cuda_self(ids);
	struct cuda_process *p = cuda_hit(ids, GPU_HIT_PAIR);

	if (!t || !p)
		return 0;
	t->under = function;
	__sync_fetch_and_add(&p->paired, 1);
	return 0;
}

SEC("uprobe/cudaLaunchKernel")
int BPF_KPROBE(cuda_pair_begin, __u64 function)
{
	return cuda_pair(function);
}

SEC("uprobe/cudaLaunchKernelExC")
int BPF_KPROBE(cuda_pair_begin_ex, __u64 config, __u64 function)
{
	return cuda_pair(function);
}

SEC("uprobe/cudaLaunchKernel_return")
int BPF_KPROBE(cuda_pair_end)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct cuda_thread *t = bpf_map_lookup_elem(&cuda_threads, &thread);

	cuda_hit(current_ids(), GPU_HIT_PAIR);
	if (t)
		t->under = 0;
	return 0;
}
