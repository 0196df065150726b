/*
 * What the parts of the fake driver share. Handles of the driver API are pointers to
 * these structures. Device memory is host memory; a "kernel" takes time and changes
 * nothing, but for the few of emulate.c.
 */
#ifndef FAKE_CUDA_DRIVER_H
#define FAKE_CUDA_DRIVER_H

#define _GNU_SOURCE
#include <cuda.h>
#include "undef.h" /* generated: takes back the macros that rename functions to their newest variants */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API    __attribute__((visibility("default")))
#define PTR(p) ((void *)(uintptr_t)(p))
/* The stream that functions with _ptsz and _ptds in their names mean by 0. */
#define PER_THREAD(s) ((s) ? (s) : CU_STREAM_PER_THREAD)

/* config.c: settings from FAKE_CUDA_* in the environment, read once (README.md). */
struct config {
	int debug;
	int oracle; /* descriptor, -1: none */
	int devices;
	int capability; /* 80: 8.0 */
	size_t memory;  /* bytes of a device */
	long kernel_ns;
	long launch_ns;
	double bytes_per_ns;
	long alias;
	bool emulate;
	bool trace_emulated;
	long first_token, tokens;
	long gather_word, argmax_word;
};

const struct config *config(void);
long kernel_ns(const char *name);
uint64_t now_ns(void);
/* Returns at that moment, to within a microsecond on an idle processor. */
void wait_until(uint64_t ns);

/* oracle.c */
void oracle(const char *format, ...) __attribute__((format(printf, 1, 2)));
void trace(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* context.c */
struct CUctx_st {
	int device;
	unsigned flags;
	CUstream legacy; /* the default stream; under the lock of streams.c */
};

CUcontext current_context(void);
CUcontext primary_context(int device);
CUcontext current_or_primary(void);

/* operation.c: what the device does, one after another in each stream. */
enum op_kind {
	OP_KERNEL = 1,
	OP_COPY,
	OP_SET,
	OP_HOST,
	OP_RECORD,
	OP_WAIT,
	OP_DEPEND,
	OP_GRAPH,
	OP_FREE,
	OP_EXIT
};

enum emulation { EMULATE_NONE, FILL, GATHER, ARGMAX, NUM_SAMPLED, POSITIONS, POST_UPDATE, APPLY_WRITE };
enum { EMULATION_ARGS = 10 };

struct op {
	struct op *next;
	enum op_kind kind;
	uint64_t seq;   /* in its stream, from 1 */
	uint64_t call;  /* number of the call that made it */
	uint64_t graph; /* of a graph's node: number of the call that launched the graph, else 0 */
	bool off;       /* of a graph's node: it is not run */
	uint64_t enqueued;
	int tid;
	const char *name;

	unsigned grid[3], block[3]; /* kernels */
	long ns;
	enum emulation emulation;
	uint64_t args[EMULATION_ARGS];

	void *dst; /* copies, sets, frees */
	const void *src;
	size_t bytes;
	void *staged; /* to free after a copy */
	unsigned value, width;

	CUhostFn host; /* host functions */
	CUstreamCallback callback;
	void *arg;

	CUevent event; /* records and waits; waits for a stream */
	CUstream stream;
	uint64_t until;

	CUgraphExec exec;
	uint64_t *untils; /* of each node of exec: for its records and waits */
};

void run_op(CUstream s, struct op *o);
/* Gives the operation to its stream, or to the graph that captures the stream. */
CUresult enqueue(CUstream s, struct op o, CUgraphNodeType type);

/* streams.c */
#define STREAM_MAGIC 0x5354524541ul

struct CUstream_st {
	uint64_t magic;
	uint64_t id;
	CUcontext context;
	unsigned flags;
	int priority;
	pthread_mutex_t lock;
	pthread_cond_t work, finished;
	struct op *head, *tail;
	uint64_t enqueued, done; /* seq of the last operation */
	bool started, leaving;
	CUgraph capture; /* 0: none */
	uint64_t capture_id;
	CUstream next;
};

enum which_streams { BLOCKING_STREAMS, EVERY_STREAM };
struct stream_list {
	CUstream stream[512];
	int n;
};

CUstream new_stream(CUcontext c, unsigned flags, int priority);
CUstream resolve_stream(CUstream s);
CUstream legacy_of(CUcontext c);
/* The streams of a context that are neither captured nor about to go. */
void list_streams(CUcontext c, enum which_streams which, struct stream_list *out);
void end_captures(CUgraph g);
uint64_t push(CUstream s, struct op *o);
uint64_t enqueued_in(CUstream s);
bool is_idle(CUstream s);
void wait_for(CUstream s, uint64_t seq);
void drain(CUstream s);

/* events.c */
struct CUevent_st {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint64_t recorded, done; /* how often */
	uint64_t time;           /* of the last one done */
	CUgraph capture;         /* recorded in a stream that this graph captures, 0: no */
	uint64_t capture_id;
};

/* graphs.c */
struct CUgraphNode_st {
	struct op op;
	CUgraphNodeType type;
};

struct CUgraph_st {
	CUgraphNode *nodes; /* in the order in which they were added, which is that in which they run */
	size_t n, room;
};

struct CUgraphExec_st {
	struct op *ops;
	CUgraphNode *nodes; /* what they were made of */
	size_t n;
};

CUgraph new_graph(void);
CUresult instantiate(CUgraphExec *exec, CUgraph g);
CUgraphNode add_node(CUgraph g, const struct op *o, CUgraphNodeType type);

/* memory.c */
enum memory_kind { DEVICE_MEMORY, HOST_MEMORY, REGISTERED_MEMORY };
struct allocation {
	struct allocation *next;
	char *start;
	size_t bytes;
	enum memory_kind kind;
	int device;
};

void *allocate(size_t bytes, enum memory_kind kind);
/* Whether the driver knows the memory; the allocation goes to *a unless that is 0. */
bool is_known(const void *p, struct allocation *a);

/* modules.c: a CUfunction and a CUkernel are the same here, a CUmodule and a CUlibrary too. */
#define FUNCTION_MAGIC 0x46554e43ul

struct function {
	uint64_t magic;
	char *name;
	struct module *module;
	struct function *next;
	enum emulation emulation;
	unsigned width; /* bytes of an element, FILL */
};

/* emulate.c */
enum emulation emulation_of(const char *name, unsigned *width);
/* Takes the arguments that the emulation needs, at the call: params are not valid later. */
void take_args(const struct function *f, struct op *o, void **params);
void emulate(const struct op *o);

#endif
