"""What a comparison says in words, once it is known beside how many others it stands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
from scipy import special

from cactus_decoding.errors import InvalidParameter
from cactus_decoding.evaluation.paired import Comparison
from cactus_decoding.evaluation.statistics import LEVEL, Z

MARGIN = 0.02
"""The largest loss, as a share, that one is ready to call none: two points."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line on a rule's quality."""

    kind: Literal["loses", "gains", "no_loss", "cannot_tell"]
    text: str
    """In points, which are hundredths of the share."""

    def to_dict(self) -> dict[str, str]:
        """For JSON."""
        return asdict(self)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values (1979), in the order given: the i-th smallest of m becomes ``(m - i + 1) p``.

    Never below a smaller one's and never above 1. Calling those under 0.05 keeps the chance of any false alarm among
    all m at 5%, however they depend on each other: rules compared with one reference run do.

    Raises `InvalidParameter` for a value outside [0, 1] or NaN.
    """
    for p in p_values:
        _check_p(p)
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1)))
    return [float(value) for value in adjusted]


def verdict(comparison: Comparison, adjusted_p: float, margin: float = MARGIN) -> Verdict:
    """Loses or gains where ``adjusted_p`` (`holm`) is under 0.05; else no loss where the interval rules out ``margin``.

    ``margin`` is a share. What neither is shown nor ruled out cannot be told, and the text says how many problems
    would do, if the difference stays what it looks like.

    Raises `InvalidParameter` for a margin outside (0, 1), a p outside [0, 1], or one that is below the comparison's.
    """
    _check_p(adjusted_p)
    if adjusted_p < comparison.p:
        raise InvalidParameter(f"the adjusted p {adjusted_p} is below p = {comparison.p}; take it from holm().")
    if not 0 < margin < 1:
        raise InvalidParameter(f"margin is {margin}; give a share between 0 and 1, 0.02 for two points.")
    estimate, low, high = comparison.difference
    if adjusted_p < LEVEL and estimate < 0:
        return Verdict("loses", f"loses {_points(-estimate)} points ({_points(-high)} to {_points(-low)})")
    if adjusted_p < LEVEL:
        return Verdict("gains", f"gains {_points(estimate)} points ({_points(low)} to {_points(high)})")
    if -low <= margin:
        return Verdict("no_loss", _no_loss(low, high))
    needed = f"{_problems_needed(comparison, adjusted_p, margin):,}"
    return Verdict(
        "cannot_tell",
        f"cannot tell: n = {comparison.n:,} is too small, a loss of up to {_points(-low)} points is possible; "
        f"about {needed} problems would settle it",
    )


def _no_loss(low: float, high: float) -> str:
    if low >= 0:
        return f"no loss: between {_points(low)} and {_points(high)} points better (95%)"
    shown = max(-low, 0.001)  # "no loss larger than 0.0 points" would claim more than was found
    return f"no loss larger than {_points(shown)} points (95%)"


def _points(share: float) -> str:
    return f"{round(100 * share, 1) + 0.0:.1f}"  # the sum turns -0.0 into 0.0


def _problems_needed(comparison: Comparison, adjusted_p: float, margin: float) -> int:
    """Until the interval rules out the margin or, at the adjusted level, a difference of 0, whichever comes first.

    Its halves shrink like ``1 / sqrt(n)`` about the estimate; the adjustment is taken to stay the factor it is now.
    Rounded up to two digits.
    """
    n = comparison.n
    estimate, low, high = comparison.difference
    room = margin + estimate
    to_rule_out = n * ((estimate - low) / room) ** 2 if room > 0 else math.inf
    stricter = float(special.ndtri(LEVEL * comparison.p / adjusted_p / 2)) / -Z
    to_show = n * (stricter * (high - estimate) / estimate) ** 2 if estimate < 0 else math.inf
    needed = max(n + 1, math.ceil(min(to_rule_out, to_show)))
    unit: int = 10 ** max(len(str(needed)) - 2, 0)
    return -(-needed // unit) * unit


def _check_p(p: float) -> None:
    if not 0 <= p <= 1:
        raise InvalidParameter(f"the p-value {p} is not between 0 and 1.")
