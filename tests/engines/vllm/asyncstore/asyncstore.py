"""A KV connector for tests that loads beside the steps of the engine, which no
connector that comes with vLLM does on the CPU: the request waits in the state
WAITING_FOR_REMOTE_KVS meanwhile. It stores prompts as ExampleConnector does, in
files of one folder, so that an engine can load what another one or itself stored.

Options in kv_connector_extra_config, beside shared_storage_path: "delay" is what a
load takes, in seconds. "log" is the beginning of the name of a file to which the
scheduler's side writes when a load begins and ends, and when the step before that one
and the one after this had been put together: the truth for what is seen from outside.
"fail" lets loads fail: the number of a load, from 0, and from which of its
blocks on."""

import json
import os
import time
from dataclasses import dataclass, field

import safetensors.torch

from vllm.distributed.kv_transfer.kv_connector.v1.example_connector import (
    ExampleConnector,
    ExampleConnectorMetadata,
    ReqMeta,
    align_to_block_size,
)


@dataclass
class Load:
    request_id: str
    meta: ReqMeta
    blocks: list[int]
    fails: int | None  # from this block on
    due: float = 0.0


@dataclass
class Metadata(ExampleConnectorMetadata):
    loads: list[Load] = field(default_factory=list)


class AsyncStore(ExampleConnector):
    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        option = self._kv_transfer_config.get_from_extra_config
        self._delay = float(option("delay", 0.2))
        self._fail = {int(k): int(v) for k, v in option("fail", {}).items()}
        self._log_name = option("log", "")
        self._log_file = None
        self._begun = 0
        self._scheduled = 0  # when the latest step had been put together, ns
        self._ended: list[str] = []  # since then
        self._new: list[Load] = []
        # Of the worker's side.
        self._pending: list[Load] = []
        self._invalid: set[int] = set()
        self._layers: dict = {}

    # The scheduler's side.

    def _log(self, **line):
        if not self._log_name:
            return
        if self._log_file is None:
            self._log_file = open(f"{self._log_name}.{os.getpid()}", "w")
        self._log_file.write(json.dumps(line) + "\n")
        self._log_file.flush()

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        n, _ = super().get_num_new_matched_tokens(request, num_computed_tokens)
        return (n, True) if n and n > 0 else (0, False)

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        # The state changes when this returns.
        if num_external_tokens <= 0:
            return
        now, number = time.monotonic_ns(), self._begun
        self._begun += 1
        ids = blocks.get_block_ids()[0]
        meta = ReqMeta.make_meta(request.prompt_token_ids, ids, self._block_size, False, [])
        whole = align_to_block_size(request.num_prompt_tokens - 1, self._block_size)
        loaded = ids[(whole - num_external_tokens) // self._block_size : whole // self._block_size]
        fails = self._fail.get(number)
        self._new.append(Load(request.request_id, meta, loaded, fails))
        self._log(event="begin", id=request.request_id, at=now, tokens=num_external_tokens, failed=fails is not None, after=self._scheduled)

    def build_connector_meta(self, scheduler_output):
        # ExampleConnector stores what the first chunk of a prompt has blocks for.
        stores = super().build_connector_meta(scheduler_output).requests
        whole = [x for x in stores if len(x.slot_mapping) == len(x.token_ids)]
        meta = Metadata(requests=whole, loads=self._new)
        self._new = []
        self._scheduled = time.monotonic_ns()
        for i in self._ended:
            self._log(event="next", id=i, at=self._scheduled)
        self._ended = []
        return meta

    def update_connector_output(self, connector_output):
        # The scheduler notes that these have come when this returns.
        now = time.monotonic_ns()
        for i in sorted(connector_output.finished_recving or ()):
            self._log(event="end", id=i, at=now)
            self._ended.append(i)

    # The worker's side.

    def start_load_kv(self, forward_context, **kwargs):
        self._layers = forward_context.no_compile_layers
        for load in self._get_connector_metadata().loads:
            load.due = time.monotonic() + self._delay
            self._pending.append(load)

    def get_finished(self, finished_req_ids):
        now, done = time.monotonic(), set()
        for load in [x for x in self._pending if x.due <= now]:
            self._pending.remove(load)
            self._inject(load)
            done.add(load.request_id)
            if load.fails is not None:
                self._invalid.update(load.blocks[load.fails :])
        return None, done or None

    def get_block_ids_with_load_errors(self):
        invalid, self._invalid = self._invalid, set()
        return invalid

    def _inject(self, load):
        block, offset = load.meta.slot_mapping // self._block_size, load.meta.slot_mapping % self._block_size
        for name, layer in self._layers.items():
            cache = getattr(layer, "kv_cache", None)
            if cache is None:
                continue
            file = self._generate_filename_debug(name, load.meta.token_ids, load.meta.mm_hashes)
            cache[block, :, offset] = safetensors.torch.load_file(file)["kv_cache"]
