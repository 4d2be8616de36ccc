"""Block verification: the longest prefix that can be kept without loss, decided for the whole block.

Token by token, a token that q likes better than p does (q(n) > p(n)) lends nothing to the one behind it. Block
verification carries the running product

    w_0 = 1,  w_i = min(1, w_{i-1} q(n_i) / p(n_i)),

along the block and keeps the longest prefix i with ``u_i < h_i``, where

    h_i = R_i / (R_i + 1 - w_i),  R_i = sum_x (w_i q - p)_+(x) at the place behind i,  and h_m = w_m.

Behind it one token is drawn from ``(w_i q - p)_+``, or from q behind a whole block. The joint law of what is emitted is
exactly q's, and on average never fewer tokens are kept than token by token. It reads whole rows of every place.
Source: Sun et al., arXiv 2403.10444, Algorithm 2.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def longest_prefix(
    p_n: Tensor, q_n: Tensor, residual: Callable[[Tensor], Tensor], u: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """How many tokens of each block are kept, and w behind them: ``[B]`` each.

    Args:
        p_n, q_n: ``[B, m]`` the drafted tokens' probabilities.
        residual: ``[B, m]`` w at each place -> ``[B, m]`` R there.
        u: ``[B, m]`` uniform numbers in [0, 1).
        lengths: ``[B]`` how many tokens of each block are real.
    """
    batch, m = q_n.shape
    w = q_n.new_ones(batch, m + 1)
    ratio = q_n / p_n
    for i in range(m):
        w[:, i + 1] = (w[:, i] * ratio[:, i]).clamp_max(1.0)
    if m == 0:
        return lengths, w[:, 0]
    left = residual(w[:, :-1])[:, 1:]  # R_1 ... R_{m-1}
    behind = left + (1.0 - w[:, 1:-1])  # so w = 1 gives h = 1 to the last bit: n is kept for certain, and not emitted
    # 0 / 0 is p = q with nothing refused so far: whatever is decided there, a later place is kept
    h = torch.cat([torch.where(behind > 0.0, left / behind, 1.0), w[:, -1:]], dim=-1)
    counts = torch.arange(1, m + 1, device=u.device)
    h = torch.where(counts == lengths.unsqueeze(-1), w[:, 1:], h)
    keep = (u < h) & (counts <= lengths.unsqueeze(-1))
    kept = torch.where(keep, counts, 0).amax(-1)
    return kept, w.gather(-1, kept.unsqueeze(-1)).squeeze(-1)
