"""Laws of few entries, made from logits without spreading them over the vocabulary: top-k, and temperature 0.

The k largest logits are found through the largest one of each block of neighbours: the k blocks with the largest ones
hold them all. Everything behind that one reading works on a few entries per position. Sums run entry by entry in the
order of the ids, so that an entry of 0 more or less, which a neighbour's ties may bring, changes no bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cactus_decoding.held import SparseLaws
from cactus_decoding.sampling import SamplingParams

_BLOCK = 64


def sparse_laws(logits: Tensor, params: SamplingParams) -> SparseLaws:
    """``[n, k, V]`` logits -> what `cactus_decoding.sampling.probabilities` makes of them without a bias.

    ``params`` have a top-k, or temperature 0.
    """
    if params.greedy:
        values, ids = logits.max(-1, keepdim=True)
        law = torch.ones_like(values, dtype=torch.promote_types(values.dtype, torch.float32))
        return SparseLaws(ids, law.where(values.isfinite(), torch.nan), logits.shape[-1])
    values, ids = _top_k_with_ties(logits, params.top_k)
    ids, order = ids.sort(-1)
    values = values.gather(-1, order).to(torch.promote_types(values.dtype, torch.float32))
    values = values - values.amax(-1, keepdim=True)
    law = _normalised((values if params.temperature == 1.0 else values / params.temperature).exp())
    if params.top_p < 1.0:
        law = _keep_top_p(law, params.top_p)
    if params.min_p > 0.0:
        law = _kept(law, law >= params.min_p * law.amax(-1, keepdim=True))
    return SparseLaws(ids, law, logits.shape[-1])


def _top_k_with_ties(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row and what equals the k-th, with their ids, in no order; -inf fills up the others."""
    size = logits.shape[-1]
    count = min(k + 1, size)
    while True:
        values, ids = largest_entries(logits, count)
        kth = values[..., k - 1 : k]
        if count == size or not bool(((values[..., -1:] == kth) & (kth > -torch.inf)).any()):
            return values.masked_fill(values < kth, -torch.inf), ids
        count = min(2 * count, size)


def largest_entries(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` largest of each row ``[..., V]``, falling, with their ids; NaN counts as the largest."""
    size = logits.shape[-1]
    blocks = size // _BLOCK
    if 4 * count > blocks:
        return logits.topk(count, dim=-1)
    head = logits[..., : blocks * _BLOCK].reshape(*logits.shape[:-1], blocks, _BLOCK)
    chosen = head.amax(-1).topk(count, dim=-1, sorted=False).indices
    ids = (chosen.unsqueeze(-1) * _BLOCK + torch.arange(_BLOCK, device=logits.device)).flatten(-2)
    behind = torch.arange(blocks * _BLOCK, size, device=logits.device).expand(*ids.shape[:-1], -1)
    ids = torch.cat([ids, behind], dim=-1)
    values, order = logits.gather(-1, ids).topk(count, dim=-1)
    return values, ids.gather(-1, order)


def _normalised(law: Tensor) -> Tensor:
    return (law / law.cumsum(-1, dtype=torch.float64)[..., -1:]).to(law.dtype)


def _kept(law: Tensor, keep: Tensor) -> Tensor:
    return _normalised(torch.where(keep | law.isnan(), law, 0.0))


def _keep_top_p(law: Tensor, top_p: float) -> Tensor:
    ordered = law.sort(-1, descending=True).values
    before = ordered.cumsum(-1) - ordered  # mass of the strictly earlier ones: < top_p means still needed
    needed = (before < top_p).sum(-1, keepdim=True).clamp_min(1)
    return _kept(law, law >= ordered.gather(-1, needed - 1))
