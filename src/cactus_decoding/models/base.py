"""What the engine needs of a model: open a sequence, feed it, take back what was fed.

Any backend that can do this can verify, and can draft. A backend that cannot take tokens back cannot be used
for speculation; `models.selftest` finds that out at load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class CachedSequence(Protocol):
    """One sequence inside one model, with its cache."""

    length: int
    """How many ids the cache holds."""
    seconds: float
    """Time spent in the model's forward so far."""

    def extend(self, ids: Tensor, keep: int) -> Tensor:
        """Feed ``[k]`` ids; return the logits ``[keep, V]`` that follow the last ``keep`` of them."""

    def rewind(self, length: int) -> None:
        """Forget everything behind the first ``length`` ids."""

    def close(self) -> None:
        """Free the cache. The sequence is not used after this."""


class Model(Protocol):
    """A loaded model: weights, shared by any number of open sequences."""

    name: str
    vocabulary: Vocabulary
    rows: int
    """Ids below this can be fed; a smaller drafter may know fewer than its vocabulary has."""
    context: int
    """The most ids a sequence may hold."""
    device: torch.device

    def open(self) -> CachedSequence:
        """A new, empty sequence."""


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
