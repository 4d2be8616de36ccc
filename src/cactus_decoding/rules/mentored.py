"""Mentored decoding: the best acceptance within one divergence budget for every position."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cactus_decoding.divergences import get_divergence
from cactus_decoding.rules.base import Rule, require_within
from cactus_decoding.rules.clipping import Clipping


@dataclass(frozen=True, slots=True)
class Mentored(Rule):
    """Keep n with probability ``min(1, alpha q(n) / p(n))``, with alpha solved for every position.

    The emitted law is ``h = clip(p, beta q, alpha q)``, of all laws with ``D_f(h || q) <= budget`` the one that
    accepts most. Where p itself is within the budget, everything is kept.

    Args:
        budget: in nats (for KL), per position; at least 0, and 0 is lossless.
        divergence: a name of `cactus_decoding.divergences.DIVERGENCES`, of h from q. "reverse-kl" is
            ``KL(q || h)``, the paper's own direction, "kl" is ``KL(h || q)``.

    Reads whole rows at every position. Source: Tran-Thien 2023; all f-divergences: Tran-Thien and Nock, arXiv
    2609.30474.
    """

    budget: float = 0.15
    divergence: str = "reverse-kl"

    name = "mentored"
    summary = "keep n with probability min(1, alpha q(n)/p(n)), alpha solved per position; recover from (beta q - p)+"
    guarantee = "the emitted law of every position within the budget of the verifier's"
    source = "Tran-Thien 2023; arXiv 2609.30474"

    def __post_init__(self) -> None:
        require_within("budget", self.budget, 0.0, None, "0 is lossless; published are 0.1 to 0.2")
        get_divergence(self.divergence)

    @property
    def lossless(self) -> bool:
        return self.budget == 0.0

    def statistics(self, p: Tensor, q: Tensor) -> Tensor:
        """``alpha`` and ``beta`` of each row."""
        clipping = Clipping(p, q)
        if self.lossless:  # a divergence has no slope at 0: rounding alone would move alpha
            alpha = torch.ones(*p.shape[:-1], 1, dtype=torch.float64, device=p.device)
        else:
            alpha = clipping.alpha_of_budget(get_divergence(self.divergence), self.budget)
        return torch.cat([alpha, clipping.beta(alpha)], dim=-1)

    def target(self, p_n: Tensor, q_n: Tensor, s: Tensor | None = None) -> Tensor:
        assert s is not None
        return (s[..., 0] * q_n).clamp_max(1.0).to(q_n.dtype)

    def recovery_scale(self, p: Tensor, q: Tensor, q_n: Tensor, h_n: Tensor, s: Tensor | None = None) -> Tensor:
        assert s is not None
        return s[..., 1].to(q_n.dtype)
