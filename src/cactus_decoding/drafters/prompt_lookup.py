"""Prompt lookup: draft what followed the last few tokens when they stood in the text before."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cactus_decoding.drafters.base import Proposal
from cactus_decoding.errors import InvalidParameter
from cactus_decoding.laws import Shaping
from cactus_decoding.models.feeding import padded


class PromptLookup:
    """Needs no second model. Each drafted id is certain, so p is a point mass and a budget holds exactly.

    Args:
        ngram: the longest run of last tokens that is looked up; shorter runs are tried after it.
        device: where the drafted ids are wanted.
    """

    name = "prompt lookup"
    certain = True

    def __init__(self, ngram: int = 3, device: torch.device | str = "cpu") -> None:
        if ngram < 1:
            raise InvalidParameter(f"ngram is {ngram}, but a lookup needs at least 1 token.")
        self._ngram = ngram
        self._device = torch.device(device)

    def open(self) -> PromptLookupRows:
        return PromptLookupRows(self._ngram, self._device)


class PromptLookupRows:
    """One index per row."""

    seconds = 0.0

    def __init__(self, ngram: int, device: torch.device) -> None:
        self._ngram = ngram
        self._device = device
        self._indexes: list[_Index] = []

    def add(self, shaping: Shaping) -> None:
        self._indexes.append(_Index(self._ngram))

    def drop(self, row: int) -> None:
        self._indexes[row] = self._indexes[-1]
        self._indexes.pop()

    def propose(self, settled: Sequence[Sequence[int]], counts: Sequence[int], u: Tensor) -> Proposal:
        found = [index.continuation(text, count) for index, text, count in zip(self._indexes, settled, counts)]
        return Proposal(padded(found, self._device), tuple(map(len, found)), None)

    def accept(self, row: int, length: int) -> None:
        """Nothing to forget: only settled text is indexed."""

    def close(self) -> None:
        self._indexes = []


class _Index:
    """For every run of up to ``ngram`` tokens of one text, where its latest continuation begins."""

    def __init__(self, ngram: int) -> None:
        self._ngram = ngram
        self._begins: dict[tuple[int, ...], int] = {}
        self._indexed = 1

    def continuation(self, text: Sequence[int], count: int) -> Sequence[int]:
        """``count`` ids that followed the last ones of ``text`` before; none if these never stood there.

        Where the text ends first, what it repeats goes on repeating.
        """
        self._follow(text)
        for size in range(min(self._ngram, len(text)), 0, -1):
            begin = self._begins.get(tuple(text[-size:]))
            if begin is not None:
                period = len(text) - begin
                return [text[begin + place % period] for place in range(count)]
        return ()

    def _follow(self, text: Sequence[int]) -> None:
        for begin in range(self._indexed, len(text)):
            for size in range(1, min(self._ngram, begin) + 1):
                self._begins[tuple(text[begin - size : begin])] = begin
        self._indexed = max(self._indexed, len(text))
