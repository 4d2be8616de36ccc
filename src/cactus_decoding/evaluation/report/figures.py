"""The pictures of a report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cactus_decoding.evaluation.plan import VERIFIER
from cactus_decoding.evaluation.summary import Row, TaskSummary
from cactus_decoding.pictures.canvas import line_style, panels, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEAST = 20  # examined tokens at a place, for its share to be drawn
_LINES = 8
_LINEAR = 5  # points: small losses stay readable beside the ruin of a bad rule
_TICKS = (-80, -40, -20, -10, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 10, 20, 40)


def draw_frontiers(task: TaskSummary) -> Figure:
    """Quality against speed, and acceptance against deviation; a line joins the settings of one rule."""
    with style():
        title = f"{_plain(task.name)}: what speed costs ({task.problems:,} problems)"
        figure, (quality, deviation) = panels(title, 2, 12, 5)
        families = _families(task.rows)
        for number, (name, rows) in enumerate(families.items()):
            look = line_style(number)
            _draw(quality, rows, "tokens_per_call", None, look, name)
            _draw(deviation, rows, "kl_per_token", "acceptance", look, name)
        quality.axhline(0, color="#888888", linewidth=0.8, zorder=1)
        quality.set(xlabel="tokens per verifier call", ylabel="score less that of lossless, in points")
        _squeeze(quality)
        quality.set_title("quality against tokens per call, with paired 95% intervals", size=9.5)
        deviation.set(xlabel="KL from the verifier, nats per token", ylabel="share of examined drafts that is accepted")
        deviation.set_title("acceptance against deviation", size=9.5)
        figure.legend(*quality.get_legend_handles_labels(), loc="outside right center", handlelength=3.5)
    return figure


def _squeeze(axes: Axes) -> None:
    """Where there are large losses, an axis on which small ones stay readable."""
    low, high = axes.get_ylim()
    if low > -_LINEAR and high < _LINEAR:
        return
    axes.set_yscale("symlog", linthresh=_LINEAR, linscale=1.5)
    axes.set_yticks([tick for tick in _TICKS if low <= tick <= high])
    axes.yaxis.set_major_formatter("{x:+g}")
    axes.minorticks_off()
    axes.set_ylabel(f"{axes.get_ylabel()} (denser beyond {_LINEAR})")


def _plain(name: str) -> str:
    """Dollars are dollars."""
    return name.replace("$", r"\$")


def _families(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """By rule, and by what else differs than its first setting; each from strict to lenient."""
    families: dict[str, list[Row]] = {}
    for row in rows:
        if row.setting.rule != VERIFIER:
            families.setdefault(_family(row.label), []).append(row)
    return {name: sorted(group, key=lambda row: row.figures["acceptance"].estimate) for name, group in families.items()}


def _family(label: str) -> str:
    """``cactus:delta=0.1,max_ratio=4 m=10`` belongs to ``cactus max_ratio=4 m=10``."""
    rule, *rest = label.split(" ")
    name, _, settings = rule.partition(":")
    kept = [part for part in settings.split(",")[1:] if part and not part.startswith("a=")]
    return " ".join([name, *kept, *rest])


def _draw(axes: Axes, rows: Sequence[Row], x: str, y: str | None, look: dict[str, Any], name: str) -> None:
    across = [row.figures[x] for row in rows]
    if y is not None:
        up = [row.figures[y] for row in rows]
    else:
        differences = [row.comparison.difference if row.comparison else None for row in rows]
        up = [type(across[0])(0.0, 0.0, 0.0) if d is None else type(d)(*(100 * v for v in d)) for d in differences]
    values = [one.estimate for one in up]
    axes.errorbar(
        [one.estimate for one in across], values,
        xerr=_bars(across), yerr=_bars(up), **look, label=name, elinewidth=0.8, capsize=2, zorder=3,
    )  # fmt: skip


def _bars(values: Sequence[Any]) -> list[list[float]]:
    """Lengths below and above; 0 where an end is unknown."""
    below = [value.estimate - value.low for value in values]
    above = [value.high - value.estimate for value in values]
    return [[0.0 if math.isnan(length) else max(length, 0.0) for length in side] for side in (below, above)]


def draw_places(task: TaskSummary) -> Figure:
    """Acceptance by place in the block: of each rule its most lenient setting, and lossless."""
    with style():
        from matplotlib.ticker import MaxNLocator

        figure, (axes,) = panels(f"{_plain(task.name)}: how far a block carries", 1, 9, 4.4)
        for number, row in enumerate(_most_lenient(task.rows)):
            shares = [(place, accepted / n) for place, (n, accepted, _) in enumerate(row.places, 1) if n >= _LEAST]
            axes.plot(*zip(*shares), **line_style(number), label=row.label)
        axes.set(xlabel="place in the drafted block", ylabel="accepted of those examined there")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_title("of each rule the most lenient setting; places behind a refusal are not examined", size=9.5)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", handlelength=3.5)
    return figure


def _most_lenient(rows: Sequence[Row]) -> list[Row]:
    chosen = [group[-1] for group in _families(rows).values() if any(n >= _LEAST for n, _, _ in group[-1].places)]
    return chosen[:_LINES]
