"""The numbers of a report as text: the same cells for the terminal, Markdown and HTML."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cactus_decoding.evaluation.statistics import Interval
from cactus_decoding.evaluation.summary import Row, TaskSummary

NOTHING = "-"
_LEAST_P = 0.001  # that is written out


@dataclass(frozen=True, slots=True)
class Table:
    """A title, column heads, and one row of cells per setting."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def quality_table(task: TaskSummary) -> Table:
    """In the paper's shape: score, AL, refusals against lossless; and what may be said of the loss."""
    heads = ("setting", "score", "AL", "refusals", "difference", "smallest visible", "p (Holm)", "verdict")
    return Table("Quality", heads, tuple(_quality(row) for row in task.rows))


def _quality(row: Row) -> tuple[str, ...]:
    found = row.comparison
    return (
        row.label,
        _points(row.score),
        _number(row.figures["accepted_length"].estimate),
        _percent(row.changes.get("refusals_per_token")),
        NOTHING if found is None else _points(found.difference, sign=True),
        NOTHING if found is None or found.smallest_loss is None else f"{100 * found.smallest_loss:.1f}",
        NOTHING if row.adjusted_p is None else _small(row.adjusted_p),
        row.verdict.text if row.verdict else _why_none(row),
    )


def _why_none(row: Row) -> str:
    return "the verifier's law" if row.comparison else "the reference"


def speed_table(task: TaskSummary) -> Table:
    """What it costs, and how far it strays."""
    heads = (
        "setting", "accepted", "relaxed", "KL per token", "tokens per call", "calls per answer", "tokens per answer",
        "s per answer", "tokens/s", "speed", "cut",
    )  # fmt: skip
    return Table("Speed and deviation", heads, tuple(_speed(row) for row in task.rows))


def _speed(row: Row) -> tuple[str, ...]:
    figures, rule = row.figures, row.setting.parsed()
    relaxed = _number(figures["relaxed_share"].estimate, 3) if rule is not None and rule.between else NOTHING
    seconds = row.changes.get("seconds_per_answer")
    return (
        row.label,
        _spread(figures["acceptance"], 3),
        relaxed,
        _spread(figures["kl_per_token"], 3),
        _spread(figures["tokens_per_call"], 2),
        _number(figures["calls_per_answer"].estimate, 1),
        _number(figures["tokens_per_answer"].estimate, 1),
        _number(figures["seconds_per_answer"].estimate, 3),
        _number(figures["tokens_per_second"].estimate, 0),
        NOTHING if seconds is None else f"{1 / (1 + seconds.estimate):.2f}x",
        f"{100 * figures['cut'].estimate:.1f}%",
    )


def brief_table(task: TaskSummary) -> Table:
    """Of both, what fits a terminal of 80 columns."""
    heads = ("setting", "score", "AL", "accepted", "KL", "speed")
    rows = [(_quality(row), _speed(row), row) for row in task.rows]
    return Table(
        f"{task.name}: {task.problems:,} problems",
        heads,
        tuple(
            (row.label, quality[1], quality[2], _number(row.figures["acceptance"].estimate, 3),
             _number(row.figures["kl_per_token"].estimate, 3), speed[9])
            for quality, speed, row in rows
        ),
    )  # fmt: skip


def _points(value: Interval, sign: bool = False) -> str:
    form = "+.1f" if sign else ".1f"
    low, high = (format(100 * end, form) for end in (value.low, value.high))
    return f"{format(100 * value.estimate, form)} ({low} to {high})"


def _percent(value: Interval | None) -> str:
    return NOTHING if value is None else f"{100 * value.estimate:+.0f}%"


def _number(value: float, digits: int = 2) -> str:
    return NOTHING if math.isnan(value) else f"{value:.{digits}f}"


def _spread(value: Interval, digits: int) -> str:
    """With half the width of its interval."""
    if math.isnan(value.estimate):
        return NOTHING
    half = (value.high - value.low) / 2
    return f"{value.estimate:.{digits}f}" + ("" if math.isnan(half) else f" ±{half:.{digits}f}")


def _small(p: float) -> str:
    return f"< {_LEAST_P}" if p < _LEAST_P else f"{p:.3f}"


EXPLAINED = {
    "score": "share of right answers in points, with its 95% interval (Wilson where answers are right or wrong)",
    "AL": "accepted drafts per verifier call, without the emitted token, as the paper counts",
    "refusals": "refused drafts per emitted token, against lossless",
    "difference": "from lossless on the same problems, in points, with its paired 95% interval",
    "smallest visible": "the smallest true loss, in points, that so many problems would show with 80% power",
    "p (Holm)": "McNemar's exact test (Student's paired t for graded scores), adjusted for all settings of the task",
    "accepted": "accepted over examined drafts",
    "relaxed": "examined drafts kept only thanks to the rule: estimates the total variation from the verifier per "
    "examined token; for rules whose law lies between drafter and verifier",
    "KL per token": "nats from the verifier per emitted token, exact, on the audited problems",
    "tokens per call": "emitted tokens per verifier call",
    "s per answer": "of a batch's time, one answer's share; on a shared machine only ratios mean anything",
    "speed": "against the verifier alone in the same run, by seconds per answer",
    "cut": "answers that ran into the cap on their tokens",
}
"""What the heads mean."""
