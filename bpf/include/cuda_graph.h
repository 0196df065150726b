/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Graphs: streams that are being captured, what becomes of that, how many kernels it has,
 * and of which functions. That is counted at the capture; a launch of a graph is one count.
 *
 * What is made of a capture is known as long as all that could change it is seen: nodes
 * that are added or changed by themselves are not followed, and make it unknown.
 */
#pragma once

#include "cuda_state.h"

#define EEXIST 17 /* asm-generic/errno-base.h */

enum cuda_graph_flags {
	GRAPH_WHOLE = 1,   /* all that is launched on its streams was seen since the epoch began */
	GRAPH_CHANGED = 2, /* its functions are not known */
	GRAPH_EDITED = 4,  /* nor is their number */
	GRAPH_FULL = 8,    /* there was no room for its functions */
};

/* Streams that are being captured, and what was captured so far. A capture that its
 * program gives up is forgotten when the stream is captured again. One that joined the
 * capture of another stream, its origin, is in it as long as that has the same capture. */
struct cuda_graph {
	__u64 kernels;
	__u64 origin; /* 0: the stream itself */
	__u64 begun;  /* by which a capture is told from others of its process; of one that was edited, when */
	__u32 epoch;
	__u32 flags; /* enum cuda_graph_flags */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 512);
	__type(key, struct cuda_key);
	__type(value, struct cuda_graph);
} cuda_captures SEC(".maps");

/* Captures that an engine makes in all. vLLM makes a graph for each of some 50 sizes, with
 * graphs in pieces one for each layer of those: 1,700 in a worker. */
#define CUDA_GRAPHS 16384

/* Graphs and what was instantiated of them, of which something is known. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, CUDA_GRAPHS);
	__type(key, struct cuda_key);
	__type(value, struct cuda_graph);
} cuda_graphs SEC(".maps");

enum cuda_captured_state {
	CAPTURED_OPEN = 0, /* under way */
	CAPTURED_DONE = 1, /* its functions are to be taken */
	CAPTURED_VOID = 2, /* they are of no use */
};

struct cuda_captured {
	__u64 launches; /* of what was made of it */
	__u32 state;
	__u32 pad;
};

/* Key: a capture that was whole so far, by when it began. User space frees those that are
 * void; a capture that has no room is counted with its launches (GPU_UNNAMED_ROOM). */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, CUDA_GRAPHS);
	__type(key, struct cuda_key);
	__type(value, struct cuda_captured);
} cuda_captured SEC(".maps");

enum cuda_node_kind {
	NODE_DRIVER = 0,  /* function is the driver's */
	NODE_RUNTIME = 1, /* it is the runtime's */
	NODE_GRAPH = 2,   /* it is a capture, of a graph that was launched in this one */
};

struct cuda_node {
	__u64 capture;
	__u64 function;
	__u32 tgid;
	__u32 kind;
};

/* Value: how often a function was launched in a capture. Taken by user space a second after
 * the capture's end: at that time an engine makes tens of graphs with tens of functions. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, CUDA_GRAPHS);
	__type(key, struct cuda_node);
	__type(value, __u64);
} cuda_nodes SEC(".maps");

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

/* Notes a launch in a capture. */
static __always_inline void cuda_captured_node(struct cuda_graph *g, __u32 tgid, __u64 function, __u32 kind)
{
	struct cuda_node key = {.capture = g->begun, .function = function, .tgid = tgid, .kind = kind};
	__u64 none = 0, *n;

	if (!(g->flags & GRAPH_WHOLE) || g->flags & GRAPH_FULL)
		return;
	n = bpf_map_lookup_elem(&cuda_nodes, &key);
	if (!n) {
		/* Another thread may have been first. */
		bpf_map_update_elem(&cuda_nodes, &key, &none, BPF_NOEXIST);
		n = bpf_map_lookup_elem(&cuda_nodes, &key);
	}
	if (n)
		__sync_fetch_and_add(n, 1);
	else
		g->flags |= GRAPH_FULL;
}

/* Notes the launch of graph g, 0 if nothing is known of it, in a capture. */
static __always_inline void cuda_captured_graph(struct cuda_graph *in, __u32 tgid, struct cuda_graph *g)
{
	if (!g || g->flags & GRAPH_EDITED) {
		/* Its kernels are not known, and so those of this one are not. */
		in->flags = (in->flags & ~GRAPH_WHOLE) | (g ? GRAPH_EDITED : 0);
		return;
	}
	if (g->kernels)
		__sync_fetch_and_add(&in->kernels, g->kernels);
	if (g->flags & (GRAPH_CHANGED | GRAPH_FULL))
		in->flags |= g->flags & (GRAPH_CHANGED | GRAPH_FULL);
	else
		cuda_captured_node(in, tgid, g->begun, NODE_GRAPH);
}

/* Counts the launch of a graph by its functions. */
static __always_inline void cuda_graph_launched(struct cuda_process *p, __u32 tgid, struct cuda_graph *g)
{
	struct cuda_key key = {.tgid = tgid};
	struct cuda_captured *c;

	if (!g) {
		__sync_fetch_and_add(&p->unnamed[GPU_UNNAMED_UNSEEN], 1);
		return;
	}
	if (g->flags & (GRAPH_CHANGED | GRAPH_EDITED)) {
		__sync_fetch_and_add(&p->unnamed[GPU_UNNAMED_CHANGED], 1);
		return;
	}
	key.handle = g->begun;
	c = g->flags & GRAPH_FULL ? 0 : bpf_map_lookup_elem(&cuda_captured, &key);
	if (!c) {
		__sync_fetch_and_add(&p->unnamed[GPU_UNNAMED_ROOM], 1);
		return;
	}
	__sync_fetch_and_add(&c->launches, 1);
}

static __always_inline void cuda_captured_ends(__u32 tgid, struct cuda_graph *g, __u32 state)
{
	struct cuda_key key = {.handle = g->begun, .tgid = tgid};
	struct cuda_captured *c = bpf_map_lookup_elem(&cuda_captured, &key);

	if (c)
		c->state = state;
}

/* A capture that begins; flags are what is known of it already. */
static __always_inline int cuda_capturing(__u64 stream, __u32 flags)
{
	__u64 ids = current_ids();
	__u32 tgid = ids >> 32;
	struct cuda_process *p = bpf_map_lookup_elem(&cuda_processes, &tgid);
	struct cuda_key key = {.handle = stream, .tgid = tgid}, id = {.tgid = tgid};
	struct cuda_graph g = {.flags = flags}, *old;
	struct cuda_captured none = {};
	long err = 0;

	if (!p)
		return 0;
	old = bpf_map_lookup_elem(&cuda_captures, &key);
	if (old && !old->origin)
		cuda_captured_ends(tgid, old, CAPTURED_VOID);
	g.begun = bpf_ktime_get_ns();
	g.epoch = p->epoch;
	if (p->flags & GPU_LAUNCHES) {
		g.flags |= GRAPH_WHOLE;
		/* Another thread may begin one in the same nanosecond. */
		for (int i = 0; i < 4; i++) {
			id.handle = g.begun;
			err = bpf_map_update_elem(&cuda_captured, &id, &none, BPF_NOEXIST);
			if (err != -EEXIST)
				break;
			g.begun++;
		}
		if (err)
			g.flags |= GRAPH_FULL;
	}
	if (bpf_map_update_elem(&cuda_captures, &key, &g, BPF_ANY))
		lose(LOSS_MAP_FULL, 1);
	return 0;
}

SEC("uprobe/cuStreamBeginCapture")
int BPF_KPROBE(cuda_capture_begin, __u64 stream)
{
	return cuda_capturing(stream, 0);
}

/* What is known of a graph, or of what was instantiated, holds no more. */
static __always_inline void cuda_edited(struct cuda_key *key)
{
	struct cuda_graph edited = {.begun = bpf_ktime_get_ns(), .flags = GRAPH_WHOLE | GRAPH_EDITED};
	__u32 tgid = key->tgid;

	if (bpf_map_lookup_elem(&cuda_processes, &tgid) &&
	    bpf_map_update_elem(&cuda_graphs, key, &edited, BPF_ANY))
		lose(LOSS_MAP_FULL, 1);
}

/* cuStreamBeginCaptureToGraph(stream, graph): to what that has already. */
SEC("uprobe/cuStreamBeginCaptureToGraph")
int BPF_KPROBE(cuda_capture_into, __u64 stream, __u64 graph)
{
	struct cuda_key key = {.handle = graph, .tgid = current_ids() >> 32};

	cuda_edited(&key);
	return cuda_capturing(stream, GRAPH_EDITED);
}

/* A node is added to a graph: cuGraphAddKernelNode(out, graph) and others. The graph may be
 * one that is being captured, of which the handle is not known yet. */
SEC("uprobe/cuGraphAddNode")
int BPF_KPROBE(cuda_graph_edited, __u64 out, __u64 graph)
{
	struct cuda_key key = {.handle = graph, .tgid = current_ids() >> 32};

	cuda_edited(&key);
	return 0;
}

/* A node is changed, of some graph: cuGraphKernelNodeSetParams(node) and others. */
SEC("uprobe/cuGraphNodeSetParams")
int BPF_KPROBE(cuda_node_edited)
{
	__u32 tgid = current_ids() >> 32;
	struct cuda_process *p = bpf_map_lookup_elem(&cuda_processes, &tgid);

	if (p)
		p->edited = bpf_ktime_get_ns();
	return 0;
}

/* A node is switched on or off: cuGraphNodeSetEnabled(exec). */
SEC("uprobe/cuGraphNodeSetEnabled")
int BPF_KPROBE(cuda_exec_edited, __u64 exec)
{
	struct cuda_key key = {.handle = exec, .tgid = current_ids() >> 32};

	cuda_edited(&key);
	return 0;
}

/* Nodes are given other functions, or the same: cuGraphExecKernelNodeSetParams(exec) and
 * others. */
SEC("uprobe/cuGraphExecNodeSetParams")
int BPF_KPROBE(cuda_exec_changed, __u64 exec)
{
	struct cuda_key key = {.handle = exec, .tgid = current_ids() >> 32};
	struct cuda_graph *g = bpf_map_lookup_elem(&cuda_graphs, &key);

	if (g)
		g->flags |= GRAPH_CHANGED;
	return 0;
}

/* Handles are used again: cuGraphDestroy, cuGraphExecDestroy. */
SEC("uprobe/cuGraphDestroy")
int BPF_KPROBE(cuda_graph_gone, __u64 handle)
{
	struct cuda_key key = {.handle = handle, .tgid = current_ids() >> 32};

	bpf_map_delete_elem(&cuda_graphs, &key);
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
	struct cuda_graph *g, *edited;

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
	if (graph.handle && g->epoch == p->epoch && g->flags & (GRAPH_WHOLE | GRAPH_EDITED)) {
		struct cuda_graph copy = *g;

		edited = bpf_map_lookup_elem(&cuda_graphs, &graph);
		if (edited && edited->flags & GRAPH_EDITED && edited->begun >= g->begun)
			copy.flags |= GRAPH_EDITED;
		cuda_captured_ends(tgid, g,
				   copy.flags & (GRAPH_CHANGED | GRAPH_EDITED | GRAPH_FULL) ? CAPTURED_VOID
											    : CAPTURED_DONE);
		if (bpf_map_update_elem(&cuda_graphs, &graph, &copy, BPF_ANY))
			lose(LOSS_MAP_FULL, 1);
	} else {
		cuda_captured_ends(tgid, g, CAPTURED_VOID);
		bpf_map_delete_elem(&cuda_graphs, &graph);
	}
	bpf_map_delete_elem(&cuda_captures, &stream);
	return 0;
}

/* cuGraphInstantiateWithFlags, cuGraphInstantiateWithParams: exec to *out; cuGraphClone:
 * another graph. */
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
	__u32 tgid = ids >> 32;
	struct cuda_process *p = bpf_map_lookup_elem(&cuda_processes, &tgid);
	struct cuda_graph *g;

	if (!t || !p || !t->call.out)
		return 0;
	graph.handle = t->call.object;
	exec.handle = cuda_made(t, PT_REGS_RC(ctx));
	t->call.out = 0;
	if (!exec.handle)
		return 0;
	g = bpf_map_lookup_elem(&cuda_graphs, &graph);
	if (g) {
		struct cuda_graph copy = *g;

		if (p->edited >= copy.begun)
			copy.flags |= GRAPH_EDITED;
		if (bpf_map_update_elem(&cuda_graphs, &exec, &copy, BPF_ANY))
			lose(LOSS_MAP_FULL, 1);
	} else {
		bpf_map_delete_elem(&cuda_graphs, &exec);
	}
	return 0;
}
