/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Finding Python objects: frames and their variables, attributes, entries of dicts,
 * elements of lists. What is found is the address of an object, or PY_MISS.
 */
#pragma once

#include "py_state.h"

static __always_inline struct py_name *py_name_of(__u32 plan_id, __u64 index)
{
	struct py_plan *plan = py_plan_of(plan_id);

	return plan ? &plan->names[clamp_to(index, PY_NAMES - 1)] : 0;
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

enum {
	PY_FLOAT,
	PY_DEQUE,
	PY_SET,
};

/* As py_derives, for the types that have no flag. */
__noinline int py_is(__u32 room, __u64 type, __u64 which)
{
	struct py_state *s = py_state(room);

	if (!s)
		return 0;
	switch (which) {
	case PY_FLOAT:
		return py_derives(&s->p, type, s->p.float_type);
	case PY_DEQUE:
		return py_derives(&s->p, type, s->p.deque_type);
	}
	return py_derives(&s->p, type, s->p.set_type) || py_derives(&s->p, type, s->p.frozenset_type);
}

/*
 * Looks at a type; 0 if it cannot be read. Of the containers that plans meet most only
 * the flags that matter for them are given, without a look. Other types change, and are
 * at addresses where others were, but a version is given once in an interpreter: its own
 * caches are by it, too (Python/specialize.c).
 */
__noinline int py_look(__u32 room, __u64 type)
{
	struct py_state *s = py_state(room);
	__u64 known = 0;
	__u32 version = 0;
	struct py_seen *c;

	if (!s)
		return 0;
	c = &s->seen_types[type >> 5 & (PY_SEEN - 1)];
	if (c->run == s->run && c->type == type)
		return 1;
	c->run = 0;
	if (!type)
		return 0;
	if (type == s->p.list_type)
		known = PY_LIST_SUBCLASS;
	else if (type == s->p.dict_type)
		known = PY_DICT_SUBCLASS;
	if (known || type == s->p.deque_type)
		c->flags = known;
	else if (bpf_probe_read_user(&version, sizeof(version), (void *)(type + s->p.type_version)))
		return 0;
	else if (!version || c->version != version || c->type != type || c->process != s->process) {
		c->version = 0;
		if (!rd(&c->flags, type + s->p.type_flags))
			return 0;
	}
	c->type = type;
	c->process = s->process;
	c->version = version;
	c->run = s->run;
	return 1;
}

/* What was seen of a type that py_look has looked at. */
static __always_inline struct py_seen *py_seen(struct py_state *s, __u64 type)
{
	return &s->seen_types[type >> 5 & (PY_SEEN - 1)];
}

/* Flags of a type. */
static __always_inline bool py_flags(struct py_state *s, __u32 room, __u64 type, __u64 *flags)
{
	if (!py_look(room, type))
		return false;
	*flags = py_seen(s, type)->flags;
	return true;
}

/* Type of an object and the flags of that. */
static __always_inline bool py_type(struct py_state *s, __u32 room, __u64 obj, __u64 *type, __u64 *flags)
{
	return rd(type, obj + PY_OB_TYPE) && py_flags(s, room, *type, flags);
}

#define PY_KEYS_INDICES_OLD 40
#define PY_KEYS_INDICES     32

/* Looks at the table of keys at addr. Returns 0, or why it cannot be used. */
static __always_inline __u64 py_open(struct py_state *s, __u64 addr, __u64 values, __u64 limit,
				     struct py_table *t)
{
	struct py_keys *k = &s->keys;
	__u64 size;

	if (bpf_probe_read_user(k, sizeof(*k), (void *)addr))
		return PY_MISS(MISSING_FAULT);
	t->words = 3;
	if (s->p.form == PY_FORM_DICT) {
		size = k->size;
		if (!size || size & (size - 1) || size >> 40)
			return PY_MISS(MISSING_BAD);
		t->shift = size <= 0xff ? 0 : size <= 0xffff ? 1 : size <= 0xffffffff ? 2 : 3;
		t->indices = addr + PY_KEYS_INDICES_OLD;
		t->entries = t->indices + (size << t->shift);
		t->used = k->word4;
	} else {
		__u64 log2 = k->log2[0], bytes = k->log2[1];

		if (log2 > 40 || bytes > 44)
			return PY_MISS(MISSING_BAD);
		size = 1ULL << (log2 & 63);
		t->shift = log2 < 8 ? 0 : log2 < 16 ? 1 : log2 < 32 ? 2 : 3;
		t->indices = addr + PY_KEYS_INDICES;
		t->entries = t->indices + (1ULL << (bytes & 63));
		t->used = k->word3;
		if (k->log2[2])
			t->words = 2;
	}
	t->mask = size - 1;
	t->values = values;
	t->limit = limit;
	return t->used > size ? PY_MISS(MISSING_BAD) : 0;
}

/* Looks at an object, which should be a dict, and at its table. Returns 0, or why not. */
static __always_inline __u64 py_open_any(struct py_state *s, __u32 room, __u64 dict, struct py_table *t)
{
	__u64 flags, at = s->p.dict_keys >> 3, values;

	if (bpf_probe_read_user(s->dict, sizeof(s->dict), (void *)dict))
		return PY_MISS(MISSING_FAULT);
	if (!py_flags(s, room, s->dict[1], &flags))
		return PY_MISS(MISSING_FAULT);
	if (!(flags & PY_DICT_SUBCLASS))
		return PY_MISS(MISSING_BAD);
	values = s->dict[clamp_to(at + 1, 5)];
	return py_open(s, s->dict[clamp_to(at, 5)], values ? values + s->p.values_start : 0, 1 << 16, t);
}

/* Looks at the table of a dict. */
static __always_inline __u64 py_open_dict(struct py_state *s, __u64 dict, struct py_table *t)
{
	/* Keys and values lie side by side, too. */
	if (bpf_probe_read_user(&s->entry, sizeof(s->entry), (void *)(dict + s->p.dict_keys)))
		return PY_MISS(MISSING_FAULT);
	return py_open(s, s->entry.key, s->entry.value ? s->entry.value + s->p.values_start : 0, 1 << 16, t);
}

/* Looks at the table of keys that the values of an object are by. Returns 0, or why not. */
static __always_inline __u64 py_open_keys(struct py_state *s, __u64 type, struct py_table *t)
{
	__u64 keys = rd_ref(type + s->p.heap_keys);

	return PY_IS_MISS(keys) ? keys : py_open(s, keys, t->values, t->limit, t);
}

/*
 * Finds where an object has its attributes, in whatever form; that can differ
 * between instances of one class. What stands before the object is in s->head. Returns
 * 0, or why it has none.
 */
static __always_inline __u64 py_open_object(struct py_state *s, __u32 room, __u64 obj, __u64 type,
					    struct py_seen *c, struct py_store *store)
{
	__u64 flags = c->flags;
	const struct py_process *p = &s->p;
	__u64 values = 0, dict = 0, limit = 1 << 16, v;

	if (p->form == PY_FORM_DICT || !(flags & PY_MANAGED_DICT)) {
		if (!rd(&v, type + p->type_dictoffset))
			return PY_MISS(MISSING_FAULT);
		if (!v)
			return PY_MISS(MISSING_NAME);
		if (v > 1 << 20) /* negative: from the end of an object of variable size */
			return PY_MISS(MISSING_BAD);
		dict = rd_ref(obj + v);
	} else if (p->form == PY_FORM_POINTERS) {
		values = s->head.values;
		if (!values)
			dict = py_ref(s->head.dict);
	} else if (p->form == PY_FORM_TAGGED) {
		dict = py_ref(s->head.dict);
		if (!PY_IS_MISS(dict) && dict & 1) {
			values = dict + 1;
			dict = 0;
		}
	} else {
		if (flags & PY_INLINE_VALUES) {
			if (!rd(&v, type + p->type_basicsize) || v > 1 << 20)
				return PY_MISS(MISSING_FAULT);
			values = obj + v;
			if (!rd(&v, values))
				return PY_MISS(MISSING_FAULT);
			if ((v >> (8 * (p->values_valid & 7)) & 0xff) == 1)
				limit = v >> (8 * (p->values_capacity & 7)) & 0xff;
			else
				values = 0;
		}
		if (!values)
			dict = py_ref(s->head.dict);
	}
	if (values) {
		store->t.values = values + p->values_start;
		store->t.limit = limit;
		store->version = c->version;
		if (!c->version)
			return py_open_keys(s, type, &store->t);
		store->type = type;
		return 0;
	}
	if (PY_IS_MISS(dict)) /* no attribute was ever set */
		return dict == PY_MISS(MISSING_UNSET) ? PY_MISS(MISSING_NAME) : dict;
	return py_open_any(s, room, dict, &store->t);
}

/* The value of entry at of a table, which was read. */
static __always_inline __u64 py_entry_value(struct py_state *s, const struct py_table *t, __u64 at)
{
	if (!t->values)
		return py_ref(s->entry.value);
	return at < t->limit ? rd_ref(t->values + 8 * at) : PY_MISS(MISSING_UNSET);
}

/*
 * The value under a name in the table of a register. A key is the name's str if it has
 * its length and its 64 bits of SipHash, keyed by the process: two texts of a program
 * share these once in 2^64 cases.
 */
__noinline __u64 py_find(__u32 room, __u64 index, __u64 reg)
{
	struct py_state *s = py_state(room);
	struct py_name *name = s ? py_name_of(s->rec.plan, index) : 0;
	const struct py_store *store;
	const struct py_table *t;
	__u64 perturb, i;

	if (!s || !name)
		return PY_MISS(MISSING_BAD);
	store = &s->store[clamp_to(reg, PY_REGS - 1)];
	t = &store->t;
	perturb = name->hash;
	i = perturb & t->mask;
	/* Objects/dictobject.c, lookdict. */
	for (int probe = 0; probe < PY_PROBES; probe++) {
		/* Read anew, so that the verifier does not follow each size apart. */
		__u64 shift = t->shift & 3;
		__s64 at = 0;

		if (bpf_probe_read_user(&at, clamp_to(1ULL << shift, sizeof(at)),
					(void *)(t->indices + (i << shift))))
			return PY_MISS(MISSING_FAULT);
		/* The index has a sign. */
		at = (__s64)((__u64)at << (64 - (8 << shift))) >> (64 - (8 << shift));
		if (at == -1) /* never used: the end */
			return PY_MISS(MISSING_NAME);
		if (at >= 0) {
			if (at >= t->used)
				return PY_MISS(MISSING_BAD);
			if (bpf_probe_read_user(&s->entry, sizeof(s->entry),
						(void *)(t->entries + 8 * (at * t->words + t->words - 2))))
				return PY_MISS(MISSING_FAULT);
			if (s->entry.key &&
			    bpf_probe_read_user(&s->str, 20, (void *)(s->entry.key + s->p.str_length)))
				return PY_MISS(MISSING_FAULT);
			if (s->entry.key && s->str.hash == name->hash && s->str.length == name->len &&
			    s->str.state & s->p.str_ascii_mask) {
				name->key = s->entry.key;
				name->seen = at > PY_SEEN_AT ? 0 : at | store->version << PY_SEEN_VERSION;
				return py_entry_value(s, t, at);
			}
		}
		perturb >>= 5;
		i = (i * 5 + perturb + 1) & t->mask;
	}
	return PY_MISS(MISSING_LIMIT);
}

/* The member of an object at the place that its class has for a name. */
static __always_inline __u64 py_slot(const struct py_process *p, __u64 obj, const struct py_name *name)
{
	__u64 v;

	if (!rd(&v, name->slot_class + p->type_name) || v != name->slot_name)
		return PY_MISS(MISSING_STALE);
	return rd_ref(obj + name->slot);
}

/*
 * The value under a name in a store, where the name was found last, be it in another capture:
 * objects of one class mostly have it at the same place. 0 if it is not there.
 *
 * As in the interpreter's own caches of attributes (Python/specialize.c), a version of a
 * class stands for the order of the keys that its objects have in common, and a key that
 * is the same object for the same name: the code that sets the attribute has that str,
 * too, so that it is not given free.
 */
static __always_inline __u64 py_again(struct py_state *s, const struct py_name *name,
				      const struct py_store *store)
{
	__u64 seen = *(volatile __u64 *)&name->seen; /* another CPU may write it */
	__u64 at = seen & PY_SEEN_AT;

	if (!name->key)
		return 0;
	if (store->version) {
		if (seen >> PY_SEEN_VERSION == store->version)
			return py_entry_value(s, &store->t, at);
		if (store->type)
			return 0;
	}
	if (at >= store->t.used ||
	    bpf_probe_read_user(&s->entry, sizeof(s->entry),
				(void *)(store->t.entries + 8 * (at * store->t.words + store->t.words - 2))) ||
	    s->entry.key != name->key)
		return 0;
	return py_entry_value(s, &store->t, at);
}

/*
 * Looks where the object in a register has its attributes, which that remembers.
 * Returns the attribute, or why there is none, or 0 if it is to be looked for.
 */
__noinline __u64 py_attr_seen(__u32 room, __u64 index, __u64 reg)
{
	struct py_state *s = py_state(room);
	const struct py_name *name = s ? py_name_of(s->rec.plan, index) : 0;
	struct py_store *store;
	__u64 obj, type;

	if (!s || !name)
		return PY_MISS(MISSING_BAD);
	reg = clamp_to(reg, PY_REGS - 1);
	obj = s->reg[reg];
	store = &s->store[reg];
	if (PY_IS_MISS(obj))
		return obj;
	if (store->obj != obj || name->slot_class) {
		/* Nothing may stand before an object that has no attributes. */
		if (bpf_probe_read_user(&s->head, sizeof(s->head),
					(void *)(obj - offsetof(typeof(s->head), refcnt)))) {
			__builtin_memset(&s->head, 0, sizeof(s->head));
			s->head.dict = ~0ULL; /* not known */
			if (!rd(&s->head.type, obj + PY_OB_TYPE))
				return PY_MISS(MISSING_FAULT);
		}
		type = s->head.type;
		if (name->slot_class && py_derives(&s->p, type, name->slot_class))
			return py_slot(&s->p, obj, name);
		if (!py_look(room, type))
			return PY_MISS(MISSING_FAULT);
		store->type = 0;
		store->version = 0;
		store->miss = py_open_object(s, room, obj, type, py_seen(s, type), store);
		store->obj = obj;
	}
	return store->miss ?: py_again(s, name, store);
}

/* Looks at the table of keys of the object in a register if that was put off. Returns 0, or
 * why not. */
__noinline __u64 py_open_late(__u32 room, __u64 reg)
{
	struct py_state *s = py_state(room);
	struct py_store *store;
	__u64 type;

	if (!s)
		return PY_MISS(MISSING_BAD);
	store = &s->store[clamp_to(reg, PY_REGS - 1)];
	type = store->type;
	if (type) {
		store->type = 0;
		store->miss = py_open_keys(s, type, &store->t);
	}
	return store->miss;
}

/* The attribute of the object in a register. */
static __always_inline __u64 py_attr(__u32 room, __u64 index, __u64 reg)
{
	return py_attr_seen(room, index, reg) ?: py_open_late(room, reg) ?: py_find(room, index, reg);
}

/* Looks at the dict in a register. Returns 0, or why not. */
__noinline __u64 py_open_key(__u32 room, __u64 reg)
{
	struct py_state *s = py_state(room);
	struct py_store *store;
	__u64 obj, type, flags;

	if (!s)
		return PY_MISS(MISSING_BAD);
	reg = clamp_to(reg, PY_REGS - 1);
	obj = s->reg[reg];
	store = &s->store[reg];
	if (PY_IS_MISS(obj))
		return obj;
	if (!py_type(s, room, obj, &type, &flags))
		return PY_MISS(MISSING_FAULT);
	if (!(flags & PY_DICT_SUBCLASS))
		return PY_MISS(MISSING_TYPE);
	store->obj = 0; /* the dict's own entries, not its attributes */
	store->type = 0;
	store->version = 0;
	store->miss = py_open_dict(s, obj, &store->t);
	return store->miss;
}

/* The value of the dict in a register under a name. */
static __always_inline __u64 py_key(__u32 room, __u64 index, __u64 reg)
{
	return py_open_key(room, reg) ?: py_find(room, index, reg);
}

/* Frame of codes[index] among the depth innermost. */
__noinline __u64 py_frame(__u32 room, __u64 index, __u64 depth)
{
	struct py_state *s = py_state(room);
	struct py_plan *plan = s ? py_plan_of(s->rec.plan) : 0;
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
			if (bpf_probe_read_user(s->identity, sizeof(s->identity),
						(void *)(want->addr + s->p.code_identity)))
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
static __always_inline __u64 py_sequence(struct py_state *s, __u32 room, __u64 obj, __u64 *n)
{
	__u64 type, flags;

	if (!py_type(s, room, obj, &type, &flags) || !rd(n, obj + s->p.var_size))
		return PY_MISS(MISSING_FAULT);
	if (flags & PY_LIST_SUBCLASS)
		return *n ? rd_ref(obj + s->p.list_items) : 0;
	return flags & PY_TUPLE_SUBCLASS ? obj + s->p.tuple_items : PY_MISS(MISSING_TYPE);
}

/* As py_sequence for a deque (Modules/_collectionsmodule.c, dequeobject), of whose elements
 * the first block has some, or all. */
static __always_inline __u64 py_deque(struct py_state *s, __u32 room, __u64 obj, __u64 *n)
{
	__u64 type, block, at;

	if (!rd(&type, obj + PY_OB_TYPE))
		return PY_MISS(MISSING_FAULT);
	if (!py_is(room, type, PY_DEQUE))
		return PY_MISS(MISSING_TYPE);
	if (!rd(n, obj + s->p.var_size) || !rd(&block, obj + PY_DEQUE_LEFT) || !rd(&at, obj + PY_DEQUE_INDEX))
		return PY_MISS(MISSING_FAULT);
	if (at >= PY_DEQUE_BLOCK || PY_IS_MISS(block))
		return PY_MISS(MISSING_BAD);
	if (*n > PY_DEQUE_BLOCK - at)
		*n = PY_DEQUE_BLOCK - at;
	return block + 8 + 8 * at; /* behind the link to the block before */
}

static __always_inline __u64 py_index(struct py_state *s, __u32 room, __u64 obj, __u64 i)
{
	__u64 n, items;

	if (PY_IS_MISS(obj))
		return obj;
	items = py_sequence(s, room, obj, &n);
	if (items == PY_MISS(MISSING_TYPE))
		items = py_deque(s, room, obj, &n);
	if (PY_IS_MISS(items))
		return items;
	return i < n ? rd_ref(items + 8 * i) : PY_MISS(MISSING_NAME);
}
