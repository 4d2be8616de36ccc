"""Interpolation: the static ensemble of drafter and verifier."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cactus_decoding.rules.base import Rule, require_within, where_possible


@dataclass(frozen=True, slots=True)
class Interpolation(Rule):
    """One target ``h = w p + (1 - w) q``, recovered from ``(q - p)_+``.

    Args:
        w: the drafter's share, from 0 (lossless) to 1 (everything is kept that q does not exclude).

    Source: the static ensemble of the Cactus paper, arXiv 2604.04987; learned weights: arXiv 2604.07622.
    """

    w: float = 0.5

    name = "interpolation"
    summary = "h = w p + (1 - w) q; recover from (q - p)+"
    guarantee = "total variation from the verifier w times the drafter's; no bound on ratios"
    source = "arXiv 2604.04987 (baseline), 2604.07622"

    def __post_init__(self) -> None:
        require_within("w", self.w, 0.0, 1.0, "0 is lossless, 1 the drafter")

    @property
    def lossless(self) -> bool:
        return self.w == 0.0

    def target(self, p_n: Tensor, q_n: Tensor, s: Tensor | None = None) -> Tensor:
        return where_possible(self.w * p_n + (1.0 - self.w) * q_n, q_n)
