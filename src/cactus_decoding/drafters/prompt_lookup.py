"""Prompt lookup: draft what followed the last few tokens when they stood in the text before."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cactus_decoding.drafters.base import Proposal
from cactus_decoding.errors import InvalidParameter
from cactus_decoding.sampling import SamplingParams


class PromptLookup:
    """Needs no second model. Each drafted id is certain, so p is a point mass and a budget holds exactly.

    Args:
        ngram: the longest run of last tokens that is looked up; shorter runs are tried after it.
        device: where the drafted ids are wanted.
    """

    def __init__(self, ngram: int = 3, device: torch.device | str = "cpu") -> None:
        if ngram < 1:
            raise InvalidParameter(f"ngram is {ngram}, but a lookup needs at least 1 token.")
        self._ngram = ngram
        self._device = device

    def open(self, params: SamplingParams) -> PromptLookupSession:
        return PromptLookupSession(self._ngram, self._device)


class PromptLookupSession:
    """Keeps, for every run of up to ``ngram`` tokens, where its latest continuation begins."""

    seconds = 0.0

    def __init__(self, ngram: int, device: torch.device | str) -> None:
        self._ngram = ngram
        self._device = device
        self._continuation: dict[tuple[int, ...], int] = {}
        self._indexed = 1

    def propose(self, settled: Sequence[int], count: int, u: Tensor) -> Proposal:
        self._index(settled)
        ids: Sequence[int] = ()
        for size in range(min(self._ngram, len(settled)), 0, -1):
            begin = self._continuation.get(tuple(settled[-size:]))
            if begin is not None:
                ids = settled[begin : begin + count]
                break
        return Proposal(torch.tensor(ids, dtype=torch.long, device=self._device), None)

    def _index(self, settled: Sequence[int]) -> None:
        for begin in range(self._indexed, len(settled)):
            for size in range(1, min(self._ngram, begin) + 1):
                self._continuation[tuple(settled[begin - size : begin])] = begin
        self._indexed = max(self._indexed, len(settled))

    def accept(self, length: int) -> None:
        """Nothing to forget: only settled text is indexed."""

    def close(self) -> None:
        self._continuation.clear()
