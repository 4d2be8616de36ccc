"""The law that a rule really emits at one examined position.

Because h depends on the drafted token, what is emitted follows none of the h's but

    law(x) = min(p, h)(x) + sum_n r_n g_n(x),    r_n = (p_n - h_n)_+,

with h_n the rule's target of token n and g_n the law it recovers from, nearly always
``(w_n q - p)_+ / Z_n`` with one scalar w_n.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cactus_decoding.errors import InvalidParameter
from cactus_decoding.rules.base import Rule, recovery_weights, scaled_weights


def acceptance(p: Tensor, q: Tensor, rule: Rule) -> Tensor:
    """``sum_n min(p(n), h(n))``, the probability that a drafted token is kept: ``[..., V] -> [...]``."""
    return torch.minimum(p, targets(p, q, rule)[0]).sum(-1)


def induced_law(p: Tensor, q: Tensor, rule: Rule) -> Tensor:
    """The law of the token that one examined position really emits: p, q ``[..., V] -> [..., V]``.

    Where w is one number per row this is one pass. Else token x takes part in n's recovery iff ``w_n > t_x`` with
    ``t_x = p_x / q_x``: with the refusable n sorted by w and every x put into its place among them, prefix sums of q
    and p give every Z_n, and suffix sums of ``r w / Z`` and ``r / Z`` give every x. Use float64 where 1e-12
    matters. `induced_law_by_definition` is the readable O(V^2) twin.

    Raises `InvalidParameter` for a rule that looks ahead: one position has no law then.
    """
    return law_of_targets(p, q, rule, *targets(p, q, rule))


def law_of_targets(p: Tensor, q: Tensor, rule: Rule, h: Tensor, s: Tensor | None) -> Tensor:
    """`induced_law`, from what `targets` gave."""
    kept, r = torch.minimum(p, h), (p - h).clamp_min(0.0)
    row = rule.recovery_row(p, q, None if s is None else s.squeeze(-2))
    if row is not None:
        return kept + _drawn_from(row, r, q)
    w = rule.recovery_scale(p.unsqueeze(-2), q.unsqueeze(-2), q, h, s)
    if w.shape[-1] == 1:
        return kept + _drawn_from((w * q - p).clamp_min(0.0), r, q)
    return kept + _recovered(p, q, r, w.expand_as(q))


def targets(p: Tensor, q: Tensor, rule: Rule) -> tuple[Tensor, Tensor | None]:
    """h of every token ``[..., V]``, p where h is not less, and the statistics ``[..., 1, S]`` it came from."""
    if rule.looks_ahead:
        raise InvalidParameter(
            f"{rule} decides with the tokens behind a position, so the position has no law of its own. Compare such a "
            "rule by its texts, or audit one that decides token by token."
        )
    s = rule.statistics(p, q)
    if s is not None or not rule.between:
        s = None if s is None else s.unsqueeze(-2)
        return rule.target(p, q, s), s
    doubtful = p > q  # the others are kept by the lossless rule already; a target may be dear to solve for
    h = p.clone()
    h[doubtful] = rule.target(p[doubtful], q[doubtful])
    return torch.where(q > 0.0, h, 0.0), None


def _drawn_from(weights: Tensor, r: Tensor, q: Tensor) -> Tensor:
    """What refusals r of any token add if all are replaced from the same weights, ``[..., V]`` each.

    Rows whose weights are all 0 are mended as `recovery_weights` mends them: q without n.
    """
    total = weights.sum(-1, keepdim=True)
    share = r / (1.0 - q).clamp_min(torch.finfo(q.dtype).tiny)
    mended = q * (share.sum(-1, keepdim=True) - share)
    return torch.where(total > 0.0, weights * (r.sum(-1, keepdim=True) / total), mended)


def _recovered(p: Tensor, q: Tensor, r: Tensor, w: Tensor) -> Tensor:
    """What refusals r add if that of n is replaced from ``(w_n q - p)_+``, ``[..., V]`` each."""
    count = int((r > 0.0).sum(-1).amax())
    if count == 0:
        return torch.zeros_like(q)
    r, refusable = r.topk(count, dim=-1)
    w, by_w = w.gather(-1, refusable).sort(-1)
    r = r.gather(-1, by_w)
    t = torch.where(q > 0.0, p / q, torch.inf)
    first = torch.searchsorted(w, t, right=True)  # from here on w_n is above t_x
    z = w * _prefix(q, first, count) - _prefix(p, first, count)
    share = torch.where((r > 0.0) & (z > 0.0), r / z, 0.0)
    recovered = q * _suffix_sums(share * w).gather(-1, first) - p * _suffix_sums(share).gather(-1, first)
    return torch.where(q > 0.0, recovered.clamp_min(0.0), 0.0)


def _prefix(x: Tensor, first: Tensor, count: int) -> Tensor:
    """``[..., count]``: the sum over those x that take part in each n, in the order of w."""
    bins = x.new_zeros(*x.shape[:-1], count + 1).scatter_add(-1, first, x)
    return bins[..., :count].cumsum(-1)


def _suffix_sums(x: Tensor) -> Tensor:
    """``[..., N] -> [..., N + 1]``: the sum of the entries from index k on at index k."""
    return torch.nn.functional.pad(x.flip(-1).cumsum(-1).flip(-1), (0, 1))


def induced_law_by_definition(p: Tensor, q: Tensor, rule: Rule) -> Tensor:
    """`induced_law` of one position ``[V]`` as its formula reads, in O(V^2): one recovery row per refusable token."""
    h, s = targets(p, q, rule)
    law, p_row, q_row = torch.minimum(p, h), p.unsqueeze(0), q.unsqueeze(0)
    for n in torch.nonzero(p > h).flatten().unbind():
        at = n.unsqueeze(0)
        weights = rule.recovery_row(p_row, q_row, s)
        if weights is None:
            weights = scaled_weights(p_row, q_row, rule.recovery_scale(p_row, q_row, q[at], h[at], s))
        weights = recovery_weights(weights, q_row, at).squeeze(0)
        law = law + (p[n] - h[n]) * weights / weights.sum()
    return law
