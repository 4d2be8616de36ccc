"""Everything that an examination finds, and how it was made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import isnan, sqrt
from statistics import median
from typing import Any, Literal

from cactus_decoding.diagnosis.advice import advise, findings
from cactus_decoding.diagnosis.prediction import Acceptance, Prediction
from cactus_decoding.generation.drafting import StepCosts
from cactus_decoding.generation.statistics import Statistics
from cactus_decoding.rules import Cactus, Lossless, Rule
from cactus_decoding.sampling import SamplingParams

Length = int | Literal["auto"]
"""A draft length, as `Options` have it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How to examine a pair."""

    rule: Rule = field(default_factory=Cactus)
    """Tried beside the lossless rule."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    rows: int = 1
    """Responses that decode together."""
    new_tokens: int | None = None
    """Cap of each response; by default 64, or what the context holds behind the longest prompt if that is less."""
    rounds: int = 3
    """How often acceptance is counted and each way timed."""
    threads: int | None = None
    """CPU threads; by default the best of those tried."""
    seed: int = 1

    @property
    def rules(self) -> list[Rule]:
        """Lossless first; at temperature 0 it is the only one, since no budget moves a law of one token."""
        return [Lossless()] if self.rule.lossless or self.sampling.greedy else [Lossless(), self.rule]


@dataclass(frozen=True, slots=True)
class Side:
    """One model of the pair."""

    name: str
    parameters: int | None
    dtype: str | None
    device: str
    way: str
    """How it passed the rewind self-test, and so how its rows are computed."""
    context: int | None
    """None if it states no limit."""
    tokens: int
    """Ids that have a token and a row."""
    padded: int
    """Rows without a token."""


@dataclass(frozen=True, slots=True)
class Match:
    """How far the two vocabularies agree; ids that mean different tokens to the two are refused at load."""

    shared: int
    verifier_only: int
    drafter_only: int


@dataclass(frozen=True, slots=True)
class Block:
    """One forward of ``tokens`` tokens per row."""

    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """Seconds of the verifier's forwards of one and of six tokens with so many threads."""

    threads: int
    one: float
    six: float

    @property
    def seconds(self) -> float:
        """Their geometric mean: a single token and a block count alike."""
        return sqrt(self.one * self.six)


@dataclass(frozen=True, slots=True)
class Speed:
    """Measured, one figure per round."""

    m: Length
    rates: tuple[float, ...]
    """Tokens per second."""
    times_alone: tuple[float, ...]
    """Over those of the verifier alone in the same round."""
    tokens_per_step: tuple[float, ...]

    @property
    def rate(self) -> float:
        return median(self.rates)

    @property
    def speed(self) -> float:
        return median(self.times_alone)

    @property
    def tokens(self) -> float:
        return median(self.tokens_per_step)

    @property
    def gain(self) -> float:
        """The speed, but no more than the tokens per step: a step is no shorter than the verifier's own."""
        return min(self.speed, self.tokens)

    def to_dict(self) -> dict[str, Any]:
        spread = {"median": self.speed, "lowest": min(self.times_alone), "highest": max(self.times_alone)}
        rounds = {
            "tokens_per_second": self.rates,
            "times_alone": self.times_alone,
            "tokens_per_step": self.tokens_per_step,
        }
        return {"m": self.m, **{name: list(values) for name, values in rounds.items()}, **spread}


@dataclass(frozen=True, slots=True)
class Trial:
    """One rule, predicted and measured."""

    rule: Rule
    acceptance: Acceptance
    predictions: tuple[Prediction, ...]
    """For m = 0 .. DEEPEST."""
    draft_cost: float
    """A draft in verifier calls of one token."""
    fixed: Speed
    """With the m that `best_draft` names."""
    auto: Speed
    """With m="auto"."""

    @property
    def predicted(self) -> Prediction:
        """That of the fixed m."""
        return self.predictions[int(self.fixed.m)]

    @property
    def miss(self) -> float:
        """Measured over predicted, less 1."""
        return self.fixed.speed / self.predicted.speed - 1.0

    def to_dict(self) -> dict[str, Any]:
        rate = None if isnan(self.acceptance.rate) else self.acceptance.rate
        figures = {"rate": rate, "coverage": self.acceptance.coverage, "by_place": self.acceptance.by_place()}
        return {
            "rule": {"name": self.rule.name, **asdict(self.rule)},  # type: ignore[call-overload]
            "acceptance": asdict(self.acceptance) | figures,
            "draft_cost": self.draft_cost,
            "predictions": [asdict(prediction) | {"speed": prediction.speed} for prediction in self.predictions],
            "measured": [self.fixed.to_dict(), self.auto.to_dict()],
            "predicted": self.predicted.speed,
            "miss": self.miss,
            "verdict": asdict(advise(self)),
        }


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Everything that was found."""

    verifier: Side
    drafter: Side | None
    """None for a drafter that is no model."""
    match: Match | None
    plan: Plan
    threads: int
    default_threads: int
    thread_times: tuple[ThreadTimes, ...]
    verifier_blocks: tuple[Block, ...]
    drafter_blocks: tuple[Block, ...]
    costs: StepCosts
    alone: Speed
    trials: tuple[Trial, ...]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Every number, for JSON."""
        alone = self.costs(0)
        return {
            "verifier": asdict(self.verifier),
            "drafter": self.drafter and asdict(self.drafter),
            "match": self.match and asdict(self.match),
            "rewind": "passed",
            "sampling": asdict(self.plan.sampling),
            "rows": self.plan.rows,
            "rounds": self.plan.rounds,
            "seed": self.plan.seed,
            "threads": {"used": self.threads, "default": self.default_threads},
            "threads_tried": [asdict(tried) for tried in self.thread_times],
            "blocks": {"verifier": _ratios(self.verifier_blocks), "drafter": _ratios(self.drafter_blocks)},
            "steps": [{"m": m, "seconds": s, "ratio": s / alone} for m, s in self.costs.seconds],
            "alone": self.alone.to_dict(),
            "trials": [trial.to_dict() for trial in self.trials],
            "findings": findings(self),
            "seconds": self.seconds,
        }


def _ratios(blocks: Sequence[Block]) -> list[dict[str, float]]:
    return [asdict(block) | {"ratio": block.seconds / blocks[0].seconds} for block in blocks]


def speed_of(m: Length, rounds: Sequence[Statistics], alone: Sequence[Statistics]) -> Speed:
    """One entry per round, its own and the verifier's alone in it."""
    rates = [own.tokens_per_second for own in rounds]
    times = [rate / other.tokens_per_second for rate, other in zip(rates, alone)]
    return Speed(m, tuple(rates), tuple(times), tuple(own.tokens_per_call for own in rounds))
