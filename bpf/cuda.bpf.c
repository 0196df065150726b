//go:build ignore
/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Tap on the CUDA driver (libcuda): what each thread has its GPU do, counted in the
 * kernel. A record is sent where something is known to user space, at a capture on
 * the thread (cuda_mark), and where the thread waited for the GPU, at the return of
 * a synchronise; none for a launch.
 *
 * Counters are of the calling thread and of its doing only, so that plain additions
 * do. Launches on a stream that is being captured are nodes of a graph: they run at
 * cuGraphLaunch, as often as that is called.
 */
#include "cuda_state.h"
#include "cuda_graph.h"
#include "cuda_function.h"
#include "cuda_name.h"
#include "cuda_level.h"

/* Counts an operation on a stream: the capture of which it became a node, 0 if it is none. */
static __always_inline struct cuda_graph *cuda_count(struct cuda_thread *t, __u64 ids, __u64 stream,
						     __u32 count)
{
	struct cuda_graph *g = cuda_capture(ids, stream);

	t->counts[g ? GPU_CAPTURED : count]++;
	return g;
}

static __always_inline void cuda_launched(struct cuda_thread *t)
{
	__u64 n = t->bursts;

	t->last = bpf_ktime_get_ns();
	if (!t->first)
		t->first = t->last;
	if (t->apart || !n) {
		t->bursts = n + 1;
		t->apart = 0;
		if (n < GPU_BURSTS)
			t->burst[n].first = t->burst[n].last = t->last;
	} else if (n <= GPU_BURSTS) {
		t->burst[(n - 1) % GPU_BURSTS].last = t->last;
	}
}

/* A launch of one kernel; at is where the handle of its stream lies. */
static __always_inline int cuda_kernel(__u64 at, __u32 count, __u32 hit, __u64 function, __u32 runtime)
{
	__u64 ids = current_ids(), stream = 0;
	struct cuda_thread *t = cuda_self(ids);
	struct cuda_process *p = cuda_hit(ids, hit);
	struct cuda_key key = {.handle = function, .tgid = ids >> 32, .runtime = runtime};
	struct cuda_graph *g;
	__u64 under;

	/* While probes are put in or taken out, only some are seen: none counts. */
	if (!t || !p || !(p->flags & GPU_LAUNCHES))
		return 0;
	under = t->under;
	t->under = 0; /* the first one is the one that was asked for */
	if (hit == GPU_HIT_LAUNCH)
		t->driver[GPU_PAIR_LAUNCH]++;
	if (hit == GPU_HIT_LAUNCH_EX)
		t->driver[GPU_PAIR_LAUNCH_EX]++;
	if (bpf_probe_read_user(&stream, sizeof(stream), (void *)at)) {
		lose(LOSS_FAULT, 1);
		return 0;
	}
	g = cuda_count(t, ids, stream, count);
	if (g) {
		__sync_fetch_and_add(&g->kernels, 1);
		cuda_captured_node(g, key.tgid, function, runtime ? NODE_RUNTIME : NODE_DRIVER);
		cuda_by_function(p, &key, under, true);
	} else {
		cuda_launched(t);
		cuda_by_function(p, &key, under, false);
	}
	return 0;
}

/* Where the ninth argument of cuLaunchKernel(f, 3 x grid, 3 x block, shared, stream) is. */
#if defined(__TARGET_ARCH_x86)
#define CUDA_STREAM_ARG 24 /* behind the return address, the sixth and the seventh */
#else
#define CUDA_STREAM_ARG 0 /* eight are in registers */
#endif
#define CUDA_CONFIG_STREAM 32 /* CUlaunchConfig.hStream (cuda.h, since 11.8) */

SEC("uprobe/cuLaunchKernel")
int BPF_KPROBE(cuda_launch, __u64 function)
{
	return cuda_kernel(PT_REGS_SP(ctx) + CUDA_STREAM_ARG, GPU_KERNELS, GPU_HIT_LAUNCH, function, 0);
}

SEC("uprobe/cuLaunchCooperativeKernel")
int BPF_KPROBE(cuda_launch_coop, __u64 function)
{
	return cuda_kernel(PT_REGS_SP(ctx) + CUDA_STREAM_ARG, GPU_COOPERATIVE, GPU_HIT_LAUNCH_COOP, function,
			   0);
}

SEC("uprobe/cuLaunchKernelEx")
int BPF_KPROBE(cuda_launch_ex, __u64 config, __u64 function)
{
	return cuda_kernel(config + CUDA_CONFIG_STREAM, GPU_KERNELS_EX, GPU_HIT_LAUNCH_EX, function, 0);
}

/* cudaLaunchKernel(func, dim3 grid, dim3 block, args, shared, stream): a dim3 is of 12
 * bytes and takes two registers. */
#if defined(__TARGET_ARCH_x86)
#define CUDA_RUNTIME_STREAM (PT_REGS_SP(ctx) + 16) /* behind the return address and shared */
#else
#define CUDA_RUNTIME_STREAM (PT_REGS_SP(ctx)) /* shared is the eighth in registers */
#endif

/* In place of cuda_launch and cuda_launch_ex, where these are not reached. */
SEC("uprobe/cudaLaunchKernel")
int BPF_KPROBE(cuda_runtime_launch, __u64 function)
{
	return cuda_kernel(CUDA_RUNTIME_STREAM, GPU_KERNELS, GPU_HIT_LAUNCH, function, 1);
}

SEC("uprobe/cudaLaunchKernelExC")
int BPF_KPROBE(cuda_runtime_launch_ex, __u64 config, __u64 function)
{
	return cuda_kernel(config + CUDA_CONFIG_STREAM, GPU_KERNELS_EX, GPU_HIT_LAUNCH_EX, function, 1);
}

SEC("uprobe/cuGraphLaunch")
int BPF_KPROBE(cuda_launch_graph, __u64 exec, __u64 stream)
{
	__u64 ids = current_ids();
	struct cuda_thread *t = cuda_self(ids);
	struct cuda_key key = {.handle = exec, .tgid = ids >> 32};
	struct cuda_process *p = cuda_hit(ids, GPU_HIT_GRAPH);
	struct cuda_graph *g, *in;

	if (!t || !p)
		return 0;
	t->driver[GPU_PAIR_GRAPH]++;
	g = bpf_map_lookup_elem(&cuda_graphs, &key);
	in = cuda_count(t, ids, stream, GPU_GRAPHS);
	if (in) {
		cuda_captured_graph(in, key.tgid, g);
		return 0;
	}
	if (g && !(g->flags & GRAPH_EDITED))
		t->counts[GPU_GRAPH_KERNELS] += g->kernels;
	else
		t->counts[GPU_GRAPHS_UNKNOWN]++;
	if (p->flags & GPU_LAUNCHES)
		cuda_graph_launched(p, key.tgid, g);
	cuda_launched(t);
	return 0;
}

static __always_inline int cuda_copy(__u64 stream, __u64 bytes, __u32 count, __u32 count_bytes)
{
	__u64 ids = current_ids();
	struct cuda_thread *t = cuda_self(ids);

	cuda_hit(ids, GPU_HIT_COPY);
	if (t && !cuda_count(t, ids, stream, count))
		t->counts[count_bytes] += bytes;
	return 0;
}

SEC("uprobe/cuMemcpyHtoDAsync")
int BPF_KPROBE(cuda_copy_in, __u64 to, __u64 from, __u64 bytes, __u64 stream)
{
	return cuda_copy(stream, bytes, GPU_COPIES_IN, GPU_BYTES_IN);
}

SEC("uprobe/cuMemcpyDtoHAsync")
int BPF_KPROBE(cuda_copy_out, __u64 to, __u64 from, __u64 bytes, __u64 stream)
{
	return cuda_copy(stream, bytes, GPU_COPIES_OUT, GPU_BYTES_OUT);
}

SEC("uprobe/cuMemcpyDtoDAsync")
int BPF_KPROBE(cuda_copy_device, __u64 to, __u64 from, __u64 bytes, __u64 stream)
{
	return cuda_copy(stream, bytes, GPU_COPIES_DEVICE, GPU_BYTES_DEVICE);
}

SEC("uprobe/cuMemcpyAsync")
int BPF_KPROBE(cuda_copy_other, __u64 to, __u64 from, __u64 bytes, __u64 stream)
{
	return cuda_copy(stream, bytes, GPU_COPIES_OTHER, GPU_BYTES_OTHER);
}

#define CUDA_EVENT_EXTERNAL 1 /* CU_EVENT_RECORD_EXTERNAL: in a capture it becomes a node */

static __always_inline int cuda_event(__u64 event, __u64 stream, bool external)
{
	__u64 ids = current_ids();
	struct cuda_thread *t = cuda_self(ids);
	struct cuda_key key = {.handle = event, .tgid = ids >> 32};
	struct cuda_record r = {};
	struct cuda_graph *g;

	cuda_hit(ids, GPU_HIT_RECORD);
	if (!t)
		return 0;
	t->driver[GPU_PAIR_RECORD]++;
	g = cuda_capture_of(ids, stream, &r.origin);
	if (g && external)
		return 0; /* who waits for it does not join */
	if (g) {
		r.begun = g->begun;
	} else {
		r.origin = 0;
		r.at = bpf_ktime_get_ns();
		r.tid = ids;
		t->counts[GPU_RECORDS]++;
		t->apart = 1;
	}
	if (bpf_map_update_elem(&cuda_events, &key, &r, BPF_ANY))
		lose(LOSS_MAP_FULL, 1);
	return 0;
}

SEC("uprobe/cuEventRecord")
int BPF_KPROBE(cuda_event_record, __u64 event, __u64 stream)
{
	return cuda_event(event, stream, false);
}

SEC("uprobe/cuEventRecordWithFlags")
int BPF_KPROBE(cuda_event_record_flags, __u64 event, __u64 stream, __u32 flags)
{
	return cuda_event(event, stream, flags & CUDA_EVENT_EXTERNAL);
}

static __always_inline __u64 cuda_switches(void)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();

	return BPF_CORE_READ(task, nvcsw);
}

static __always_inline int cuda_sync(__u32 what, __u64 object)
{
	__u64 ids = current_ids();
	struct cuda_thread *t = cuda_self(ids);
	struct cuda_key key = {.handle = object, .tgid = ids >> 32};
	struct cuda_record *r;

	cuda_hit(ids, GPU_HIT_SYNC_EVENT + what - GPU_SYNC_EVENT);
	if (!t)
		return 0;
	t->driver[GPU_PAIR_SYNC_EVENT + what - GPU_SYNC_EVENT]++;
	t->call.what = what;
	t->call.object = object;
	t->call.recorded = 0;
	t->call.recorder = 0;
	/* Now: it may be recorded again while this thread waits for what was recorded before. */
	if (what == GPU_SYNC_EVENT) {
		r = bpf_map_lookup_elem(&cuda_events, &key);
		if (r) {
			t->call.recorded = r->at;
			t->call.recorder = r->tid;
		}
	}
	t->call.switches = cuda_switches();
	t->call.entry = bpf_ktime_get_ns();
	return 0;
}

SEC("uprobe/cuEventSynchronize")
int BPF_KPROBE(cuda_sync_event, __u64 event)
{
	return cuda_sync(GPU_SYNC_EVENT, event);
}

SEC("uprobe/cuStreamSynchronize")
int BPF_KPROBE(cuda_sync_stream, __u64 stream)
{
	return cuda_sync(GPU_SYNC_STREAM, stream);
}

SEC("uprobe/cuCtxSynchronize")
int BPF_KPROBE(cuda_sync_context)
{
	return cuda_sync(GPU_SYNC_CONTEXT, 0);
}

/* A record of a size that is a constant. */
static __always_inline struct gpu_rec *cuda_record(__u64 ts, __u64 ids, struct cuda_thread *t, __u32 size)
{
	__u32 tgid = ids >> 32;
	struct cuda_process *p = bpf_map_lookup_elem(&cuda_processes, &tgid);
	struct gpu_rec *r;

	if (!p)
		return 0;
	r = bpf_ringbuf_reserve(&ring, size, 0);
	if (!r) {
		lose(LOSS_RING_FULL, 1);
		return 0;
	}
	fill_header(&r->h, ts, REC_GPU, ids, size - sizeof(*r));
	r->first = t->first;
	r->last = t->last;
	for (int i = 0; i < GPU_COUNTS; i++)
		r->counts[i] = t->counts[i];
	r->epoch = p->epoch;
	r->flags = p->flags & (GPU_LAUNCHES | GPU_CONTINUES);
	r->marks = t->marks;
	return r;
}

/* At the returns of the synchronises. */
SEC("uprobe/cuSynchronize_return")
int BPF_KPROBE(cuda_sync_exit)
{
	__u64 ids = current_ids(), thread = bpf_get_current_pid_tgid();
	__u64 now = bpf_ktime_get_ns();
	struct cuda_thread *t = bpf_map_lookup_elem(&cuda_threads, &thread);
	struct gpu_rec *r;

	cuda_hit(ids, GPU_HIT_SYNC_EXIT);
	/* A call that began before the probes were in is none of ours. */
	if (!t || !t->call.what)
		return 0;
	r = cuda_record(now, ids, t, sizeof(*r));
	if (r) {
		r->what = t->call.what;
		r->object = t->call.object;
		r->entry = t->call.entry;
		r->recorded = t->call.recorded;
		r->recorder = t->call.recorder;
		r->result = PT_REGS_RC(ctx);
		r->plan = 0;
		if (cuda_switches() != t->call.switches)
			r->flags |= GPU_SLEPT;
		bpf_ringbuf_submit(r, wake_flags(sizeof(*r)));
	}
	t->call.what = 0;
	return 0;
}

/* Sends what the thread did up to a capture on it, whose time and plan these are.
 * Global, to be verified by itself. */
__noinline int cuda_mark(__u64 ts, __u32 plan)
{
	__u64 ids = current_ids();
	__u32 tgid = ids >> 32;
	struct cuda_process *p = bpf_map_lookup_elem(&cuda_processes, &tgid);
	struct gpu_burst *bursts;
	struct cuda_thread *t;
	struct gpu_rec *r;

	if (!p)
		return 0;
	__sync_fetch_and_add(&p->marks, 1);
	t = cuda_self(ids);
	if (!t)
		return 0;
	t->marks++;
	r = cuda_record(ts, ids, t, sizeof(*r) + sizeof(t->burst));
	if (!r)
		return 0;
	bursts = (void *)(r + 1);
	for (int i = 0; i < GPU_BURSTS; i++)
		bursts[i] = t->burst[i];
	r->h.len = (t->bursts < GPU_BURSTS ? t->bursts : GPU_BURSTS) * sizeof(*bursts);
	r->what = GPU_MARK;
	r->object = 0;
	r->entry = 0;
	r->recorded = 0;
	r->recorder = 0;
	r->result = 0;
	r->plan = plan;
	bpf_ringbuf_submit(r, wake_flags(sizeof(*r) + sizeof(t->burst)));
	t->first = 0;
	t->last = 0;
	t->bursts = 0;
	t->apart = 0;
	return 0;
}
