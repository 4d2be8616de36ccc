"""What the engine needs of a model: open a batch of rows, feed them, take back what was fed.

Any backend that can do this can verify, and can draft. A backend that cannot take tokens back cannot be used
for speculation; `models.selftest` finds that out at load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

NO_LIMIT = 1 << 30
"""The context of a model that states none."""


class Rows(Protocol):
    """Sequences inside one model, numbered 0, 1, 2, ... without gaps, each with a cache of its own length."""

    @property
    def lengths(self) -> list[int]:
        """How many ids each row holds."""

    @property
    def seconds(self) -> float:
        """Time spent in the model's forward so far."""

    def add(self) -> None:
        """Open one more row, empty, behind the others."""

    def drop(self, row: int) -> None:
        """Close a row; the last row takes its number."""

    def extend(self, ids: Tensor, counts: Sequence[int], keep: Sequence[int], first: int = 0) -> Tensor:
        """Feed the rows ``first, first + 1, ...``, and return the logits behind the last few ids of each.

        Args:
            ids: ``[n, w]``; of row i the first ``counts[i]`` are real, the rest is padding (any valid id).
            keep: how many logits each row wants, at most ``counts[i]``; 0 for a row that is only fed.

        Returns:
            ``[n, max(keep), V]``, row i's logits first; what stands behind its ``keep[i]`` means nothing.
        """

    def rewind(self, row: int, length: int) -> None:
        """Forget everything of a row behind its first ``length`` ids."""

    def close(self) -> None:
        """Free all rows. They are not used after this."""


class Model(Protocol):
    """A loaded model: weights, shared by any number of open rows."""

    name: str
    vocabulary: Vocabulary
    rows: int
    """Ids below this can be fed; a smaller drafter may know fewer than its vocabulary has."""
    context: int
    """The most ids a row may hold."""
    device: torch.device
    way: str
    """How rows are computed, for people: together, or one at a time and why."""

    def open(self) -> Rows:
        """Rows of its own, none open yet."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The ids a pair may emit: ``0 .. size - 1`` without ``missing``, the ids in between that have no token."""

    size: int
    missing: tuple[int, ...] = ()

    def shared_with(self, other: Vocabulary) -> Vocabulary:
        """This vocabulary, with every id missing that is no token of ``other``."""
        return Vocabulary(self.size, tuple(sorted({*self.missing, *other.strangers(range(self.size))})))

    def strangers(self, ids: Sequence[int]) -> list[int]:
        """Which of ``ids`` are no tokens of this vocabulary."""
        missing = set(self.missing)
        return [i for i in ids if not 0 <= i < self.size or i in missing]
