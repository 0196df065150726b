"""Fix-ups of three spots of SGLang that need a device (no scheduler, message or statistics code):
 - speculative verify (TARGET_VERIFY) in the torch_native attention backend;
 - DP attention asks the attention backend for a CPU-graph fill value that the
   torch_native backend lacks;
 - mooncake PD prefill copies page indices through CUDA pinned memory + a CUDA event."""
import importlib.abc
import importlib.machinery
import os
import sys

def _native(m):
    import torch
    c = m.TorchNativeAttnBackend
    plain_extend = c.forward_extend

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kw):
        if not forward_batch.forward_mode.is_target_verify():
            return plain_extend(self, q, k, v, layer, forward_batch, save_kv_cache, **kw)
        # speculative verify: n draft rows per request under a tree mask
        if save_kv_cache and k is not None:
            self.token_to_kv_pool.set_kv_buffer(
                layer, m.KVWriteLoc(forward_batch.out_cache_loc, self.swa_out_cache_loc), k, v)
        lens = forward_batch.seq_lens.tolist()
        bs = len(lens)
        n = q.shape[0] // bs
        q_ = q.view(bs, n, layer.tp_q_head_num, layer.qk_head_dim)
        o = torch.empty_like(q)
        o_ = o.view(bs, n, layer.tp_q_head_num, layer.v_head_dim)
        kc = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
        vc = self.token_to_kv_pool.get_value_buffer(layer.layer_id)
        mask = getattr(forward_batch.spec_info, "custom_mask", None)
        mask = (mask.reshape(-1)[: bs * n * n].view(bs, n, n).bool()
                if mask is not None and mask.numel() >= bs * n * n
                else torch.tril(torch.ones(n, n, dtype=torch.bool)).expand(bs, n, n))
        for b in range(bs):
            L = lens[b]
            t = self.req_to_token_pool.req_to_token[forward_batch.req_pool_indices[b], : L + n].long()
            am = torch.cat([torch.ones(n, L, dtype=torch.bool), mask[b]], dim=1)
            o_[b] = m.scaled_dot_product_attention(
                q_[b].transpose(0, 1)[None], kc[t].transpose(0, 1)[None],
                vc[t].transpose(0, 1)[None], attn_mask=am, scale=layer.scaling,
                enable_gqa=layer.tp_q_head_num != layer.tp_k_head_num)[0].transpose(0, 1)
        return o

    c.forward_extend = forward_extend
    if not hasattr(c, "get_cpu_graph_seq_len_fill_value"):
        c.get_cpu_graph_seq_len_fill_value = lambda self: 1

def _mooncake(m):
    for v in list(vars(m).values()):
        if isinstance(v, type) and getattr(v, "supports_host_tensor_indices", False):
            v.supports_host_tensor_indices = False

_FIX = {
    "sglang.srt.layers.attention.torch_native_backend": _native,
    "sglang.srt.disaggregation.mooncake.conn": _mooncake,
}

class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        fix = _FIX.get(name)
        if fix is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        orig = spec.loader.exec_module
        def exec_module(module):
            orig(module)
            fix(module)
        spec.loader.exec_module = exec_module
        return spec

if os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
    sys.meta_path.insert(0, _Finder())
