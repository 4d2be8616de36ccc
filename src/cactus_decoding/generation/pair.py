"""A verifier and its drafter, ready to generate: the public face of the package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast, overload

import torch
from transformers import PreTrainedTokenizerBase
from typing_extensions import Unpack

from cactus_decoding.drafters.base import Drafter
from cactus_decoding.errors import BatchFailed, InvalidParameter
from cactus_decoding.generation.costs import measure_step_costs
from cactus_decoding.generation.drafting import StepCosts
from cactus_decoding.generation.engine import Batch, Decoding
from cactus_decoding.generation.output import Output
from cactus_decoding.generation.prompt import Message, Prompt
from cactus_decoding.generation.request import Options, Request, decoding_of, whole
from cactus_decoding.generation.session import Session, Stream
from cactus_decoding.generation.text import Detokenizer
from cactus_decoding.models.base import Model

DEFAULT_ROWS = 8

Single = Prompt | Request
Many = Sequence[str] | Sequence[Request] | Sequence[list[Message]] | Sequence[list[int]] | Sequence[torch.Tensor]


class Pair:
    """Made by `load_pair`. Safe to use for several responses at a time: each has its own caches."""

    def __init__(
        self,
        verifier: Model,
        drafter: Drafter,
        tokenizer: PreTrainedTokenizerBase | None,
        eos: frozenset[int],
    ) -> None:
        self.verifier = verifier
        self.drafter = drafter
        self.tokenizer = tokenizer
        self.eos = eos
        self._costs: dict[int, StepCosts] = {}

    @overload
    def generate(  # type: ignore[overload-overlap]  # a str is a Sequence[str], and one prompt
        self, prompt: Single, *, rows: int = ..., **options: Unpack[Options]
    ) -> Output: ...
    @overload
    def generate(self, prompt: Many, *, rows: int = ..., **options: Unpack[Options]) -> list[Output]: ...
    def generate(
        self, prompt: Single | Many, *, rows: int = DEFAULT_ROWS, **options: Unpack[Options]
    ) -> Output | list[Output]:
        """The whole response to ``prompt``, or those to a list of prompts, decoded together.

        Args:
            prompt: a text, a list of ``{"role": ..., "content": ...}`` messages, or ids; or a list of such, or of
                `Request`, each with options of its own.
            rows: how many of a list are decoded at a time; the others wait for a free place.
            options: see `Options`. A ``seed`` for a list is that of its first response; the others count up.

        Raises:
            InvalidParameter, InvalidPrompt: before anything is generated.
            BrokenLogits: if a model returns NaN; for a list `BatchFailed`, which holds the responses that ended well.
        """
        if not is_list(prompt):
            with self.stream(cast(Single, prompt), **options) as stream:
                for _ in stream:
                    pass
                return stream.output
        requests = [_numbered(request, number, options) for number, request in enumerate(cast(Many, prompt))]
        decodings = [self.prepare(request.prompt, **request.options) for request in requests]
        with self.session(rows=rows) as session:
            streams = [session.submit_prepared(decoding) for decoding in decodings]
            session.run()
        return _outputs(streams)

    def stream(self, prompt: Single, **options: Unpack[Options]) -> Stream:
        """The response piece by piece; after the last piece, ``.output`` holds the whole. Takes what `generate` takes.

        Raises:
            InvalidParameter, InvalidPrompt: at the call, before anything is generated.
            BrokenLogits: while iterating, if a model returns NaN.
        """
        request = _numbered(prompt, 0, options)
        decoding = self.prepare(request.prompt, **request.options)
        return self.session(rows=1).submit_prepared(decoding)

    def session(self, rows: int = DEFAULT_ROWS, waiting: int = 32) -> Session:
        """Continuous batching: submit requests while others run; see `Session`.

        Args:
            rows: how many decode together; bounds the memory.
            waiting: how many more may wait for a row before `Session.submit` makes the caller wait.
        """
        batch = Batch(self.verifier, self.drafter, self.step_costs)
        return Session(batch, self.prepare, whole("rows", rows, 1), whole("waiting", waiting, 0))

    def step_costs(self, n: int) -> StepCosts:
        """Seconds of a step of ``n`` rows, or of the next power of two, by draft length.

        Measured when first asked for, once and not all the time, so that a request with a seed adapts its draft
        length in the same way again.
        """
        measured = 1 << (n - 1).bit_length()
        if measured not in self._costs:
            self._costs[measured] = measure_step_costs(self.verifier, self.drafter, measured)
        return self._costs[measured]

    def detokenizer(self) -> Detokenizer:
        """What turns this pair's ids into text, one at a time."""
        if self.tokenizer is None:
            raise InvalidParameter("this pair has no tokenizer, so its ids have no text. Pass tokenizer= to load_pair.")
        return Detokenizer(self.tokenizer)

    def prepare(self, prompt: Prompt, **options: Unpack[Options]) -> Decoding:
        return decoding_of(prompt, options, self.verifier, self.tokenizer, self.eos, self.drafter.certain)


def is_list(prompt: object) -> bool:
    """Whether this is a list of prompts, and not one prompt: ids, or the messages of a chat."""
    return isinstance(prompt, list | tuple) and (
        not prompt or any(isinstance(part, str | list | tuple | torch.Tensor | Request) for part in prompt)
    )


def _numbered(prompt: Any, number: int, common: Mapping[str, Any]) -> Request:
    """A request with the common options where it has none of its own; the common seed counts up."""
    request = prompt if isinstance(prompt, Request) else Request(prompt)
    options = {**common, **request.options}
    if common.get("seed") is not None and "seed" not in request.options:
        options["seed"] = (whole("seed", common["seed"], 0, 2**64 - 1) + number) % 2**64
    return Request(request.prompt, cast(Options, options))


def _outputs(streams: Sequence[Stream]) -> list[Output]:
    """All of them, or `BatchFailed` with those there are."""
    errors = {number: stream.error for number, stream in enumerate(streams) if stream.error is not None}
    outputs = [None if stream.error else stream.output for stream in streams]
    if errors:
        first = min(errors)
        raise BatchFailed(
            f"{len(errors)} of {len(streams)} responses failed, the first is number {first}: {errors[first]} What "
            "ended well is in this error's `outputs`.",
            outputs,
            errors,
        ) from errors[first]
    return [output for output in outputs if output is not None]
