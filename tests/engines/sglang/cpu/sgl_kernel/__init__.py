"""Stands in for the sgl_kernel package, of which there are GPU builds only: SGLang's own
fallbacks in torch are used wherever they exist; the few helpers that SGLang imports
unconditionally when SGLANG_USE_CPU_ENGINE=1 are given here, in plain torch. Any other
name imports as an object that raises when called."""
import importlib.abc
import importlib.machinery
import importlib.metadata
import sys
import types

import torch

__version__ = "0.0.0+cpustub"


def assign_req_to_token_pool_cpu(req_pool_indices, req_to_token, start_offset,
                                 end_offset, out_cache_loc, pool_len):
    pt = 0
    for r, s, e in zip(req_pool_indices.tolist(), start_offset.tolist(),
                       end_offset.tolist()):
        n = e - s
        req_to_token[r, s:e] = out_cache_loc[pt:pt + n].to(req_to_token.dtype)
        pt += n


def assign_extend_cache_locs_cpu(req_pool_indices, req_to_token, start_offset,
                                 end_offset, out_cache_loc, *a):
    pt = 0
    for r, s, e in zip(req_pool_indices.tolist(), start_offset.tolist(),
                       end_offset.tolist()):
        n = e - s
        out_cache_loc[pt:pt + n] = req_to_token[r, s:e].to(out_cache_loc.dtype)
        pt += n


def copy_all_layer_kv_cache_cpu(data_ptrs, strides, tgt_loc, src_loc):
    # per buffer: row tgt <- row src, rows of `stride` bytes (snapshot first)
    import ctypes
    tgt, src = tgt_loc.tolist(), src_loc.tolist()
    for base, st in zip(data_ptrs.tolist(), strides.tolist()):
        rows = [ctypes.string_at(base + s * st, st) for s in src]
        for t, r in zip(tgt, rows):
            ctypes.memmove(base + t * st, r, st)


def fill_bonus_tokens_cpu(accept_tokens, accept_lens, bonus_tokens, accept_stride):
    flat = accept_tokens.reshape(-1)
    idx = torch.arange(accept_lens.numel()) * accept_stride + accept_lens.long() - 1
    bonus_tokens.copy_(flat[idx].to(bonus_tokens.dtype))


def fill_accept_out_cache_loc_cpu(accept_index, out_cache_loc, accept_out_cache_loc):
    keep = accept_index.reshape(-1)
    keep = keep[keep >= 0].long()
    accept_out_cache_loc[: keep.numel()] = out_cache_loc[keep].to(
        accept_out_cache_loc.dtype)


def verify_tree_greedy_cpu(predicts, accept_index, accept_token_num, candidates,
                           retrive_index, retrive_next_token, retrive_next_sibling,
                           target_predict):
    cand, ridx = candidates.tolist(), retrive_index.tolist()
    nxt, sib = retrive_next_token.tolist(), retrive_next_sibling.tolist()
    tgt = target_predict.tolist()
    steps = accept_index.shape[1]
    for b in range(len(cand)):
        cur, last, n = 0, ridx[b][0], 0
        accept_index[b, 0] = last
        for _ in range(1, steps):
            want = tgt[b][cur]
            child = nxt[b][cur]
            while child != -1 and cand[b][child] != want:
                child = sib[b][child]
            if child == -1:
                break
            predicts[last] = want
            n += 1
            last = ridx[b][child]
            accept_index[b, n] = last
            cur = child
        accept_token_num[b] = n
        predicts[last] = tgt[b][cur]


class _Missing:
    def __init__(self, name):
        self.__name__ = name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self.__name__}.{name}")

    def __call__(self, *a, **k):
        raise NotImplementedError(f"sgl_kernel stub: {self.__name__} was called")


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Missing(name)


class _Sub(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Any sgl_kernel.<x> without a file here imports as an empty stub module: 0.5.5
    imports some without need. Later versions ask whether they are there."""

    def find_spec(self, name, path=None, target=None):
        if name.startswith("sgl_kernel."):
            return importlib.machinery.ModuleSpec(name, self)
        return None

    def create_module(self, spec):
        m = types.ModuleType(spec.name)
        m.__getattr__ = __getattr__
        m.__path__ = []
        return m

    def exec_module(self, module):
        pass


if importlib.metadata.version("sglang") == "0.5.5":
    sys.meta_path.append(_Sub())
