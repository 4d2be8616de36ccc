"""What a run found: for every task and setting quality, speed and deviation, with intervals, against lossless."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from cactus_decoding.evaluation.claim import read_run
from cactus_decoding.evaluation.outcomes import Outcomes, outcomes_of, records_of
from cactus_decoding.evaluation.paired import Comparison, compare
from cactus_decoding.evaluation.plan import VERIFIER, Plan, Setting, labels_of
from cactus_decoding.evaluation.samples import Differing, most_differing
from cactus_decoding.evaluation.statistics import Interval, accuracy, ratio, ratio_change
from cactus_decoding.evaluation.sweep import Stopped
from cactus_decoding.evaluation.tasks.base import Task
from cactus_decoding.evaluation.verdicts import MARGIN, Verdict, holm, verdict

FIGURES: dict[str, tuple[str, str]] = {
    "accepted_length": ("accepted", "verifier_calls"),
    "tokens_per_call": ("tokens", "verifier_calls"),
    "acceptance": ("accepted", "examined"),
    "relaxed_share": ("relaxed", "examined"),
    "refusals_per_token": ("refused", "tokens"),
    "kl_per_token": ("kl", "audited_tokens"),
    "calls_per_answer": ("verifier_calls", "answers"),
    "tokens_per_answer": ("tokens", "answers"),
    "seconds_per_answer": ("seconds", "answers"),
    "tokens_per_second": ("tokens", "seconds"),
    "cut": ("cut", "answers"),
}
"""Each the sum of one column of `Outcomes` over that of another. ``accepted_length`` (AL) counts accepted drafts only,
as the paper does; ``tokens_per_call`` counts what was emitted."""
AGAINST_LOSSLESS = ("refusals_per_token", "tokens_per_answer", "calls_per_answer")
AGAINST_VERIFIER = ("seconds_per_answer",)


@dataclass(frozen=True)
class Row:
    """One setting on one task."""

    setting: Setting
    label: str
    score: Interval
    figures: Mapping[str, Interval]
    """`FIGURES`; NaN where nothing was drafted or audited."""
    changes: Mapping[str, Interval]
    """-0.3 is 30% less: `AGAINST_LOSSLESS`; where the verifier alone was run, `AGAINST_VERIFIER` too."""
    comparison: Comparison | None
    """With the lossless run on the same problems; None for that run itself."""
    adjusted_p: float | None
    verdict: Verdict | None
    """None where nothing is in question: for lossless and for the verifier alone."""
    places: Sequence[Sequence[int]]
    """``[m][3]``: examined, accepted, relaxed."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "rule": self.setting.rule,
            "label": self.label,
            "m": self.setting.m,
            "temperature": self.setting.sampling.temperature,
            "top_k": self.setting.sampling.top_k,
            "top_p": self.setting.sampling.top_p,
            "min_p": self.setting.sampling.min_p,
            "score": self.score.to_dict(),
            "comparison": self.comparison and self.comparison.to_dict(),
            "adjusted_p": self.adjusted_p,
            "verdict": self.verdict and self.verdict.to_dict(),
            "figures": {name: value.to_dict() for name, value in self.figures.items()},
            "changes": {name: value.to_dict() for name, value in self.changes.items()},
            "places": [list(place) for place in self.places],
        }


@dataclass(frozen=True)
class TaskSummary:
    """All settings on one task."""

    name: str
    problems: int
    samples: int
    rows: tuple[Row, ...]
    differing: tuple[Differing, ...]
    """The problems on which the settings differ most."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "task": self.name,
            "problems": self.problems,
            "samples": self.samples,
            "settings": [row.to_dict() for row in self.rows],
            "differing": [one.to_dict() for one in self.differing],
        }


@dataclass(frozen=True)
class Summary:
    """A whole run."""

    run: Mapping[str, Any]
    """What ``run.json`` says."""
    margin: float
    tasks: tuple[TaskSummary, ...]
    stopped: tuple[Stopped, ...] = ()
    """Settings that a sweep did not run to their end."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "run": dict(self.run),
            "margin": self.margin,
            "tasks": [task.to_dict() for task in self.tasks],
            "stopped": [one.to_dict() for one in self.stopped],
        }


Watch = Callable[[int, int], None]
"""Told how many settings were read, and how many there are."""


def summarise(
    plan: Plan,
    folder: Path,
    tasks: Mapping[str, Task],
    margin: float = MARGIN,
    watch: Watch = lambda done, parts: None,
    stopped: Sequence[Stopped] = (),
) -> Summary:
    """Read the responses that ``plan`` asks for, all of which must be there, and compare them.

    Args:
        margin: the largest loss, a share, that one is ready to call none.
        stopped: what a sweep left out of the plan on its way.
    """
    done, parts = 0, len(tasks) * len(plan.settings)
    found = []
    for name, task in tasks.items():
        records = {}
        for setting in plan.settings:
            records[setting] = records_of(plan, folder, name, task, setting)
            done += 1
            watch(done, parts)
        outcomes = {setting: outcomes_of(rows, plan.samples, plan.chunk) for setting, rows in records.items()}
        differing = most_differing(task, records, labels_of(plan.settings), plan.samples)
        count = plan.count(len(task.items))
        rows = rows_of(outcomes, margin, len(stopped))
        found.append(TaskSummary(name, count, plan.samples, rows, differing))
    return Summary(read_run(folder), margin, tuple(found), tuple(stopped))


def rows_of(outcomes: Mapping[Setting, Outcomes], margin: float = MARGIN, stopped: int = 0) -> tuple[Row, ...]:
    """Every setting against the lossless one with the same drafts and laws, Holm's correction over all of them.

    ``stopped``: settings that were begun and left out because of what they showed; they count in the correction.
    """
    labels = labels_of(list(outcomes))
    tested = [setting for setting in outcomes if setting.in_question]
    tests = max(len(tested) + stopped, 1)
    compared = {
        setting: compare(outcomes[reference_of(setting, outcomes)].scores, outcomes[setting].scores, tests)
        for setting in outcomes
        if setting != setting.lossless
    }
    p = [*(compared[setting].p for setting in tested), *[1.0] * stopped]
    adjusted = dict(zip(tested, holm(p))) if tested else {}
    return tuple(
        Row(
            setting=setting,
            label=labels[setting],
            score=accuracy(found.scores),
            figures=figures_of(found),
            changes=changes_of(setting, outcomes),
            comparison=compared.get(setting),
            adjusted_p=adjusted.get(setting),
            verdict=verdict(compared[setting], adjusted[setting], margin) if setting in adjusted else None,
            places=found.places.tolist(),
        )
        for setting, found in outcomes.items()
    )


def reference_of(setting: Setting, settings: Mapping[Setting, Any]) -> Setting:
    """The lossless run that this one is compared with; for the verifier alone any of the same law."""
    if setting.rule != VERIFIER:
        return setting.lossless
    return next(one for one in settings if one == one.lossless and one.sampling == setting.sampling)


def figures_of(found: Outcomes) -> dict[str, Interval]:
    """`FIGURES` of one setting."""
    return {name: ratio(*found.pair(part, whole)) for name, (part, whole) in FIGURES.items()}


def changes_of(setting: Setting, outcomes: Mapping[Setting, Outcomes]) -> dict[str, Interval]:
    """How the figures of one setting differ from those of the runs beside it on the same problems."""
    verifier = Setting(VERIFIER, 0, setting.sampling)
    pairs = [(name, reference_of(setting, outcomes)) for name in AGAINST_LOSSLESS if setting.m]
    pairs += [(name, verifier) for name in AGAINST_VERIFIER if verifier in outcomes]
    changes = {name: _change(name, outcomes[setting], outcomes[other]) for name, other in pairs if other != setting}
    return {name: change for name, change in changes.items() if isfinite(change.estimate)}


def _change(name: str, mine: Outcomes, other: Outcomes) -> Interval:
    return ratio_change(*mine.pair(*FIGURES[name]), *other.pair(*FIGURES[name]))
