/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Layout of the records that the BPF programs put on the ring. All integers are
 * in host order (little endian on both supported architectures), every struct
 * is padded by name, and each record is one of the *_rec structs followed by
 * h.len payload bytes. bpf/event decodes exactly this layout; a test compares
 * the two through BTF.
 */
#pragma once

enum record_kind {
	REC_FRAME = 1,   /* one ZeroMQ frame, or a chunk of a long one */
	REC_HTTP = 2,    /* bytes of one socket read or write, or a connection's end */
	REC_EXIT = 3,    /* a watched process exited */
	REC_LOSS = 4,    /* made by the agent: records lost, by reason */
	REC_CLOCK = 5,   /* made by the agent: CLOCK_REALTIME against CLOCK_MONOTONIC */
	REC_CAPTURE = 6, /* values read from Python objects at a probe */
	REC_NOTE = 7,    /* made by the agent: what else a replay has to know */
	REC_GPU = 8,     /* what a thread had its GPU do, at a point in time */
};

struct rec_header {
	__u64 ts;   /* CLOCK_MONOTONIC, ns */
	__u32 kind; /* enum record_kind */
	__u32 pid;  /* process (tgid) in the agent's PID namespace */
	__u32 tid;  /* thread in the agent's PID namespace */
	__u32 len;  /* payload bytes after the record struct */
};

enum frame_dir {
	FRAME_SEND = 1, /* zmq_msg_send entered */
	FRAME_RECV = 2, /* zmq_msg_recv returned */
};

enum frame_flags {
	FRAME_MORE = 1,    /* another frame of the same message follows */
	FRAME_CUT = 2,     /* bytes of this frame were left out between the chunks */
	FRAME_RECEIPT = 4, /* only the last bytes were copied, to recognise the frame */
};

struct frame_rec {
	struct rec_header h;
	__u64 sock;  /* address of the socket object in the process */
	__u64 frame; /* id shared by the chunks of one frame: its first timestamp */
	__u32 size;  /* size of the whole frame */
	__u32 off;   /* where this payload begins within the frame */
	__u16 part;  /* position of the frame in its message, from 0 */
	__u8 dir;    /* enum frame_dir */
	__u8 flags;  /* enum frame_flags */
	__u32 pad;
};

enum http_dir {
	HTTP_READ = 1,  /* the process read from the socket: the request */
	HTTP_WRITE = 2, /* the process wrote to the socket: the response */
	HTTP_CLOSE = 3, /* closed by the process or (a read of 0 bytes) the peer: a connection's last record */
};

enum http_flags {
	HTTP_MIDSTREAM = 1, /* the connection was open before it was first seen */
	HTTP_CUT = 2,       /* this call moved more bytes than were copied */
	HTTP_EOF = 4,       /* with HTTP_CLOSE: the peer closed first */
	HTTP_RESET = 8,     /* with HTTP_CLOSE: the peer reset the connection */
};

/*
 * The payload is the bytes [off, off + h.len) of the connection's stream in
 * this direction. A call of more than one record's worth is several records
 * that share h.ts, each with its own off. size is what the record stands for:
 * h.len, or with HTTP_CUT more, when what followed the payload was not copied.
 * A write kept by its end only (the last ones of a response) has off at the
 * first byte kept and no HTTP_CUT: the jump of off shows what is missing.
 */
struct http_rec {
	struct rec_header h;
	__u64 conn;         /* id of the connection: the time it was first seen */
	__u64 off;          /* bytes moved before this payload in this direction */
	__u64 skipped_last; /* time of the latest call not copied, 0 if none */
	__u32 size;         /* bytes this record stands for */
	__u32 skipped;      /* calls in this direction not copied since the last record */
	__u32 fd;
	__u16 lport; /* local port */
	__u16 rport; /* remote port */
	__u8 dir;    /* enum http_dir */
	__u8 flags;  /* enum http_flags */
	__u16 pad;
	__u32 pad2;
};

struct exit_rec {
	struct rec_header h;
	__u32 code; /* wait status of the process */
	__u32 pad;
};

/* Why a record, or a part of one, is missing. Index of the loss counters. */
enum loss_reason {
	LOSS_RING_FULL = 0,   /* no room on the ring */
	LOSS_FAULT = 1,       /* the target's memory could not be read */
	LOSS_MAP_FULL = 2,    /* no room in a map of state */
	LOSS_UNMATCHED = 3,   /* a return without its entry */
	LOSS_UNKNOWN_MSG = 4, /* a ZeroMQ message of a type that is not known */
	LOSS_TRUNCATED = 5,   /* a payload longer than its cap: the rest was left out */
	LOSS_REASONS = 6,
};

struct loss_rec {
	struct rec_header h;
	__u64 lost[LOSS_REASONS]; /* totals since attach */
};

struct clock_rec {
	struct rec_header h; /* ts: the monotonic side */
	__u64 wall;          /* CLOCK_REALTIME at ts, ns since the epoch */
};

enum capture_flags {
	CAPTURE_CUT = 1,    /* no room for all values */
	CAPTURE_RETURN = 2, /* taken when the probed function returned */
};

/*
 * The payload is values, each {u8 tag; u8 slot; u16 len; len bytes} without
 * padding. CAPTURE_ITEMS is followed by count * per values that belong to it;
 * all have its slot.
 */
struct capture_rec {
	struct rec_header h;
	__u64 code;         /* code object of the innermost Python frame */
	__u64 thread_state; /* PyThreadState */
	__u32 plan;
	__u32 probe;
	__u16 values; /* in the payload, those within items not counted */
	__u16 flags;  /* enum capture_flags */
	__u32 took; /* with CAPTURE_RETURN: how long the function ran, ns, all ones if longer; 0 if not known */
};

enum capture_tag {
	CAPTURE_INT = 1,     /* s64 */
	CAPTURE_FLOAT = 2,   /* IEEE 754 binary64 */
	CAPTURE_BOOL = 3,    /* u8 */
	CAPTURE_STR1 = 4,    /* code points of one byte: Latin-1 */
	CAPTURE_STR2 = 5,    /* of two bytes */
	CAPTURE_STR4 = 6,    /* of four bytes */
	CAPTURE_NONE = 7,    /* None; no bytes */
	CAPTURE_ADDR = 8,    /* u64: address of an object */
	CAPTURE_MISSING = 9, /* u8: enum capture_missing */
	CAPTURE_ITEMS = 10,  /* u32 count, u32 total, u32 per: a container */
};

/* Why a value is missing. */
enum capture_missing {
	MISSING_FAULT = 1, /* the memory could not be read */
	MISSING_FRAME = 2, /* no such function among the innermost frames */
	MISSING_UNSET = 3, /* the variable or attribute is not set */
	MISSING_TYPE = 4,  /* the object is of another type */
	MISSING_NAME = 5,  /* the object has no attribute or key of that name */
	MISSING_LIMIT = 6, /* larger than the bound */
	MISSING_BAD = 7,   /* the memory does not hold what it should */
	MISSING_STALE = 8, /* another code object or class lies at the address */
};

struct note_rec {
	struct rec_header h;
	__u32 what; /* numbers of the agent's own */
	__u32 pad;
};

enum gpu_what {
	GPU_MARK = 1,       /* at a capture on the thread, before it and with its h.ts */
	GPU_SYNC_EVENT = 2, /* cuEventSynchronize returned; h.ts is when */
	GPU_SYNC_STREAM = 3,
	GPU_SYNC_CONTEXT = 4,
};

enum gpu_flags {
	GPU_LAUNCHES = 1, /* launches of kernels and copies are counted, not only graphs */
	GPU_SLEPT = 2,    /* of a synchronise: the thread gave up its CPU in it */
	/* From how many epochs before this one on, if not more, marks, graphs, events and waits
	 * were counted without a break. */
	GPU_CONTINUES = 0xff00,
};

/* Counters of a thread since it was first seen. They only grow: a lost record
 * does not make the next difference wrong, only longer. */
enum gpu_count {
	GPU_KERNELS = 0,        /* cuLaunchKernel */
	GPU_KERNELS_EX = 1,     /* cuLaunchKernelEx */
	GPU_COOPERATIVE = 2,    /* cuLaunchCooperativeKernel */
	GPU_GRAPHS = 3,         /* cuGraphLaunch */
	GPU_GRAPHS_UNKNOWN = 4, /* those of graphs whose nodes are not known */
	GPU_GRAPH_KERNELS = 5,  /* kernels in the others */
	GPU_CAPTURED = 6,       /* launches and copies that became nodes of a graph, not executions */
	GPU_COPIES_IN = 7,      /* host to device */
	GPU_COPIES_OUT = 8,     /* device to host */
	GPU_COPIES_DEVICE = 9,  /* within devices */
	GPU_COPIES_OTHER = 10,  /* direction not told by the call */
	GPU_BYTES_IN = 11,
	GPU_BYTES_OUT = 12,
	GPU_BYTES_DEVICE = 13,
	GPU_BYTES_OTHER = 14,
	GPU_RECORDS = 15, /* events recorded */
	GPU_COUNTS = 16,
};

/* Calls of the CUDA runtime that are compared with those of the driver. */
enum gpu_pair {
	GPU_PAIR_LAUNCH = 0,
	GPU_PAIR_LAUNCH_EX = 1,
	GPU_PAIR_GRAPH = 2,
	GPU_PAIR_RECORD = 3,
	GPU_PAIR_SYNC_EVENT = 4, /* in the order of enum gpu_what */
	GPU_PAIR_SYNC_STREAM = 5,
	GPU_PAIR_SYNC_CONTEXT = 6,
	GPU_PAIRS = 7,
};

/* Hits of probes on the driver that are counted, or on the runtime in its place. Not
 * those of rare calls: captures, instantiation of graphs. */
enum gpu_hit {
	GPU_HIT_LAUNCH = 0,
	GPU_HIT_LAUNCH_EX = 1,
	GPU_HIT_LAUNCH_COOP = 2,
	GPU_HIT_COPY = 3,
	GPU_HIT_WAIT_EVENT = 4,
	GPU_HIT_GRAPH = 5,
	GPU_HIT_RECORD = 6,
	GPU_HIT_SYNC_EVENT = 7, /* in the order of enum gpu_what */
	GPU_HIT_SYNC_STREAM = 8,
	GPU_HIT_SYNC_CONTEXT = 9,
	GPU_HIT_SYNC_EXIT = 10,
	GPU_HIT_COMPARE = 11, /* of calls of the runtime with the driver's */
	GPU_HIT_PAIR = 12,    /* of functions of the runtime with the driver's; entries and returns */
	GPU_HITS = 13,
};

/* Why the functions of a graph that was launched are not known. */
enum gpu_unnamed {
	GPU_UNNAMED_UNSEEN = 0,  /* it was not seen being made, with all launches counted */
	GPU_UNNAMED_CHANGED = 1, /* it was made or changed node by node */
	GPU_UNNAMED_ROOM = 2,    /* there were too many graphs, or functions in them */
	GPU_UNNAMED = 3,
};

/*
 * first and last are the times of the first and the latest launch (of those that
 * are counted) since the thread's last GPU_MARK, 0 if there was none.
 */
struct gpu_rec {
	struct rec_header h;
	__u64 object;   /* synchronise: handle of the event or stream */
	__u64 entry;    /* synchronise: when it was called */
	__u64 recorded; /* synchronise: when the event was last recorded before that, 0 if not seen */
	__u64 first;
	__u64 last;
	__u64 counts[GPU_COUNTS];
	__u32 recorder; /* synchronise: the thread that recorded the event, with recorded */
	__u32 result;   /* synchronise: CUresult, 0 if done */
	__u32 plan;     /* mark: plan of the capture */
	__u32 epoch;    /* differences are of one epoch: what is counted changed in between */
	__u16 what;     /* enum gpu_what */
	__u16 flags;    /* enum gpu_flags */
	__u32 marks;    /* of the thread so far, this one included: a gap tells of a lost one */
};

/* Launches with no event recorded in between. */
struct gpu_burst {
	__u64 first;
	__u64 last;
};

/* Behind a GPU_MARK: the first bursts since the one before. Collectives record an event each,
 * so that a step of tensor parallel ranks has many; what matters is where it begins. */
#define GPU_BURSTS 8
