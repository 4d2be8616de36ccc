"""Lossless speculative sampling (SpS)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cactus_decoding.rules.base import Rule


@dataclass(frozen=True, slots=True)
class Lossless(Rule):
    """Keep n with probability ``min(1, q(n) / p(n))``; on refusal draw from ``(q - p)_+``.

    The output law is exactly q. Source: Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318.
    """

    name = "lossless"
    summary = "keep n with probability min(1, q(n)/p(n)); recover from (q - p)+"
    guarantee = "exactly the verifier"
    source = "arXiv 2211.17192, 2302.01318"

    @property
    def lossless(self) -> bool:
        return True

    def target(self, p_n: Tensor, q_n: Tensor, s: Tensor | None = None) -> Tensor:
        return q_n
