"""What comes back: one whole response."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from cactus_decoding.generation.engine import Decoding
from cactus_decoding.generation.events import Event
from cactus_decoding.generation.statistics import Statistics, statistics_of
from cactus_decoding.generation.stops import FinishReason


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log probability of one emitted token at its own position, after temperature, filters and penalties."""

    id: int
    logprob: float
    """Under the verifier: log q."""
    h_logprob: float
    """Under the working target of the rule: log h."""
    top: tuple[tuple[int, float], ...]
    """The likeliest (id, log q) there, as many as were asked for."""


@dataclass(frozen=True, slots=True)
class Output:
    """One response. ``text``, ``ids``, ``logprobs``, ``finish_reason`` and ``stats`` all end at the same token."""

    text: str
    ids: tuple[int, ...]
    """The emitted ids, the one that ended the response included."""
    finish_reason: FinishReason
    stats: Statistics
    events: tuple[Event, ...] = field(repr=False)
    prompt_ids: tuple[int, ...] = field(repr=False)
    seed: int
    """Pass it as ``seed=``, with the same fixed m, to get this response again."""

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """One per id."""
        return tuple(logprob for event in self.events for logprob in _logprobs(event))


def _logprobs(event: Event) -> list[TokenLogprob]:
    numbers = [*zip(event.q, event.h)][: event.kept]
    if event.q_emitted is not None and event.h_emitted is not None:
        numbers.append((event.q_emitted, event.h_emitted))
    tops = event.top or [()] * len(numbers)
    return [
        TokenLogprob(token, _log(q), _log(h), tuple((i, _log(value)) for i, value in top))
        for (token, _), (q, h), top in zip(event.tokens(), numbers, tops)
    ]


def _log(value: float) -> float:
    return math.log(value) if value > 0.0 else -math.inf


def output_of(decoding: Decoding) -> Output:
    """The output of a response that has ended."""
    reason = decoding.stops.reason
    assert reason is not None
    stats = statistics_of(
        decoding.events, decoding.seconds, decoding.verifier_seconds, decoding.drafter_seconds, decoding.job.max_relaxed
    )
    return Output(
        text=decoding.stops.text,
        ids=tuple(decoding.ids),
        finish_reason=reason,
        stats=stats,
        events=tuple(decoding.events),
        prompt_ids=decoding.job.prompt,
        seed=decoding.job.seed,
    )
