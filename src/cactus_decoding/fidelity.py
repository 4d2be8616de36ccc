"""How far what is emitted strays from the verifier.

Two meters. The *relaxed count* is free: the share of examined tokens that the lossless rule with the same u
would have refused estimates the total variation between the emitted law and q, exactly in expectation, for
every rule whose law lies between p and q. The *induced law* is exact: because h depends on the drafted token,
what is emitted follows none of the h's but

    law(x) = min(p, h)(x) + sum_n r_n (w_n q - p)_+(x) / Z_n,
    r_n = (p_n - h_n)_+,  Z_n = sum_x (w_n q - p)_+(x),

with h_n the rule's target of token n and w_n its recovery scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cactus_decoding.divergences import DIVERGENCES
from cactus_decoding.rules.base import Rule, recovery_weights
from cactus_decoding.verify import Verdict


def relaxed_share(verdict: Tensor) -> float:
    """Relaxed over examined tokens of `Verdicts.verdict`; NaN if nothing was examined."""
    relaxed = int((verdict == Verdict.RELAXED).sum())
    examined = relaxed + int(((verdict == Verdict.KEPT) | (verdict == Verdict.REFUSED)).sum())
    return relaxed / examined if examined else float("nan")


def acceptance(p: Tensor, q: Tensor, rule: Rule) -> Tensor:
    """``sum_n min(p(n), h(n))``, the probability that a drafted token is kept: ``[..., V] -> [...]``."""
    return torch.minimum(p, rule.target(p, q)).sum(-1)


def induced_law(p: Tensor, q: Tensor, rule: Rule) -> Tensor:
    """The law of the token that one examined position really emits: p, q ``[V] -> [V]``, in O(V log V).

    Token x takes part in n's recovery iff ``w_n > t_x`` with ``t_x = p_x / q_x``. Sorted by t, prefix sums of q
    and p give every Z_n; sorted by w, suffix sums of ``r w / Z`` and ``r / Z`` give every x. Use float64 where
    1e-12 matters. `induced_law_by_definition` is the readable O(V^2) twin.
    """
    h = rule.target(p, q)
    w = rule.recovery_scale(p.unsqueeze(0), q.unsqueeze(0), q, h).expand_as(q).contiguous()
    r = (p - h).clamp_min(0.0)
    t = torch.where(q > 0.0, p / q, torch.inf)
    t_sorted, order = t.sort()
    taking_part = torch.searchsorted(t_sorted, w)  # [V] how many t are strictly below w_n
    z = w * _prefix_sums(q[order])[taking_part] - _prefix_sums(p[order])[taking_part]
    share = torch.where((r > 0.0) & (z > 0.0), r / z, 0.0)
    w_sorted, by_w = w.sort()
    first = torch.searchsorted(w_sorted, t, right=True)  # [V] from here on w_n is above t_x
    recovered = q * _suffix_sums((share * w)[by_w])[first] - p * _suffix_sums(share[by_w])[first]
    return torch.minimum(p, h) + torch.where(q > 0.0, recovered.clamp_min(0.0), 0.0)


def induced_law_by_definition(p: Tensor, q: Tensor, rule: Rule) -> Tensor:
    """`induced_law` as its formula reads, in O(V^2): one recovery row per token that can be refused."""
    h = rule.target(p, q)
    law = torch.minimum(p, h)
    for n in torch.nonzero(p > h).flatten().unbind():
        row = n.unsqueeze(0)
        scale = rule.recovery_scale(p.unsqueeze(0), q.unsqueeze(0), q[row], h[row])
        weights = recovery_weights(p.unsqueeze(0), q.unsqueeze(0), scale, row).squeeze(0)
        law = law + (p[n] - h[n]) * weights / weights.sum()
    return law


@dataclass(frozen=True, slots=True)
class Fidelity:
    """One position, exactly: how often its drafted token is kept, and how far its emitted law is from q."""

    acceptance: float
    lossless_acceptance: float
    tv: float
    kl: float


def measure(p: Tensor, q: Tensor, rule: Rule) -> Fidelity:
    """`Fidelity` of one position from its two laws ``[V]``; TV(law, q) and KL(law || q) in nats."""
    law = induced_law(p, q, rule)
    return Fidelity(
        acceptance=float(acceptance(p, q, rule)),
        lossless_acceptance=float(torch.minimum(p, q).sum()),
        tv=float(DIVERGENCES["tv"].value(law, q)),
        kl=float(DIVERGENCES["kl"].value(law, q)),
    )


def _prefix_sums(x: Tensor) -> Tensor:
    """``[V] -> [V + 1]``: the sum of the first k entries at index k."""
    return torch.cat([x.new_zeros(1), x.cumsum(0)])


def _suffix_sums(x: Tensor) -> Tensor:
    """``[V] -> [V + 1]``: the sum of the entries from index k on at index k."""
    return _prefix_sums(x.flip(0)).flip(0)
