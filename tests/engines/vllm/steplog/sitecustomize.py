"""Logs what vLLM's scheduler decides, from inside a test process: the truth for the
steps that are read from outside. Python loads it when its folder is in PYTHONPATH;
it does something where INFERSPAN_STEP_LOG is the beginning of a file's name.

INFERSPAN_BATCHES has the engine keep as many steps under way as pipelines and
asynchronous scheduling do, which the CPU build does not run."""

import importlib.abc
import importlib.machinery
import json
import os
import sys

LOG = os.environ.get("INFERSPAN_STEP_LOG")
BATCHES = int(os.environ.get("INFERSPAN_BATCHES", "0"))
MODULE = "vllm.v1.core.sched.scheduler"


def patch(scheduler):
    """The probed methods stay as they are: those are wrapped that they call."""
    out = open(f"{LOG}.{os.getpid()}", "w")
    after = scheduler._update_after_schedule
    counts = scheduler.get_request_counts
    begin = {}

    def get_request_counts(self):
        running, waiting = counts(self)
        # The first call of a step is made before anything is scheduled.
        if begin.get("step") != self.current_step:
            off = len(self.deferred_waiting)
            begin.update(
                step=self.current_step,
                running=running,
                waiting=waiting - off,
                deferred=off,
                free=self.kv_cache_manager.block_pool.get_num_free_blocks(),
            )
        return running, waiting

    def update_after_schedule(self, output):
        cached = output.scheduled_cached_reqs
        computed = {r.req_id: r.num_computed_tokens for r in output.scheduled_new_reqs}
        computed.update(zip(cached.req_ids, cached.num_computed_tokens))
        line = {
            "step": self.current_step,
            "begin": begin,
            "tokens": output.total_num_scheduled_tokens,
            "scheduled": output.num_scheduled_tokens,
            "computed": computed,
            "prompt": {i: self.requests[i].num_prompt_tokens for i in output.num_scheduled_tokens},
            "new": [r.req_id for r in output.scheduled_new_reqs],
            "resumed": sorted(cached.resumed_req_ids),
            "preempted": sorted(output.preempted_req_ids or ()),
            "finished": sorted(output.finished_req_ids),
        }
        out.write(json.dumps(line) + "\n")
        out.flush()
        return after(self, output)

    scheduler.get_request_counts = get_request_counts
    scheduler._update_after_schedule = update_after_schedule
    if BATCHES:
        from vllm.config import VllmConfig

        VllmConfig.max_concurrent_batches = property(lambda self: BATCHES)


class Finder(importlib.abc.MetaPathFinder):
    """Patches the scheduler when its module is loaded."""

    def find_spec(self, name, path, target=None):
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            patch(module.Scheduler)

        spec.loader.exec_module = exec_module
        return spec


if LOG:
    sys.meta_path.insert(0, Finder())
