"""Logs what vLLM's scheduler decides, from inside a test process: the truth for the
steps that are read from outside. Python loads it when its folder is in PYTHONPATH;
it does something where INFERSPAN_STEP_LOG is the beginning of a file's name.

INFERSPAN_BATCHES has the engine keep as many steps under way as pipelines and
asynchronous scheduling do, which the CPU build does not run."""

import json
import os
import sys

import onload

LOG = os.environ.get("INFERSPAN_STEP_LOG")
BATCHES = int(os.environ.get("INFERSPAN_BATCHES", "0"))
MODULE = "vllm.v1.core.sched.scheduler"
CORE = "vllm.v1.engine.core"


def patch(scheduler):
    """The probed methods stay as they are: those are wrapped that they call."""
    out = open(f"{LOG}.{os.getpid()}", "w")
    after = scheduler._update_after_schedule
    counts = scheduler.get_request_counts
    begin = {}

    outputs = {}  # step by SchedulerOutput, until its end

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
        outputs[id(output)] = self.current_step
        running, waiting = counts(self)
        off = len(self.deferred_waiting)
        line = {
            "step": self.current_step,
            "begin": begin,
            "after": {
                "step": self.current_step,
                "running": running,
                "waiting": waiting - off,
                "deferred": off,
                "free": self.kv_cache_manager.block_pool.get_num_free_blocks(),
            },
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

    def ended(made, output):
        """The outputs of a step were made: when, by their own stamps."""
        line = {"end_of": outputs.pop(id(output)), "stamps": [o.timestamp for o in made.values()]}
        out.write(json.dumps(line) + "\n")
        out.flush()

    scheduler.get_request_counts = get_request_counts
    scheduler.inferspan_ended = staticmethod(ended)
    scheduler._update_after_schedule = update_after_schedule
    if BATCHES:
        from vllm.config import VllmConfig

        VllmConfig.max_concurrent_batches = property(lambda self: BATCHES)


def patch_core(core):
    """Both kinds of step call this with the outputs, just after the scheduler made them."""
    attach = core._attach_iteration_details

    def attach_iteration_details(self, made, details):
        self.scheduler.inferspan_ended(made, sys._getframe(1).f_locals["scheduler_output"])
        return attach(self, made, details)

    core._attach_iteration_details = attach_iteration_details


if LOG:
    onload.patch({MODULE: lambda m: patch(m.Scheduler), CORE: lambda m: patch_core(m.EngineCore)})
