"""How text that a model has not seen yet gets into its rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cactus_decoding.models.base import Rows

CHUNK = 512  # ids per forward at most: bounds what a long prompt holds of memory and time at once


def feed_pending(rows: Rows, pendings: Sequence[Sequence[int]], device: torch.device) -> list[Sequence[int]]:
    """Feed what is too long to ride along in the next forward; return what is left to ride, per row.

    A row alone takes up to a chunk along, so its prompt costs no forward of its own. Beside others it takes two ids,
    what a drafter lacks after a block kept whole, since every row is padded to the longest.
    """
    ride = CHUNK if len(pendings) == 1 else 2
    left: list[Sequence[int]] = []
    for row, pending in enumerate(pendings):
        fed = 0
        while len(pending) - fed > ride:
            portion = min(CHUNK, len(pending) - fed - 1)
            rows.extend(torch.tensor([pending[fed : fed + portion]], device=device), [portion], [0], row)
            fed += portion
        left.append(pending[fed:])
    return left


def padded(parts: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Ids of rows side by side, ``[n, longest]``, filled up with id 0."""
    longest = max(map(len, parts))
    return torch.tensor([[*part, *(0,) * (longest - len(part))] for part in parts], dtype=torch.long, device=device)
