"""Acceptance rules, one file per published rule, named as its paper names it."""

from cactus_decoding.rules.base import Rule
from cactus_decoding.rules.bounded_ratio import BoundedRatio
from cactus_decoding.rules.cactus import Cactus
from cactus_decoding.rules.lossless import Lossless

RULES: dict[str, type[Rule]] = {rule.name: rule for rule in (Lossless, Cactus, BoundedRatio)}

__all__ = ["RULES", "BoundedRatio", "Cactus", "Lossless", "Rule"]
