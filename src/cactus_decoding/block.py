"""Block verification: the longest prefix that can be kept at the same law, decided for the whole block.

Token by token, a token that the target law h likes better than p does (h(n) > p(n)) lends nothing to the one behind
it. Block verification carries the running product

    w_0 = 1,  w_i = min(1, w_{i-1} h(n_i) / p(n_i)),

along the block and keeps the longest prefix i with ``u_i < a_i``, where

    a_i = R_i / (R_i + 1 - w_i),  R_i = sum_x (w_i h - p)_+(x) at the place behind i,  and a_m = w_m.

Behind it one token is drawn from ``(w_i h - p)_+``, or from q behind a whole block. What is emitted at the drafted
places has exactly the joint law of h, and on average never fewer tokens are kept than token by token. With h = q that
is lossless: Sun et al., arXiv 2403.10444, Algorithm 2. With h the law that a rule emits at each position anyway
(`cactus_decoding.induced`) it is that rule, of the same law and with more tokens per call. It reads whole rows of every
place.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def longest_prefix(
    p_n: Tensor, h_n: Tensor, residual: Callable[[Tensor], Tensor], u: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """How many tokens of each block are kept, and w behind them: ``[B]`` each.

    Args:
        p_n, h_n: ``[B, m]`` the drafted tokens' probabilities under the drafter and under the target law.
        residual: ``[B, m]`` w at each place -> ``[B, m]`` R there.
        u: ``[B, m]`` uniform numbers in [0, 1).
        lengths: ``[B]`` how many tokens of each block are real.
    """
    batch, m = h_n.shape
    w = h_n.new_ones(batch, m + 1)
    ratio = h_n / p_n
    for i in range(m):
        w[:, i + 1] = (w[:, i] * ratio[:, i]).clamp_max(1.0)
    if m == 0:
        return lengths, w[:, 0]
    left = residual(w[:, :-1])[:, 1:]  # R_1 ... R_{m-1}
    behind = left + (1.0 - w[:, 1:-1])  # so w = 1 gives a = 1 to the last bit: n is kept for certain, and not emitted
    # 0 / 0 is p = h with nothing refused so far: whatever is decided there, a later place is kept
    a = torch.cat([torch.where(behind > 0.0, left / behind, 1.0), w[:, -1:]], dim=-1)
    counts = torch.arange(1, m + 1, device=u.device)
    a = torch.where(counts == lengths.unsqueeze(-1), w[:, 1:], a)
    keep = (u < a) & (counts <= lengths.unsqueeze(-1))
    kept = torch.where(keep, counts, 0).amax(-1)
    return kept, w.gather(-1, kept.unsqueeze(-1)).squeeze(-1)
