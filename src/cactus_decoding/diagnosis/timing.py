"""What forwards cost, by the number of tokens and of threads."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import torch

from cactus_decoding.diagnosis.report import Block, ThreadTimes
from cactus_decoding.generation.drafting import MOST
from cactus_decoding.models.base import Model

BLOCKS = (1, 2, 3, 4, 6, 8, 12, MOST)  # tokens per forward that are timed
_TURNS, _ENOUGH = 50, 1.5  # timings of each forward at most, and seconds after which no further turn begins


def thread_counts(default: int) -> list[int]:
    """1, 2, 4, ... and all the processors this process may use, with the number it would use anyway."""
    available = getattr(os, "sched_getaffinity", None)
    most = len(available(0)) if available else os.cpu_count() or 1
    return sorted({default, most, *(1 << power for power in range(most.bit_length()))})


@torch.inference_mode()
def time_threads(verifier: Model, rows: int, counts: Sequence[int]) -> tuple[ThreadTimes, ...]:
    """Time the verifier's forwards with each number of threads, which is left at the last one tried."""
    forwards = _Forwards(verifier, rows)

    def timed(count: int, tokens: int) -> float:
        torch.set_num_threads(count)
        forwards.seconds(1)  # the threads come to life
        return forwards.seconds(tokens)

    try:
        times = _in_turns([partial(timed, count, w) for count in counts for w in (1, min(6, forwards.most))])
    finally:
        forwards.close()
    medians = [median(each) for each in times]  # what waiting for each other costs is part of it
    return tuple(ThreadTimes(*found) for found in zip(counts, medians[::2], medians[1::2]))


def best_threads(times: Sequence[ThreadTimes]) -> int:
    """The fewest threads that are within 5% of the fastest."""
    least = min(tried.seconds for tried in times)
    return min(tried.threads for tried in times if tried.seconds <= 1.05 * least)


@torch.inference_mode()
def time_blocks(models: Sequence[Model], rows: int) -> list[tuple[Block, ...]]:
    """For each model, the least seconds that a forward of 1 .. MOST tokens per row took, all in turns.

    The least, since whatever else the machine does only ever adds.
    """
    opened = [_Forwards(model, rows) for model in models]
    sizes = [(number, w) for number, forwards in enumerate(opened) for w in BLOCKS if w <= forwards.most]
    try:
        times = _in_turns([partial(opened[number].seconds, w) for number, w in sizes])
    finally:
        for forwards in opened:
            forwards.close()
    found = [(number, Block(w, min(each))) for (number, w), each in zip(sizes, times)]
    return [tuple(block for owner, block in found if owner == number) for number, _ in enumerate(models)]


class _Forwards:
    """A model's forwards, timed behind a short text."""

    def __init__(self, model: Model, n: int) -> None:
        self._n = n
        self._text = min(MOST, max(1, model.context // 4))
        self.most = min(MOST, model.context - self._text)
        ids = torch.arange(n * MOST, device=model.device) * 7919 % min(model.rows, model.vocabulary.size)
        self._ids = ids.view(n, MOST)
        self._rows = model.open()
        for _ in range(n):
            self._rows.add()
        self._rows.extend(self._ids[:, : self._text], [self._text] * n, [0] * n)

    def seconds(self, w: int) -> float:
        began = time.perf_counter()
        logits = self._rows.extend(self._ids[:, :w], [w] * self._n, [w] * self._n)
        float(logits[0, 0, 0])  # a GPU is waited for
        spent = time.perf_counter() - began
        for row in range(self._n):
            self._rows.rewind(row, self._text)
        return spent

    def close(self) -> None:
        self._rows.close()


def _in_turns(timers: Sequence[Callable[[], float]]) -> list[tuple[float, ...]]:
    """Several times of each; they take turns, so that a busy moment slows all alike. The first turn only warms up."""
    began = time.perf_counter()
    turns: list[list[float]] = []
    while not turns[1:] or (len(turns) <= _TURNS and time.perf_counter() - began < _ENOUGH):
        turns.append([timer() for timer in timers])
    return [*zip(*turns[1:])]
