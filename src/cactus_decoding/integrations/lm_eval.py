"""The model "cactus" of lm-evaluation-harness: its generating tasks, decoded by speculation under a rule.

    cactus lm-eval --model cactus --model_args pretrained=...,draft=...,rule=cactus,delta=0.25 --tasks gsm8k

Importing this module registers the model, so `lm_eval.simple_evaluate(model="cactus", ...)` knows it too.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jinja2 import TemplateError
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from cactus_decoding.errors import InvalidParameter, InvalidPrompt, MissingExtra
from cactus_decoding.generation.pair import Pair
from cactus_decoding.generation.request import Options, Request
from cactus_decoding.generation.statistics import Statistics, total
from cactus_decoding.integrations.harness.arguments import arguments_of, merged
from cactus_decoding.integrations.harness.requests import Once, encode_context, fitted, logger, options_of
from cactus_decoding.rules import spec_of

try:
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ImportError as error:
    raise MissingExtra('the model cactus needs lm-evaluation-harness: pip install "cactus-decoding[eval]"') from error

_CHUNK = 16
"""Responses per row that are decoded, and then reported, at a time: the last of a chunk leave rows empty."""


@register_model("cactus")
class CactusLM(LM):  # type: ignore[misc]
    """A pair and a rule as a model of lm-eval. Its arguments are those of `harness.arguments.NAMES`.

    ``pretrained`` may also be a `Pair`, and ``rule`` a `Rule`, where this class is used from Python.

    Raises:
        InvalidParameter: an argument that is unknown or out of its range.
        PairMismatch, ModelRefused: the two models do not fit each other, or cannot be loaded.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        self.arguments = arguments_of(arguments)
        self.pair: Pair = self.arguments.load()
        self.statistics: Statistics | None = None
        """Summed over every response so far."""
        self.truncated = 0
        """Contexts that were too long, and lost their beginning."""
        self._once = Once()
        checked = Options(**{**self.arguments.options(), **self.arguments.defaults, "chat": False})  # type: ignore[typeddict-item]
        self.pair.prepare("1", **checked)

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: Mapping[str, Any] | None = None) -> CactusLM:
        from lm_eval.utils import simple_parse_args_string

        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: Mapping[str, Any], additional_config: Mapping[str, Any] | None = None
    ) -> CactusLM:
        return cls(**merged(arg_dict, additional_config))

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """The responses to contexts, each cut before its first stop string.

        All requests are checked before the first is decoded. Their seeds count up from ``seed``, or from a number
        out of torch's generator, which lm-eval sets by its own ``--seed``.
        """
        seed = self.arguments.seed
        first = int(torch.randint(2**63 - 1, ())) if seed is None else seed
        contexts = [request.args for request in requests]
        prepared = [self._request(text, wish, (first + i) % 2**64) for i, (text, wish) in enumerate(contexts)]
        chunk = _CHUNK * self.arguments.rows
        texts: list[str] = []
        with tqdm(total=len(requests), disable=disable_tqdm, desc="Running generate_until requests") as bar:
            for start in range(0, len(prepared), chunk):
                outputs = self.pair.generate(prepared[start : start + chunk], rows=self.arguments.rows)
                known = [] if self.statistics is None else [self.statistics]
                self.statistics = total([*known, *(output.stats for output in outputs)])
                for request, output in zip(requests[start:], outputs):
                    self.cache_hook.add_partial("generate_until", request.args, output.text)
                texts += [output.text for output in outputs]
                bar.update(len(outputs))
        self._report()
        return texts

    def _request(self, context: str, gen_kwargs: Mapping[str, Any], seed: int) -> Request:
        options = options_of(gen_kwargs, self.arguments.defaults, self.arguments.max_gen_toks, self._once)
        ids = encode_context(context, self.tokenizer)
        kept = fitted(ids, options["max_new_tokens"] or 0, self.max_length)
        if len(kept) < len(ids):
            self.truncated += 1
            self._once.say(
                f"a context of {len(ids)} tokens is cut at its beginning to the last {len(kept)}, which leave room for "
                "the response; so are others that are too long. How many is in the report at the end."
            )
        return Request(kept, Options(**{**self.arguments.options(), **options, "seed": seed}))

    def _report(self) -> None:
        if self.statistics is None:
            return
        found = self.statistics
        logger.info(
            f"{spec_of(self.arguments.rule)}: {found.tokens} tokens in {found.verifier_calls} verifier calls, "
            f"{found.tokens_per_second:.1f} tokens/s; AL {found.accepted_length:.2f}, acceptance "
            f"{found.acceptance:.3f}, relaxed {found.relaxed_share:.4f}; {self.truncated} contexts were cut"
        )

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Refused: see the message."""
        raise InvalidParameter(
            "the task asks for log likelihoods of given texts, but a rule changes only what is generated: they are the "
            "verifier's own, whatever the rule. Use lm-eval's model hf for this task, or a generating task here."
        )

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Refused, as `loglikelihood`."""
        self.loglikelihood(requests)
        return []

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The text of a conversation, ready to be continued. Raises `InvalidPrompt` where the template refuses it."""
        self._require_template()
        try:
            text = self.tokenizer.apply_chat_template(
                chat_history,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        except TemplateError as error:
            raise InvalidPrompt(f"the model's chat template refuses these messages: {error}") from error
        return str(text)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The template itself, for lm-eval's records."""
        if isinstance(chat_template, str):
            raise InvalidParameter(
                f"--apply_chat_template names the template {chat_template!r}, but the tokenizer's default one is used "
                "here. Leave the name out."
            )
        if not chat_template:
            return None
        self._require_template()
        return str(self.tokenizer.get_chat_template())

    def _require_template(self) -> None:
        if not self.tokenizer.chat_template:
            raise InvalidParameter("--apply_chat_template is given, but this tokenizer has no template. Leave it out.")

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        assert self.pair.tokenizer is not None  # `Arguments.load` saw to it
        return self.pair.tokenizer

    @property
    def tokenizer_name(self) -> str:
        """For the names of lm-eval's request caches."""
        return str(self.tokenizer.name_or_path).replace("/", "__")

    @property
    def max_length(self) -> int:
        return self.pair.verifier.context

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval adds to the ``config`` of its results."""
        statistics = None if self.statistics is None else self.statistics.to_dict()
        decoding = {**self.arguments.options(), "rule": spec_of(self.arguments.rule)}
        return {"cactus": {**decoding, "statistics": statistics, "truncated_contexts": self.truncated}}


def main(words: Sequence[str]) -> None:
    """lm-eval's own command line, with the model cactus known to it."""
    from lm_eval.__main__ import cli_evaluate

    sys.argv = ["lm-eval", *words]
    cli_evaluate()
