"""Counts over the events of a response, and nothing that is not in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import isnan
from typing import Any

from cactus_decoding.generation.audit import Audit, audit_of
from cactus_decoding.generation.events import Event
from cactus_decoding.verify import Verdict


@dataclass(frozen=True, slots=True)
class Statistics:
    """``drafted = kept + relaxed + refused + unexamined + ignored``, always.

    ``kept`` does not include ``relaxed`` here: together they are the accepted drafts.
    """

    tokens: int
    """Emitted ids, the end-of-text id included."""
    verifier_calls: int
    drafted: int
    kept: int
    relaxed: int
    refused: int
    unexamined: int
    ignored: int
    recovered: int
    """Emitted after a refusal."""
    bonus: int
    """Emitted after a block that was kept whole, or where none was drafted."""
    calls_without_draft: int
    """Verifier calls that had nothing to examine: at the cap, beyond the drafter's context, without a match."""
    seconds: float
    """Spent on this response: beside others in a batch, its even share of each step. Audits are not counted."""
    verifier_seconds: float
    """In the verifier's forwards. On a GPU this is launch time: kernels may still run when a forward returns."""
    drafter_seconds: float
    audit: Audit | None = None
    """The exact divergences of the emitted law, if calls were audited."""
    lossless_from: int | None = None
    """Position of the first token behind the last relaxed one that ``max_relaxed`` allowed; None: not spent."""

    @property
    def accepted(self) -> int:
        return self.kept + self.relaxed

    @property
    def examined(self) -> int:
        return self.accepted + self.refused

    @property
    def acceptance(self) -> float:
        """Accepted over examined drafts."""
        return _ratio(self.accepted, self.examined)

    @property
    def relaxed_share(self) -> float:
        """Relaxed over examined drafts: estimates the total variation from the verifier per examined token."""
        return _ratio(self.relaxed, self.examined)

    @property
    def accepted_length(self) -> float:
        """AL: accepted drafts per verifier call. The bonus or recovered token does not count, as in the paper."""
        return _ratio(self.accepted, self.verifier_calls)

    @property
    def tokens_per_call(self) -> float:
        """Emitted tokens per verifier call: AL + 1 but for the last call of a response."""
        return _ratio(self.tokens, self.verifier_calls)

    @property
    def tokens_per_second(self) -> float:
        return _ratio(self.tokens, self.seconds)

    def to_dict(self) -> dict[str, Any]:
        """Every count and figure, for JSON; a ratio over nothing is None."""
        counts = {name: getattr(self, name) for name in self.__slots__}
        counts["audit"] = self.audit and self.audit.to_dict()
        figures = ("acceptance", "relaxed_share", "accepted_length", "tokens_per_call", "tokens_per_second")
        ratios = {name: getattr(self, name) for name in figures}
        return counts | {name: (None if isnan(value) else value) for name, value in ratios.items()}


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")


def statistics_of(
    events: Iterable[Event],
    seconds: float,
    verifier_seconds: float,
    drafter_seconds: float,
    max_relaxed: int | None = None,
) -> Statistics:
    """Count ``events``; the times are measured by whoever ran them, the budget is what they were run with."""
    events = list(events)
    verdicts: Counter[Verdict] = Counter()
    emissions: Counter[bool] = Counter()
    calls = undrafted = 0
    for event in events:
        calls += 1
        undrafted += not event.draft
        verdicts.update(event.verdicts)
        if event.emitted is not None:
            emissions[event.bonus] += 1
    accepted = verdicts[Verdict.KEPT] + verdicts[Verdict.RELAXED]
    return Statistics(
        tokens=accepted + emissions.total(),
        verifier_calls=calls,
        drafted=verdicts.total(),
        kept=verdicts[Verdict.KEPT],
        relaxed=verdicts[Verdict.RELAXED],
        refused=verdicts[Verdict.REFUSED],
        unexamined=verdicts[Verdict.UNEXAMINED],
        ignored=verdicts[Verdict.IGNORED],
        recovered=emissions[False],
        bonus=emissions[True],
        calls_without_draft=undrafted,
        seconds=seconds,
        verifier_seconds=verifier_seconds,
        drafter_seconds=drafter_seconds,
        audit=audit_of(events),
        lossless_from=_lossless_from(events, max_relaxed),
    )


def places_of(events: Iterable[Event]) -> list[list[int]]:
    """By place in the block: how many drafted tokens were examined there, accepted, and of these relaxed."""
    places: list[list[int]] = []
    for event in events:
        for place, verdict in enumerate(event.verdicts):
            if verdict not in (Verdict.KEPT, Verdict.RELAXED, Verdict.REFUSED):
                break  # behind the first refusal, or the end of the response, nothing was examined
            if place == len(places):
                places.append([0, 0, 0])
            places[place][0] += 1
            places[place][1] += verdict is not Verdict.REFUSED
            places[place][2] += verdict is Verdict.RELAXED
    return places


def _lossless_from(events: Iterable[Event], max_relaxed: int | None) -> int | None:
    if max_relaxed is None:
        return None
    relaxed = [
        event.position + place
        for event in events
        for place, verdict in enumerate(event.verdicts)
        if verdict is Verdict.RELAXED
    ]
    if len(relaxed) < max_relaxed:
        return None
    return relaxed[max_relaxed - 1] + 1 if max_relaxed else 0


def total(parts: Iterable[Statistics]) -> Statistics:
    """The sum over several responses, without audits (`audit_of` takes all their events) and spent budgets."""
    parts = list(parts)
    summed = [name for name in Statistics.__slots__ if name not in ("audit", "lossless_from")]
    return Statistics(**{name: sum(getattr(part, name) for part in parts) for name in summed})
