"""Blocks of random Markov models, measured exactly and by sampling: what `benchmarks.block` compares.

A model is a pair of first-order chains, a contestant a way to decide their blocks. `exactly` enumerates the law of
whole texts decoded block after block; `sampled` counts tokens by the one before them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cactus_decoding.induced import induced_law
from cactus_decoding.rules import Rule

SPREAD = 1.5  # standard deviation of the verifier's logits
ROWS, STEPS = 1000, 12  # chains, blocks of each that are counted
MIXING = 3  # blocks before these


@dataclass(frozen=True)
class Model:
    """Laws of the next token by the one before it, ``[V, V]`` each."""

    p: Tensor
    q: Tensor


def model(seed: int, size: int, distance: float) -> Model:
    generator = torch.Generator().manual_seed(seed)
    logits = SPREAD * torch.randn(size, size, generator=generator, dtype=torch.float64)
    error = distance * torch.randn(size, size, generator=generator, dtype=torch.float64)
    return Model((logits + error).softmax(-1), logits.softmax(-1))


def law_targets(pair: Model, rule: Rule) -> Tensor:
    """``[V, V, V]``: the law that the rule emits, whatever n: context, n, x."""
    return induced_law(pair.p, pair.q, rule).unsqueeze(1).expand(-1, pair.q.shape[-1], -1)


def own_targets(pair: Model, rule: Rule) -> Tensor:
    """h^n: the drafted token raised, the rest scaled."""
    n = torch.arange(pair.q.shape[-1])
    gamma = rule.target(pair.p, pair.q)
    h = ((1 - gamma) / (1 - pair.q)).unsqueeze(-1) * pair.q.unsqueeze(1)
    h[:, n, n] = gamma
    return h


@dataclass(frozen=True)
class Contestant:
    """``targets [V, V, V]``: the working target by context and drafted token; ``block`` or token by token."""

    targets: Tensor
    block: bool


def decide(pair: Model, way: Contestant, before: Tensor, draft: Tensor) -> tuple[Tensor, Tensor]:
    """``[..., m]`` drafts behind ``[...]`` contexts -> h ``[..., m + 1]``, w ``[..., m + 1]``.

    The longest prefix i with u_i < h_i is kept, and (w_i h^n - p)_+ emitted behind it, n being the token at the place
    behind; for token by token, h is the chance that i is reached and nothing behind it kept, told the same way.
    """
    m = draft.shape[-1]
    contexts = torch.cat([before.unsqueeze(-1), draft[..., :-1]], -1)
    ratio = way.targets[contexts, draft, draft] / pair.p[contexts, draft]
    one = torch.ones_like(ratio[..., :1])
    if not way.block:
        reached = torch.cat([one, ratio.clamp_max(1.0).cumprod(-1)], -1)
        # P(at least i) = reached_i; as "the longest i with u_i < h_i", with u independent
        stop = reached - torch.cat([reached[..., 1:], 0 * one], -1)
        below = stop.cumsum(-1)  # P(at most i)
        return torch.where(below > 0, stop / below.clamp_min(1e-300), 1.0), torch.ones_like(reached)
    w = [one.squeeze(-1)]
    for i in range(m):
        w.append((w[-1] * ratio[..., i]).clamp_max(1.0))
    running = torch.stack(w, -1)
    left = torch.stack(
        [leftover(pair, way, running[..., i], contexts[..., i], draft[..., i]).sum(-1) for i in range(m)], -1
    )
    short = left + 1 - running[..., :-1]
    h = torch.where(short > 0, left / short.clamp_min(1e-300), 1.0)
    return torch.cat([one, h[..., 1:], running[..., -1:]], -1), running


def leftover(pair: Model, way: Contestant, w: Tensor, context: Tensor, n: Tensor) -> Tensor:
    """``(w h^n - p)_+``, ``[..., V]``."""
    size = pair.q.shape[-1]
    h = way.targets.reshape(-1, size).index_select(0, (context * size + n).flatten()).view(*context.shape, size)
    p = pair.p.index_select(0, context.flatten()).view(*context.shape, size)
    return (h * w.unsqueeze(-1) - p).clamp_min_(0)


# --- enumeration --------------------------------------------------------------------------------------------------


def blocks_of(pair: Model, way: Contestant, m: int) -> tuple[list[Tensor], Tensor]:
    """Law of what a block emits by its context: ``[V, V^k]`` for k = 1 ... m + 1 ids, and the mean kept ``[V]``."""
    size = pair.q.shape[-1]
    drafts = torch.cartesian_prod(*[torch.arange(size)] * m).view(-1, m)
    count = len(drafts)
    before, draft = torch.arange(size).view(-1, 1).expand(-1, count), drafts.expand(size, -1, -1)
    contexts = torch.cat([before.unsqueeze(-1), draft[..., :-1]], -1)
    h, w = decide(pair, way, before, draft)
    open_ = pair.p[contexts, draft].prod(-1)
    laws, kept = [], torch.zeros(size, dtype=torch.float64)
    for i in range(m, -1, -1):
        stop, open_ = open_ * h[..., i], open_ * (1 - h[..., i])
        kept += i * stop.sum(-1)
        if i == m:
            row = pair.q[draft[..., -1]]
        else:
            row = leftover(pair, way, w[..., i], contexts[..., i], draft[..., i])
            row = row / row.sum(-1, keepdim=True).clamp_min(1e-300)
        law = (stop.unsqueeze(-1) * row).view(size, size**i, -1, size).sum(2)
        laws.append(law.reshape(size, -1))
    return laws[::-1], kept


def whole_texts(pair: Model, blocks: list[Tensor], kept: Tensor, length: int) -> tuple[float, float]:
    """``(KL per token, kept per block)`` of texts decoded block after block, the id before them uniform."""
    size, longest = pair.q.shape[-1], len(blocks)
    begins = []  # at 0, 1, ... longest ids: law of what a block begins with
    for r in range(longest + 1):
        of_length = [law.view(size, size**r, -1).sum(-1) for law in blocks[max(r, 1) - 1 :]]
        begins.append(torch.stack(of_length).sum(0))
    starts = [torch.full((size,), 1 / size, dtype=torch.float64)]  # a block starts behind this text
    starts += [torch.zeros(size ** (k + 1), dtype=torch.float64) for k in range(1, length)]
    text = torch.zeros(size ** (length + 1), dtype=torch.float64)
    total = started = 0.0
    for k, here in enumerate(starts):
        by_last = here.view(-1, size)
        total += float((by_last.sum(0) * kept).sum())
        started += float(here.sum())
        for r in range(1, min(longest, length - k) + 1):
            law = begins[r] if r == length - k else blocks[r - 1]
            more = (by_last.unsqueeze(-1) * law).reshape(-1)
            (text if r == length - k else starts[k + r]).add_(more)
    truth = torch.full((size,), 1 / size, dtype=torch.float64)
    for _ in range(length):
        truth = (truth.view(-1, size).unsqueeze(-1) * pair.q).reshape(-1)
    kl = torch.where(text > 0, text * (text / truth).log(), 0.0).sum()
    return float(kl) / length, total / started


def exactly(pair: Model, way: Contestant, _: int, m: int, length: int) -> tuple[float, float]:
    return whole_texts(pair, *blocks_of(pair, way, m), length)


# --- sampling -----------------------------------------------------------------------------------------------------


def sampled(pair: Model, way: Contestant, seed: int, m: int) -> tuple[float, float]:
    """``(KL of a token given the one before it, kept per block)`` of many chains."""
    generator = torch.Generator().manual_seed(seed)
    size = pair.q.shape[-1]
    last = torch.arange(ROWS) % size
    rows = torch.arange(ROWS)
    pairs = torch.zeros(size * size, dtype=torch.float64)
    kept_in_all = 0
    up = pair.p.cumsum(-1)

    def one_of(cumulative: Tensor) -> Tensor:
        level = torch.rand(ROWS, 1, generator=generator, dtype=torch.float64) * cumulative[:, -1:]
        return (cumulative <= level).sum(-1).clamp_max(size - 1)

    for step in range(-MIXING, STEPS):
        ids = [last]
        for _ in range(m):
            ids.append(one_of(up[ids[-1]]))
        text = torch.stack(ids, -1)  # [ROWS, m + 1]
        h, w = decide(pair, way, text[:, 0], text[:, 1:])
        u = torch.rand(ROWS, m + 1, generator=generator, dtype=torch.float64)
        kept = torch.where(u < h, torch.arange(m + 1), 0).amax(-1)
        context, n = text[rows, kept], text[rows, (kept + 1).clamp_max(m)]
        row = torch.where((kept == m).unsqueeze(-1), pair.q[context], leftover(pair, way, w[rows, kept], context, n))
        last = one_of(row.cumsum(-1))
        if step >= 0:
            kept_in_all += int(kept.sum())
            drafted = torch.arange(m) < kept.unsqueeze(-1)
            seen = torch.cat([(text[:, :-1] * size + text[:, 1:])[drafted], context * size + last])
            pairs += torch.bincount(seen, minlength=size * size)
    pairs = pairs.view(size, size)
    before, total = pairs.sum(-1, keepdim=True), pairs.sum()
    kl = torch.where(pairs > 0, pairs / total * (pairs / before / pair.q).log(), 0.0).sum()
    bias = (int((pairs > 0).sum()) - size) / (2 * total)  # Miller and Madow
    return float(kl - bias), kept_in_all / (ROWS * STEPS)
