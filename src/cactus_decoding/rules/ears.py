"""EARS: an acceptance threshold that eases where the verifier is unsure."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cactus_decoding.rules.base import Rule, require_within, where_possible


@dataclass(frozen=True, slots=True)
class Ears(Rule):
    """Keep n iff ``u < q(n) / p(n) + b (1 - max q)``; recover from ``(q - p)_+``.

    As a target: ``h(n) = q(n) + b (1 - max q) p(n)``.

    Args:
        b: tolerance where the verifier knows nothing; at least 0, and 0 is lossless.

    Source: arXiv 2512.13194.
    """

    b: float = 0.3

    name = "ears"
    summary = "keep n iff u < q(n)/p(n) + b (1 - max q); recover from (q - p)+"
    guarantee = "total variation from the verifier at most b (1 - max q) per token; no bound on ratios"
    source = "arXiv 2512.13194"

    def __post_init__(self) -> None:
        require_within("b", self.b, 0.0, None, "0 is lossless; published are 0.3 to 0.5")

    @property
    def lossless(self) -> bool:
        return self.b == 0.0

    def statistics(self, p: Tensor, q: Tensor) -> Tensor:
        """The tolerance of each row."""
        return self.b * (1.0 - q.amax(-1, keepdim=True))

    def target(self, p_n: Tensor, q_n: Tensor, s: Tensor | None = None) -> Tensor:
        assert s is not None
        return where_possible(torch.add(q_n, s[..., 0] * p_n).clamp_max(1.0), q_n)
