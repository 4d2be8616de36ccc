"""Speculative decoding with constrained acceptance.

    import cactus_decoding as cactus

    pair = cactus.load_pair("abacus")
    question = "Mia has 8 coins. She finds 4 more coins. She loses 3 coins. How many coins does Mia have now?"
    out = pair.generate(question, rule=cactus.Cactus(delta=0.25), seed=7)
    print(out.text, out.stats.tokens_per_call)

The names below are imported when they are first used, since torch and transformers take seconds to import.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cactus_decoding.errors import CactusError
    from cactus_decoding.generation.loading import load_pair
    from cactus_decoding.generation.output import Output
    from cactus_decoding.generation.pair import Pair
    from cactus_decoding.generation.request import Request
    from cactus_decoding.generation.session import Session, Stream
    from cactus_decoding.integrations import transformers as hf
    from cactus_decoding.rules import (
        RECOMMENDED,
        RULES,
        BoundedRatio,
        Cactus,
        Cascade,
        Ears,
        Fly,
        Frontier,
        Fuzzy,
        Interpolation,
        Lossless,
        Mentored,
        Rule,
        TopK,
        Typical,
        parse_rule,
    )  # fmt: skip
    from cactus_decoding.sampling import SamplingParams

_HOMES = {
    "CactusError": "errors",
    "load_pair": "generation.loading",
    "Output": "generation.output",
    "Pair": "generation.pair",
    "Request": "generation.request",
    "Session": "generation.session",
    "Stream": "generation.session",
    "RECOMMENDED": "rules",
    "RULES": "rules",
    "BoundedRatio": "rules",
    "Cactus": "rules",
    "Cascade": "rules",
    "Ears": "rules",
    "Fly": "rules",
    "Frontier": "rules",
    "Fuzzy": "rules",
    "Interpolation": "rules",
    "Lossless": "rules",
    "Mentored": "rules",
    "Rule": "rules",
    "TopK": "rules",
    "Typical": "rules",
    "parse_rule": "rules",
    "SamplingParams": "sampling",
}

__all__ = [
    "RECOMMENDED",
    "RULES",
    "BoundedRatio",
    "Cactus",
    "CactusError",
    "Cascade",
    "Ears",
    "Fly",
    "Frontier",
    "Fuzzy",
    "Interpolation",
    "Lossless",
    "Mentored",
    "Output",
    "Pair",
    "Request",
    "Rule",
    "SamplingParams",
    "Session",
    "Stream",
    "TopK",
    "Typical",
    "hf",
    "load_pair",
    "parse_rule",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        return importlib.metadata.version("cactus-decoding")
    if name == "hf":  # a module: `hf.generate` is what transformers' custom_generate= takes
        return importlib.import_module(f"{__name__}.integrations.transformers")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
