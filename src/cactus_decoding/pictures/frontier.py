"""The frontier: how much acceptance each rule buys for how much divergence of what is really emitted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from cactus_decoding.fidelity import FIGURES, measure_rows
from cactus_decoding.pictures.canvas import line_style, panels, style
from cactus_decoding.rules import Rule, settings_of
from cactus_decoding.rules.dials import dial_of, is_tied

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ACCEPTANCE, _LOSSLESS, _KL = (FIGURES.index(name) for name in ("acceptance", "lossless_acceptance", "kl"))
_WIDEST = 0.5  # nats: what lies beyond is not worth a picture
_SPOKEN = 0.1  # nats: where the title compares
_BELOW, _NEAR = 0.08, 0.06  # of acceptance: how far below lossless, and around the first rule, the panels reach
_STEPS = 60
_SETTINGS = 40  # of each dial: many of them lie outside the picture


class Point(NamedTuple):
    """One setting of a rule: means over positions."""

    setting: float
    kl: float
    """``KL(law || q)`` in nats per examined token."""
    acceptance: float


class Line(NamedTuple):
    """One rule, and the values of its dial to try."""

    label: str
    rules: list[tuple[float, Rule]]


@dataclass(frozen=True, slots=True)
class Tradeoff:
    """What `draw_frontier` draws. Any measurement fits, of synthetic positions or of a pair's own."""

    lines: dict[str, list[Point]]
    """By the rule's label, in any order."""
    lossless: float
    """Acceptance of the lossless rule, whose KL is 0. Lines of rules that can be lossless begin there."""
    positions: int
    source: str
    """What the positions are, in a few words."""


def line_of(rule: Rule) -> Line:
    """The rule along its dial, its other settings as they are. Raises `InvalidParameter` for a rule without a dial."""
    dial = dial_of(rule)
    tied = ["a = sqrt(epsilon)"] if is_tied(rule) else []
    return Line(" ".join([label_of(rule), *tied]), [(x, dial.turned(rule, x)) for x in dial.values(_SETTINGS)])


def label_of(rule: Rule) -> str:
    """The rule's name and those of its settings, the dial apart, that are not the default."""
    defaults = settings_of(type(rule))
    mine = {key: getattr(rule, key) for key in defaults if key != dial_of(rule).setting}
    return " ".join([rule.name, *(str(value) for key, value in mine.items() if value not in (defaults[key], None))])


def measure_tradeoff(
    p: Tensor, q: Tensor, lines: Sequence[Line], source: str, watch: Callable[[int, int], None] | None = None
) -> Tradeoff:
    """Every rule on every position ``[R, V]``; ``watch`` is told of settings done and of all."""
    parts, done, points = sum(len(line.rules) for line in lines), 0, {}
    lossless = torch.minimum(p, q).sum(-1).double().mean().item()
    for line in lines:
        found = []
        for setting, rule in line.rules:
            means = measure_rows(p, q, rule).mean(0)
            found.append(Point(setting, means[_KL].item(), means[_ACCEPTANCE].item()))
            done += 1
            if watch is not None:
                watch(done, parts)
        points[line.label] = found
    return Tradeoff(points, lossless, len(p), source)


def acceptance_at(points: Sequence[Point], kl: float) -> float:
    """Acceptance where the line, straight between its points, first reaches this KL; NaN where it never does."""
    for left, right in pairwise(points):
        low, high = sorted((left, right), key=lambda point: point.kl)
        if low.kl <= kl <= high.kl and low.kl < high.kl:
            return low.acceptance + (high.acceptance - low.acceptance) * (kl - low.kl) / (high.kl - low.kl)
    return math.nan


def draw_frontier(found: Tradeoff) -> Figure:
    """Two panels: acceptance against KL, one line per rule, and the same as a difference from the first rule.

    The names stand in the order of acceptance at the KL that the title speaks of.
    """
    with style():
        at = _spoken_of(found)
        order = sorted(found.lines, key=lambda label: -_known(acceptance_at(found.lines[label], at)))
        figure, (whole, near) = panels(_takeaway(found, order, at), 2, 12, 5.4)
        widest = min(_WIDEST, max(point.kl for points in found.lines.values() for point in points))
        looks = {label: line_style(number) for number, label in enumerate(found.lines)}
        for label in order:
            points = found.lines[label]
            x, y = [point.kl for point in points], [point.acceptance for point in points]
            whole.plot(x, y, **looks[label], label=_named(label, x, widest), zorder=3)
            _draw_difference(near, found, label, widest, looks[label])
        whole.plot([0], [found.lossless], "o", color="black", markersize=9, clip_on=False, zorder=5)
        whole.annotate("lossless", (0, found.lossless), xytext=(4, -17), textcoords="offset points", weight="bold")
        top, low = 1.005, found.lossless - _BELOW
        whole.set(xlim=(0, widest), ylim=(low, top), ylabel="share of drafted tokens that are kept")
        whole.set_title(f"{found.positions:,} positions, {found.source}", size=9.5)
        first = next(iter(found.lines))
        near.set(xlim=(0, widest), ylabel="difference in that share")
        near.set_ylim(max(-_NEAR, near.get_ylim()[0]), min(_NEAR, near.get_ylim()[1]))
        near.set_title(f"the same, less that of {first} at equal KL", size=9.5)
        figure.supxlabel("mean KL(emitted law || q), nats per examined token", size=9.5)
        figure.legend(*whole.get_legend_handles_labels(), loc="outside right center", handlelength=3.5)
    return figure


def _named(label: str, kl: Sequence[float], widest: float) -> str:
    return label if min(kl) <= widest else f"{label} (beyond, from {min(kl):.2f} nats on)"


def _draw_difference(axes: Axes, found: Tradeoff, label: str, widest: float, look: dict[str, Any]) -> None:
    first = next(iter(found.lines.values()))
    kl = [widest * (k + 0.5) / _STEPS for k in range(_STEPS)]
    gain = [acceptance_at(found.lines[label], x) - acceptance_at(first, x) for x in kl]
    axes.plot(kl, gain, **look | {"markevery": 5}, zorder=3)


def _spoken_of(found: Tradeoff) -> float:
    """A KL that most lines reach: .1 nats, or less where the first one ends before."""
    return min(_SPOKEN, 0.5 * max(point.kl for point in next(iter(found.lines.values()))))


def _takeaway(found: Tradeoff, order: Sequence[str], at: float) -> str:
    first = next(iter(found.lines))
    kept = [f"{label} {acceptance_at(found.lines[label], at):.0%}" for label in dict.fromkeys((order[0], first))]
    return f"Kept of the drafts at {at:.2g} nats per token: {', '.join(kept)}; lossless {found.lossless:.0%}"


def _known(value: float) -> float:
    return -math.inf if math.isnan(value) else value
