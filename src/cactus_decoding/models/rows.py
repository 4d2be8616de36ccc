"""Rows of a transformers model: all in one forward, or, where a model can't do that, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from torch import Tensor
from transformers import DynamicCache

from cactus_decoding.errors import InvalidParameter, ModelRefused
from cactus_decoding.models.cache import RaggedCache, Window

Forward = Callable[[Tensor, RaggedCache, Window, Sequence[int], Sequence[int]], Tensor]


class RaggedRows:
    """All rows in one forward, over a cache with a length per row."""

    def __init__(self, forward: Forward, fit: Callable[[Tensor], Tensor], cache: RaggedCache) -> None:
        self._forward = forward
        self._fit = fit
        self.cache = cache
        self.seconds = 0.0

    @property
    def lengths(self) -> list[int]:
        return self.cache.lengths

    def add(self) -> None:
        self.cache.add()

    def drop(self, row: int) -> None:
        self.cache.drop(row)

    def extend(self, ids: Tensor, counts: Sequence[int], keep: Sequence[int], first: int = 0) -> Tensor:
        began = time.perf_counter()
        window = self.cache.window(first, *ids.shape)
        logits = self._fit(self._forward(ids, self.cache, window, counts, keep))
        self.cache.advance(first, counts)
        self.seconds += time.perf_counter() - began
        return logits

    def rewind(self, row: int, length: int) -> None:
        self.cache.lengths[row] = min(self.cache.lengths[row], length)

    def close(self) -> None:
        self.cache.clear()


class SeparateRows:
    """One forward per row, each row with a cache of the library's own making."""

    def __init__(
        self,
        forward: Callable[[Tensor, DynamicCache, int], Tensor],
        fit: Callable[[Tensor], Tensor],
        new_cache: Callable[[], DynamicCache],
    ) -> None:
        self._forward = forward
        self._fit = fit
        self._new_cache = new_cache
        self._caches: list[DynamicCache] = []
        self.lengths: list[int] = []
        self.seconds = 0.0

    def add(self) -> None:
        self._caches.append(self._new_cache())
        self.lengths.append(0)

    def drop(self, row: int) -> None:
        self._caches[row], self.lengths[row] = self._caches[-1], self.lengths[-1]
        self._caches.pop()
        self.lengths.pop()

    def extend(self, ids: Tensor, counts: Sequence[int], keep: Sequence[int], first: int = 0) -> Tensor:
        began = time.perf_counter()
        logits: Tensor | None = None
        for place, (count, kept) in enumerate(zip(counts, keep)):
            if count == 0:
                continue
            own = self._fit(self._forward(ids[place, :count], self._caches[first + place], kept))
            if logits is None:
                logits = own.new_zeros(len(ids), max(keep), own.shape[-1])
            logits[place, :kept] = own
            self.lengths[first + place] += count
        self.seconds += time.perf_counter() - began
        if logits is None:
            raise InvalidParameter(f"counts are {list(counts)}, so there is nothing to feed.")
        return logits

    def rewind(self, row: int, length: int) -> None:
        surplus = self.lengths[row] - length
        if surplus <= 0:
            return
        try:
            self._caches[row].crop(-surplus)
        except (RuntimeError, ValueError, NotImplementedError, AttributeError) as error:
            raise ModelRefused(f"its cache cannot take tokens back ({type(error).__name__}: {error})") from error
        self.lengths[row] = length

    def close(self) -> None:
        self._caches, self.lengths = [], []
