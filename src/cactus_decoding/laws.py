"""From the logits of several rows to their laws, where a law may depend on the text before it.

Penalties are the reason this exists: the law of a drafted position must see the prompt, what was emitted, and the
drafted ids before that position, no more and no less, for the drafter and for the verifier. Rows that want the same
context-free parameters, nearly always all of them, are done in one go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from cactus_decoding.held import DenseLaws, Laws, MixedLaws, softmax_laws
from cactus_decoding.sampling import SamplingParams, biased, probabilities
from cactus_decoding.sparse import sparse_laws


class ContextualLaw(Protocol):
    """Laws that depend on the ids before them. One object serves one response, its drafter and verifier alike."""

    def __call__(self, logits: Tensor, before: Sequence[int], draft: Tensor) -> Tensor:
        """``[k, V]`` logits -> ``[k, V]`` laws.

        ``before`` is the prompt and what was emitted, and only grows from call to call. The last row sees all of
        ``draft`` behind it, the row before it one id less, and so on.
        """


Shaping = SamplingParams | ContextualLaw
SHORT = 8192  # tokens: rows of no more are spread out at once, which costs less than the calls that would avoid it


def shaping_of(params: SamplingParams, prompt_length: int) -> Shaping:
    """What `laws_of` needs for one response: parameters, with a memory of the text where there are penalties."""
    return Penalised(params, prompt_length) if params.penalised else params


def laws_of(
    logits: Tensor,
    shapings: Sequence[Shaping],
    befores: Sequence[Sequence[int]],
    drafts: Tensor,
    lengths: Sequence[int],
    keep: Sequence[int],
) -> Laws:
    """``[n, K, V]`` logits -> laws, row i's first ``keep[i]`` by its shaping; the others mean nothing.

    The laws may read ``logits`` later on.

    Args:
        drafts: ``[n, m]`` drafted ids, row i's first ``lengths[i]`` of them real.
    """
    groups: dict[SamplingParams, list[int]] = {}
    contextual: list[tuple[int, ContextualLaw]] = []
    for row, shaping in enumerate(shapings):
        if isinstance(shaping, SamplingParams):
            groups.setdefault(shaping, []).append(row)
        else:
            contextual.append((row, shaping))
    parts: list[tuple[list[int], Laws]] = []
    short = logits.shape[-1] <= SHORT
    for params, rows in groups.items():
        own = logits if len(rows) == len(shapings) else logits[rows]
        parts.append((rows, DenseLaws(probabilities(own, params)) if short else plain_laws(own, params)))
    if contextual:
        law = logits.new_zeros(len(contextual), *logits.shape[1:], dtype=_wide(logits))
        for place, (row, shaping) in enumerate(contextual):
            law[place, : keep[row]] = shaping(logits[row, : keep[row]], befores[row], drafts[row, : lengths[row]])
        parts.append(([row for row, _ in contextual], DenseLaws(law)))
    if len(parts) == 1:
        return parts[0][1]
    return DenseLaws(MixedLaws(parts).dense()) if short else MixedLaws(parts)


def plain_laws(logits: Tensor, params: SamplingParams) -> Laws:
    """``[n, k, V]`` logits -> `cactus_decoding.sampling.probabilities` of them, spread out only where it has to be."""
    if params.biases:
        logits = biased(logits.to(_wide(logits)), params)
    if params.greedy or 0 < params.top_k < logits.shape[-1]:
        return sparse_laws(logits, params)
    if params.top_p == 1.0 and params.min_p == 0.0:
        return softmax_laws(logits, params.temperature)
    return DenseLaws(probabilities(logits, replace(params, logit_bias=())))


def _wide(logits: Tensor) -> torch.dtype:
    return torch.promote_types(logits.dtype, torch.float32)


class Penalised:
    """Presence, frequency and repetition penalties, from counts that follow the text as it grows."""

    def __init__(self, params: SamplingParams, prompt_length: int) -> None:
        self._params = params
        self._unbiased = replace(params, logit_bias=())  # the bias comes before the penalties
        self._prompt = prompt_length
        self._seen = 0  # how many ids of the text are counted
        self._emitted: Tensor | None = None  # [V] occurrences in the response
        self._known: Tensor | None = None  # [V] occurrences in prompt and response

    def __call__(self, logits: Tensor, before: Sequence[int], draft: Tensor) -> Tensor:
        emitted, known = self._counted(logits, before)
        behind = self._behind(draft, logits)
        penalised = self._penalise(biased(logits, self._params), emitted + behind, known + behind)
        return probabilities(penalised, self._unbiased)

    def _counted(self, logits: Tensor, before: Sequence[int]) -> tuple[Tensor, Tensor]:
        if self._emitted is None or self._known is None:
            self._emitted, self._known = (logits.new_zeros(logits.shape[-1], dtype=torch.float32) for _ in range(2))
        new = torch.tensor(before[self._seen :], dtype=torch.long, device=self._known.device)
        one = torch.ones(len(new), device=new.device)
        skip = min(max(0, self._prompt - self._seen), len(new))
        self._known.index_add_(0, new, one)
        self._emitted.index_add_(0, new[skip:], one[skip:])
        self._seen = len(before)
        return self._emitted.to(logits.device), self._known.to(logits.device)  # drafter and verifier may sit apart

    def _behind(self, draft: Tensor, logits: Tensor) -> Tensor:
        """``[k, V]`` how often each id stands among the drafted ones that a row sees."""
        k, size = logits.shape
        hits = torch.zeros(len(draft) + 1, size, device=logits.device)
        hits[torch.arange(1, len(draft) + 1, device=draft.device), draft] = 1.0
        return hits.cumsum(0)[len(hits) - k :]

    def _penalise(self, logits: Tensor, emitted: Tensor, known: Tensor) -> Tensor:
        params, logits = self._params, logits.float()
        if params.repetition_penalty != 1.0:
            penalty = params.repetition_penalty
            logits = torch.where(known > 0, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
        return logits - params.presence_penalty * (emitted > 0) - params.frequency_penalty * emitted
