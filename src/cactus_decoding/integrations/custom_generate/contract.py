"""What of the contract of ``model.generate`` can be kept, and what is refused by name."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin, PreTrainedTokenizerBase
from transformers.generation.stopping_criteria import (
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.integrations.fsdp import is_fsdp_managed_module

from cactus_decoding.errors import InvalidParameter, InvalidPrompt
from cactus_decoding.generation.loading import PROMPT_LOOKUP


class Streamer(Protocol):
    """A streamer of transformers, or what looks like one."""

    def put(self, value: Tensor) -> None: ...
    def end(self) -> None: ...


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


def withheld_arguments() -> dict[str, Any]:
    """The arguments that ``generate`` keeps from every callable, read where it waits for this one; {} elsewhere.

    Ignored, they would do harm: a streamer would get the prompt, no token and no end, so that whoever reads a
    TextIteratorStreamer waits forever.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not _GENERATE:
        frame = frame.f_back
    names = ("streamer", "assistant_model", "synced_gpus")
    return {} if frame is None else {name: frame.f_locals.get(name) for name in names}


def complaints(
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
    """`complaints` about what is fed to the model and what is wanted of it."""
    for name in ("output_attentions", "output_hidden_states"):
        if config.return_dict_in_generate and getattr(config, name):
            yield f"{name} is True, but refused drafts and blocks have no place in it. Run the model on the result."
    cache = model_kwargs.get("cache", model_kwargs.get("past_key_values"))
    if cache is not None and (getattr(cache, "_is_user_defined", False) or cache.get_seq_length() > 0):
        yield "cache (past_key_values) is given, but speculation needs its own. Pass the whole text as ids instead."
    for name, value in model_kwargs.items():
        if value is not None and name not in _EXPECTED:
            yield f"{name} is given, but drafter and verifier are fed ids alone here. Leave it out."


def left_paddings(input_ids: Tensor, model_kwargs: Mapping[str, Any]) -> list[int]:
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


def with_stop_strings(
    criteria: StoppingCriteriaList, strings: str | list[str] | None, tokenizer: PreTrainedTokenizerBase | None
) -> StoppingCriteriaList:
    """The criteria, with one for stop strings where there are any. Raises `InvalidParameter` without a tokenizer."""
    if strings is None:
        return criteria
    if tokenizer is None:
        raise InvalidParameter(
            "stop_strings needs a tokenizer, and generate hands tokenizer= to no custom_generate function. Pass it as "
            "stop_tokenizer= too."
        )
    return StoppingCriteriaList([StopStringCriteria(tokenizer, strings), *criteria])


def one_streamer(given: Streamer | None, withheld: Streamer | None) -> Streamer | None:
    """The one that was passed; `InvalidParameter` if both were."""
    if given is not None and withheld is not None:
        raise InvalidParameter("streamer and token_streamer are both given. Keep streamer=.")
    return withheld if given is None else given
