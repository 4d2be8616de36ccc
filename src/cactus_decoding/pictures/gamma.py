"""How far a budget raises one probability: gamma against q(n), second order and exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from cactus_decoding.divergences import DIVERGENCES
from cactus_decoding.pictures.canvas import line_style, panels, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DELTAS = (0.01, 0.1, 0.5, 1.0)
_LOGITS = (-14.0, 14.0, 401)  # of q: from 8e-7 to its mirror image


@dataclass(frozen=True, slots=True)
class Raises:
    """gamma of one budget, for each q."""

    delta: float
    """In nats, of KL."""
    q: list[float]
    second_order: list[float]
    exact: list[float]


def raises_of(delta: float, q: Sequence[float] | None = None) -> Raises:
    """Both solutions of ``KL = delta`` for one drafted token, at ``q`` or at a fine grid."""
    places = (
        torch.linspace(*_LOGITS, dtype=torch.float64).sigmoid() if q is None else torch.tensor(q, dtype=torch.float64)
    )
    kl = DIVERGENCES["kl"]
    return Raises(
        delta=delta,
        q=places.tolist(),
        second_order=kl.raise_second_order(places, delta).tolist(),
        exact=kl.raise_exact(places, delta).tolist(),
    )


def draw_gamma(lines: Sequence[Raises]) -> Figure:
    """Two panels of the same lines: both axes linear, and both logarithmic for the rare tokens."""
    with style():
        title = "A budget lifts rare tokens by orders of magnitude; the exact solution lifts them further"
        figure, (plain, rare) = panels(title, 2, 10, 4.6)
        for axes in (plain, rare):
            axes.plot([1e-7, 1], [1e-7, 1], color="#999999", linewidth=1)
            for number, line in enumerate(lines):
                _draw(axes, line, number)
            axes.set_xlabel("q(n), the verifier's probability of the drafted token")
        plain.set(ylabel="gamma = h(n), its working target", xlim=(0, 1), ylim=(0, 1.02), title="all tokens")
        plain.text(0.76, 0.7, "gamma = q (lossless)", color="#666666", rotation=38, ha="center", va="center", size=8.5)
        rare.set(xscale="log", yscale="log", xlim=(1e-6, 1), ylim=(3e-5, 1.3), title="rare tokens, logarithmic")
        rare.minorticks_off()
        rare.text(1.6e-4, 9e-5, "gamma = q", color="#666666", rotation=45, ha="center", va="center", size=8.5)
        named = [rare.plot([], [], **line_style(number) | {"linestyle": "-"})[0] for number in range(len(lines))]
        rare.legend(named, [f"delta = {line.delta:g} nats" for line in lines], loc="lower right")
        handles = [plain.plot([], [], color="black", linestyle=dashes)[0] for dashes in ("-", (0, (4, 1.5)))]
        plain.legend(handles, ["exact (full markers)", "second order (hollow)"], loc="lower right")
    return figure


def _draw(axes: Axes, line: Raises, number: int) -> None:
    look = line_style(number) | {"markevery": (0.06 + 0.03 * number, 0.17)}
    axes.plot(line.q, line.exact, **look | {"linestyle": "-"})
    axes.plot(line.q, line.second_order, **look | {"linestyle": (0, (4, 1.5)), "markerfacecolor": "white"})
