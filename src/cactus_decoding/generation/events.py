"""One event per verify step: the only source of every count, picture and report."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch

from cactus_decoding.verify import Verdict, Verdicts


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
    response ended within the drafted tokens before it.
    """

    position: int  # of the block's first token in the response
    draft: tuple[int, ...]
    p: tuple[float, ...]
    q: tuple[float, ...]
    h: tuple[float, ...]
    u: tuple[float, ...]
    verdicts: tuple[Verdict, ...]
    emitted: int | None
    bonus: bool  # the emitted token was drawn from q behind a whole block, not in recovery from a refusal

    @property
    def kept(self) -> int:
        """Drafted tokens that stand in the text, relaxed ones included."""
        return sum(verdict in (Verdict.KEPT, Verdict.RELAXED) for verdict in self.verdicts)

    def to_dict(self) -> dict[str, object]:
        """For JSON: verdicts and marks by their names."""
        names = {name: getattr(self, name) for name in ("position", "draft", "p", "q", "h", "u", "emitted", "bonus")}
        return names | {"verdicts": [verdict.name.lower() for verdict in self.verdicts]}

    def tokens(self) -> list[tuple[int, Mark]]:
        """The ids this step added to the text, each with how it came about."""
        marks = {Verdict.KEPT: Mark.KEPT, Verdict.RELAXED: Mark.RELAXED}
        added = [(n, marks[verdict]) for n, verdict in zip(self.draft, self.verdicts) if verdict in marks]
        if self.emitted is not None:
            added.append((self.emitted, Mark.BONUS if self.bonus else Mark.RECOVERED))
        return added


def event_of(verdicts: Verdicts, row: int, position: int, length: int, used: int) -> Event:
    """The event of one row of a batch.

    Args:
        length: how many drafted tokens of the row are real.
        used: how many of its new tokens (kept ones, then the emitted one) the response took before it ended;
            drafted tokens behind that count as ignored.
    """
    draft = verdicts.draft[row, :length].tolist()
    numbers = torch.stack([verdicts.p_n[row], verdicts.q_n[row], verdicts.h_n[row], verdicts.u[row]])
    p, q, h, u = (tuple(values) for values in numbers[:, :length].tolist())
    kept, emitted = int(verdicts.kept[row]), int(verdicts.emitted[row])
    marked = [Verdict(code) for code in verdicts.verdict[row, :length].tolist()]
    if used <= kept:
        marked[used:] = [Verdict.IGNORED] * (length - used)
    return Event(
        position, tuple(draft), p, q, h, u, tuple(marked), emitted if used > kept else None, bool(verdicts.bonus[row])
    )
