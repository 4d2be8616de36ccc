"""A small model as the drafter."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cactus_decoding.drafters.base import Proposal
from cactus_decoding.held import Laws, drawn_first, stacked
from cactus_decoding.laws import Shaping, laws_of
from cactus_decoding.models.base import Model, Rows, Vocabulary
from cactus_decoding.models.feeding import feed_pending, padded


class ModelDrafter:
    """Draws from a model of the verifier's vocabulary, with the verifier's sampling parameters."""

    certain = False

    def __init__(self, model: Model, tokens: Vocabulary | None = None) -> None:
        """``tokens``: the ids that the drafter's own tokenizer has, where the model's vocabulary is the pair's."""
        self.model = model
        self.name = model.name
        self.tokens = tokens or model.vocabulary

    def open(self) -> ModelDraftRows:
        return ModelDraftRows(self.model.open(), self.model)


class ModelDraftRows:
    """The cache lags behind ``settled`` by what was emitted last; `propose` feeds that first."""

    def __init__(self, rows: Rows, model: Model) -> None:
        self._rows = rows
        self._model = model
        self._shapings: list[Shaping] = []

    @property
    def seconds(self) -> float:
        return self._rows.seconds

    def add(self, shaping: Shaping) -> None:
        self._rows.add()
        self._shapings.append(shaping)

    def drop(self, row: int) -> None:
        self._rows.drop(row)
        self._shapings[row] = self._shapings[-1]
        self._shapings.pop()

    def propose(self, settled: Sequence[Sequence[int]], counts: Sequence[int], u: Tensor) -> Proposal:
        pendings = [ids[held:] for ids, held in zip(settled, self._rows.lengths)]
        counts = [self._able(*row) for row in zip(settled, pendings, counts)]
        device, n, most = self._model.device, len(settled), max(counts, default=0)
        if most < 1:
            return Proposal(torch.empty(n, 0, dtype=torch.long, device=device), (0,) * n, None)
        pendings = feed_pending(self._rows, [p if count else () for p, count in zip(pendings, counts)], device)
        u = u.to(device)
        feed, fed = padded(pendings, device), [len(pending) for pending in pendings]
        ids = torch.zeros(n, most, dtype=torch.long, device=device)
        laws: list[Laws] = []
        for place in range(most):
            drafting = [int(place < count) for count in counts]  # no row is fed beyond what it may hold
            logits = self._rows.extend(feed, fed if place == 0 else drafting, drafting)
            law = laws_of(logits, self._shapings, settled, ids, [place] * n, drafting)
            law, ids[:, place] = drawn_first(law, u[:, place])
            laws.append(law)
            feed = ids[:, place : place + 1].clamp_max(self._model.rows - 1)  # a row that is done may hold any id
        return Proposal(ids, tuple(counts), stacked(laws))

    def _able(self, settled: Sequence[int], pending: Sequence[int], count: int) -> int:
        """How many it can draft: none if the text is full or has a token it does not know."""
        count = min(count, self._model.context - len(settled) + 1)  # the last id drafted is never fed
        return 0 if count < 1 or max(pending) >= self._model.rows else count

    def accept(self, row: int, length: int) -> None:
        self._rows.rewind(row, length)

    def close(self) -> None:
        self._rows.close()
        self._shapings = []
