"""How far what is emitted strays from the verifier.

Two meters. The *relaxed count* is free: the share of examined tokens that the lossless rule with the same u
would have refused estimates the total variation between the emitted law and q, exactly in expectation, for
every rule whose law lies between p and q. The divergences of the *induced law* (`cactus_decoding.induced`) are exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

import torch
from torch import Tensor

from cactus_decoding.divergences import DIVERGENCES
from cactus_decoding.induced import law_of_targets, targets
from cactus_decoding.rules.base import Rule
from cactus_decoding.verify import Verdict

_SPARSE = 0.25  # share of columns in use below which the others are left out


@dataclass(frozen=True, slots=True)
class Fidelity:
    """One position, exactly: how often its drafted token is kept, and how far its emitted law is from q.

    Divergences in nats, but for total variation and chi-square; infinite where the emitted law has, or lacks, a token
    that they do not forgive.
    """

    acceptance: float
    """``sum_n min(p, h)(n)``."""
    lossless_acceptance: float
    """``sum_n min(p, q)(n)``."""
    tv: float
    kl: float
    """``KL(law || q)``."""
    reverse_kl: float
    """``KL(q || law)``."""
    chi2: float
    js: float
    renyi: float
    """Of order infinity: ``ln max law(x) / q(x)``."""

    def to_dict(self) -> dict[str, float | None]:
        """For JSON, which has no number for infinity: None there."""
        return {name: value if math.isfinite(value) else None for name, value in asdict(self).items()}


FIGURES = tuple(field.name for field in fields(Fidelity))
"""The columns of `measure_rows`."""


def relaxed_share(verdict: Tensor) -> float:
    """Relaxed over examined tokens of `Verdicts.verdict`; NaN if nothing was examined."""
    relaxed = int((verdict == Verdict.RELAXED).sum())
    examined = relaxed + int(((verdict == Verdict.KEPT) | (verdict == Verdict.REFUSED)).sum())
    return relaxed / examined if examined else float("nan")


def measure(p: Tensor, q: Tensor, rule: Rule) -> Fidelity:
    """`Fidelity` of one position from its two laws ``[V]``."""
    return Fidelity(*measure_rows(p.unsqueeze(0), q.unsqueeze(0), rule)[0].tolist())


def measure_rows(p: Tensor, q: Tensor, rule: Rule, figures: Sequence[str] = FIGURES) -> Tensor:
    """Figures of `Fidelity` for many positions, float64 inside: ``[R, V], [R, V] -> [R, len(figures)]``."""
    p, q = (x.double() for x in _without_idle_columns(p, q))
    h, s = targets(p, q, rule)
    law = law_of_targets(p, q, rule, h, s)
    return torch.stack([_figure(name, p, q, h, law) for name in figures], dim=-1)


def _figure(name: str, p: Tensor, q: Tensor, h: Tensor, law: Tensor) -> Tensor:
    """One figure of `Fidelity`, ``[R]``."""
    if name == "acceptance":
        return torch.minimum(p, h).sum(-1)
    if name == "lossless_acceptance":
        return torch.minimum(p, q).sum(-1)
    if name == "renyi":
        return torch.where(law > 0.0, law / q, 0.0).amax(-1).log().clamp_min(0.0)
    return DIVERGENCES[name.replace("_", "-")].value(law, q)


def _without_idle_columns(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Rows without the tokens that neither law has, where these are most: filters leave a few of the vocabulary."""
    used = ((p > 0.0) | (q > 0.0)).any(0).nonzero().squeeze(-1)
    return (p[:, used], q[:, used]) if len(used) < _SPARSE * p.shape[-1] else (p, q)
