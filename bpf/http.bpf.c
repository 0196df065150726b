//go:build ignore
/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Tap on the accepted TCP connections of API servers, at their system calls.
 *
 * A connection is taken for HTTP when the first bytes read on it can begin a
 * request. On one that was open before (HTTP_MIDSTREAM) reads are left out until
 * that is so; its writes are shown, they can end a response under way.
 *
 * Requests are copied up to a cap. Of a response the head and the tail are: a
 * write that begins within the first RESPONSE_HEAD bytes is copied at once, later
 * ones are held back, the last TAIL_SLOTS of them, and sent when the response
 * ends. So a long stream costs a few records whatever its length.
 *
 * Not seen: sendfile, splice, io_uring, sendmmsg and recvmmsg. No HTTP server that
 * an engine uses moves requests or event streams through these.
 */

#include "http_copy.h"

/* A call under way. A thread has one at most. */
struct call {
	__u64 ts; /* entry, ns */
	__u64 fdkey;
	__u64 addr;  /* buffer, or iovec array */
	__u64 ended; /* as of may_serve */
	__u32 vecs;  /* entries of the iovec array; 0: addr is a buffer */
	__u32 dir;   /* enum http_dir */
};

/* Calls under way, or more. While there are none, calls that end need no lookup. */
__u64 calls_open;
/* Those of them that have no place, or more. */
__u64 calls_apart;

struct call_place {
	/* How many threads want the place, and from bit 16 on the one that has it. One that finds
	 * itself alone after adding itself has the place. It is all in one word, which is only
	 * added to, so that every CPU sees the same order. */
	__u64 taken;
	struct call call;
};

#define TAKEN_BY(tid) ((__u64)(tid) << 16)

/* Each thread has one place, by its global number. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CALL_PLACES);
	__type(key, __u32);
	__type(value, struct call_place);
} call_places SEC(".maps");

/* Key: thread (global tgid and tid). Value: its call under way, if its place is taken by
 * another thread. Deleted at the call's exit and at the thread's. When full, the call is
 * lost and LOSS_MAP_FULL counted. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct call);
} calls SEC(".maps");

static __always_inline struct call_place *place_of(__u64 thread)
{
	__u32 at = (__u32)thread % CALL_PLACES;

	return bpf_map_lookup_elem(&call_places, &at);
}

static __always_inline bool has_place(struct call_place *place, __u64 thread)
{
	return place && *(volatile __u64 *)&place->taken >> 16 == (__u32)thread;
}

static __always_inline bool take_place(struct call_place *place, __u64 thread)
{
	if (!place)
		return false;
	if (has_place(place, thread))
		return true; /* by a call whose end was missed */
	if (*(volatile __u64 *)&place->taken)
		return false;
	__sync_fetch_and_add(&place->taken, 1);
	if (*(volatile __u64 *)&place->taken != 1) {
		__sync_fetch_and_add(&place->taken, -1);
		return false;
	}
	__sync_fetch_and_add(&place->taken, TAKEN_BY((__u32)thread));
	__sync_fetch_and_add(&calls_open, 1);
	return true;
}

static __always_inline void leave_place(struct call_place *place, __u64 thread)
{
	__sync_fetch_and_add(&place->taken, -(TAKEN_BY((__u32)thread) + 1));
	__sync_fetch_and_add(&calls_open, -1);
}

/* Forgets a call that has no place. */
static __always_inline void end_apart(__u64 thread)
{
	if (bpf_map_delete_elem(&calls, &thread))
		return;
	__sync_fetch_and_add(&calls_apart, -1);
	__sync_fetch_and_add(&calls_open, -1);
}

static __always_inline void begin_call(struct call *call)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct call_place *place = place_of(thread);

	call->ts = bpf_ktime_get_ns();
	if (take_place(place, thread)) {
		place->call = *call;
		if (*(volatile __u64 *)&calls_apart)
			end_apart(thread); /* one whose end was missed */
		return;
	}
	__sync_fetch_and_add(&calls_open, 1);
	__sync_fetch_and_add(&calls_apart, 1);
	if (!bpf_map_update_elem(&calls, &thread, call, BPF_NOEXIST))
		return;
	__sync_fetch_and_add(&calls_apart, -1);
	__sync_fetch_and_add(&calls_open, -1);
	/* There may be one whose end was missed. */
	if (bpf_map_update_elem(&calls, &thread, call, BPF_EXIST))
		lose(LOSS_MAP_FULL, 1);
}

/* Takes the call of a thread that is under way; call can be null. */
static __always_inline bool end_call(__u64 thread, struct call *call)
{
	struct call_place *place;
	struct call *apart;

	if (!*(volatile __u64 *)&calls_open)
		return false;
	place = place_of(thread);
	if (has_place(place, thread)) {
		if (call)
			*call = place->call;
		leave_place(place, thread);
		return true;
	}
	if (!*(volatile __u64 *)&calls_apart)
		return false;
	apart = bpf_map_lookup_elem(&calls, &thread);
	if (!apart)
		return false;
	if (call)
		*call = *apart;
	end_apart(thread);
	return true;
}

/*
 * Whether a call is on a traced connection. On success call has what tells of it.
 */
static __always_inline bool traced(__u32 fd, struct call *call)
{
	__u64 ids = current_ids();
	__u64 fdkey = (ids >> 32 << 32) | fd;
	__u64 ended, noted = 0;
	struct fd_note *note;
	struct target *t;
	struct file *file;

	if (!may_serve(ids, &ended))
		return false;
	call->fdkey = fdkey;
	call->ended = ended;
	note = note_of(fdkey);
	if (note && note->fdkey == fdkey)
		noted = note->file;
	file = file_of(fd);
	/* Of two that are noted at once in one place the note can be of both: it counts for the
	 * file that it has. */
	if (noted && (noted & ~NOTE_OURS) == (__u64)file)
		return noted & NOTE_OURS;
	t = http_target_of(ids);
	return t && is_ours(t, ended, fdkey, file, false);
}

static __always_inline void enter_call(__u32 fd, __u64 addr, __u32 vecs, __u32 dir)
{
	struct call call = {.addr = addr, .vecs = vecs, .dir = dir};

	if (traced(fd, &call))
		begin_call(&call);
}

static __always_inline void enter_msg(__u32 fd, __u64 msg, __u32 dir)
{
	struct call call = {.dir = dir};
	struct user_msghdr m;

	if (!traced(fd, &call))
		return;
	if (bpf_probe_read_user(&m, sizeof(m), (void *)msg)) {
		lose(LOSS_FAULT, 1);
		return;
	}
	if (!m.iovlen)
		return;
	call.addr = m.iov;
	call.vecs = m.iovlen > 0xffffffff ? 0xffffffff : m.iovlen;
	begin_call(&call);
}

static __always_inline void exit_call(long ret)
{
	struct call call;
	struct conn *c;
	__u64 ts, left;

	if (!end_call(bpf_get_current_pid_tgid(), &call))
		return;
	c = bpf_map_lookup_elem(&conns, &call.fdkey);
	/* A call older than its connection was noted under an earlier watch. */
	if (!c || c->state != CONN_OURS || call.ts < c->id || !still_watched(c, call.ended)) {
		forget_note(call.fdkey);
		return;
	}
	if (ret <= 0) {
		__u32 flags = 0;

		if (ret == 0 && call.dir == HTTP_READ)
			flags = HTTP_EOF;
		else if (ret == -ECONNRESET || (ret == -EPIPE && call.dir == HTTP_WRITE))
			flags = HTTP_RESET;
		if (flags) {
			flush_held(c, call.fdkey);
			http_close(c, call.fdkey, flags);
		}
		return;
	}
	/* A write is stamped at its entry and a read at its exit: the client cannot
	 * have seen the bytes before the one, nor sent them after the other. */
	ts = call.dir == HTTP_READ ? bpf_ktime_get_ns() : call.ts;
	left = ret;
	for (int i = 0; i < IOV_WALK; i++) {
		struct iovec v = {.base = call.addr, .len = left};

		if (call.vecs) {
			if (i >= call.vecs)
				break;
			if (bpf_probe_read_user(&v, sizeof(v), (void *)(call.addr + i * sizeof(v)))) {
				lose(LOSS_FAULT, 1);
				break;
			}
			if (v.len > left)
				v.len = left;
		}
		if (v.len) {
			if (call.dir == HTTP_READ)
				http_read(call.fdkey, ts, v.base, v.len);
			else
				http_write(call.fdkey, ts, v.base, v.len);
			if (c->state != CONN_OURS)
				return;
		}
		left -= v.len;
		if (!left)
			return;
	}
	/* More pieces than are looked at. */
	lose(LOSS_TRUNCATED, 1);
	if (call.dir == HTTP_READ) {
		c->off[0] += left;
		skip_call(c, 0, ts);
	} else {
		c->off[1] += left;
		skip_call(c, 1, ts);
	}
}

static __always_inline void exit_accept(long fd)
{
	__u64 ended, ids = current_ids();
	struct target *t;

	if (fd < 0 || !may_serve(ids, &ended))
		return;
	t = http_target_of(ids);
	if (t)
		is_ours(t, ended, (ids >> 32 << 32) | (__u32)fd, file_of(fd), true);
}

#define SYS_ENTER(name)                             \
	SEC("tracepoint/syscalls/sys_enter_" #name) \
	int http_enter_##name(struct trace_event_raw_sys_enter *ctx)

#define SYS_EXIT(name)                             \
	SEC("tracepoint/syscalls/sys_exit_" #name) \
	int http_exit_##name(struct trace_event_raw_sys_exit *ctx)

#define SYS_EXIT_CALL(name)          \
	SYS_EXIT(name)               \
	{                            \
		exit_call(ctx->ret); \
		return 0;            \
	}

/* read(fd, buf, count), write(fd, buf, count) */
SYS_ENTER(read)
{
	enter_call(ctx->args[0], ctx->args[1], 0, HTTP_READ);
	return 0;
}

SYS_ENTER(write)
{
	enter_call(ctx->args[0], ctx->args[1], 0, HTTP_WRITE);
	return 0;
}

/* readv(fd, iov, iovcnt), writev(fd, iov, iovcnt) */
SYS_ENTER(readv)
{
	if (ctx->args[2])
		enter_call(ctx->args[0], ctx->args[1], ctx->args[2], HTTP_READ);
	return 0;
}

SYS_ENTER(writev)
{
	if (ctx->args[2])
		enter_call(ctx->args[0], ctx->args[1], ctx->args[2], HTTP_WRITE);
	return 0;
}

/* recvfrom(fd, buf, len, flags, ...), sendto(fd, buf, len, flags, ...). Bytes only
 * peeked at are read again. */
SYS_ENTER(recvfrom)
{
	if (!(ctx->args[3] & MSG_PEEK))
		enter_call(ctx->args[0], ctx->args[1], 0, HTTP_READ);
	return 0;
}

SYS_ENTER(sendto)
{
	enter_call(ctx->args[0], ctx->args[1], 0, HTTP_WRITE);
	return 0;
}

/* recvmsg(fd, msg, flags), sendmsg(fd, msg, flags) */
SYS_ENTER(recvmsg)
{
	if (!(ctx->args[2] & MSG_PEEK))
		enter_msg(ctx->args[0], ctx->args[1], HTTP_READ);
	return 0;
}

SYS_ENTER(sendmsg)
{
	enter_msg(ctx->args[0], ctx->args[1], HTTP_WRITE);
	return 0;
}

SYS_EXIT_CALL(read)
SYS_EXIT_CALL(write)
SYS_EXIT_CALL(readv)
SYS_EXIT_CALL(writev)
SYS_EXIT_CALL(recvfrom)
SYS_EXIT_CALL(sendto)
SYS_EXIT_CALL(recvmsg)
SYS_EXIT_CALL(sendmsg)

SYS_EXIT(accept)
{
	exit_accept(ctx->ret);
	return 0;
}

SYS_EXIT(accept4)
{
	exit_accept(ctx->ret);
	return 0;
}

/* close(fd): at the entry, since at the exit another thread may own the number. */
SYS_ENTER(close)
{
	__u64 ended, ids = current_ids();
	__u64 fdkey = (ids >> 32 << 32) | (__u32)ctx->args[0];
	struct conn *c;

	if (!may_serve(ids, &ended) || !http_target_of(ids))
		return 0;
	forget_note(fdkey);
	c = bpf_map_lookup_elem(&conns, &fdkey);
	if (!c)
		return 0;
	if (c->state == CONN_OURS) {
		flush_held(c, fdkey);
		http_close(c, fdkey, 0);
	}
	bpf_map_delete_elem(&conns, &fdkey);
	return 0;
}
