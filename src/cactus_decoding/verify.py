"""Algorithm 1 for a batch of blocks: which drafted tokens are kept, and what is emitted after them.

Going left to right, token n is kept iff ``u p(n) < h(n)`` (strictly, so a token of h(n) = 0 is never kept). At
the first refusal one token is drawn from the rule's recovery weights; if nothing was refused, one bonus token
is drawn from q behind the block. Deciding reads p(n) and q(n) only; one vocabulary row per sequence is touched,
the one the emitted token comes from, and h is never built.

A response may have a budget of relaxed tokens. From the position on at which it is spent, h is q: the positions
behind it are examined as the lossless rule examines them, in the same block already.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from cactus_decoding.errors import InvalidParameter
from cactus_decoding.rules.base import Rule, recovery_weights
from cactus_decoding.sampling import draw, require_sound


class Verdict(IntEnum):
    """What became of one drafted token. Every drafted token has exactly one verdict."""

    KEPT = 0
    """Kept, and the lossless rule with the same u would have kept it too."""
    RELAXED = 1
    """Kept only thanks to the rule: ``q(n) <= u p(n) < h(n)``."""
    REFUSED = 2
    UNEXAMINED = 3
    """Behind a refusal."""
    IGNORED = 4
    """Kept or refused behind the end of the response (given by the engine, which knows the stops)."""
    ABSENT = 5
    """No token: the padding of a block shorter than the batch's longest."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What `verify` decided: the batched event record. B sequences, up to m drafted tokens each."""

    draft: Tensor  # [B, m] the drafted ids
    p_n: Tensor  # [B, m] their probabilities under the drafter
    q_n: Tensor  # [B, m] and under the verifier
    h_n: Tensor  # [B, m] and under the working target
    u: Tensor  # [B, m] the uniform numbers they were examined with
    verdict: Tensor  # [B, m] of Verdict, int8
    kept: Tensor  # [B] how many were kept, relaxed ones included
    emitted: Tensor  # [B] the id drawn after them
    q_emitted: Tensor  # [B] its probability under the verifier, at its own position
    h_emitted: Tensor  # [B] and under the working target there
    bonus: Tensor  # [B] of bool: drawn from q after a whole block, not in recovery from a refusal


def verify(
    draft: Tensor,
    p: Tensor | None,
    q: Tensor,
    rule: Rule,
    u: Tensor,
    u_emit: Tensor,
    lengths: Tensor | None = None,
    relaxed_left: Tensor | None = None,
) -> Verdicts:
    """Examine one block per sequence.

    Args:
        draft: ``[B, m]`` drafted ids; m may be 0.
        p: ``[B, m, V]`` the laws they were drawn from, or None where each was certain (a point mass).
        q: ``[B, m + 1, V]`` the verifier's laws at the drafted positions and the one behind them.
        rule: the acceptance rule.
        u: ``[B, m]`` uniform numbers in [0, 1) for the decisions.
        u_emit: ``[B, m + 1]`` and for the emitted token, by the position where it falls.
        lengths: ``[B]`` how many tokens of each row of ``draft`` are real; all of them by default.
        relaxed_left: ``[B]`` how many more relaxed tokens each response may have; no limit by default.

    Raises:
        BrokenLogits: a row of p or q is NaN.
        InvalidParameter: the shapes do not fit each other.
    """
    _require_shapes(draft, p, q, u, u_emit)
    if p is not None:
        require_sound(p, "drafter")
    require_sound(q, "verifier")
    batch, m = draft.shape
    n = draft.unsqueeze(-1)
    q_n = q[:, :m].gather(-1, n).squeeze(-1)
    p_n = torch.ones_like(q_n) if p is None else p.gather(-1, n).squeeze(-1)
    needed = u * p_n
    h_n = rule.target(p_n, q_n)
    spent = None if relaxed_left is None else _spent(needed, q_n, h_n, relaxed_left)
    if spent is not None:
        h_n = torch.where(spent, q_n, h_n)
    places = torch.arange(m, device=draft.device)
    lengths = torch.full((batch,), m, device=draft.device) if lengths is None else lengths
    keep = (needed < h_n) & (places < lengths.unsqueeze(-1))
    kept = keep.cumprod(-1).sum(-1)
    bonus = kept == lengths
    emitted = _emit(draft, p, q, rule, kept, bonus, (q_n, h_n), spent, u_emit)
    verdict = (needed >= q_n).to(torch.int8)  # KEPT or RELAXED
    verdict.masked_fill_(places == kept.unsqueeze(-1), int(Verdict.REFUSED))
    verdict.masked_fill_(places > kept.unsqueeze(-1), int(Verdict.UNEXAMINED))
    verdict.masked_fill_(places >= lengths.unsqueeze(-1), int(Verdict.ABSENT))
    return Verdicts(draft, p_n, q_n, h_n, u, verdict, kept, *emitted, bonus)


def _spent(needed: Tensor, q_n: Tensor, h_n: Tensor, relaxed_left: Tensor) -> Tensor:
    """``[B, m]`` of bool: whether the places before one, if all are kept, leave nothing of the budget."""
    relaxed = ((needed < h_n) & (needed >= q_n)).to(torch.int64)
    return relaxed.cumsum(-1) - relaxed >= relaxed_left.unsqueeze(-1)


def _emit(
    draft: Tensor,
    p: Tensor | None,
    q: Tensor,
    rule: Rule,
    kept: Tensor,
    bonus: Tensor,
    scalars: tuple[Tensor, Tensor],
    spent: Tensor | None,
    u_emit: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """One id per sequence, from the row behind its last kept token, with its q and its h there: ``[B]`` each."""
    rows = torch.arange(draft.shape[0], device=draft.device)
    q_rows = q[rows, kept]  # [B, V]
    weights, scales = q_rows, torch.ones_like(q_rows[:, 0])
    refused = rows[~bonus]
    if refused.numel() > 0:
        place = kept[refused]
        n = draft[refused, place]
        q_n, h_n = (scalar[refused, place] for scalar in scalars)
        q_row = q_rows[refused]
        p_row = torch.zeros_like(q_row).scatter(-1, n.unsqueeze(-1), 1.0) if p is None else p[refused, place]
        scale = rule.recovery_scale(p_row, q_row, q_n, h_n)
        if spent is not None:
            scale = torch.where(spent[refused, place], 1.0, scale)
        weights = q_rows.clone()
        weights[refused] = recovery_weights(p_row, q_row, scale, n).to(weights.dtype)  # p may be the wider one
        scales[refused] = scale.to(scales.dtype)
    emitted = draw(weights, u_emit[rows, kept])
    q_emitted = q_rows[rows, emitted]
    return emitted, q_emitted, scales * q_emitted


def _require_shapes(draft: Tensor, p: Tensor | None, q: Tensor, u: Tensor, u_emit: Tensor) -> None:
    batch, m = draft.shape
    vocabulary = q.shape[-1]
    wanted = {"q": (q, (batch, m + 1, vocabulary)), "u": (u, (batch, m)), "u_emit": (u_emit, (batch, m + 1))}
    if p is not None:
        wanted["p"] = (p, (batch, m, vocabulary))
    for name, (given, shape) in wanted.items():
        if tuple(given.shape) != shape:
            raise InvalidParameter(
                f"{name} has shape {list(given.shape)}, but a draft of shape {[batch, m]} with {vocabulary} "
                f"tokens in the vocabulary needs {list(shape)}."
            )
