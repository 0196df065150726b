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

struct call {
	__u64 ts; /* entry, ns */
	__u64 fdkey;
	__u64 addr; /* buffer, or iovec array */
	__u32 vecs; /* entries of the iovec array; 0: addr is a buffer */
	__u32 dir;  /* enum http_dir */
};

/* Key: thread (global tgid and tid). Value: its call in progress on a traced
 * connection. A thread has one at most; deleted at the call's exit and at the
 * thread's. When full, the call is lost and LOSS_MAP_FULL counted. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct call);
} calls SEC(".maps");

enum conn_state {
	CONN_OTHER = 1, /* not an accepted TCP connection, or one that ended: ignored */
	CONN_OURS = 2,
};

struct conn {
	__u64 file;         /* kernel address of the struct file behind the descriptor */
	__u64 id;           /* time of first sight */
	__u64 off[2];       /* bytes moved, by direction: see dir_index */
	__u64 skipped_last[2];
	__u32 skipped[2];
	__u32 burst;        /* bytes of the current request, at most 4 GiB - 1 */
	__u32 resp;         /* bytes of the current response, likewise */
	__u16 lport;
	__u16 rport;
	__u8 state;         /* enum conn_state */
	__u8 flags;         /* HTTP_MIDSTREAM, for every record */
	__u8 writing;       /* the latest call was a write */
	__u8 spoken;        /* a read began like a request */
};

/* Key: tgid in the agent's PID namespace in the upper half, descriptor in the
 * lower. Value: the connection, or the note that the descriptor is none of ours.
 * One entry per descriptor that an API server reads or writes: 16384 allows tens
 * of servers with hundreds of clients. Deleted at close, and by the agent when the
 * process is gone. When full, the connection is not traced and LOSS_MAP_FULL is
 * counted for each call on it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, struct conn);
} conns SEC(".maps");

struct held {
	__u64 ts;
	__u64 off;  /* where the kept bytes begin in the response direction */
	__u32 len;  /* kept bytes */
	__u32 pad;
	__u8 data[TAIL_BYTES];
};

struct tail {
	__u32 next;  /* writes held since the last flush */
	__u32 first; /* the oldest of them still held */
	struct held slot[TAIL_SLOTS];
};

/* Key: as in conns. Value: the writes held back of a response; present only while
 * there are some. One entry per response being streamed: 1024 of 4 KiB. When full,
 * the end of the response is not held: it counts as skipped, and LOSS_MAP_FULL. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u64);
	__type(value, struct tail);
} tails SEC(".maps");

/* Key: 0. Value: zeros, the initial value of a tail, too large for the stack. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tail);
} empty_tail SEC(".maps");

static __always_inline __u32 dir_index(__u32 dir)
{
	return dir == HTTP_READ ? 0 : 1;
}

static __always_inline struct file *file_of(__u32 fd)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct fdtable *fdt = BPF_CORE_READ(task, files, fdt);
	struct file **fds = BPF_CORE_READ(fdt, fd);
	struct file *file = 0;

	if (fd >= BPF_CORE_READ(fdt, max_fds))
		return 0;
	bpf_probe_read_kernel(&file, sizeof(file), fds + fd);
	return file;
}

static __always_inline bool listens_on(const struct target *t, __u16 port)
{
	for (int i = 0; i < PORTS_MAX; i++) {
		if (i >= t->nports)
			break;
		if (t->ports[i] == port)
			return true;
	}
	return false;
}

/*
 * Looks at a descriptor for the first time. accepted: the process got it from
 * accept this moment. Otherwise it was open before the process was watched, or is
 * a connection that the process made: it is ours if its local port is one the
 * process listens on, and midstream if the socket has moved bytes already.
 *
 * The counts of the socket are exact here, before the call moves bytes:
 * what is not yet read is subtracted from what arrived, what is not yet
 * acknowledged added to what was (a FIN counts on both sides).
 */
static __always_inline void classify(struct conn *c, const struct target *t, struct file *file, bool accepted)
{
	struct socket *socket;
	struct sock *sk;
	struct tcp_sock *tp;
	__u16 family, protocol;

	c->file = (__u64)file;
	c->state = CONN_OTHER;
	if ((BPF_CORE_READ(file, f_inode, i_mode) & S_IFMT) != S_IFSOCK)
		return;
	socket = BPF_CORE_READ(file, private_data);
	sk = BPF_CORE_READ(socket, sk);
	family = BPF_CORE_READ(sk, __sk_common.skc_family);
	protocol = BPF_CORE_READ(sk, sk_protocol);
	if ((family != AF_INET && family != AF_INET6) || (protocol != IPPROTO_TCP && protocol != IPPROTO_MPTCP))
		return;
	c->lport = BPF_CORE_READ(sk, __sk_common.skc_num);
	c->rport = __builtin_bswap16(BPF_CORE_READ(sk, __sk_common.skc_dport));
	if (!c->rport)
		return;
	if (!accepted) {
		__u64 read, written;

		if (!listens_on(t, c->lport))
			return;
		tp = (struct tcp_sock *)sk;
		read = BPF_CORE_READ(tp, bytes_received) -
		       (__u32)(BPF_CORE_READ(tp, rcv_nxt) - BPF_CORE_READ(tp, copied_seq));
		written = BPF_CORE_READ(tp, bytes_acked) +
			  (__u32)(BPF_CORE_READ(tp, write_seq) - BPF_CORE_READ(tp, snd_una));
		/* Multipath TCP counts elsewhere: such a connection may be in midstream. */
		if (read || written || protocol == IPPROTO_MPTCP)
			c->flags = HTTP_MIDSTREAM;
	}
	c->id = bpf_ktime_get_ns();
	c->state = CONN_OURS;
}

/* The connection behind a descriptor, classified at first sight; null if ignored. */
static __always_inline struct conn *conn_of(const struct target *t, __u64 fdkey, bool accepted)
{
	struct file *file = file_of(fdkey);
	struct conn *c = bpf_map_lookup_elem(&conns, &fdkey);
	struct conn fresh = {};

	if (!file)
		return 0;
	/* The descriptor can have been replaced without close (dup2, close_range). */
	if (!c || c->file != (__u64)file || accepted) {
		classify(&fresh, t, file, accepted);
		if (bpf_map_update_elem(&conns, &fdkey, &fresh, BPF_ANY)) {
			lose(LOSS_MAP_FULL, 1);
			return 0;
		}
		bpf_map_delete_elem(&tails, &fdkey);
		c = bpf_map_lookup_elem(&conns, &fdkey);
	}
	return c && c->state == CONN_OURS ? c : 0;
}

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

#define SEND_HTTP(slot)                                                                    \
	do {                                                                               \
		struct http_rec *r = bpf_ringbuf_reserve(&ring, sizeof(*r) + (slot), 0);   \
		__u64 len = clamp_to(n, (slot));                                           \
											   \
		if (!r) {                                                                  \
			lose(LOSS_RING_FULL, 1);                                           \
			return 1;                                                          \
		}                                                                          \
		fill_http(r, c, fdkey, ts, off, size, len, dir, flags);                    \
		if (bpf_probe_read_user(r + 1, len, (void *)addr)) {                       \
			bpf_ringbuf_discard(r, BPF_RB_NO_WAKEUP);                          \
			lose(LOSS_FAULT, 1);                                               \
			return 1;                                                          \
		}                                                                          \
		if (dir == HTTP_READ)                                                      \
			take_skipped(r, c, 0);                                             \
		else                                                                       \
			take_skipped(r, c, 1);                                             \
		bpf_ringbuf_submit(r, wake_flags(sizeof(*r) + (slot)));                    \
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

	if (!c || !tail)
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
			c->skipped[1]++;
			c->skipped_last[1] = ts;
			return 1;
		}
	}
	held = &tail->slot[tail->next % TAIL_SLOTS];
	if (tail->next - tail->first >= TAIL_SLOTS) {
		c->skipped[1]++;
		c->skipped_last[1] = held->ts;
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
static __always_inline void http_copy(__u64 fdkey, __u64 ts, __u64 addr, __u64 off, __u32 n, __u32 room, __u32 dir)
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
		http_flush(fdkey);
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
			c->skipped[0]++;
			c->skipped_last[0] = ts;
			return 0;
		}
		c->spoken = 1;
	}
	burst = c->burst;
	c->burst = add_sat(burst, n);
	if (burst < HTTP_COPY_MAX) {
		http_copy(fdkey, ts, addr, c->off[0], n, HTTP_COPY_MAX - burst, HTTP_READ);
	} else {
		c->skipped[0]++;
		c->skipped_last[0] = ts;
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
	return b[0] == 'H' && b[1] == 'T' && b[2] == 'T' && b[3] == 'P' && b[4] == '/' && b[5] == '1' && b[6] == '.';
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
		http_flush(fdkey);
		resp = 0;
	}
	if (resp < RESPONSE_HEAD || (capture_content && resp < HTTP_COPY_MAX))
		http_copy(fdkey, ts, addr, c->off[1], n, resp < HTTP_COPY_MAX ? HTTP_COPY_MAX - resp : 0, HTTP_WRITE);
	else
		http_hold(fdkey, ts, addr, n, c->off[1] + n);
	c->off[1] += n;
	resp = add_sat(resp, n);
	if (ends_response(addr, n)) {
		http_flush(fdkey);
		resp = 0;
	}
	c->resp = resp;
	return 0;
}

static __always_inline void enter_call(__u32 fd, __u64 addr, __u32 vecs, __u32 dir)
{
	__u64 ids = current_ids();
	struct target *t = target_of(ids);
	__u64 thread = bpf_get_current_pid_tgid();
	__u64 fdkey = (ids >> 32 << 32) | fd;
	struct call call = {.fdkey = fdkey, .addr = addr, .vecs = vecs, .dir = dir};

	if (!t || !(t->roles & ROLE_HTTP))
		return;
	if (!conn_of(t, fdkey, false))
		return;
	call.ts = bpf_ktime_get_ns();
	if (bpf_map_update_elem(&calls, &thread, &call, BPF_ANY))
		lose(LOSS_MAP_FULL, 1);
}

static __always_inline void enter_msg(__u32 fd, __u64 msg, __u32 dir)
{
	struct target *t = target_of(current_ids());
	struct user_msghdr m;

	if (!t || !(t->roles & ROLE_HTTP))
		return;
	if (bpf_probe_read_user(&m, sizeof(m), (void *)msg)) {
		lose(LOSS_FAULT, 1);
		return;
	}
	if (m.iovlen)
		enter_call(fd, m.iov, m.iovlen > 0xffffffff ? 0xffffffff : m.iovlen, dir);
}

static __always_inline void exit_call(long ret)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct call *entered = bpf_map_lookup_elem(&calls, &thread);
	struct call call;
	struct conn *c;
	__u64 ts, left;

	if (!entered)
		return;
	call = *entered;
	bpf_map_delete_elem(&calls, &thread);
	c = bpf_map_lookup_elem(&conns, &call.fdkey);
	/* A call older than its connection was noted under an earlier watch. */
	if (!c || c->state != CONN_OURS || call.ts < c->id)
		return;
	if (ret <= 0) {
		__u32 flags = 0;

		if (ret == 0 && call.dir == HTTP_READ)
			flags = HTTP_EOF;
		else if (ret == -ECONNRESET || (ret == -EPIPE && call.dir == HTTP_WRITE))
			flags = HTTP_RESET;
		if (flags) {
			http_flush(call.fdkey);
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
		c->skipped[0]++;
		c->skipped_last[0] = ts;
	} else {
		c->off[1] += left;
		c->skipped[1]++;
		c->skipped_last[1] = ts;
	}
}

static __always_inline void exit_accept(long fd)
{
	__u64 ids = current_ids();
	struct target *t = target_of(ids);

	if (fd < 0 || !t || !(t->roles & ROLE_HTTP))
		return;
	conn_of(t, (ids >> 32 << 32) | (__u32)fd, true);
}

#define SYS_ENTER(name)                                 \
	SEC("tracepoint/syscalls/sys_enter_" #name)     \
	int http_enter_##name(struct trace_event_raw_sys_enter *ctx)

#define SYS_EXIT(name)                                  \
	SEC("tracepoint/syscalls/sys_exit_" #name)      \
	int http_exit_##name(struct trace_event_raw_sys_exit *ctx)

#define SYS_EXIT_CALL(name)           \
	SYS_EXIT(name)                \
	{                             \
		exit_call(ctx->ret);  \
		return 0;             \
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
	__u64 ids = current_ids();
	struct target *t = target_of(ids);
	__u64 fdkey = (ids >> 32 << 32) | (__u32)ctx->args[0];
	struct conn *c;

	if (!t || !(t->roles & ROLE_HTTP))
		return 0;
	c = bpf_map_lookup_elem(&conns, &fdkey);
	if (!c)
		return 0;
	if (c->state == CONN_OURS) {
		http_flush(fdkey);
		http_close(c, fdkey, 0);
	}
	bpf_map_delete_elem(&conns, &fdkey);
	return 0;
}
