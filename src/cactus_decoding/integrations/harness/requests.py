"""What a request of lm-eval asks for, in the words of this package: its ``gen_kwargs``, and its context as ids."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, cast

from transformers import PreTrainedTokenizerBase

from cactus_decoding.errors import InvalidParameter
from cactus_decoding.generation.request import Options, whole

_CAPS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_SAMPLING = ("top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
SUPPORTED = ("until", *_CAPS, "do_sample", "temperature", *_SAMPLING)

logger = logging.getLogger("lm_eval.models.cactus")  # below the one that lm-eval sets up


class Once:
    """Warnings of one run, each said once."""

    def __init__(self) -> None:
        self.said: set[str] = set()

    def say(self, message: str) -> None:
        if message not in self.said:
            self.said.add(message)
            logger.warning(message)


def options_of(gen_kwargs: Mapping[str, Any], defaults: Mapping[str, float], cap: int, once: Once) -> Options:
    """The options that ``gen_kwargs`` ask for; ``defaults`` and ``cap`` hold where they do not say.

    Raises `InvalidParameter` for one that is not supported, by name.
    """
    asked = {name: value for name, value in gen_kwargs.items() if value is not None}
    if asked.get("num_beams") == 1:  # one beam is no search
        del asked["num_beams"]
    for name, value in asked.items():
        if name not in SUPPORTED:
            raise InvalidParameter(
                f"the task or --gen_kwargs asks for {name}={value!r}, which the model cactus cannot do. It knows "
                f"{', '.join(SUPPORTED)}."
            )
    options: dict[str, Any] = {name: asked[name] for name in _SAMPLING if name in asked}
    options["temperature"] = _temperature(asked, defaults, once)
    options["max_new_tokens"] = _cap(asked, cap)
    options["stop"] = _stops(asked.get("until", []))
    return cast(Options, {**{name: defaults[name] for name in defaults if name != "temperature"}, **options})


def _temperature(asked: Mapping[str, Any], defaults: Mapping[str, float], once: Once) -> float:
    """As in lm-eval: do_sample=False is greedy, and so is a request that says nothing at all."""
    sample, temperature = asked.get("do_sample"), asked.get("temperature", defaults.get("temperature"))
    if not (sample is None or isinstance(sample, bool)):
        raise InvalidParameter(f"do_sample is {sample!r}, but must be True or False.")
    if sample is False:
        if temperature:
            once.say(
                f"temperature={temperature} does nothing: the task asks for do_sample=False, greedy decoding. To "
                f"sample nevertheless, give --gen_kwargs do_sample=True,temperature={temperature}."
            )
        return 0.0
    if temperature is None:
        return 1.0 if sample else 0.0
    if sample and temperature == 0.0:
        once.say("do_sample=True does nothing at temperature 0, which is greedy. Give a temperature above 0 to sample.")
    return cast(float, temperature)


def _cap(asked: Mapping[str, Any], default: int) -> int:
    given = [name for name in _CAPS if name in asked]
    if len({asked[name] for name in given}) > 1:
        both = ", ".join(f"{name}={asked[name]!r}" for name in given)
        raise InvalidParameter(f"the cap on new tokens is given several times: {both}. Give one of them.")
    return whole(given[0], asked[given[0]], 1) if given else default


def _stops(until: Any) -> list[str]:
    """Empty ones are left out, as lm-eval does."""
    strings = [until] if isinstance(until, str) else until
    if not (isinstance(strings, list | tuple) and all(isinstance(string, str) for string in strings)):
        raise InvalidParameter(f"until is {until!r}, but must be text or a list of texts.")
    return [string for string in strings if string]


def encode_context(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids of a context as it is: few-shot examples and chat template are lm-eval's part, and stand in it already."""
    bos = tokenizer.bos_token
    templated = isinstance(bos, str) and bool(bos) and text.startswith(bos)
    return list(tokenizer.encode(text, add_special_tokens=False) if templated else tokenizer.encode(text))


def fitted(ids: list[int], cap: int, context: int) -> list[int]:
    """The last of ``ids``, as many as leave room for ``cap`` more in a model that holds ``context``."""
    if cap >= context:
        raise InvalidParameter(
            f"{cap} new tokens are asked for, but the verifier holds {context}, the prompt included. Give --gen_kwargs "
            "max_gen_toks=... of less."
        )
    return ids[-(context - cap) :]
