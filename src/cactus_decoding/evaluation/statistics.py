"""Figures of one run with their 95% intervals. Problems, or responses, are the units: what is in one hangs together."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from cactus_decoding.errors import InvalidParameter

LEVEL = 0.05
"""Of false alarms; every interval here covers with one minus this."""

Z = float(special.ndtri(1 - LEVEL / 2))
"""1.96"""

ROUNDING = 1e-12
"""Means of scores that differ by less are the same."""

Values = NDArray[np.float64]
UNKNOWN = float("nan")


class Interval(NamedTuple):
    """An estimate between its 95% ends. NaN where the data say nothing."""

    estimate: float
    low: float
    high: float

    def to_dict(self) -> dict[str, float | None]:
        """For JSON, which has no NaN: None in its place."""
        return {name: None if math.isnan(value) else value for name, value in self._asdict().items()}


def accuracy(scores: ArrayLike) -> Interval:
    """The mean score over problems: ``sum(scores) / (n K)``.

    ``scores`` is `[n, K]` in [0, 1]: n problems, K samples of each. Yes-or-no scores of one sample each get Wilson's
    interval (JASA 1927), all others the t interval over the problems' means (`mean_interval`), within [0, 1].

    Raises `InvalidParameter` for another shape, no problems, NaN, or scores outside [0, 1].
    """
    checked = check_scores("scores", scores)
    if not is_binary(checked):
        return mean_interval(checked.mean(axis=1), 0.0, 1.0)
    right = int(checked.sum())
    ends = stats.binomtest(right, len(checked)).proportion_ci(1 - LEVEL, method="wilson")
    return Interval(right / len(checked), float(ends.low), float(ends.high))


def mean_interval(values: Values, least: float, most: float) -> Interval:
    """The mean of ``values`` `[n]`, each from ``least`` to ``most``, with Student's t interval kept within the two.

    Where all values are alike (n = 1 too) t would claim to know the mean without error. All that n equal values show
    is that few problems depart from them: by Wilson a share of at most ``z^2 / (n + z^2)``, and a problem that departs
    goes no farther than ``least`` or ``most``. For values of only 0 and 1 that is Wilson's interval itself.
    """
    n, mean = len(values), float(values.mean())
    spread = spread_of(values)
    if spread > 0:
        half = student(n) * spread / math.sqrt(n)
        return Interval(mean, max(least, mean - half), min(most, mean + half))
    departing = 1 / (1 + n / Z**2)
    return Interval(mean, mean - departing * (mean - least), mean + departing * (most - mean))


def student(n: int, level: float = LEVEL) -> float:
    """The two-sided quantile of t for n problems. `scipy.stats.t` has the same one, many times slower."""
    return float(special.stdtrit(n - 1, 1 - level / 2))


def spread_of(values: Values) -> float:
    """The standard deviation over problems, n - 1 below; 0 for a single one, and for mere rounding error."""
    spread = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return spread if spread > ROUNDING else 0.0


def ratio(parts: ArrayLike, wholes: ArrayLike) -> Interval:
    """``R = sum(parts) / sum(wholes)`` over responses, for instance accepted over examined tokens.

    Both are `[n]`, at least 0, one entry per response; where both are 0 nothing was measured, and n does not count it.
    The variance is the linearised one of a ratio estimate,
    ``n / (n - 1) sum (parts - R wholes)^2 / sum(wholes)^2`` (Cochran, Sampling Techniques, 6.4), the quantile
    Student's with n - 1. Nothing to divide by: all NaN; one response: its ends are NaN. Responses that are all alike
    have an interval of width 0: what was seen, not a bound.

    Raises `InvalidParameter` for shapes that differ or are not `[n]`, for NaN, infinite or negative entries.
    """
    part, whole = _check_counts(parts=parts, wholes=wholes)
    measured = (part > 0) | (whole > 0)
    part, whole = part[measured], whole[measured]
    if not whole.sum():
        return Interval(UNKNOWN, UNKNOWN, UNKNOWN)
    estimate = float(part.sum() / whole.sum())
    half = _half_width((part - estimate * whole) / whole.sum())
    return Interval(estimate, _at_least(0.0, estimate - half), estimate + half)


def ratio_change(parts: ArrayLike, wholes: ArrayLike, ref_parts: ArrayLike, ref_wholes: ArrayLike) -> Interval:
    """``R / R_ref - 1``: how much a ratio differs from that of a reference run on the same problems.

    -0.32 says that a rule refuses 32% fewer drafts per token than the reference. All four are `[n]`, at least 0, entry
    i of each from problem i, so what a problem does to both runs cancels. Linearised on the log scale, where problem i
    contributes ``(parts - R wholes) / sum(parts)`` less the same of the reference; the ends are carried back, so none
    lies below -1. A reference of 0 or nothing to divide by: all NaN; no parts at all, or one problem: the ends are NaN.

    Raises `InvalidParameter` as `ratio` does.
    """
    part, whole, ref_part, ref_whole = _check_counts(
        parts=parts, wholes=wholes, ref_parts=ref_parts, ref_wholes=ref_wholes
    )
    measured = part + whole + ref_part + ref_whole > 0
    part, whole, ref_part, ref_whole = (column[measured] for column in (part, whole, ref_part, ref_whole))
    if not (whole.sum() and ref_part.sum() and ref_whole.sum()):
        return Interval(UNKNOWN, UNKNOWN, UNKNOWN)
    quotient = float(part.sum() / whole.sum() / (ref_part.sum() / ref_whole.sum()))
    if not quotient:
        return Interval(-1.0, UNKNOWN, UNKNOWN)
    half = _half_width(_shares(part) - _shares(whole) - (_shares(ref_part) - _shares(ref_whole)))
    return Interval(quotient - 1, quotient * math.exp(-half) - 1, quotient * math.exp(half) - 1)


def _shares(values: Values) -> Values:
    return np.asarray(values / values.sum())


def _half_width(contributions: Values) -> float:
    """Of the 95% interval of a sum whose ``contributions`` `[n]` add up to 0; NaN for a single one."""
    n = len(contributions)
    if n == 1:
        return UNKNOWN
    return student(n) * math.sqrt(n / (n - 1) * float((contributions**2).sum()))


def _at_least(least: float, value: float) -> float:
    return least if value < least else value  # max() would make a bound of NaN


def is_binary(scores: Values) -> bool:
    """One sample per problem, each right or wrong."""
    return scores.shape[1] == 1 and bool(((scores == 0) | (scores == 1)).all())


def check_scores(name: str, scores: ArrayLike) -> Values:
    """As floats `[n, K]`; `InvalidParameter` unless there are some and all lie in [0, 1]."""
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 2 or not values.size:  # noqa: PLR2004
        raise InvalidParameter(f"{name} has the shape {values.shape}; it must be [problems, samples], none of them 0.")
    outside = values[~((values >= 0) & (values <= 1))]
    if outside.size:
        raise InvalidParameter(f"{name} holds {outside[0]}; give every response a score from 0 to 1.")
    return values


def _check_counts(**named: ArrayLike) -> list[Values]:
    arrays = {name: np.asarray(values, dtype=np.float64) for name, values in named.items()}
    shapes = {name: values.shape for name, values in arrays.items()}
    if len(set(shapes.values())) > 1 or any(len(shape) != 1 for shape in shapes.values()):
        raise InvalidParameter(f"the shapes are {shapes}; each must be [n], with one entry per response.")
    for name, values in arrays.items():
        outside = values[~((values >= 0) & (values < math.inf))]
        if outside.size:
            raise InvalidParameter(f"{name} holds {outside[0]}; every entry must be a number from 0 up.")
    return list(arrays.values())
