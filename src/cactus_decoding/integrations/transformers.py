"""Speculation in a script that calls transformers' ``model.generate``: one keyword more, the same contract.

    model.generate(**inputs, custom_generate=cactus_decoding.hf.generate, draft_model=draft, rule=Cactus(0.25))

transformers prepares the call as always, with its own processors and stopping criteria, and hands it to `generate`
here in place of its own loop. Greedy decoding gives the tokens of plain ``generate``; sampling follows its law, or
that of the rule. What of the contract cannot be kept is refused by name, before anything is generated.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol
from weakref import WeakKeyDictionary, proxy

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList, PreTrainedTokenizerBase
from transformers.generation import logits_process as known
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.generation.utils import GenerateDecoderOnlyOutput
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.integrations.fsdp import is_fsdp_managed_module

from cactus_decoding.drafters import Drafter, ModelDrafter, PromptLookup
from cactus_decoding.errors import InvalidParameter, InvalidPrompt, PairMismatch
from cactus_decoding.generation.engine import Batch, Decoding
from cactus_decoding.generation.events import Event
from cactus_decoding.generation.loading import PROMPT_LOOKUP
from cactus_decoding.generation.pair import Pair
from cactus_decoding.generation.request import Options, decoding_of, whole
from cactus_decoding.generation.statistics import Statistics, statistics_of
from cactus_decoding.generation.stops import Stops
from cactus_decoding.models.base import Vocabulary
from cactus_decoding.models.transformers import TransformersModel
from cactus_decoding.rules import Rule
from cactus_decoding.sampling import SamplingParams, probabilities
from cactus_decoding.verify import Verdict


class Streamer(Protocol):
    """A streamer of transformers, or what looks like one."""

    def put(self, value: Tensor) -> None: ...
    def end(self) -> None: ...


def generate(
    model: Any,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    *,
    draft_model: nn.Module | str | None = None,
    rule: Rule | None = None,
    m: int | Literal["auto"] = "auto",
    seed: int | None = None,
    max_relaxed: int | float | None = None,
    statistics: list[Statistics] | None = None,
    stop_strings: str | list[str] | None = None,
    stop_tokenizer: PreTrainedTokenizerBase | None = None,
    token_streamer: Streamer | None = None,
    **model_kwargs: Any,
) -> Tensor | GenerateDecoderOnlyOutput:
    """The ``custom_generate=`` of ``model.generate``, which fills in the first five arguments and ``model_kwargs``.

    Args:
        draft_model: a small module of the same vocabulary, or "prompt-lookup".
        rule: the acceptance rule; `Lossless` by default.
        m: draft length, or "auto".
        seed: that of the first row, the others count up; by default drawn from torch's global generator.
        max_relaxed: the budget of relaxed tokens per row; see `cactus_decoding.generation.request.Options`.
        statistics: a list to which the `Statistics` of each row are added at the end.
        stop_strings, stop_tokenizer: the ``stop_strings`` and ``tokenizer`` of ``model.generate``, which takes the
            latter away from every callable.
        token_streamer: a ``streamer`` where this is called from elsewhere than ``model.generate``.

    Returns:
        ``[B, longest]`` ids, or with ``return_dict_in_generate`` the object of plain ``generate``, without its cache.

    Raises:
        InvalidParameter, InvalidPrompt: what is asked for cannot be done here.
        PairMismatch, ModelRefused: the modules do not fit each other, or cannot be rewound.
        BrokenLogits: a model returned NaN.
    """
    withheld = _withheld()
    for complaint in _complaints(model, draft_model, generation_config, model_kwargs, withheld):
        raise InvalidParameter(complaint)
    streamer = _one_of(token_streamer, withheld.get("streamer"))
    paddings = _paddings(input_ids, model_kwargs)
    criteria = _with_stop_strings(stopping_criteria, stop_strings, stop_tokenizer)
    pair = _pair_of(model, draft_model)
    laws = _laws(pair, input_ids, paddings, logits_processor, generation_config)
    options: Options = {"rule": rule, "m": m, "max_relaxed": max_relaxed}
    options["max_new_tokens"] = _cap(criteria, generation_config, input_ids.shape[1])
    options["seed"] = _seed(seed, generation_config)
    prompts = [ids[padding:] for ids, padding in zip(input_ids.tolist(), paddings)]
    rows = _rows(pair, prompts, laws, _certain_ends(criteria), options)
    steps = _Steps(input_ids, rows, criteria, generation_config, streamer)
    _warn_if_idle(rows[0], generation_config)
    if token_streamer is not None:  # to its own streamer, generate has shown the prompt
        token_streamer.put(input_ids.cpu())
    _run(pair, rows, steps)
    if streamer is not None:
        streamer.end()
    if statistics is not None:
        statistics += [row.statistics(length) for row, length in zip(rows, steps.lengths)]
    return steps.result()


def _run(pair: Pair, rows: Sequence[_Row], steps: _Steps) -> None:
    with closing(Batch(pair.verifier, pair.drafter, pair.step_costs)) as batch:
        for row in rows:
            batch.admit(row.decoding)
        while steps.running and batch.decodings:
            batch.step()
            for row in rows:
                row.take_in()
            for row in steps.advance():
                if not row.decoding.closed:
                    batch.drop(row.decoding)


# ---------------------------------------------------------------------------------------------- what is refused

_SURPLUS = 512  # rows by which two heads of one vocabulary may differ, being padded to round numbers
_SETTINGS: tuple[tuple[str, tuple[object, ...], str], ...] = (
    ("num_beams", (None, 1), "beam search follows several texts at a time, speculation one"),
    ("penalty_alpha", (None, 0), "contrastive search is another way of decoding"),
    ("dola_layers", (None,), "DoLa is another way of decoding"),
    ("constraints", (None,), "constrained beam search is another way of decoding"),
    ("force_words_ids", (None,), "constrained beam search is another way of decoding"),
    ("prompt_lookup_num_tokens", (None,), 'pass draft_model="prompt-lookup" and m= instead'),
    ("num_assistant_tokens", (None, 20), "pass m= instead"),  # 20 is transformers' default
    ("assistant_ensemble_weight", (None,), "pass rule= instead"),
    ("assistant_early_exit", (None,), "pass draft_model= instead"),
    ("use_mtp", (None, False), "pass draft_model= instead"),
    ("speculation_type", (None,), "pass draft_model= and rule= instead"),
    ("use_cache", (None, True), "speculation needs a cache that can be taken back"),
    ("cache_implementation", (None, "dynamic"), "speculation needs its own cache, in which rows differ in length"),
    ("prefill_chunk_size", (None,), "prompts are fed in pieces of their own size here"),
)
_EXPECTED = {
    "attention_mask", "position_ids", "cache", "past_key_values", "use_cache", "logits_to_keep", "cache_position",
    "output_attentions", "output_hidden_states",
}  # fmt: skip
_GENERATE = inspect.unwrap(GenerationMixin.generate).__code__


def _withheld() -> dict[str, Any]:
    """The arguments that ``generate`` keeps from every callable, read where it waits for this one; {} elsewhere.

    Ignored, they would do harm: a streamer would get the prompt, no token and no end, so that whoever reads a
    TextIteratorStreamer waits forever.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not _GENERATE:
        frame = frame.f_back
    names = ("streamer", "assistant_model", "synced_gpus")
    return {} if frame is None else {name: frame.f_locals.get(name) for name in names}


def _complaints(
    model: Any, draft: object, config: GenerationConfig, model_kwargs: Mapping[str, Any], withheld: Mapping[str, Any]
) -> Iterator[str]:
    """What is asked for and cannot be done, a message each."""
    if draft is None or not (isinstance(draft, nn.Module) or draft == PROMPT_LOOKUP):
        yield f'draft_model is {draft!r}, but must be a module, loaded as the model is, or "{PROMPT_LOOKUP}".'
    if withheld.get("assistant_model") is not None:
        yield "assistant_model is given, which no custom_generate function is handed. Pass it as draft_model=."
    sharded = is_fsdp_managed_module(model) or is_deepspeed_zero3_enabled()  # type: ignore[no-untyped-call]
    if withheld.get("synced_gpus") or sharded:
        yield "synced_gpus is not possible here: each process accepts other drafts, so their forwards do not pair up."
    for role, module in (("the model", model), ("draft_model", draft)):
        if isinstance(module, nn.Module) and module.training:
            yield f"{role} is in training mode, where dropout may make every forward another. Call .eval() on it."
    for name, fine, reason in _SETTINGS:
        value = getattr(config, name, None)
        if value not in fine:
            yield f"{name} is {value!r}, but {reason}. Leave it out, or use plain generate."
    yield from _unusable(config, model_kwargs)


def _unusable(config: GenerationConfig, model_kwargs: Mapping[str, Any]) -> Iterator[str]:
    """`_complaints` about what is fed to the model and what is wanted of it."""
    for name in ("output_attentions", "output_hidden_states"):
        if config.return_dict_in_generate and getattr(config, name):
            yield f"{name} is True, but refused drafts and blocks have no place in it. Run the model on the result."
    cache = model_kwargs.get("cache", model_kwargs.get("past_key_values"))
    if cache is not None and (getattr(cache, "_is_user_defined", False) or cache.get_seq_length() > 0):
        yield "cache (past_key_values) is given, but speculation needs its own. Pass the whole text as ids instead."
    for name, value in model_kwargs.items():
        if value is not None and name not in _EXPECTED:
            yield f"{name} is given, but drafter and verifier are fed ids alone here. Leave it out."


def _paddings(input_ids: Tensor, model_kwargs: Mapping[str, Any]) -> list[int]:
    """How many ids on the left of each row are padding. Raises `InvalidPrompt` where padding is elsewhere."""
    n, width = input_ids.shape
    mask, positions = model_kwargs.get("attention_mask"), model_kwargs.get("position_ids")
    real = torch.ones(n, width, dtype=torch.bool) if mask is None else mask.cpu() != 0
    paddings = (~real).sum(-1, keepdim=True)
    places = torch.arange(width) - paddings
    if not torch.equal(real, places >= 0):
        raise InvalidPrompt(
            "attention_mask hides ids that are not on the left of their row, but the engine here knows no gaps. "
            "Tokenize with padding_side='left'."
        )
    usual = places.clamp_min(0)
    if positions is not None and not (
        positions.shape in ((1, width), (n, width)) and torch.equal(positions.cpu().expand(n, width), usual)
    ):
        raise InvalidParameter("position_ids is given and does not count the ids up from 0. Leave it out.")
    return [int(padding) for padding in paddings]


def _with_stop_strings(
    criteria: StoppingCriteriaList, strings: str | list[str] | None, tokenizer: PreTrainedTokenizerBase | None
) -> StoppingCriteriaList:
    if strings is None:
        return criteria
    if tokenizer is None:
        raise InvalidParameter(
            "stop_strings needs a tokenizer, and generate hands tokenizer= to no custom_generate function. Pass it as "
            "stop_tokenizer= too."
        )
    return StoppingCriteriaList([StopStringCriteria(tokenizer, strings), *criteria])


def _one_of(given: Streamer | None, withheld: Streamer | None) -> Streamer | None:
    if given is not None and withheld is not None:
        raise InvalidParameter("streamer and token_streamer are both given. Keep streamer=.")
    return withheld if given is None else given


def _warn_if_idle(row: _Row, config: GenerationConfig) -> None:
    job = row.decoding.job
    if not config.do_sample and job.m != 0 and not job.rule.lossless:
        warnings.warn(
            f"{job.rule} does nothing without do_sample: the verifier's law is one token then, and no budget moves it.",
            stacklevel=3,
        )


# ------------------------------------------------------------------------------------------ models, kept weakly

_PAIRS: WeakKeyDictionary[nn.Module, WeakKeyDictionary[Any, tuple[object, Pair]]] = WeakKeyDictionary()


def _pair_of(model: nn.Module, draft: nn.Module | str | None) -> Pair:
    """The pair of two modules, with its self-tests and measurements; kept as long as both live unchanged."""
    modules = [module for module in (model, draft) if isinstance(module, nn.Module)]
    state = [_state(module) for module in modules]
    pairs = _PAIRS.setdefault(model, WeakKeyDictionary())
    key = draft if isinstance(draft, nn.Module) else PromptLookup
    if key not in pairs or pairs[key][0] != state:
        pairs[key] = state, _new_pair(model, draft)
    return pairs[key][1]


def _state(module: nn.Module) -> object:
    """Changes with whatever a lean forward would miss: other parameters or layers, hooks, another dtype or device.

    New values in the same parameters, as training makes them, are no change: every forward reads them anew.
    """
    parts = [
        (id(part), type(part), len(part._forward_hooks), len(part._forward_pre_hooks), "forward" in part.__dict__)
        for part in module.modules()
    ]
    return parts, [(id(weight), weight.dtype, weight.device) for weight in module.parameters()]


def _new_pair(model: nn.Module, draft: nn.Module | str | None) -> Pair:
    verifier = _speculating(model, "verifier", Vocabulary(_head(model)))
    drafter: Drafter = PromptLookup(device=verifier.device)
    if isinstance(draft, nn.Module):
        if abs(_head(model) - _head(draft)) > _SURPLUS:
            raise PairMismatch(
                f"the model knows {_head(model)} ids and draft_model {_head(draft)}, so they have different "
                'tokenizers. Choose a drafter of the same model family, or draft_model="prompt-lookup".'
            )
        drafter = ModelDrafter(_speculating(draft, "drafter", verifier.vocabulary))
    return Pair(verifier, drafter, None, frozenset())


def _speculating(module: Any, role: str, vocabulary: Vocabulary) -> TransformersModel:
    """A model over a weak reference to ``module``: kept here it does not keep the module."""
    return TransformersModel(proxy(module), f"the {role} ({type(module).__name__})", vocabulary)


def _head(module: Any) -> int:
    return int(module.config.get_text_config().vocab_size)


# ------------------------------------------------------------------------------------------ processors as a law

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


# ------------------------------------------------------------------------------------------ rows, in step


@dataclass
class _Row:
    """One row of the batch in the making."""

    decoding: Decoding
    law: ProcessedLaw | None
    logits: list[Tensor] = field(default_factory=list)
    """``[V]`` per emitted id, where the law records them; after the processors:"""
    scores: list[Tensor] = field(default_factory=list)

    def token(self, place: int) -> int:
        return self.decoding.settled[len(self.decoding.job.prompt) + place]

    def take_in(self) -> None:
        """Note what the batch's step brought. Raises the error that ended the row."""
        if self.decoding.error is not None:
            raise self.decoding.error
        if self.law is not None and self.law.latest is not None:
            new = self.decoding.position - len(self.logits)
            raw, processed = self.law.latest
            self.logits += raw[:new].unbind()
            self.scores += processed[:new].unbind()

    def statistics(self, length: int) -> Statistics:
        decoding = self.decoding
        seconds = decoding.seconds, decoding.verifier_seconds, decoding.drafter_seconds
        return statistics_of((_cut(event, length) for event in decoding.events), *seconds, decoding.job.max_relaxed)


def _cut(event: Event, length: int) -> Event:
    """The event, had the response ended after ``length`` ids: what is behind was ignored."""
    left = max(0, length - event.position)
    if left >= len(event.tokens()):
        return event
    verdicts = (*event.verdicts[:left], *(Verdict.IGNORED,) * (len(event.draft) - left))
    return replace(event, verdicts=verdicts, emitted=None, q_emitted=None, h_emitted=None, top=event.top[:left])


def _laws(
    pair: Pair, input_ids: Tensor, paddings: Sequence[int], processors: LogitsProcessorList, config: GenerationConfig
) -> list[ProcessedLaw | SamplingParams]:
    """The law of each row. Without processors, and unless logits are asked for, all rows are done in one go."""
    _require_rerunnable(processors, input_ids, pair.verifier.vocabulary.size)
    params = SamplingParams(temperature=1.0 if config.do_sample else 0.0)
    records = bool(config.return_dict_in_generate and (config.output_scores or config.output_logits))
    if not processors and not records:
        return [params] * len(paddings)
    return [ProcessedLaw(processors, params, input_ids, *row, records) for row in enumerate(paddings)]


def _rows(
    pair: Pair,
    prompts: Sequence[Sequence[int]],
    laws: Sequence[ProcessedLaw | SamplingParams],
    ends: frozenset[int],
    options: Options,
) -> list[_Row]:
    """One row per prompt, with seeds that count up. Raises `InvalidParameter` or `InvalidPrompt`."""
    rows: list[_Row] = []
    for number, (prompt, law) in enumerate(zip(prompts, laws)):
        own: Options = {**options, "seed": ((options["seed"] or 0) + number) % 2**64}
        job = decoding_of(prompt, own, pair.verifier, None, frozenset()).job
        stops = Stops(ends, frozenset(), (), job.max_new_tokens, None)
        rows.append(_Row(Decoding(replace(job, shaping=law), stops), law if isinstance(law, ProcessedLaw) else None))
    return rows


def _cap(criteria: StoppingCriteriaList, config: GenerationConfig, width: int) -> int:
    """The most ids a row may emit. Criteria are asked behind a first id, so that one always comes."""
    lengths = [criterion.max_length for criterion in criteria if type(criterion) is MaxLengthCriteria]
    return max(1, min(lengths, default=config.max_length) - width)


def _certain_ends(criteria: StoppingCriteriaList) -> frozenset[int]:
    """Ids that end a row whatever else is asked, so that it need not decode on until the others have got as far."""
    ends = [criterion.eos_token_id for criterion in criteria if type(criterion) is EosTokenCriteria]
    return frozenset(int(token) for tensor in ends for token in tensor)


def _seed(seed: int | None, config: GenerationConfig) -> int:
    """Greedy decoding draws nothing, so it leaves torch's generator as it is."""
    if seed is None:
        return int(torch.randint(2**63 - 1, ())) if config.do_sample else 0
    return whole("seed", seed, 0, 2**64 - 1)


class _Steps:
    """The steps that plain ``generate`` would have taken: one id for every row, then the criteria, then the streamer.

    Rows decode at a pace of their own. A step is taken as soon as every running row has got that far, and what a row
    has decoded behind the step that ended it is dropped. As in plain ``generate``, a row that has ended is padded
    where there is an end-of-text criterion, and otherwise goes on until all have ended.
    """

    def __init__(
        self,
        input_ids: Tensor,
        rows: Sequence[_Row],
        criteria: StoppingCriteriaList,
        config: GenerationConfig,
        streamer: Streamer | None,
    ) -> None:
        self.running = list(range(len(rows)))
        self.lengths = [0] * len(rows)
        """How many ids each row has emitted."""
        self._rows = rows
        self._ids = input_ids
        self._criteria = criteria
        self._config = config
        self._streamer = streamer
        self._taken = 0
        self._unfinished = torch.ones(len(rows), dtype=torch.long, device=input_ids.device)
        self._pads = any(hasattr(criterion, "eos_token_id") for criterion in criteria)
        pad = config._pad_token_tensor
        self._pad = 0 if pad is None else int(pad)
        self._logits: tuple[Tensor, ...] | None = None
        self._scores: tuple[Tensor, ...] | None = None
        if config.return_dict_in_generate:
            self._logits = () if config.output_logits else None
            self._scores = () if config.output_scores else None
        if self._pads and pad is None and len(rows) > 1:
            raise InvalidParameter("pad_token_id is not set, and rows that end before others are padded. Pass it.")

    def advance(self) -> list[_Row]:
        """Take every step that can be taken; the rows that ended."""
        ended: list[_Row] = []
        while self.running and all(self._rows[row].decoding.position > self._taken for row in self.running):
            ended += self._step()
        return ended

    def _step(self) -> list[_Row]:
        place, self._taken = self._taken, self._taken + 1
        running = set(self.running)
        tokens = [row.token(place) if number in running else self._pad for number, row in enumerate(self._rows)]
        newest = torch.tensor(tokens, device=self._ids.device)
        self._ids = torch.cat([self._ids, newest.unsqueeze(1)], dim=1)
        self._record(place, running)
        self._unfinished &= ~self._criteria(self._ids, self._scores)
        if self._streamer is not None:
            self._streamer.put(newest.cpu())
        going = [bool(left) for left in self._unfinished.tolist()]
        if not self._pads:
            going = [any(going)] * len(going)
        for row in self.running:
            self.lengths[row] = self._taken
        ended = [self._rows[row] for row in self.running if not going[row]]
        self.running = [row for row in self.running if going[row]]
        return ended

    def _record(self, place: int, running: set[int]) -> None:
        """``[B, V]`` logits and scores of a step, where they are asked for."""
        if self._logits is not None:
            self._logits += (self._side_by_side([row.logits for row in self._rows], place, running),)
        if self._scores is not None:
            self._scores += (self._side_by_side([row.scores for row in self._rows], place, running),)

    def _side_by_side(self, found: Sequence[Sequence[Tensor]], place: int, running: set[int]) -> Tensor:
        """Of a row that has ended: what makes its padding certain."""
        padding = torch.full_like(found[0][0], -torch.inf)
        padding[self._pad] = 0.0
        return torch.stack([of_row[place] if row in running else padding for row, of_row in enumerate(found)])

    def result(self) -> Tensor | GenerateDecoderOnlyOutput:
        if not self._config.return_dict_in_generate:
            return self._ids
        found: dict[str, Any] = {"sequences": self._ids, "scores": self._scores, "logits": self._logits}
        return GenerateDecoderOnlyOutput(**found)
