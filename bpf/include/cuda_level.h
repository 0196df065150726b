/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Comparison of the levels: whether calls of the runtime reach the driver where that is
 * probed.
 */
#pragma once

#include "cuda_state.h"

/*
 * Calls of the runtime. Each is to lead to one of the driver; if none was seen since
 * the last one, the driver was reached by another entry than the one probed. Calls
 * of others in between can hide that, but not feign it.
 */
static __always_inline int cuda_compare(__u32 pair)
{
	__u64 ids = current_ids();
	struct cuda_thread *t = cuda_self(ids);
	struct cuda_process *p = cuda_hit(ids, GPU_HIT_COMPARE);

	if (!t || !p)
		return 0;
	/* While probes are put in or taken out, calls of the driver do not count. */
	if (pair <= GPU_PAIR_LAUNCH_EX && !(p->flags & GPU_LAUNCHES))
		return 0;
	/* Nor may those have that a call in another epoch led to. */
	if (t->epoch != p->epoch) {
		t->epoch = p->epoch;
		for (int i = 0; i < GPU_PAIRS; i++)
			t->runtime[i] = 0;
	}
	if (t->runtime[pair]) {
		__sync_fetch_and_add(&p->compared[pair], 1);
		if (t->runtime[pair] == t->driver[pair] + 1)
			__sync_fetch_and_add(&p->missed[pair], 1);
	}
	t->runtime[pair] = t->driver[pair] + 1;
	return 0;
}

SEC("uprobe/cudaLaunchKernel")
int BPF_KPROBE(cuda_runtime_compare)
{
	return cuda_compare(GPU_PAIR_LAUNCH);
}

SEC("uprobe/cudaLaunchKernelExC")
int BPF_KPROBE(cuda_runtime_compare_ex)
{
	return cuda_compare(GPU_PAIR_LAUNCH_EX);
}

SEC("uprobe/cudaGraphLaunch")
int BPF_KPROBE(cuda_runtime_compare_graph)
{
	return cuda_compare(GPU_PAIR_GRAPH);
}

SEC("uprobe/cudaEventRecord")
int BPF_KPROBE(cuda_runtime_compare_record)
{
	return cuda_compare(GPU_PAIR_RECORD);
}

SEC("uprobe/cudaEventSynchronize")
int BPF_KPROBE(cuda_runtime_compare_event)
{
	return cuda_compare(GPU_PAIR_SYNC_EVENT);
}

SEC("uprobe/cudaStreamSynchronize")
int BPF_KPROBE(cuda_runtime_compare_stream)
{
	return cuda_compare(GPU_PAIR_SYNC_STREAM);
}

SEC("uprobe/cudaDeviceSynchronize")
int BPF_KPROBE(cuda_runtime_compare_context)
{
	return cuda_compare(GPU_PAIR_SYNC_CONTEXT);
}
