"""Typical acceptance (TAS), the rule of Medusa."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from cactus_decoding.rules.base import Rule, require_one_of, require_within

Recovery = Literal["argmax", "sample"]


@dataclass(frozen=True, slots=True)
class Typical(Rule):
    """Keep n iff ``q(n) > min(epsilon, a exp(-H(q)))``, whatever p is.

    A token that the drafter proposes and the verifier finds typical is kept for certain: the programme of Cactus with
    a cross-entropy in place of the divergence, which rewards a law that collapses to one token.

    Args:
        epsilon: threshold where q is sure; in [0, 1], and 0 keeps all that q does not exclude.
        a: threshold relative to ``exp(-H(q))`` where q is not; in [0, 1]. The runs of the Cactus paper use
            ``sqrt(epsilon)``.
        recovery: "argmax" emits the verifier's likeliest token after a refusal, "sample" draws from q.

    Source: Cai et al. (Medusa), arXiv 2401.10774.
    """

    epsilon: float = 0.09
    a: float = 0.3
    recovery: Recovery = "argmax"

    name = "typical"
    summary = "keep n iff q(n) > min(epsilon, a exp(-H(q))); recover the likeliest token (or from q)"
    guarantee = "no bound: kept tokens had at least that probability, but the law can be any of them"
    source = "arXiv 2401.10774"

    def __post_init__(self) -> None:
        for name in ("epsilon", "a"):
            require_within(name, getattr(self, name), 0.0, 1.0, "published are epsilon 0.09 and a 0.3")
        require_one_of("recovery", self.recovery, get_args(Recovery))

    @property
    def between(self) -> bool:
        return False

    def statistics(self, p: Tensor, q: Tensor) -> Tensor:
        """The threshold of each row."""
        entropy = -torch.xlogy(q, q).sum(-1, keepdim=True)
        return (self.a * torch.exp(-entropy)).clamp_max(self.epsilon)

    def target(self, p_n: Tensor, q_n: Tensor, s: Tensor | None = None) -> Tensor:
        assert s is not None
        return (q_n > s[..., 0]).to(q_n.dtype)

    def recovery_row(self, p: Tensor, q: Tensor, s: Tensor | None = None) -> Tensor:
        if self.recovery == "sample":
            return q
        return torch.zeros_like(q).scatter(-1, q.argmax(-1, keepdim=True), 1.0)
