"""One position: what the drafter and the verifier hold likely, and what each rule makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cactus_decoding.errors import InvalidParameter
from cactus_decoding.fidelity import measure
from cactus_decoding.induced import induced_law
from cactus_decoding.pictures.canvas import panels, style
from cactus_decoding.rules import Rule, spec_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# made by hand: "The old lighthouse keeper opened the ..."
EXAMPLE: dict[str, tuple[float, float]] = {
    "door": (0.44, 0.22),
    "window": (0.20, 0.18),
    "hatch": (0.06, 0.19),
    "letter": (0.02, 0.14),
    "gate": (0.08, 0.09),
    "box": (0.11, 0.04),
    "log": (0.02, 0.05),
    "shutters": (0.015, 0.04),
    "map": (0.05, 0.03),
    "lamp": (0.005, 0.02),
}
"""Tokens with their p and q."""

_SUM = 1e-3  # how far from 1 a law may add up


@dataclass(frozen=True, slots=True)
class Law:
    """What comes out under one rule, with the figures of `cactus_decoding.fidelity` that the picture shows."""

    rule: str
    law: list[float]
    acceptance: float
    tv: float
    kl: float
    """``KL(law || q)`` in nats, over all tokens."""


@dataclass(frozen=True, slots=True)
class Position:
    """The likeliest tokens of one position, p and q of them, and the emitted law under several rules."""

    tokens: list[str]
    p: list[float]
    q: list[float]
    laws: list[Law]


def position_of(
    p: Tensor | Sequence[float],
    q: Tensor | Sequence[float],
    tokens: Sequence[str],
    rules: Sequence[Rule],
    most: int = 12,
) -> Position:
    """The emitted law of each rule at one position.

    Args:
        p, q: ``[V]`` the two laws, made by hand or taken from a pair.
        tokens: ``[V]`` the text of each token.
        rules: any that decide token by token.
        most: how many tokens to list, by the larger of p and q; the others are added up in one last row.
    """
    p, q = _law("p", p, len(tokens)), _law("q", q, len(tokens))
    order = torch.maximum(p, q).argsort(descending=True, stable=True).tolist()
    shown, rest = order[:most], order[most:]
    shown.sort(key=lambda i: -float(q[i]))

    def listed(law: Tensor) -> list[float]:
        return law[shown].tolist() + ([float(law[rest].sum())] if rest else [])

    laws = []
    for rule in rules:
        found = measure(p, q, rule)
        laws.append(Law(spec_of(rule), listed(induced_law(p, q, rule)), found.acceptance, found.tv, found.kl))
    names = [tokens[i] for i in shown] + ([f"{len(rest)} others"] if rest else [])
    return Position(names, listed(p), listed(q), laws)


def _law(name: str, values: Tensor | Sequence[float], size: int) -> Tensor:
    law = torch.as_tensor(values, dtype=torch.float64)
    if law.shape != (size,) or not bool((law >= 0.0).all()) or abs(float(law.sum()) - 1.0) > _SUM:
        raise InvalidParameter(
            f"{name} has shape {list(law.shape)} and adds up to {float(law.sum()):g}, but must be one probability for "
            f"each of {size} tokens."
        )
    return law / law.sum()


def draw_position(found: Position) -> Figure:
    """One panel per rule: q as bars, p as ticks, the emitted law as dots, tokens from top to bottom."""
    with style():
        title = "Each rule emits a law of its own, most of them between the verifier's and the drafter's"
        count = len(found.laws)
        height = 1.6 + 0.28 * len(found.tokens)
        figure, row = panels(title, count, max(6.0, 0.9 + 2.1 * count), height, sharex=True, sharey=True)
        for axes, law in zip(row, found.laws):
            _draw(axes, found, law)
        row[0].set_yticks(range(len(found.tokens)), [_printable(token) for token in found.tokens])
        row[0].invert_yaxis()
        row[0].set_xlim(left=0.0)
        handles, labels = row[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower left", ncols=3)
        figure.supxlabel("probability", size=9.5)
    return figure


def _draw(axes: Axes, found: Position, law: Law) -> None:
    rows = range(len(found.tokens))
    axes.barh(rows, found.q, height=0.72, color="#d5d5d5", label="q, the verifier")
    axes.plot(found.p, rows, "|", color="#b3360b", markersize=11, markeredgewidth=1.8, label="p, the drafter")
    axes.plot(law.law, rows, "o", color="black", markersize=5, label="emitted under the rule")
    axes.grid(axis="y", visible=False)
    name, _, settings = law.rule.partition(":")
    axes.set_title(f"{name}\n{settings}\nkept {law.acceptance:.2f}\nTV {law.tv:.3f}, KL {law.kl:.3f}", size=9)


def _printable(token: str) -> str:
    """As Python writes it where spaces or line ends would not show; never read as a formula."""
    text = token if token.isprintable() and token == token.strip() and token else repr(token)
    return text.replace("$", r"\$")
