"""What the plans for a scheduler of 0.5.23 need to be compiled: modules, classes and
functions with the names that they have there. Usage: scheduler.py TP_SIZE"""
import collections
import dataclasses
import enum
import os
import sys
import types


def module(name, *of):
    m = types.ModuleType(name)
    for x in of:
        x.__module__ = name
        setattr(m, x.__name__, x)
    sys.modules[name] = m


class ForwardMode(enum.IntEnum):
    EXTEND = 1
    DECODE = 2
    MIXED = 3
    PREBUILT = 6


class SpeculativeAlgorithm(enum.Enum):
    NONE = 0
    NGRAM = 1


@dataclasses.dataclass
class ScheduleBatch:
    reqs: list = None
    forward_iter: int = 0


SchedulerReqTimeStats = dataclasses.make_dataclass("SchedulerReqTimeStats", [(name, float, 0.0) for name in (
    "scheduler_recv_time", "wait_queue_entry_time", "forward_entry_time", "prefill_finished_time", "completion_time",
    "last_forward_entry_time", "last_prefill_finished_time", "last_chunked_prefill_finish_time", "last_decode_finish_time",
    "prefill_bootstrap_queue_entry_time", "prefill_transfer_queue_entry_time", "prefill_kv_transfer_finish_time",
    "decode_prealloc_queue_entry_time", "decode_transfer_queue_entry_time", "decode_prebuilt_finish_time")])


class SchedulerOutputStreamer:
    def _stream_output_generation(self, reqs): ...


class Socket:
    def send(self, data): ...


class Scheduler:
    def __init__(self, tp_size):
        self.waiting_queue = []
        self.is_generation = True
        self.result_queue = collections.deque()
        self.server_args = types.SimpleNamespace(tp_size=tp_size, pp_size=1)

    def event_loop_overlap(self):
        def pop_and_process():
            self.process_batch_result(batch, batch_result)

        batch = batch_result = None
        print("ready", flush=True)
        sys.stdin.read()
        return pop_and_process

    def process_batch_result(self, batch, result): ...

    def send_abort_output(self, req): ...


module("sglang.srt.managers.scheduler", Scheduler)
module("sglang.srt.managers.scheduler_components.output_streamer", SchedulerOutputStreamer)
module("sglang.srt.managers.schedule_batch", ScheduleBatch)
module("sglang.srt.observability.req_time_stats", SchedulerReqTimeStats)
module("sglang.srt.speculative.spec_info", SpeculativeAlgorithm)
module("sglang.srt.model_executor.forward_batch_info", ForwardMode)
module("zmq.sugar.socket", Socket)

if __name__ == "__main__":
    def run():
        scheduler = Scheduler(int(sys.argv[1]))
        scheduler.event_loop_overlap()

    run()
