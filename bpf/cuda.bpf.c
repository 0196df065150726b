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

/* What is looked at in a process; gpu/cuda in Go sets it when all probes are in. */
struct cuda_process {
	__u32 epoch;
	__u32 flags; /* GPU_LAUNCHES */
	/* The runtime's launches that were compared with the driver's, and those under
	 * which the driver was not seen to launch anything; by the two functions. */
	__u64 compared[2];
	__u64 missed[2];
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
	/* For the comparison of levels, by the two functions. */
	__u64 driver[2];  /* launches in the driver */
	__u64 runtime[2]; /* driver, and one, when the runtime's last launch began; 0 if there was none */
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

/* A handle of the driver in a process. */
struct cuda_key {
	__u64 handle;
	__u32 tgid;
	__u32 pad;
};

struct cuda_record {
	__u64 at;
	__u32 tid;
	__u32 pad;
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

/* Streams that are being captured, and what was captured so far. A capture that its
 * program gives up is forgotten when the stream is captured again. */
struct cuda_graph {
	__u64 kernels;
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

/* The capture that a stream is in. The legacy default stream (0 and 1) cannot be captured. */
static __always_inline struct cuda_graph *cuda_capture(__u64 ids, __u64 stream)
{
	struct cuda_key key = {.handle = stream, .tgid = ids >> 32};

	return stream > 1 ? bpf_map_lookup_elem(&cuda_captures, &key) : 0;
}

/* Counts an operation on a stream; false if it became a node of a graph. */
static __always_inline bool cuda_count(struct cuda_thread *t, __u64 ids, __u64 stream, __u32 count,
				       __u64 kernels)
{
	struct cuda_graph *g = cuda_capture(ids, stream);

	if (g) {
		/* Clang makes of an addition of nothing an atomic that 5.10 does not have. */
		if (kernels)
			__sync_fetch_and_add(&g->kernels, kernels);
		t->counts[GPU_CAPTURED]++;
		return false;
	}
	t->counts[count]++;
	return true;
}

static __always_inline void cuda_launched(struct cuda_thread *t)
{
	t->last = bpf_ktime_get_ns();
	if (!t->first)
		t->first = t->last;
}

/* A launch of one kernel; at is where the handle of its stream lies. */
static __always_inline int cuda_kernel(__u64 at, __u32 count)
{
	__u64 ids = current_ids(), stream = 0;
	struct cuda_thread *t = cuda_self(ids);
	__u32 tgid = ids >> 32;
	struct cuda_process *p = bpf_map_lookup_elem(&cuda_processes, &tgid);

	/* While probes are put in or taken out, only some are seen: none counts. */
	if (!t || !p || !(p->flags & GPU_LAUNCHES))
		return 0;
	if (count == GPU_KERNELS || count == GPU_KERNELS_EX)
		t->driver[count & 1]++;
	if (bpf_probe_read_user(&stream, sizeof(stream), (void *)at)) {
		lose(LOSS_FAULT, 1);
		return 0;
	}
	if (cuda_count(t, ids, stream, count, 1))
		cuda_launched(t);
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
int BPF_KPROBE(cuda_launch)
{
	return cuda_kernel(PT_REGS_SP(ctx) + CUDA_STREAM_ARG, GPU_KERNELS);
}

SEC("uprobe/cuLaunchCooperativeKernel")
int BPF_KPROBE(cuda_launch_coop)
{
	return cuda_kernel(PT_REGS_SP(ctx) + CUDA_STREAM_ARG, GPU_COOPERATIVE);
}

SEC("uprobe/cuLaunchKernelEx")
int BPF_KPROBE(cuda_launch_ex, __u64 config)
{
	return cuda_kernel(config + CUDA_CONFIG_STREAM, GPU_KERNELS_EX);
}

/*
 * The runtime's launches. Each is to lead to one of the driver; if none was seen since
 * the last one, the driver was reached by another entry than the one probed. Launches
 * of others in between can hide that, but not feign it.
 */
static __always_inline int cuda_compare(__u32 which)
{
	__u64 ids = current_ids();
	__u32 tgid = ids >> 32;
	struct cuda_thread *t = cuda_self(ids);
	struct cuda_process *p = bpf_map_lookup_elem(&cuda_processes, &tgid);

	if (!t || !p)
		return 0;
	if (t->runtime[which]) {
		__sync_fetch_and_add(&p->compared[which], 1);
		if (t->runtime[which] == t->driver[which] + 1)
			__sync_fetch_and_add(&p->missed[which], 1);
	}
	t->runtime[which] = t->driver[which] + 1;
	return 0;
}

SEC("uprobe/cudaLaunchKernel")
int BPF_KPROBE(cuda_runtime_compare)
{
	return cuda_compare(GPU_KERNELS);
}

SEC("uprobe/cudaLaunchKernelExC")
int BPF_KPROBE(cuda_runtime_compare_ex)
{
	return cuda_compare(GPU_KERNELS_EX);
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
int BPF_KPROBE(cuda_runtime_launch)
{
	return cuda_kernel(CUDA_RUNTIME_STREAM, GPU_KERNELS);
}

SEC("uprobe/cudaLaunchKernelExC")
int BPF_KPROBE(cuda_runtime_launch_ex, __u64 config)
{
	return cuda_kernel(config + CUDA_CONFIG_STREAM, GPU_KERNELS_EX);
}

SEC("uprobe/cuGraphLaunch")
int BPF_KPROBE(cuda_launch_graph, __u64 exec, __u64 stream)
{
	__u64 ids = current_ids();
	struct cuda_thread *t = cuda_self(ids);
	struct cuda_key key = {.handle = exec, .tgid = ids >> 32};
	struct cuda_graph *g;

	if (!t)
		return 0;
	g = bpf_map_lookup_elem(&cuda_graphs, &key);
	if (!cuda_count(t, ids, stream, GPU_GRAPHS, g ? g->kernels : 0))
		return 0;
	if (g)
		t->counts[GPU_GRAPH_KERNELS] += g->kernels;
	else
		t->counts[GPU_GRAPHS_UNKNOWN]++;
	cuda_launched(t);
	return 0;
}

static __always_inline int cuda_copy(__u64 stream, __u64 bytes, __u32 count, __u32 count_bytes)
{
	__u64 ids = current_ids();
	struct cuda_thread *t = cuda_self(ids);

	if (t && cuda_count(t, ids, stream, count, 0))
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

SEC("uprobe/cuEventRecord")
int BPF_KPROBE(cuda_event_record, __u64 event, __u64 stream)
{
	__u64 ids = current_ids();
	struct cuda_thread *t = cuda_self(ids);
	struct cuda_key key = {.handle = event, .tgid = ids >> 32};
	struct cuda_record r = {.at = bpf_ktime_get_ns(), .tid = ids};

	if (!t || cuda_capture(ids, stream))
		return 0;
	t->counts[GPU_RECORDS]++;
	if (bpf_map_update_elem(&cuda_events, &key, &r, BPF_ANY))
		lose(LOSS_MAP_FULL, 1);
	return 0;
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

	if (!t)
		return 0;
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

static __always_inline struct gpu_rec *cuda_record(__u64 ts, __u64 ids, struct cuda_thread *t)
{
	__u32 tgid = ids >> 32;
	struct cuda_process *p = bpf_map_lookup_elem(&cuda_processes, &tgid);
	struct gpu_rec *r;

	if (!p)
		return 0;
	r = bpf_ringbuf_reserve(&ring, sizeof(*r), 0);
	if (!r) {
		lose(LOSS_RING_FULL, 1);
		return 0;
	}
	fill_header(&r->h, ts, REC_GPU, ids, 0);
	r->first = t->first;
	r->last = t->last;
	for (int i = 0; i < GPU_COUNTS; i++)
		r->counts[i] = t->counts[i];
	r->epoch = p->epoch;
	r->flags = p->flags & GPU_LAUNCHES;
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

	/* A call that began before the probes were in is none of ours. */
	if (!t || !t->call.what)
		return 0;
	r = cuda_record(now, ids, t);
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
	struct cuda_thread *t;
	struct gpu_rec *r;

	if (!bpf_map_lookup_elem(&cuda_processes, &tgid))
		return 0;
	t = cuda_self(ids);
	if (!t)
		return 0;
	t->marks++;
	r = cuda_record(ts, ids, t);
	if (!r)
		return 0;
	r->what = GPU_MARK;
	r->object = 0;
	r->entry = 0;
	r->recorded = 0;
	r->recorder = 0;
	r->result = 0;
	r->plan = plan;
	bpf_ringbuf_submit(r, wake_flags(sizeof(*r)));
	t->first = 0;
	t->last = 0;
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
	g.epoch = p->epoch;
	g.whole = p->flags & GPU_LAUNCHES;
	if (bpf_map_update_elem(&cuda_captures, &key, &g, BPF_ANY))
		lose(LOSS_MAP_FULL, 1);
	return 0;
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
	if (!g)
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
