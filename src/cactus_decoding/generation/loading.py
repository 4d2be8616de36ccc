"""`load_pair`: from two names to a pair that is known to fit together."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from cactus_decoding.drafters import Drafter, ModelDrafter, PromptLookup
from cactus_decoding.embedded import ABACUS_DIR
from cactus_decoding.errors import InvalidParameter
from cactus_decoding.generation.pair import Pair
from cactus_decoding.models.base import Vocabulary
from cactus_decoding.models.tokenizers import require_same_tokens, vocabulary_of
from cactus_decoding.models.transformers import TransformersModel, load_module

ABACUS = "abacus"
PROMPT_LOOKUP = "prompt-lookup"


def load_pair(
    model: str | nn.Module = ABACUS,
    draft: str | nn.Module | None = None,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
) -> Pair:
    """Load a verifier and its drafter, and prove that they can work together.

    Args:
        model: the verifier: a hub id, a local folder, a ``.gguf`` file, a transformers module already in
            memory, or "abacus", the pair that ships with this package.
        draft: the drafter: likewise, or "prompt-lookup" for n-grams of the text so far, which needs no second
            model. May be left out for "abacus" only.
        tokenizer: the tokenizer of modules in memory, which are taken at their word that they share it; without
            one, prompts and outputs are ids.
        dtype, device: of models loaded by name; see `cactus_decoding.models.transformers.load_module`. Modules in
            memory stay as they are.

    Raises:
        PairMismatch: the two have different tokens.
        ModelRefused: a model cannot be loaded, or its cache cannot be rewound.
    """
    if draft is None and model != ABACUS:
        raise InvalidParameter(
            "draft is missing. Give a small model of the same family, or draft='prompt-lookup', which needs none."
        )
    _require_fitting_options(model, draft, tokenizer, dtype, device)
    module, tokenizer = _load(model, "verifier", tokenizer, dtype, device)
    vocabulary = vocabulary_of(tokenizer, _rows(module)) if tokenizer else Vocabulary(_rows(module))
    verifier = TransformersModel(module, _name(model, "verifier"), vocabulary)
    return Pair(
        verifier, _drafter(draft or ABACUS, verifier, tokenizer, dtype, device), tokenizer, _eos(module, tokenizer)
    )


def _require_fitting_options(model: object, draft: object, tokenizer: object, dtype: object, device: object) -> None:
    """Refuse options that would be ignored."""
    in_memory = isinstance(model, nn.Module)
    if in_memory and (draft == PROMPT_LOOKUP or isinstance(draft, nn.Module)):
        for name, value in (("dtype", dtype), ("device", device)):
            if value is not None:
                raise InvalidParameter(
                    f"{name} is {value!r}, but the modules are in memory already. Use module.to(...)."
                )
    if in_memory and tokenizer is None and isinstance(draft, str) and draft != PROMPT_LOOKUP:
        raise InvalidParameter(
            f"the verifier is a module without a tokenizer, so its tokens cannot be compared with those of {draft!r}. "
            "Pass tokenizer=."
        )
    if not in_memory and tokenizer is not None:
        raise InvalidParameter(f"tokenizer is given, but {model!r} brings its own. Leave it out, or pass a module.")


def _drafter(
    draft: str | nn.Module,
    verifier: TransformersModel,
    tokenizer: PreTrainedTokenizerBase | None,
    dtype: str | torch.dtype | None,
    device: str | torch.device | None,
) -> Drafter:
    if draft == PROMPT_LOOKUP:
        return PromptLookup(device=verifier.device)
    module, own = _load(draft, "drafter", tokenizer, dtype, device or verifier.device)
    vocabulary, tokens = verifier.vocabulary, None
    if tokenizer is not None and own is not None:
        require_same_tokens(tokenizer, own)
        tokens = vocabulary_of(own, _rows(module))
        vocabulary = vocabulary.shared_with(tokens)
    drafter = TransformersModel(module, _name(draft, "drafter"), vocabulary)
    return ModelDrafter(drafter, tokens)


def _load(
    source: str | nn.Module,
    role: str,
    tokenizer: PreTrainedTokenizerBase | None,
    dtype: str | torch.dtype | None,
    device: str | torch.device | None,
) -> tuple[nn.Module, PreTrainedTokenizerBase | None]:
    if isinstance(source, nn.Module):
        return source, tokenizer
    return load_module(str(ABACUS_DIR / role) if source == ABACUS else source, dtype, device)


def _name(source: str | nn.Module, role: str) -> str:
    return f"the {role} ({source if isinstance(source, str) else type(source).__name__})"


def _rows(module: Any) -> int:
    return int(module.config.get_text_config().vocab_size)


def _eos(module: Any, tokenizer: PreTrainedTokenizerBase | None) -> frozenset[int]:
    """The ids that end a response, as the model's generation config or else its tokenizer names them."""
    named = getattr(getattr(module, "generation_config", None), "eos_token_id", None)
    if named is None and tokenizer is not None:
        named = tokenizer.eos_token_id
    if named is None:
        return frozenset()
    return frozenset(named if isinstance(named, (list, tuple)) else [named])
