"""What a drafter is: it proposes ids with the laws they were drawn from, and is told how many were kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from cactus_decoding.held import Laws
from cactus_decoding.laws import Shaping


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafted ids ``[n, k]``, row i's first ``lengths[i]`` of them real, and the laws they were really drawn from."""

    ids: Tensor
    lengths: tuple[int, ...]
    p: Laws | Tensor | None
    """``[n, k, V]`` probabilities, or laws held otherwise; None: each was certain."""


class DraftRows(Protocol):
    """The drafting side of a batch: rows numbered as in `cactus_decoding.models.base.Rows`."""

    @property
    def seconds(self) -> float:
        """Time spent in the drafter's forward so far."""

    def add(self, shaping: Shaping) -> None:
        """Open one more row, whose proposals are drawn with ``shaping``, the same that the verifier uses."""

    def drop(self, row: int) -> None:
        """Close a row; the last row takes its number."""

    def propose(self, settled: Sequence[Sequence[int]], counts: Sequence[int], u: Tensor) -> Proposal:
        """Draft at most ``counts[i]`` ids (fewer, even none, where it cannot) to follow each ``settled[i]``.

        ``settled`` holds each row's prompt and everything emitted so far; it only ever grows. ``u`` is
        ``[n, max(counts)]``.
        """

    def accept(self, row: int, length: int) -> None:
        """The first ``length`` ids of ``settled`` plus proposal stand; forget what was drafted behind them."""

    def close(self) -> None:
        """Free what is held. The rows are not used after this."""


class Drafter(Protocol):
    """Opens rows for drafting."""

    name: str
    certain: bool
    """Whether its laws are always point masses."""

    def open(self) -> DraftRows:
        """Rows of its own, none open yet."""
