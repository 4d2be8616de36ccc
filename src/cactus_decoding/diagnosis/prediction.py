"""What a step that drafts m tokens is expected to bring: the formula of `cactus_decoding.generation.drafting`.

It brings ``E(m) = 1 + S_1 + ... + S_m`` tokens and costs C(m), the verifier alone brings one for C(0), so the speed-up
is ``E(m) C(0) / C(m)``. S comes from drafts that were examined, C from steps that were timed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isnan, nan
from statistics import median

from cactus_decoding.generation.drafting import StepCosts, expected_tokens
from cactus_decoding.generation.events import Event
from cactus_decoding.verify import Verdict

DEEPEST = 12  # the longest draft that is tried, and the one that acceptance is counted with
_WEIGHT = 2.0  # a place's acceptance leans on the one before it as on this many examined tokens


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What became of drafts, by their place in the block."""

    steps: int
    drafted: int
    """Steps that had a draft."""
    reached: tuple[int, ...]
    """Drafts that were examined at each place."""
    kept: tuple[int, ...]

    @property
    def rate(self) -> float:
        """Kept over examined drafts; NaN if there were none."""
        return sum(self.kept) / sum(self.reached) if sum(self.reached) else nan

    @property
    def coverage(self) -> float:
        """Share of the steps that had a draft: below 1 where a lookup finds nothing or a drafter has to stop."""
        return self.drafted / self.steps if self.steps else 0.0

    def by_place(self) -> list[float]:
        """The chance that a draft is kept if it is reached. A place that was seldom reached leans on the one before."""
        chances, chance = [], 0.0 if isnan(self.rate) else self.rate
        for reached, kept in zip(self.reached, self.kept):
            chance = (kept + _WEIGHT * chance) / (reached + _WEIGHT)
            chances.append(chance)
        return chances


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a step that drafts m tokens does, in units of the verifier alone."""

    m: int
    tokens: float
    """E(m)."""
    cost: float
    """C(m) / C(0)."""

    @property
    def speed(self) -> float:
        return self.tokens / self.cost


def acceptance_of(events: Iterable[Event], cap: int) -> Acceptance:
    """Count drafts. A step with room for one token only, at the ``cap``, had no choice and does not count."""
    reached, kept = [0] * DEEPEST, [0] * DEEPEST
    steps = drafted = 0
    for event in events:
        steps += event.position + 1 < cap
        drafted += bool(event.draft)
        for place, verdict in enumerate(event.verdicts[:DEEPEST]):
            if verdict in (Verdict.UNEXAMINED, Verdict.IGNORED):
                break
            reached[place] += 1
            kept[place] += verdict is not Verdict.REFUSED
    return Acceptance(steps, drafted, tuple(reached), tuple(kept))


def median_costs(measured: Sequence[StepCosts]) -> StepCosts:
    """By their ratios to C(0), which are what counts: a busy moment slows all steps of one measurement alike."""
    alone = median(costs(0) for costs in measured)
    lengths = [m for m, _ in measured[0].seconds]
    return StepCosts(tuple((m, alone * median(costs(m) / costs(0) for costs in measured)) for m in lengths))


def predict(costs: StepCosts, acceptance: Acceptance, rows: int) -> tuple[Prediction, ...]:
    """``E(m)`` and ``C(m) / C(0)`` for m = 0 .. DEEPEST, over steps with and without a draft.

    A step of a batch is as long as a drafting one if any of its ``rows`` has a draft.
    """
    survival, together = [], acceptance.coverage
    for chance in acceptance.by_place():
        together *= chance
        survival.append(together)
    drafting = 1.0 - (1.0 - acceptance.coverage) ** rows
    ratios = [1.0 - drafting + drafting * costs(m) / costs(0) for m in range(DEEPEST + 1)]
    return tuple(Prediction(m, expected_tokens(survival, m), ratio) for m, ratio in enumerate(ratios))


def best_draft(predictions: Sequence[Prediction]) -> int:
    """The m of at least 1 that is predicted to be fastest: tried even if none is predicted to pay."""
    return max(predictions[1:], key=lambda prediction: prediction.speed).m
