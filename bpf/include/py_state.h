/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * State of the tap on the Python interpreter: its maps, and the first steps to a
 * thread's objects.
 */
#pragma once

#include "python.h"

/* A register holds a user address, or with the highest bit why there is none. */
#define PY_MISS(reason) (1ULL << 63 | (reason))
#define PY_IS_MISS(ref) ((__s64)(ref) < 0)

/* Frames of C code (Include/internal/pycore_frame.h, enum _frameowner, 3.12+). */
#define PY_OWNED_BY_C 3

/* Include/object.h: Py_TPFLAGS_*. */
#define PY_INLINE_VALUES    (1ULL << 2)
#define PY_MANAGED_DICT     (1ULL << 4)
#define PY_LONG_SUBCLASS    (1ULL << 24)
#define PY_LIST_SUBCLASS    (1ULL << 25)
#define PY_TUPLE_SUBCLASS   (1ULL << 26)
#define PY_BYTES_SUBCLASS   (1ULL << 27)
#define PY_UNICODE_SUBCLASS (1ULL << 28)
#define PY_DICT_SUBCLASS    (1ULL << 29)

#define PY_OB_TYPE 8

/* A deque: its first block, and where in that its first element is; elements of a block. */
#define PY_DEQUE_LEFT  24
#define PY_DEQUE_INDEX 40
#define PY_DEQUE_BLOCK 64

/* Bytes of a str that are read with its head: ids are often 32. */
#define PY_SHORT 40

/* Largest value: its head and a str. */
#define PY_VALUE_MAX (4 + PY_STR_MAX)

/*
 * Head of a table of keys, PyDictKeysObject: before 3.11 {refcnt, size, lookup,
 * usable, entries}, since then {refcnt, log2 of the size, log2 of the indices'
 * bytes and kind, usable, entries}. The loader checks that.
 */
struct py_keys {
	__u64 refcnt;
	union {
		__u64 size;
		__u8 log2[8];
	};
	__u64 word2, word3, word4;
};

/* A table of keys with where its values are. */
struct py_table {
	__u64 indices, entries;
	__u64 values; /* of a split dict, 0: in the entries */
	__u64 mask;
	__u64 used;  /* entries */
	__u64 limit; /* values that there is room for */
	__u32 shift; /* log2 of the size of an index */
	__u32 words; /* of an entry: {hash, key, value}, or {key, value} */
};

/* Where the object in a register has its attributes. */
struct py_store {
	__u64 obj;
	__u64 miss; /* or why it has none */
	/* Of a class with a version whose objects have their values in an array: the class
	 * and that. The table of keys is looked at when it is needed, and type is 0 then. */
	__u64 type;
	__u64 version;
	struct py_table t;
};

#define PY_ENTRY_WORDS (PY_ITEM_CHUNK * 3)

/* Iteration of a container. */
struct py_iter {
	__u64 base;   /* first entry */
	__u64 values; /* as in py_table */
	__u64 head;   /* where the payload has the number of items */
	__u32 next, end;
	__u32 left; /* items that may still be sent */
	__u32 count;
	__u32 words;            /* of an entry */
	__u32 key_at, value_at; /* word in an entry */
	__u32 what;             /* py_op.c */
	__u32 slot_max;         /* slot, and the longest str << 8 */
	__u32 is_set;
	__u32 body, body_end; /* ops that are run for each item */
	__u32 total;
	__u32 pad;
};

/* Flags of a class that was looked at. */
struct py_seen {
	__u64 run; /* capture in which that was: nothing changes during one */
	__u64 type, flags;
	__u32 process, version; /* the flags are those of this version, of any capture; 0: none */
};

#define PY_SEEN 16 /* a power of two */

/* State of one capture. */
struct py_state {
	__u64 busy; /* programs that want this room */
	struct py_process p;
	__u64 reg[PY_REGS];
	struct py_store store[PY_REGS];
	__u64 frame;   /* innermost */
	__u64 pos;     /* bytes of the payload */
	__u64 pc;      /* next op */
	__u64 seen;    /* frames of Python code passed */
	__u64 run;     /* counts captures */
	__u32 process; /* whose interpreter it is */
	__u32 pad;
	struct py_iter it;
	__u64 entries[PY_ENTRY_WORDS]; /* of a container, some read at a time */
	struct py_seen seen_types[PY_SEEN];
	/* What was read last of each, here rather than on the stack. */
	struct { /* before an object and its beginning: values are only there in 3.11 */
		__u64 values, dict, gc[2], refcnt, type;
	} head;
	__u64 dict[6]; /* PyDictObject */
	struct py_keys keys;
	struct {
		__u64 key, value;
	} entry;
	struct { /* PyASCIIObject from the length on; checked by the loader */
		__u64 length, hash;
		__u32 state, pad;
	} str;
	__u64 value_of; /* whose value this is, 0 if there was none in this capture */
	struct {        /* a value from its type on, with the text of a short str */
		__u64 type, size;
		union {
			__u64 hash;
			__u32 digit;
		};
		__u32 state, pad;
		__u64 text[PY_SHORT / 8];
	} value;
	__u64 identity[PY_IDENTITY];
	struct capture_rec rec;
	__u8 out[CHUNK_MAX];
};

/* Interpreters; py_probe tells which is whose. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PY_PROCESSES);
	__type(key, __u32);
	__type(value, struct py_process);
} py_processes SEC(".maps");

/* Set by the agent, which reports when the map is full. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct py_probe_key);
	__type(value, struct py_probe);
} py_probes SEC(".maps");

/* Key: the lower bits of a plan's number. A plan in use is written to by the program only. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PY_PLANS);
	__type(key, __u32);
	__type(value, struct py_plan);
} py_plans SEC(".maps");

/* Calls by code object, 0 where the frame is not known, of those that have no place in
 * their probe. LRU: a process can call from any number of code objects; the rarest are
 * forgotten. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_PERCPU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct py_code_key);
	__type(value, __u64);
} py_hits SEC(".maps");

/*
 * Rooms for captures in progress, PY_CPU_ROOMS for each CPU: a program can be
 * preempted by one of another thread, but does not change its CPU. The loader sets
 * the size. When a CPU's rooms are taken, the capture is lost and LOSS_MAP_FULL
 * counted.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PY_CPU_ROOMS);
	__type(key, __u32);
	__type(value, struct py_state);
} py_states SEC(".maps");

static __always_inline struct py_state *py_state(__u32 room)
{
	return bpf_map_lookup_elem(&py_states, &room);
}

/*
 * Takes a room of this CPU, ~0 if there is none. Who finds itself alone after adding
 * itself has it: a later one sees two, in whatever order they are preempted.
 */
static __always_inline __u32 py_enter(void)
{
	__u32 room = bpf_get_smp_processor_id() * PY_CPU_ROOMS;

#pragma unroll
	for (int i = 0; i < PY_CPU_ROOMS; i++, room++) {
		struct py_state *s = py_state(room);

		if (!s)
			break;
		__sync_fetch_and_add(&s->busy, 1);
		if (*(volatile __u64 *)&s->busy == 1)
			return room;
		__sync_fetch_and_add(&s->busy, -1);
	}
	return ~0;
}

static __always_inline void py_leave(struct py_state *s)
{
	__sync_fetch_and_add(&s->busy, -1);
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

/* A reference that was read. */
static __always_inline __u64 py_ref(__u64 v)
{
	if (!v)
		return PY_MISS(MISSING_UNSET);
	return PY_IS_MISS(v) ? PY_MISS(MISSING_BAD) : v;
}

/* The reference at addr. */
static __always_inline __u64 rd_ref(__u64 addr)
{
	__u64 v;

	return rd(&v, addr) ? py_ref(v) : PY_MISS(MISSING_FAULT);
}

/* Number of the running thread in its own PID namespace. */
static __always_inline __u32 own_tid(void)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct pid *pid = BPF_CORE_READ(task, thread_pid);
	__u64 level = BPF_CORE_READ(pid, level);
	struct upid *upid =
		(void *)pid + bpf_core_field_offset(pid->numbers) + level * bpf_core_type_size(struct upid);

	return BPF_CORE_READ(upid, nr);
}
