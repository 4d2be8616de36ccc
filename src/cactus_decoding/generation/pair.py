"""A verifier and its drafter, ready to generate: the public face of the package."""

from __future__ import annotations

import secrets
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase
from typing_extensions import TypedDict, Unpack

from cactus_decoding.drafters.base import Drafter
from cactus_decoding.errors import InvalidParameter, InvalidPrompt
from cactus_decoding.generation.engine import Decoding, Request
from cactus_decoding.generation.events import Event
from cactus_decoding.generation.prompt import Prompt, encode_prompt
from cactus_decoding.generation.statistics import Statistics, statistics_of
from cactus_decoding.generation.stops import FinishReason, Stops
from cactus_decoding.generation.text import Detokenizer
from cactus_decoding.models.base import Model
from cactus_decoding.rules import Lossless, Rule
from cactus_decoding.sampling import SamplingParams

DEFAULT_M = 5
DEFAULT_NEW_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Output:
    """One response. ``text``, ``ids``, ``finish_reason`` and ``stats`` all end at the same token."""

    text: str
    ids: tuple[int, ...]
    """The emitted ids, the one that ended the response included."""
    finish_reason: FinishReason
    stats: Statistics
    events: tuple[Event, ...] = field(repr=False)
    prompt_ids: tuple[int, ...] = field(repr=False)
    seed: int
    """Pass it as ``seed=`` to get this response again."""


class Options(TypedDict, total=False):
    """The options of `Pair.generate`; `Pair.stream` says what each means and its default."""

    rule: Rule | None
    m: int
    max_new_tokens: int | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    stop: str | Sequence[str]
    seed: int | None
    chat: bool | None
    speculate: bool


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

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Output:
        """The whole response to ``prompt``. Takes what `stream` takes."""
        stream = self.stream(prompt, **options)
        for _ in stream:
            pass
        return stream.output

    def stream(
        self,
        prompt: Prompt,
        *,
        rule: Rule | None = None,
        m: int = DEFAULT_M,
        max_new_tokens: int | None = None,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        stop: str | Sequence[str] = (),
        seed: int | None = None,
        chat: bool | None = None,
        speculate: bool = True,
    ) -> Stream:
        """The response piece by piece; after the last piece, ``.output`` holds the whole.

        Args:
            prompt: a text, a list of ``{"role": ..., "content": ...}`` messages, or ids.
            rule: the acceptance rule; `Lossless` by default.
            m: draft length, at least 1: how many tokens the drafter proposes per verifier call.
            max_new_tokens: the cap; by default 256, or what the context still holds if that is less.
            temperature, top_k, top_p, min_p: see `SamplingParams`; used for drafter and verifier alike.
            stop: text that ends the response and does not show in it.
            seed: same seed and same request, same text. Drawn afresh, and reported, by default.
            chat: whether a text is wrapped in the tokenizer's chat template; by default, if there is one.
            speculate: False decodes with the verifier alone, one token per call: what speed is compared with.

        Raises:
            InvalidParameter, InvalidPrompt: at the call, before anything is generated.
            BrokenLogits: while iterating, if a model returns NaN.
        """
        rule = Lossless() if rule is None else rule
        params = SamplingParams(temperature, top_k, top_p, min_p)
        seed = secrets.randbits(63) if seed is None else seed
        _require_whole("m", m, 1)
        _require_whole("seed", seed, 0, 2**64 - 1)
        ids = encode_prompt(prompt, self.tokenizer, self.verifier.vocabulary, chat)
        cap = self._cap(len(ids), max_new_tokens)
        stops = Stops(self.eos, self._stop_strings(stop), cap, Detokenizer(self.tokenizer) if self.tokenizer else None)
        if params.greedy and speculate and not rule.lossless:
            warnings.warn(
                f"{rule} does nothing at temperature 0: the verifier's law is one token then, and no budget moves it. "
                "Use a temperature above 0 to relax acceptance.",
                stacklevel=2,
            )
        request = Request(ids, rule, m, params, cap, seed)
        return Stream(Decoding(self.verifier, self.drafter if speculate else None, request, stops))

    def text_of(self, token: int) -> str:
        """What one id reads as by itself; a piece of a character reads as the replacement sign."""
        if self.tokenizer is None:
            raise InvalidParameter("this pair has no tokenizer, so its ids have no text. Pass tokenizer= to load_pair.")
        return str(self.tokenizer.decode([token], clean_up_tokenization_spaces=False))

    def _cap(self, prompt_length: int, max_new_tokens: int | None) -> int:
        room = self.verifier.context - prompt_length
        if room < 1:
            raise InvalidPrompt(
                f"the prompt has {prompt_length} tokens, but {self.verifier.name} holds {self.verifier.context} with "
                "the response included. Shorten the prompt."
            )
        if max_new_tokens is None:
            return min(DEFAULT_NEW_TOKENS, room)
        _require_whole("max_new_tokens", max_new_tokens, 1)
        if max_new_tokens > room:
            raise InvalidParameter(
                f"max_new_tokens is {max_new_tokens}, but behind the {prompt_length} tokens of the prompt "
                f"{self.verifier.name} has room for {room} more of its {self.verifier.context}. Ask for at most {room}."
            )
        return max_new_tokens

    def _stop_strings(self, stop: str | Sequence[str]) -> tuple[str, ...]:
        strings = (stop,) if isinstance(stop, str) else tuple(stop)
        if "" in strings:
            raise InvalidParameter("a stop string is empty, which would end every response at once. Leave it out.")
        if strings and self.tokenizer is None:
            raise InvalidParameter(
                "stop strings need text, but this pair has no tokenizer. Pass tokenizer= to load_pair."
            )
        return strings


class Stream(Iterator[str]):
    """Iterate for the pieces of text; `events` and, at the end, `output` tell the rest.

    No piece ends inside a character or may still turn out to begin a stop string. Iteration may pause and go on;
    `close` ends it early and frees the caches at once.
    """

    def __init__(self, decoding: Decoding) -> None:
        self._decoding = decoding
        self._seconds = 0.0
        self.events: list[Event] = []

    def __next__(self) -> str:
        while not self._decoding.done:
            began = time.perf_counter()
            self.events.append(self._decoding.step())
            piece = self._decoding.stops.take_piece()
            self._seconds += time.perf_counter() - began
            if piece:
                return piece
        raise StopIteration

    def close(self) -> None:
        self._decoding.close()

    @property
    def output(self) -> Output:
        """The whole response. Raises `InvalidParameter` while it is not finished."""
        decoding = self._decoding
        if decoding.stops.reason is None:
            raise InvalidParameter("this response is not finished, so it has no output yet. Iterate to its end first.")
        return Output(
            text=decoding.stops.text,
            ids=tuple(decoding.ids),
            finish_reason=decoding.stops.reason,
            stats=statistics_of(self.events, self._seconds, decoding.verifier_seconds, decoding.drafter_seconds),
            events=tuple(self.events),
            prompt_ids=decoding.request.prompt,
            seed=decoding.request.seed,
        )


def _require_whole(name: str, value: int, least: int, most: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        bounds = f"at least {least}" if most is None else f"from {least} to {most}"
        raise InvalidParameter(f"{name} is {value!r}, but must be a whole number, {bounds}.")
