"""Logs the batches that SGLang's scheduler runs, from inside a test process: the truth for
the steps that are read from outside. Python loads it when its folder is in PYTHONPATH; it
does something where INFERSPAN_STEP_LOG is the beginning of a file's name.

Wrapped are methods that the probed ones call, and process_batch_result: the functions whose
calls are looked at stay as they are."""

import json
import os
import time

import onload

LOG = os.environ.get("INFERSPAN_STEP_LOG")
MODULE = "sglang.srt.managers.scheduler"


def patch(scheduler):
    out = None
    result = scheduler.process_batch_result

    def write(line):
        nonlocal out
        # The process is forked or spawned after this module was loaded.
        if out is None:
            out = open(f"{LOG}.{os.getpid()}", "w")
        out.write(json.dumps(line) + "\n")
        out.flush()

    def process_batch_result(self, batch, *args, **kwargs):
        got = result(self, batch, *args, **kwargs)
        write({"end_of": batch.forward_iter, "at": time.monotonic(), "finished": [r.rid for r in batch.reqs if r.finished()]})
        return got

    scheduler.process_batch_result = process_batch_result
    return write


def patch_profiler(profiler, write):
    """run_batch asks it about each batch, right after it has numbered and stamped it."""
    predicate = profiler._profile_batch_predicate

    def profile_batch_predicate(self, batch):
        decodes = batch.forward_mode.is_decode()
        reqs = batch.reqs
        upto = [0] * len(reqs) if decodes else [p + e for p, e in zip(batch.prefix_lens, batch.extend_lens, strict=True)]
        write({
            "begin": batch.forward_iter,
            "launch": batch.launch_ts,
            "mode": batch.forward_mode.name,
            "reqs": [r.rid for r in reqs],
            "extend": None if decodes else list(batch.extend_lens),
            "prefix": None if decodes else list(batch.prefix_lens),
            "more": [not decodes and n < len(r.origin_input_ids) + len(r.output_ids) for r, n in zip(reqs, upto)],
            "made": [len(r.output_ids) for r in reqs],
            "back": [r.retraction_count for r in reqs],
        })
        return predicate(self, batch)

    profiler._profile_batch_predicate = profile_batch_predicate


if LOG:
    onload.patch({MODULE: lambda m: patch_profiler(m.SchedulerProfilerManager, patch(m.Scheduler))})
