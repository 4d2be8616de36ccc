"""A grid of settings, of which those that others beat are not run to the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cactus_decoding.evaluation.outcomes import Outcomes, outcomes_of, records_of
from cactus_decoding.evaluation.paired import compare
from cactus_decoding.evaluation.plan import Plan, Setting, labels_of
from cactus_decoding.evaluation.running import Run, Watch
from cactus_decoding.evaluation.statistics import ratio_change
from cactus_decoding.evaluation.verdicts import MARGIN
from cactus_decoding.evaluation.worker import Unit

_PATIENCE = 2  # chunks of every task before the first judgement

Tell = Callable[["Stopped"], None]
"""Told of each setting that is stopped."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """A setting that was not run to its end, and what was better."""

    setting: str
    by: str
    problems: int
    why: str

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


def sweep(run: Run, watch: Watch, tell: Tell = lambda stopped: None) -> tuple[Plan, list[Stopped]]:
    """Carry a run out chunk by chunk; behind each chunk the settings that are `beaten` leave.

    What was judged is on disk, so a sweep that goes on after an interruption judges as it did before.

    Returns:
        The plan of those that were run to the end, and the others.
    """
    plan, stopped = run.plan, []
    labels = labels_of(plan.settings)
    whole, alive = run.units(), list(plan.settings)
    chunks = max((unit.chunk for unit in whole), default=-1) + 1
    for chunk in range(chunks):
        left = [unit for unit in whole if unit.setting in alive]
        run.carry_out([unit for unit in left if unit.chunk <= chunk], _among(watch, left, chunk))
        if not _PATIENCE - 1 <= chunk < chunks - 1:
            continue
        asked = replace(plan, limit=min((chunk + 1) * plan.chunk, plan.limit or (chunk + 1) * plan.chunk))
        found = {setting: _all_tasks(run, asked, setting) for setting in alive}
        for setting, by, why in beaten(found):
            alive.remove(setting)
            stopped.append(Stopped(labels[setting], labels[by], len(found[setting].scores), why))
            tell(stopped[-1])
    return replace(plan, settings=tuple(alive)), stopped


def _among(watch: Watch, left: Sequence[Unit], chunk: int) -> Watch:
    """The progress up to a chunk as that of all that will be run if nobody else leaves."""
    begun = sum(unit.chunk <= chunk for unit in left)
    return lambda done, parts: watch(done, round(parts * len(left) / max(begun, 1)))


def _all_tasks(run: Run, plan: Plan, setting: Setting) -> Outcomes:
    """The problems of all tasks so far, one behind the other."""
    records = [
        record for name, task in run.tasks.items() for record in records_of(plan, run.folder, name, task, setting)
    ]
    return outcomes_of(records, plan.samples, plan.chunk)


def beaten(found: Mapping[Setting, Outcomes]) -> list[tuple[Setting, Setting, str]]:
    """Settings that another one of the same law beats, with it and in what.

    Beaten: worse in score (paired, 95%) by one that is no slower; or slower per answer (95%, chunks as the units) than
    one that loses no more than `MARGIN` to it (95%). Every look is by itself: a sweep makes a grid smaller, it proves
    nothing. Lossless and the verifier alone stay: everything is measured against them.
    """
    lost: list[tuple[Setting, Setting, str]] = []
    for setting in found:
        gone = {one for one, _, _ in lost}
        rivals = [one for one in found if one.sampling == setting.sampling and one not in gone and one != setting]
        reasons = ((one, _why(found[setting], found[one])) for one in rivals if setting.in_question)
        first = next(((one, why) for one, why in reasons if why), None)
        if first is not None:
            lost.append((setting, *first))
    return lost


def _why(mine: Outcomes, other: Outcomes) -> str:
    """In what the other one is better; "" where it does not beat mine."""
    gain = compare(mine.scores, other.scores).difference
    time = ratio_change(*other.pair("seconds", "answers"), *mine.pair("seconds", "answers"))
    if gain.low > 0 and time.estimate <= 0:
        return f"{100 * gain.estimate:.1f} points better and no slower"
    if time.high < 0 and gain.low > -MARGIN:
        return (
            f"{-100 * time.estimate:.0f}% faster per answer and no more than {-100 * min(gain.low, 0):.1f} points worse"
        )
    return ""
