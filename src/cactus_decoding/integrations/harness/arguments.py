"""The ``--model_args`` of lm-eval: which pair, which rule, how to decode where a task does not say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch

from cactus_decoding.errors import InvalidParameter
from cactus_decoding.generation.loading import load_pair
from cactus_decoding.generation.pair import DEFAULT_ROWS, Pair
from cactus_decoding.generation.request import Options, whole
from cactus_decoding.rules import RULES, Lossless, Rule, parse_rule, settings_of

DEFAULT_MAX_GEN_TOKS = 256
"""That of lm-eval's own models."""
_LOADING = ("draft", "dtype", "device")
_DECODING = ("m", "block", "max_relaxed")
DEFAULTS = ("temperature", "top_p", "top_k", "min_p")
"""What a task may leave open."""
NAMES = (
    "pretrained", *_LOADING, "threads", "rule", *_DECODING, "batch_size", "max_gen_toks", "seed", *DEFAULTS,
)  # fmt: skip
_SETTINGS = tuple(dict.fromkeys(name for rule in RULES.values() for name in settings_of(rule)))


@dataclass(frozen=True)
class Arguments:
    """The arguments, checked."""

    pretrained: str | Pair
    loading: Mapping[str, Any]
    threads: int | None
    rule: Rule
    decoding: Mapping[str, Any]
    defaults: Mapping[str, float]
    """The sampling settings that were given; they hold where a task does not say otherwise."""
    rows: int
    max_gen_toks: int
    seed: int | None

    def load(self) -> Pair:
        """The pair, with a tokenizer for certain. Raises what `load_pair` raises."""
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        pair = self.pretrained if isinstance(self.pretrained, Pair) else load_pair(self.pretrained, **self.loading)
        if pair.tokenizer is None:
            raise InvalidParameter(
                "pretrained is a pair without a tokenizer, but lm-eval sends text. Load it with one."
            )
        return pair

    def options(self) -> Options:
        """What all responses have in common."""
        return cast(Options, {"rule": self.rule, **self.decoding})


def arguments_of(given: Mapping[str, Any]) -> Arguments:
    """Check what lm-eval hands over: text, or what its command line made of it. None counts as not given."""
    given = {name: value for name, value in given.items() if value is not None}
    _require_known(given)
    seed = given.get("seed")
    threads = given.get("threads")
    return Arguments(
        pretrained=_pretrained(given),
        loading={name: given[name] for name in _LOADING if name in given},
        threads=None if threads is None else whole("threads", threads, 1),
        rule=_rule(given),
        decoding={name: given[name] for name in _DECODING if name in given},
        defaults={name: given[name] for name in DEFAULTS if name in given},
        rows=_rows(given.get("batch_size", DEFAULT_ROWS)),
        max_gen_toks=whole("max_gen_toks", given.get("max_gen_toks", DEFAULT_MAX_GEN_TOKS), 1),
        seed=None if seed is None else whole("seed", seed, 0, 2**64 - 1),
    )


def merged(arguments: Mapping[str, Any], beside: Mapping[str, Any] | None) -> dict[str, Any]:
    """``--model_args`` with lm-eval's own ``--batch_size`` and ``--device``, none of them given twice."""
    others = {name: value for name, value in (beside or {}).items() if value is not None}
    for name, value in _COMMAND_LINES_OWN.items():
        if str(others.get(name)) == value and (name in arguments or not _holds_here(value)):
            del others[name]
    for name, value in others.items():
        if arguments.get(name) is not None and str(arguments[name]) != str(value):
            raise InvalidParameter(
                f"{name} is {arguments[name]!r} in --model_args and {value!r} in --{name}. Give one of them."
            )
    return {**others, **arguments}


_COMMAND_LINES_OWN = {"batch_size": "1", "device": "cuda:0"}
"""What lm-eval's command line hands over where nobody gave one; so these give way to ``--model_args``."""


def _holds_here(value: str) -> bool:
    return value != _COMMAND_LINES_OWN["device"] or torch.cuda.is_available()


def _require_known(given: Mapping[str, Any]) -> None:
    if "max_batch_size" in given:
        raise InvalidParameter(
            f"max_batch_size is {given['max_batch_size']!r}, but no batch size is searched for here. Give --batch_size."
        )
    strangers = [name for name in given if name not in NAMES and name not in _SETTINGS]
    if strangers:
        raise InvalidParameter(
            f"{strangers[0]!r} is no argument of the model cactus. The arguments are {', '.join(NAMES)}, and the "
            f"settings of rules: {', '.join(_SETTINGS)}."
        )


def _pretrained(given: Mapping[str, Any]) -> str | Pair:
    pretrained = given.get("pretrained")
    if isinstance(pretrained, Pair):
        for name in sorted(set(_LOADING) & given.keys()):
            raise InvalidParameter(f"{name} is given, but pretrained is a loaded pair. Leave {name} out.")
    elif not isinstance(pretrained, str) or not pretrained:
        raise InvalidParameter(
            f"pretrained is {pretrained!r}, but must name the verifier: a hub id, a local folder, a .gguf file, or "
            '"abacus", the pair that ships with this package.'
        )
    return pretrained


def _rule(given: Mapping[str, Any]) -> Rule:
    """A rule's settings may stand in ``rule`` or beside it, since lm-eval splits its arguments at commas."""
    rule = given.get("rule", Lossless.name)
    settings = {name: given[name] for name in _SETTINGS if name in given}
    if isinstance(rule, str):
        return parse_rule(rule, **settings)
    if not isinstance(rule, Rule):
        raise InvalidParameter(f"rule is {rule!r}, but must be written as in rule=cactus,delta=0.25.")
    for name, value in settings.items():
        raise InvalidParameter(f"{name} is {value!r}, but rule is {rule}, with its settings. Leave {name} out.")
    return rule


def _rows(size: Any) -> int:
    """lm-eval's command line leaves the batch size as text."""
    if isinstance(size, str) and not size.isdecimal():
        raise InvalidParameter(
            f"batch_size is {size!r}, but must be a whole number: how many responses decode together. Nothing is "
            "searched for here."
        )
    return whole("batch_size", int(size) if isinstance(size, str) else size, 1)
