"""Writes cases of SGLang's own tracing: what its time stats were told, and the spans
that its tracer made of it. Run with a Python that has SGLang 0.5.23 and OpenTelemetry:

    python sglang_oracle.py 80 | gzip -9n > sglang_oracle.jsonl.gz
"""

import json
import pickle
import random
import sys

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.observability import req_time_stats as R
from sglang.srt.observability import trace as T

FAILURE = {"type": "abort", "message": "too long", "status_code": 400, "err_type": "BadRequestError"}


class Aborted(Exception):
    pass


TOKENIZER, CONTROLLER, SCHEDULER = 11, 12, 21

exporter = InMemorySpanExporter()
provider = TracerProvider(id_generator=T.TraceCustomIdGenerator())
provider.add_span_processor(SimpleSpanProcessor(exporter))
T.tracer = provider.get_tracer("oracle")
T.opentelemetry_initialized = True


class World:
    """The clock, the process at work, and the log of what was said."""

    now = 1.0  # seconds
    pid = TOKENIZER
    level = 3
    log = []
    again = False  # after a retraction
    pipeline = drafts = False
    aborts = 0.0


w = World()
R.calibrate_time_diff = lambda: None
R.global_diff_realtime_monotonic = 0.0
T.get_cur_time_ns = lambda: int(w.now * 1e9)
T.get_global_trace_level = lambda: w.level


class Ident:
    @staticmethod
    def get_native_id():
        return w.pid

    local = T.threading.local


T.threading = Ident


class Context(T.TraceReqContext):
    """The tracer, with a log."""

    def stack(self):
        return self.__dict__.setdefault("open_stages", [])

    def stage(self, name, start, end, attrs=None):
        w.log.append({"stage": name, "pid": w.pid, "start": start, "end": end, "round": (attrs or {}).get("decode_ct", -1), "micro": (attrs or {}).get("pp_mb_id", -1), "again": w.again})

    def trace_slice_start(self, name, level, ts=None):
        self.stack().append((name, ts, w.again))
        super().trace_slice_start(name, level, ts)

    def trace_slice_end(self, name, level, ts=None, attrs=None, thread_finish_flag=False):
        if self.stack() and self.stack()[-1][0] == name:
            self.stage(name, self.stack().pop()[1], ts, attrs)
        super().trace_slice_end(name, level, ts, attrs, thread_finish_flag)

    def trace_slice(self, slice, thread_finish_flag=False):
        self.stage(slice.slice_name, slice.start_time_ns, slice.end_time_ns, slice.attrs)
        super().trace_slice(slice, thread_finish_flag)

    def trace_event(self, name, level, ts=None, attrs=None):
        w.log.append({"mark": name, "pid": w.pid, "at": ts, "mode": (attrs or {}).get("forward_mode", ""), "size": (attrs or {}).get("batch_size", 0)})
        super().trace_event(name, level, ts, attrs)

    def abort(self, ts=None, abort_info=None):
        if self.tracing_enable and self.thread_context:
            for name, start, again in self.stack():
                w.log.append({"stage": name, "pid": w.pid, "start": start, "end": 0, "round": -1, "micro": -1, "again": again})
            if w.pid >= SCHEDULER:
                w.log.append({"mark": "complete", "pid": w.pid, "at": ts or int(w.now * 1e9), "mode": "", "size": 0})
        self.__dict__["open_stages"] = []
        super().abort(ts, abort_info)

    def __del__(self):
        pass


R.TraceReqContext = Context
R.is_async_tracing_available = lambda: False


def step(rng, most=0.005):
    # Whole microseconds, so that floats give whole nanoseconds.
    w.now = round(w.now + rng.randint(20, int(most * 1e6)) * 1e-6, 6)
    return w.now


def schedule(rng, s, mode, size=None):
    attrs = {"bid": "00000000", "batch_size": size or rng.randint(1, 9)}
    if mode.is_decode():
        attrs["forward_mode"] = "decode"
    elif mode.is_prefill():
        attrs["forward_mode"] = "prefill"
    elif mode.is_prebuilt():
        attrs["forward_mode"] = "prebuilt"
    s.set_last_scheduled_time(mode, step(rng), attrs)
    if w.pipeline:
        s.set_run_batch_cpu_start_time(step(rng))
        s.set_run_batch_cpu_end_time(step(rng), {"pp_mb_id": rng.randint(0, 3)})
    if w.drafts and mode.is_decode():
        s.set_spec_draft_start_time(step(rng))
        s.set_spec_draft_end_time(step(rng))
    if rng.random() < w.aborts:
        step(rng)
        s.trace_ctx.abort(abort_info=FAILURE)
        raise Aborted()


def prefill(rng, s, overlap):
    s.set_forward_entry_time(step(rng))
    schedule(rng, s, ForwardMode.EXTEND)
    if rng.random() < 0.3:
        for _ in range(rng.randint(1, 3)):
            s.set_last_chunked_prefill_finish_time(step(rng))
            schedule(rng, s, ForwardMode.EXTEND)
    if overlap:
        schedule(rng, s, ForwardMode.DECODE)
    s.set_prefill_finished_time(step(rng))


def decode(rng, s, n, overlap):
    for i in range(n):
        if not overlap:
            schedule(rng, s, ForwardMode.DECODE)
        elif rng.random() < 0.9:
            schedule(rng, s, ForwardMode.DECODE)
        s.set_last_decode_finish_time(step(rng))


def unified(rng, s):
    overlap = rng.random() < 0.6
    s.set_scheduler_recv_time(step(rng))
    s.set_wait_queue_entry_time(step(rng))
    if rng.random() < 0.15:  # put back before its first prefill is done
        s.set_forward_entry_time(step(rng))
        for _ in range(rng.randint(0, 2)):
            schedule(rng, s, ForwardMode.EXTEND)
            s.set_last_chunked_prefill_finish_time(step(rng))
        s.set_wait_queue_entry_time(step(rng))
        w.again = True
    prefill(rng, s, overlap)
    if rng.random() < 0.85:
        decode(rng, s, rng.randint(1, 6), overlap)
        if rng.random() < 0.3:
            s.set_wait_queue_entry_time(step(rng))
            w.again = True
            prefill(rng, s, overlap)
            decode(rng, s, rng.randint(1, 4), overlap)
    step(rng, 0.0005)
    s.set_completion_time()


def prefill_node(rng, s):
    s.set_scheduler_recv_time(step(rng))
    s.set_prefill_bootstrap_queue_entry_time(step(rng))
    s.set_wait_queue_entry_time(step(rng))
    prefill(rng, s, False)
    s.set_prefill_transfer_queue_entry_time(step(rng))
    s.set_prefill_kv_transfer_finish_time(step(rng))
    step(rng, 0.0005)
    s.set_completion_time()


def decode_node(rng, s):
    s.set_scheduler_recv_time(step(rng))
    s.set_decode_prealloc_queue_entry_time(step(rng))
    s.set_decode_transfer_queue_entry_time(step(rng))
    s.set_wait_queue_entry_time(step(rng))
    s.set_forward_entry_time(step(rng))
    schedule(rng, s, ForwardMode.PREBUILT)
    s.set_decode_prebuilt_finish_time(step(rng))
    decode(rng, s, rng.randint(1, 5), rng.random() < 0.5)
    step(rng, 0.0005)
    s.set_completion_time()


def case(seed):
    rng = random.Random(seed)
    exporter.clear()
    w.log, w.now, w.level = [], 1.0, rng.randint(1, 4)
    mode = rng.choice([DisaggregationMode.NULL] * 4 + [DisaggregationMode.PREFILL, DisaggregationMode.DECODE])
    word = {DisaggregationMode.NULL: "", DisaggregationMode.PREFILL: "Prefill ", DisaggregationMode.DECODE: "Decode "}[mode]
    ranks, dp = rng.randint(1, 2), rng.random() < 0.4
    w.pipeline, w.drafts = rng.random() < 0.2, rng.random() < 0.2
    w.aborts = 0.2 if ranks == 1 and rng.random() < 0.2 else 0
    failed = False
    T.threads_info.clear()
    host = "3d1219c7c4c5404aaa1f6d2a48adfda4"
    T.threads_info[TOKENIZER] = T.TraceThreadInfo(host, TOKENIZER, word + "Tokenizer", None, None, None)
    T.threads_info[CONTROLLER] = T.TraceThreadInfo(host, CONTROLLER, word + "DP Controller", None, None, None)
    for i in range(ranks):
        T.threads_info[SCHEDULER + i] = T.TraceThreadInfo(host, SCHEDULER + i, word + "Scheduler", i, 0 if dp else None, 0)

    w.pid, w.again = TOKENIZER, False
    api = R.APIServerReqTimeStats(disagg_mode=mode)
    api.init_trace_ctx("%08x" % seed, 0x1A2B if word else None)
    api.set_created_time(step(rng))
    api.set_tokenize_finish_time(step(rng))
    api.set_api_server_dispatch_time(step(rng))
    wire = pickle.dumps(api)
    api.set_api_server_dispatch_finish_time(step(rng))
    if dp:
        w.pid = CONTROLLER
        step(rng)
        d = R.DPControllerReqTimeStats.new_from_obj(pickle.loads(wire))
        d.set_dp_dispatch_time(step(rng))
        wire = pickle.dumps(d)
        d.set_dp_dispatch_finish_time(step(rng))
    begin, last = w.now, w.now
    for i in range(ranks):
        w.pid, w.now, w.again = SCHEDULER + i, begin, False
        step(rng)
        s = R.SchedulerReqTimeStats.new_from_obj(pickle.loads(wire))
        try:
            {"": unified, "Prefill ": prefill_node, "Decode ": decode_node}[word](rng, s)
        except Aborted:
            failed = True
        last = max(last, w.now)
    w.pid, w.now = TOKENIZER, last
    first = step(rng)
    api.set_first_token_time(first)
    api.set_finished_time(step(rng))
    spans = [
        {
            "name": s.name, "id": "%016x" % s.context.span_id, "parent": "%016x" % s.parent.span_id if s.parent else "",
            "start": s.start_time, "end": s.end_time, "error": not s.status.is_unset, "attrs": dict(s.attributes),
            "events": [{"name": e.name, "at": e.timestamp} for e in s.events],
            "links": ["%016x" % l.context.span_id for l in s.links],
        }
        for s in exporter.get_finished_spans()
    ]
    ns = lambda t: int(round(t * 1e9))
    return {
        "rid": "%08x" % seed, "level": w.level, "role": word.strip().lower(), "dp": dp, "failed": failed, "ranks": ranks, "log": w.log, "spans": spans,
        "created": ns(api.created_time), "dispatched": ns(api.api_server_dispatch_finish_time), "first": ns(first), "finished": ns(api.finished_time),
    }


for seed in range(int(sys.argv[1])):
    print(json.dumps(case(seed), separators=(",", ":")))
