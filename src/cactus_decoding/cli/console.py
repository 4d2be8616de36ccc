"""Where things are printed: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def print_json(document: dict[str, Any]) -> None:
    """One JSON document, and nothing else, to stdout."""
    json.dump(document, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def progress() -> Progress:
    """A bar with counts and an estimate of the time left, on stderr; gone when it is done."""
    counts = (MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(
        TextColumn("{task.description}"), BarColumn(), *counts, console=err, transient=True, disable=not err.is_terminal
    )


def figure(value: float, digits: int = 2) -> str:
    """A number for a table; a dash where there is none."""
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
