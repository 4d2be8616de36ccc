"""Speculative cascades: defer to the verifier where the drafter is not sure enough, or not likely right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from cactus_decoding.divergences import get_divergence
from cactus_decoding.rules.base import Rule, require_one_of, require_within, where_possible

Deferral = Literal["chow", "diff", "opt", "token-v1", "token-v2", "token-v3"]

# of each: a where none is given, its least and its largest value
_SETTINGS: dict[str, tuple[float, float, float]] = {
    "chow": (0.1, 0.0, 1.0),
    "diff": (0.05, -1.0, 1.0),
    "opt": (0.05, -1e6, 1e6),
    "token-v1": (0.5, -1.0, 1.0),
    "token-v2": (0.5, -1.0, 1.0),
    "token-v3": (0.5, 0.0, 1.0),
}
_LOSSLESS_AT_LEAST = ("diff", "token-v1", "token-v2")  # no token passes a margin of -1


@dataclass(frozen=True, slots=True)
class Cascade(Rule):
    """A target ``pi`` that is p where the drafter is trusted and q elsewhere; keep with ``min(1, pi(n) / p(n))``.

    Args:
        deferral: for whole positions, ``pi = p`` iff

            - "chow": ``max p >= 1 - a``, a in [0, 1];
            - "diff": ``max p >= max q - a``, a in [-1, 1];
            - "opt": ``max p >= max q - a TV(p, q)``;

            or for tokens, ``pi(v) = p(v) 1[v in T] + q(v) p(outside T)`` with T the tokens of

            - "token-v1": ``p(v) >= max q - a``, a in [-1, 1];
            - "token-v2": ``q(v) >= max q - a``, a in [-1, 1];
            - "token-v3": ``q(v) >= (1 - a) max q``, a in [0, 1].
        a: lenience, larger trusts the drafter more; by default .5 for tokens and .05 for "opt", as published, and .1
            for "chow" and .05 for "diff", which have no published default.

    p and q are the laws after temperature and filters, as everywhere here; the authors' code asks max p and max q
    at temperature 1. Source: Narasimhan et al., arXiv 2405.19261, Equations 2, 5, 10 and 13 to 15.
    """

    deferral: Deferral = "token-v3"
    a: float | None = None

    name = "cascade"
    summary = "target p where the drafter is trusted (chow, diff, opt, or token by token), q elsewhere"
    guarantee = "no bound: where the drafter is trusted the law is the drafter's"
    source = "arXiv 2405.19261"
    reads_drafter = True

    def __post_init__(self) -> None:
        require_one_of("deferral", self.deferral, get_args(Deferral))
        default, least, most = _SETTINGS[self.deferral]
        if self.a is None:
            object.__setattr__(self, "a", default)
        require_within("a", self.a, least, most, f"for {self.deferral}; larger trusts the drafter more")

    @property
    def lossless(self) -> bool:
        return self.deferral in _LOSSLESS_AT_LEAST and self.a == -1.0

    @property
    def between(self) -> bool:
        return not self._by_token

    @property
    def _by_token(self) -> bool:
        return self.deferral.startswith("token")

    def statistics(self, p: Tensor, q: Tensor) -> Tensor:
        """1 where the drafter is trusted, else 0; by token, the threshold and the mass of p outside T."""
        assert self.a is not None
        top_q = q.amax(-1, keepdim=True)
        if self._by_token:
            least = top_q - self.a if self.deferral != "token-v3" else (1.0 - self.a) * top_q
            trusted = (p if self.deferral == "token-v1" else q) >= least
            return torch.cat([least, torch.where(trusted, 0.0, p).sum(-1, keepdim=True)], dim=-1)
        needed = torch.full_like(top_q, 1.0 - self.a)
        if self.deferral == "diff":
            needed = top_q - self.a
        elif self.deferral == "opt":
            needed = top_q - self.a * get_divergence("tv").value(p, q).unsqueeze(-1)
        return (p.amax(-1, keepdim=True) >= needed).to(q.dtype)

    def target(self, p_n: Tensor, q_n: Tensor, s: Tensor | None = None) -> Tensor:
        assert s is not None
        if not self._by_token:
            return where_possible(torch.where(s[..., 0] > 0.0, torch.maximum(p_n, q_n), q_n), q_n)
        trusted = (p_n if self.deferral == "token-v1" else q_n) >= s[..., 0]
        return where_possible(torch.where(trusted, p_n, 0.0) + q_n * s[..., 1], q_n)

    def recovery_row(self, p: Tensor, q: Tensor, s: Tensor | None = None) -> Tensor | None:
        if s is None or not self._by_token:  # refused under pi = p is only what q excludes: recover as lossless does
            return None
        pi = self.target(p, q, s.unsqueeze(-2))
        return (pi - p).clamp_min(0.0)
