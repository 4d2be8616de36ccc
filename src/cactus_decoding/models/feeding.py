"""How text that a model has not seen yet gets into its rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from cactus_decoding.models.base import Rows

CHUNK = 512  # ids per forward at most: bounds what a long prompt holds of memory and time at once
_LEAST = 16  # ids per row of a forward, however many rows there are


def feed_pending(rows: Rows, pendings: Sequence[Sequence[int]], device: torch.device) -> list[Sequence[int]]:
    """Feed what is too long to ride along in the next forward; return what is left to ride, per row.

    A row alone takes up to a chunk along, so its prompt costs no forward of its own. Beside others it takes two ids,
    what a drafter lacks after a block kept whole, since every row is padded to the longest. Neighbours are fed
    together, up to twice the shortest at a time, so that at most half of a forward is padding.
    """
    ride = CHUNK if len(pendings) == 1 else 2
    left = list(pendings)
    while runs := _runs([len(pending) > ride for pending in left]):
        for first, end in runs:
            needs = [len(pending) - 1 for pending in left[first:end]]
            width = min(2 * min(needs), max(_LEAST, CHUNK // len(needs)))
            portions = [min(width, need) for need in needs]
            fed = [pending[:portion] for pending, portion in zip(left[first:end], portions)]
            rows.extend(padded(fed, device), portions, [0] * len(fed), first)
            left[first:end] = [pending[portion:] for pending, portion in zip(left[first:end], portions)]
    return left


def _runs(hungry: Sequence[bool]) -> list[tuple[int, int]]:
    """(first, end) of each run of rows that are still to be fed."""
    return [
        (run[0], run[-1] + 1)
        for wanted, group in groupby(range(len(hungry)), hungry.__getitem__)
        if wanted and (run := list(group))
    ]


def padded(parts: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Ids of rows side by side, ``[n, longest]``, filled up with id 0."""
    longest = max(map(len, parts))
    return torch.tensor([[*part, *(0,) * (longest - len(part))] for part in parts], dtype=torch.long, device=device)
