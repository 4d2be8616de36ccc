"""What a drafter is: it proposes ids with the laws they were drawn from, and is told how many were kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from cactus_decoding.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafted ids ``[k]`` and the laws ``[k, V]`` they were really drawn from; None: each was certain."""

    ids: Tensor
    p: Tensor | None


class DraftSession(Protocol):
    """The drafting side of one sequence."""

    @property
    def seconds(self) -> float:
        """Time spent in the drafter's forward so far."""

    def propose(self, settled: Sequence[int], count: int, u: Tensor) -> Proposal:
        """Draft at most ``count`` ids (fewer, even none, where it cannot) to follow ``settled``.

        ``settled`` is the prompt and everything emitted so far; it only ever grows. ``u`` is ``[count]``.
        """

    def accept(self, length: int) -> None:
        """The first ``length`` ids of ``settled`` plus proposal stand; forget what was drafted behind them."""

    def close(self) -> None:
        """Free what is held. The session is not used after this."""


class Drafter(Protocol):
    """Opens drafting sessions."""

    def open(self, params: SamplingParams) -> DraftSession:
        """A new session whose proposals are drawn with ``params``, the same ones the verifier uses."""
