"""The loop: draft, score, verify, rewind, until the response ends.

Knows ids and laws only; text enters through `Stops`. Both caches lag behind the settled ids by what was emitted
last, so each step feeds one verifier call with that id and the drafted ones, and no forward is spent on feeding
alone: the prompt itself rides in the first call.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cactus_decoding.drafters.base import Drafter, DraftSession, Proposal
from cactus_decoding.generation.events import Event, event_of
from cactus_decoding.generation.stops import Stops
from cactus_decoding.models.base import CachedSequence, Model
from cactus_decoding.rules.base import Rule
from cactus_decoding.sampling import Purpose, RandomStream, SamplingParams, probabilities
from cactus_decoding.verify import verify


@dataclass(frozen=True, slots=True)
class Request:
    """One response to make. ``seed`` and ``number`` together name its stream of random numbers."""

    prompt: tuple[int, ...]
    rule: Rule
    m: int
    params: SamplingParams
    max_new_tokens: int
    seed: int
    number: int = 0


class Decoding:
    """One response in the making. Call `step` until `done`; the caches are freed then, or by `close` before."""

    def __init__(self, verifier: Model, drafter: Drafter | None, request: Request, stops: Stops) -> None:
        self.request = request
        self.stops = stops
        self.ids: list[int] = []
        self._closed = False
        self._settled = list(request.prompt)
        self._random = RandomStream(request.seed, request.number)
        self._device = verifier.device
        self._verifier: CachedSequence = verifier.open()
        self._drafter: DraftSession | None = drafter.open(request.params) if drafter else None

    @property
    def verifier_seconds(self) -> float:
        return self._verifier.seconds

    @property
    def drafter_seconds(self) -> float:
        return self._drafter.seconds if self._drafter else 0.0

    @property
    def done(self) -> bool:
        """Whether the response has ended or was closed."""
        return self._closed or self.stops.reason is not None

    def close(self) -> None:
        self._closed = True
        self._verifier.close()
        if self._drafter is not None:
            self._drafter.close()

    def step(self) -> Event:
        """One verifier call. Emits between 1 and m + 1 ids, never more than are still wanted.

        Whatever goes wrong within closes the response: its caches may hold ids that were never settled.
        """
        try:
            event = self._step()
        except BaseException:
            self.close()
            raise
        if self.done:
            self.close()
        return event

    @torch.inference_mode()
    def _step(self) -> Event:
        request = self.request
        position, before = len(self.ids), len(self._settled)
        room = min(request.m, request.max_new_tokens - position - 1)
        numbers = self._random.at(position, room + 1).to(self._device)
        proposal = self._propose(room, numbers[Purpose.DRAFT])
        k = proposal.ids.shape[0]
        pending = torch.tensor(self._settled[self._verifier.length :], device=self._device)
        logits = self._verifier.extend(torch.cat([pending, proposal.ids]), keep=k + 1)
        verdicts = verify(
            draft=proposal.ids.unsqueeze(0),
            p=None if proposal.p is None else proposal.p.unsqueeze(0),
            q=probabilities(logits, request.params).unsqueeze(0),
            rule=request.rule,
            u=numbers[Purpose.ACCEPT, :k].unsqueeze(0),
            u_emit=numbers[Purpose.EMIT, : k + 1].unsqueeze(0),
        )
        kept = int(verdicts.kept)
        used = self._settle([*proposal.ids[:kept].tolist(), int(verdicts.emitted)])
        self._rewind(before + kept)
        return event_of(verdicts, 0, position, k, used)

    def _propose(self, room: int, u: torch.Tensor) -> Proposal:
        if self._drafter is None or room < 1:
            return Proposal(torch.empty(0, dtype=torch.long, device=self._device), None)
        proposal = self._drafter.propose(self._settled, room, u[:room])
        p = None if proposal.p is None else proposal.p.to(self._device)
        return Proposal(proposal.ids.to(self._device), p)

    def _settle(self, tokens: list[int]) -> int:
        """Append ids until the response ends; how many of them it took."""
        for used, token in enumerate(tokens, start=1):
            self.ids.append(token)
            self._settled.append(token)
            if self.stops.push(token) is not None:
                return used
        return len(tokens)

    def _rewind(self, length: int) -> None:
        self._verifier.rewind(length)
        if self._drafter is not None:
            self._drafter.accept(length)
