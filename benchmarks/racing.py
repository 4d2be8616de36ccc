"""A fair race: contestants take turns task by task, in an order that rotates, so that a busy moment slows them alike.

A figure is the median over rounds of one round's tokens per second, a ratio the median over rounds of the ratio
within a round. A round before the first is not counted.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any

import torch
import transformers
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from cactus_decoding.cli.console import progress

Contestant = Callable[[Any, int], tuple[int, float]]
"""(task, seed) -> (emitted tokens, seconds)."""
Speeds = dict[str, list[float]]
"""Tokens per second of each contestant, by round."""


def race(contestants: dict[str, Contestant], tasks: Sequence[Any], rounds: int, seed: int) -> Speeds:
    """Run all of them on all tasks, ``rounds`` times and once before that."""
    names = list(contestants)
    speeds: Speeds = {name: [] for name in names}
    with progress() as bar:
        step = bar.add_task("racing", total=(rounds + 1) * len(tasks))
        for turn in range(rounds + 1):
            tokens, seconds = dict.fromkeys(names, 0), dict.fromkeys(names, 0.0)
            for number, task in enumerate(tasks):
                shift = (turn + number) % len(names)
                for name in names[shift:] + names[:shift]:
                    emitted, spent = contestants[name](task, seed + turn * 1000 + number)
                    tokens[name] += emitted
                    seconds[name] += spent
                bar.advance(step)
            if turn:
                for name in names:
                    speeds[name].append(tokens[name] / seconds[name])
    return speeds


def spread(values: Iterable[float]) -> dict[str, float]:
    """Median, lowest and highest."""
    values = list(values)
    return {"median": median(values), "lowest": min(values), "highest": max(values)}


def ratios(speeds: Speeds, name: str, base: str) -> dict[str, float]:
    """The `spread` of how many times as fast as ``base`` it was, round by round."""
    return spread(mine / theirs for mine, theirs in zip(speeds[name], speeds[base]))


def told(figure: dict[str, float], digits: int = 2) -> str:
    """A `spread` for a table."""
    return f"{figure['median']:.{digits}f} ({figure['lowest']:.{digits}f} - {figure['highest']:.{digits}f})"


def show(title: str, caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table whose first column has names and whose others have numbers."""
    table = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False, title=title, caption=caption)
    table.add_column("", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console(width=130).print(table)


def finish(document: dict[str, Any]) -> None:
    """The last line: one JSON document, with where and how it was made."""
    made = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "command": " ".join(["python", *sys.orig_argv[1:]]),  # argv would name a folder of this machine
    }
    print(json.dumps({**document, **made}))
