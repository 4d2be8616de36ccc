"""From logits to probabilities, from probabilities to tokens, and the randomness both sides share.

`probabilities` is the one function that turns logits into a distribution, for drafter and verifier alike, so
the ``p`` handed to the acceptance test is by construction the law the draft was sampled from. Draws are made by
inverting the cumulative sum at a uniform number that the caller supplies; `uniforms` makes these numbers from
(seed, request, position, purpose), so a text depends neither on its neighbours in a batch nor on how often a
position was drafted before it was settled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from numbers import Integral, Real
from typing import cast

import numpy as np
import torch
from torch import Tensor

from cactus_decoding.errors import BrokenLogits, InvalidParameter


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How logits become probabilities. Applied in this order; the defaults change nothing.

    A. ``logit_bias``: ``{id: number}``, added to these logits; -inf forbids an id.
    B. ``repetition_penalty``: logits of ids in the prompt or the response so far are divided by it if positive and
       multiplied if negative; 1 is off.
    C. ``presence_penalty``, ``frequency_penalty``: taken off the logits of ids in the response so far, once and once
       per occurrence; 0 is off.
    1. ``temperature``: logits are divided by it; 0 puts all mass on the largest logit.
    2. ``top_k``: keep the k largest (ties with the k-th are kept); 0 is off.
    3. ``top_p``: of what is left, renormalised, keep the smallest set of largest ones that reaches top_p
       (ties with the last one are kept); 1 is off.
    4. ``min_p``: of what is left, keep what has at least min_p times the largest probability; 0 is off.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if name != "logit_bias" and not isinstance(getattr(self, name), Real):
                raise InvalidParameter(f"{name} is {getattr(self, name)!r}, but must be a number.")
        if not (math.isfinite(self.temperature) and self.temperature >= 0.0):
            raise InvalidParameter(f"temperature is {self.temperature}, but must be a finite number of at least 0.")
        if not (isinstance(self.top_k, Integral) and self.top_k >= 0):
            raise InvalidParameter(f"top_k is {self.top_k}, but must be a whole number of at least 0 (0 is off).")
        if not 0.0 < self.top_p <= 1.0:
            raise InvalidParameter(f"top_p is {self.top_p}, but must lie in (0, 1] (1 is off).")
        if not 0.0 <= self.min_p <= 1.0:
            raise InvalidParameter(f"min_p is {self.min_p}, but must lie in [0, 1] (0 is off).")
        for name in ("presence_penalty", "frequency_penalty"):
            if not math.isfinite(getattr(self, name)):
                raise InvalidParameter(f"{name} is {getattr(self, name)}, but must be a finite number (0 is off).")
        if not (math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0.0):
            raise InvalidParameter(
                f"repetition_penalty is {self.repetition_penalty}, but must be a finite number above 0 (1 is off)."
            )
        object.__setattr__(self, "logit_bias", _pairs(self.logit_bias))

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        """``logit_bias`` as (id, number), by rising ids."""
        return cast("tuple[tuple[int, float], ...]", self.logit_bias)

    @property
    def penalised(self) -> bool:
        """Whether the law of a position depends on the text before it, other than through the model."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)


def _pairs(bias: Mapping[int, float] | tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
    pairs = tuple(sorted(bias.items() if isinstance(bias, Mapping) else bias))
    for token, value in pairs:
        if not (isinstance(token, Integral) and token >= 0):
            raise InvalidParameter(f"logit_bias names the id {token!r}, but ids are whole numbers of at least 0.")
        if math.isnan(value) or value == math.inf:
            raise InvalidParameter(f"logit_bias of id {token} is {value}, but must be a number or -inf.")
    return tuple((int(token), float(value)) for token, value in pairs)


def biased(logits: Tensor, params: SamplingParams) -> Tensor:
    """``[..., V]`` logits with the bias of ``params`` added."""
    if not params.biases:
        return logits
    ids, values = zip(*params.biases)
    size = logits.shape[-1]
    if max(ids) >= size:
        raise InvalidParameter(f"logit_bias names the id {max(ids)}, but the vocabulary has {size}.")
    bias = torch.zeros(size, device=logits.device)
    bias[list(ids)] = torch.tensor(values, device=logits.device)
    return logits + bias


def probabilities(logits: Tensor, params: SamplingParams) -> Tensor:
    """The distribution that ``params`` makes of ``logits``: ``[..., V] -> [..., V]``, float32 or wider.

    All of it but the penalties, which need to know the text: see `cactus_decoding.laws`.

    A logit of -inf is a token that cannot come. A NaN or +inf anywhere in a row, or a row without any finite
    logit, gives a row of NaN, which `require_sound` finds in one look per row.
    """
    if logits.dtype not in (torch.float32, torch.float64):
        logits = logits.float()
    logits = biased(logits, params)
    if params.greedy:
        return _one_hot_of_largest(logits)
    support = None
    if 0 < params.top_k < logits.shape[-1]:  # the k largest are the same before and after the temperature
        support = params.top_k
        logits = logits.masked_fill(logits < logits.topk(support, dim=-1).values[..., -1:], -torch.inf)
    if params.temperature != 1.0:
        logits = (logits - logits.amax(-1, keepdim=True)) / params.temperature  # no overflow however small it is
    law = logits.softmax(-1)
    if params.top_p < 1.0:
        law = _keep_top_p(law, params.top_p, support)
    if params.min_p > 0.0:
        law = _renormalised(law, law >= params.min_p * law.amax(-1, keepdim=True))
    return law


def _one_hot_of_largest(logits: Tensor) -> Tensor:
    largest, index = logits.max(-1, keepdim=True)
    law = torch.zeros_like(logits).scatter_(-1, index, 1.0)
    return torch.where(torch.isfinite(largest), law, torch.nan)


def _keep_top_p(law: Tensor, top_p: float, support: int | None) -> Tensor:
    """``support``: how many entries can be positive after top-k, which saves sorting the whole row."""
    ordered = law.sort(-1, descending=True).values if support is None else law.topk(support, dim=-1).values
    before = ordered.cumsum(-1) - ordered  # mass of the strictly earlier ones: < top_p means still needed
    needed = (before < top_p).sum(-1, keepdim=True).clamp_min(1)
    return _renormalised(law, law >= ordered.gather(-1, needed - 1))


def _renormalised(law: Tensor, keep: Tensor) -> Tensor:
    kept = torch.where(keep | law.isnan(), law, 0.0)
    return kept / kept.sum(-1, keepdim=True)


def require_sound(law: Tensor, who: str) -> None:
    """Raise `BrokenLogits` if a row of `probabilities`' result, ``[..., V]``, is NaN.

    NaN spreads over its whole row, so one entry per row is looked at. ``who`` names the model in the message.
    """
    require_unbroken(law[..., 0].isnan(), who)


def require_unbroken(broken: Tensor, who: str) -> None:
    """Raise `BrokenLogits` if any of these rows is marked: of bool, of any shape."""
    if bool(broken.any()):
        raise BrokenLogits(
            f"the {who} returned NaN or infinite logits (or a row that is all -inf) in row "
            f"{broken.nonzero()[0].tolist()} of {list(broken.shape)}, so there is nothing to sample from. Often a "
            "float16 overflow: load the model with dtype='bfloat16' or 'float32', and check that its weights are whole."
        )


def draw(weights: Tensor, u: Tensor) -> Tensor:
    """One index per row, by inversion: ``[R, V]`` weights (not all 0, need not sum to 1), ``[R]`` u -> ``[R]``.

    The index is the first whose cumulative weight exceeds ``u`` times the total, so an index of weight 0 is not
    returned where cumulative sums never fall, as on a CPU. ``u`` lies in [0, 1 - 2^-52], as `uniforms` makes it:
    closer to 1 its product with the total could round up to the total, which no cumulative weight exceeds.

    Long rows are searched block by block first, then within one block; the index is the same up to rounding.
    """
    size = weights.shape[-1]
    if size < _LONG:
        return _inverted(weights, u)
    blocks = size // _BLOCK
    sums = weights[:, : blocks * _BLOCK].reshape(len(weights), blocks, _BLOCK).sum(-1)
    if blocks * _BLOCK < size:
        sums = torch.cat([sums, weights[:, blocks * _BLOCK :].sum(-1, keepdim=True)], dim=-1)
    block = _inverted(sums, u)
    cumulative = sums.cumsum(-1, dtype=torch.float64)
    end = cumulative.gather(-1, block.unsqueeze(-1)).squeeze(-1)
    begin = torch.where(block > 0, cumulative.gather(-1, (block - 1).clamp_min(0).unsqueeze(-1)).squeeze(-1), 0.0)
    share = ((u * cumulative[:, -1] - begin) / (end - begin)).clamp(0.0, 1.0 - 2.0**-52)
    index = block.unsqueeze(-1) * _BLOCK + torch.arange(_BLOCK, device=weights.device)
    within = weights.gather(-1, index.clamp_max(size - 1)).masked_fill_(index >= size, 0.0)
    return (block * _BLOCK + _inverted(within, share)).clamp_max(size - 1)


_LONG, _BLOCK = 4096, 128


def _inverted(weights: Tensor, u: Tensor) -> Tensor:
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    level = u.unsqueeze(-1) * cumulative[:, -1:]
    index = torch.searchsorted(cumulative, level, right=True).squeeze(-1)
    return index.clamp_max(weights.shape[-1] - 1)  # reached by a NaN row only, which `require_sound` reports


class Purpose(IntEnum):
    """What a uniform number is for; one lane of the counter each, so no two purposes ever share a number."""

    DRAFT = 0
    ACCEPT = 1
    EMIT = 2


def uniforms(seed: int, request: int, position: int, count: int) -> Tensor:
    """``[3, count]`` float64 in [0, 1 - 2^-52]: row `Purpose`, column i for the token at ``position + i``.

    Counter-based (Philox 4x64): the numbers of a position depend on (seed, request, position) alone. A position
    that is drafted again after a refusal meets the same numbers again; that is sound, because whatever was
    drafted behind a refusal was never examined and so has influenced nothing.
    """
    philox = np.random.Philox(
        key=np.array([seed, request], dtype=np.uint64), counter=np.array([position, 0, 0, 0], dtype=np.uint64)
    )
    words = np.asarray(philox.random_raw(4 * count)).reshape(count, 4)[:, : len(Purpose)]
    return torch.from_numpy(np.ascontiguousarray((words >> np.uint64(12)).T.astype(np.float64) * 2.0**-52))


class RandomStream:
    """`uniforms` of one request, made ahead in growing runs: the same numbers at a fraction of the cost."""

    def __init__(self, seed: int, request: int) -> None:
        self._seed = seed
        self._request = request
        self._made = torch.empty(len(Purpose), 0, dtype=torch.float64)

    def at(self, position: int, count: int) -> Tensor:
        """``[3, count]``, as `uniforms`."""
        made = self._made.shape[1]
        if position + count > made:
            more = max(64, made, position + count - made)
            self._made = torch.cat([self._made, uniforms(self._seed, self._request, made, more)], dim=1)
        return self._made[:, position : position + count]
