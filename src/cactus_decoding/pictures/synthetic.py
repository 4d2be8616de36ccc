"""Positions made from random numbers: verifiers from sure to unsure, drafters from near to far."""

from __future__ import annotations

import torch
from torch import Tensor

_VOCABULARY = 50
_KEPT = 20  # tokens that the filter of every fifth position leaves to each side
# spread of the verifier's logits, and of the noise that makes the drafter's from them
_KINDS = ((0.5, 0.7), (2.0, 1.0), (4.0, 1.5), (4.0, 3.0), (3.0, 1.0))


def synthetic_positions(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """p and q, ``[count, 50]`` each in float64: five kinds in turn, the last one cut to the 20 likeliest of each side.

    From nearly uniform verifiers to sharp ones, with drafters that know them well or badly. The mixture is a choice,
    not a measurement: real pairs have one of their own.
    """
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.tensor([_KINDS[i % len(_KINDS)] for i in range(count)], dtype=torch.float64)
    cut = torch.tensor([i % len(_KINDS) == len(_KINDS) - 1 for i in range(count)]).unsqueeze(-1)
    noise = torch.randn(2, count, _VOCABULARY, generator=generator, dtype=torch.float64)
    verifier = kinds[:, :1] * noise[0]
    drafter = verifier + kinds[:, 1:] * noise[1]
    return _law(drafter, cut), _law(verifier, cut)


def _law(logits: Tensor, cut: Tensor) -> Tensor:
    least = logits.topk(_KEPT, dim=-1).values[:, -1:]
    return logits.masked_fill(cut & (logits < least), -torch.inf).softmax(-1)
