//go:build ignore
/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Tap on the Python interpreter: at a C function that Python code calls, finds the
 * calling frame, counts the call by its code object, and reads objects by a plan
 * that the loader compiled.
 *
 * The thread that calls a C function holds the interpreter's lock, so nothing
 * changes while it is stopped here. Of a probe on a function that is called without
 * the lock (PY_UNLOCKED), that is true of the thread's own frames, and of objects
 * that only this thread changes: plans there are to read no others. Everything read is checked all the same: a
 * value that is not what the plan says is sent as missing, with the reason.
 *
 * Functions are global where that keeps the verifier's work low: it looks at them
 * once. They take scalars only (5.10), and find their state by the thread.
 */
#include "py_value.h"
#include "py_call.h"

/* Whether an op PY_SKIP, of which src is ref, skips. */
static __always_inline bool py_skips(const struct py_state *s, struct py_plan *plan, const struct py_op *op,
				     __u64 ref)
{
	bool due;

	switch (op->slot) {
	case PY_SKIP_SAME:
		return ref == s->reg[op->dst & (PY_REGS - 1)];
	case PY_SKIP_IS:
		return ref == (op->b | (__u64)op->c << 32);
	case PY_SKIP_ISNOT:
		return ref != (op->b | (__u64)op->c << 32);
	case PY_SKIP_SET:
		return !PY_IS_MISS(ref) && ref != s->p.none;
	case PY_SKIP_DONE:
		due = plan->put_off;
		plan->put_off = 0;
		return !due;
	}
	return PY_IS_MISS(ref) || ref == s->p.none;
}

/* Runs the next op of a plan; 1 if items are to be sent before the next. */
__noinline int py_step(__u32 room)
{
	struct py_state *s = py_state(room);
	struct py_plan *plan = s ? py_plan_of(s->rec.plan) : 0;
	__u64 ref, v;
	struct py_op *op;

	if (!s || !plan)
		return 0;
	op = &plan->ops[clamp_to(s->pc++, PY_OPS - 1)];
	ref = s->reg[op->src & (PY_REGS - 1)];
	switch (op->code) {
	case PY_FRAME:
		v = py_frame(room, op->a, op->b);
		break;
	case PY_LOCAL:
		v = py_local(s, ref, op->a, op->b);
		break;
	case PY_ATTR:
		v = py_attr(room, op->a, op->src);
		break;
	case PY_INDEX:
		v = py_index(s, room, ref, op->a);
		break;
	case PY_KEY:
		v = py_key(room, op->a, op->src);
		break;
	case PY_VALUE:
		s->rec.values++;
		v = py_value(room, ref, op->slot | op->a << 8, op->c);
		if (v != op->c)
			op->c = v;
		return 0;
	case PY_LEN:
		s->rec.values++;
		return put_len(s, room, op->slot, ref);
	case PY_ADDR:
		s->rec.values++;
		return PY_IS_MISS(ref) ? put_missing(s, op->slot, ref & 0xff)
				       : put_word(s, CAPTURE_ADDR, op->slot, ref);
	case PY_ITEMS:
		s->rec.values++;
		return put_items(s, room, op, ref);
	case PY_SKIP:
		if (py_skips(s, plan, op, ref))
			s->pc += op->a;
		return 0;
	case PY_PUT_OFF:
		plan->put_off = 1;
		s->pc = PY_OPS;
		s->rec.values++;
		return put_word(s, CAPTURE_INT, op->slot, 1);
	default:
		return 0;
	}
	s->reg[op->dst & (PY_REGS - 1)] = v;
	return 0;
}

/* Runs a plan; false if it does not apply. */
static __always_inline bool py_run(struct py_state *s, __u32 room, __u32 id)
{
	struct py_plan *plan = py_plan_of(id);
	__u64 ops, size, before, wake, more = 0;

	if (!plan)
		return false;
	s->rec.plan = id;
	s->reg[0] = py_frame(room, 0, plan->depth);
	if (s->reg[0] == PY_MISS(MISSING_FRAME))
		return false;
	for (int i = 0; i < PY_REGS; i++)
		s->store[i].obj = 0;
	s->rec.values = 0;
	s->value_of = 0;
	s->run++;
	s->pos = 0;
	s->pc = 0; /* here, where the verifier does not follow each number */
	ops = plan->ops_count;
	for (int i = 0; i < PY_STEPS; i++) {
		if (more)
			more = py_items(room);
		else if (s->pc >= ops)
			break;
		else
			more = py_step(room);
	}
	if (more || s->pc < ops)
		s->rec.flags |= CAPTURE_CUT;
	size = clamp_to(s->pos, CHUNK_MAX);
	s->rec.h.len = size;
	if (s->p.cuda)
		cuda_mark(s->rec.h.ts, id); /* first: what it counts is known when the capture comes */
	before = bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA);
	size += sizeof(s->rec);
	wake = (before + size) >> wake_shift != before >> wake_shift ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
	if (bpf_ringbuf_output(&ring, &s->rec, size, wake))
		lose(LOSS_RING_FULL, 1);
	return true;
}

/* The place of a code object in its probe, PY_CALLERS if it has none. */
static __always_inline __u32 py_place(const struct py_probe *probe, __u64 code)
{
	__u32 at = PY_CALLERS;

	if (!code)
		return at;
#pragma unroll
	for (int i = 0; i < PY_CALLERS; i++)
		if (probe->callers[i] == code)
			at = i;
	return at;
}

/* Counts a call of a code object that has no place. */
static __noinline int py_other(struct py_probe *probe, const struct py_code_key *key)
{
	__u64 one = 1, *count;

#pragma unroll
	for (int i = 0; i < PY_CALLERS; i++) {
		if (probe->callers[i] || !key->code || probe->flags & PY_UNLOCKED)
			continue;
		probe->calls[i] = 1;
		probe->callers[i] = key->code;
		return 0;
	}
	count = bpf_map_lookup_elem(&py_hits, key);
	if (count)
		__sync_fetch_and_add(count, 1);
	else
		bpf_map_update_elem(&py_hits, key, &one, BPF_ANY);
	return 0;
}

/* State of the running thread, which need not hold the interpreter's lock; 0 if unknown. */
__noinline __u64 py_own_thread(__u32 process)
{
	struct py_process *p = bpf_map_lookup_elem(&py_processes, &process);
	__u64 ts, native, tid = own_tid();

	if (!p || p->thread_native < 0)
		return 0;
	/* Mostly the thread that held it last. */
	if (rd(&ts, p->holder) && ts && rd(&native, ts + p->thread_native) && native == tid)
		return ts;
	/* The list may change meanwhile, but the state of a thread stays as long as it. */
	if (!rd(&ts, p->threads))
		return 0;
	for (int i = 0; i < PY_THREADS; i++) {
		if (!ts || !rd(&native, ts + p->thread_native))
			return 0;
		if (native == tid)
			return ts;
		if (!rd(&ts, ts + p->thread_next))
			return 0;
	}
	return 0;
}

/* Innermost frame of a thread, 0 if unknown. */
static __always_inline __u64 py_top(const struct py_process *p, __u64 ts)
{
	__u64 frame, at = ts;

	if (!ts)
		return 0;
	if (p->thread_cframe >= 0 && !rd(&at, ts + p->thread_cframe))
		return 0;
	return rd(&frame, at + p->thread_frame) ? frame : 0;
}

static __always_inline __u64 py_code_of(const struct py_process *p, __u64 frame)
{
	__u64 code;

	return frame && rd(&code, frame + p->frame_code) ? code & p->ref_mask : 0;
}

/* The next frame outwards from frame on that is not of C code. */
static __always_inline __u64 py_skip(const struct py_process *p, __u64 frame)
{
	for (int i = 0; i < 4 && frame && p->frame_owner >= 0; i++) {
		__u8 owner = 0;

		if (bpf_probe_read_user(&owner, 1, (void *)(frame + p->frame_owner)))
			return 0;
		if (owner < PY_OWNED_BY_C)
			break;
		if (!rd(&frame, frame + p->frame_previous))
			return 0;
	}
	return frame;
}

/* The function of a probe is entered: how long it runs is of interest. */
SEC("uprobe/python")
int BPF_KPROBE(py_entry)
{
	struct py_probe_key at = {.ip = PT_REGS_IP(ctx), .tgid = current_ids() >> 32};
	struct py_probe *probe = bpf_map_lookup_elem(&py_probes, &at);

	if (!probe)
		return 0;
	__sync_fetch_and_add(&probe->hits, 1);
	py_call(probe->id);
	return 0;
}

SEC("uprobe/python")
int BPF_KPROBE(py_hit)
{
	__u64 ids = current_ids(), ts = 0, took = 0, frame, native;
	__u32 tgid = ids >> 32, room, at;
	struct py_probe_key stands = {.ip = PT_REGS_IP(ctx), .tgid = tgid};
	struct py_probe *probe = bpf_map_lookup_elem(&py_probes, &stands);
	struct py_code_key key = {.tgid = tgid};
	struct py_process *p;
	struct py_watch *watch;
	struct py_state *s;

	if (!probe)
		return 0;
	__sync_fetch_and_add(&probe->hits, 1);
	if (probe->flags & CAPTURE_RETURN) {
		took = py_took(probe->id, bpf_ktime_get_ns());
		if (took) {
			__sync_fetch_and_add(&probe->timed, 1);
			__sync_fetch_and_add(&probe->ns, took);
		}
	}
	p = bpf_map_lookup_elem(&py_processes, &probe->process);
	if (!p)
		return 0;
	key.probe = probe->id;
	if (probe->flags & PY_UNLOCKED)
		ts = py_own_thread(probe->process);
	else if (!rd(&ts, p->holder))
		ts = 0;
	frame = py_top(p, ts);
	key.code = py_code_of(p, frame);
	at = py_place(probe, key.code);
	if (at >= PY_CALLERS) {
		/* Not seen before, or the code of a frame that is passed over. */
		frame = py_skip(p, frame);
		key.code = py_code_of(p, frame);
		at = py_place(probe, key.code);
	}
	if (at >= PY_CALLERS) {
		py_other(probe, &key);
		return 0;
	}
	at = clamp_to(at, PY_CALLERS - 1);
	__sync_fetch_and_add(&probe->calls[at], 1);
	watch = &probe->watches[at];
	if (!watch->count)
		return 0;
	/* The lock would be another thread's, were the function called without it. */
	if (!(probe->flags & PY_UNLOCKED) && p->thread_native >= 0 &&
	    (!rd(&native, ts + p->thread_native) || native != own_tid())) {
		lose(LOSS_FAULT, 1);
		return 0;
	}
	room = py_enter();
	s = py_state(room);
	if (!s) {
		lose(LOSS_MAP_FULL, 1);
		return 0;
	}
	__builtin_memcpy(&s->p, p, sizeof(*p));
	s->process = tgid;
	s->frame = frame;
	fill_header(&s->rec.h, bpf_ktime_get_ns(), REC_CAPTURE, ids, 0);
	s->rec.code = key.code;
	s->rec.thread_state = ts;
	s->rec.probe = key.probe;
	s->rec.took = took > ~0U ? ~0U : took;
	for (int i = 0; i < PY_WATCH_PLANS; i++) {
		if (i >= watch->count)
			break;
		s->rec.flags = probe->flags & ~PY_UNLOCKED;
		if (py_run(s, room, watch->plans[i]))
			break;
	}
	__sync_fetch_and_add(&probe->captured_ns, bpf_ktime_get_ns() - s->rec.h.ts);
	py_leave(s);
	return 0;
}
