//go:build ignore
/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * The one object of the agent: all taps share the ring, the loss counters and the
 * watched processes. Kernel floor 5.10: no bpf_loop, no fetching atomics, no
 * kfuncs, no program or map type younger than the BPF ring buffer (5.8).
 */
#include "kernel.h"

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#include "maps.h"

char LICENSE[] SEC("license") = "GPL";

#include "wire.bpf.c"
#include "http.bpf.c"
#include "cuda.bpf.c"
#include "python.bpf.c"

/*
 * The end of a thread of a watched process, or of the whole process. A thread
 * killed within a call never returns from it: its call state goes here.
 */
SEC("tracepoint/sched/sched_process_exit")
int process_exit(void *ctx)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	__u64 thread = bpf_get_current_pid_tgid();
	__u64 ids = current_ids();
	__u32 tgid = ids >> 32;
	struct signal_struct *signal;
	struct exit_rec *r;
	__u32 code;

	end_call(thread, 0);
	if (!target_of(ids))
		return 0;
	bpf_map_delete_elem(&recvs, &thread);
	bpf_map_delete_elem(&cuda_threads, &thread);
	signal = BPF_CORE_READ(task, signal);
	if (BPF_CORE_READ(signal, live.counter) > 0)
		return 0;
	/* Two last threads can both see no one left; the record is sent once. */
	if (bpf_map_delete_elem(&targets, &tgid))
		return 0;
	__sync_fetch_and_add(&watches_exited, 1);
	if (BPF_CORE_READ(signal, flags) & SIGNAL_GROUP_EXIT)
		code = BPF_CORE_READ(signal, group_exit_code);
	else
		code = BPF_CORE_READ(task, group_leader, exit_code);
	r = bpf_ringbuf_reserve(&ring, sizeof(*r), 0);
	if (!r) {
		lose(LOSS_RING_FULL, 1);
		return 0;
	}
	fill_header(&r->h, bpf_ktime_get_ns(), REC_EXIT, ids, 0);
	r->code = code;
	r->pad = 0;
	bpf_ringbuf_submit(r, BPF_RB_FORCE_WAKEUP);
	return 0;
}

/* Keeps the layouts and numbers of event.h in the object's BTF, where a test
 * compares them with bpf/event. Nothing reads it. */
const volatile struct {
	struct frame_rec frame;
	struct http_rec http;
	struct exit_rec exit;
	struct loss_rec loss;
	struct clock_rec clock;
	struct capture_rec capture;
	struct note_rec note;
	struct gpu_rec gpu;
	enum record_kind kind;
	enum frame_dir frame_dir;
	enum frame_flags frame_flags;
	enum http_dir http_dir;
	enum http_flags http_flags;
	enum loss_reason loss_reason;
	enum target_role target_role;
	enum capture_flags capture_flags;
	enum capture_tag capture_tag;
	enum capture_missing capture_missing;
	enum py_form py_form;
	enum py_op_code py_op_code;
	enum py_items py_items;
	enum py_skip py_skip;
	enum gpu_what gpu_what;
	enum gpu_flags gpu_flags;
	enum gpu_count gpu_count;
} layout_check = {};
