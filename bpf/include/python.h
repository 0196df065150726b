/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * What the loader tells py_hit about an interpreter and what to read in it: the
 * types of package capture in Go, compared with them by a test.
 */
#pragma once

/* Captures in progress on one CPU. */
#define PY_CPU_ROOMS 2
/* Interpreters looked at at the same time. */
#define PY_PROCESSES 256
/* Plans that can be loaded at the same time, a power of two. */
#define PY_PLANS 128
/* Bounds of a plan. */
#define PY_OPS      192
#define PY_NAMES    48
#define PY_CODES    4
#define PY_REGS     16 /* a power of two */
#define PY_ITEM_REG (PY_REGS - 1)
/* Python frames looked at from the innermost on, and those of C code among them. */
#define PY_FRAMES 16
/* Steps of a lookup in a hash table. CPython keeps tables at most two thirds full,
 * so that a longer one has a chance of some 2/3^24. */
#define PY_PROBES 24
/* Threads of an interpreter looked at. */
#define PY_THREADS 256
/* Base classes looked at. */
#define PY_BASES 8
/* Bytes of a str. */
#define PY_STR_MAX 256
/* Entries of containers are looked at in chunks; steps are ops and chunks. */
#define PY_ITEM_CHUNK 16
#define PY_STEPS      352
/* Ops that are run for each item of a container. */
#define PY_BODY 40

/* How attributes of an instance are stored. */
enum py_form {
	PY_FORM_DICT = 0,     /* 3.10: in a dict */
	PY_FORM_POINTERS = 1, /* 3.11: a dict or values, each with its pointer */
	PY_FORM_TAGGED = 2,   /* 3.12: a dict or values, by a tagged pointer */
	PY_FORM_INLINE = 3,   /* 3.13: a dict, or values behind the instance */
};

/* An interpreter. Offsets are -1 where the version has no such field. */
struct py_process {
	__u64 holder;   /* address of the pointer to the thread state that runs Python code */
	__u64 threads;  /* address of the pointer to the newest thread state */
	__u64 ref_mask; /* bits of a reference in a frame that are the address */
	__u64 none, yes, no;
	__u64 str_type, int_type, list_type, dict_type;
	__u64 cell_type, float_type, set_type, frozenset_type, deque_type;
	__u32 form; /* enum py_form */
	__s32 thread_native;
	__s32 thread_cframe;
	__s32 thread_frame;
	__s32 frame_code;
	__s32 frame_previous;
	__s32 frame_locals;
	__s32 frame_owner;
	__s32 code_identity;
	__s32 cell_ref;
	__s32 type_name;
	__s32 type_basicsize;
	__s32 type_flags;
	__s32 type_base;
	__s32 type_dictoffset;
	__s32 type_version;
	__s32 heap_keys;
	__s32 var_size;
	__s32 list_items;
	__s32 tuple_items;
	__s32 float_value;
	__s32 long_tag;
	__s32 long_digits;
	__s32 str_length;
	__s32 str_state;
	__s32 str_ascii;
	__s32 str_compact;
	__s32 str_data;
	__u32 str_kind_shift;
	__u32 str_compact_mask;
	__u32 str_ascii_mask;
	__u32 str_ready_mask; /* 0: always ready */
	__u32 str_plain_mask; /* bits of the state of an ASCII str, */
	__u32 str_plain;      /* and what they are */
	__s32 dict_used;
	__s32 dict_keys;
	__s32 values_start;
	__s32 values_capacity;
	__s32 values_valid;
	__s32 set_used;
	__s32 set_mask;
	__s32 set_table;
	__s32 thread_next;
	__u32 cuda; /* the process is looked at by the tap on the CUDA driver, too */
};

/* Of py_probe.flags: the function may be called without the interpreter's lock. */
#define PY_UNLOCKED (1 << 16)

/* A probe in a process, by the address where it stands. */
struct py_probe_key {
	__u64 ip;
	__u32 tgid;
	__u32 pad;
};

/* Code objects of which calls are counted with the probe, those watched among them. */
#define PY_CALLERS 8
/* Plans that one code object can start. */
#define PY_WATCH_PLANS 4

/* What is watched of a code object. */
struct py_watch {
	__u32 count; /* of plans, 0: its calls are counted only */
	__u32 plans[PY_WATCH_PLANS];
	__u32 pad;
};

struct py_probe {
	__u64 hits;        /* counted by the program */
	__u64 timed;       /* of these, returns of calls whose beginning was seen */
	__u64 ns;          /* these calls took in all */
	__u64 captured_ns; /* captures took in all */
	__u32 id;
	__u32 flags;   /* enum capture_flags to set, and PY_UNLOCKED */
	__u32 process; /* index of the interpreter */
	__u32 pad;
	/* Together, since the calls of an idle process find nothing of it in a cache. Where
	 * calls hold the interpreter's lock the program takes places that are free. */
	__u64 callers[PY_CALLERS]; /* addresses of code objects, 0: free */
	__u64 calls[PY_CALLERS];   /* counted by the program */
	struct py_watch watches[PY_CALLERS];
};

/* A code object as the caller of a probed function. */
struct py_code_key {
	__u64 code;
	__u32 tgid;
	__u32 probe;
};

/* Words of a code object by which it is told from another at the same address. */
#define PY_IDENTITY 4
struct py_code {
	__u64 addr;
	__u64 identity[PY_IDENTITY];
};

struct py_name {
	__u64 hash;       /* of the str in this process */
	__u64 slot_class; /* class that has it as a slot, or 0 */
	__u64 slot_name;  /* tp_name of that class */
	__u64 key;        /* kept by the program: the str that was found to be the name, 0: none */
	__u64 seen;       /* and where: PY_SEEN_* */
	__u32 slot;       /* offset in an instance */
	__u32 len;        /* ASCII */
};

enum py_op_code {
	PY_FRAME = 1, /* dst = frame of codes[a] among the b innermost */
	PY_LOCAL = 2, /* dst = local a of the frame src; b: may be in a cell */
	PY_ATTR = 3,  /* dst = attribute names[a] of src */
	PY_INDEX =
		4,  /* dst = element a of the list or tuple src, or of a deque where its first block has that */
	PY_KEY = 5, /* dst = value under the key names[a] of the dict src */
	PY_VALUE =
		6, /* send src as slot: None, a bool, int or float, or a str of at most a bytes; the program keeps in c whether it was one */
	PY_LEN = 7,   /* send the length of src as slot */
	PY_ADDR = 8,  /* send the address of src as slot */
	PY_ITEMS = 9, /* send the items of src as slot, at most a, strs of at most b bytes; c: enum py_items */
	PY_SKIP = 10, /* pass over the next a ops by what src is: slot: enum py_skip, b, c: an address */
	PY_PUT_OFF = 11, /* send 1 as slot and leave out the rest, for a later capture by PY_SKIP_DONE */
};

/* When PY_SKIP skips. */
enum py_skip {
	PY_SKIP_SAME = 0,  /* src is the object in the register dst */
	PY_SKIP_IS = 1,    /* src is the object at b | c << 32 */
	PY_SKIP_ISNOT = 2, /* it is not, or missing */
	PY_SKIP_NONE = 3,  /* it is None, or missing */
	PY_SKIP_SET = 4,   /* it is neither */
	PY_SKIP_DONE = 5,  /* nothing was put off since this op was here last */
};

/* What is sent of each item, in this order. */
enum py_items {
	PY_ITEM_KEY = 1,   /* the key of a dict */
	PY_ITEM_VALUE = 2, /* the value of a dict, the element of a list, tuple or set */
	PY_ITEM_ATTRS =
		4, /* attributes of it: names[c >> 8 & 0xff] and, if not PY_NO_NAME, names[c >> 16 & 0xff] */
	PY_ITEM_LEN = 8, /* of the second of these attributes its length */
	/* What the ops that follow send, c >> 8 & 0xff of them, which find the item in
	 * PY_ITEM_REG, and c >> 16 & 0xff values. An item of which they send nothing
	 * counts as not there. */
	PY_ITEM_BODY = 16,
};
#define PY_NO_NAME 0xff

struct py_op {
	__u8 code; /* enum py_op_code */
	__u8 dst;
	__u8 src;
	__u8 slot;
	__u32 a, b, c;
};

/* py_name.seen: the attribute was found at the entry, or the value, of this number, */
#define PY_SEEN_AT 0xffffULL
/* in objects of the class that had this version, if their values are in an array. */
#define PY_SEEN_VERSION 32

/* Registers hold addresses. Register 0 is the frame of codes[0], which must be
 * among the depth innermost: else the plan does not run. */
struct py_plan {
	__u32 ops_count;
	__u32 depth;
	__u64 put_off; /* kept by the program: 1 from PY_PUT_OFF on until PY_SKIP_DONE */
	struct py_code codes[PY_CODES];
	struct py_op ops[PY_OPS];
	struct py_name names[PY_NAMES];
};
