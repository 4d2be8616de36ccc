"""What the figures mean, in words: the verdict, and what else a person should know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cactus_decoding.models.base import NO_LIMIT

if TYPE_CHECKING:
    from cactus_decoding.diagnosis.report import Diagnosis, Length, Trial


PAYS = 1.05  # a speed-up below this is not worth a second model
TOLERANCE = 0.15  # by how much a measured speed-up may miss the predicted one without a word


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do."""

    pays: bool
    m: Length
    """The draft length to use; 0 is the verifier alone."""
    speed: float
    """Measured, with the m that was best even if it does not pay."""
    text: str


def advise(trial: Trial) -> Advice:
    """The verdict, from what was measured. A fixed m goes before "auto" unless that is clearly faster."""
    best = trial.auto if trial.auto.gain > PAYS * trial.fixed.gain else trial.fixed
    lowest, highest = min(best.times_alone), max(best.times_alone)
    spread = f"{best.speed:.2f}x ({lowest:.2f} to {highest:.2f})"
    if best.gain < PAYS:
        text = f"do not speculate here, use m=0: {_reason(trial)}; measured {spread} with m={best.m}"
        return Advice(False, 0, best.speed, text)
    doubt = "" if lowest >= 1.0 else ", though not in every round"
    return Advice(True, best.m, best.speed, f"speculating pays {spread}{doubt}: use m={best.m}")


def _reason(trial: Trial) -> str:
    acceptance, step = trial.acceptance, trial.predicted
    if not sum(acceptance.reached):
        return "the drafter never had a draft"
    facts = [f"a draft costs {trial.draft_cost:.2f} of a verifier call"] if trial.draft_cost else []
    facts.append(f"{acceptance.rate:.2f} of those examined are kept")
    if acceptance.coverage < 1.0 - TOLERANCE:
        facts.append(f"{acceptance.coverage:.0%} of the steps have one")
    return (
        f"drafting {step.m}, a step costs {step.cost:.2f} times the verifier alone and brings {step.tokens:.2f} tokens "
        f"({', '.join(facts)})"
    )


def findings(diagnosis: Diagnosis) -> list[str]:
    """What a person should know beside the verdict, one sentence or two each."""
    sides = [side for side in (diagnosis.verifier, diagnosis.drafter) if side is not None]
    found = [
        f"Rows of {side.name} are computed one after the other, so a batch gains little: {side.way}."
        for side in sides
        if side.way.startswith("one at a time")
    ]
    return found + _about_contexts(diagnosis) + _about_threads(diagnosis) + _about_trials(diagnosis)


def _about_contexts(diagnosis: Diagnosis) -> list[str]:
    found, drafter, match = [], diagnosis.drafter, diagnosis.match
    if drafter and drafter.context and drafter.context < (diagnosis.verifier.context or NO_LIMIT):
        found.append(f"The drafter's context is the shorter one: beyond {drafter.context} tokens nothing is drafted.")
    if match and match.verifier_only:
        found.append(f"Ids of the verifier alone: {match.verifier_only}. They are never drafted; one may end drafting.")
    if match and match.drafter_only:
        found.append(f"Ids of the drafter alone: {match.drafter_only}. They are never drafted.")
    return found


def _about_threads(diagnosis: Diagnosis) -> list[str]:
    times = {tried.threads: tried.seconds for tried in diagnosis.thread_times}
    if not times:
        return []
    slower = times[diagnosis.default_threads] / times[diagnosis.threads]
    if slower < 1.0 + TOLERANCE:
        return []
    return [
        f"{_threads(diagnosis.default_threads)}, the default here, made the verifier {slower:.1f} times as slow as "
        f"{_threads(diagnosis.threads)}: set OMP_NUM_THREADS={diagnosis.threads} or pass --threads {diagnosis.threads}."
    ]


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _about_trials(diagnosis: Diagnosis) -> list[str]:
    found = [_about_miss(trial) for trial in diagnosis.trials if abs(trial.miss) > TOLERANCE]
    if diagnosis.plan.sampling.greedy and not diagnosis.plan.rule.lossless:
        found.append(f"At temperature 0 the rule {diagnosis.plan.rule.name} does nothing, so lossless alone was tried.")
    return found


def _about_miss(trial: Trial) -> str:
    """Which of the two factors of the prediction it was."""
    predicted, found = trial.predicted, trial.fixed
    return (
        f"Rule {trial.rule.name}: predicted {predicted.speed:.2f}x and measured {found.speed:.2f}x differ by "
        f"{abs(trial.miss):.0%}. A step brought {found.tokens:.2f} tokens (predicted {predicted.tokens:.2f}) and cost "
        f"{found.tokens / found.speed:.2f} times the verifier alone ({predicted.cost:.2f}). Believe the measured one, "
        "or measure again with more --rounds or on a quieter machine."
    )
