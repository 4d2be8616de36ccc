"""A small model as the drafter."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cactus_decoding.drafters.base import Proposal
from cactus_decoding.models.base import CachedSequence, Model
from cactus_decoding.sampling import SamplingParams, draw, probabilities, require_sound


class ModelDrafter:
    """Draws from a model of the verifier's vocabulary, with the verifier's sampling parameters."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.name = model.name

    def open(self, params: SamplingParams) -> ModelDraftSession:
        return ModelDraftSession(self.model.open(), self.model, params)


class ModelDraftSession:
    """The cache lags behind ``settled`` by what was emitted last; `propose` feeds that first."""

    def __init__(self, sequence: CachedSequence, model: Model, params: SamplingParams) -> None:
        self._sequence = sequence
        self._model = model
        self._params = params

    @property
    def seconds(self) -> float:
        return self._sequence.seconds

    def propose(self, settled: Sequence[int], count: int, u: Tensor) -> Proposal:
        count = min(count, self._model.context - len(settled) + 1)  # the last id drafted is never fed
        if count < 1:
            return Proposal(torch.empty(0, dtype=torch.long, device=self._model.device), None)
        feed = torch.tensor(settled[self._sequence.length :], device=self._model.device)
        u = u.to(self._model.device)
        ids: list[Tensor] = []
        laws: list[Tensor] = []
        for place in range(count):
            law = probabilities(self._sequence.extend(feed, 1), self._params)  # [1, V]
            feed = draw(law, u[place : place + 1])
            laws.append(law)
            ids.append(feed)
        p = torch.cat(laws)
        require_sound(p, "drafter")
        return Proposal(torch.cat(ids), p)

    def accept(self, length: int) -> None:
        self._sequence.rewind(min(length, self._sequence.length))

    def close(self) -> None:
        self._sequence.close()
