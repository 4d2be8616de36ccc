"""One request: a prompt with options of its own, checked and turned into what the engine runs."""

from __future__ import annotations

import secrets
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Literal

from transformers import PreTrainedTokenizerBase
from typing_extensions import TypedDict

from cactus_decoding.errors import InvalidParameter, InvalidPrompt
from cactus_decoding.generation.engine import Decoding, Job
from cactus_decoding.generation.prompt import Prompt, encode_prompt
from cactus_decoding.generation.stops import Stops
from cactus_decoding.generation.text import Detokenizer
from cactus_decoding.laws import shaping_of
from cactus_decoding.models.base import Model, Vocabulary
from cactus_decoding.rules import Lossless, Rule
from cactus_decoding.sampling import SamplingParams
from cactus_decoding.verify import require_fitting

DEFAULT_NEW_TOKENS = 256
_MOST_LOGPROBS = 100
_ROUNDING = 1e-9  # .29 of 100 tokens is 29 of them


class Options(TypedDict, total=False):
    """The options of a response.

    rule: the acceptance rule; `Lossless` by default.
    m: draft length: how many tokens the drafter proposes per verifier call. "auto", the default, adapts it to what
        drafting costs and how much is accepted; 0 leaves the verifier alone.
    max_new_tokens: the cap; by default 256, or what the context still holds if that is less.
    temperature, top_k, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty, logit_bias: see
        `SamplingParams`; used for drafter and verifier alike.
    stop: text, or several, that ends the response and does not show in it.
    stop_token_ids: ids that end the response; they show in its ids.
    ignore_eos: go on behind an end-of-text id.
    seed: same seed and same request, same text. Drawn afresh, and reported, by default.
    chat: whether a text is wrapped in the tokenizer's chat template; by default, if there is one.
    max_relaxed: the most relaxed tokens of this response, a whole number, or a share (a float below 1) of
        max_new_tokens. Once they are spent the rule is lossless to the end.
    block: verify whole blocks: keeps more per call at the same law, the verifier's or the rule's, and reads whole
        rows. Not with max_relaxed, unless the rule is lossless.
    audit: measure every audit-th verifier call exactly: `Statistics.audit` then tells the KL of the emitted law
        from the verifier's. 0, the default, is off; 1 is all.
    logprobs: how many of the likeliest tokens to list beside each emitted one.
    """

    rule: Rule | None
    m: int | Literal["auto"]
    max_new_tokens: int | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[int, float]
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    seed: int | None
    chat: bool | None
    max_relaxed: int | float | None
    block: bool
    audit: int
    logprobs: int


@dataclass(frozen=True)
class Request:
    """A prompt with options of its own, for one response among several. They go before the common ones."""

    prompt: Prompt
    options: Options = field(default_factory=Options)


_SAMPLING = tuple(SamplingParams.__dataclass_fields__)


def decoding_of(
    prompt: Prompt,
    options: Options,
    verifier: Model,
    tokenizer: PreTrainedTokenizerBase | None,
    eos: frozenset[int],
    certain: bool,
) -> Decoding:
    """Check a request and make ready to decode it. Raises `InvalidParameter` or `InvalidPrompt`.

    ``certain``: whether the drafter's laws are point masses.
    """
    unknown = [name for name in options if name not in Options.__annotations__]
    if unknown:
        raise InvalidParameter(
            f"{unknown[0]!r} is no option of a response. The options are {', '.join(Options.__annotations__)}."
        )
    rule = Lossless() if options.get("rule") is None else options["rule"]
    if not isinstance(rule, Rule):
        raise InvalidParameter(f"rule is {rule!r}, but must be a rule such as Cactus(0.25). See RULES.")
    sampling = {name: options[name] for name in _SAMPLING if options.get(name) is not None}  # type: ignore[literal-required]
    params = SamplingParams(**sampling)
    ids = encode_prompt(prompt, tokenizer, verifier.vocabulary, options.get("chat"))
    cap = _cap(len(ids), options.get("max_new_tokens"), verifier)
    job = Job(
        prompt=ids,
        rule=rule,
        m=_draft_length(options.get("m", "auto")),
        shaping=shaping_of(params, len(ids)),
        max_new_tokens=cap,
        seed=_seed(options.get("seed")),
        max_relaxed=_budget(options.get("max_relaxed"), cap),
        block=options.get("block", False),
        audit=whole("audit", options.get("audit", 0), 0),
        logprobs=whole("logprobs", options.get("logprobs", 0), 0, _MOST_LOGPROBS),
    )
    _require_known([token for token, _ in params.biases], "logit_bias", verifier.vocabulary)
    _require_fitting(job, certain)
    _warn_if_idle(job, params)
    return Decoding(job, _stops(options, cap, verifier.vocabulary, tokenizer, eos))


def _require_fitting(job: Job, certain: bool) -> None:
    """Refuse what this rule cannot do."""
    if not isinstance(job.block, bool):
        raise InvalidParameter(f"block is {job.block!r}, but must be True or False.")
    require_fitting(job.rule, certain and job.m != 0, job.block)
    if job.block and job.max_relaxed is not None and not job.rule.lossless:
        raise InvalidParameter(
            f"max_relaxed is {job.max_relaxed}, which can run out in the middle of a block, but {job.rule} is to "
            "decide whole ones. Leave block or max_relaxed out."
        )
    if job.audit and job.rule.looks_ahead:
        raise InvalidParameter(
            f"audit is {job.audit}, but {job.rule} decides with the tokens behind a position, so its law cannot be "
            "measured position by position. Leave audit out, or choose a rule that decides token by token."
        )


def _warn_if_idle(job: Job, params: SamplingParams) -> None:
    """Say which settings do nothing in this combination."""
    if params.greedy and job.m != 0 and not job.rule.lossless:
        warnings.warn(
            f"{job.rule} does nothing at temperature 0: the verifier's law is one token then, and no budget moves it. "
            "Use a temperature above 0 to relax acceptance.",
            stacklevel=_callers_level(),
        )
    if job.max_relaxed is not None and (job.rule.lossless or job.m == 0):
        why = "m is 0" if job.m == 0 else f"{job.rule} relaxes nothing"
        warnings.warn(
            f"max_relaxed does nothing: {why}. Choose a rule such as Cactus(0.25), and an m above 0.",
            stacklevel=_callers_level(),
        )


def _callers_level() -> int:
    """The stack level at which a warning points to the first line outside this package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("cactus_decoding."):
        frame, level = frame.f_back, level + 1
    return level


def _draft_length(m: int | str) -> int | None:
    if isinstance(m, str):
        if m != "auto":
            raise InvalidParameter(f'm is {m!r}, but must be "auto" or a whole number, at least 0.')
        return None
    return whole("m", m, 0)


def _seed(seed: int | None) -> int:
    return secrets.randbits(63) if seed is None else whole("seed", seed, 0, 2**64 - 1)


def _budget(max_relaxed: float | None, cap: int) -> int | None:
    if max_relaxed is None:
        return None
    if isinstance(max_relaxed, Real) and not isinstance(max_relaxed, Integral):
        if not 0.0 <= max_relaxed < 1.0:
            raise InvalidParameter(
                f"max_relaxed is {max_relaxed}, but a share must lie in [0, 1). Give a whole number to count tokens."
            )
        return int(max_relaxed * cap + _ROUNDING)
    return whole("max_relaxed", max_relaxed, 0)


def _cap(prompt_length: int, max_new_tokens: int | None, verifier: Model) -> int:
    room = verifier.context - prompt_length
    if room < 1:
        raise InvalidPrompt(
            f"the prompt has {prompt_length} tokens, but {verifier.name} holds {verifier.context} (the "
            "positions it knows, or its sliding window), the response included. Shorten the prompt."
        )
    if max_new_tokens is None:
        return min(DEFAULT_NEW_TOKENS, room)
    max_new_tokens = whole("max_new_tokens", max_new_tokens, 1)
    if max_new_tokens > room:
        raise InvalidParameter(
            f"max_new_tokens is {max_new_tokens}, but behind the {prompt_length} tokens of the prompt "
            f"{verifier.name} has room for {room} more of its {verifier.context}. Ask for at most {room}."
        )
    return max_new_tokens


def _stops(
    options: Options,
    cap: int,
    vocabulary: Vocabulary,
    tokenizer: PreTrainedTokenizerBase | None,
    eos: frozenset[int],
) -> Stops:
    """A stop string that is a special token is watched for by its id, since special tokens show in no text."""
    stop = options.get("stop")
    strings = [stop] if isinstance(stop, str) else list(stop or ())
    for string in strings:
        if not isinstance(string, str):
            raise InvalidParameter(f"stop holds {string!r}, but must be text. Ids go into stop_token_ids.")
    ids = frozenset(whole("a stop_token_id", i, 0) for i in options.get("stop_token_ids") or ())
    _require_known(ids, "stop_token_ids", vocabulary)
    ends = frozenset[int]() if options.get("ignore_eos") else eos
    if "" in strings:
        raise InvalidParameter("a stop string is empty, which would end every response at once. Leave it out.")
    if tokenizer is None:
        if strings:
            raise InvalidParameter("stop needs text, but this pair has no tokenizer. Pass tokenizer= to load_pair.")
        return Stops(ends, ids, (), cap, None)
    special = {str(t): i for i, t in tokenizer.added_tokens_decoder.items() if t.special}
    ids |= {special[string] for string in strings if string in special}
    return Stops(ends, ids, [s for s in strings if s not in special], cap, Detokenizer(tokenizer))


def _require_known(ids: Iterable[int], name: str, vocabulary: Vocabulary) -> None:
    strangers = vocabulary.strangers(sorted(ids))
    if strangers:
        raise InvalidParameter(
            f"{name} names the id {strangers[0]}, which is no token of this pair's vocabulary of {vocabulary.size}."
        )


def whole(name: str, value: object, least: int, most: int | None = None) -> int:
    """``value`` as a plain int, NumPy's too; refused out of bounds or where it is no whole number."""
    if (
        isinstance(value, bool)
        or not isinstance(value, Integral)
        or int(value) < least
        or (most is not None and int(value) > most)
    ):
        bounds = f"at least {least}" if most is None else f"from {least} to {most}"
        raise InvalidParameter(f"{name} is {value!r}, but must be a whole number, {bounds}.")
    return int(value)
