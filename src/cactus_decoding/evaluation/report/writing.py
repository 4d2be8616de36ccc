"""Putting a report into files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from cactus_decoding.evaluation.plan import IDENTITY, Plan
from cactus_decoding.evaluation.report.figures import draw_frontiers, draw_places
from cactus_decoding.evaluation.report.html import html_of
from cactus_decoding.evaluation.report.markdown import markdown_of
from cactus_decoding.evaluation.store import replace_file
from cactus_decoding.evaluation.summary import Summary, TaskSummary
from cactus_decoding.pictures import canvas
from cactus_decoding.sampling import SamplingParams

_SHOWN = ("model", "draft", "rows", "seed")  # in lines of their own
_USUAL = {field.name: field.default for field in fields(Plan) if field.name in IDENTITY and field.name not in _SHOWN}


def write_report(summary: Summary, folder: Path, name: str = "report") -> list[Path]:
    """``name.html``, ``name.md`` with its pictures, and ``name.json``: the same, for eyes and for programs.

    Raises:
        MissingExtra: matplotlib is not installed.
        OutputFailed, InvalidParameter: a file cannot be written.
    """
    drawn = {task.name: _drawn(task) for task in summary.tasks}
    pictures: dict[str, list[str]] = {}
    files = []
    for number, (task, some) in enumerate(drawn.items()):
        for kind, _, figure in some:
            saved = canvas.save(figure, folder / f"{name}-{_numbered(number)}{kind}")
            pictures.setdefault(task, []).append(saved[0].name)
            files += saved[:1]
            saved[1].unlink()  # the HTML holds it
    told = told_of(summary)
    texts = {
        "html": html_of(
            summary, told, {task: [(words, figure) for _, words, figure in some] for task, some in drawn.items()}
        ),
        "md": markdown_of(summary, told, pictures),
        "json": json.dumps(summary.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n",
    }
    for suffix, text in texts.items():
        replace_file(folder / f"{name}.{suffix}", text.encode())
    return [*(folder / f"{name}.{suffix}" for suffix in texts), *files]


def _drawn(task: TaskSummary) -> list[tuple[str, str, Any]]:
    """Kind, words and figure of each picture."""
    return [
        ("frontiers", f"{task.name}: quality against speed, acceptance against deviation", draw_frontiers(task)),
        ("places", f"{task.name}: acceptance by place in the block", draw_places(task)),
    ]


def _numbered(number: int) -> str:
    """Nothing for the first task, which is mostly the only one."""
    return f"{number + 1}-" if number else ""


def told_of(summary: Summary) -> list[tuple[str, str]]:
    """What a run was, in names and values."""
    plan, session = summary.run["plan"], summary.run["sessions"][-1]
    settings = [row.setting for task in summary.tasks for row in task.rows]
    machine = session["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in session["versions"].items())
    told = [
        ("verifier", plan["model"]),
        ("drafter", plan["draft"] or "its own"),
        ("draft length", ", ".join(map(str, sorted({setting.m for setting in settings if setting.m})))),
        ("laws", "; ".join(dict.fromkeys(_law(setting.sampling) for setting in settings))),
        ("decoded", f"{plan['rows']} responses together, seed {plan['seed']}"),
        ("also", ", ".join(f"{name}={plan[name]}" for name, usual in _USUAL.items() if plan.get(name) != usual)),
        ("command", session["command"]),
        ("versions", versions + (f", revision {session['revision'][:12]}" if session["revision"] else "")),
        (
            "machine",
            f"{machine['processor']}, {machine['cores']} cores" + (f", {machine['gpu']}" if "gpu" in machine else ""),
        ),
        ("last session", f"{session['started']}, workers: {session['workers']}, threads of each: {session['threads']}"),
        ("sessions before", _sessions(summary.run["sessions"])),
    ]
    return [(name, value) for name, value in told if value]


def _sessions(sessions: Sequence[Mapping[str, Any]]) -> str:
    """Whether times and texts come from different code or circumstances."""
    revisions = len({session["revision"] for session in sessions})
    if len(sessions) == 1:
        return ""
    return f"{len(sessions) - 1}, times are compared across them" + (
        f"; {revisions} revisions of the code" if revisions > 1 else ""
    )


def _law(sampling: SamplingParams) -> str:
    """How logits become probabilities, in words."""
    filters = [f"{name} {value:g}" for name, value in (
        ("top-k", sampling.top_k), ("top-p", sampling.top_p if sampling.top_p < 1 else 0), ("min-p", sampling.min_p)
    ) if value]  # fmt: skip
    return f"temperature {sampling.temperature:g}, " + (", ".join(filters) or "no filters")
