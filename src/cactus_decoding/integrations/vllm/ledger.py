"""What became of the drafts of relaxed requests: per request, and summed for the metrics page."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cactus_decoding.integrations.vllm.relaxation import Relaxation, describe

logger = logging.getLogger("vllm.cactus")  # a child of vLLM's, so that its lines look and go as vLLM's own do

_EVERY = 1.0  # seconds; counts are on the device, and reading them waits for it


@dataclass(slots=True)
class Counts:
    """Sums over verifications of requests while they were relaxed."""

    drafts: int = 0
    draft_tokens: int = 0
    examined: int = 0
    relaxed: int = 0
    accepted: list[int] = field(default_factory=list)
    """By place in the draft."""

    def add(self, drafted: int, accepted: int, relaxed: int) -> None:
        """One verification of one request."""
        if drafted == 0:
            return
        self.drafts += 1
        self.draft_tokens += drafted
        self.examined += min(accepted + 1, drafted)
        self.relaxed += relaxed
        self.accepted += [0] * (drafted - len(self.accepted))
        for place in range(accepted):
            self.accepted[place] += 1

    @property
    def relaxed_share(self) -> float:
        """Relaxed tokens per examined one, which estimates the total variation of the emitted law from the verifier."""
        return self.relaxed / self.examined if self.examined else 0.0


@dataclass(slots=True)
class Ledger:
    """The counts of one model runner.

    ``note`` is called in every step and reads nothing off the device; ``settle`` reads, at most once a second and when
    the engine falls idle.
    """

    total: Counts = field(default_factory=Counts)
    requests: dict[str, Counts] = field(default_factory=dict)
    _noted: list[tuple[Sequence[str | None], Tensor]] = field(default_factory=list)
    _finished: list[tuple[str, Relaxation, bool]] = field(default_factory=list)
    _settled: float = 0.0

    def note(self, requests: Sequence[str | None], counts: Tensor) -> None:
        """``counts [B, 3]``: drafted, accepted, relaxed of each request; a request of None is not counted."""
        self._noted.append((requests, counts))

    def finish(self, request: str, relaxation: Relaxation, log: bool) -> None:
        """The request has ended: its counts are forgotten, and logged if wanted, when they are settled."""
        self._finished.append((request, relaxation, log))

    def discard(self) -> None:
        """Forget what was noted: another process tells of the same requests."""
        self._noted.clear()
        self._finished.clear()

    def settle(self, idle: bool) -> bool:
        """Bring the counts up to date where it is time to; whether it was."""
        now = time.monotonic()
        if not (self._noted or self._finished) or not (idle or now - self._settled >= _EVERY):
            return False
        self._settled = now
        self._read()
        for request, relaxation, log in self._finished:
            counts = self.requests.pop(request, None)
            if log and counts is not None:
                logger.info("%s", _line(request, relaxation, counts))
        self._finished.clear()
        return True

    def _read(self) -> None:
        if not self._noted:
            return
        names = [name for requests, _ in self._noted for name in requests]
        rows = torch.cat([counts for _, counts in self._noted]).tolist()
        self._noted.clear()
        for name, (drafted, accepted, relaxed) in zip(names, rows):
            if name is not None:
                self.requests.setdefault(name, Counts()).add(drafted, accepted, relaxed)
                self.total.add(drafted, accepted, relaxed)


def _line(request: str, relaxation: Relaxation, counts: Counts) -> str:
    cap = "" if relaxation.max_relaxed is None else f" of at most {relaxation.max_relaxed}"
    return (
        f"Cactus: request {request}, {describe(relaxation.rule)}: "
        f"{counts.drafts} drafts of {counts.draft_tokens} tokens, "
        f"accepted {sum(counts.accepted)} (by position {', '.join(map(str, counts.accepted)) or '-'}), "
        f"relaxed {counts.relaxed}{cap}, {counts.relaxed_share:.1%} of {counts.examined} examined"
    )
