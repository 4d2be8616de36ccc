"""Algorithm 1 for a batch of blocks: which drafted tokens are kept, and what is emitted after them.

Going left to right, token n is kept iff ``u p(n) < h(n)`` (strictly, so a token of h(n) = 0 is never kept). At
the first refusal one token is drawn from the rule's recovery weights; if nothing was refused, one bonus token
is drawn from q behind the block. Deciding reads p(n) and q(n) only; one vocabulary row per sequence is touched,
the one the emitted token comes from, and h is never built.

A response may have a budget of relaxed tokens. From the position on at which it is spent, h is q: the positions
behind it are examined as the lossless rule examines them, in the same block already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from cactus_decoding.block import longest_prefix
from cactus_decoding.errors import InvalidParameter
from cactus_decoding.rules.base import Rule, recovery_weights, scaled_weights
from cactus_decoding.sampling import draw, require_sound

Place = tuple[Tensor, Tensor]
"""Rows and places in them, ``[R]`` each: an index into ``[B, m, ...]``."""


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
    block: bool = False,
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
        block: decide for whole blocks, losslessly; see `cactus_decoding.block`.

    Raises:
        BrokenLogits: a row of p or q is NaN.
        InvalidParameter: the shapes do not fit each other, or the rule the drafts or ``block``.
    """
    _require_shapes(draft, p, q, u, u_emit)
    if p is not None:
        require_sound(p, "drafter")
    require_sound(q, "verifier")
    batch, m = draft.shape
    require_fitting(rule, certain=p is None and m > 0, block=block)
    lengths = torch.full((batch,), m, device=draft.device) if lengths is None else lengths
    given = _Block(draft, p, q, lengths)
    return _examine_block(given, u, u_emit) if block else _examine(given, rule, u, u_emit, relaxed_left)


def require_fitting(rule: Rule, certain: bool, block: bool = False) -> None:
    """Raise `InvalidParameter` if the rule asks certain drafts how sure they are, or cannot be decided by block."""
    if rule.reads_drafter and certain:
        raise InvalidParameter(
            f"{rule} reads how sure the drafter is, but these drafts are certain by construction (prompt lookup, an "
            "n-gram), so it would trust all of them. Draft with a model, or choose a rule such as Cactus(0.25)."
        )
    if block and not rule.lossless:
        raise InvalidParameter(
            f"block verification is lossless, but the rule is {rule}. Leave block out, or choose Lossless()."
        )


def _examine(block: _Block, rule: Rule, u: Tensor, u_emit: Tensor, relaxed_left: Tensor | None) -> Verdicts:
    """Token by token."""
    needed = u * block.p_n
    s = block.statistics(rule)
    h_n = rule.target(block.p_n, block.q_n, s)
    if rule.looks_ahead:  # what stands after all is kept for certain
        native = (needed < h_n) & block.real
        h_n = torch.where(rule.reconsider(native, block.q_n, s, block.lengths), 1.0, h_n)
    spent = torch.zeros_like(block.real) if relaxed_left is None else _spent(needed, block.q_n, h_n, relaxed_left)
    h_n = torch.where(spent, block.q_n, h_n)
    kept = ((needed < h_n) & block.real).cumprod(-1).sum(-1)

    def recover(at: Place) -> tuple[Tensor, Tensor]:
        return _recover(block, at, rule, h_n[at], None if s is None else s[at], spent[at])

    emitted, bonus = block.emit(kept, recover, u_emit), kept == block.lengths
    verdict = block.verdicts(kept, relaxed=needed >= block.q_n)
    return Verdicts(block.draft, block.p_n, block.q_n, h_n, u, verdict, kept, *emitted, bonus)


def _examine_block(block: _Block, u: Tensor, u_emit: Tensor) -> Verdicts:
    """Whole blocks, losslessly: see `cactus_decoding.block`."""
    kept, w = longest_prefix(block.p_n, block.q_n, block.residual, u, block.lengths)

    def recover(at: Place) -> tuple[Tensor, Tensor]:
        q = block.q[at]
        return recovery_weights(scaled_weights(block.p_rows(at), q, w[at[0]]), q, block.draft[at]), q

    emitted, bonus = block.emit(kept, recover, u_emit), kept == block.lengths
    verdict = block.verdicts(kept, relaxed=torch.zeros_like(block.real))
    return Verdicts(block.draft, block.p_n, block.q_n, block.q_n, u, verdict, kept, *emitted, bonus)


def _recover(
    block: _Block, at: Place, rule: Rule, h_n: Tensor, s: Tensor | None, lossless: Tensor
) -> tuple[Tensor, Tensor]:
    """Weights to draw from and the working target, ``[R, V]`` each, of refused places."""
    p, q = block.p_rows(at), block.q[at]
    row = rule.recovery_row(p, q, s)
    scale = rule.recovery_scale(p, q, block.q_n[at], h_n, s)
    scale = torch.where(lossless, 1.0, scale)
    weights, h = scaled_weights(p, q, scale), scale.unsqueeze(-1) * q
    if row is not None:  # such a rule has no target but the law it recovers from
        chosen = ~lossless.unsqueeze(-1)
        weights, h = torch.where(chosen, row, weights), torch.where(chosen, row / row.sum(-1, keepdim=True), h)
    return recovery_weights(weights, q, block.draft[at]), h


def _spent(needed: Tensor, q_n: Tensor, h_n: Tensor, relaxed_left: Tensor) -> Tensor:
    """``[B, m]`` of bool: whether the places before one, if all are kept, leave nothing of the budget."""
    relaxed = ((needed < h_n) & (needed >= q_n)).to(torch.int64)
    return relaxed.cumsum(-1) - relaxed >= relaxed_left.unsqueeze(-1)


class _Block:
    """The drafted ids of a batch with their laws."""

    def __init__(self, draft: Tensor, p: Tensor | None, q: Tensor, lengths: Tensor) -> None:
        self.draft, self.p, self.q, self.lengths = draft, p, q, lengths
        m, n = draft.shape[1], draft.unsqueeze(-1)
        self.places = torch.arange(m, device=draft.device)
        self.real = self.places < lengths.unsqueeze(-1)
        self.q_n = q[:, :m].gather(-1, n).squeeze(-1)
        self.p_n = torch.ones_like(self.q_n) if p is None else p.gather(-1, n).squeeze(-1)

    def statistics(self, rule: Rule) -> Tensor | None:
        """``[B, m, S]``; whole rows are read only if the rule has any."""
        if type(rule).statistics is Rule.statistics:
            return None
        q = self.q[:, : self.draft.shape[1]]
        return rule.statistics(_one_hot(self.draft, q) if self.p is None else self.p, q)

    def residual(self, w: Tensor) -> Tensor:
        """``sum (w q - p)_+`` at each place, ``[B, m] -> [B, m]``."""
        q = self.q[:, : self.draft.shape[1]]
        if self.p is None:
            return w * (1.0 - self.q_n)
        return (w.unsqueeze(-1) * q - self.p).clamp_min(0.0).sum(-1)

    def p_rows(self, at: Place) -> Tensor:
        """``[R, V]``."""
        return _one_hot(self.draft[at], self.q[at]) if self.p is None else self.p[at]

    def emit(
        self, kept: Tensor, recover: Callable[[Place], tuple[Tensor, Tensor]], u_emit: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One id per sequence, from the row behind its last kept token, with its q and its h there: ``[B]`` each."""
        rows = torch.arange(len(kept), device=kept.device)
        q_rows = self.q[rows, kept]  # [B, V]
        weights, h_rows = q_rows, q_rows
        refused = rows[kept < self.lengths]
        if refused.numel() > 0:
            weights, h_rows = q_rows.clone(), q_rows.clone()
            found = recover((refused, kept[refused]))
            weights[refused], h_rows[refused] = (x.to(q_rows.dtype) for x in found)  # p may be the wider one
        emitted = draw(weights, u_emit[rows, kept])
        return emitted, q_rows[rows, emitted], h_rows[rows, emitted]

    def verdicts(self, kept: Tensor, relaxed: Tensor) -> Tensor:
        """``[B, m]`` of `Verdict`, from how many are kept and which of them count as relaxed."""
        kept = kept.unsqueeze(-1)
        verdict = relaxed.to(torch.int8)  # KEPT or RELAXED
        verdict.masked_fill_(self.places == kept, int(Verdict.REFUSED))
        verdict.masked_fill_(self.places > kept, int(Verdict.UNEXAMINED))
        return verdict.masked_fill_(~self.real, int(Verdict.ABSENT))


def _one_hot(ids: Tensor, like: Tensor) -> Tensor:
    """Point masses at ``ids [...]``, in rows like ``[..., V]``."""
    return torch.zeros_like(like).scatter(-1, ids.unsqueeze(-1), 1.0)


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
