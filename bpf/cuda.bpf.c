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
	/* The runtime's calls that were compared with the driver's, and those under
	 * which the driver was not seen to be called. */
	__u64 compared[GPU_PAIRS];
	__u64 missed[GPU_PAIRS];
	__u64 hits[GPU_HITS]; /* of programs */
	__u64 marks;
	__u64 paired;  /* the runtime's launches that were looked at for their functions */
	__u64 beyond;  /* launches that are not counted by function: there are too many */
	__u64 unnoted; /* names that were not noted: there were too many at once */
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
	__u64 under;              /* function of the runtime's launch under way, 0 if it is not looked at */
	/* Since the last mark: how many there were, the latest ones, and that the next launch
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

/* Launches of a function, those of graphs' nodes left out. */
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

/* The longest name in libtorch_cuda has 2,300 bytes. */
#define CUDA_NAME 4096

struct cuda_name {
	__u64 kernel; /* whose name it has; 0: it is in text */
	__u32 calls;  /* that gave the handle */
	__u32 length; /* of text with its end; CUDA_NAME: it may be cut */
	char text[CUDA_NAME];
};

/* Names by handle, from when it was given until user space has taken the name, a second
 * later at most: kernels are looked up as they are first launched. 512 of them are 2 MB. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 512);
	__type(key, struct cuda_key);
	__type(value, struct cuda_name);
} cuda_names SEC(".maps");

static const struct cuda_thread cuda_nothing = {};
static const struct cuda_name cuda_no_name = {};

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
	if (t->apart || !t->bursts) {
		t->burst[t->bursts++ % GPU_BURSTS].first = t->last;
		t->apart = 0;
	}
	t->burst[(t->bursts - 1) % GPU_BURSTS].last = t->last;
}

/* Calls outside of the runtime that settle that a function is not launched by it; some may
 * have begun before the look at the runtime did. */
#define CUDA_BARE 4

/* Counts a launch by its function; under is the runtime's, 0 if there is none. */
static __always_inline void cuda_by_function(struct cuda_process *p, const struct cuda_key *key, __u64 under)
{
	struct cuda_function *f = bpf_map_lookup_elem(&cuda_functions, key);
	struct cuda_function none = {};

	if (!f) {
		/* Another thread may have been first. */
		bpf_map_update_elem(&cuda_functions, key, &none, BPF_NOEXIST);
		f = bpf_map_lookup_elem(&cuda_functions, key);
	}
	if (!f) {
		__sync_fetch_and_add(&p->beyond, 1);
		return;
	}
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

/* A launch of one kernel; at is where the handle of its stream lies. */
static __always_inline int cuda_kernel(__u64 at, __u32 count, __u32 hit, __u64 function, __u32 runtime)
{
	__u64 ids = current_ids(), stream = 0;
	struct cuda_thread *t = cuda_self(ids);
	struct cuda_process *p = cuda_hit(ids, hit);
	struct cuda_key key = {.handle = function, .tgid = ids >> 32, .runtime = runtime};
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
	if (cuda_count(t, ids, stream, count, 1)) {
		cuda_launched(t);
		cuda_by_function(p, &key, under);
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
	struct cuda_graph *g;

	cuda_hit(ids, GPU_HIT_GRAPH);
	if (!t)
		return 0;
	t->driver[GPU_PAIR_GRAPH]++;
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

	cuda_hit(ids, GPU_HIT_COPY);
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

/* A note of a name for a handle, to be filled in; 0 if there is no room. */
static __always_inline struct cuda_name *cuda_name(const struct cuda_key *key)
{
	struct cuda_name *n = bpf_map_lookup_elem(&cuda_names, key);
	struct cuda_process *p;

	if (n)
		return n;
	bpf_map_update_elem(&cuda_names, key, &cuda_no_name, BPF_NOEXIST);
	n = bpf_map_lookup_elem(&cuda_names, key);
	if (!n) {
		p = bpf_map_lookup_elem(&cuda_processes, &key->tgid);
		if (p)
			__sync_fetch_and_add(&p->unnoted, 1);
	}
	return n;
}

/* cuModuleGetFunction(out, module, name), cuLibraryGetKernel(out, library, name) */
SEC("uprobe/cuModuleGetFunction")
int BPF_KPROBE(cuda_name_begin, __u64 out, __u64 module, __u64 name)
{
	return cuda_making(name, out);
}

SEC("uprobe/cuModuleGetFunction_return")
int BPF_KPROBE(cuda_name_end)
{
	__u64 ids = current_ids(), thread = bpf_get_current_pid_tgid();
	struct cuda_thread *t = bpf_map_lookup_elem(&cuda_threads, &thread);
	struct cuda_key key = {.tgid = ids >> 32};
	struct cuda_name *n;
	long length;

	if (!t || !t->call.out)
		return 0;
	key.handle = cuda_made(t, PT_REGS_RC(ctx));
	t->call.out = 0;
	if (!key.handle)
		return 0;
	n = cuda_name(&key);
	if (!n)
		return 0;
	n->calls++;
	n->kernel = 0;
	length = bpf_probe_read_user_str(n->text, sizeof(n->text), (void *)t->call.object);
	if (length < 0)
		lose(LOSS_FAULT, 1);
	n->length = length < 0 ? 0 : length;
	return 0;
}

/* cuKernelGetFunction(out, kernel) */
SEC("uprobe/cuKernelGetFunction")
int BPF_KPROBE(cuda_alias_begin, __u64 out, __u64 kernel)
{
	return cuda_making(kernel, out);
}

SEC("uprobe/cuKernelGetFunction_return")
int BPF_KPROBE(cuda_alias_end)
{
	__u64 ids = current_ids(), thread = bpf_get_current_pid_tgid();
	struct cuda_thread *t = bpf_map_lookup_elem(&cuda_threads, &thread);
	struct cuda_key key = {.tgid = ids >> 32};
	struct cuda_name *n;

	if (!t || !t->call.out)
		return 0;
	key.handle = cuda_made(t, PT_REGS_RC(ctx));
	t->call.out = 0;
	/* The kernel itself has its name from elsewhere. */
	if (!key.handle || key.handle == t->call.object)
		return 0;
	n = cuda_name(&key);
	if (!n)
		return 0;
	n->calls++;
	n->kernel = t->call.object;
	n->length = 0;
	return 0;
}
