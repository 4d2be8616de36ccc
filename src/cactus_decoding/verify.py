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
from dataclasses import dataclass, replace
from enum import IntEnum

import torch
from torch import Tensor

from cactus_decoding.block import longest_prefix
from cactus_decoding.errors import InvalidParameter
from cactus_decoding.held import DenseLaws, Laws, Place, held, of_drafts, row_sums
from cactus_decoding.induced import induced_law
from cactus_decoding.rules.base import Rule, recovery_weights
from cactus_decoding.sampling import draw, require_unbroken

Recovery = tuple[Tensor, Callable[[Tensor], Tensor]]
"""Weights ``[R, S]`` to draw from at refused places, and the working target there of what was drawn: ``[R] -> [R]``."""


class Verdict(IntEnum):
    """What became of one drafted token. Every drafted token has exactly one verdict."""

    KEPT = 0
    """Kept, and the lossless rule with the same u would have kept it too."""
    RELAXED = 1
    """Kept only thanks to the rule: ``q(n) <= u p(n) < h(n)``; by blocks, with probability ``1 - q(n) / h(n)``."""
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
    h_n: Tensor  # [B, m] and under the working target; by whole blocks, under the law that the rule emits
    u: Tensor  # [B, m] the uniform numbers they were examined with
    verdict: Tensor  # [B, m] of Verdict, int8
    kept: Tensor  # [B] how many were kept, relaxed ones included
    emitted: Tensor  # [B] the id drawn after them
    q_emitted: Tensor  # [B] its probability under the verifier, at its own position
    h_emitted: Tensor  # [B] and under the working target there
    bonus: Tensor  # [B] of bool: drawn from q after a whole block, not in recovery from a refusal


def verify(
    draft: Tensor,
    p: Laws | Tensor | None,
    q: Laws | Tensor,
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
        q: ``[B, m + 1, V]`` the verifier's laws at the drafted positions and the one behind them; either are
            probabilities, or laws held otherwise: see `cactus_decoding.held`.
        rule: the acceptance rule.
        u: ``[B, m]`` uniform numbers in [0, 1) for the decisions.
        u_emit: ``[B, m + 1]`` and for the emitted token, by the position where it falls.
        lengths: ``[B]`` how many tokens of each row of ``draft`` are real; all of them by default.
        relaxed_left: ``[B]`` how many more relaxed tokens each response may have; no limit by default.
        block: decide for whole blocks, by the law that the rule emits; see `cactus_decoding.block`.

    Raises:
        BrokenLogits: a row of p or q is NaN.
        InvalidParameter: the shapes do not fit each other, or the rule the drafts or ``block``.
    """
    p, q = None if p is None else held(p), held(q)
    _require_shapes(draft, p, q, u, u_emit)
    if p is not None:
        require_unbroken(p.broken(), "drafter")
    require_unbroken(q.broken(), "verifier")
    batch, m = draft.shape
    require_fitting(rule, certain=p is None and m > 0, block=block)
    if block and relaxed_left is not None and not rule.lossless:
        raise InvalidParameter(
            f"relaxed_left caps relaxed tokens in the middle of a block, but {rule} is to decide whole ones. Leave "
            "block or relaxed_left out."
        )
    if block or _reads_rows(rule):
        p, q = None if p is None else DenseLaws(p.dense()), DenseLaws(q.dense())
    lengths = torch.full((batch,), m, device=draft.device) if lengths is None else lengths
    given = _Block(draft, p, q, lengths)
    return _examine_block(given, rule, u, u_emit) if block else _examine(given, rule, u, u_emit, relaxed_left)


def require_fitting(rule: Rule, certain: bool, block: bool = False) -> None:
    """Raise `InvalidParameter` if the rule asks certain drafts how sure they are, or has no law to decide blocks by."""
    if rule.reads_drafter and certain:
        raise InvalidParameter(
            f"{rule} reads how sure the drafter is, but these drafts are certain by construction (prompt lookup, an "
            "n-gram), so it would trust all of them. Draft with a model, or choose a rule such as Cactus(0.25)."
        )
    if block and rule.looks_ahead:
        raise InvalidParameter(
            f"block verification needs the law that the rule emits at each position, but {rule} decides with the "
            "tokens behind it. Leave block out, or choose a rule such as Lossless() or BoundedRatio(1.5)."
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

    def recover(at: Place, rows: _Rows) -> Recovery:
        return _recover(rows, rule, block.q_n[at], h_n[at], None if s is None else s[at], spent[at])

    emitted, bonus = block.emit(kept, recover, u_emit), kept == block.lengths
    verdict = block.verdicts(kept, relaxed=needed >= block.q_n)
    return Verdicts(block.draft, block.p_n, block.q_n, h_n, u, verdict, kept, *emitted, bonus)


def _examine_block(block: _Block, rule: Rule, u: Tensor, u_emit: Tensor) -> Verdicts:
    """Whole blocks, by the law that the rule emits: see `cactus_decoding.block`.

    At kept places the numbers for emitted tokens are free: one decides whether n is relaxed, which it is with
    probability ``(1 - q(n) / h(n))_+``. So the text differs from a lossless one at relaxed tokens, as token by token.
    """
    h = block.law(rule)
    h_n = h.gather(-1, block.draft.unsqueeze(-1)).squeeze(-1)
    kept, w = longest_prefix(block.p_n, h_n, lambda w: block.residual(w, h, h_n), u, block.lengths)

    def recover(at: Place, rows: _Rows) -> Recovery:
        aimed = replace(rows, q=h[at])
        return aimed.mended(aimed.residual(w[at[0]])), lambda index: _pick(aimed.q, index)

    emitted, bonus = block.emit(kept, recover, u_emit), kept == block.lengths
    verdict = block.verdicts(kept, relaxed=u_emit[:, : h_n.shape[1]] * h_n >= block.q_n)
    return Verdicts(block.draft, block.p_n, block.q_n, h_n, u, verdict, kept, *emitted, bonus)


def _recover(rows: _Rows, rule: Rule, q_n: Tensor, h_n: Tensor, s: Tensor | None, lossless: Tensor) -> Recovery:
    own = rule.recovery_row(rows.p, rows.q, s)
    scale = torch.where(lossless, 1.0, rule.recovery_scale(rows.p, rows.q, q_n, h_n, s))
    if own is None:
        return rows.mended(rows.residual(scale)), lambda index: scale * _pick(rows.q, index)
    weights = rows.mended(torch.where(lossless.unsqueeze(-1), rows.residual(scale), own))
    law = torch.where(lossless.unsqueeze(-1), rows.q, weights / weights.sum(-1, keepdim=True))  # no other target
    return weights, lambda index: _pick(law, index)


def _spent(needed: Tensor, q_n: Tensor, h_n: Tensor, relaxed_left: Tensor) -> Tensor:
    """``[B, m]`` of bool: whether the places before one, if all are kept, leave nothing of the budget."""
    relaxed = ((needed < h_n) & (needed >= q_n)).to(torch.int64)
    return relaxed.cumsum(-1) - relaxed >= relaxed_left.unsqueeze(-1)


@dataclass(frozen=True, slots=True)
class _Rows:
    """q and p at some places, ``[R, S]``, of all tokens that can be drawn there.

    Where q has few of them, one entry more stands for all others: q is 0 there, and p what they have together.
    """

    ids: Tensor | None  # [R, S - 1] of the tokens; None: an entry per id
    p: Tensor
    q: Tensor
    n: Tensor  # [R] where the drafted token is

    def residual(self, scale: Tensor) -> Tensor:
        """``(w q - p)_+``."""
        return (scale.to(self.q.dtype).unsqueeze(-1) * self.q).sub_(self.p.to(self.q.dtype)).clamp_min_(0.0)

    def mended(self, weights: Tensor) -> Tensor:
        weights = weights.to(self.q.dtype)
        return weights if bool((row_sums(weights) > 0.0).all()) else recovery_weights(weights, self.q, self.n)

    def draw(self, weights: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Where one is drawn and its id, ``[R]`` each."""
        index = draw(weights, u)
        return index, index if self.ids is None else _pick(self.ids, index)


class _Block:
    """The drafted ids of a batch with their laws."""

    def __init__(self, draft: Tensor, p: Laws | None, q: Laws, lengths: Tensor) -> None:
        self.draft, self.p, self.q, self.lengths = draft, p, q, lengths
        self.places = torch.arange(draft.shape[1], device=draft.device)
        self.real = self.places < lengths.unsqueeze(-1)
        self.q_n = of_drafts(q, draft)
        self.p_n = torch.ones_like(self.q_n) if p is None else of_drafts(p, draft)

    def statistics(self, rule: Rule) -> Tensor | None:
        """``[B, m, S]``; whole rows are read only if the rule has any."""
        if type(rule).statistics is Rule.statistics:
            return None
        q = self.q.dense()[:, : self.draft.shape[1]]
        return rule.statistics(point_masses(self.draft, q) if self.p is None else self.p.dense(), q)

    def law(self, rule: Rule) -> Tensor:
        """``[B, m, V]``: what the rule emits at each place."""
        q = self.q.dense()[:, : self.draft.shape[1]]
        if rule.lossless or q.numel() == 0:
            return q
        return induced_law(point_masses(self.draft, q) if self.p is None else self.p.dense(), q, rule)

    def residual(self, w: Tensor, h: Tensor, h_n: Tensor) -> Tensor:
        """``sum (w h - p)_+`` at each place, ``[B, m] -> [B, m]``."""
        if self.p is None:
            return w * (1.0 - h_n)
        return (w.unsqueeze(-1) * h - self.p.dense()).clamp_min(0.0).sum(-1)

    def rows(self, at: Place) -> _Rows:
        """Of alike rows."""
        (ids, q), n = self.q.support(at), self.draft[at]
        if ids is None:
            return _Rows(None, point_masses(n, q) if self.p is None else self.p.rows(at), q, n)
        is_n = ids == n.unsqueeze(-1)
        p = is_n.to(q.dtype) if self.p is None else self.p.at(at, ids)
        p = torch.cat([p, (1.0 - p.cumsum(-1)[:, -1:]).clamp_min(0.0)], dim=-1)
        others = torch.zeros_like(q[:, :1])
        is_n = torch.cat([is_n, ~is_n.any(-1, keepdim=True)], dim=-1)
        return _Rows(ids, p, torch.cat([q, others], dim=-1), is_n.to(torch.int8).argmax(-1))

    def emit(
        self, kept: Tensor, recover: Callable[[Place, _Rows], Recovery], u_emit: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One id per sequence, from the row behind its last kept token, with its q and its h there: ``[B]`` each."""
        emitted, q_emitted = torch.empty_like(kept), self.q_n.new_empty(len(kept))
        h_emitted, whole = torch.empty_like(q_emitted), kept == self.lengths
        for rows in self.q.alike(whole.nonzero()[:, 0]):
            at = rows, kept[rows]
            ids, q = self.q.support(at)
            index = draw(q, u_emit[at])
            emitted[rows] = index if ids is None else _pick(ids, index)
            q_emitted[rows] = h_emitted[rows] = _pick(q, index)
        for rows in self.q.alike((~whole).nonzero()[:, 0]):
            at = rows, kept[rows]
            given = self.rows(at)
            weights, h = recover(at, given)
            index, emitted[rows] = given.draw(weights, u_emit[at])
            q_emitted[rows], h_emitted[rows] = _pick(given.q, index), h(index).to(q_emitted.dtype)
        return emitted, q_emitted, h_emitted

    def verdicts(self, kept: Tensor, relaxed: Tensor) -> Tensor:
        """``[B, m]`` of `Verdict`, from how many are kept and which of them count as relaxed."""
        kept = kept.unsqueeze(-1)
        verdict = relaxed.to(torch.int8)  # KEPT or RELAXED
        verdict.masked_fill_(self.places == kept, int(Verdict.REFUSED))
        verdict.masked_fill_(self.places > kept, int(Verdict.UNEXAMINED))
        return verdict.masked_fill_(~self.real, int(Verdict.ABSENT))


def _reads_rows(rule: Rule) -> bool:
    """Whether it asks for more of whole rows than a scale of the recovery weights."""
    kind = type(rule)
    return kind.statistics is not Rule.statistics or kind.recovery_row is not Rule.recovery_row


def _pick(x: Tensor, index: Tensor) -> Tensor:
    """``[R, S], [R] -> [R]``."""
    return x.gather(-1, index.unsqueeze(-1)).squeeze(-1)


def point_masses(ids: Tensor, like: Tensor) -> Tensor:
    """Point masses at ``ids [...]``, in rows like ``[..., V]``."""
    return torch.zeros_like(like).scatter(-1, ids.unsqueeze(-1), 1.0)


def _require_shapes(draft: Tensor, p: Laws | None, q: Laws, u: Tensor, u_emit: Tensor) -> None:
    batch, m = draft.shape
    vocabulary = q.shape[-1]
    wanted: dict[str, tuple[Laws | Tensor, tuple[int, ...]]] = {
        "q": (q, (batch, m + 1, vocabulary)),
        "u": (u, (batch, m)),
        "u_emit": (u_emit, (batch, m + 1)),
    }
    if p is not None:
        wanted["p"] = (p, (batch, m, vocabulary))
    for name, (given, shape) in wanted.items():
        if tuple(given.shape) != shape:
            raise InvalidParameter(
                f"{name} has shape {list(given.shape)}, but a draft of shape {[batch, m]} with {vocabulary} "
                f"tokens in the vocabulary needs {list(shape)}."
            )
