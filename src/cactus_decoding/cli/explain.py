"""``cactus explain``: the mathematics in pictures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cactus_decoding.cli.console import out, print_json, progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from cactus_decoding.pictures import Position, Tradeoff
    from cactus_decoding.rules import Rule

PICTURES = ("gamma", "overshoot", "position", "frontier")
_AT_ONE_POSITION = (
    "lossless", "cactus:delta=0.02", "cactus:delta=0.25", "ratio:alpha=1.5", "mentored:budget=0.1", "typical"
)  # fmt: skip
_ON_THE_FRONTIER = (
    "cactus", "cactus:solver=exact", "ratio", "mentored:divergence=kl", "frontier", "typical", "cascade", "top-k",
    "interpolation", "ears", "fuzzy",
)  # fmt: skip


def explain(
    what: Annotated[str, typer.Argument(metavar="PICTURE", help=f"{', '.join(PICTURES)}, or all.")] = "all",
    into: Annotated[Path, typer.Option("--out", help="Folder for the pictures, PNG and SVG.")] = Path(
        "cactus-pictures"
    ),
    delta: Annotated[
        list[float] | None,
        typer.Option(help="Budget in nats, of gamma and overshoot; may be repeated.", show_default=False),
    ] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SPEC",
            help="Rule such as cactus:delta=0.5, of position and frontier; may be repeated.",
            show_default=False,
        ),
    ] = None,
    positions: Annotated[int, typer.Option(min=1, help="Synthetic positions of the frontier.")] = 300,
    seed: Annotated[int, typer.Option(min=0, help="Which random numbers those are made from.")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the data behind the pictures as one JSON document; draw nothing.")
    ] = False,
) -> None:
    """Draw what a budget does to one token, what it may overspend, what rules emit, and what acceptance costs."""
    import torch

    from cactus_decoding.pictures import canvas
    from cactus_decoding.rules.base import require_one_of

    require_one_of("picture", what, (*PICTURES, "all"))
    if delta and what in ("position", "frontier"):
        raise typer.BadParameter(f"--delta is for gamma and overshoot; for {what} give --rule cactus:delta={delta[0]}")
    if rule and what in ("gamma", "overshoot"):
        raise typer.BadParameter(f"--rule is for position and frontier; {what} is drawn for budgets: give --delta")
    if not as_json:
        canvas.require_matplotlib()  # before anything takes its time
    torch.set_num_threads(1)  # the tensors are small
    makers: dict[str, Callable[[], tuple[Any, Callable[[], Figure]]]] = {
        "gamma": lambda: _gamma(delta),
        "overshoot": lambda: _overshoot(delta),
        "position": lambda: _position(rule),
        "frontier": lambda: _frontier(rule, positions, seed),
    }
    document = {}
    for name in PICTURES if what == "all" else (what,):
        document[name], draw = makers[name]()
        if not as_json:
            for file in canvas.save(draw(), into / name):
                out.print(str(file), markup=False, soft_wrap=True)
    if as_json:
        print_json(document)


def _gamma(deltas: list[float] | None) -> tuple[Any, Callable[[], Figure]]:
    from cactus_decoding.pictures.gamma import DELTAS, draw_gamma, raises_of

    lines = [raises_of(delta) for delta in deltas or DELTAS]
    return [asdict(line) for line in lines], lambda: draw_gamma(lines)


def _overshoot(deltas: list[float] | None) -> tuple[Any, Callable[[], Figure]]:
    from cactus_decoding.pictures.overshoot import DELTAS, draw_overshoot, overshoot_of

    lines = [overshoot_of(delta) for delta in deltas or DELTAS]
    return [asdict(line) for line in lines], lambda: draw_overshoot(lines)


def _position(specs: list[str] | None) -> tuple[Any, Callable[[], Figure]]:
    from cactus_decoding.pictures import EXAMPLE, draw_position, position_of

    p, q = zip(*EXAMPLE.values())
    found: Position = position_of(p, q, list(EXAMPLE), _rules(specs, _AT_ONE_POSITION))
    return asdict(found), lambda: draw_position(found)


def _frontier(specs: list[str] | None, positions: int, seed: int) -> tuple[Any, Callable[[], Figure]]:
    from cactus_decoding.pictures import draw_frontier, line_of, measure_tradeoff, synthetic_positions

    lines = [line_of(rule) for rule in _rules(specs, _ON_THE_FRONTIER)]
    with progress() as bar:
        task = bar.add_task("measuring rules", total=None)
        found: Tradeoff = measure_tradeoff(
            *synthetic_positions(positions, seed),
            lines,
            "synthetic",
            lambda done, parts: bar.update(task, completed=done, total=parts),
        )
    document = asdict(found)
    document["lines"] = {label: [point._asdict() for point in points] for label, points in found.lines.items()}
    return document, lambda: draw_frontier(found)


def _rules(specs: list[str] | None, otherwise: tuple[str, ...]) -> list[Rule]:
    from cactus_decoding.rules import parse_rule

    return [parse_rule(spec) for spec in specs or otherwise]
