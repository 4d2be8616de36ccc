"""One event per verify step: the only source of every count, picture and report."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch

from cactus_decoding.fidelity import Fidelity
from cactus_decoding.verify import Verdict, Verdicts

Top = tuple[tuple[tuple[int, float], ...], ...]


class Mark(str, Enum):
    """How a token of the text came about."""

    KEPT = "kept"
    RELAXED = "relaxed"
    RECOVERED = "recovered"
    BONUS = "bonus"


@dataclass(frozen=True, slots=True)
class Event:
    """What one verifier call examined and emitted, for one sequence.

    ``p``, ``q``, ``h`` and ``u`` are those of the drafted token at each place; ``emitted`` is None where the
    response ended within the drafted tokens before it, and its ``q`` and ``h`` with it.
    """

    position: int  # of the block's first token in the response
    draft: tuple[int, ...]
    p: tuple[float, ...]
    q: tuple[float, ...]
    h: tuple[float, ...]
    u: tuple[float, ...]
    verdicts: tuple[Verdict, ...]
    emitted: int | None
    q_emitted: float | None
    h_emitted: float | None
    bonus: bool  # the emitted token was drawn from q behind a whole block, not in recovery from a refusal
    top: Top = ()
    """Where asked for: the likeliest (id, q) at the position of each token of `tokens`."""
    audit: tuple[Fidelity, ...] | None = None
    """Where this call was audited: the exact figures of each examined place that the response took."""

    @property
    def kept(self) -> int:
        """Drafted tokens that stand in the text, relaxed ones included."""
        return sum(verdict in (Verdict.KEPT, Verdict.RELAXED) for verdict in self.verdicts)

    @property
    def relaxed(self) -> int:
        """Drafted tokens that stand in the text only thanks to the rule."""
        return sum(verdict is Verdict.RELAXED for verdict in self.verdicts)

    def to_dict(self) -> dict[str, object]:
        """For JSON: verdicts and marks by their names."""
        values = {name: getattr(self, name) for name in self.__slots__}
        audit = None if self.audit is None else [figures.to_dict() for figures in self.audit]
        return values | {"verdicts": [verdict.name.lower() for verdict in self.verdicts], "audit": audit}

    def tokens(self) -> list[tuple[int, Mark]]:
        """The ids this step added to the text, each with how it came about."""
        marks = {Verdict.KEPT: Mark.KEPT, Verdict.RELAXED: Mark.RELAXED}
        added = [(n, marks[verdict]) for n, verdict in zip(self.draft, self.verdicts) if verdict in marks]
        if self.emitted is not None:
            added.append((self.emitted, Mark.BONUS if self.bonus else Mark.RECOVERED))
        return added


@dataclass(frozen=True, slots=True)
class ListedVerdicts:
    """`Verdicts` as plain lists, moved off the device in as few transfers as there are kinds of number."""

    draft: list[list[int]]
    scalars: list[list[list[float]]]  # of p_n, q_n, h_n, u, by row
    verdict: list[list[int]]
    kept: list[int]
    emitted: list[int]
    emitted_scalars: list[list[float]]  # of q and h, by row
    bonus: list[int]


def listed(verdicts: Verdicts) -> ListedVerdicts:
    """Everything `event_of` needs, for all rows at once."""
    scalars = torch.stack([verdicts.p_n, verdicts.q_n, verdicts.h_n, verdicts.u], dim=1)
    counts = torch.stack([verdicts.kept, verdicts.emitted, verdicts.bonus.to(verdicts.kept.dtype)])
    kept, emitted, bonus = counts.tolist()
    emitted_scalars = torch.stack([verdicts.q_emitted, verdicts.h_emitted], dim=1)
    return ListedVerdicts(
        verdicts.draft.tolist(), scalars.tolist(), verdicts.verdict.tolist(), kept, emitted, emitted_scalars.tolist(),
        bonus,
    )  # fmt: skip


def event_of(
    verdicts: ListedVerdicts,
    row: int,
    position: int,
    length: int,
    used: int,
    top: Top = (),
    audit: tuple[Fidelity, ...] | None = None,
) -> Event:
    """The event of one row of a batch.

    Args:
        length: how many drafted tokens of the row are real.
        used: how many of its new tokens (kept ones, then the emitted one) the response took before it ended;
            drafted tokens behind that count as ignored.
    """
    p, q, h, u = (tuple(values[:length]) for values in verdicts.scalars[row])
    marked = [Verdict(code) for code in verdicts.verdict[row][:length]]
    if used <= verdicts.kept[row]:
        marked[used:] = [Verdict.IGNORED] * (length - used)
        emitted = q_emitted = h_emitted = None
    else:
        emitted, (q_emitted, h_emitted) = verdicts.emitted[row], verdicts.emitted_scalars[row]
    return Event(
        position=position,
        draft=tuple(verdicts.draft[row][:length]),
        p=p,
        q=q,
        h=h,
        u=u,
        verdicts=tuple(marked),
        emitted=emitted,
        q_emitted=q_emitted,
        h_emitted=h_emitted,
        bonus=bool(verdicts.bonus[row]),
        top=top,
        audit=audit,
    )
