"""Turning each rule's dial until the measured figure is the one that was asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from cactus_decoding.calibration.positions import Positions
from cactus_decoding.errors import InvalidParameter
from cactus_decoding.generation.drafting import MOST, StepCosts
from cactus_decoding.rules import Rule, spec_of
from cactus_decoding.rules.dials import Dial, dial_of

Figure = Literal["kl", "tv", "acceptance"]
_COARSE = 256  # positions that the first look at a dial is taken on
_POINTS = 14  # of a dial, at that first look
_NEAR = 0.005  # of the target, relative: near enough
_STEPS = 18
_BISECTED = 3  # of so many steps one: regula falsi alone creeps where the figure jumps
_TAIL = 0.99
_FIGURES = ("acceptance", "kl", "tv")

Watch = Callable[[str, int, int], None]
"""Told what is done now, how many parts are done, and how many there are."""


@dataclass(frozen=True, slots=True)
class Target:
    """The mean over examined positions that every rule is set to."""

    figure: Figure
    value: float

    def __post_init__(self) -> None:
        most = math.inf if self.figure == "kl" else 1.0
        if not 0.0 < self.value < most:
            bounds = "above 0" if self.figure == "kl" else "between 0 and 1"
            raise InvalidParameter(f"{self.figure} is {self.value}, but must be a number {bounds}.")


@dataclass(frozen=True, slots=True)
class Point:
    """One setting of a rule and what it does, as means over the positions it was measured on."""

    rule: Rule
    kl: float
    tv: float
    acceptance: float


@dataclass(frozen=True, slots=True)
class Setting:
    """A rule set to the target, or as near as it gets, measured on all positions."""

    point: Point
    reached: bool
    error: float
    """Standard error of the acceptance; prompts, not positions, are taken to be independent."""
    lead: float
    """Its acceptance over that of the first rule."""
    lead_error: float
    kl_tail: float
    """99th percentile of the positions' KL."""
    coarse: tuple[Point, ...]
    """The whole range of its dial, from strict to lenient, measured on some of the positions."""

    def tokens_per_call(self, m: int) -> float:
        """``(1 - a^(m+1)) / (1 - a)``: as if every place were kept with the same chance a."""
        return sum(self.point.acceptance**kept for kept in range(m + 1))

    def speed(self, costs: StepCosts) -> tuple[int, float]:
        """The draft length with the highest predicted speed, and that speed over the verifier alone."""
        speeds = {m: self.tokens_per_call(m) * costs(0) / costs(m) for m in range(1, MOST + 1)}
        best = max(speeds, key=speeds.__getitem__)
        return best, speeds[best]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        figures = {"kl": self.point.kl, "tv": self.point.tv, "acceptance": self.point.acceptance}
        own = {name: getattr(self, name) for name in ("reached", "error", "lead", "lead_error", "kl_tail")}
        own = {name: None if math.isnan(value) else value for name, value in own.items()}  # of one prompt: no error
        coarse = [{"rule": spec_of(p.rule), "kl": p.kl, "tv": p.tv, "acceptance": p.acceptance} for p in self.coarse]
        return {"rule": spec_of(self.point.rule), **figures, **own, "coarse": coarse}


@dataclass(frozen=True, slots=True)
class Calibration:
    """Every rule at the same measured figure."""

    target: Target
    positions: int
    prompts: int
    lossless_acceptance: float
    settings: tuple[Setting, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "target": {self.target.figure: self.target.value},
            "positions": self.positions,
            "prompts": self.prompts,
            "lossless_acceptance": self.lossless_acceptance,
            "settings": [setting.to_dict() for setting in self.settings],
        }


def calibrate(
    positions: Positions,
    rules: Sequence[Rule],
    target: Target,
    watch: Watch = lambda what, done, parts: None,
) -> Calibration:
    """Set every rule so that the mean of its measured figure is the target's.

    Where a rule's figure jumps it is set to the nearest from below; where it cannot be reached, to the nearest of the
    first look's settings; both say so. A figure that does not rise all the way is searched where the rule accepts most.

    Args:
        rules: with the settings that are to stay as they are; the first is what the others are compared with.

    Raises:
        InvalidParameter: a rule has no dial, or there are no positions.
    """
    searches = [_Search(positions, rule, dial_of(rule), target) for rule in rules]
    parts = len(rules) * (_POINTS + 1)
    settings: list[Setting] = []
    first: Tensor | None = None
    for number, search in enumerate(searches):
        coarse = []
        for place, point in enumerate(search.coarse()):
            coarse.append(point)
            watch(search.rule.name, number * (_POINTS + 1) + place, parts)
        rule, figures = search.refined(coarse)
        first = figures[:, 0] if first is None else first
        settings.append(_setting(rule, figures, first, tuple(coarse), positions.groups, target))
    watch("done", parts, parts)
    lossless = positions.measure(rules[0], ("lossless_acceptance",)) if rules else torch.empty(0)
    return Calibration(target, len(positions), len(set(positions.groups)), float(lossless.mean()), tuple(settings))


class _Search:
    """One rule."""

    def __init__(self, positions: Positions, rule: Rule, dial: Dial, target: Target) -> None:
        self._positions, self.rule, self._dial, self._target = positions, rule, dial, target
        self._measured: dict[float, Tensor] = {}

    def coarse(self) -> Iterator[Point]:
        """The whole range of the dial, from strict to lenient, on some of the positions."""
        every = max(1, len(self._positions) // _COARSE)
        for value in self._dial.values(_POINTS):
            rule = self._dial.turned(self.rule, value)
            yield _point(rule, self._positions.measure(rule, _FIGURES, every))

    def refined(self, coarse: Sequence[Point]) -> tuple[Rule, Tensor]:
        """The rule as near to the target as it gets, and what it does at every position, ``[N, 3]``."""
        value = self._refined(coarse)
        return self._dial.turned(self.rule, value), self.measured(value)

    def _refined(self, coarse: Sequence[Point]) -> float:
        """Regula falsi between the two coarse points that enclose the target, moved on if they do not on all."""
        grid, wanted = self._dial.values(_POINTS), self._target.value
        found = [self._figure(point) for point in coarse]
        below = [i for i in range(len(grid) - 1) if found[i] <= wanted < found[i + 1]]
        if not below:
            nearest = min(range(len(grid)), key=lambda i: abs(found[i] - wanted))
            return grid[nearest]
        strict, lenient = self._enclosing(max(below, key=lambda i: coarse[i].acceptance))
        for step in range(_STEPS):
            f, g = self.figure(strict), self.figure(lenient)
            if wanted - f <= _NEAR * wanted or g <= f:
                break
            value = self._dial.between(strict, lenient, 0.5 if step % _BISECTED == 0 else _share(f, wanted, g))
            if value in (strict, lenient):
                break
            if abs(self.figure(value) - wanted) <= _NEAR * wanted:
                return value
            strict, lenient = (value, lenient) if self.figure(value) <= wanted else (strict, value)
        return strict

    def measured(self, value: float) -> Tensor:
        """`_FIGURES` at every position, ``[N, 3]``."""
        if value not in self._measured:
            self._measured[value] = self._positions.measure(self._dial.turned(self.rule, value), _FIGURES)
        return self._measured[value]

    def figure(self, value: float) -> float:
        """The mean of the target's figure."""
        return float(self.measured(value)[:, _FIGURES.index(self._target.figure)].mean())

    def _figure(self, point: Point) -> float:
        return float(getattr(point, self._target.figure))

    def _enclosing(self, low: int) -> tuple[float, float]:
        """The grid's values around the target on all positions, from those around it on some."""
        grid, wanted = self._dial.values(_POINTS), self._target.value
        while self.figure(grid[low]) > wanted and low > 0:
            low -= 1
        while self.figure(grid[low + 1]) <= wanted and low < len(grid) - 2:
            low += 1
        return grid[low], grid[low + 1]


def _share(f: float, wanted: float, g: float) -> float:
    """How far between two settings the figure is ``wanted``, if its logarithm grows evenly from f to g."""
    if f <= 0.0:  # a jump from nothing: bisect
        return 0.5
    return min(max(math.log(wanted / f) / math.log(g / f), 0.02), 0.98)


def _point(rule: Rule, figures: Tensor) -> Point:
    acceptance, kl, tv = figures.mean(0).tolist()
    return Point(rule, kl, tv, acceptance)


def _setting(
    rule: Rule, figures: Tensor, first: Tensor, coarse: tuple[Point, ...], groups: Sequence[int], target: Target
) -> Setting:
    point = _point(rule, figures)
    lead = figures[:, 0] - first
    return Setting(
        point=point,
        reached=abs(getattr(point, target.figure) - target.value) <= 2 * _NEAR * target.value,
        error=standard_error(figures[:, 0], groups),
        lead=float(lead.mean()),
        lead_error=standard_error(lead, groups),
        kl_tail=float(figures[:, 1].quantile(_TAIL)),
        coarse=coarse,
    )


def standard_error(values: Tensor, groups: Sequence[int]) -> float:
    """Of the mean of ``values`` ``[N]``, where values of one group may depend on each other; NaN for one group."""
    number = {group: place for place, group in enumerate(dict.fromkeys(groups))}
    index = torch.tensor([number[group] for group in groups])
    sums = torch.zeros(len(number), dtype=values.dtype).index_add_(0, index, values - values.mean())
    count = len(number)
    return math.sqrt(count / (count - 1) * float(sums.square().sum())) / len(values) if count > 1 else math.nan
