/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Graphs: streams that are being captured, what becomes of that, and how many kernels it
 * has.
 */
#pragma once

#include "cuda_state.h"

/* Streams that are being captured, and what was captured so far. A capture that its
 * program gives up is forgotten when the stream is captured again. One that joined the
 * capture of another stream, its origin, is in it as long as that has the same capture. */
struct cuda_graph {
	__u64 kernels;
	__u64 origin; /* 0: the stream itself */
	__u64 begun;
	__u32 epoch; /* it was seen whole in this epoch */
	__u32 whole;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 512);
	__type(key, struct cuda_key);
	__type(value, struct cuda_graph);
} cuda_captures SEC(".maps");

/* Graphs and what was instantiated of them, of which the nodes are known. An engine
 * has some hundred of both. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct cuda_key);
	__type(value, struct cuda_graph);
} cuda_graphs SEC(".maps");

/* The capture that a stream is in; *origin becomes the stream that it began with. The
 * legacy default stream (0 and 1) cannot be captured. */
static __always_inline struct cuda_graph *cuda_capture_of(__u64 ids, __u64 stream, __u64 *origin)
{
	struct cuda_key key = {.handle = stream, .tgid = ids >> 32};
	struct cuda_graph *g, *o;

	if (stream <= 1)
		return 0;
	g = bpf_map_lookup_elem(&cuda_captures, &key);
	*origin = stream;
	if (!g || !g->origin)
		return g;
	key.handle = *origin = g->origin;
	o = bpf_map_lookup_elem(&cuda_captures, &key);
	if (o && !o->origin && o->begun == g->begun)
		return o;
	/* That capture is over. */
	key.handle = stream;
	bpf_map_delete_elem(&cuda_captures, &key);
	return 0;
}

static __always_inline struct cuda_graph *cuda_capture(__u64 ids, __u64 stream)
{
	__u64 origin;

	return cuda_capture_of(ids, stream, &origin);
}

/* A stream that waits for an event of a capture is captured from then on. */
SEC("uprobe/cuStreamWaitEvent")
int BPF_KPROBE(cuda_wait_event, __u64 stream, __u64 event)
{
	__u64 ids = current_ids(), origin = 0;
	struct cuda_key key = {.handle = event, .tgid = ids >> 32};
	struct cuda_graph joined = {}, *g;
	struct cuda_record *r;

	cuda_hit(ids, GPU_HIT_WAIT_EVENT);
	r = bpf_map_lookup_elem(&cuda_events, &key);
	if (!r || !r->origin || stream <= 1)
		return 0;
	joined.origin = r->origin;
	joined.begun = r->begun;
	key.handle = joined.origin;
	g = bpf_map_lookup_elem(&cuda_captures, &key);
	/* A stream that is in a capture stays in that. */
	if (!g || g->begun != joined.begun || cuda_capture_of(ids, stream, &origin))
		return 0;
	key.handle = stream;
	if (bpf_map_update_elem(&cuda_captures, &key, &joined, BPF_ANY))
		lose(LOSS_MAP_FULL, 1);
	return 0;
}

SEC("uprobe/cuStreamBeginCapture")
int BPF_KPROBE(cuda_capture_begin, __u64 stream)
{
	__u64 ids = current_ids();
	__u32 tgid = ids >> 32;
	struct cuda_process *p = bpf_map_lookup_elem(&cuda_processes, &tgid);
	struct cuda_key key = {.handle = stream, .tgid = tgid};
	struct cuda_graph g = {};

	if (!p)
		return 0;
	g.begun = bpf_ktime_get_ns();
	g.epoch = p->epoch;
	g.whole = p->flags & GPU_LAUNCHES;
	if (bpf_map_update_elem(&cuda_captures, &key, &g, BPF_ANY))
		lose(LOSS_MAP_FULL, 1);
	return 0;
}

SEC("uprobe/cuStreamEndCapture")
int BPF_KPROBE(cuda_capture_end, __u64 stream, __u64 out)
{
	return cuda_making(stream, out);
}

SEC("uprobe/cuStreamEndCapture_return")
int BPF_KPROBE(cuda_capture_ended)
{
	__u64 ids = current_ids(), thread = bpf_get_current_pid_tgid();
	struct cuda_thread *t = bpf_map_lookup_elem(&cuda_threads, &thread);
	__u32 tgid = ids >> 32;
	struct cuda_process *p = bpf_map_lookup_elem(&cuda_processes, &tgid);
	struct cuda_key stream = {.tgid = tgid}, graph = {.tgid = tgid};
	struct cuda_graph *g;

	if (!t || !p || !t->call.out)
		return 0;
	stream.handle = t->call.object;
	graph.handle = cuda_made(t, PT_REGS_RC(ctx));
	t->call.out = 0;
	g = bpf_map_lookup_elem(&cuda_captures, &stream);
	/* Only the stream that a capture began with ends it. */
	if (!g || g->origin)
		return 0;
	/* Handles are used again: what was known of an earlier graph is not of this one. */
	if (graph.handle && g->whole && g->epoch == p->epoch) {
		struct cuda_graph copy = *g;

		if (bpf_map_update_elem(&cuda_graphs, &graph, &copy, BPF_ANY))
			lose(LOSS_MAP_FULL, 1);
	} else {
		bpf_map_delete_elem(&cuda_graphs, &graph);
	}
	bpf_map_delete_elem(&cuda_captures, &stream);
	return 0;
}

/* cuGraphInstantiateWithFlags, cuGraphInstantiateWithParams: exec to *out. */
SEC("uprobe/cuGraphInstantiate")
int BPF_KPROBE(cuda_instantiate, __u64 out, __u64 graph)
{
	return cuda_making(graph, out);
}

SEC("uprobe/cuGraphInstantiate_return")
int BPF_KPROBE(cuda_instantiated)
{
	__u64 ids = current_ids(), thread = bpf_get_current_pid_tgid();
	struct cuda_thread *t = bpf_map_lookup_elem(&cuda_threads, &thread);
	struct cuda_key graph = {.tgid = ids >> 32}, exec = {.tgid = ids >> 32};
	struct cuda_graph *g;

	if (!t || !t->call.out)
		return 0;
	graph.handle = t->call.object;
	exec.handle = cuda_made(t, PT_REGS_RC(ctx));
	t->call.out = 0;
	if (!exec.handle)
		return 0;
	g = bpf_map_lookup_elem(&cuda_graphs, &graph);
	if (g) {
		struct cuda_graph copy = *g;

		if (bpf_map_update_elem(&cuda_graphs, &exec, &copy, BPF_ANY))
			lose(LOSS_MAP_FULL, 1);
	} else {
		bpf_map_delete_elem(&cuda_graphs, &exec);
	}
	return 0;
}
