"""Writes messages as SGLang's own classes and codecs make them, with what is in
them, as JSON lines. Run it with the interpreter of an installed SGLang:

SGLANG_USE_CPU_ENGINE=1 python frames.py > frames-VERSION.jsonl
"""

import array
import base64
import dataclasses
import json
import pickle
import sys
import zlib

import sglang
from sglang.srt.managers import io_struct
from sglang.srt.sampling.sampling_params import SamplingParams

try:
    from sglang.srt.observability import req_time_stats
except ImportError:
    req_time_stats = None

NEW = hasattr(io_struct, "msgpack_encode")


def fields(cls):
    if dataclasses.is_dataclass(cls):
        return {f.name: f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING for f in dataclasses.fields(cls)}
    import msgspec

    return {f.name: f.required for f in msgspec.structs.fields(cls)}


def make(name, **values):
    """An instance with those of the values that this version has fields for."""
    cls = getattr(io_struct, name)
    have = fields(cls)
    kwargs = {k: v for k, v in values.items() if k in have}
    for k, required in have.items():
        if required and k not in kwargs:
            kwargs[k] = None
    return cls(**kwargs)


def tokens(ids):
    return array.array("q", ids) if NEW else ids


def some(v):
    return {"V": v, "OK": True}


NONE = {"V": 0, "OK": False}


class Tokenizer:
    def encode(self, text, **kw):
        return list(text.encode())


def params(**kw):
    p = SamplingParams(**kw)
    p.normalize(Tokenizer())
    return p


def api_times():
    if req_time_stats is None:
        return None
    t = req_time_stats.APIServerReqTimeStats()
    t.disagg_mode = req_time_stats.DisaggregationMode.NULL
    return t


def scheduler_times():
    if req_time_stats is None:
        return None
    t = req_time_stats.SchedulerReqTimeStats()
    t.enable_metrics = True
    t.wait_queue_entry_time, t.forward_entry_time, t.prefill_finished_time = 1000.5, 1000.75, 1001.25
    t.queue_duration_s = 0.25
    return t


def wrap(v):
    return io_struct.wrap_as_pickle(v) if NEW else v


def request(i, ids, **kw):
    return make(
        kw.pop("cls", "TokenizedGenerateReqInput"),
        rid="request-%d" % i,
        input_text="a secret prompt",
        input_ids=tokens(ids),
        sampling_params=params(max_new_tokens=17, temperature=0.5, top_p=0.875, top_k=40, stop=["secret stop"], n=2),
        return_logprob=True,
        logprob_start_len=-1,
        top_logprobs_num=0,
        token_ids_logprob=None,
        stream=True,
        return_hidden_states=False,
        time_stats=wrap(api_times()),
        **kw,
    )


def messages():
    want = {
        "ID": "request-0",
        "PromptTokens": some(5),
        "Stream": some(True),
        "Priority": some(3),
        "DPRank": some(1),
        "BootstrapHost": "10.0.0.1",
        "BootstrapPort": some(8998),
        "BootstrapRoom": some(2**62 + 1),
        "Worker": "ipc:///tmp/worker",
        "AdapterID": "lora-7",
        "Param": {"Temperature": some(0.5), "TopP": some(0.875), "TopK": some(40), "MaxTokens": some(17), "N": some(2), "Logprobs": True, "HasStop": True},
        "prompt": [1, 2, 3, 100000, 5],
    }
    yield "generate", request(
        0, [1, 2, 3, 100000, 5], priority=3, routed_dp_rank=1, data_parallel_rank=1, bootstrap_host="10.0.0.1", bootstrap_port=8998,
        bootstrap_room=2**62 + 1, http_worker_ipc="ipc:///tmp/worker", lora_id="lora-7",
        trace_context={"root_span": {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}},
    ), {"Kind": 1, "Class": "TokenizedGenerateReqInput", "Requests": [want]}
    yield "generate-long", request(1, [7] * 100_000), {"Requests": [{"ID": "request-1", "PromptTokens": some(100_000), "Priority": NONE}]}
    yield "generate-batch", make("BatchTokenizedGenerateReqInput", batch=[request(i, [9] * (i + 1)) for i in range(3)]), {
        "Kind": 1, "Requests": [{"ID": "request-%d" % i, "PromptTokens": some(i + 1), "Stream": some(True), "Param": want["Param"]} for i in range(3)]}
    yield "embedding", request(4, [1, 2], cls="TokenizedEmbeddingReqInput", token_type_ids=[0, 0]), {
        "Kind": 2, "Requests": [{"ID": "request-4", "PromptTokens": some(2)}]}
    n = 3
    out = {
        "rids": ["out-%d" % i for i in range(n)],
        "http_worker_ipcs": [None, "ipc://w", None],
        "finished_reasons": [None, {"type": "stop", "matched": 151645}, {"type": "length", "length": 20}],
        "decoded_texts": ["", "a secret", "x"],
        "decode_ids": [tokens([1]), tokens([2, 3]), tokens([])],
        "read_offsets": [3, 4, 5],
        "output_ids": [tokens([11]), tokens([12, 13]), tokens([])],
        "output_strs": ["secret text", "", "\u00e9"],
        "skip_special_tokens": [True] * n,
        "spaces_between_special_tokens": [True] * n,
        "no_stop_trim": [False] * n,
        "prompt_tokens": [5, 600, 70000],
        "completion_tokens": [1, 2, 20],
        "reasoning_tokens": [0, 1, 2],
        "cached_tokens": [0, 16, 32],
        "retraction_counts": [0, 1, 2],
        "spec_verify_ct": [4, 5, 6],
        "spec_accepted_tokens": [7, 8, 9],
        "spec_num_correct_drafts": [7, 8, 9],
        "spec_num_block_accept_tokens": [],
        "spec_num_cap_tokens": [],
        "spec_correct_drafts_histogram": [],
        "spec_cap_lens_histogram": [],
        "cached_tokens_details": [{"device": 0, "host": 0}, {"device": 12, "host": 4}, None],
        "dp_ranks": [None, 0, 1],
        "output_token_logprobs_val": [[-0.5], [-1.5, -2.5], []],
        "output_token_logprobs_idx": [[11], [12, 13], []],
        "queue_time": [0.5, None, 0.25],
        "forward_entry_time": [1000.75, None, 0.0],
        "prefill_delay": [0.125, None, None],
        "prefill_latency": [0.0625, None, None],
        "time_stats": wrap([scheduler_times() for _ in range(n)]),
        "embeddings": [[0.5, 0.25]] * n,
    }
    times = {"Class": "SchedulerReqTimeStats", "WaitQueueEntry": 1000500000000, "ForwardEntry": 1000750000000,
             "PrefillFinished": 1001250000000, "QueueDuration": some(0.25)} if NEW else {"Class": ""}
    finish = [None, {"Type": "stop", "MatchedToken": some(151645)}, {"Type": "length", "Length": some(20)}]
    common = [{
        "id": "out-%d" % i, "Finish": finish[i], "PromptTokens": some(out["prompt_tokens"][i]), "CachedTokens": some(out["cached_tokens"][i]),
        "Retractions": some(i) if i or NEW else some(0), "Times": times} for i in range(n)]
    new = {"ReasoningTokens": [some(v) for v in out["reasoning_tokens"]], "CachedDevice": [some(0), some(12), NONE],
           "CachedHost": [some(0), some(4), NONE], "DPRank": [NONE, some(0), some(1)]} if NEW else {
           "QueueTime": [some(0.5), NONE, some(0.25)], "ForwardEntry": [1000750000000, 0, 0], "PrefillDelay": [some(0.125), NONE, NONE],
           "PrefillLatency": [some(0.0625), NONE, NONE]}
    generated = [dict(c, CompletionTokens=some(out["completion_tokens"][i]), NumTokens=some(len(out["output_ids"][i])),
                      SpecVerifies=some(out["spec_verify_ct"][i]), SpecAccepted=some(out["spec_accepted_tokens"][i]),
                      tokens=list(out["output_ids"][i]), logprobs=out["output_token_logprobs_val"][i],
                      **{k: v[i] for k, v in new.items()}) for i, c in enumerate(common)]
    yield "tokens", make("BatchTokenIDOutput", **out), {
        "Kind": 4, "Class": "BatchTokenIDOutput", "Outputs": [dict(g, NumDecode=some(len(out["decode_ids"][i]))) for i, g in enumerate(generated)]}
    yield "texts", make("BatchStrOutput", **out), {
        "Kind": 5, "Outputs": [dict(g, TextBytes=some(len(out["output_strs"][i].encode()))) for i, g in enumerate(generated)]}
    yield "embeddings", make("BatchEmbeddingOutput", **out), {"Kind": 6, "Outputs": [
        {k: v for k, v in c.items() if k not in ("Times",)} for c in common]}
    big = 256
    yield "tokens-256", make(
        "BatchTokenIDOutput", **{k: [v[1]] * big if isinstance(v, list) and len(v) == n else v for k, v in out.items() if k != "time_stats"}), {
        "Outputs": [{"id": "out-1", "PromptTokens": some(600)}] * big}
    yield "abort", make("AbortReq", rid="request-9", abort_all=False, finished_reason={"type": "abort", "message": "secret message", "status_code": 503, "err_type": "E"}), {
        "Kind": 3, "Abort": {"ID": "request-9", "All": False, "Finish": {"Type": "abort", "Status": some(503)}}}
    yield "abort-all", make("AbortReq", rid="", abort_all=True), {"Kind": 3, "Abort": {"ID": "", "All": True, "Finish": None}}
    yield "other", make("FlushCacheReqInput"), {"Kind": 0, "Class": "FlushCacheReqInput"}


def encoded(name, obj, want, codec):
    if codec == "msgpack":
        b = io_struct.msgpack_encode(obj)
    else:
        b = pickle.dumps(obj, pickle.HIGHEST_PROTOCOL if NEW else pickle.DEFAULT_PROTOCOL)
    print(json.dumps({"version": sglang.__version__, "name": name, "codec": codec, "frame": base64.b64encode(zlib.compress(b, 9)).decode(), "want": want}))


for name, obj, want in messages():
    encoded(name, obj, want, "pickle")
if NEW:
    io_struct._USE_PICKLE_IPC = False
    for name, obj, want in messages():
        encoded(name, obj, want, "msgpack")
