"""Acceptance rules, one file per published rule, named as its paper names it."""

from __future__ import annotations

from cactus_decoding.rules.base import Rule
from cactus_decoding.rules.bounded_ratio import BoundedRatio
from cactus_decoding.rules.cactus import Cactus
from cactus_decoding.rules.cascade import Cascade
from cactus_decoding.rules.ears import Ears
from cactus_decoding.rules.fly import Fly
from cactus_decoding.rules.frontier import Frontier
from cactus_decoding.rules.fuzzy import Fuzzy
from cactus_decoding.rules.interpolation import Interpolation
from cactus_decoding.rules.lossless import Lossless
from cactus_decoding.rules.mentored import Mentored
from cactus_decoding.rules.registry import RECOMMENDED, RULES, make_rule, parse_rule, settings_of, spec_of, split_specs
from cactus_decoding.rules.top_k import TopK
from cactus_decoding.rules.typical import Typical

__all__ = [
    "RECOMMENDED",
    "RULES",
    "BoundedRatio",
    "Cactus",
    "Cascade",
    "Ears",
    "Fly",
    "Frontier",
    "Fuzzy",
    "Interpolation",
    "Lossless",
    "Mentored",
    "Rule",
    "TopK",
    "Typical",
    "make_rule",
    "parse_rule",
    "settings_of",
    "spec_of",
    "split_specs",
]
