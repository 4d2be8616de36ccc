"""From what a person hands in to the ids that decoding starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, cast

import torch
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from cactus_decoding.errors import InvalidParameter, InvalidPrompt
from cactus_decoding.models.base import Vocabulary

Message = Mapping[str, str]
Prompt = str | Sequence[Message] | Sequence[int] | torch.Tensor


def encode_prompt(
    prompt: Prompt, tokenizer: PreTrainedTokenizerBase | None, vocabulary: Vocabulary, chat: bool | None
) -> tuple[int, ...]:
    """Ids of a text, of chat messages, or of ids (a sequence, or a tensor ``[k]`` or ``[1, k]``).

    A text becomes one user message where the tokenizer has a chat template, unless ``chat`` is False; messages
    always use the template. Raises `InvalidPrompt` for nothing, and for ids outside the vocabulary.
    """
    ids = _encode_text(prompt, _required(tokenizer), chat) if _is_text(prompt) else _plain_ids(prompt, chat)
    if not ids:
        raise InvalidPrompt("the prompt is empty, and the verifier needs at least one token to continue. Give a text.")
    strangers = vocabulary.strangers(ids)
    if strangers:
        raise InvalidPrompt(
            f"the prompt holds the id {strangers[0]}, which is no token of this pair's vocabulary of "
            f"{vocabulary.size}. Encode the text with the pair's own tokenizer."
        )
    return tuple(ids)


def _is_text(prompt: Prompt) -> bool:
    return isinstance(prompt, str) or (isinstance(prompt, list | tuple) and any(isinstance(p, Mapping) for p in prompt))


def _plain_ids(prompt: Any, chat: bool | None) -> list[int]:
    if chat:
        raise InvalidParameter(
            "chat is True, but the prompt is ids, which no template can wrap. Give text or messages."
        )
    if isinstance(prompt, torch.Tensor):
        if prompt.dim() > 1 and prompt.shape[:-1].numel() != 1:
            raise InvalidPrompt(
                f"the prompt has shape {list(prompt.shape)}, but it must be one row of ids, [k] or [1, k]."
            )
        prompt = prompt.flatten().tolist()
    try:
        return [index(i) for i in prompt]
    except TypeError as error:
        raise InvalidPrompt(
            f"the prompt is a {type(prompt).__name__} that holds something else than whole numbers ({error}). "
            "Give a text, a list of messages, or ids."
        ) from error


def _required(tokenizer: PreTrainedTokenizerBase | None) -> PreTrainedTokenizerBase:
    if tokenizer is None:
        raise InvalidPrompt(
            "this pair has no tokenizer, so a prompt must be ids. Pass tokenizer= to load_pair for text."
        )
    return tokenizer


def _encode_text(prompt: Any, tokenizer: PreTrainedTokenizerBase, chat: bool | None) -> list[int]:
    text = isinstance(prompt, str)
    if text and not prompt:
        return []
    templated = chat if chat is not None else (not text or bool(tokenizer.chat_template))
    if not templated:
        if not text:
            raise InvalidParameter(
                "chat is False, but the prompt is a list of messages. Give a text, or leave chat out."
            )
        return list(tokenizer.encode(prompt))
    if not tokenizer.chat_template:
        raise InvalidPrompt(
            "the prompt is a chat, but this tokenizer has no chat template. Give a text with chat=False."
        )
    messages = [{"role": "user", "content": prompt}] if text else [dict(message) for message in prompt]
    try:
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
    except TemplateError as error:
        raise InvalidPrompt(f"the model's chat template refuses these messages: {error}") from error
    return [int(i) for i in cast(list[int], ids)]
