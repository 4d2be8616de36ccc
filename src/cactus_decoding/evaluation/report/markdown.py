"""A report as Markdown: reads as plain text, too."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from cactus_decoding.evaluation.report.tables import EXPLAINED, Table, quality_table, speed_table
from cactus_decoding.evaluation.samples import Differing
from cactus_decoding.evaluation.summary import Summary, TaskSummary
from cactus_decoding.evaluation.sweep import Stopped

BRACKETS = {"kept": ("", ""), "relaxed": ("(", ")"), "recovered": ("[", "]"), "bonus": ("{", "}")}
_NAMED = 4  # settings of one text that are named before the rest is only counted


def markdown_of(summary: Summary, told: Sequence[tuple[str, str]], pictures: Mapping[str, Sequence[str]]) -> str:
    """The whole report.

    Args:
        told: what the run was, as names and values.
        pictures: files to show, by task.
    """
    parts = ["# Evaluation", "\n".join(f"- {name}: {value}" for name, value in told)]
    for task in summary.tasks:
        parts += _task(task, pictures.get(task.name, ()))
    if summary.stopped:
        parts += ["## Stopped early", "\n".join(f"- {told_of_stop(one)}" for one in summary.stopped)]
    parts += ["## How to read this", "\n".join(f"- {head}: {meaning}." for head, meaning in EXPLAINED.items())]
    return "\n\n".join(parts) + "\n"


def told_of_stop(one: Stopped) -> str:
    """A sentence."""
    return f"{one.setting} after {one.problems:,} problems: {one.by} was {one.why}."


def _task(task: TaskSummary, pictures: Sequence[str]) -> list[str]:
    samples = f", {task.samples} samples each" if task.samples > 1 else ""
    parts = [f"## {task.name}: {task.problems:,} problems{samples}"]
    for table in (quality_table(task), speed_table(task)):
        parts += [f"### {table.title}", _lines(table)]
    parts += [f"![{task.name}]({file})" for file in pictures]
    if task.differing:
        parts += ["### Where the settings differ most", _legend()]
        parts += [text for one in task.differing for text in _problem(one)]
    return parts


def _lines(table: Table) -> str:
    rows = [table.heads, ("---",) * len(table.heads), *table.rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)


def _legend() -> str:
    return "Kept as it is, (relaxed: kept only thanks to the rule), [recovered from a refusal], {drawn as a bonus}."


def _problem(one: Differing) -> list[str]:
    parts = [f"**{one.item}**", _fenced(one.prompt), f"Right: `{one.answer}`"]
    for response in one.responses:
        more = len(response.labels) - _NAMED
        names = ", ".join(response.labels[:_NAMED]) + (f" and {more} more" if more > 0 else "")
        parts += [f"{names}: {response.score:g}", _fenced(marked(response.tokens))]
    return parts


def _fenced(text: str) -> str:
    """As a block of code, between fences longer than any inside."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def marked(tokens: Sequence[tuple[str, str]]) -> str:
    """The text with a bracket around every token that was not simply kept; white space stays outside."""
    return "".join(_bracketed(piece, *BRACKETS[mark]) for piece, mark in tokens)


def _bracketed(piece: str, before: str, after: str) -> str:
    core = piece.strip()
    return piece.replace(core, f"{before}{core}{after}", 1) if core and before else piece
