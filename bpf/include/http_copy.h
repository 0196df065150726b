/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Which bytes of a connection are copied, held back or only counted, and their records. */
#pragma once

#include "http_conn.h"

/* Key: 0. Value: zeros, the initial value of a tail, too large for the stack. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tail);
} empty_tail SEC(".maps");

/* Fills a record except for its payload. Takes over the count of skipped calls. */
static __always_inline void fill_http(struct http_rec *r, struct conn *c, __u64 fdkey, __u64 ts, __u64 off,
				      __u32 size, __u32 len, __u32 dir, __u32 flags)
{
	fill_header(&r->h, ts, REC_HTTP, current_ids(), len);
	r->conn = c->id;
	r->off = off;
	r->size = size;
	r->fd = fdkey;
	r->lport = c->lport;
	r->rport = c->rport;
	r->dir = dir;
	r->flags = flags | c->flags;
	r->pad = 0;
	r->pad2 = 0;
	r->skipped = 0;
	r->skipped_last = 0;
}

/* Counts a call that is not copied, or whose last pieces are not. The pieces come one
 * after another and have one time. */
static __always_inline void skip_call(struct conn *c, __u32 i, __u64 ts)
{
	if (c->skipped_last[i] != ts)
		c->skipped[i]++;
	c->skipped_last[i] = ts;
}

/* Moves the count of skipped calls into a record that is certain to be sent. */
static __always_inline void take_skipped(struct http_rec *r, struct conn *c, __u32 i)
{
	r->skipped = c->skipped[i];
	r->skipped_last = c->skipped_last[i];
	c->skipped[i] = 0;
	c->skipped_last[i] = 0;
}

/*
 * Sends n bytes of a call as one record, which stands for size bytes from off on.
 * Global and with packed arguments for the reasons given at frame_chunk.
 */
#define HTTP_HOW(size, n, dir) ((__u64)(size) << 32 | (n) << 8 | (dir))

__noinline int http_chunk(__u64 fdkey, __u64 ts, __u64 addr, __u64 off, __u64 how)
{
	struct conn *c = bpf_map_lookup_elem(&conns, &fdkey);
	__u32 n = (how >> 8) & 0xffffff;
	__u32 size = how >> 32;
	__u32 dir = how & 0xff;
	__u32 flags = n < size ? HTTP_CUT : 0;

	if (!c)
		return 1;

#define SEND_HTTP(slot)                                                                  \
	do {                                                                             \
		struct http_rec *r = bpf_ringbuf_reserve(&ring, sizeof(*r) + (slot), 0); \
		__u64 len = clamp_to(n, (slot));                                         \
                                                                                         \
		if (!r) {                                                                \
			lose(LOSS_RING_FULL, 1);                                         \
			return 1;                                                        \
		}                                                                        \
		fill_http(r, c, fdkey, ts, off, size, len, dir, flags);                  \
		if (bpf_probe_read_user(r + 1, len, (void *)addr)) {                     \
			bpf_ringbuf_discard(r, BPF_RB_NO_WAKEUP);                        \
			lose(LOSS_FAULT, 1);                                             \
			return 1;                                                        \
		}                                                                        \
		if (dir == HTTP_READ)                                                    \
			take_skipped(r, c, 0);                                           \
		else                                                                     \
			take_skipped(r, c, 1);                                           \
		bpf_ringbuf_submit(r, wake_flags(sizeof(*r) + (slot)));                  \
	} while (0)

	SLOT_SIZES(n, SEND_HTTP);
	return 0;
}

/* Sends the connection's end, after which it is ignored: a server that gets an end
 * of file from its client drops the request, and what it still writes has no reader. */
static __always_inline void http_close(struct conn *c, __u64 fdkey, __u32 flags)
{
	struct http_rec *r;

	r = bpf_ringbuf_reserve(&ring, sizeof(*r), 0);
	if (!r) {
		lose(LOSS_RING_FULL, 1);
		return;
	}
	c->state = CONN_OTHER;
	fill_http(r, c, fdkey, bpf_ktime_get_ns(), c->off[1], 0, 0, HTTP_CLOSE, flags);
	take_skipped(r, c, 1);
	bpf_ringbuf_submit(r, wake_flags(sizeof(*r)));
}

/* Sends the writes held back, oldest first: the response has ended. */
__noinline int http_flush(__u64 fdkey)
{
	struct conn *c = bpf_map_lookup_elem(&conns, &fdkey);
	struct tail *tail = bpf_map_lookup_elem(&tails, &fdkey);

	if (!c)
		return 0;
	c->held = 0;
	if (!tail)
		return 0;
	for (int i = 0; i < TAIL_SLOTS; i++) {
		__u32 at = tail->first + i;
		struct held *held = &tail->slot[at % TAIL_SLOTS];
		struct http_rec *r;
		__u64 len = clamp_to(held->len, TAIL_BYTES);

		if (at >= tail->next)
			break;
		r = bpf_ringbuf_reserve(&ring, sizeof(*r) + TAIL_BYTES, 0);
		if (!r) {
			lose(LOSS_RING_FULL, 1);
			continue;
		}
		fill_http(r, c, fdkey, held->ts, held->off, len, len, HTTP_WRITE, 0);
		bpf_probe_read_kernel(r + 1, len, held->data);
		take_skipped(r, c, 1);
		bpf_ringbuf_submit(r, wake_flags(sizeof(*r) + TAIL_BYTES));
	}
	bpf_map_delete_elem(&tails, &fdkey);
	return 0;
}

/* http_flush, where there may be something to send. */
static __always_inline void flush_held(struct conn *c, __u64 fdkey)
{
	if (c->held)
		http_flush(fdkey);
}

/* Holds back the end of a write of n bytes at addr; off is the offset after it. */
__noinline int http_hold(__u64 fdkey, __u64 ts, __u64 addr, __u64 n, __u64 off)
{
	struct conn *c = bpf_map_lookup_elem(&conns, &fdkey);
	struct tail *tail = bpf_map_lookup_elem(&tails, &fdkey);
	struct held *held;
	__u32 zero = 0;
	__u64 len = clamp_to(n > TAIL_BYTES ? TAIL_BYTES : n, TAIL_BYTES);

	if (!c)
		return 1;
	if (!tail) {
		void *empty = bpf_map_lookup_elem(&empty_tail, &zero);

		if (empty && !bpf_map_update_elem(&tails, &fdkey, empty, BPF_NOEXIST))
			tail = bpf_map_lookup_elem(&tails, &fdkey);
		if (!tail) {
			lose(LOSS_MAP_FULL, 1);
			skip_call(c, 1, ts);
			return 1;
		}
	}
	c->held = 1;
	held = &tail->slot[tail->next % TAIL_SLOTS];
	if (tail->next - tail->first >= TAIL_SLOTS) {
		skip_call(c, 1, held->ts);
		tail->first++;
	}
	held->ts = ts;
	held->off = off - len;
	held->len = len;
	if (bpf_probe_read_user(held->data, len, (void *)(addr + n - len))) {
		held->len = 0;
		lose(LOSS_FAULT, 1);
	}
	tail->next++;
	return 0;
}

static __always_inline __u32 add_sat(__u32 a, __u64 b)
{
	return b > 0xffffffff - a ? 0xffffffff : a + b;
}

/* Copies up to room of the n bytes at addr, in chunks. */
static __always_inline void http_copy(__u64 fdkey, __u64 ts, __u64 addr, __u64 off, __u32 n, __u32 room,
				      __u32 dir)
{
	__u32 left = n < room ? n : room;

	if (left < n)
		lose(LOSS_TRUNCATED, 1);
	for (int i = 0; i < HTTP_CHUNKS; i++) {
		__u32 len = left > CHUNK_MAX ? CHUNK_MAX : left;
		/* The last record stands for the rest, copied or not. */
		__u32 size = left > CHUNK_MAX ? len : n;

		http_chunk(fdkey, ts, addr, off, HTTP_HOW(size, len, dir));
		addr += len;
		off += len;
		n -= len;
		left -= len;
		if (!left)
			break;
	}
}

/*
 * Whether bytes read can begin a request: methods are upper-case words. On a
 * connection seen from its beginning the first byte decides; one met in midstream
 * can show anything, also a piece of a body, so three letters are asked for there.
 * What else a process accepts on TCP (ZeroMQ, TLS) begins with another byte.
 */
static __always_inline bool begins_request(__u64 addr, __u32 n, bool midstream)
{
	__u8 b[3] = {};

	if (n < sizeof(b)) {
		if (midstream || bpf_probe_read_user(b, 1, (void *)addr))
			return false;
		return b[0] >= 'A' && b[0] <= 'Z';
	}
	if (bpf_probe_read_user(b, sizeof(b), (void *)addr))
		return false;
	if (b[0] < 'A' || b[0] > 'Z')
		return false;
	return !midstream || (b[1] >= 'A' && b[1] <= 'Z' && b[2] >= 'A' && b[2] <= 'Z');
}

/* n contiguous bytes read by the process. */
__noinline int http_read(__u64 fdkey, __u64 ts, __u64 addr, __u32 n)
{
	struct conn *c = bpf_map_lookup_elem(&conns, &fdkey);
	__u32 burst;

	if (!c)
		return 1;
	if (c->writing) {
		flush_held(c, fdkey);
		c->writing = 0;
		c->burst = 0;
		c->resp = 0;
	}
	if (!c->spoken) {
		bool midstream = c->flags & HTTP_MIDSTREAM;

		if (!begins_request(addr, n, midstream)) {
			if (!midstream)
				c->state = CONN_OTHER;
			c->off[0] += n;
			skip_call(c, 0, ts);
			return 0;
		}
		c->spoken = 1;
	}
	burst = c->burst;
	c->burst = add_sat(burst, n);
	if (burst < HTTP_COPY_MAX) {
		http_copy(fdkey, ts, addr, c->off[0], n, HTTP_COPY_MAX - burst, HTTP_READ);
	} else {
		skip_call(c, 0, ts);
		lose(LOSS_TRUNCATED, 1);
	}
	c->off[0] += n;
	return 0;
}

static __always_inline bool begins_response(__u64 addr, __u32 n)
{
	char b[7] = {};

	if (n < sizeof(b) || bpf_probe_read_user(b, sizeof(b), (void *)addr))
		return false;
	return b[0] == 'H' && b[1] == 'T' && b[2] == 'T' && b[3] == 'P' && b[4] == '/' && b[5] == '1' &&
	       b[6] == '.';
}

/* The last chunk of a chunked body without trailers. A plain body can end the same
 * way: then what follows is copied as if it began a response, which does no harm. */
static __always_inline bool ends_response(__u64 addr, __u32 n)
{
	char b[5] = {};

	if (n < sizeof(b) || bpf_probe_read_user(b, sizeof(b), (void *)(addr + n - sizeof(b))))
		return false;
	return b[0] == '0' && b[1] == '\r' && b[2] == '\n' && b[3] == '\r' && b[4] == '\n';
}

/* n contiguous bytes written by the process. */
__noinline int http_write(__u64 fdkey, __u64 ts, __u64 addr, __u32 n)
{
	struct conn *c = bpf_map_lookup_elem(&conns, &fdkey);
	__u32 resp;

	if (!c)
		return 1;
	if (!c->spoken && !c->flags) {
		c->state = CONN_OTHER; /* no HTTP server speaks first */
		return 0;
	}
	if (!c->writing) {
		c->writing = 1;
		c->resp = 0;
	}
	resp = c->resp;
	/* The next of several pipelined responses. */
	if (resp && begins_response(addr, n)) {
		flush_held(c, fdkey);
		resp = 0;
	}
	if (resp < RESPONSE_HEAD || (capture_content && resp < HTTP_COPY_MAX))
		http_copy(fdkey, ts, addr, c->off[1], n, resp < HTTP_COPY_MAX ? HTTP_COPY_MAX - resp : 0,
			  HTTP_WRITE);
	else
		http_hold(fdkey, ts, addr, n, c->off[1] + n);
	c->off[1] += n;
	resp = add_sat(resp, n);
	if (ends_response(addr, n)) {
		flush_held(c, fdkey);
		resp = 0;
	}
	c->resp = resp;
	return 0;
}
