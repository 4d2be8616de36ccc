"""The exact meter: what a response's tokens really strayed from the verifier, in nats, call by call.

Given what stands before it, every emitted token follows a known law: the induced law of its position where a drafted
token was examined, q where none was left to examine. By the chain rule the expected sum of their divergences is that of
a whole response, told which of its tokens were examined, from the verifier's; of the text alone, which does not tell,
it is an upper bound. The sum over one response's positions estimates it without bias.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from cactus_decoding.fidelity import Fidelity, measure_rows
from cactus_decoding.generation.events import Event
from cactus_decoding.rules import Lossless, Rule
from cactus_decoding.verify import Verdict, point_masses

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Audit:
    """The audited calls of a response, or of several, summed up. KL of the emitted law from q, in nats."""

    calls: int
    """Verifier calls."""
    audited: int
    """Of these, audited."""
    tokens: int
    """Emitted by the audited ones. One drawn from q itself strays by 0."""
    mean_kl: float
    """Per token."""
    max_kl: float
    """Of one token."""
    mean_tv: float
    """Per token: what the share of relaxed tokens estimates."""
    total_kl: float
    """Over all calls: the audited ones' sum, scaled up."""
    total_kl_low: float
    total_kl_high: float
    """An interval of 95% for ``total_kl`` as it would be if every call were audited (normal, calls as the units, so
    have twenty or more); the two are equal where every call is, and NaN where one of several is."""

    def to_dict(self) -> dict[str, float | None]:
        """For JSON: None where there is no number."""
        return {name: value if math.isfinite(value) else None for name, value in asdict(self).items()}


def audit_of(events: Iterable[Event]) -> Audit | None:
    """The audit that these events hold, of one response or of several; None if no call was audited."""
    events = list(events)
    audited = [event for event in events if event.audit is not None]
    if not audited:
        return None
    found = [figures for event in audited for figures in event.audit or ()]
    tokens = sum(len(event.tokens()) for event in audited)
    sums = torch.tensor([sum(figures.kl for figures in event.audit or ()) for event in audited], dtype=torch.float64)
    total = float(sums.mean()) * len(events)
    spread = _spread(sums, len(events))
    return Audit(
        calls=len(events),
        audited=len(audited),
        tokens=tokens,
        mean_kl=float(sums.sum()) / tokens,
        max_kl=max((figures.kl for figures in found), default=0.0),
        mean_tv=sum(figures.tv for figures in found) / tokens,
        total_kl=total,
        total_kl_low=max(total - spread, 0.0),
        total_kl_high=total + spread,
    )


def _spread(sums: Tensor, calls: int) -> float:
    """Half the width of the interval of the total over ``calls``, of which ``sums`` are a sample."""
    audited = len(sums)
    if audited == calls:
        return 0.0
    if audited == 1:
        return math.nan
    error = float(sums.std()) / math.sqrt(audited) * math.sqrt(1.0 - audited / calls)
    return NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) * calls * error


def audit_places(
    p: Tensor | None, q: Tensor, draft: Tensor, rule: Rule, verdicts: Sequence[Verdict], relaxed_left: int | None
) -> tuple[Fidelity, ...]:
    """The figures of the examined places of one block.

    Args:
        p: ``[k, V]`` the laws its tokens were drawn from; None where each was certain.
        q: ``[k, V]`` the verifier's.
        draft: ``[k]`` drafted ids.
        verdicts: what became of these k, all of them examined.
        relaxed_left: how many more relaxed tokens the response could have before the block; None: no limit. Behind
            the last of them the rule is the lossless one.
    """
    k = len(verdicts)
    if k == 0:
        return ()
    p = point_masses(draft, q) if p is None else p
    free = k if relaxed_left is None else _before_spent(verdicts, relaxed_left)
    parts = [(slice(0, free), rule), (slice(free, k), Lossless())]
    rows = [measure_rows(p[part], q[part], used) for part, used in parts if part.start < part.stop]
    return tuple(Fidelity(*row) for row in torch.cat(rows).tolist())


def _before_spent(verdicts: Sequence[Verdict], relaxed_left: int) -> int:
    """How many places the rule itself examined: up to and with the one that spends the budget."""
    for place, verdict in enumerate(verdicts):
        if relaxed_left <= 0:
            return place
        relaxed_left -= verdict is Verdict.RELAXED
    return len(verdicts)
