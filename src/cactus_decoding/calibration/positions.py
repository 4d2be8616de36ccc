"""The laws of many examined positions, kept small, so that any rule at any setting can be measured on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from cactus_decoding.errors import InvalidParameter
from cactus_decoding.fidelity import FIGURES, measure_rows
from cactus_decoding.rules import Rule

TAIL = 1e-6  # tokens with less than this under both laws are put together with others of nearly the same p / q
LIMIT = 3 * 2**29  # bytes, of all positions together
_WIDTH = 0.02  # of such a bin, in ln(p / q)
_BINS = 1000  # on either side of p = q; farther ones share the last
_CHUNK = 2**17  # entries that are measured at a time: what a core's cache holds
_LEAST = 16  # entries of a position, however little room there is
_ENTRY = 8  # bytes: p and q in float32


class Positions:
    """Pairs (p, q) without the ids they belong to: no rule asks which token it is, only how likely.

    Of each position the tokens of positive probability are kept. Those below `TAIL` are put together where their p / q
    are the same within 2%: every divergence, and every rule that compares multiples of p and q, treats such tokens
    alike, so acceptance, KL and total variation change in the fourth digit at most. (Chi-square, which hangs on the
    rarest tokens, and the entropy that typical acceptance asks for, change in the second.) Where a position has more
    than its share of ``limit``, more of it is put together, in wider bins if need be. The largest share of a law that
    was put together is `merged`.

    Args:
        expected: about how many positions will come.
        limit: bytes.
    """

    def __init__(self, expected: int, limit: int = LIMIT) -> None:
        self._share = max(limit // (_ENTRY * max(expected, 1)), _LEAST)
        self._rows: list[Tensor] = []
        self.groups: list[int] = []
        """For each position, the prompt it belongs to."""
        self.merged = 0.0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def bytes(self) -> int:
        """Of all that is kept."""
        return _ENTRY * sum(row.shape[1] for row in self._rows)

    def add(self, p: Tensor, q: Tensor, group: int) -> None:
        """Take in positions, ``[k, V]`` each, of the prompt ``group``."""
        for pair in torch.stack([p.float(), q.float()], dim=1).cpu():
            self._rows.append(self._compact(pair))
            self.groups.append(group)

    def _compact(self, pair: Tensor) -> Tensor:
        """``[2, V] -> [2, K]``."""
        pair = pair[:, pair.amax(0) > 0.0]
        likeliest = pair.amax(0)
        single = likeliest >= TAIL
        bins = min(_BINS, self._share // 8)  # on either side
        if int(single.sum()) + min(pair.shape[1] - int(single.sum()), 2 * bins + 1) > self._share:
            single = torch.zeros_like(single).index_fill_(0, likeliest.topk(self._share - 2 * bins - 1).indices, True)
        rest = pair[:, ~single]
        if rest.shape[1] == 0:
            return pair.contiguous()
        self.merged = max(self.merged, float(rest.sum(-1).max()))
        width = _WIDTH * _BINS / bins
        place = ((rest[0] / rest[1]).log() / width).round().clamp(-bins, bins).long() + bins
        sums = torch.zeros(2, 2 * bins + 1).index_add_(1, place, rest)
        return torch.cat([pair[:, single], sums[:, sums.amax(0) > 0.0]], dim=1)

    def measure(self, rule: Rule, figures: Sequence[str] = FIGURES, every: int = 1) -> Tensor:
        """``[N, len(figures)]`` in float64: `Fidelity` of the rule at each position, or at each ``every``-th."""
        chosen = range(0, len(self), every)
        found = torch.empty(len(chosen), len(figures), dtype=torch.float64)
        for places, p, q in self._chunks(chosen):
            found[places] = measure_rows(p, q, rule, figures)
        return found

    def _chunks(self, chosen: Sequence[int]) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Places in ``chosen`` with their laws, ``[R, K]``; padded with zeros, of like size, so with few of them."""
        if not chosen:
            raise InvalidParameter("there is no position to measure. Record some first.")
        by_size = sorted(range(len(chosen)), key=lambda place: self._rows[chosen[place]].shape[1])
        part: list[int] = []
        for place in by_size:
            if part and (len(part) + 1) * self._rows[chosen[place]].shape[1] > _CHUNK:
                yield part, *self._padded([chosen[i] for i in part])
                part = []
            part.append(place)
        yield part, *self._padded([chosen[i] for i in part])

    def _padded(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        widest = max(self._rows[row].shape[1] for row in rows)
        pairs = torch.zeros(2, len(rows), widest, dtype=torch.float64)
        for place, row in enumerate(rows):
            pairs[:, place, : self._rows[row].shape[1]] = self._rows[row]
        pairs /= pairs.sum(-1, keepdim=True)  # laws in float32 sum to 1 within rounding only
        return pairs[0], pairs[1]
