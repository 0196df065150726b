//go:build ignore
/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Tap on libzmq: the frames that an engine core sends and receives, and receipts
 * of the frames that a front end receives; or, where each process of an engine is
 * looked at for what it sends, the frames sent.
 *
 * In the core every frame of the two request sockets is copied; which sockets
 * those are is left to the decoder. A send is seen at its entry, where the frame
 * still belongs to the caller: a call that fails (a non-blocking socket at its
 * high-water mark, a signal) and is made again shows twice.
 */

/*
 * zmq_msg_t of libzmq 4.2 to 4.3 (src/msg.hpp), 64 bytes: a union whose members
 * all begin with a metadata pointer and have type and flags at the same place.
 */
#define ZMQ_MSG_CONTENT   8  /* vsm: bytes; lmsg, zclmsg: content_t *; cmsg: void * */
#define ZMQ_MSG_CMSG_SIZE 16 /* cmsg: size_t */
#define ZMQ_MSG_VSM_SIZE  41 /* vsm: unsigned char */
#define ZMQ_MSG_TYPE      42
#define ZMQ_MSG_FLAGS     43
#define ZMQ_MSG_HEAD      48 /* bytes read of it */
#define ZMQ_VSM_MAX       33
#define ZMQ_FLAG_MORE     1 /* msg_t::more */
#define ZMQ_SNDMORE       2 /* zmq.h */

enum zmq_msg_type {
	ZMQ_TYPE_VSM = 101,    /* bytes within the message */
	ZMQ_TYPE_LMSG = 102,   /* bytes in a content_t of their own */
	ZMQ_TYPE_CMSG = 104,   /* constant bytes */
	ZMQ_TYPE_ZCLMSG = 105, /* bytes in a receive buffer, by a content_t */
};

/* Head of libzmq's content_t. */
struct zmq_content {
	__u64 data;
	__u64 size;
};

struct frame {
	__u64 data; /* address in the process */
	__u64 size;
	__u8 more; /* message flag, valid after a receive */
};

struct recv_call {
	__u64 msg;
	__u64 sock;
	__u64 ts; /* entry */
};

/* Key: thread (global tgid and tid). Value: its zmq_msg_recv in progress. One
 * entry per thread inside the call; an engine has tens of threads with sockets.
 * Deleted at the return and at the thread's exit. When full, the receive is lost
 * and LOSS_MAP_FULL counted. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct recv_call);
} recvs SEC(".maps");

struct part_key {
	__u64 sock; /* address in the process */
	__u32 tgid;
	__u32 dir; /* enum frame_dir */
};

/* Key: socket and direction. Value: frames seen of the message under way; absent
 * between messages. LRU: a message that never ends (its process died) must not
 * hold its place. With the host's request sockets in tens, eviction of a message
 * under way is not expected; it would restart the numbering of its frames. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct part_key);
	__type(value, __u32);
} parts SEC(".maps");

/* Entries of parts, or more: those that were evicted count on. While there are none, a
 * message of one frame needs no lookup. */
__u64 parts_open;

/* Position of this frame in its message; more tells whether another follows. */
static __always_inline __u32 next_part(__u32 tgid, __u64 sock, __u32 dir, bool more)
{
	struct part_key key = {.sock = sock, .tgid = tgid, .dir = dir};
	__u32 *seen, part;

	if (!more && !*(volatile __u64 *)&parts_open)
		return 0;
	seen = bpf_map_lookup_elem(&parts, &key);
	part = seen ? *seen : 0;

	if (more && seen) {
		*seen = part + 1;
	} else if (more) {
		__u32 one = 1;

		__sync_fetch_and_add(&parts_open, 1);
		if (bpf_map_update_elem(&parts, &key, &one, BPF_ANY)) {
			__sync_fetch_and_add(&parts_open, -1);
			lose(LOSS_MAP_FULL, 1);
		}
	} else if (seen && !bpf_map_delete_elem(&parts, &key)) {
		__sync_fetch_and_add(&parts_open, -1);
	}
	return part;
}

/* Reads where a message's bytes are. False, with the loss counted, if that cannot be told. */
static __always_inline bool read_msg(__u64 msg, struct frame *f)
{
	__u8 head[ZMQ_MSG_HEAD];
	struct zmq_content content;
	__u64 at;

	if (bpf_probe_read_user(head, sizeof(head), (void *)msg)) {
		lose(LOSS_FAULT, 1);
		return false;
	}
	f->more = head[ZMQ_MSG_FLAGS] & ZMQ_FLAG_MORE;
	at = *(__u64 *)(head + ZMQ_MSG_CONTENT);
	switch (head[ZMQ_MSG_TYPE]) {
	case ZMQ_TYPE_VSM:
		f->data = msg + ZMQ_MSG_CONTENT;
		f->size = head[ZMQ_MSG_VSM_SIZE];
		if (f->size <= ZMQ_VSM_MAX)
			return true;
		break;
	case ZMQ_TYPE_CMSG:
		f->data = at;
		f->size = *(__u64 *)(head + ZMQ_MSG_CMSG_SIZE);
		return true;
	case ZMQ_TYPE_LMSG:
	case ZMQ_TYPE_ZCLMSG:
		if (bpf_probe_read_user(&content, sizeof(content), (void *)at)) {
			lose(LOSS_FAULT, 1);
			return false;
		}
		f->data = content.data;
		f->size = content.size;
		return true;
	}
	lose(LOSS_UNKNOWN_MSG, 1);
	return false;
}

/*
 * Sends one chunk. The arguments are packed since a global function takes at most
 * five, all of them scalars before 5.13; it is global so that it is verified once
 * instead of once per call.
 */
#define FRAME_SPAN(size, off)          ((__u64)(size) << 32 | (off))
#define FRAME_HOW(n, part, dir, flags) ((__u64)(n) << 32 | (__u64)(part) << 16 | (dir) << 8 | (flags))

__noinline int frame_chunk(__u64 id, __u64 sock, __u64 addr, __u64 span, __u64 how)
{
	__u64 ids = current_ids();
	__u32 n = how >> 32;

#define SEND_FRAME(slot)                                                                  \
	do {                                                                              \
		struct frame_rec *r = bpf_ringbuf_reserve(&ring, sizeof(*r) + (slot), 0); \
		__u64 len = clamp_to(n, (slot));                                          \
                                                                                          \
		if (!r) {                                                                 \
			lose(LOSS_RING_FULL, 1);                                          \
			return 1;                                                         \
		}                                                                         \
		fill_header(&r->h, id, REC_FRAME, ids, len);                              \
		r->sock = sock;                                                           \
		r->frame = id;                                                            \
		r->size = span >> 32;                                                     \
		r->off = span;                                                            \
		r->part = how >> 16;                                                      \
		r->dir = how >> 8;                                                        \
		r->flags = how;                                                           \
		r->pad = 0;                                                               \
		if (bpf_probe_read_user(r + 1, len, (void *)addr)) {                      \
			bpf_ringbuf_discard(r, BPF_RB_NO_WAKEUP);                         \
			lose(LOSS_FAULT, 1);                                              \
			return 1;                                                         \
		}                                                                         \
		bpf_ringbuf_submit(r, wake_flags(sizeof(*r) + (slot)));                   \
	} while (0)

	SLOT_SIZES(n, SEND_FRAME);
	return 0;
}

/* Copies a frame of the core by the rule of limits.h. */
static __always_inline void copy_frame(__u64 sock, const struct frame *f, __u32 part, __u32 dir, __u32 flags)
{
	__u64 now = bpf_ktime_get_ns();
	/* ZeroMQ frames can exceed 4 GiB; event.h cannot, and nothing decodable does. */
	__u32 size = f->size > 0xffffffff ? 0xffffffff : f->size;
	__u32 off = 0;

	if (part > 0xffff)
		part = 0xffff;
	if (part >= AUX_PART) {
		__u32 n = size;

		if (n > AUX_COPY_MAX) {
			n = AUX_COPY_MAX;
			flags |= FRAME_CUT;
		}
		frame_chunk(now, sock, f->data, FRAME_SPAN(size, 0), FRAME_HOW(n, part, dir, flags));
		return;
	}
	if (size > FRAME_COPY_MAX) {
		flags |= FRAME_CUT;
		lose(LOSS_TRUNCATED, 1);
	}
	for (int i = 0; i < FRAME_CHUNKS; i++) {
		__u32 n = size - off;

		if (n > CHUNK_MAX) {
			n = CHUNK_MAX;
			if (i == FRAME_CHUNKS - 1)
				off = size - n;
		}
		frame_chunk(now, sock, f->data + off, FRAME_SPAN(size, off), FRAME_HOW(n, part, dir, flags));
		off += n;
		if (off >= size)
			break;
	}
}

/* int zmq_msg_send(zmq_msg_t *msg, void *socket, int flags) */
SEC("uprobe/zmq_msg_send")
int BPF_KPROBE(wire_send, __u64 msg, __u64 sock, int flags)
{
	__u64 ids = current_ids();
	struct target *t = target_of(ids);
	struct frame f = {};
	bool more = flags & ZMQ_SNDMORE;
	__u32 part;

	if (!t || !(t->roles & (ROLE_CORE | ROLE_SEND)))
		return 0;
	part = next_part(ids >> 32, sock, FRAME_SEND, more);
	if (!read_msg(msg, &f))
		return 0;
	/* Wake-ups of the workers (vLLM shm_broadcast, one per step). Outputs are
	 * msgpack arrays or longer fixed strings, never one byte. */
	if (part == 0 && !more && f.size <= NOTIFY_MAX)
		return 0;
	copy_frame(sock, &f, part, FRAME_SEND, more ? FRAME_MORE : 0);
	return 0;
}

/* int zmq_msg_recv(zmq_msg_t *msg, void *socket, int flags) */
SEC("uprobe/zmq_msg_recv")
int BPF_KPROBE(wire_recv_enter, __u64 msg, __u64 sock)
{
	struct target *t = target_of(current_ids());
	__u64 thread = bpf_get_current_pid_tgid();
	struct recv_call call = {.msg = msg, .sock = sock, .ts = bpf_ktime_get_ns()};

	if (!t || !(t->roles & (ROLE_CORE | ROLE_RECEIPT)))
		return 0;
	if (bpf_map_update_elem(&recvs, &thread, &call, BPF_ANY))
		lose(LOSS_MAP_FULL, 1);
	return 0;
}

/* At the return instructions of zmq_msg_recv: the frame's size, or -1. */
SEC("uprobe/zmq_msg_recv_return")
int BPF_KPROBE(wire_recv_exit)
{
	__u64 ids = current_ids();
	struct target *t = target_of(ids);
	__u64 thread = bpf_get_current_pid_tgid();
	struct recv_call *call, c;
	struct frame f = {};
	bool known;
	__u32 part;

	if (!t || !(t->roles & (ROLE_CORE | ROLE_RECEIPT)))
		return 0;
	call = bpf_map_lookup_elem(&recvs, &thread);
	if (!call || call->ts < t->since) {
		lose(LOSS_UNMATCHED, 1);
		return 0;
	}
	c = *call;
	bpf_map_delete_elem(&recvs, &thread);
	if ((int)PT_REGS_RC(ctx) < 0)
		return 0;
	known = read_msg(c.msg, &f);
	part = next_part(ids >> 32, c.sock, FRAME_RECV, f.more);
	if (!known)
		return 0;
	/* As above; requests have a type frame before their payload. */
	if (part == 0 && !f.more && f.size <= NOTIFY_MAX)
		return 0;
	if (t->roles & ROLE_CORE) {
		copy_frame(c.sock, &f, part, FRAME_RECV, f.more ? FRAME_MORE : 0);
	} else if (part == 0) {
		__u64 now = bpf_ktime_get_ns();
		__u32 size = f.size > 0xffffffff ? 0xffffffff : f.size;
		__u32 n = size > RECEIPT_MAX ? RECEIPT_MAX : size;

		frame_chunk(now, c.sock, f.data + (f.size - n), FRAME_SPAN(size, size - n),
			    FRAME_HOW(n, part, FRAME_RECV, FRAME_RECEIPT | (f.more ? FRAME_MORE : 0)));
	}
	return 0;
}
