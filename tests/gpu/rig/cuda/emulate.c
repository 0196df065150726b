/*
 * The kernels whose results the host reads back: without them no request ends. vLLM's
 * V2 model runner (vllm/v1/worker/gpu) takes the number of sampled tokens and the token
 * ids from the GPU, where zeros mean "no token yet". They are known by name, and run
 * on the host with the arguments of the launch. Their places are those of vLLM 0.32
 * and torch 2.13; README.md has the table and says what to look at with other versions.
 */
#include "driver.h"

/* Arguments of a launch: params[i] points to the i-th. */
static uint64_t word(void **params, int i)
{
	uint64_t w;

	memcpy(&w, params[i], sizeof w);
	return w;
}

static uint64_t half(void **params, int i)
{
	uint32_t w;

	memcpy(&w, params[i], sizeof w);
	return w;
}

static bool is_pointer(uint64_t w)
{
	return is_known(PTR(w), NULL);
}

/* Dummy batches have garbage for indices: nothing outside of an allocation is touched. */
#define IS_VALID(p) is_known(p, NULL)

static const struct {
	const char *name, *part; /* parts of the name; no part: the whole name */
	enum emulation emulation;
} by_name[] = {
	{"vectorized_elementwise_kernel", "FillFunctorI", FILL},
	{"_scatter_gather_elementwise_kernel", "OpaqueTypeILi8E", GATHER},
	{"reduce_kernel", "ArgMaxOps", ARGMAX},
	{"_get_num_sampled_and_rejected_kernel", NULL, NUM_SAMPLED},
	{"_prepare_pos_seq_lens_kernel", NULL, POSITIONS},
	{"_post_update_kernel", NULL, POST_UPDATE},
	{"_apply_write_kernel", NULL, APPLY_WRITE},
};

/* Bytes of the type in a mangled name, 0: not known. */
static unsigned width_of(const char *type)
{
	if (strchr("abh", *type)) /* signed char, bool, unsigned char */
		return 1;
	if (*type == 's' || !strncmp(type, "N3c108BF", 8) ||
	    !strncmp(type, "N3c104Ha", 8)) /* c10::BFloat16, Half */
		return 2;
	if (strchr("if", *type))
		return 4;
	if (strchr("ld", *type))
		return 8;
	return 0;
}

enum emulation emulation_of(const char *name, unsigned *width)
{
	size_t i;

	for (i = 0; i < sizeof by_name / sizeof *by_name; i++) {
		const char *part = by_name[i].part, *at;

		if (!part) {
			if (!strcmp(name, by_name[i].name))
				return by_name[i].emulation;
			continue;
		}
		if (!strstr(name, by_name[i].name) || !(at = strstr(name, part)))
			continue;
		if (by_name[i].emulation == FILL) {
			*width = width_of(at + strlen(part));
			if (!*width)
				return EMULATE_NONE;
		}
		return by_name[i].emulation;
	}
	return EMULATE_NONE;
}

/* (number of elements, functor with the value, pointers with the destination first) */
static bool take_fill(struct op *o, void **params, unsigned width)
{
	o->args[0] = half(params, 0);
	memcpy(&o->args[1], params[1], width);
	o->args[2] = word(params, 2);
	o->args[3] = width;
	return is_pointer(o->args[2]);
}

/* (number of elements, lambda that has the destination as one of its words) */
static bool take_gather(struct op *o, void **params)
{
	const uint64_t *lambda = params[1];
	int i;

	o->args[0] = half(params, 0);
	o->args[1] = lambda[config()->gather_word];
	if (config()->debug > 0) /* find the word in another version */
		for (i = 0; i < 90; i++)
			if (is_pointer(lambda[i]))
				trace("gather of %lu: word %d -> %lx", o->args[0], i, lambda[i]);
	return is_pointer(o->args[1]);
}

/* (ReduceOp: a ReduceConfig with the number of outputs, later the destination) */
static bool take_argmax(struct op *o, void **params)
{
	const uint64_t *reduce = params[0];
	const uint32_t *configuration = params[0];
	const int outputs = 8; /* ReduceConfig.num_outputs, in words of 4 bytes */
	int i;

	if (config()->debug > 0)
		for (i = 0; i < 220; i++)
			if (is_pointer(reduce[i]))
				trace("argmax: word %d -> %lx, outputs %u", i, reduce[i],
				      configuration[outputs]);
	if (config()->argmax_word < 0)
		return false;
	o->args[0] = configuration[outputs];
	o->args[1] = reduce[config()->argmax_word];
	return is_pointer(o->args[1]);
}

/*
 * (idx_mapping, num_computed_tokens, last_sampled_tokens, output_bin_counts and its
 * stride, sampled_tokens and its stride, num_sampled, num_rejected, query_start_loc,
 * all_token_ids and its stride, total_len). Triton leaves out arguments that are None or 1:
 * the bin counts may be missing as a pair or leave their stride behind, and the stride
 * of sampled_tokens is 1.
 */
static bool take_post_update(struct op *o, void **params)
{
	int sampled = 3, i;

	if (!is_pointer(word(params, 3)))
		sampled = 4;
	else if (!is_pointer(word(params, 4)))
		sampled = 5;
	for (i = 0; i < 3; i++)
		o->args[i] = word(params, i);
	for (i = 0; i < 5; i++)
		o->args[3 + i] = word(params, sampled + i);
	o->args[8] = half(params, sampled + 5);
	o->args[9] = word(params, sampled + 6);
	for (i = 0; i < 10; i++) {
		if (i == 8 || is_pointer(o->args[i]))
			continue;
		oracle("{\"op\":\"emul_skip\",\"arg\":%d,\"sampled\":%d,\"value\":\"%lx\"}", i, sampled,
		       o->args[i]);
		return false;
	}
	return true;
}

/* (output, its stride unless that is 1, write indices, starts, contents, cumulative lengths) */
static bool take_apply_write(struct op *o, void **params)
{
	bool strided = !is_pointer(word(params, 1));
	int i;

	/* With several groups a pointer to pointers comes first, and a list of groups last. */
	if (!strided && is_pointer(word(params, 5)))
		return false;
	o->args[0] = word(params, 0);
	o->args[1] = strided ? half(params, 1) : 1;
	for (i = 2; i < 6; i++)
		o->args[i] = word(params, strided ? i : i - 1);
	for (i = 0; i < 6; i++)
		if (i != 1 && !is_pointer(o->args[i]))
			return false;
	return true;
}

void take_args(const struct function *f, struct op *o, void **params)
{
	bool taken = true;
	int i;

	switch (f->emulation) {
	case FILL:
		taken = take_fill(o, params, f->width);
		break;
	case GATHER:
		taken = take_gather(o, params);
		break;
	case ARGMAX:
		taken = take_argmax(o, params);
		break;
	case NUM_SAMPLED: /* (num_sampled, num_rejected, seq_lens, cu_num_logits, idx_mapping, prefill_len) */
		for (i = 0; i < 6; i++)
			o->args[i] = word(params, i);
		break;
	case POSITIONS: /* (pos, seq_lens, idx_mapping, query_start_loc, num_computed_tokens, max_num_reqs) */
		for (i = 0; i < 5; i++)
			o->args[i] = word(params, i);
		o->args[5] = half(params, 5);
		break;
	case POST_UPDATE:
		taken = take_post_update(o, params);
		break;
	case APPLY_WRITE:
		taken = take_apply_write(o, params);
		break;
	case EMULATE_NONE:
		return;
	}
	if (taken)
		o->emulation = f->emulation;
}

static void fill(const struct op *o)
{
	char *dst = PTR(o->args[2]);
	size_t width = o->args[3];
	int i, n = o->args[0];

	for (i = 0; i < n; i++)
		memcpy(dst + i * width, &o->args[1], width);
}

/* Token ids, one after another. */
static void draw_tokens(const struct op *o)
{
	static unsigned long drawn;
	int64_t *dst = PTR(o->args[1]);
	int i, n = o->args[0];

	for (i = 0; i < n; i++)
		dst[i] = config()->first_token + (long)(__sync_fetch_and_add(&drawn, 1) % config()->tokens);
}

/* A request whose prompt is not yet whole samples nothing. */
static void num_sampled(const struct op *o)
{
	int32_t *sampled = PTR(o->args[0]), *rejected = PTR(o->args[1]);
	const int32_t *seq_lens = PTR(o->args[2]), *prefill_len = PTR(o->args[5]);
	const int64_t *slots = PTR(o->args[4]);
	unsigned i;

	for (i = 0; i < o->grid[0]; i++) {
		const int32_t *prefill = prefill_len + slots[i];

		if (slots[i] >= 0 && IS_VALID(prefill) && seq_lens[i] < *prefill) {
			sampled[i] = 0;
			oracle("{\"op\":\"emul_partial_prefill\",\"b\":%u,\"slot\":%ld,\"seq\":%d,\"prefill\":%"
			       "d,\"end\":%lu}",
			       i, slots[i], seq_lens[i], *prefill, now_ns());
		}
		rejected[i] = 0;
	}
}

static void positions(const struct op *o)
{
	int64_t *pos = PTR(o->args[0]);
	int32_t *seq_lens = PTR(o->args[1]);
	const int64_t *slots = PTR(o->args[2]);
	const int32_t *starts = PTR(o->args[3]), *computed = PTR(o->args[4]);
	/* The last program of the grid clears the rest of seq_lens. */
	int n = o->grid[0] - 1, most = o->args[5], i, j;

	for (i = 0; i < n; i++) {
		int first, count = starts[i + 1] - starts[i];

		if (slots[i] < 0 || !IS_VALID(&computed[slots[i]]))
			continue;
		first = computed[slots[i]];
		seq_lens[i] = first + count;
		if (count <= 0 || !IS_VALID(&pos[starts[i]]) || !IS_VALID(&pos[starts[i] + count - 1]))
			continue;
		for (j = 0; j < count; j++)
			pos[starts[i] + j] = first + j;
	}
	for (i = n; i < most; i++)
		seq_lens[i] = 0;
}

/* Once a step: what the batch sampled becomes part of the requests. */
static void post_update(const struct op *o)
{
	const int64_t *slots = PTR(o->args[0]), *sampled = PTR(o->args[3]);
	int32_t *computed = PTR(o->args[1]), *all = PTR(o->args[7]), *total_len = PTR(o->args[9]);
	int64_t *last = PTR(o->args[2]);
	const int32_t *num_sampled = PTR(o->args[4]), *num_rejected = PTR(o->args[5]),
		      *starts = PTR(o->args[6]);
	const int most = 64; /* more than any engine samples at once: garbage */
	unsigned i;

	for (i = 0; i < o->grid[0]; i++) {
		int64_t slot = slots[i];
		int n = num_sampled[i], j;
		int32_t *tokens;

		if (slot < 0 || n < 0 || n > most || !IS_VALID(&total_len[slot]) || !IS_VALID(&computed[slot]))
			continue;
		tokens = all + slot * (int32_t)o->args[8] + total_len[slot];
		if (total_len[slot] < 0 || (n && !IS_VALID(&tokens[n - 1])))
			continue;
		for (j = 0; j < n; j++)
			tokens[j] = sampled[i + j];
		if (n) {
			last[slot] = sampled[i + n - 1];
			total_len[slot] += n;
		}
		computed[slot] += starts[i + 1] - starts[i] - num_rejected[i];
		if (config()->trace_emulated)
			oracle("{\"op\":\"emul_post\",\"b\":%u,\"slot\":%ld,\"ns\":%d,\"nr\":%d,\"q0\":%d,"
			       "\"q1\":%d,\"nc\":%d,\"end\":%lu}",
			       i, slot, n, num_rejected[i], starts[i], starts[i + 1], computed[slot], now_ns());
	}
}

static void apply_write(const struct op *o)
{
	int32_t *output = PTR(o->args[0]);
	int64_t stride = (int32_t)o->args[1];
	const int32_t *rows = PTR(o->args[2]), *starts = PTR(o->args[3]), *contents = PTR(o->args[4]);
	const int32_t *ends = PTR(o->args[5]);
	unsigned i;

	for (i = 0; i < o->grid[0]; i++) {
		int from = i ? ends[i - 1] : 0, n = ends[i] - from;
		int32_t *dst = output + rows[i] * stride + starts[i];

		if (n <= 0 || !IS_VALID(dst) || !IS_VALID(dst + n - 1) || !IS_VALID(contents + ends[i] - 1))
			continue;
		memcpy(dst, contents + from, n * sizeof *dst);
		if (config()->trace_emulated)
			oracle("{\"op\":\"emul_apply\",\"row\":%d,\"first\":%d,\"n\":%d,\"end\":%lu}", rows[i],
			       *dst, n, now_ns());
	}
}

void emulate(const struct op *o)
{
	switch (o->emulation) {
	case FILL:
		fill(o);
		break;
	case GATHER:
	case ARGMAX:
		draw_tokens(o);
		break;
	case NUM_SAMPLED:
		num_sampled(o);
		break;
	case POSITIONS:
		positions(o);
		break;
	case POST_UPDATE:
		post_update(o);
		break;
	case APPLY_WRITE:
		apply_write(o);
		break;
	case EMULATE_NONE:
		break;
	}
}
