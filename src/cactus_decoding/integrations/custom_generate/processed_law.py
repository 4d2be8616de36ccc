"""Logits processors of transformers as the law of a row, for drafter and verifier alike."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList
from transformers.generation import logits_process as known

from cactus_decoding.errors import InvalidParameter
from cactus_decoding.generation.pair import Pair
from cactus_decoding.sampling import SamplingParams, probabilities

_FILTERS = {known.TopKLogitsWarper, known.TopPLogitsWarper, known.MinPLogitsWarper}
# What these return does not depend on the ids, so they take all positions at a time,
_WITHOUT_IDS = {
    known.TemperatureLogitsWarper, known.TopKLogitsWarper, known.TopPLogitsWarper, known.MinPLogitsWarper,
    known.TopHLogitsWarper, known.TypicalLogitsWarper, known.EpsilonLogitsWarper, known.EtaLogitsWarper,
    known.InfNanRemoveLogitsProcessor, known.SuppressTokensLogitsProcessor, known.LogitNormalization,
}  # fmt: skip
# what these return for a row, not on its place in the batch,
_ROW_BY_ROW = _WITHOUT_IDS | {
    known.MinLengthLogitsProcessor, known.MinNewTokensLengthLogitsProcessor, known.RepetitionPenaltyLogitsProcessor,
    known.NoRepeatNGramLogitsProcessor, known.SequenceBiasLogitsProcessor, known.NoBadWordsLogitsProcessor,
    known.PrefixConstrainedLogitsProcessor, known.ForcedBOSTokenLogitsProcessor, known.ForcedEOSTokenLogitsProcessor,
    known.ExponentialDecayLengthPenalty, known.SuppressTokensAtBeginLogitsProcessor, known.WatermarkLogitsProcessor,
}  # fmt: skip
# these ask a function of the user's,
_ASKING = {known.PrefixConstrainedLogitsProcessor}
# and these carry something from call to call.
_STATEFUL = {
    known.UnbatchedClassifierFreeGuidanceLogitsProcessor: "guidance_scale",
    known.SynthIDTextWatermarkLogitsProcessor: "watermarking_config (SynthID)",
}


class ProcessedLaw:
    """A list of logits processors as the law of one row of a batch, for drafter and verifier alike.

    Each processor is applied once to each position, in the order of the list and with the ids before that position:
    the row's padding, its prompt, what was emitted and what was drafted up to there.

    Args:
        processors: functions of ids and scores alone.
        params: what becomes of the processed scores: sampling at temperature 1, or greedy.
        input_ids: ``[B, L]`` the prompts with their padding.
        row, padding: which of them this is, and how many of its ids are padding.
        records: whether `latest` is wanted.
    """

    def __init__(
        self,
        processors: LogitsProcessorList,
        params: SamplingParams,
        input_ids: Tensor,
        row: int,
        padding: int,
        records: bool = False,
    ) -> None:
        self._processors = [_for_row(processor, row) for processor in processors]
        self._filters = _split_off_filters(self._processors)
        self._params = params
        self._row = row
        self._height = len(input_ids)
        self._ids = input_ids[row : row + 1, :padding]
        self._padding = padding
        self._records = records
        self.latest: tuple[Tensor, Tensor] | None = None
        """Logits and scores ``[k, V]`` of the last call. After a step that is the verifier's."""

    def __call__(self, logits: Tensor, before: Sequence[int], draft: Tensor) -> Tensor:
        if not len(logits):  # beside rows that draft more
            return logits.float()
        # processors are strangers' code: what they keep must be tensors as plain generate would give them
        with torch.inference_mode(False), torch.no_grad():
            scores = raw = logits.to(self._ids.device, torch.float32, copy=True)
            ids = self._up_to(before, draft)
            for processor in self._processors:
                scores = self._processed(processor, ids, scores)
            if self._filters:
                scores = _filtered(self._filters, ids, scores)
            if self._records:
                self.latest = raw, scores
            return probabilities(scores, self._params).to(logits.device)

    def _up_to(self, before: Sequence[int], draft: Tensor) -> Tensor:
        """``[1, L]``: everything before the last position."""
        new = self._ids.new_tensor(before[self._ids.shape[1] - self._padding :]).unsqueeze(0)
        self._ids = torch.cat([self._ids, new], dim=1)
        return torch.cat([self._ids, draft.to(self._ids).unsqueeze(0)], dim=1)

    def _processed(self, processor: Any, ids: Tensor, scores: Tensor) -> Tensor:
        if type(processor) in _WITHOUT_IDS:
            done: Tensor = processor(ids, scores)
            return done
        first = ids.shape[1] - len(scores) + 1
        return torch.cat([self._at(processor, ids[:, : first + k], scores[k : k + 1]) for k in range(len(scores))])

    def _at(self, processor: Any, ids: Tensor, scores: Tensor) -> Tensor:
        """``[1, V]`` at one position. A processor that may look at a row's number sees a whole batch of this row."""
        if self._height == 1 or type(processor) in _ROW_BY_ROW:
            alone: Tensor = processor(ids, scores)
            return alone
        together: Tensor = processor(ids.repeat(self._height, 1), scores.repeat(self._height, 1))
        return together[self._row : self._row + 1]


def _split_off_filters(processors: list[Any]) -> list[Any]:
    """Take a top-k at the end of the list away, with what follows it of top-p and min-p."""
    at = len(processors)
    while at > 0 and type(processors[at - 1]) in _FILTERS and processors[at - 1].filter_value == -torch.inf:
        at -= 1
        if type(processors[at]) is known.TopKLogitsWarper:
            filters = processors[at:]
            del processors[at:]
            return filters
    return []


def _filtered(filters: Sequence[Any], ids: Tensor, scores: Tensor) -> Tensor:
    """One after the other, on no more of each row than top-k leaves: the others sort it.

    Where equal scores straddle a cut, which of them stays depends on the length of what is sorted: whole rows then.
    """
    best, places = scores.topk(min(filters[0].top_k, scores.shape[-1]))
    least = best[:, -1:]
    width = int((scores >= least).sum(-1).max())  # equals of the k-th stay too
    if width > best.shape[-1]:
        best, places = scores.topk(width)
    narrow = best.masked_fill(best < least, -torch.inf)
    for processor in filters[1:]:
        narrow = processor(ids, narrow)
    gone = narrow == -torch.inf
    lowest = narrow.masked_fill(gone, torch.inf).amin(-1, keepdim=True)
    if bool((gone & (best == lowest)).any()):
        for processor in filters:
            scores = processor(ids, scores)
        return scores
    return torch.full_like(scores, -torch.inf).scatter_(-1, places, narrow)


def _for_row(processor: Any, row: int) -> Any:
    """The processor as it treats one row of the batch, where it has something of its own for each."""
    if type(processor) is known.RepetitionPenaltyLogitsProcessor and isinstance(processor.prompt_ignore_length, Tensor):
        processor = copy.copy(processor)
        processor.prompt_ignore_length = processor.prompt_ignore_length[row : row + 1]
    if type(processor) is known.PrefixConstrainedLogitsProcessor:
        allowed, beams = processor._prefix_allowed_tokens_fn, processor._num_beams
        return known.PrefixConstrainedLogitsProcessor(lambda _, text: allowed(row // beams, text), 1)
    return processor


def _require_rerunnable(processors: LogitsProcessorList, input_ids: Tensor, size: int) -> None:
    """Refuse processors that remember: they are run on drafts too, which may be refused, and on prefixes again."""
    for processor in processors:
        if type(processor) in _STATEFUL:
            raise InvalidParameter(
                f"{_STATEFUL[type(processor)]} is given, but {type(processor).__name__} carries a state from token to "
                "token, and refused drafts would spoil it. Leave it out, or use plain generate."
            )
        if type(processor) not in _ROW_BY_ROW - _ASKING and not _answers_alike(processor, input_ids, size):
            raise InvalidParameter(
                f"the logits processor {type(processor).__name__} answers the same ids and scores differently when "
                "asked again, so it keeps a state, and refused drafts would spoil it. Make it a function of both."
            )


def _answers_alike(processor: Any, input_ids: Tensor, size: int) -> bool:
    def ask() -> Tensor:
        scores = torch.zeros(len(input_ids), size, device=input_ids.device)
        ids: Any = input_ids.clone()
        return LogitsProcessorList([processor])(ids, scores).nan_to_num()  # which minds the processor's signature

    first = ask()
    try:
        return torch.equal(first, ask())
    except Exception:  # it answered a moment ago, so whatever this is comes of having been asked
        return False


def laws_of_rows(
    pair: Pair, input_ids: Tensor, paddings: Sequence[int], processors: LogitsProcessorList, config: GenerationConfig
) -> list[ProcessedLaw | SamplingParams]:
    """The law of each row. Without processors, and unless logits are asked for, all rows are done in one go."""
    _require_rerunnable(processors, input_ids, pair.verifier.vocabulary.size)
    params = SamplingParams(temperature=1.0 if config.do_sample else 0.0)
    records = bool(config.return_dict_in_generate and (config.output_scores or config.output_logits))
    if not processors and not records:
        return [params] * len(paddings)
    return [ProcessedLaw(processors, params, input_ids, *row, records) for row in enumerate(paddings)]
