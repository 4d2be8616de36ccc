"""A verifier and its drafter, ready to generate: the public face of the package."""

from __future__ import annotations

import secrets
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from numbers import Integral

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
    stop: str | Sequence[str] | None
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
        stop: str | Sequence[str] | None = None,
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
        if not isinstance(rule, Rule):
            raise InvalidParameter(f"rule is {rule!r}, but must be a rule such as Cactus(0.25). See RULES.")
        params = SamplingParams(temperature, top_k, top_p, min_p)
        seed = secrets.randbits(63) if seed is None else _whole("seed", seed, 0, 2**64 - 1)
        m = _whole("m", m, 1)
        ids = encode_prompt(prompt, self.tokenizer, self.verifier.vocabulary, chat)
        cap = self._cap(len(ids), max_new_tokens)
        stops = self._stops(stop, cap)
        if params.greedy and speculate and not rule.lossless:
            warnings.warn(
                f"{rule} does nothing at temperature 0: the verifier's law is one token then, and no budget moves it. "
                "Use a temperature above 0 to relax acceptance.",
                stacklevel=2,
            )
        request = Request(ids, rule, m, params, cap, seed)
        return Stream(Decoding(self.verifier, self.drafter if speculate else None, request, stops))

    def detokenizer(self) -> Detokenizer:
        """What turns this pair's ids into text, one at a time."""
        if self.tokenizer is None:
            raise InvalidParameter("this pair has no tokenizer, so its ids have no text. Pass tokenizer= to load_pair.")
        return Detokenizer(self.tokenizer)

    def _cap(self, prompt_length: int, max_new_tokens: int | None) -> int:
        room = self.verifier.context - prompt_length
        if room < 1:
            raise InvalidPrompt(
                f"the prompt has {prompt_length} tokens, but {self.verifier.name} holds {self.verifier.context} (the "
                "positions it knows, or its sliding window), the response included. Shorten the prompt."
            )
        if max_new_tokens is None:
            return min(DEFAULT_NEW_TOKENS, room)
        max_new_tokens = _whole("max_new_tokens", max_new_tokens, 1)
        if max_new_tokens > room:
            raise InvalidParameter(
                f"max_new_tokens is {max_new_tokens}, but behind the {prompt_length} tokens of the prompt "
                f"{self.verifier.name} has room for {room} more of its {self.verifier.context}. Ask for at most {room}."
            )
        return max_new_tokens

    def _stops(self, stop: str | Sequence[str] | None, cap: int) -> Stops:
        """A stop string that is a special token is watched for by its id, since special tokens show in no text."""
        strings = [stop] if isinstance(stop, str) else list(stop or ())
        if "" in strings:
            raise InvalidParameter("a stop string is empty, which would end every response at once. Leave it out.")
        if self.tokenizer is None:
            if strings:
                raise InvalidParameter("stop needs text, but this pair has no tokenizer. Pass tokenizer= to load_pair.")
            return Stops(self.eos, frozenset(), (), cap, None)
        special = {str(t): i for i, t in self.tokenizer.added_tokens_decoder.items() if t.special}
        ids = frozenset(special[string] for string in strings if string in special)
        return Stops(self.eos, ids, [s for s in strings if s not in special], cap, Detokenizer(self.tokenizer))


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
        """End the response here and free its caches. What came so far is in `ids` and `events`."""
        self._decoding.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def cap(self) -> int:
        """The most ids this response may have."""
        return self._decoding.request.max_new_tokens

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids emitted so far."""
        return tuple(self._decoding.ids)

    @property
    def output(self) -> Output:
        """The whole response. Raises `InvalidParameter` unless it was iterated to its end."""
        decoding = self._decoding
        if decoding.stops.reason is None:
            raise InvalidParameter(
                "this response was not iterated to its end, so it has no whole output. `ids` and `events` hold what "
                "came so far."
            )
        return Output(
            text=decoding.stops.text,
            ids=tuple(decoding.ids),
            finish_reason=decoding.stops.reason,
            stats=statistics_of(self.events, self._seconds, decoding.verifier_seconds, decoding.drafter_seconds),
            events=tuple(self.events),
            prompt_ids=decoding.request.prompt,
            seed=decoding.request.seed,
        )


def _whole(name: str, value: int, least: int, most: int | None = None) -> int:
    """``value`` as a plain int, NumPy's too; refused out of bounds or where it is no whole number."""
    if (
        isinstance(value, bool)
        or not isinstance(value, Integral)
        or value < least
        or (most is not None and value > most)
    ):
        bounds = f"at least {least}" if most is None else f"from {least} to {most}"
        raise InvalidParameter(f"{name} is {value!r}, but must be a whole number, {bounds}.")
    return int(value)
