"""Laws of ``[n, k]`` positions, held as they came.

Examining a block reads one probability per position and one row per sequence, so laws are not spread over the
vocabulary before they are asked: `SoftmaxLaws` holds logits and one normaliser per position, `SparseLaws` the few
entries that a filter left, `DenseLaws` whole rows, `MixedLaws` rows of different kinds. The numbers of a row are its
own: to the last bit, they do not depend on the rows beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from cactus_decoding.sampling import draw

Place = tuple[Tensor, Tensor]
"""Rows and places in them, ``[R]`` each: an index into ``[n, k, ...]``."""

_CHUNK_BYTES = 4 << 20  # as much of the logits is worked on at a time: it stays in a processor's cache
_SMALL = 1e-6  # a smaller total of exponentials could have lost some to underflow


class Laws(Protocol):
    """What examining and drawing ask of laws."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """n, k and the size of the vocabulary."""

    def at(self, place: Place, ids: Tensor) -> Tensor:
        """Probabilities of ids ``[..., S]`` at places ``[...]``."""

    def support(self, place: Place) -> tuple[Tensor | None, Tensor]:
        """Rising ids that hold all mass, or None for the whole vocabulary, and their probabilities: ``[R, S]`` each.

        The rows are of one kind: see `alike`.
        """

    def rows(self, place: Place) -> Tensor:
        """``[R, V]``."""

    def dense(self) -> Tensor:
        """``[n, k, V]``."""

    def broken(self) -> Tensor:
        """``[n, k]`` of bool: where the logits were NaN or infinite, or left no token."""

    def alike(self, rows: Tensor) -> list[Tensor]:
        """``rows``, parted into those of one kind."""

    def part(self, rows: Sequence[int] | None, places: int) -> Laws:
        """These rows, or all of them, and their first places."""

    def to(self, device: torch.device) -> Laws:
        """The same on another device."""


def held(laws: Laws | Tensor) -> Laws:
    """``[n, k, V]`` probabilities as `Laws`; what is held already, as it is."""
    return DenseLaws(laws) if isinstance(laws, Tensor) else laws


def of_drafts(laws: Laws, ids: Tensor) -> Tensor:
    """Probabilities of ids ``[n, j]`` at the first j places, ``[n, j]``."""
    rows, places = (torch.arange(size, device=ids.device) for size in ids.shape)
    return laws.at((rows.unsqueeze(-1), places.unsqueeze(0)), ids.unsqueeze(-1)).squeeze(-1)


class _OneKind:
    def alike(self, rows: Tensor) -> list[Tensor]:
        return [rows] if rows.numel() > 0 else []


@dataclass(frozen=True, slots=True)
class DenseLaws(_OneKind):
    """Probabilities ``[n, k, V]``; a broken row begins with NaN."""

    law: Tensor

    @property
    def shape(self) -> tuple[int, int, int]:
        n, k, size = self.law.shape
        return n, k, size

    def at(self, place: Place, ids: Tensor) -> Tensor:
        rows, places = place
        return self.law[rows.unsqueeze(-1), places.unsqueeze(-1), ids]

    def support(self, place: Place) -> tuple[Tensor | None, Tensor]:
        return None, _rows(self.law, place)

    def rows(self, place: Place) -> Tensor:
        return _rows(self.law, place)

    def dense(self) -> Tensor:
        return self.law

    def broken(self) -> Tensor:
        return self.law[..., 0].isnan()

    def part(self, rows: Sequence[int] | None, places: int) -> Laws:
        return DenseLaws(_part(self.law, rows, places))

    def to(self, device: torch.device) -> Laws:
        return DenseLaws(self.law.to(device))


@dataclass(frozen=True, slots=True)
class SoftmaxLaws(_OneKind):
    """``exp((logits - shift) / temperature) / total``, of `softmax_laws`."""

    logits: Tensor  # [n, k, V]
    temperature: float
    shift: Tensor  # [n, k, 1], 0 for most rows
    total: Tensor  # [n, k, 1], NaN where the row is broken

    @property
    def shape(self) -> tuple[int, int, int]:
        n, k, size = self.logits.shape
        return n, k, size

    def at(self, place: Place, ids: Tensor) -> Tensor:
        rows, places = place
        logits = self.logits[rows.unsqueeze(-1), places.unsqueeze(-1), ids].to(self.total.dtype)
        return self._probabilities(logits, self.shift[place], self.total[place])

    def support(self, place: Place) -> tuple[Tensor | None, Tensor]:
        return None, self.rows(place)

    def rows(self, place: Place) -> Tensor:
        logits = _rows(self.logits, place).to(self.total.dtype)
        return self._probabilities(logits, self.shift[place], self.total[place])

    def dense(self) -> Tensor:
        return self._probabilities(self.logits.to(self.total.dtype, copy=True), self.shift, self.total)

    def broken(self) -> Tensor:
        return self.total[..., 0].isnan()

    def part(self, rows: Sequence[int] | None, places: int) -> Laws:
        logits, shift, total = (_part(x, rows, places) for x in (self.logits, self.shift, self.total))
        return SoftmaxLaws(logits, self.temperature, shift, total)

    def to(self, device: torch.device) -> Laws:
        return SoftmaxLaws(self.logits.to(device), self.temperature, self.shift.to(device), self.total.to(device))

    def _probabilities(self, own: Tensor, shift: Tensor, total: Tensor) -> Tensor:
        """Of a copy of logits, in place."""
        return _exponentials(own, shift, self.temperature, own).div_(total)


def softmax_laws(logits: Tensor, temperature: float) -> SoftmaxLaws:
    """``[n, k, V]`` logits, read once: what `cactus_decoding.sampling.probabilities` makes of them without filters."""
    n, k, size = logits.shape
    dtype = torch.promote_types(logits.dtype, torch.float32)
    flat = logits.reshape(n * k, size)
    shift, total = (torch.zeros(n * k, 1, dtype=dtype, device=logits.device) for _ in range(2))
    count = max(1, _CHUNK_BYTES // (size * dtype.itemsize))
    buffer = torch.empty(min(count, n * k), size, dtype=dtype, device=logits.device)
    for begin in range(0, n * k, count):
        rows = slice(begin, min(begin + count, n * k))
        total[rows, 0] = row_sums(_exponentials(flat[rows], None, temperature, buffer[: rows.stop - begin]))
    # nearly all logits need no shift, and are spared a pass; each row decides for itself
    unsafe = (~((total >= _SMALL) & (total < torch.inf)))[:, 0].nonzero()[:, 0]
    for some in torch.split(unsafe, count):
        chunk = flat[some].to(dtype)
        shift[some] = chunk.amax(-1, keepdim=True)
        total[some, 0] = row_sums(_exponentials(chunk, shift[some], temperature, chunk))
    return SoftmaxLaws(logits, temperature, shift.view(n, k, 1), total.view(n, k, 1))


def _exponentials(logits: Tensor, shift: Tensor | None, temperature: float, out: Tensor) -> Tensor:
    """``exp((logits - shift) / temperature)`` into ``out``, which may be the logits themselves."""
    if logits.dtype != out.dtype:
        logits = out.copy_(logits)
    if shift is not None:
        logits = torch.sub(logits, shift, out=out)
    if temperature != 1.0:
        logits = torch.div(logits, temperature, out=out)
    return torch.exp(logits, out=out)


def row_sums(x: Tensor, block: int = 512) -> Tensor:
    """``[R, S] -> [R]``, in two levels, in an order that depends on S alone."""
    whole = x.shape[-1] // block * block
    sums = x[:, :whole].reshape(len(x), whole // block, block).sum(-1) if whole else x
    if 0 < whole < x.shape[-1]:
        sums = torch.cat([sums, x[:, whole:].sum(-1, keepdim=True)], dim=-1)
    return sums.sum(-1)


@dataclass(frozen=True, slots=True)
class SparseLaws(_OneKind):
    """Rising ids ``[n, k, K]`` with their probabilities, some of them perhaps 0; all others have 0."""

    ids: Tensor
    law: Tensor  # [n, k, K], NaN where the row is broken
    size: int

    @property
    def shape(self) -> tuple[int, int, int]:
        n, k, _ = self.ids.shape
        return n, k, self.size

    def at(self, place: Place, ids: Tensor) -> Tensor:
        own, law = self.ids[place], self.law[place]
        found = torch.searchsorted(own, ids.contiguous()).clamp_max(own.shape[-1] - 1)
        return torch.where(own.gather(-1, found) == ids, law.gather(-1, found), 0.0)

    def support(self, place: Place) -> tuple[Tensor | None, Tensor]:
        return self.ids[place], self.law[place]

    def rows(self, place: Place) -> Tensor:
        return _spread(self.ids[place], self.law[place], self.size)

    def dense(self) -> Tensor:
        return _spread(self.ids, self.law, self.size)

    def broken(self) -> Tensor:
        return self.law[..., 0].isnan()

    def part(self, rows: Sequence[int] | None, places: int) -> Laws:
        return SparseLaws(_part(self.ids, rows, places), _part(self.law, rows, places), self.size)

    def to(self, device: torch.device) -> Laws:
        return SparseLaws(self.ids.to(device), self.law.to(device), self.size)


class MixedLaws:
    """Rows of different kinds: ``parts`` are row numbers, each row in one part, with their laws."""

    def __init__(self, parts: Sequence[tuple[Sequence[int], Laws]]) -> None:
        self._parts = parts
        where = {row: (number, inner) for number, (rows, _) in enumerate(parts) for inner, row in enumerate(rows)}
        self._where = torch.tensor([where[row] for row in range(len(where))])  # [n, 2]

    @property
    def shape(self) -> tuple[int, int, int]:
        _, k, size = self._parts[0][1].shape
        return len(self._where), k, size

    def at(self, place: Place, ids: Tensor) -> Tensor:
        rows = (place[0] + torch.zeros_like(place[1])).flatten()
        places = (place[1] + torch.zeros_like(place[0])).flatten()
        flat = ids.flatten(0, -2)
        found = self._gathered(rows, lambda laws, inner, here: laws.at((inner, places[here]), flat[here]))
        return found.view(ids.shape)

    def support(self, place: Place) -> tuple[Tensor | None, Tensor]:
        where = self._where.to(place[0].device)[place[0]]
        return self._parts[int(where[0, 0])][1].support((where[:, 1], place[1]))

    def rows(self, place: Place) -> Tensor:
        rows, places = place
        return self._gathered(rows, lambda laws, inner, here: laws.rows((inner, places[here])))

    def dense(self) -> Tensor:
        return self._gathered(torch.arange(len(self._where)), lambda laws, inner, here: laws.dense()[inner])

    def broken(self) -> Tensor:
        return self._gathered(torch.arange(len(self._where)), lambda laws, inner, here: laws.broken()[inner])

    def alike(self, rows: Tensor) -> list[Tensor]:
        owners = self._where.to(rows.device)[rows, 0]
        return [rows[owners == number] for number in sorted(set(owners.tolist()))]

    def part(self, rows: Sequence[int] | None, places: int) -> Laws:
        rows = range(len(self._where)) if rows is None else rows
        where = self._where[list(rows)].tolist()
        parts = []
        for number, (_, laws) in enumerate(self._parts):
            mine = [new for new, (owner, _) in enumerate(where) if owner == number]
            if len(mine) == len(where):
                return laws.part([inner for _, inner in where], places)
            if mine:
                parts.append((mine, laws.part([where[new][1] for new in mine], places)))
        return MixedLaws(parts)

    def to(self, device: torch.device) -> Laws:
        return MixedLaws([(rows, laws.to(device)) for rows, laws in self._parts])

    def _gathered(self, rows: Tensor, ask: Callable[[Laws, Tensor, Tensor], Tensor]) -> Tensor:
        """What each part answers to ``ask(laws, its rows, where they are in rows)``, in the order of ``rows``."""
        where = self._where.to(rows.device)[rows]
        heres = [(laws, (where[:, 0] == number).nonzero()[:, 0]) for number, (_, laws) in enumerate(self._parts)]
        heres = [(laws, here) for laws, here in heres if here.numel() > 0] or heres[:1]
        answers = [(here, ask(laws, where[here, 1], here)) for laws, here in heres]
        first = answers[0][1]
        found = first.new_empty(len(rows), *first.shape[1:])
        for here, answer in answers:
            found[here] = answer
        return found


def drawn_first(laws: Laws, u: Tensor) -> tuple[Laws, Tensor]:
    """One id per row from its first place, ``[n]`` u -> ``[n]``, and the laws for `stacked`: what was drawn from."""
    everyone = torch.arange(len(u), device=u.device)
    ids = torch.empty_like(everyone)
    dense: Laws = laws
    for rows in laws.alike(everyone):
        own, law = laws.support((rows, torch.zeros_like(rows)))
        index = draw(law, u[rows])
        ids[rows] = index if own is None else own.gather(-1, index.unsqueeze(-1)).squeeze(-1)
        if own is None and len(rows) == len(u):
            dense = DenseLaws(law.unsqueeze(1))
    return dense, ids


def stacked(laws: Sequence[Laws]) -> Laws:
    """``[n, 1, V]`` laws of the places of a draft, one behind the other: ``[n, k, V]``."""
    sparse = [one for one in laws if isinstance(one, SparseLaws)]
    if len(sparse) == len(laws) == 1:
        return sparse[0]
    if len(sparse) < len(laws):
        return DenseLaws(torch.cat([one.dense() for one in laws], dim=1))
    most = max(one.ids.shape[-1] for one in sparse)
    padding = [most - one.ids.shape[-1] for one in sparse]
    return SparseLaws(  # an id beyond the vocabulary keeps them rising, and is never asked for
        torch.cat([pad(one.ids, (0, more), value=one.size) for one, more in zip(sparse, padding)], dim=1),
        torch.cat([pad(one.law, (0, more)) for one, more in zip(sparse, padding)], dim=1),
        sparse[0].size,
    )


def _rows(x: Tensor, place: Place) -> Tensor:
    """``x[place]``, a copy, row by row where memory allows."""
    if not x.is_contiguous():
        return x[place]
    return x.flatten(0, 1).index_select(0, place[0] * x.shape[1] + place[1])


def _spread(ids: Tensor, law: Tensor, size: int) -> Tensor:
    return law.new_zeros(*law.shape[:-1], size + 1).scatter_(-1, ids, law)[..., :size]  # padding has the id behind


def _part(x: Tensor, rows: Sequence[int] | None, places: int) -> Tensor:
    return (x if rows is None else x[list(rows)])[:, :places]
