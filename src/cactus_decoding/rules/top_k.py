"""Top-k acceptance: keep what stands among the verifier's k likeliest tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from cactus_decoding.rules.base import Rule, require_one_of, require_whole

Recovery = Literal["top-k", "reference"]


@dataclass(frozen=True, slots=True)
class TopK(Rule):
    """Keep n iff ``q(n)`` is at least the k-th largest of q, whatever p is. Ties with the k-th count as in.

    Args:
        k: how many; at least 1. With k = V everything that q does not exclude is kept, and the law is nearly p.
        recovery: "top-k" draws from q over its k likeliest tokens; "reference" from ``(1[top k] - p)_+``, nearly
            uniform over them, as the published code of the Cactus paper does.

    Source: compared against in arXiv 2604.04987.
    """

    k: int = 5
    recovery: Recovery = "top-k"

    name = "top-k"
    summary = "keep n iff it is among the k likeliest of q; recover from q over these"
    guarantee = "no bound on probabilities: every emitted token is among the verifier's k likeliest"
    source = "a baseline of arXiv 2604.04987"

    def __post_init__(self) -> None:
        require_whole("k", self.k, 1, "published is 5")
        require_one_of("recovery", self.recovery, get_args(Recovery))

    @property
    def between(self) -> bool:
        return False

    def statistics(self, p: Tensor, q: Tensor) -> Tensor:
        """The k-th largest probability of each row."""
        return q.topk(min(self.k, q.shape[-1]), dim=-1).values[..., -1:]

    def target(self, p_n: Tensor, q_n: Tensor, s: Tensor | None = None) -> Tensor:
        assert s is not None
        return ((q_n >= s[..., 0]) & (q_n > 0.0)).to(q_n.dtype)

    def recovery_row(self, p: Tensor, q: Tensor, s: Tensor | None = None) -> Tensor:
        assert s is not None
        among = (q >= s[..., :1]) & (q > 0.0)
        return torch.where(among, q if self.recovery == "top-k" else 1.0 - p, 0.0)
