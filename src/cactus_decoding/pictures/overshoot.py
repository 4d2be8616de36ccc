"""Where the second-order gamma spends more than its budget, and by how much at most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from cactus_decoding.divergences import DIVERGENCES, require_budget
from cactus_decoding.pictures.canvas import line_style, panels, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DELTAS = (0.01, 0.1, 0.25, 0.5, 0.75, 1.0)
_GRID = 1001
_TOP, _NEAR = 0.5, 0.05  # the q of the highest of all peaks; names of peaks near it stand above them


@dataclass(frozen=True, slots=True)
class Overshoot:
    """``KL(h || q) - delta`` of the second-order h, for each q, and where it is largest."""

    delta: float
    q: list[float]
    excess: list[float]
    """In nats; above 0 the budget is exceeded."""
    worst_q: float
    """``1 / (1 + 2 delta)``, where gamma reaches 1."""
    worst: float
    """``ln(1 + 2 delta) - delta``, in nats; below 0 the budget is kept everywhere."""


def overshoot_of(delta: float) -> Overshoot:
    """The excess over a grid of q that holds the worst place."""
    require_budget(delta)
    worst_q = 1.0 / (1.0 + 2.0 * delta)
    grid = torch.cat(
        [torch.linspace(1e-4, 1.0 - 1e-4, _GRID, dtype=torch.float64), torch.tensor([worst_q], dtype=torch.float64)]
    )
    q = grid.sort().values
    kl = DIVERGENCES["kl"]
    excess = kl.coin(kl.raise_second_order(q, delta), q) - delta
    return Overshoot(delta, q.tolist(), excess.tolist(), worst_q, math.log1p(2.0 * delta) - delta)


def draw_overshoot(lines: Sequence[Overshoot]) -> Figure:
    """The excess of each budget, its peak marked with its value, and the line on which all peaks lie."""
    with style():
        title = "The second order overspends most where gamma reaches 1, by at most 0.193 nats"
        figure, (axes,) = panels(title, 1, 9, 5)
        axes.axhspan(0.0, 1.0, color="#f3f3f3", zorder=0)
        axes.axhline(0.0, color="black", linewidth=0.8)
        _draw_peaks(axes)
        for number, line in enumerate(lines):
            look = line_style(number)
            axes.plot(line.q, line.excess, **look | {"marker": ""})
            axes.plot([line.worst_q], [line.worst], **look | {"linestyle": "", "markersize": 6})
            side = "right" if line.worst_q < _TOP - _NEAR else "left" if line.worst_q > _TOP + _NEAR else "center"
            axes.annotate(
                f"delta = {line.delta:g}\n{line.worst:+.3f} at q = {line.worst_q:.2f}",
                (line.worst_q, line.worst),
                xytext=({"right": -6, "left": 3, "center": 0}[side], 5),
                textcoords="offset points",
                ha=side,
                size=8.5,
                color=look["color"],
                annotation_clip=True,
            )
        axes.set(
            xlabel="q(n), the verifier's probability of the drafted token",
            ylabel="KL(h || q) - delta, nats",
            xlim=(0, 1.15),
            ylim=(-0.5, 0.27),
            xticks=[0, 0.2, 0.4, 0.6, 0.8, 1],
        )
        axes.text(0.01, 0.24, "shaded: over budget", size=8.5, color="#555555")
    return figure


def _draw_peaks(axes: Axes) -> None:
    q = torch.linspace(0.215, 1.0, 161, dtype=torch.float64)
    delta = 0.5 * (1.0 / q - 1.0)
    peaks = torch.log1p(2.0 * delta) - delta
    axes.plot(q.tolist(), peaks.tolist(), color="#777777", linestyle=(0, (1, 1.5)), linewidth=1.1)
    axes.text(0.235, float(peaks[0]), "all peaks:\nln(1 + 2 delta) - delta", va="center", size=8.5, color="#555555")
