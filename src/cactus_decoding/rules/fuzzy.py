"""Fuzzy speculative decoding (FSD): the drafter writes where it and the verifier agree well enough."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cactus_decoding.divergences import get_divergence
from cactus_decoding.rules.base import Rule, require_within, where_possible


@dataclass(frozen=True, slots=True)
class Fuzzy(Rule):
    """Keep n whatever it is if ``D(p, q) < threshold`` at its position; else as the lossless rule.

    Args:
        threshold: in nats (for JS and KL); at least 0, and 0 is lossless.
        divergence: of p from q, a name of `cactus_decoding.divergences.DIVERGENCES`; the paper finds JS best.

    Source: arXiv 2502.20704.
    """

    threshold: float = 0.3
    divergence: str = "js"

    name = "fuzzy"
    summary = "keep n if D(p, q) < threshold at its position, else as lossless; recover from (q - p)+"
    guarantee = "the emitted law of every position within the threshold of the verifier's"
    source = "arXiv 2502.20704"
    reads_drafter = True

    def __post_init__(self) -> None:
        require_within("threshold", self.threshold, 0.0, None, "0 is lossless; published is 0.3 for JS")
        get_divergence(self.divergence)

    @property
    def lossless(self) -> bool:
        return self.threshold == 0.0

    def statistics(self, p: Tensor, q: Tensor) -> Tensor:
        """1 for rows where the two agree well enough, else 0."""
        near = get_divergence(self.divergence).value(p, q) < self.threshold
        return near.to(q.dtype).unsqueeze(-1)

    def target(self, p_n: Tensor, q_n: Tensor, s: Tensor | None = None) -> Tensor:
        assert s is not None
        return where_possible(torch.where(s[..., 0] > 0.0, 1.0, q_n), q_n)
