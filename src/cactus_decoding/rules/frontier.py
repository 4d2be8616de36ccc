"""The frontier: the best way to spend a divergence over a whole text."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cactus_decoding.rules.base import Rule, require_within
from cactus_decoding.rules.clipping import Clipping


@dataclass(frozen=True, slots=True)
class Frontier(Rule):
    """Keep n with probability ``min(1, alpha q(n) / p(n))``, with ``alpha / beta = rho`` at every position.

    The emitted law is ``h = clip(p, beta q, alpha q)``. A total of ``KL(h || q)`` over many positions buys most
    acceptance where the last nat buys as much at each of them; that is where ``ln(alpha / beta)`` is the same.

    Args:
        rho: at least 1, and 1 is lossless.

    Reads whole rows at every position: the yardstick, not the fast path. Its law is at most ``rho q``, so its KL is
    at most ``ln rho``. Source: the Lagrange condition on the targets of arXiv 2609.30474.
    """

    rho: float = 2.0

    name = "frontier"
    summary = "as mentored, with alpha/beta = rho at every position: the most acceptance for a total KL"
    guarantee = "never more than rho times as likely as under the verifier: KL <= ln rho per token"
    source = "arXiv 2609.30474 (targets); the condition over positions is this project's"

    def __post_init__(self) -> None:
        require_within("rho", self.rho, 1.0, None, "1 is lossless")

    @property
    def lossless(self) -> bool:
        return self.rho == 1.0

    def statistics(self, p: Tensor, q: Tensor) -> Tensor:
        """``alpha`` of each row."""
        return Clipping(p, q).alpha_of_quotient(self.rho)

    def target(self, p_n: Tensor, q_n: Tensor, s: Tensor | None = None) -> Tensor:
        assert s is not None
        return (s[..., 0] * q_n).clamp_max(1.0).to(q_n.dtype)

    def recovery_scale(self, p: Tensor, q: Tensor, q_n: Tensor, h_n: Tensor, s: Tensor | None = None) -> Tensor:
        assert s is not None
        return (s[..., 0] / self.rho).to(q_n.dtype)
