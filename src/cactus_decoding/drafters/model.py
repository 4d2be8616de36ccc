"""A small model as the drafter."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cactus_decoding.drafters.base import Proposal
from cactus_decoding.models.base import CachedSequence, Model
from cactus_decoding.sampling import SamplingParams, draw, probabilities


class ModelDrafter:
    """Draws from a model of the verifier's vocabulary, with the verifier's sampling parameters."""

    def __init__(self, model: Model) -> None:
        self.model = model

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
        pending = settled[self._sequence.length :]
        count = min(count, self._model.context - len(settled) + 1)  # the last id drafted is never fed
        if count < 1 or max(pending) >= self._model.rows:  # full, or the text has a token it does not know
            return Proposal(torch.empty(0, dtype=torch.long, device=self._model.device), None)
        feed = torch.tensor(pending, device=self._model.device)
        u = u.to(self._model.device)
        ids: list[Tensor] = []
        laws: list[Tensor] = []
        for place in range(count):
            law = probabilities(self._sequence.extend(feed, 1), self._params)  # [1, V]
            feed = draw(law, u[place : place + 1])
            laws.append(law)
            ids.append(feed)
        return Proposal(torch.cat(ids), torch.cat(laws))

    def accept(self, length: int) -> None:
        self._sequence.rewind(min(length, self._sequence.length))

    def close(self) -> None:
        self._sequence.close()
