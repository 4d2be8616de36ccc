"""A key-value cache in which every row has a length of its own.

Rows that accept different numbers of tokens part company at once. Here nothing is masked, shifted or gathered for
that: a row's new keys are written behind its own length, a query at position t sees the slots up to t, and a
rewind lowers a number. Slots behind a row's length hold leftovers, of padding and of refused drafts, which no query
sees before they are overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_BLOCK = 32  # capacities are multiples of this
_SPARE = 8  # a cache that must grow takes an eighth more than asked, so that growing stays rare
_LOOSE = 4  # a cache of more than four times its longest row shrinks to twice that


@dataclass(frozen=True, slots=True)
class Window:
    """Where one forward reads and writes: rows ``first .. first + n``, ``w`` new slots each, ``reach`` slots seen."""

    first: int
    n: int
    begin: int
    """The new slots' beginning where all rows have one; only meaningful if ``slots`` is None."""
    w: int
    reach: int
    positions: Tensor | None
    """``[n, w]``, or None where all rows begin alike: ``begin .. begin + w`` then."""
    slots: Tensor | None
    """``[n * w]`` places in the flattened cache, or None for a single row."""
    mask: Tensor | None
    """``[n, 1, w, reach]`` to add to attention scores, or None where every query may see every slot."""


class RaggedCache:
    """Keys and values ``[rows, capacity, heads, head_dim]`` per layer, made when the first ones come."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.lengths: list[int] = []
        self._dtype = dtype
        self._device = device
        self._rows = 0
        self._capacity = 0
        self._layers: dict[int, list[Tensor]] = {}
        self._places = torch.empty(0, dtype=torch.long, device=device)

    def add(self) -> None:
        self.lengths.append(0)

    def drop(self, row: int) -> None:
        """The last row moves to ``row``. What is no longer needed is zeroed (see `_empty`), or given back."""
        last = len(self.lengths) - 1
        if last == 0:
            self.clear()
            return
        for tensor in self._tensors():
            if row < self._rows:  # a row that was never fed may have no place yet
                tensor[row] = tensor[last] if last < self._rows else 0
            tensor[last : last + 1] = 0
        self.lengths[row] = self.lengths[last]
        self.lengths.pop()
        if self._capacity > _LOOSE * max(_BLOCK, *self.lengths):
            self._resize(self._rows, -(-2 * max(self.lengths) // _BLOCK) * _BLOCK)

    def clear(self) -> None:
        self.lengths = []
        self._layers = {}
        self._rows = self._capacity = 0

    @property
    def bytes(self) -> int:
        """Memory held."""
        return sum(tensor.nbytes for tensor in self._tensors())

    def _tensors(self) -> list[Tensor]:
        return [tensor for layer in self._layers.values() for tensor in layer]

    def window(self, first: int, n: int, w: int) -> Window:
        """Make room for ``w`` more slots in each of ``n`` rows, and say where they are."""
        lengths = self.lengths[first : first + n]
        begin, longest = min(lengths), max(lengths)
        reach = longest + w
        self._reserve(reach)
        if n == 1:
            mask = self._mask(self._places[begin:reach].view(1, w), reach) if w > 1 else None
            return Window(first, 1, begin, w, reach, None, None, mask)
        starts = torch.tensor(lengths, device=self._device)
        positions = starts.unsqueeze(1) + self._places[:w]
        rows = self._places[first : first + n].unsqueeze(1) * self._capacity
        mask = None if w == 1 and begin == longest else self._mask(positions, reach)
        return Window(first, n, begin, w, reach, positions, (rows + positions).flatten(), mask)

    def write(self, layer: int, window: Window, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store ``[n, w, heads, dim]`` new keys and values; return what the queries see, ``[n, reach, heads, dim]``."""
        held = self._layers.get(layer)
        if held is None:
            held = self._layers[layer] = [self._empty(keys), self._empty(values)]
        first, n = window.first, window.n
        for tensor, new in zip(held, (keys, values)):
            if window.slots is None:
                tensor[first, window.begin : window.reach] = new[0]
            else:
                tensor.view(-1, *tensor.shape[2:]).index_copy_(0, window.slots, new.reshape(-1, *new.shape[2:]))
        seen = slice(first, first + n), slice(0, window.reach)
        return held[0][seen], held[1][seen]

    def advance(self, first: int, counts: Sequence[int]) -> None:
        for row, count in enumerate(counts, start=first):
            self.lengths[row] += count

    def nothing_hidden(self, window: Window) -> Tensor:
        """A mask of zeros for a window that needs none."""
        return torch.zeros(window.n, 1, window.w, window.reach, dtype=self._dtype, device=self._device)

    def _mask(self, positions: Tensor, reach: int) -> Tensor:
        seen = self._places[:reach] <= positions.unsqueeze(-1)
        zero = torch.zeros((), dtype=self._dtype, device=self._device)
        return torch.where(seen, zero, -torch.inf).unsqueeze(1)

    def _reserve(self, length: int) -> None:
        if length > self._capacity:
            wanted = length + length // _SPARE if self._capacity else length
            self._resize(self._rows, -(-wanted // _BLOCK) * _BLOCK)
        if len(self.lengths) > self._rows:
            self._resize(len(self.lengths), self._capacity)

    def _resize(self, rows: int, capacity: int) -> None:
        """Layer by layer, so that old and new stand side by side for one tensor at a time only."""
        old, held = min(self._rows, rows), min(self._capacity, capacity)
        self._rows, self._capacity = rows, capacity
        for layer in self._layers.values():
            for place, tensor in enumerate(layer):
                layer[place] = self._empty(tensor)
                layer[place][:old, :held] = tensor[:old, :held]
                del tensor
        most = max(rows, capacity)
        if most > len(self._places):
            self._places = torch.arange(most, device=self._device)

    def _empty(self, like: Tensor) -> Tensor:
        """Zeros, so that leftovers are finite: a masked NaN would still spoil its row."""
        return like.new_zeros(self._rows, self._capacity, *like.shape[2:])
