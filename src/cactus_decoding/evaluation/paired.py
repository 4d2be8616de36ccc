"""Two runs on the same problems: what a rule loses against the lossless one, and what loss could have been seen."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special, stats

from cactus_decoding.errors import InvalidParameter
from cactus_decoding.evaluation.statistics import (
    LEVEL,
    ROUNDING,
    Interval,
    Values,
    Z,
    check_scores,
    is_binary,
    mean_interval,
    spread_of,
    student,
)

POWER = 0.8
"""The chance with which the smallest visible loss is seen."""

SMALLEST_P = sys.float_info.min
"""No p is 0: thousands of losses against no gain have one too small for a float."""

NEGLIGIBLE = 1e-9
"""Mass of the discordant counts that `power_of` leaves out on either side."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A rule against the lossless run. Differences are rule less reference, in shares: -0.02 is a loss of 2 points."""

    n: int
    """Problems, the same ones in both runs."""
    difference: Interval
    gained: int | None
    """Problems that only the rule got right; None unless every problem has one response, right or wrong."""
    lost: int | None
    """Problems that only the reference got right, or None."""
    p: float
    """Two-sided, of a difference at least this large between runs of one law. Not adjusted for other comparisons."""
    smallest_loss: float | None
    """The smallest true loss that n problems like these show with 80% power. None: they cannot show any."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return fields | {"difference": self.difference.to_dict()}


def compare(reference: ArrayLike, scores: ArrayLike, comparisons: int = 1) -> Comparison:
    """Pair ``scores`` with those of the ``reference`` run, problem by problem.

    Both are `[n, K]` in [0, 1], row i from problem i. ``comparisons`` is how many rules are tested together; it makes
    `smallest_loss` count on a level of ``0.05 / comparisons``, and changes neither the interval nor p.

    One yes-or-no response per problem: McNemar's exact test, Tango's interval, `smallest_visible_loss`. Otherwise
    Student's t over the problems' mean differences.

    Raises `InvalidParameter` for other shapes or shapes that differ, no problems, scores outside [0, 1] or NaN, and
    ``comparisons`` below 1.
    """
    before, after = check_scores("reference", reference), check_scores("scores", scores)
    if before.shape != after.shape:
        raise InvalidParameter(
            f"reference is {before.shape}, scores {after.shape}; compare runs on the same problems, sampled as often."
        )
    if comparisons < 1:
        raise InvalidParameter(f"comparisons is {comparisons}; it counts the rules compared, this one too: 1 or more.")
    paired = _compare_answers if is_binary(before) and is_binary(after) else _compare_means
    return paired(before, after, LEVEL / comparisons)


def _compare_answers(before: Values, after: Values, level: float) -> Comparison:
    n = len(before)
    gained, lost = int((after > before).sum()), int((after < before).sum())
    return Comparison(
        n=n,
        difference=tango(gained, lost, n),
        gained=gained,
        lost=lost,
        p=mcnemar(gained, lost),
        smallest_loss=smallest_visible_loss(n, gain_rate(gained, n), level),
    )


def _compare_means(before: Values, after: Values, level: float) -> Comparison:
    differences = after.mean(axis=1) - before.mean(axis=1)
    return Comparison(
        n=len(differences),
        difference=mean_interval(differences, -1.0, 1.0),
        gained=None,
        lost=None,
        p=_t_test(differences),
        smallest_loss=_smallest_mean_loss(differences, level),
    )


def mcnemar(gained: int, lost: int) -> float:
    """McNemar's exact two-sided p: of the problems that changed, a lossless rule gains each with probability 1/2."""
    return max(float(stats.binomtest(gained, gained + lost).pvalue), SMALLEST_P) if gained + lost else 1.0


def tango(gained: int, lost: int, n: int) -> Interval:
    """``(gained - lost) / n`` with Tango's score interval for paired shares (Statistics in Medicine 17, 1998).

    Its ends are the differences d at which ``(gained - lost - n d)^2 = z^2 n (2 l + d (1 - d))``, with l the likeliest
    rate of losses given d. Never of width 0: without a change in n problems the ends are ``-+ z^2 / (n + z^2)``.
    """

    def excess(d: float) -> float:
        b = (2 * n - gained + lost) * d - gained - lost
        losses = (math.sqrt(max(b * b + 8 * n * lost * d * (1 - d), 0.0)) - b) / (4 * n)
        return (gained - lost - n * d) ** 2 - Z**2 * n * (2 * losses + d * (1 - d))

    estimate = (gained - lost) / n
    beside = 1e-9  # the variance may vanish at the estimate itself and make it a false root; beside it never does
    low = optimize.brentq(excess, -1.0, estimate - beside) if lost < n else -1.0
    high = optimize.brentq(excess, estimate + beside, 1.0) if gained < n else 1.0
    return Interval(estimate, float(low), float(high))


def gain_rate(gained: int, n: int) -> float:
    """``(gained + 1/2) / n``: the rate at which problems turn right by chance, as `smallest_visible_loss` needs it.

    Gains tell of it whether or not the rule loses; with the lost problems too, a real loss would count as chance and
    inflate the loss stated. The half makes the stated power 80% on average over data sets (without it 77%, and fewer
    for the lesser of gained and lost), and keeps chance possible where nothing was gained. A rule that really gains
    gets a smallest loss somewhat too large.
    """
    return (gained + 0.5) / n


def smallest_visible_loss(n: int, gains: float, level: float) -> float | None:
    """The loss that `mcnemar` at ``level`` shows with 80% power on n problems; None if not even the largest is.

    ``gains`` is the share of problems that turn right by chance alone; as many turn wrong, and the loss comes on top.
    Exact but for the root finding (1e-7).
    """
    largest = 1 - 2 * gains
    if largest <= 0 or power_of(n, gains, largest, level) < POWER:
        return None
    return float(optimize.brentq(lambda loss: power_of(n, gains, loss, level) - POWER, 0.0, largest, xtol=1e-7))


def power_of(n: int, gains: float, loss: float, level: float) -> float:
    """The chance that `mcnemar` finds a loss: ``sum_m P(m changed) P(losses >= critical(m) | m)``.

    The problems that change are Binomial(n, 2 gains + loss), the losses among m of them Binomial(m, (gains + loss) /
    (2 gains + loss)), and critical(m) is the least count whose upper tail, twice, is at most ``level`` at 1/2.
    """
    changing = min(1.0, 2 * gains + loss)  # rounding may carry the largest loss beyond
    least, most = stats.binom.ppf([NEGLIGIBLE, 1 - NEGLIGIBLE], n, changing)
    changed = np.arange(max(least, 0), most + 1)
    below_critical = stats.binom.isf(level / 2, changed, 0.5)
    seen = stats.binom.sf(below_critical, changed, (gains + loss) / changing)
    return float(stats.binom.pmf(changed, n, changing) @ seen)


def _t_test(differences: Values) -> float:
    """Student's paired p, but never below what flipping signs allows: ``2^(1 - changed)`` for the changed problems.

    Between runs of one law each difference is as likely as its opposite. With four changes t can fall under 0.05,
    while all four go one way in an eighth of all such runs.
    """
    spread, changed = spread_of(differences), int((np.abs(differences) > ROUNDING).sum())
    flips = max(min(1.0, 2.0 ** (1 - changed)), SMALLEST_P)
    if not spread:
        return flips
    n = len(differences)
    t = abs(float(differences.mean())) * math.sqrt(n) / spread
    return max(flips, 2 * float(special.stdtr(n - 1, -t)))


def _smallest_mean_loss(differences: Values, level: float) -> float | None:
    """By the noncentral t, for the spread observed. Without any, as for single answers that all stayed."""
    n, spread = len(differences), spread_of(differences)
    if 2.0 ** (1 - n) > level:
        return None  # too few for `_t_test`, whichever way they go
    if not spread:
        return smallest_visible_loss(n, gain_rate(0, n), level)
    shift = special.nctdtrinc(n - 1, 1 - POWER, student(n, level))
    loss = float(shift) * spread / math.sqrt(n)
    return loss if loss <= 1 else None
