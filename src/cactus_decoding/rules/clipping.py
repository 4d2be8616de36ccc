"""The targets ``clip(p, beta q, alpha q)``: the best ones of every divergence, and how their bounds are solved.

Among all laws h with ``D_f(h || q)`` no larger than something, for any strictly convex f, the one with the highest
acceptance ``sum min(h, p)`` is ``clip(p, beta q, alpha q)`` with ``beta <= 1 <= alpha`` (Tran-Thien and Nock, arXiv
2609.30474). Sorted by ``t = p / q``, prefix sums turn each question below into lookups, ``O(log V)`` each after one
sort of the row.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cactus_decoding.divergences import Divergence

_STEPS = 60  # of bisection: beyond float64's 53 bits


class Clipping:
    """Rows of p and q, ``[..., V]``, sorted by p / q; float64 inside, bounds and answers ``[...]``."""

    def __init__(self, p: Tensor, q: Tensor) -> None:
        p, q = p.double(), q.double()
        self._ratio, order = torch.where(q > 0.0, p / q, torch.inf).sort(-1)
        p, q = p.gather(-1, order), q.gather(-1, order)
        self._q = q
        self._sum_p, self._sum_q = _prefix_sums(p), _prefix_sums(q)
        # sum (beta q - p)_+ at beta = t_k is t_k Q_k - P_k: rising, so the piece of a given sum is looked up
        kinks = torch.where(q > 0.0, self._ratio * self._sum_q[..., 1:] - self._sum_p[..., 1:], torch.inf)
        self._raised_at_kink = kinks.cummax(-1).values

    def excess(self, alpha: Tensor) -> Tensor:
        """``sum (p - alpha q)_+``."""
        below = self._count(self._ratio, alpha, right=True)
        return (self._behind(self._sum_p, below) - alpha * self._behind(self._sum_q, below)).clamp_min(0.0)

    def beta(self, alpha: Tensor) -> Tensor:
        """``beta`` in [0, 1] with ``sum (beta q - p)_+ = sum (p - alpha q)_+``."""
        excess = self.excess(alpha)
        pieces = self._count(self._raised_at_kink, excess, right=False).clamp_min(1)
        sum_q = _at(self._sum_q, pieces)
        return ((excess + _at(self._sum_p, pieces)) / sum_q.clamp_min(torch.finfo(sum_q.dtype).tiny)).clamp(0.0, 1.0)

    def alpha_of_budget(self, divergence: Divergence, budget: float) -> Tensor:
        """The largest ``alpha`` with ``D(clip(p, beta q, alpha q) || q) <= budget``."""
        # a ratio of 0 is never above beta: its term is infinite for some divergences, and never wanted
        clipped = (self._q > 0.0) & (self._ratio > 0.0)
        terms = divergence.terms(torch.where(clipped, self._ratio, 1.0), torch.ones_like(self._q))
        sums = _prefix_sums(torch.where(clipped, self._q * terms, 0.0))

        def spent(alpha: Tensor) -> Tensor:
            beta, one = self.beta(alpha), torch.ones_like(alpha)
            low, high = (self._count(self._ratio, bound, right=True) for bound in (beta, alpha))
            raised = _weighed(divergence.terms(beta, one), _at(self._sum_q, low))
            capped = _weighed(divergence.terms(alpha, one), self._behind(self._sum_q, high))
            return raised + _at(sums, high) - _at(sums, low) + capped

        return _largest(spent, torch.ones_like(self._ratio[..., 0]), self._highest(), budget)

    def alpha_of_quotient(self, rho: float) -> Tensor:
        """``alpha`` with ``sum clip(p, alpha q / rho, alpha q) = 1``, between 1 and ``rho``."""

        def total(alpha: Tensor) -> Tensor:
            low, high = (self._count(self._ratio, bound, right=True) for bound in (alpha / rho, alpha))
            inner = _at(self._sum_p, high) - _at(self._sum_p, low)
            return alpha / rho * _at(self._sum_q, low) + inner + alpha * self._behind(self._sum_q, high)

        one = torch.ones_like(self._ratio[..., 0])
        return _largest(total, one, rho * one, 1.0)

    def _highest(self) -> Tensor:
        """The largest finite p / q, at least 1: no larger alpha changes anything."""
        return torch.where(torch.isfinite(self._ratio), self._ratio, 0.0).amax(-1).clamp_min(1.0)

    def _count(self, rising: Tensor, value: Tensor, right: bool) -> Tensor:
        return torch.searchsorted(rising, value.unsqueeze(-1), right=right).squeeze(-1)

    def _behind(self, sums: Tensor, count: Tensor) -> Tensor:
        return sums[..., -1] - _at(sums, count)


def _largest(value: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, bound: float) -> Tensor:
    """The largest x in [low, high] with ``value(x) <= bound``, value rising; ``low`` where there is none."""
    fits = value(high) <= bound
    low = torch.where(fits, high, low)
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        inside = value(middle) <= bound
        low, high = torch.where(inside, middle, low), torch.where(inside, high, middle)
    return low


def _weighed(term: Tensor, mass: Tensor) -> Tensor:
    """``term * mass``, and 0 where there is no mass, however large the term."""
    return torch.where(mass > 0.0, term * mass, 0.0)


def _prefix_sums(x: Tensor) -> Tensor:
    return torch.nn.functional.pad(x.cumsum(-1), (1, 0))


def _at(sums: Tensor, count: Tensor) -> Tensor:
    return sums.gather(-1, count.unsqueeze(-1)).squeeze(-1)
