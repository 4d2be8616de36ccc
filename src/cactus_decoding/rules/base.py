"""What an acceptance rule is: two questions, and nothing else.

1. *With what probability is the drafted token n kept?* ``min(1, h(n) / p(n))``; the rule gives the working
   target ``h(n)`` from the scalars ``p(n)`` and ``q(n)``. Asked for every drafted position.
2. *From what weights is its replacement drawn after a refusal?* ``(w q - p)_+`` with one scalar ``w`` per
   refused row. Asked for refused rows alone, which are the only vocabulary rows ever touched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor


class Rule(ABC):
    """An acceptance rule. Rules are frozen dataclasses: compare, hash and print them freely."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """What it does, in one line."""
    guarantee: ClassVar[str]
    """What a user may rely on, in one honest line."""
    source: ClassVar[str]

    @property
    def lossless(self) -> bool:
        """Whether this rule, at its settings, emits exactly the verifier's law."""
        return False

    @abstractmethod
    def target(self, p_n: Tensor, q_n: Tensor) -> Tensor:
        """``h(n)``, elementwise and of any one shape. ``n`` is kept iff ``u p(n) < h(n)``; 0 wherever q(n) is 0."""

    @abstractmethod
    def recovery_scale(self, p: Tensor, q: Tensor, q_n: Tensor, h_n: Tensor) -> Tensor:
        """``w`` of the recovery weights ``(w q - p)_+``.

        ``p`` and ``q`` are rows ``[R, V]``, ``q_n`` and ``h_n`` are ``[R]`` (or broadcast with it: the induced
        law asks for every n of one row at once); the answer broadcasts with ``q_n``.
        """


def rest_scale(q_n: Tensor, h_n: Tensor) -> Tensor:
    """``(1 - h(n)) / (1 - q(n))``: what the tokens other than n are scaled by when n is raised to h(n).

    1 where q(n) is 1: there is no rest to scale then.
    """
    rest = 1.0 - q_n
    return torch.where(rest > 0.0, (1.0 - h_n) / rest.clamp_min(torch.finfo(rest.dtype).tiny), 1.0)


def recovery_weights(p: Tensor, q: Tensor, scale: Tensor, n: Tensor) -> Tensor:
    """``(w q - p)_+`` for refused rows: p, q ``[R, V]``, w and n ``[R]`` -> ``[R, V]``, never all zero or NaN.

    A refusal implies a positive sum; where rounding leaves none, the weights are ``q`` without ``n``.
    """
    weights = (scale.unsqueeze(-1) * q - p).clamp_min(0.0)
    without_n = q.scatter(-1, n.unsqueeze(-1), 0.0)
    return torch.where(weights.sum(-1, keepdim=True) > 0.0, weights, without_n)
