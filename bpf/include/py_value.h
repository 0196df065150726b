/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Sending what Python objects hold: numbers, strings, lengths, items. */
#pragma once

#include "py_object.h"

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
__noinline int py_value_slow(__u32 room, __u64 obj, __u64 slot_max)
{
	struct py_state *s = py_state(room);
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
	if (!py_type(s, room, obj, &type, &flags))
		return put_missing(s, slot, MISSING_FAULT);
	if (flags & PY_LONG_SUBCLASS)
		return put_int(s, slot, obj);
	if (flags & PY_UNICODE_SUBCLASS)
		return put_str(s, slot, obj, slot_max >> 8);
	if (py_is(room, type, PY_FLOAT)) {
		__u64 v;

		if (!rd(&v, obj + s->p.float_value))
			return put_missing(s, slot, MISSING_FAULT);
		return put_word(s, CAPTURE_FLOAT, slot, v);
	}
	return put_missing(s, slot, MISSING_TYPE);
}

/*
 * As py_value_slow, in one look or two for what most values are: a str of one byte
 * per code point, an int of one digit, a float. What cannot be read so is left to it.
 * str says that a str is expected: other objects are shorter, and mostly lie in one line of
 * the cache. Returns 1 if the value is a str.
 */
__noinline int py_value(__u32 room, __u64 obj, __u64 slot_max, bool str)
{
	struct py_state *s = py_state(room);
	__u64 pos, n;

	if (!s)
		return 0;
	pos = s->pos;
	if (PY_IS_MISS(obj))
		return py_value_slow(room, obj, slot_max);
	if (str) {
		s->value_of = 0;
		if (bpf_probe_read_user(&s->value, sizeof(s->value), (void *)(obj + PY_OB_TYPE)))
			str = false; /* it may be the last of its page */
	}
	/* Stamps that are not set are one object. */
	if (!str && s->value_of != obj) {
		s->value_of = 0;
		if (bpf_probe_read_user(&s->value, offsetof(typeof(s->value), digit) + sizeof(s->value.digit),
					(void *)(obj + PY_OB_TYPE)))
			return py_value_slow(room, obj, slot_max);
	}
	s->value_of = obj;
	if (s->value.type == s->p.int_type) {
		/* long_tag, whose bit 2 small ints have since 3.14, or the number of digits */
		bool tagged = s->p.form >= PY_FORM_TAGGED;
		__u64 size = tagged ? s->value.size & ~4ULL : s->value.size;
		__u32 digit = s->value.digit;

		if (size == (tagged ? 1 : 0))
			digit = 0;
		else if (size != (tagged ? 1 << 3 : 1) || digit >> 30)
			return py_value_slow(room, obj, slot_max);
		return put_word(s, CAPTURE_INT, slot_max & 0xff, digit);
	}
	if (s->value.type == s->p.float_type && s->p.float_value == PY_OB_TYPE + 8)
		return put_word(s, CAPTURE_FLOAT, slot_max & 0xff, s->value.size);
	if (s->value.type != s->p.str_type)
		return py_value_slow(room, obj, slot_max);
	if (!str &&
	    bpf_probe_read_user(&s->value.state, sizeof(s->value.state), (void *)(obj + s->p.str_state)))
		return py_value_slow(room, obj, slot_max);
	if ((s->value.state & s->p.str_plain_mask) != s->p.str_plain || s->value.size > slot_max >> 8)
		return py_value_slow(room, obj, slot_max);
	n = clamp_to(s->value.size, PY_STR_MAX);
	asm volatile("" : "+r"(pos));
	if (pos > CHUNK_MAX - PY_VALUE_MAX) {
		s->rec.flags |= CAPTURE_CUT;
		return 0;
	}
	if (str && n <= PY_SHORT && s->p.str_ascii == PY_OB_TYPE + offsetof(typeof(s->value), text))
		__builtin_memcpy(s->out + pos + 4, s->value.text, PY_SHORT);
	else if (bpf_probe_read_user(s->out + pos + 4, n, (void *)(obj + s->p.str_ascii)))
		return py_value_slow(room, obj, slot_max);
	put(s, CAPTURE_STR1, slot_max & 0xff, n);
	return 1;
}

static __always_inline int put_len(struct py_state *s, __u32 room, __u64 slot, __u64 obj)
{
	__u64 type, flags, n;
	__s64 at = s->p.var_size;

	if (PY_IS_MISS(obj))
		return put_missing(s, slot, obj & 0xff);
	if (!py_type(s, room, obj, &type, &flags))
		return put_missing(s, slot, MISSING_FAULT);
	if (flags & PY_DICT_SUBCLASS)
		at = s->p.dict_used;
	else if (flags & PY_UNICODE_SUBCLASS)
		at = s->p.str_length;
	else if (flags & (PY_LIST_SUBCLASS | PY_TUPLE_SUBCLASS | PY_BYTES_SUBCLASS) ||
		 py_is(room, type, PY_DEQUE))
		;
	else if (py_is(room, type, PY_SET))
		at = s->p.set_used;
	else
		return put_missing(s, slot, MISSING_TYPE);
	if (!rd(&n, obj + at))
		return put_missing(s, slot, MISSING_FAULT);
	if (n >> 48)
		return put_missing(s, slot, MISSING_BAD);
	return put_word(s, CAPTURE_INT, slot, n);
}

__noinline int py_len_slow(__u32 room, __u64 obj, __u64 slot_max)
{
	struct py_state *s = py_state(room);

	return s ? put_len(s, room, slot_max & 0xff, obj) : 0;
}

/* Finds the entries of a container. Returns how many items it says it has, or why not. */
static __always_inline __u64 py_begin(struct py_state *s, __u32 room, __u64 obj)
{
	struct py_iter *it = &s->it;
	__u64 type, flags, n, total;

	if (!py_type(s, room, obj, &type, &flags))
		return PY_MISS(MISSING_FAULT);
	it->values = 0;
	it->next = 0;
	it->count = 0;
	it->is_set = 0;
	it->words = 1;
	it->key_at = 0;
	it->value_at = 0;
	if (flags & PY_DICT_SUBCLASS) {
		__u64 miss;

		s->store[PY_ITEM_REG].obj = 0; /* the dict's own entries, not attributes */
		s->store[PY_ITEM_REG].type = 0;
		s->store[PY_ITEM_REG].version = 0;
		miss = py_open_dict(s, obj, &s->store[PY_ITEM_REG].t);

		if (miss)
			return miss;
		if (!rd(&total, obj + s->p.dict_used))
			return PY_MISS(MISSING_FAULT);
		n = s->store[PY_ITEM_REG].t.used;
		it->base = s->store[PY_ITEM_REG].t.entries;
		it->values = s->store[PY_ITEM_REG].t.values;
		it->words = s->store[PY_ITEM_REG].t.words;
		it->key_at = it->words - 2;
		it->value_at = it->words - 1;
	} else if (flags & (PY_LIST_SUBCLASS | PY_TUPLE_SUBCLASS)) {
		it->base = py_sequence(s, room, obj, &n);
		if (PY_IS_MISS(it->base))
			return it->base;
		total = n;
	} else if (py_is(room, type, PY_SET)) {
		it->base = rd_ref(obj + s->p.set_table);
		if (PY_IS_MISS(it->base) || !rd(&n, obj + s->p.set_mask) || !rd(&total, obj + s->p.set_used))
			return PY_MISS(MISSING_FAULT);
		n++;
		it->is_set = 1;
		it->words = 2; /* {key, hash} */
	} else {
		return PY_MISS(MISSING_TYPE);
	}
	if (n >> 31 || total > n)
		return PY_MISS(MISSING_BAD);
	it->end = n;
	return total;
}

__noinline int py_step(__u32 room);

/* Runs the ops of a plan that are for each item. */
static __always_inline void py_body(struct py_state *s, __u32 room)
{
	__u64 pc = s->pc;
	__u32 values = s->rec.values;

	s->pc = s->it.body;
	for (int i = 0; i < PY_BODY; i++) {
		if (s->pc >= s->it.body_end)
			break;
		py_step(room);
	}
	s->pc = pc;
	s->rec.values = values;
}

/* Sends entry i of those that were read; 0 if there is no room. */
__noinline int py_item(__u32 room, __u64 i)
{
	struct py_state *s = py_state(room);
	__u64 start, head, key, value, at;
	struct py_iter *it;

	if (!s)
		return 0;
	it = &s->it;
	start = s->pos;
	at = i * it->words;
	key = s->entries[clamp_to(at + it->key_at, PY_ENTRY_WORDS - 1)];
	value = s->entries[clamp_to(at + it->value_at, PY_ENTRY_WORDS - 1)];
	if (it->values && !rd(&value, it->values + 8ULL * (it->next - 1)))
		value = 8; /* an address that cannot be read */
	/* Entries of a dict or set may be empty or, of a set, deleted: hash -1. */
	if (it->words != 1 && (!key || !value))
		return 1;
	if (it->is_set && s->entries[clamp_to(at + 1, PY_ENTRY_WORDS - 1)] == ~0ULL)
		return 1;
	if (it->what & PY_ITEM_KEY)
		py_value(room, py_ref(key), it->slot_max, it->slot_max >> 8);
	value = py_ref(value);
	if (it->what & PY_ITEM_VALUE)
		py_value(room, value, it->slot_max, it->slot_max >> 8);
	s->reg[PY_ITEM_REG] = value;
	/* Two attributes at most, mostly none. */
	for (__u32 names = it->what & PY_ITEM_ATTRS ? it->what >> 8 : PY_NO_NAME, n = 0; n < 2;
	     n++, names >>= 8) {
		if ((names & 0xff) == PY_NO_NAME)
			break;
		if (n && it->what & PY_ITEM_LEN)
			py_len_slow(room, py_attr(room, names & 0xff, PY_ITEM_REG), it->slot_max);
		else
			py_value_slow(room, py_attr(room, names & 0xff, PY_ITEM_REG), it->slot_max);
	}
	if (it->what & PY_ITEM_BODY)
		py_body(s, room);
	if (s->rec.flags & CAPTURE_CUT) {
		s->pos = start;
		return 0;
	}
	head = it->head;
	asm volatile("" : "+r"(head));
	if (head > CHUNK_MAX - PY_VALUE_MAX)
		return 0;
	if (s->pos == start) {
		*(__u32 *)(s->out + head + 4) = --it->total;
		return 1;
	}
	it->left--;
	*(__u32 *)(s->out + head) = ++it->count;
	return 1;
}

/* Sends the items of the next PY_ITEM_CHUNK entries; 0 at the end. */
__noinline int py_items(__u32 room)
{
	struct py_state *s = py_state(room);
	__u64 n;

	if (!s || s->it.next >= s->it.end)
		return 0;
	n = clamp_to(s->it.end - s->it.next, PY_ITEM_CHUNK);
	if (bpf_probe_read_user(s->entries, clamp_to(n * 8 * s->it.words, sizeof(s->entries)),
				(void *)(s->it.base + 8ULL * s->it.next * s->it.words)))
		return 0; /* what was read of it is sent: fewer than its total */
	for (__u64 i = 0; i < PY_ITEM_CHUNK; i++) {
		if (i >= n || !s->it.left)
			return 0;
		s->it.next++;
		if (!py_item(room, i))
			return 0;
	}
	return 1;
}

/* Sends the head of the items; 1 if items are to follow. */
static __always_inline int put_items(struct py_state *s, __u32 room, struct py_op *op, __u64 obj)
{
	__u64 total;
	__u32 *to;

	s->it.body = s->pc;
	if (op->c & PY_ITEM_BODY)
		s->pc += op->c >> 8 & 0xff;
	s->it.body_end = s->pc;
	if (PY_IS_MISS(obj))
		return put_missing(s, op->slot, obj & 0xff);
	total = py_begin(s, room, obj);
	if (PY_IS_MISS(total))
		return put_missing(s, op->slot, total & 0xff);
	s->it.head = s->pos + 4;
	to = (__u32 *)put(s, CAPTURE_ITEMS, op->slot, 12);
	if (!to)
		return 0;
	to[0] = 0;
	to[1] = total;
	to[2] = !!(op->c & PY_ITEM_KEY) + !!(op->c & PY_ITEM_VALUE) +
		(op->c & PY_ITEM_ATTRS ? 1 + ((op->c >> 16 & 0xff) != PY_NO_NAME) : 0) +
		(op->c & PY_ITEM_BODY ? op->c >> 16 & 0xff : 0);
	s->it.total = total;
	s->it.left = op->a;
	s->it.what = op->c;
	s->it.slot_max = op->slot | op->b << 8;
	return 1;
}
