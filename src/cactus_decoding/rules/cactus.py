"""Cactus: constrained acceptance speculative sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from cactus_decoding.divergences import get_divergence, require_budget
from cactus_decoding.rules.base import Rule, require_one_of, require_within, rest_scale

Solver = Literal["second_order", "exact"]


@dataclass(frozen=True, slots=True)
class Cactus(Rule):
    """Raise the drafted token as far as a divergence budget allows, scale the rest, then accept or recover.

    ``h(n) = gamma`` and ``h(i) = (1 - gamma) / (1 - q(n)) q(i)``, with gamma the largest value in [q(n), 1] that
    keeps ``D_f(h || q) <= delta``; on refusal draw from ``(h - p)_+``.

    Args:
        delta: the budget per drafted token, in nats (for KL); at least 0, and 0 is lossless.
        solver: "second_order" is the paper's closed form ``min(1, q + sqrt(2 delta q (1 - q)))``, which
            can overshoot the budget where gamma > 1 - q(n); "exact" solves for gamma.
        divergence: a name of `cactus_decoding.divergences.DIVERGENCES`.
        max_ratio: where given, gamma is at most ``max_ratio q(n)``; at least 1, and 1 is lossless. The emitted law
            is then at most ``max_ratio q`` everywhere, and its KL at most ``ln max_ratio``, as for bounded ratio.

    The budget holds for the target of each drafted token, not for the emitted law: that one is metered by
    `cactus_decoding.fidelity`. Source: Hao and Mou, ICLR 2026, arXiv 2604.04987, Theorem 2 and Corollary 5.
    """

    delta: float = 0.25
    solver: Solver = "second_order"
    divergence: str = "kl"
    max_ratio: float | None = None

    name = "cactus"
    summary = "raise h(n) as far as D(h||q) <= delta allows, scale the rest; recover from (h - p)+"
    guarantee = "each drafted token's target within delta of the verifier (exact solver); the output law is metered"
    source = "arXiv 2604.04987"

    def __post_init__(self) -> None:
        require_budget(self.delta)
        get_divergence(self.divergence)
        if self.max_ratio is not None:
            require_within("max_ratio", self.max_ratio, 1.0, None, "1 is lossless; None leaves the lift uncapped")
        require_one_of("solver", self.solver, get_args(Solver))

    @property
    def lossless(self) -> bool:
        return self.delta == 0.0 or self.max_ratio == 1.0

    def target(self, p_n: Tensor, q_n: Tensor, s: Tensor | None = None) -> Tensor:
        divergence = get_divergence(self.divergence)
        raised = divergence.raise_exact if self.solver == "exact" else divergence.raise_second_order
        gamma = raised(q_n, self.delta)
        return gamma if self.max_ratio is None else torch.minimum(gamma, self.max_ratio * q_n)

    def recovery_scale(self, p: Tensor, q: Tensor, q_n: Tensor, h_n: Tensor, s: Tensor | None = None) -> Tensor:
        return rest_scale(q_n, h_n)
