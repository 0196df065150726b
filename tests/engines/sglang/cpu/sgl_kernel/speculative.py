"""Stub of sgl_kernel.speculative (see sglang/kernels/ops/speculative/reconstruct_tree.py
for the contract)."""


def reconstruct_indices_from_tree_mask(tree_mask, verified_seq_len, positions,
                                       retrive_index, retrive_next_token,
                                       retrive_next_sibling, batch_size, n):
    masks = tree_mask.reshape(-1)[: batch_size * n * n].view(batch_size, n, n).bool().tolist()
    lens = verified_seq_len.tolist()
    pos, nxt, sib, idx = [], [], [], []
    for b in range(batch_size):
        m = masks[b]
        anc = [[j for j in range(i) if m[i][j]] for i in range(n)]
        par = [a[-1] if a else -1 for a in anc]
        for t in range(n):
            pos.append(lens[b] + len(anc[t]))
            idx.append(b * n + t)
            nxt.append(next((k for k in range(t + 1, n) if m[k][t]), -1))
            sib.append(-1 if par[t] < 0 else
                       next((k for k in range(t + 1, n) if par[k] == par[t]), -1))
    for dst, src in ((positions, pos), (retrive_index, idx),
                     (retrive_next_token, nxt), (retrive_next_sibling, sib)):
        dst.reshape(-1)[: batch_size * n].copy_(dst.new_tensor(src))
