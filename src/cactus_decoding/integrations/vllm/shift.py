"""A rule as a shift of one logit per drafted token (theory.md §1).

h is q with ``logit(gamma) - logit(q(n))`` added to the drafted token's logit, so an engine that samples losslessly from
what it takes for the verifier's logits becomes one that follows h.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cactus_decoding.divergences import DIVERGENCES
from cactus_decoding.integrations.vllm.relaxation import Relaxation

_UNBOUNDED = 1e300
"""A budget that raises every token to 1, finite so that it stays a number beside a factor of 0."""
_CACHED = 2**19
"""Logits whose exponentials fit into a CPU's cache."""
_SMALL = 2**25
"""Logits that take 128 MiB."""
_NEARLY_ONE = 1.0 - 1e-12
"""The gamma that stands for 1, whose logit is infinite. In float32 the token then has all of the law."""


@dataclass(frozen=True, slots=True)
class Dials:
    """What `raised` reads, one entry per request or per row, float64; see `Relaxation`."""

    delta: Tensor
    ceiling: Tensor
    exact: Tensor
    """Booleans: whether the budget is kept to exactly."""
    solved: bool
    """Whether any is."""

    @classmethod
    def of(cls, relaxations: Sequence[Relaxation | None], device: torch.device) -> Dials:
        """One entry per request; None is lossless."""
        rows = [
            (0.0, 1.0, 0.0) if r is None else (min(r.delta, _UNBOUNDED), r.ceiling, float(r.exact)) for r in relaxations
        ]
        delta, ceiling, exact = torch.tensor(rows, dtype=torch.float64).to(device, non_blocking=True).unbind(1)
        return cls(delta, ceiling, exact > 0.0, any(row[2] for row in rows))

    def rows(self, owner: Tensor, open_: Tensor) -> Dials:
        """One entry per row, of its request ``owner [N]``; lossless where ``open_ [N]`` is False."""
        return Dials(
            torch.where(open_, self.delta[owner], 0.0),
            torch.where(open_, self.ceiling[owner], 1.0),
            self.exact[owner],
            self.solved,
        )


@dataclass(frozen=True, slots=True)
class Lift:
    """What becomes of the drafted tokens of one verification, all ``[N]``."""

    q: Tensor
    gamma: Tensor
    logit: Tensor
    lifted: Tensor


def raised(q: Tensor, dials: Dials) -> Tensor:
    """gamma of q(n), elementwise: ``min(1, q + sqrt(2 delta q (1 - q)), ceiling q)``, or the exact root for the second.

    `Cactus.target` and `BoundedRatio.target` are the readable twins, for one rule at a time.
    """
    gamma = (q + torch.sqrt(2.0 * dials.delta * q * (1.0 - q))).clamp_max(1.0)
    if dials.solved:
        budget = torch.where(dials.exact, dials.delta, 0.0)  # entries without one cost nothing
        gamma = torch.where(dials.exact, DIVERGENCES["kl"].raise_exact(q, budget), gamma)
    # fmin, because no ceiling times a q of 0 is NaN, which bounds nothing
    return torch.maximum(torch.fmin(gamma, dials.ceiling * q), q)


def lift(logits: Tensor, n: Tensor, dials: Dials) -> Lift:
    """The drafted tokens' probabilities, and their logits as they are and as they must be for h.

    Args:
        logits: ``[N, V]``, as the engine is about to sample from: after temperature, penalties, masks and filters.
        n: ``[N]`` drafted tokens; negative where a row has none.
        dials: ``[N]``.

    A token that is excluded (logit of -inf), certain, or not drafted keeps its logit. So does one of a broken row.
    """
    logit = logits.gather(1, n.clamp_min(0).unsqueeze(1)).squeeze(1)
    log_q = logit.double() - log_total(logits).double()
    q = log_q.exp().clamp_max(1.0)
    q = torch.where((n >= 0) & (q > 0.0), q, 0.0)
    gamma = raised(q, dials)
    by = torch.logit(gamma.clamp_max(_NEARLY_ONE)) - torch.logit(q.clamp_max(_NEARLY_ONE))
    moved = (gamma > q) & (q < 1.0)
    lifted = torch.where(moved, logit.double() + by, logit.double()).to(logits.dtype)
    return Lift(q, gamma, logit, torch.where(moved, lifted, logit))


def log_total(logits: Tensor) -> Tensor:
    """``logsumexp`` of each row: ``[N, V] -> [N]``, the one pass over the vocabulary."""
    size = rows_at_a_time(logits.shape[1], logits.device)
    return torch.cat([torch.logsumexp(rows, 1) for rows in torch.split(logits, size)])


def rows_at_a_time(vocabulary: int, device: torch.device) -> int:
    """So many that what torch writes in between stays in a CPU's cache, three times as fast, or small on a GPU."""
    return max(1, (_CACHED if device.type == "cpu" else _SMALL) // vocabulary)


def write(logits: Tensor, n: Tensor, values: Tensor) -> None:
    """Set the drafted tokens' logits, in place."""
    logits.scatter_(1, n.clamp_min(0).unsqueeze(1), values.unsqueeze(1))
