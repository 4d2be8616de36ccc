"""f-divergences, and how far a divergence budget lets one probability rise.

Everything here is about ``D_f(h || q) = sum_i q_i f(h_i / q_i)`` with ``f`` convex and ``f(1) = 0``, in nats
where a logarithm is involved. Two things are asked of a divergence: its value for two distributions, and the
*raise*: the largest ``gamma = h(n)`` for which the distribution that puts ``gamma`` on the drafted token ``n``
and scales the rest stays within the budget ``delta``. That distribution differs from ``q`` as two coins do, so
only the divergence of two coins (Bernoulli laws) is needed:

    gamma in [q, 1]  with  q f(gamma / q) + (1 - q) f((1 - gamma) / (1 - q)) = delta.

Source: Hao and Mou, "Cactus", ICLR 2026, arXiv 2604.04987, Theorem 2 and Corollary 5.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from numbers import Real
from typing import ClassVar

import torch
from torch import Tensor

from cactus_decoding.errors import InvalidParameter

_ROOT_STEPS = 128  # a bound only: Newton takes about five steps, and bisection alone 44 to the tolerance
_TOLERANCE = 1e-13  # of gamma, absolute
_SLACK = 1e-11  # of the budget, relative: where the steps end


class Divergence(ABC):
    """One f-divergence. Stateless: use the instances in `DIVERGENCES`."""

    name: ClassVar[str]
    curvature: ClassVar[float]
    """f''(1): near h = q every smooth f-divergence is curvature / 2 times chi-square."""

    @abstractmethod
    def terms(self, h: Tensor, q: Tensor) -> Tensor:
        """The summands ``q f(h / q)``, elementwise, with the limits of ``f`` where ``h`` or ``q`` is 0."""

    @abstractmethod
    def slope(self, t: Tensor) -> Tensor:
        """``f'(t)``, elementwise; infinite where f is (KL at 0, reverse KL at 0)."""

    def value(self, h: Tensor, q: Tensor) -> Tensor:
        """``D_f(h || q)`` over the last dimension: ``[..., V], [..., V] -> [...]``; ``inf`` is a possible value.

        The sum is clamped at 0, which rounding can undercut by an ulp where h equals q.
        """
        return self.terms(h, q).sum(-1).clamp_min(0.0)

    def coin(self, gamma: Tensor, q: Tensor) -> Tensor:
        """``D_f`` of two coins that show ``n`` with probabilities ``gamma`` and ``q``, elementwise."""
        return (self.terms(gamma, q) + self.terms(1.0 - gamma, 1.0 - q)).clamp_min(0.0)

    def raise_second_order(self, q: Tensor, delta: float) -> Tensor:
        """``min(1, q + sqrt(2 delta' q (1 - q)))`` with ``delta' = delta / f''(1)``, elementwise.

        The second-order Taylor solution (Corollary 5). It is 0 where q is 0 and q where delta is 0. For KL it
        keeps the budget wherever gamma <= 1 - q, and can overshoot elsewhere, most of all at
        ``q = 1 / (1 + 2 delta)``, by ``ln(1 + 2 delta) - delta``.
        """
        require_budget(delta)
        return self._second_order(q, delta)

    def _second_order(self, q: Tensor, delta: float | Tensor) -> Tensor:
        reach = torch.sqrt(2.0 * (delta / self.curvature) * q * (1.0 - q))
        return (q + reach).clamp_max(1.0)

    def raise_exact(self, q: Tensor, delta: float | Tensor) -> Tensor:
        """The largest ``gamma`` in [q, 1] with ``coin(gamma, q) <= delta``, elementwise.

        A tensor gives each entry a budget of its own, which is taken as it is; q stays where that is 0.

        Newton's method from the second-order start, safeguarded by bisection, in float64 whatever the type of
        ``q``. The coin divergence is convex in gamma with its minimum 0 at q, so after one step Newton comes
        down on the root from the right. The answer is rounded towards q, so the budget holds in q's own type.
        """
        wide, budget = q.to(torch.float64), _budgets(q, delta)
        inside = (wide > 0.0) & (wide < 1.0) & (budget > 0.0)
        certain = inside & (self.coin(torch.ones_like(wide), wide) <= budget)
        gamma = torch.where(certain, 1.0, wide)
        sought = inside & ~certain
        gamma[sought] = self._root(wide[sought], budget[sought])
        return _round_down(gamma, q)

    def _root(self, q: Tensor, delta: Tensor) -> Tensor:
        """The roots themselves, ``[N]`` in float64; those that are found leave the search."""
        root, place = q.clone(), torch.arange(len(q), device=q.device)
        low, high = q, torch.ones_like(q)
        following, reach = self._second_order(q, delta), high - low
        for _ in range(_ROOT_STEPS):
            middle = 0.5 * (low + high)
            inside = (following > low) & (following < high)
            gamma = torch.where(inside, following, middle)
            excess = self.coin(gamma, q) - delta
            low = torch.where(excess <= 0.0, gamma, low)
            high = torch.where(excess > 0.0, gamma, high)
            root[place] = torch.where(excess <= _SLACK * delta, gamma, low)
            far = (excess.abs() > _SLACK * delta) & (high - low > _TOLERANCE)
            if not bool(far.any()):
                break
            state = (place, q, delta, low, high, gamma, excess, reach)
            place, q, delta, low, high, gamma, excess, reach = (x[far] for x in state)
            slope = self.slope(gamma / q) - self.slope((1.0 - gamma) / (1.0 - q))
            newton = gamma - excess / slope
            step = (newton - gamma).abs()
            # a step that does not halve the one before creeps along a steep flank: bisect instead
            following = torch.where(step < 0.5 * reach, newton, torch.nan)
            reach = torch.where(step < 0.5 * reach, step, high - low)
        return root


def _round_down(gamma: Tensor, q: Tensor) -> Tensor:
    """``gamma`` in q's type, never above its float64 value and never below q."""
    narrow = gamma.to(q.dtype)
    narrow = torch.where(narrow.to(gamma.dtype) > gamma, torch.nextafter(narrow, torch.zeros_like(narrow)), narrow)
    return torch.maximum(narrow, q)


def _budgets(q: Tensor, delta: float | Tensor) -> Tensor:
    """The budget of each entry, in float64."""
    if isinstance(delta, Tensor):
        return delta.to(torch.float64).expand_as(q)
    require_budget(delta)
    return torch.full_like(q, delta, dtype=torch.float64)


def require_budget(delta: float) -> None:
    """Raise `InvalidParameter` unless ``delta`` is a finite number of at least 0."""
    if isinstance(delta, bool) or not (isinstance(delta, Real) and math.isfinite(delta) and delta >= 0.0):
        raise InvalidParameter(
            f"delta is {delta!r}, but a divergence budget is a finite number of nats, at least 0. "
            "Use delta=0 for the lossless rule, or a value such as 0.25."
        )


class KL(Divergence):
    """``sum h ln(h / q)``, f(t) = t ln t."""

    name = "kl"
    curvature = 1.0

    def terms(self, h: Tensor, q: Tensor) -> Tensor:
        return torch.xlogy(h, h) - torch.xlogy(h, q)

    def slope(self, t: Tensor) -> Tensor:
        return torch.log(t) + 1.0


class ReverseKL(Divergence):
    """``sum q ln(q / h)``, f(t) = -ln t. Infinite where h drops a token that q has."""

    name = "reverse-kl"
    curvature = 1.0

    def terms(self, h: Tensor, q: Tensor) -> Tensor:
        return torch.xlogy(q, q) - torch.xlogy(q, h)

    def slope(self, t: Tensor) -> Tensor:
        return -1.0 / t


class ChiSquare(Divergence):
    """``sum (h - q)^2 / q``, f(t) = (t - 1)^2."""

    name = "chi2"
    curvature = 2.0

    def terms(self, h: Tensor, q: Tensor) -> Tensor:
        return torch.where(h == q, torch.zeros_like(h), (h - q).square() / q)

    def slope(self, t: Tensor) -> Tensor:
        return 2.0 * (t - 1.0)


class SquaredHellinger(Divergence):
    """``sum (sqrt h - sqrt q)^2``, f(t) = (sqrt t - 1)^2. At most 2."""

    name = "hellinger2"
    curvature = 0.5

    def terms(self, h: Tensor, q: Tensor) -> Tensor:
        return (h.sqrt() - q.sqrt()).square()

    def slope(self, t: Tensor) -> Tensor:
        return 1.0 - t.rsqrt()


class JensenShannon(Divergence):
    """``KL(h||a)/2 + KL(q||a)/2`` with a = (h + q)/2. At most ln 2."""

    name = "js"
    curvature = 0.25

    def terms(self, h: Tensor, q: Tensor) -> Tensor:
        middle = 0.5 * (h + q)
        return 0.5 * (torch.xlogy(h, h) + torch.xlogy(q, q)) - torch.xlogy(middle, middle)

    def slope(self, t: Tensor) -> Tensor:
        return 0.5 * torch.log(2.0 * t / (1.0 + t))


class TotalVariation(Divergence):
    """``sum |h - q| / 2``, f(t) = |t - 1| / 2. Not smooth at 1, so both raises are ``min(1, q + delta)``."""

    name = "tv"
    curvature = math.inf

    def terms(self, h: Tensor, q: Tensor) -> Tensor:
        return 0.5 * (h - q).abs()

    def slope(self, t: Tensor) -> Tensor:
        return 0.5 * torch.sign(t - 1.0)

    def raise_second_order(self, q: Tensor, delta: float) -> Tensor:
        return self.raise_exact(q, delta)

    def raise_exact(self, q: Tensor, delta: float | Tensor) -> Tensor:
        """``min(1, q + delta)``; still 0 where q is 0, since a token that a filter removed is not brought back."""
        lifted = _round_down((q.to(torch.float64) + _budgets(q, delta)).clamp_max(1.0), q)
        return torch.where(q > 0.0, lifted, torch.zeros_like(q))


DIVERGENCES: dict[str, Divergence] = {
    divergence.name: divergence
    for divergence in (KL(), ReverseKL(), ChiSquare(), SquaredHellinger(), JensenShannon(), TotalVariation())
}


def get_divergence(name: str) -> Divergence:
    """The divergence of that name; an unknown name is refused with the list of known ones."""
    if name not in DIVERGENCES:
        raise InvalidParameter(f"divergence is {name!r}, which is none of {', '.join(sorted(DIVERGENCES))}.")
    return DIVERGENCES[name]
