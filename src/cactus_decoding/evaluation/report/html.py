"""A report as one HTML file that needs nothing else: pictures and styles are inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2

from cactus_decoding.evaluation.report.markdown import told_of_stop
from cactus_decoding.evaluation.report.tables import EXPLAINED, quality_table, speed_table
from cactus_decoding.evaluation.summary import Summary
from cactus_decoding.pictures.canvas import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TEMPLATE = Path(__file__).with_name("report.html.jinja")


def html_of(
    summary: Summary, told: Sequence[tuple[str, str]], figures: Mapping[str, Sequence[tuple[str, Figure]]]
) -> str:
    """The whole report.

    Args:
        told: what the run was, as names and values.
        figures: by task, each with the words that stand for it where it cannot be seen.
    """
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    drawn = {name: [(words, _svg(figure)) for words, figure in some] for name, some in figures.items()}
    tables = {task.name: (quality_table(task), speed_table(task)) for task in summary.tasks}
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    stopped = [told_of_stop(one) for one in summary.stopped]
    return template.render(
        summary=summary, told=told, figures=drawn, tables=tables, stopped=stopped, explained=EXPLAINED
    )


def _svg(figure: Figure) -> str:
    text = StringIO()
    with style():
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    drawing = text.getvalue()
    return drawing[drawing.index("<svg") :]
