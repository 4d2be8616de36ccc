"""Bounded ratio: never more than alpha times as likely as under the verifier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from cactus_decoding.rules.base import Rule, require_one_of, require_within, rest_scale

Recovery = Literal["exact", "shift"]
_STEPS = 64  # a bound only: laws of language models take five to ten


@dataclass(frozen=True, slots=True)
class BoundedRatio(Rule):
    """Keep n with probability ``min(1, alpha q(n) / p(n))``.

    The real output law is at most ``alpha q`` for every token, so its KL from q is at most ``ln alpha`` per
    token, for any vocabulary and any drafter.

    Args:
        alpha: at least 1, and 1 is lossless.
        recovery: "exact" draws from ``(beta q - p)_+`` with beta solved on the refused row, so that one fixed
            target ``clip(p, beta q, alpha q)`` is emitted, the best one of its divergence; "shift" draws from
            ``(h - p)_+`` with ``h(n) = min(1, alpha q(n))`` and the rest scaled, which is a shift of one logit
            and so fits inside another engine's lossless sampler.

    Source: mentored decoding (Tran-Thien 2023; arXiv 2609.30474); the accept half is the lenience of
    Leviathan et al., arXiv 2211.17192.
    """

    alpha: float = 1.5
    recovery: Recovery = "exact"

    name = "ratio"
    summary = "keep n with probability min(1, alpha q(n)/p(n)); recover from (beta q - p)+"
    guarantee = "never more than alpha times as likely as under the verifier: KL <= ln alpha per token"
    source = "Tran-Thien 2023; arXiv 2609.30474, 2211.17192"

    def __post_init__(self) -> None:
        require_within("alpha", self.alpha, 1.0, None, "1 is lossless; try 1.5")
        require_one_of("recovery", self.recovery, get_args(Recovery))

    @property
    def lossless(self) -> bool:
        return self.alpha == 1.0

    def target(self, p_n: Tensor, q_n: Tensor, s: Tensor | None = None) -> Tensor:
        return (self.alpha * q_n).clamp_max(1.0)

    def recovery_scale(self, p: Tensor, q: Tensor, q_n: Tensor, h_n: Tensor, s: Tensor | None = None) -> Tensor:
        return rest_scale(q_n, h_n) if self.recovery == "shift" else solve_beta(p, q, self.alpha)


def solve_beta(p: Tensor, q: Tensor, alpha: float) -> Tensor:
    """``beta`` in [0, 1] with ``sum (beta q - p)_+ = sum (p - alpha q)_+``: rows ``[..., V] -> [...]``.

    The left side is convex and piecewise linear, so Newton's method from 1 comes down on the root and is there after a
    few pieces; each step is one pass over the row, where `cactus_decoding.rules.clipping` sorts it. Where nothing can
    be refused it is the least p / q, which raises nothing.
    """
    excess = (p - alpha * q).clamp_min(0.0).sum(-1)
    least = torch.where(q > 0.0, p / q, 1.0).amin(-1)
    beta = torch.where(excess > 0.0, 1.0, least.clamp_max(1.0))
    for _ in range(_STEPS):
        below = beta.unsqueeze(-1) * q > p
        sum_p, sum_q = (torch.where(below, x, 0.0).sum(-1) for x in (p, q))
        following = torch.where((excess > 0.0) & (sum_q > 0.0), (excess + sum_p) / sum_q, beta)
        if bool((following >= beta).all()):
            break
        beta = torch.minimum(beta, following)
    return beta
