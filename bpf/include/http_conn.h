/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Which descriptors of an API server are accepted TCP connections, and what is known of each. */
#pragma once

#include "maps.h"

enum conn_state {
	CONN_OTHER = 1, /* not an accepted TCP connection, or one that ended: ignored */
	CONN_OURS = 2,
};

struct conn {
	__u64 file;  /* kernel address of the struct file behind the descriptor */
	__u64 id;    /* time of first sight */
	__u64 ended; /* as of may_serve, before the process was last found to be watched */
	/* Reads first, writes second. */
	__u64 off[2];          /* bytes moved */
	__u64 skipped_last[2]; /* time of the latest call not copied since the last record */
	__u32 skipped[2];      /* number of such calls */
	__u32 burst;           /* bytes of the current request, at most 4 GiB - 1 */
	__u32 resp;            /* bytes of the current response, likewise */
	__u16 lport;
	__u16 rport;
	__u8 state;   /* enum conn_state */
	__u8 flags;   /* HTTP_MIDSTREAM, for every record */
	__u8 writing; /* the latest call was a write */
	__u8 spoken;  /* a read began like a request */
	__u8 held;    /* writes may be held back, in tails */
	__u8 pad[7];
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

/*
 * What most calls are told by: they are made on the path of every program of the host, so
 * that no hash is looked up for them.
 */

/* A bit for each process that is looked at for HTTP, by its tgid in the agent's PID
 * namespace; others can have the same. Set by the agent. */
struct server_bits {
	__u64 ended; /* watches for HTTP that the agent ended */
	__u64 words[SERVER_BITS / 64];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct server_bits);
} servers SEC(".maps");

/* Of struct fd_note: the file is a connection that is traced, while the process is watched. */
#define NOTE_OURS 1

/* What a descriptor is. */
struct fd_note {
	__u64 fdkey; /* 0: none */
	__u64 file;  /* kernel address of the struct file behind it, and NOTE_OURS or not */
};

/* Each descriptor has one place, which the latest takes. Forgotten at close, and by the
 * agent when it begins to watch a process. A note of a connection can outlive the watch: at
 * the end of a call on it conns and targets are asked. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FD_NOTES);
	__type(key, __u32);
	__type(value, struct fd_note);
} fd_notes SEC(".maps");

/* Watches that ended with the process. */
__u64 watches_exited;

/*
 * False: the process is not looked at for HTTP. ended gets the number of watches that have
 * ended, after they are no longer in targets: while it stays the same, a process found there
 * since is still watched.
 */
static __always_inline bool may_serve(__u64 ids, __u64 *ended)
{
	__u32 zero = 0, tgid = ids >> 32;
	struct server_bits *bits = bpf_map_lookup_elem(&servers, &zero);

	if (!bits || !(bits->words[tgid / 64 % (SERVER_BITS / 64)] >> (tgid % 64) & 1))
		return false;
	*ended = *(volatile __u64 *)&bits->ended + *(volatile __u64 *)&watches_exited;
	return true;
}

/* What is known of a process that is looked at for HTTP; null if it is not. */
static __always_inline struct target *http_target_of(__u64 ids)
{
	struct target *t = target_of(ids);

	return t && t->roles & ROLE_HTTP ? t : 0;
}

/* The place of a descriptor. */
static __always_inline struct fd_note *note_of(__u64 fdkey)
{
	__u32 at = ((__u32)fdkey + (__u32)(fdkey >> 32) * FD_NOTES_STEP) % FD_NOTES;

	return bpf_map_lookup_elem(&fd_notes, &at);
}

/* Forgets what a descriptor is. */
static __always_inline void forget_note(__u64 fdkey)
{
	struct fd_note *note = note_of(fdkey);

	if (note && note->fdkey == fdkey)
		note->fdkey = 0;
}

struct held {
	__u64 ts;
	__u64 off; /* where the kept bytes begin in the response direction */
	__u32 len; /* kept bytes */
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

static __always_inline struct file *file_of(__u32 fd)
{
	struct file **fds, *file = 0;
	__u32 max;

	/* From 5.11 on the verifier knows the type of the running task, and no helper has to
	 * read what it leads to. */
	if (bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_get_current_task_btf)) {
		struct fdtable *fdt = bpf_get_current_task_btf()->files->fdt;

		fds = fdt->fd;
		max = fdt->max_fds;
	} else {
		struct task_struct *task = (struct task_struct *)bpf_get_current_task();
		struct fdtable *fdt = BPF_CORE_READ(task, files, fdt);

		fds = BPF_CORE_READ(fdt, fd);
		max = BPF_CORE_READ(fdt, max_fds);
	}
	if (fd < max)
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
	c->id = bpf_ktime_get_ns();
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
	c->state = CONN_OURS;
}

/*
 * Whether a descriptor, which is file, is a traced connection; classified at first sight, and
 * noted. t is of the process, ended of before that was looked up.
 */
static __always_inline bool is_ours(const struct target *t, __u64 ended, __u64 fdkey, struct file *file,
				    bool accepted)
{
	struct conn *c = bpf_map_lookup_elem(&conns, &fdkey);
	struct fd_note *note = note_of(fdkey);
	struct conn fresh = {};
	bool ours;

	if (!file)
		return false;
	/* The descriptor can have been replaced without close (dup2, close_range), or be of an
	 * earlier watch. */
	if (!c || c->file != (__u64)file || accepted || c->id < t->since) {
		classify(&fresh, t, file, accepted);
		if (bpf_map_update_elem(&conns, &fdkey, &fresh, BPF_ANY)) {
			lose(LOSS_MAP_FULL, 1);
			return false;
		}
		bpf_map_delete_elem(&tails, &fdkey);
		c = bpf_map_lookup_elem(&conns, &fdkey);
	}
	if (!c)
		return false;
	ours = c->state == CONN_OURS;
	if (ours)
		c->ended = ended;
	if (note) {
		note->file = (__u64)file | (ours ? NOTE_OURS : 0);
		note->fdkey = fdkey;
	}
	return ours;
}

/*
 * Whether a connection is one of a process that is watched still, where that was so when it
 * was noted. ended is of the beginning of the call.
 */
static __always_inline bool still_watched(struct conn *c, __u64 ended)
{
	struct target *t;

	if (c->ended == ended)
		return true;
	t = http_target_of(current_ids());
	if (!t || c->id < t->since)
		return false;
	c->ended = ended;
	return true;
}
