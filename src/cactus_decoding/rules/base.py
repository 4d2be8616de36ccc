"""What an acceptance rule is: two questions, and nothing else.

1. *With what probability is the drafted token n kept?* ``min(1, h(n) / p(n))``; the rule gives the working
   target ``h(n)`` from the scalars ``p(n)`` and ``q(n)`` and, only if it says so, from a few statistics of whole
   rows, such as an entropy. Asked for every drafted position.
2. *From what weights is its replacement drawn after a refusal?* Nearly always ``(w q - p)_+`` with one scalar ``w``
   per refused row. Asked for refused rows alone; of rules without statistics these are the only vocabulary rows
   ever touched.

One thing is the same for all, even where a paper has it otherwise: a token to which the verifier, after its filters
and masks, gives probability 0 is never kept.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from numbers import Integral, Real
from typing import ClassVar

import torch
from torch import Tensor

from cactus_decoding.errors import InvalidParameter


class Rule(ABC):
    """An acceptance rule. Rules are frozen dataclasses: compare, hash and print them freely."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """What it does, in one line."""
    guarantee: ClassVar[str]
    """What a user may rely on, in one honest line."""
    source: ClassVar[str]
    reads_drafter: ClassVar[bool] = False
    """Whether it asks how sure the drafter is, which a drafter of certain tokens (prompt lookup) cannot say."""

    looks_ahead: ClassVar[bool] = False
    """Whether what becomes of a token depends on those behind it. Then one position has no law of its own."""

    @property
    def lossless(self) -> bool:
        """Whether this rule, at its settings, emits exactly the verifier's law."""
        return False

    @property
    def between(self) -> bool:
        """Whether every emitted probability lies between p's and q's.

        Then acceptance is that of the lossless rule plus the total variation from q, exactly, and the share of
        relaxed tokens among examined ones estimates that total variation.
        """
        return True

    def statistics(self, p: Tensor, q: Tensor) -> Tensor | None:
        """What `target` must know of whole rows, ``[..., V], [..., V] -> [..., S]``; None: nothing."""
        return None

    @abstractmethod
    def target(self, p_n: Tensor, q_n: Tensor, s: Tensor | None = None) -> Tensor:
        """``h(n)``, elementwise and of any one shape. ``n`` is kept iff ``u p(n) < h(n)``; 0 wherever q(n) is 0.

        ``s`` are the `statistics` of the rows, ``[..., S]`` with leading dimensions that broadcast with ``p_n``.
        """

    def reconsider(self, keep: Tensor, q_n: Tensor, s: Tensor | None, lengths: Tensor) -> Tensor:
        """Which refused tokens stand after all, seeing the whole block: of bool ``[B, m]``; none, by default.

        ``keep`` ``[B, m]`` is what `target` alone decides, places beyond ``lengths`` ``[B]`` are padding.
        """
        return torch.zeros_like(keep)

    def recovery_scale(self, p: Tensor, q: Tensor, q_n: Tensor, h_n: Tensor, s: Tensor | None = None) -> Tensor:
        """``w`` of the recovery weights ``(w q - p)_+``; 1 for the rules that recover as the lossless one does.

        ``p`` and ``q`` are rows ``[..., V]`` and ``s`` their `statistics`; their leading dimensions broadcast with
        ``q_n`` and ``h_n``, and so does the answer. (The induced law asks for every n of a row at once: ``[1, V]``,
        ``[1, S]`` and ``[V]``.)
        """
        return q.new_ones(q.shape[:-1])

    def recovery_row(self, p: Tensor, q: Tensor, s: Tensor | None = None) -> Tensor | None:
        """Recovery weights ``[..., V]`` of rules that have others than ``(w q - p)_+``; they do not depend on n."""
        return None


def rest_scale(q_n: Tensor, h_n: Tensor) -> Tensor:
    """``(1 - h(n)) / (1 - q(n))``: what the tokens other than n are scaled by when n is raised to h(n).

    1 where q(n) is 1: there is no rest to scale then.
    """
    rest = 1.0 - q_n
    return torch.where(rest > 0.0, (1.0 - h_n) / rest.clamp_min(torch.finfo(rest.dtype).tiny), 1.0)


def where_possible(h_n: Tensor, q_n: Tensor) -> Tensor:
    """``h(n)``, but 0 where the verifier excludes n."""
    return torch.where(q_n > 0.0, h_n, 0.0)


def recovery_weights(weights: Tensor, q: Tensor, n: Tensor) -> Tensor:
    """Weights ``[R, V]`` of refused tokens ``n [R]``, mended where all of a row are 0.

    A refusal implies a positive sum; where rounding leaves none, the weights are ``q`` without ``n``.
    """
    without_n = q.scatter(-1, n.unsqueeze(-1), 0.0)
    return torch.where(weights.sum(-1, keepdim=True) > 0.0, weights, without_n)


def scaled_weights(p: Tensor, q: Tensor, scale: Tensor) -> Tensor:
    """``(w q - p)_+``: p, q ``[R, V]``, w ``[R]`` -> ``[R, V]``."""
    return (scale.unsqueeze(-1) * q - p).clamp_min(0.0)


def require_within(name: str, value: object, least: float, most: float | None, hint: str) -> None:
    """Raise `InvalidParameter`, with the range and the value, unless this is a finite number in the range."""
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:  # a whole number beyond all floats
        number = math.inf
    if not (math.isfinite(number) and number >= least and (most is None or number <= most)):
        bounds = f"of at least {least:g}" if most is None else f"from {least:g} to {most:g}"
        raise InvalidParameter(f"{name} is {value!r}, but must be a finite number {bounds} ({hint}).")


def require_whole(name: str, value: object, least: int, hint: str) -> None:
    """Raise `InvalidParameter`, with the range and the value, unless this is a whole number of at least ``least``."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise InvalidParameter(f"{name} is {value!r}, but must be a whole number of at least {least} ({hint}).")


def require_one_of(name: str, value: object, choices: Sequence[object]) -> None:
    """Raise `InvalidParameter`, with the choices and the value, unless this is one of them."""
    if value not in choices:
        raise InvalidParameter(f"{name} is {value!r}, which is none of {', '.join(map(str, choices))}.")
