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

_STEPS = 64  # a bound only: about a dozen are taken
_TOLERANCE = 1e-14  # of ln alpha
_SLACK = 1e-14  # of the budget, relative
_TINY = torch.finfo(torch.float64).tiny


class Clipping:
    """Rows of p and q, ``[..., V]``, sorted by p / q; float64 inside. Bounds and answers are ``[..., G]``."""

    def __init__(self, p: Tensor, q: Tensor) -> None:
        p, q = (x / x.sum(-1, keepdim=True).clamp_min(_TINY) for x in (p.double(), q.double()))  # float32 rounds sums
        self._ratio, order = torch.where(q > 0.0, p / q, torch.inf).sort(-1)
        p, q = p.gather(-1, order), q.gather(-1, order)
        self._q = q
        self._sum_p, self._sum_q = _prefix_sums(p), _prefix_sums(q)
        # summed from the far end: a total less a prefix would lose what is left of q to rounding
        self._rest_p, self._rest_q = _suffix_sums(p), _suffix_sums(q)
        # sum (beta q - p)_+ at beta = t_k is t_k Q_k - P_k: rising, so the piece of a given sum is looked up
        kinks = torch.where(q > 0.0, self._ratio * self._sum_q[..., 1:] - self._sum_p[..., 1:], torch.inf)
        self._raised_at_kink = kinks.cummax(-1).values

    def excess(self, alpha: Tensor) -> Tensor:
        """``sum (p - alpha q)_+``."""
        below = torch.searchsorted(self._ratio, alpha, right=True)
        return (self._rest_p.gather(-1, below) - alpha * self._rest_q.gather(-1, below)).clamp_min(0.0)

    def beta(self, alpha: Tensor) -> Tensor:
        """``beta`` in [0, 1] with ``sum (beta q - p)_+ = sum (p - alpha q)_+``."""
        excess = self.excess(alpha)
        pieces = torch.searchsorted(self._raised_at_kink, excess, right=False).clamp_min(1)
        sum_p, sum_q = self._sum_p.gather(-1, pieces), self._sum_q.gather(-1, pieces)
        return ((excess + sum_p) / sum_q.clamp_min(_TINY)).clamp(0.0, 1.0)

    def alpha_of_budget(self, divergence: Divergence, budget: float) -> Tensor:
        """The largest ``alpha`` with ``D(clip(p, beta q, alpha q) || q) <= budget``."""
        # a ratio of 0 is never above beta: its term is infinite for some divergences, and never wanted
        clipped = (self._q > 0.0) & (self._ratio > 0.0)
        terms = divergence.terms(torch.where(clipped, self._ratio, 1.0), torch.ones_like(self._q))
        sums = _prefix_sums(torch.where(clipped, self._q * terms, 0.0))

        def spent(alpha: Tensor) -> Tensor:
            beta, one = self.beta(alpha), torch.ones_like(alpha)
            low, high = (torch.searchsorted(self._ratio, bound, right=True) for bound in (beta, alpha))
            raised = _weighed(divergence.terms(beta, one), self._sum_q.gather(-1, low))
            capped = _weighed(divergence.terms(alpha, one), self._rest_q.gather(-1, high))
            return raised + sums.gather(-1, high) - sums.gather(-1, low) + capped

        highest = self._highest()
        return _largest(spent, torch.ones_like(highest), highest, budget)

    def alpha_of_quotient(self, rho: float) -> Tensor:
        """``alpha`` with ``sum clip(p, alpha q / rho, alpha q) = 1``, between 1 and ``rho``.

        Where p / q spans no more than ``rho`` nothing is clipped, and alpha is its highest.
        """

        def total(alpha: Tensor) -> Tensor:
            low, high = (torch.searchsorted(self._ratio, bound, right=True) for bound in (alpha / rho, alpha))
            inner = self._sum_p.gather(-1, high) - self._sum_p.gather(-1, low)
            return alpha / rho * self._sum_q.gather(-1, low) + inner + alpha * self._rest_q.gather(-1, high)

        highest, lowest = self._highest(), self._ratio[..., :1]
        clipped = _largest(total, torch.ones_like(highest), torch.full_like(highest, rho), 1.0)
        everywhere = torch.isfinite(self._ratio[..., -1:])  # else p has tokens that q excludes
        return torch.where(everywhere & (highest <= rho * lowest), highest, clipped)

    def _highest(self) -> Tensor:
        """The largest finite p / q, at least 1: no larger alpha changes anything."""
        return torch.where(torch.isfinite(self._ratio), self._ratio, 0.0).amax(-1, keepdim=True).clamp_min(1.0)


def _largest(value: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, bound: float) -> Tensor:
    """The largest x of each row in [low, high], ``[..., 1]``, with ``value(x) <= bound``, value rising; at least low.

    Regula falsi with the Illinois rule in ln x, since p / q may reach any height; bisection where a value is infinite.
    """
    a, b = low.log(), high.log()
    below, above = value(low) - bound, value(high) - bound
    a = torch.where(above <= 0.0, b, a)
    side = torch.zeros_like(a)  # which end moved last
    for _ in range(_STEPS):
        if bool((b - a <= _TOLERANCE).all()):
            break
        chord = a - below * (b - a) / (above - below)
        x = torch.where((chord > a) & (chord < b), chord, 0.5 * (a + b))
        found = value(x.exp()) - bound
        fits = found <= 0.0
        # an end that stays put twice counts half, or it would never come nearer
        above = torch.where(fits, torch.where(side < 0.0, 0.5 * above, above), found)
        below = torch.where(fits, found, torch.where(side > 0.0, 0.5 * below, below))
        near = found.abs() <= _SLACK * bound
        a, b = torch.where(fits | near, x, a), torch.where(fits & ~near, b, x)
        side = torch.where(fits, -1.0, 1.0)
    return a.exp()


def _weighed(term: Tensor, mass: Tensor) -> Tensor:
    """``term * mass``, and 0 where there is no mass, however large the term."""
    return torch.where(mass > 0.0, term * mass, 0.0)


def _prefix_sums(x: Tensor) -> Tensor:
    return torch.nn.functional.pad(x.cumsum(-1), (1, 0))


def _suffix_sums(x: Tensor) -> Tensor:
    return torch.nn.functional.pad(x.flip(-1).cumsum(-1).flip(-1), (0, 1))
