//go:build ignore
/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Tap on the Python interpreter: at a C function that Python code calls, finds the
 * calling frame, counts the call by its code object, and reads objects by a plan
 * that the loader compiled.
 *
 * The thread that calls a C function holds the interpreter's lock, so nothing
 * changes while it is stopped here. Everything read is checked all the same: a
 * value that is not what the plan says is sent as missing, with the reason.
 *
 * Functions are global where that keeps the verifier's work low: it looks at them
 * once. They take scalars only (5.10), and find their state by the thread.
 */
#include "python.h"

/* A register holds a user address, or with the highest bit why there is none. */
#define PY_MISS(reason) (1ULL << 63 | (reason))
#define PY_IS_MISS(ref) ((__s64)(ref) < 0)

/* Frames of C code (Include/internal/pycore_frame.h, enum _frameowner, 3.12+). */
#define PY_OWNED_BY_C 3

/* Include/object.h: Py_TPFLAGS_*. */
#define PY_INLINE_VALUES (1ULL << 2)
#define PY_MANAGED_DICT (1ULL << 4)
#define PY_LONG_SUBCLASS (1ULL << 24)
#define PY_LIST_SUBCLASS (1ULL << 25)
#define PY_TUPLE_SUBCLASS (1ULL << 26)
#define PY_BYTES_SUBCLASS (1ULL << 27)
#define PY_UNICODE_SUBCLASS (1ULL << 28)
#define PY_DICT_SUBCLASS (1ULL << 29)

#define PY_OB_TYPE 8

/* Largest value: its head and a str. */
#define PY_VALUE_MAX (4 + PY_STR_MAX)

/* Iteration of a container. */
struct py_iter {
	__u64 base;   /* first entry */
	__u64 values; /* values of a split dict, 0: in the entries */
	__u64 head;   /* where the payload has the number of items */
	__u32 next, end;
	__u32 left; /* items that may still be sent */
	__u32 count;
	__u32 stride;
	__u32 key_at, value_at; /* in an entry */
	__u32 what;		/* py_op.c */
	__u32 slot_max;		/* slot, and the longest str << 8 */
	__u32 is_set;
};

/* State of one capture. */
struct py_state {
	struct py_process p;
	__u64 reg[PY_REGS];
	__u64 frame; /* innermost */
	__u64 pos;   /* bytes of the payload */
	__u64 seen;  /* frames of Python code passed */
	struct py_iter it;
	struct { /* head of a PyASCIIObject, from its length on */
		__u64 length, hash;
		__u32 state, pad;
	} str;
	__u64 text[PY_NAME_MAX / 8];
	__u64 identity[PY_IDENTITY];
	struct capture_rec rec;
	__u8 out[CHUNK_MAX];
};

/* Key: tgid in the agent's PID namespace. Set by the agent, which reports when
 * the map is full. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, struct py_process);
} py_processes SEC(".maps");

/* As py_processes. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct py_probe_key);
	__type(value, struct py_probe);
} py_probes SEC(".maps");

/* As py_processes. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2048);
	__type(key, struct py_code_key);
	__type(value, struct py_watch);
} py_watches SEC(".maps");

/* Key: the lower bits of a plan's number. A plan in use is never written to. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PY_PLANS);
	__type(key, __u32);
	__type(value, struct py_plan);
} py_plans SEC(".maps");

/* Calls by code object, 0 where the frame is not known. LRU: a process can call
 * from any number of code objects; the rarest are forgotten. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_PERCPU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct py_code_key);
	__type(value, __u64);
} py_hits SEC(".maps");

/* Key: thread (global tgid and tid). Value: room for its captures, made at the
 * first one and kept until the thread ends, since a capture in progress can be
 * preempted by one of another thread. When full, the capture is lost and
 * LOSS_MAP_FULL counted; in an engine one or two threads run the watched code. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u64);
	__type(value, struct py_state);
} py_states SEC(".maps");

/* What py_states begins with. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct py_state);
} py_empty SEC(".maps");

static __always_inline struct py_state *py_state(void)
{
	__u64 thread = bpf_get_current_pid_tgid();

	return bpf_map_lookup_elem(&py_states, &thread);
}

static __always_inline struct py_plan *py_plan_of(__u32 id)
{
	__u32 slot = id & (PY_PLANS - 1);

	return bpf_map_lookup_elem(&py_plans, &slot);
}

static __always_inline bool rd(__u64 *v, __u64 addr)
{
	return !bpf_probe_read_user(v, sizeof(*v), (void *)addr);
}

/* The reference at addr. */
static __always_inline __u64 rd_ref(__u64 addr)
{
	__u64 v;

	if (!rd(&v, addr))
		return PY_MISS(MISSING_FAULT);
	if (!v)
		return PY_MISS(MISSING_UNSET);
	return v > ~0ULL >> 1 ? PY_MISS(MISSING_BAD) : v;
}

/* Number of the running thread in its own PID namespace. */
static __always_inline __u32 own_tid(void)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct pid *pid = BPF_CORE_READ(task, thread_pid);
	__u64 level = BPF_CORE_READ(pid, level);
	struct upid *upid = (void *)pid + bpf_core_field_offset(pid->numbers) + level * bpf_core_type_size(struct upid);

	return BPF_CORE_READ(upid, nr);
}

/* Innermost frame of the running thread that is not of C code, 0 if unknown. */
static __always_inline __u64 py_top(const struct py_process *p, __u64 *ts)
{
	__u64 frame, native, at;

	if (!rd(ts, p->holder) || !*ts)
		return 0;
	at = *ts;
	/* The lock could be another thread's, were the function called without it. */
	if (p->thread_native >= 0 && (!rd(&native, at + p->thread_native) || native != own_tid()))
		return 0;
	if (p->thread_cframe >= 0 && !rd(&at, at + p->thread_cframe))
		return 0;
	if (!rd(&frame, at + p->thread_frame))
		return 0;
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

/* Room for a value of len bytes, its head filled in; null if there is none. */
static __always_inline __u8 *put(struct py_state *s, __u64 tag, __u64 slot, __u64 len)
{
	__u64 pos = s->pos;

	asm volatile("" : "+r"(pos));
	if (pos > CHUNK_MAX - PY_VALUE_MAX) {
		s->rec.flags |= CAPTURE_CUT;
		return 0;
	}
	s->pos = pos + 4 + len;
	*(__u32 *)(s->out + pos) = tag | slot << 8 | len << 16;
	return s->out + pos + 4;
}

static __always_inline int put_missing(struct py_state *s, __u64 slot, __u64 why)
{
	__u8 *to = put(s, CAPTURE_MISSING, slot, 1);

	if (to)
		*to = why;
	return 0;
}

static __always_inline int put_word(struct py_state *s, __u64 tag, __u64 slot, __u64 v)
{
	__u8 *to = put(s, tag, slot, 8);

	if (to)
		*(__u64 *)to = v;
	return 0;
}

/* Whether a class is another one or derives from it in a way that keeps the layout. */
static __always_inline bool py_derives(const struct py_process *p, __u64 type, __u64 from)
{
	for (int i = 0; i < PY_BASES; i++) {
		if (type == from)
			return from != 0;
		if (!type || !rd(&type, type + p->type_base))
			return false;
	}
	return false;
}

/* As py_derives, for the four types that captures know besides those with a flag. */
__noinline int py_is(__u64 type, __u64 which)
{
	struct py_state *s = py_state();

	if (!s)
		return 0;
	switch (which) {
	case 0:
		return py_derives(&s->p, type, s->p.float_type);
	case 1:
		return py_derives(&s->p, type, s->p.deque_type);
	}
	return py_derives(&s->p, type, s->p.set_type) || py_derives(&s->p, type, s->p.frozenset_type);
}
#define PY_IS_FLOAT(type) py_is(type, 0)
#define PY_IS_DEQUE(type) py_is(type, 1)
#define PY_IS_SET(type) py_is(type, 2)

static __always_inline int put_int(struct py_state *s, __u64 slot, __u64 obj)
{
	struct {
		__u64 size;
		__u32 digit[3];
	} v = {};
	__u64 n, u = 0;
	bool neg;

	/* One digit is always there, and mostly is all. */
	if (bpf_probe_read_user(&v.size, 8, (void *)(obj + s->p.var_size)) ||
	    bpf_probe_read_user(v.digit, 4, (void *)(obj + s->p.long_digits)))
		return put_missing(s, slot, MISSING_FAULT);
	if (s->p.long_tag >= 0) {
		neg = (v.size & 3) == 2;
		n = v.size >> 3;
		if ((v.size & 3) == 3)
			return put_missing(s, slot, MISSING_BAD);
	} else {
		neg = (__s64)v.size < 0;
		n = neg ? -v.size : v.size;
	}
	if (n > 3)
		return put_missing(s, slot, MISSING_LIMIT);
	if (!n)
		v.digit[0] = 0;
	if (n > 1 && bpf_probe_read_user(v.digit, n == 2 ? 8 : 12, (void *)(obj + s->p.long_digits)))
		return put_missing(s, slot, MISSING_FAULT);
	if (v.digit[0] >> 30 || v.digit[1] >> 30 || v.digit[2] >> 30)
		return put_missing(s, slot, MISSING_BAD);
	if (v.digit[2] >> 3) /* 63 bits, and so not the least of all s64 */
		return put_missing(s, slot, MISSING_LIMIT);
	u = v.digit[0] | (__u64)v.digit[1] << 30 | (__u64)v.digit[2] << 60;
	return put_word(s, CAPTURE_INT, slot, neg ? -u : u);
}

static __always_inline int put_str(struct py_state *s, __u64 slot, __u64 obj, __u64 max)
{
	__u64 pos = s->pos, length, n, data, state = 0, kind;

	if (!rd(&length, obj + s->p.str_length) ||
	    bpf_probe_read_user(&state, 4, (void *)(obj + s->p.str_state)))
		return put_missing(s, slot, MISSING_FAULT);
	kind = state >> (s->p.str_kind_shift & 31) & 7;
	if ((kind != 1 && kind != 2 && kind != 4) || (s->p.str_ready_mask && !(state & s->p.str_ready_mask)))
		return put_missing(s, slot, MISSING_BAD);
	if (length > PY_STR_MAX || length * kind > max)
		return put_missing(s, slot, MISSING_LIMIT);
	if (!(state & s->p.str_compact_mask)) {
		data = rd_ref(obj + s->p.str_data);
		if (PY_IS_MISS(data))
			return put_missing(s, slot, MISSING_FAULT);
	} else {
		data = obj + (state & s->p.str_ascii_mask ? s->p.str_ascii : s->p.str_compact);
	}
	n = clamp_to(length * kind, PY_STR_MAX);
	asm volatile("" : "+r"(pos));
	if (pos > CHUNK_MAX - PY_VALUE_MAX) {
		s->rec.flags |= CAPTURE_CUT;
		return 0;
	}
	if (bpf_probe_read_user(s->out + pos + 4, n, (void *)data))
		return put_missing(s, slot, MISSING_FAULT);
	put(s, kind == 1 ? CAPTURE_STR1 : kind == 2 ? CAPTURE_STR2 : CAPTURE_STR4, slot, n);
	return 0;
}

/* Sends the value of an object. slot_max is the slot and the longest str << 8. */
__noinline int py_value(__u64 obj, __u64 slot_max)
{
	struct py_state *s = py_state();
	__u64 slot = slot_max & 0xff, type, flags;
	__u8 *to;

	if (!s)
		return 0;
	if (PY_IS_MISS(obj))
		return put_missing(s, slot, obj & 0xff);
	if (obj == s->p.none) {
		put(s, CAPTURE_NONE, slot, 0);
		return 0;
	}
	if (obj == s->p.yes || obj == s->p.no) {
		to = put(s, CAPTURE_BOOL, slot, 1);
		if (to)
			*to = obj == s->p.yes;
		return 0;
	}
	if (!rd(&type, obj + PY_OB_TYPE) || !rd(&flags, type + s->p.type_flags))
		return put_missing(s, slot, MISSING_FAULT);
	if (flags & PY_LONG_SUBCLASS)
		return put_int(s, slot, obj);
	if (flags & PY_UNICODE_SUBCLASS)
		return put_str(s, slot, obj, slot_max >> 8);
	if (PY_IS_FLOAT(type)) {
		__u64 v;

		if (!rd(&v, obj + s->p.float_value))
			return put_missing(s, slot, MISSING_FAULT);
		return put_word(s, CAPTURE_FLOAT, slot, v);
	}
	return put_missing(s, slot, MISSING_TYPE);
}

static __always_inline const struct py_name *py_name_of(__u64 plan_name)
{
	struct py_plan *plan = py_plan_of(plan_name >> 32);

	return plan ? &plan->names[clamp_to(plan_name & 0xff, PY_NAMES - 1)] : 0;
}

/* Whether the key of an entry is the str of a name. */
__noinline int py_same(__u64 key, __u64 plan_name)
{
	struct py_state *s = py_state();
	const struct py_name *name = py_name_of(plan_name);
	__u64 n;

	if (!s || !name)
		return 0;
	/* PyASCIIObject since 3.3: length, hash, state; checked by the loader. */
	if (bpf_probe_read_user(&s->str, 20, (void *)(key + s->p.str_length)))
		return 0;
	if (s->str.hash != name->hash || s->str.length != name->len || !(s->str.state & s->p.str_ascii_mask) ||
	    !(s->str.state & s->p.str_compact_mask))
		return 0;
	n = clamp_to(name->len, PY_NAME_MAX);
	if (bpf_probe_read_user(s->text, n, (void *)(key + s->p.str_ascii)))
		return 0;
	for (__u64 i = 0; i < PY_NAME_MAX / 8; i++) {
		__u64 left = n - 8 * i, mask = ~0ULL;

		if (8 * i >= n)
			break;
		if (left < 8)
			mask = (1ULL << (8 * (left & 7))) - 1;
		if ((s->text[i] ^ name->text[i]) & mask)
			return 0;
	}
	return 1;
}

/*
 * The value under a name: in the table of keys at addr, with the values in it, or
 * beside it from values on, limit of them. plan_name is the plan's number << 32
 * and the name's index.
 */
__noinline __u64 py_find(__u64 addr, __u64 values, __u64 limit, __u64 plan_name)
{
	struct py_state *s = py_state();
	const struct py_name *name = py_name_of(plan_name);
	__u64 size, n = 0, i, mask, perturb, indices, entries;
	__u64 stride = 24, key_at = 8, value_at = 16;
	__u32 shift;

	if (!s || !name)
		return PY_MISS(MISSING_BAD);
	if (!rd(&n, addr + s->p.keys_entries))
		return PY_MISS(MISSING_FAULT);
	indices = addr + s->p.keys_indices;
	if (s->p.keys_log2 >= 0) {
		__u8 head[4]; /* log2 of the size, of the indices in bytes, kind */

		if (bpf_probe_read_user(head, sizeof(head), (void *)(addr + s->p.keys_log2)))
			return PY_MISS(MISSING_FAULT);
		if (head[0] > 40 || head[1] > 44)
			return PY_MISS(MISSING_BAD);
		size = 1ULL << (head[0] & 63);
		entries = indices + (1ULL << (head[1] & 63));
		shift = head[0] < 8 ? 0 : head[0] < 16 ? 1 : head[0] < 32 ? 2 : 3;
		if (head[2]) {
			stride = 16;
			key_at = 0;
			value_at = 8;
		}
	} else {
		if (!rd(&size, addr + s->p.keys_size))
			return PY_MISS(MISSING_FAULT);
		if (!size || size & (size - 1) || size >> 40)
			return PY_MISS(MISSING_BAD);
		shift = size <= 0xff ? 0 : size <= 0xffff ? 1 : size <= 0xffffffff ? 2 : 3;
		entries = indices + (size << shift);
	}
	mask = size - 1;
	perturb = name->hash;
	i = perturb & mask;
	/* Objects/dictobject.c, lookdict. */
	for (int probe = 0; probe < PY_PROBES; probe++) {
		__s64 at = 0;
		__u64 key;

		if (bpf_probe_read_user(&at, 1ULL << (shift & 3), (void *)(indices + (i << (shift & 3)))))
			return PY_MISS(MISSING_FAULT);
		if (shift == 0)
			at = (__s8)at;
		else if (shift == 1)
			at = (__s64)(__s16)at;
		else if (shift == 2)
			at = (__s64)(__s32)at;
		if (at == -1) /* never used: the end */
			return PY_MISS(MISSING_NAME);
		if (at >= 0) {
			if (at >= n)
				return PY_MISS(MISSING_BAD);
			if (!rd(&key, entries + at * stride + key_at))
				return PY_MISS(MISSING_FAULT);
			if (key && py_same(key, plan_name)) {
				if (!values)
					return rd_ref(entries + at * stride + value_at);
				return at < limit ? rd_ref(values + 8 * at) : PY_MISS(MISSING_UNSET);
			}
		}
		perturb >>= 5;
		i = (i * 5 + perturb + 1) & mask;
	}
	return PY_MISS(MISSING_LIMIT);
}

/* Where a dict has its keys, and its values if they are elsewhere. */
static __always_inline __u64 py_dict(const struct py_process *p, __u64 dict, __u64 *values)
{
	struct {
		__u64 keys, values;
	} d;

	if (bpf_probe_read_user(&d, sizeof(d), (void *)(dict + p->dict_keys)))
		return PY_MISS(MISSING_FAULT);
	*values = d.values ? d.values + p->values_start : 0;
	return d.keys;
}

static __always_inline bool py_has_flag(const struct py_process *p, __u64 obj, __u64 flag)
{
	__u64 type, flags;

	return rd(&type, obj + PY_OB_TYPE) && rd(&flags, type + p->type_flags) && flags & flag;
}

/* The value of a dict under a name. */
__noinline __u64 py_key(__u64 dict, __u64 plan_name)
{
	struct py_state *s = py_state();
	__u64 keys, values;

	if (!s)
		return PY_MISS(MISSING_BAD);
	if (PY_IS_MISS(dict))
		return dict;
	if (!py_has_flag(&s->p, dict, PY_DICT_SUBCLASS))
		return PY_MISS(MISSING_TYPE);
	keys = py_dict(&s->p, dict, &values);
	if (PY_IS_MISS(keys))
		return keys;
	return py_find(keys, values, 1 << 16, plan_name);
}

/* The attribute of an object that it has in a slot or in its dict, whatever form
 * that has; the form can differ between instances of one class. */
__noinline __u64 py_attr(__u64 obj, __u64 plan_name)
{
	struct py_state *s = py_state();
	const struct py_name *name = py_name_of(plan_name);
	__u64 type, flags, keys, values = 0, dict = 0, limit = 1 << 16, v;

	if (!s || !name)
		return PY_MISS(MISSING_BAD);
	if (PY_IS_MISS(obj))
		return obj;
	if (!rd(&type, obj + PY_OB_TYPE) || !rd(&flags, type + s->p.type_flags))
		return PY_MISS(MISSING_FAULT);
	if (name->slot_class && py_derives(&s->p, type, name->slot_class)) {
		if (!rd(&v, name->slot_class + s->p.type_name) || v != name->slot_name)
			return PY_MISS(MISSING_STALE);
		return rd_ref(obj + name->slot);
	}
	if (s->p.form == PY_FORM_DICT || !(flags & PY_MANAGED_DICT)) {
		__s64 off;

		if (!rd((__u64 *)&off, type + s->p.type_dictoffset))
			return PY_MISS(MISSING_FAULT);
		if (off <= 0 || off > 1 << 20) /* below 0: from the end of an object of variable size */
			return PY_MISS(off ? MISSING_BAD : MISSING_NAME);
		dict = rd_ref(obj + off);
	} else if (s->p.form == PY_FORM_POINTERS) {
		if (!rd(&values, obj - 32))
			return PY_MISS(MISSING_FAULT);
		if (!values)
			dict = rd_ref(obj - 24);
	} else if (s->p.form == PY_FORM_TAGGED) {
		dict = rd_ref(obj - 24);
		if (!PY_IS_MISS(dict) && dict & 1) {
			values = dict + 1;
			dict = 0;
		}
	} else {
		if (flags & PY_INLINE_VALUES) {
			if (!rd(&values, type + s->p.type_basicsize) || values > 1 << 20)
				return PY_MISS(MISSING_FAULT);
			values += obj;
			if (!rd(&v, values))
				return PY_MISS(MISSING_FAULT);
			if ((v >> (8 * (s->p.values_valid & 7)) & 0xff) == 1)
				limit = v >> (8 * (s->p.values_capacity & 7)) & 0xff;
			else
				values = 0;
		}
		if (!values)
			dict = rd_ref(obj - 24);
	}
	if (values) {
		values += s->p.values_start;
		keys = rd_ref(type + s->p.heap_keys);
	} else {
		if (PY_IS_MISS(dict)) /* no attribute was ever set */
			return dict == PY_MISS(MISSING_UNSET) ? PY_MISS(MISSING_NAME) : dict;
		if (!py_has_flag(&s->p, dict, PY_DICT_SUBCLASS))
			return PY_MISS(MISSING_BAD);
		keys = py_dict(&s->p, dict, &values);
	}
	if (PY_IS_MISS(keys))
		return keys;
	return py_find(keys, values, limit, plan_name);
}

/* Frame of codes[index] among the depth innermost. */
__noinline __u64 py_frame(__u32 id, __u64 index, __u64 depth)
{
	struct py_state *s = py_state();
	struct py_plan *plan = py_plan_of(id);
	__u64 frame, code;
	struct py_code *want;

	if (!s || !plan)
		return PY_MISS(MISSING_BAD);
	want = &plan->codes[clamp_to(index, PY_CODES - 1)];
	frame = s->frame;
	s->seen = 0; /* here, where the verifier does not follow each count */
	for (int i = 0; i < PY_FRAMES; i++) {
		__u8 owner = 0;

		if (!frame || s->seen >= depth)
			break;
		if (!rd(&code, frame + s->p.frame_code))
			return PY_MISS(MISSING_FAULT);
		if ((code & s->p.ref_mask) == want->addr) {
			if (bpf_probe_read_user(s->identity, sizeof(s->identity), (void *)(want->addr + s->p.code_identity)))
				return PY_MISS(MISSING_FAULT);
			for (int j = 0; j < PY_IDENTITY; j++)
				if (s->identity[j] != want->identity[j])
					return PY_MISS(MISSING_STALE);
			return frame;
		}
		if (s->p.frame_owner >= 0 && bpf_probe_read_user(&owner, 1, (void *)(frame + s->p.frame_owner)))
			return PY_MISS(MISSING_FAULT);
		if (owner < PY_OWNED_BY_C)
			s->seen++;
		if (!rd(&frame, frame + s->p.frame_previous))
			return PY_MISS(MISSING_FAULT);
	}
	return PY_MISS(MISSING_FRAME);
}

static __always_inline __u64 py_local(struct py_state *s, __u64 frame, __u64 index, bool cell)
{
	__u64 v, type;

	if (PY_IS_MISS(frame))
		return frame;
	if (!rd(&v, frame + s->p.frame_locals + 8 * index))
		return PY_MISS(MISSING_FAULT);
	v &= s->p.ref_mask;
	if (!v)
		return PY_MISS(MISSING_UNSET);
	if (cell) {
		if (!rd(&type, v + PY_OB_TYPE))
			return PY_MISS(MISSING_FAULT);
		if (type == s->p.cell_type)
			return rd_ref(v + s->p.cell_ref);
	}
	return v;
}

/* Address of the references of a list or tuple, and how many there are. */
static __always_inline __u64 py_sequence(struct py_state *s, __u64 obj, __u64 *n)
{
	__u64 type, flags;

	if (!rd(&type, obj + PY_OB_TYPE) || !rd(&flags, type + s->p.type_flags) || !rd(n, obj + s->p.var_size))
		return PY_MISS(MISSING_FAULT);
	if (flags & PY_LIST_SUBCLASS)
		return *n ? rd_ref(obj + s->p.list_items) : 0;
	return flags & PY_TUPLE_SUBCLASS ? obj + s->p.tuple_items : PY_MISS(MISSING_TYPE);
}

static __always_inline __u64 py_index(struct py_state *s, __u64 obj, __u64 i)
{
	__u64 n, items;

	if (PY_IS_MISS(obj))
		return obj;
	items = py_sequence(s, obj, &n);
	if (PY_IS_MISS(items))
		return items;
	return i < n ? rd_ref(items + 8 * i) : PY_MISS(MISSING_NAME);
}

static __always_inline int put_len(struct py_state *s, __u64 slot, __u64 obj)
{
	__u64 type, flags, n;
	__s64 at = s->p.var_size;

	if (PY_IS_MISS(obj))
		return put_missing(s, slot, obj & 0xff);
	if (!rd(&type, obj + PY_OB_TYPE) || !rd(&flags, type + s->p.type_flags))
		return put_missing(s, slot, MISSING_FAULT);
	if (flags & PY_DICT_SUBCLASS)
		at = s->p.dict_used;
	else if (flags & PY_UNICODE_SUBCLASS)
		at = s->p.str_length;
	else if (flags & (PY_LIST_SUBCLASS | PY_TUPLE_SUBCLASS | PY_BYTES_SUBCLASS) || PY_IS_DEQUE(type))
		;
	else if (PY_IS_SET(type))
		at = s->p.set_used;
	else
		return put_missing(s, slot, MISSING_TYPE);
	if (!rd(&n, obj + at))
		return put_missing(s, slot, MISSING_FAULT);
	if (n >> 48)
		return put_missing(s, slot, MISSING_BAD);
	return put_word(s, CAPTURE_INT, slot, n);
}

/* Finds the entries of a container. Returns how many items it says it has, or why not. */
static __always_inline __u64 py_begin(struct py_state *s, __u64 obj)
{
	struct py_iter *it = &s->it;
	__u64 type, flags, n, total;

	if (!rd(&type, obj + PY_OB_TYPE) || !rd(&flags, type + s->p.type_flags))
		return PY_MISS(MISSING_FAULT);
	it->values = 0;
	it->next = 0;
	it->count = 0;
	it->is_set = 0;
	it->stride = 8;
	it->key_at = 0;
	it->value_at = 0;
	if (flags & PY_DICT_SUBCLASS) {
		__u64 keys = py_dict(&s->p, obj, &it->values);

		if (PY_IS_MISS(keys) || !rd(&n, keys + s->p.keys_entries) || !rd(&total, obj + s->p.dict_used))
			return PY_MISS(MISSING_FAULT);
		it->stride = 24;
		it->key_at = 8;
		it->value_at = 16;
		it->base = keys + s->p.keys_indices;
		if (s->p.keys_log2 >= 0) {
			__u8 head[4];

			if (bpf_probe_read_user(head, sizeof(head), (void *)(keys + s->p.keys_log2)))
				return PY_MISS(MISSING_FAULT);
			if (head[1] > 44)
				return PY_MISS(MISSING_BAD);
			it->base += 1ULL << (head[1] & 63);
			if (head[2]) {
				it->stride = 16;
				it->key_at = 0;
				it->value_at = 8;
			}
		} else {
			__u64 size;

			if (!rd(&size, keys + s->p.keys_size))
				return PY_MISS(MISSING_FAULT);
			if (!size || size & (size - 1) || size >> 40)
				return PY_MISS(MISSING_BAD);
			it->base += size << (size <= 0xff ? 0 : size <= 0xffff ? 1 : size <= 0xffffffff ? 2 : 3);
		}
	} else if (flags & (PY_LIST_SUBCLASS | PY_TUPLE_SUBCLASS)) {
		it->base = py_sequence(s, obj, &n);
		if (PY_IS_MISS(it->base))
			return it->base;
		total = n;
	} else if (PY_IS_SET(type)) {
		it->base = rd_ref(obj + s->p.set_table);
		if (PY_IS_MISS(it->base) || !rd(&n, obj + s->p.set_mask) || !rd(&total, obj + s->p.set_used))
			return PY_MISS(MISSING_FAULT);
		n++;
		it->is_set = 1;
		it->stride = 16;
	} else {
		return PY_MISS(MISSING_TYPE);
	}
	if (n >> 31 || total > n)
		return PY_MISS(MISSING_BAD);
	it->end = n;
	return total;
}

/* Sends the items of the next PY_ITEM_CHUNK entries; 0 at the end. */
__noinline int py_items(__u32 plan)
{
	struct py_state *s = py_state();
	__u64 names = (__u64)plan << 32, head;

	if (!s)
		return 0;
	head = s->it.head;
	for (int i = 0; i < PY_ITEM_CHUNK; i++) {
		__u64 start = s->pos, entry, key, value;
		struct py_iter *it = &s->it;
		__u64 n = it->next, what = it->what;

		if (n >= it->end || !it->left)
			return 0;
		it->next = n + 1;
		entry = it->base + n * it->stride;
		key = rd_ref(entry + it->key_at);
		value = it->values ? rd_ref(it->values + 8 * n) : rd_ref(entry + it->value_at);
		/* Entries of a dict or set may be empty; those of a list may not. */
		if (it->stride != 8 && (key == PY_MISS(MISSING_UNSET) || value == PY_MISS(MISSING_UNSET)))
			continue;
		if (it->is_set) {
			__u64 hash;

			if (!rd(&hash, entry + 8))
				value = PY_MISS(MISSING_FAULT);
			else if (hash == ~0ULL) /* deleted */
				continue;
		}
		if (what & PY_ITEM_KEY)
			py_value(key, it->slot_max);
		if (what & PY_ITEM_VALUE)
			py_value(value, it->slot_max);
		if (what & PY_ITEM_ATTRS) {
			py_value(py_attr(value, names | (what >> 8 & 0xff)), it->slot_max);
			if ((what >> 16 & 0xff) != 0xff)
				py_value(py_attr(value, names | (what >> 16 & 0xff)), it->slot_max);
		}
		if (s->rec.flags & CAPTURE_CUT) {
			s->pos = start;
			return 0;
		}
		it->left--;
		asm volatile("" : "+r"(head));
		if (head > CHUNK_MAX - PY_VALUE_MAX)
			return 0;
		*(__u32 *)(s->out + head) = ++it->count;
	}
	return 1;
}

/* Sends the head of the items; 1 if items are to follow. */
static __always_inline int put_items(struct py_state *s, struct py_op *op, __u64 obj)
{
	__u64 total;
	__u32 *to;

	if (PY_IS_MISS(obj))
		return put_missing(s, op->slot, obj & 0xff);
	total = py_begin(s, obj);
	if (PY_IS_MISS(total))
		return put_missing(s, op->slot, total & 0xff);
	s->it.head = s->pos + 4;
	to = (__u32 *)put(s, CAPTURE_ITEMS, op->slot, 12);
	if (!to)
		return 0;
	to[0] = 0;
	to[1] = total;
	to[2] = !!(op->c & PY_ITEM_KEY) + !!(op->c & PY_ITEM_VALUE) +
		(op->c & PY_ITEM_ATTRS ? 1 + ((op->c >> 16 & 0xff) != 0xff) : 0);
	s->it.left = op->a;
	s->it.what = op->c;
	s->it.slot_max = op->slot | op->b << 8;
	return 1;
}

/* Runs one op of a plan; 1 if items are to be sent before the next. */
__noinline int py_step(__u32 id, __u64 pc)
{
	struct py_state *s = py_state();
	struct py_plan *plan = py_plan_of(id);
	__u64 name = (__u64)id << 32, ref, v;
	struct py_op *op;

	if (!s || !plan)
		return 0;
	op = &plan->ops[clamp_to(pc, PY_OPS - 1)];
	ref = s->reg[op->src & (PY_REGS - 1)];
	name |= op->a & 0xff;
	switch (op->code) {
	case PY_FRAME:
		v = py_frame(id, op->a, op->b);
		break;
	case PY_LOCAL:
		v = py_local(s, ref, op->a, op->b);
		break;
	case PY_ATTR:
		v = py_attr(ref, name);
		break;
	case PY_INDEX:
		v = py_index(s, ref, op->a);
		break;
	case PY_KEY:
		v = py_key(ref, name);
		break;
	case PY_VALUE:
		s->rec.values++;
		return py_value(ref, op->slot | op->a << 8);
	case PY_LEN:
		s->rec.values++;
		return put_len(s, op->slot, ref);
	case PY_ADDR:
		s->rec.values++;
		return PY_IS_MISS(ref) ? put_missing(s, op->slot, ref & 0xff) :
					 put_word(s, CAPTURE_ADDR, op->slot, ref);
	case PY_ITEMS:
		s->rec.values++;
		return put_items(s, op, ref);
	default:
		return 0;
	}
	s->reg[op->dst & (PY_REGS - 1)] = v;
	return 0;
}

/* Runs a plan; false if it does not apply. */
static __always_inline bool py_run(struct py_state *s, __u32 id)
{
	struct py_plan *plan = py_plan_of(id);
	__u64 ops, size, before, wake, pc = 0, more = 0;

	if (!plan)
		return false;
	s->reg[0] = py_frame(id, 0, plan->depth);
	if (s->reg[0] == PY_MISS(MISSING_FRAME))
		return false;
	s->rec.plan = id;
	s->rec.values = 0;
	s->pos = 0;
	ops = plan->ops_count;
	for (int i = 0; i < PY_STEPS; i++) {
		if (more)
			more = py_items(id);
		else if (pc >= ops)
			break;
		else
			more = py_step(id, pc++);
	}
	if (more || pc < ops)
		s->rec.flags |= CAPTURE_CUT;
	size = clamp_to(s->pos, CHUNK_MAX);
	s->rec.h.len = size;
	before = bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA);
	size += sizeof(s->rec);
	wake = (before + size) >> wake_shift != before >> wake_shift ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
	if (bpf_ringbuf_output(&ring, &s->rec, size, wake))
		lose(LOSS_RING_FULL, 1);
	return true;
}

static __always_inline struct py_state *py_state_new(void)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct py_state *s = bpf_map_lookup_elem(&py_states, &thread), *empty;
	__u32 zero = 0;

	if (s)
		return s;
	empty = bpf_map_lookup_elem(&py_empty, &zero);
	if (empty)
		bpf_map_update_elem(&py_states, &thread, empty, BPF_NOEXIST);
	return bpf_map_lookup_elem(&py_states, &thread);
}

SEC("uprobe/python")
int BPF_KPROBE(py_hit)
{
	__u64 ids = current_ids(), ts = 0, now, *count;
	__u32 tgid = ids >> 32;
	struct py_probe_key at = {.ip = PT_REGS_IP(ctx), .tgid = tgid};
	struct py_probe *probe = bpf_map_lookup_elem(&py_probes, &at);
	struct py_process *p = bpf_map_lookup_elem(&py_processes, &tgid);
	struct py_code_key key = {.tgid = tgid};
	struct py_watch *watch;
	struct py_state *s;
	__u64 frame;

	if (!probe || !p)
		return 0;
	now = bpf_ktime_get_ns();
	__sync_fetch_and_add(&probe->hits, 1);
	key.probe = probe->id;
	frame = py_top(p, &ts);
	if (frame && rd(&key.code, frame + p->frame_code))
		key.code &= p->ref_mask;
	count = bpf_map_lookup_elem(&py_hits, &key);
	if (count) {
		__sync_fetch_and_add(count, 1);
	} else {
		__u64 one = 1;

		bpf_map_update_elem(&py_hits, &key, &one, BPF_ANY);
	}
	if (!key.code)
		return 0;
	watch = bpf_map_lookup_elem(&py_watches, &key);
	if (!watch)
		return 0;
	s = py_state_new();
	if (!s) {
		lose(LOSS_MAP_FULL, 1);
		return 0;
	}
	__builtin_memcpy(&s->p, p, sizeof(*p));
	s->frame = frame;
	fill_header(&s->rec.h, now, REC_CAPTURE, ids, 0);
	s->rec.code = key.code;
	s->rec.thread_state = ts;
	s->rec.probe = key.probe;
	for (int i = 0; i < PY_WATCH_PLANS; i++) {
		if (i >= watch->count)
			break;
		s->rec.flags = probe->flags;
		if (py_run(s, watch->plans[i]))
			break;
	}
	return 0;
}
