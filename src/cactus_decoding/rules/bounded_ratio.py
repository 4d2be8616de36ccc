"""Bounded ratio: never more than alpha times as likely as under the verifier."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Literal, get_args

import torch
from torch import Tensor

from cactus_decoding.errors import InvalidParameter
from cactus_decoding.rules.base import Rule, rest_scale

Recovery = Literal["exact", "shift"]


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
        if not (isinstance(self.alpha, Real) and math.isfinite(self.alpha) and self.alpha >= 1.0):
            raise InvalidParameter(
                f"alpha is {self.alpha!r}, but a ratio bound is a finite number of at least 1. "
                "Use alpha=1 for the lossless rule, or a value such as 1.5."
            )
        if self.recovery not in get_args(Recovery):
            raise InvalidParameter(f"recovery is {self.recovery!r}, which is none of {', '.join(get_args(Recovery))}.")

    @property
    def lossless(self) -> bool:
        return self.alpha == 1.0

    def target(self, p_n: Tensor, q_n: Tensor) -> Tensor:
        return (self.alpha * q_n).clamp_max(1.0)

    def recovery_scale(self, p: Tensor, q: Tensor, q_n: Tensor, h_n: Tensor) -> Tensor:
        return rest_scale(q_n, h_n) if self.recovery == "shift" else solve_beta(p, q, self.alpha)


def solve_beta(p: Tensor, q: Tensor, alpha: float) -> Tensor:
    """``beta`` in [0, 1] with ``sum (beta q - p)_+ = sum (p - alpha q)_+``: rows ``[R, V] -> [R]``.

    The left side is piecewise linear and rising in beta with its kinks at the ratios p/q. With the tokens
    sorted by that ratio and their sums Q_k, P_k over the first k, the piece with k tokens has the root
    ``(excess + P_k) / Q_k``; the right piece is the first whose root does not pass its own next kink.
    """
    excess = (p - alpha * q).clamp_min(0.0).sum(-1, keepdim=True)
    ratio = torch.where(q > 0.0, p / q, torch.inf)
    ratio, order = ratio.sort(-1)
    sum_q = q.gather(-1, order).cumsum(-1)
    sum_p = p.gather(-1, order).cumsum(-1)
    root = (excess + sum_p) / sum_q
    next_kink = torch.cat([ratio[:, 1:], torch.full_like(ratio[:, :1], torch.inf)], dim=-1)
    first = (root <= next_kink).to(torch.int8).argmax(-1, keepdim=True)
    return root.gather(-1, first).squeeze(-1).clamp(0.0, 1.0)
